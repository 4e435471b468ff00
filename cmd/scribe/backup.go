package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/recovery"
	"scribe/internal/base/config"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/backup"
	"scribe/storage/blob"
)

func newBackup() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "backup",
		Short: "Make, list, verify and delete backups of a cell's metadata",
		Long: `A backup is a copy of the metadata of a cell as it was at one moment: the metadata logs and the control store (categories with their schemas, consumer groups,
tokens and grants). Payloads are not copied: they are in their store, of which a backup holds back nothing. "scribe restore" builds a data folder from a backup and
from the payloads that were stored since.

Backups are kept with the payloads, or where --backup-to of the process says: a folder, or a bucket. In the same store they are lost with it. A process of both roles,
controlplane and metalog, makes one when "scribe backup create" asks for it, and by itself with --backup-every. The other commands look at the store.`,
		Example: `  scribe up --backup-every 6h --backup-to /mnt/backups ...
  scribe backup create
  scribe backup list --data ./scribe-data
  scribe backup verify 20261128-231500-k3j4xq --backup-to /mnt/backups
  scribe backup delete --keep 10 --blobs s3 --s3-endpoint https://s3.example.org --s3-bucket scribe`,
	}, newBackupCreate(), newBackupList(), newBackupVerify(), newBackupDelete())
}

// backupTimeout bounds how long a backup may take.
const backupTimeout = 12 * time.Hour

func newBackupCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Have a running cell make a backup now",
		Long: `Have a running cell make a backup of its metadata, consistent and without stopping anything, and wait until it is complete. The process at --server must have both roles,
controlplane and metalog: that of "scribe up", or any node. It stores the backup where its --backup-to says. If the command is interrupted there is no backup, and the next one goes on
with what was stored.

It needs the permission "operate".

Exit codes: 0 the backup is complete, 3 the process has not both roles, 4 denied, 5 the cell or the store is unavailable.`,
		Example: `  scribe backup create
  scribe backup create --server http://10.0.0.2:7420 -o json`,
		Args: cobra.NoArgs,
	}
	server, format := serverFlag(cmd), tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), backupTimeout)
		defer cancel()
		res, err := rpc.NewBackupClient(rpc.Default(), *server).CreateBackup(ctx, &scribev1.CreateBackupRequest{})
		switch {
		case connect.CodeOf(err) == connect.CodeUnimplemented:
			return &codedError{code: exitNotFound, err: fmt.Errorf("%s has not both roles, controlplane and metalog: give the address of a process that has, with --server", *server)}
		case err != nil:
			return callFailure(*server, "create a backup", err)
		case asJSON:
			return printLines(cmd.OutOrStdout(), createdJSON{
				Name: res.GetName(), Location: res.GetLocation(), Created: timeOf(res.GetCreated()), Files: res.GetFiles(), Bytes: res.GetBytes(), Stored: res.GetStoredBytes(),
			})
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "backup %s is complete in %s: %d files, %v, of which %v were stored now\n",
			res.GetName(), res.GetLocation(), res.GetFiles(), units.Bytes(res.GetBytes()), units.Bytes(res.GetStoredBytes())) //nolint:gosec // far below
		return err
	}
	return cmd
}

// createdJSON is a backup that was made.
type createdJSON struct {
	Name     string    `json:"name"`
	Location string    `json:"location"`
	Created  time.Time `json:"created"`
	Files    uint64    `json:"files"`
	Bytes    uint64    `json:"bytes"`
	Stored   uint64    `json:"bytes_stored"`
}

// backupFlags are the flags of commands that look at a store of backups.
type backupFlags struct{ serverFlags }

func (f *backupFlags) addTo(cmd *cobra.Command) {
	f.addFlags(cmd, "blobs", app.DefaultConfig(), "backups")
	cmd.Flags().StringVar(&f.config, "config", "", "YAML configuration file of a process that makes backups; flags and environment variables override it")
}

// open opens the backups that the flags name.
func (f *backupFlags) open(cmd *cobra.Command, progress func(uint64)) (*backup.Backups, blob.Store, error) {
	c, err := f.configure(cmd)
	if err != nil {
		return nil, nil, err
	}
	to, err := c.BackupBlobs()
	if err != nil {
		return nil, nil, usageError(fmt.Errorf("--backup-to: %w", err))
	}
	if err := checkBlobs(to); err != nil {
		return nil, nil, err
	}
	return app.OpenBackups(cmd.Context(), c, app.Host{}, progress)
}

// backupFailure gives an error of a store of backups its exit code.
func backupFailure(err error) error {
	switch {
	case errors.Is(err, blob.ErrDenied):
		return &codedError{code: exitDenied, err: err}
	case errors.Is(err, blob.ErrUnavailable), errors.Is(err, backup.ErrBusy):
		return &codedError{code: exitUnavailable, err: err}
	case errors.Is(err, backup.ErrDamaged):
		return &codedError{code: exitPartly, err: err}
	}
	return err // exitCode knows what is not found
}

func newBackupList() *cobra.Command {
	var f backupFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the backups in a store, the oldest first",
		Long: `List the backups in a store. CREATED is when everything in a backup had been read, STORE the store of payloads of its cell. A backup that can't be read is listed with the reason.

--data, --blobs or --config give the store of payloads, as for "scribe up", and --backup-to where backups are if they are elsewhere.`,
		Example: `  scribe backup list --data ./scribe-data
  scribe backup list --backup-to /mnt/backups -o json`,
		Args: cobra.NoArgs,
	}
	f.addTo(cmd)
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		b, store, err := f.open(cmd, nil)
		if err != nil {
			return backupFailure(err)
		}
		all, err := b.List(cmd.Context())
		if err := errors.Join(err, store.Close()); err != nil {
			return backupFailure(err)
		}
		return printBackups(cmd.OutOrStdout(), all, asJSON)
	}
	return cmd
}

// listedJSON is a backup in a list.
type listedJSON struct {
	Name     string    `json:"name"`
	Created  time.Time `json:"created,omitzero"`
	Files    int       `json:"files,omitempty"`
	Bytes    uint64    `json:"bytes,omitempty"`
	Revision uint64    `json:"control_revision,omitempty"`
	Store    string    `json:"store,omitempty"`
	Program  string    `json:"program,omitempty"`
	Error    string    `json:"error,omitempty"`
}

func newListedJSON(i backup.Info) listedJSON {
	l := listedJSON{Name: i.Name}
	if i.Err != nil {
		l.Error = i.Err.Error()
	}
	if m := i.Manifest; m != nil {
		l.Created, l.Files, l.Bytes, l.Revision, l.Store, l.Program = timeOf(m.Created), len(m.Logs)+len(m.Control), m.Bytes(), m.Revision, m.Store, m.Program
	}
	return l
}

func printBackups(out io.Writer, all []backup.Info, asJSON bool) error {
	lines := make([]listedJSON, len(all))
	for i := range all {
		lines[i] = newListedJSON(all[i])
	}
	if asJSON {
		return printLines(out, lines...)
	}
	w := newTable(out, "NAME\tCREATED\tBYTES\tFILES\tSTORE\tPROGRAM")
	for _, l := range lines {
		if l.Error != "" {
			fmt.Fprintf(w, "%s\t%s\n", l.Name, l.Error)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%v\t%d\t%s\t%s\n", l.Name, l.Created.Format(time.RFC3339), units.Bytes(l.Bytes), l.Files, l.Store, l.Program) //nolint:gosec // far below
	}
	return w.Flush()
}

func newBackupVerify() *cobra.Command {
	var f backupFlags
	cmd := &cobra.Command{
		Use:   "verify [NAME]",
		Short: "Read all of a backup, and compare it with its checksums",
		Long: `Read every file of a backup, and compare it with its checksums; without NAME that of the newest one. Whether it can be restored with the payloads that there are,
"scribe restore --dry-run" tells, which reads the same and builds nothing.

Exit codes: 0 the backup is whole, 3 there is none, 5 the store is unavailable, 6 something is damaged or missing (it is named).`,
		Example: `  scribe backup verify --data ./scribe-data
  scribe backup verify 20261128-231500-k3j4xq --backup-to /mnt/backups`,
		Args: cobra.MaximumNArgs(1),
	}
	f.addTo(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		b, store, err := f.open(cmd, nil)
		if err != nil {
			return backupFailure(err)
		}
		err = verifyBackup(cmd, b, args)
		return backupFailure(errors.Join(err, store.Close()))
	}
	return cmd
}

func verifyBackup(cmd *cobra.Command, b *backup.Backups, args []string) error {
	var name string
	if len(args) > 0 {
		name = args[0]
	} else {
		newest, skipped, err := b.Latest(cmd.Context(), "", 0)
		for _, s := range skipped {
			err = errors.Join(err, fmt.Errorf("backup %s: %w", s.Name, s.Err))
		}
		if err != nil {
			return err
		}
		name = newest.Name
	}
	m, err := b.Verify(cmd.Context(), name)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "backup %s of %s is whole: %d files, %v\n", name, timeOf(m.Created).Format(time.RFC3339), len(m.Logs)+len(m.Control), units.Bytes(m.Bytes())) //nolint:gosec // far below
	return err
}

func newBackupDelete() *cobra.Command {
	var f backupFlags
	var keep int
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete (NAME... | --keep N)",
		Short: "Delete backups",
		Long: `Delete backups by name, or all but the newest ones of the cell with --keep. What they share with others stays. Files that no backup needs any more are removed when they
are a day old. It is refused while a backup is made.`,
		Example: `  scribe backup delete 20261128-231500-k3j4xq --data ./scribe-data
  scribe backup delete --keep 10 --backup-to /mnt/backups --yes`,
		Args: cobra.ArbitraryArgs,
	}
	f.addTo(cmd)
	cmd.Flags().IntVar(&keep, "keep", 0, "delete all but so many of the newest backups of each cell")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if (len(args) > 0) == (keep != 0) || keep < 0 {
			return usageError(errors.New("want names of backups, or --keep with a number above 0"))
		}
		b, store, err := f.open(cmd, nil)
		if err != nil {
			return backupFailure(err)
		}
		err = deleteBackups(cmd, b, args, keep, yes)
		return backupFailure(errors.Join(err, store.Close()))
	}
	return cmd
}

func deleteBackups(cmd *cobra.Command, b *backup.Backups, names []string, keep int, yes bool) error {
	if keep > 0 {
		all, err := b.List(cmd.Context())
		if err != nil {
			return err
		}
		names = backup.Superfluous(all, keep)
		if len(names) == 0 {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "0 backups were deleted")
			return err
		}
	}
	if !yes {
		if err := confirmName(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), fmt.Sprintf("delete %s, from %s on", countText(len(names), "backup"), names[0]), names[0]); err != nil {
			return err
		}
	}
	if err := b.Delete(cmd.Context(), names...); err != nil {
		return err
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s deleted\n", countText(len(names), "backup"))
	return err
}

func newRestore() *cobra.Command {
	var f backupFlags
	var o app.RecoverOptions
	var until string
	cmd := &cobra.Command{
		Use:   "restore --to DIR",
		Short: "Rebuild a cell's metadata from a backup and from what was stored since",
		Long: `Build a new data folder from a backup and from the blobs. What the backup has, metadata logs, categories, groups and rights, is as it was. What was committed after it
comes from the footers of the blobs, as with "scribe recover", at the positions that it had: readers go on from their checkpoints, and producers that write exactly once are recognised.
First stop every process that writes to the cell. DIR must be missing or empty; an existing folder is never changed.

--data, --blobs or --config give the location of the blobs, as for "scribe up", and --backup-to where the backups are if they are elsewhere. --from names the backup; the newest one that
fits is the default. The result is the folder of a cell of one process; a new cell of nodes, or in etcd, begins with it (--adopt).

--until restores a moment: of what was stored later nothing can be read, its positions stay taken, and readers are told of a gap. The backup must be older than that.

Since the backup does not know what changed after it: tokens and grants that were revoked are valid again, categories that were deleted are back, and changes of categories and schemas are
to be repeated. Consumer groups go on at their positions in the backup, and read again what they had read since.

The first findings of each kind are printed on standard error, and all of them are written to DIR/recovery.jsonl. The summary is a JSON object on standard output. After an interruption, run the command again: it
resumes from DIR.restoring.

Exit codes: 0 everything was restored, 6 something is damaged or lost (it is named), 3 there is no such backup, 4 the store denies access, 5 the store is unavailable.`,
		Example: `  scribe restore --data ./scribe-data --to ./restored --dry-run
  scribe restore --data ./scribe-data --to ./restored
  scribe up --data ./restored --blob-path ./scribe-data/blobs
  scribe restore --blobs s3 --s3-endpoint https://s3.example.org --s3-bucket scribe --backup-to /mnt/backups --from 20261128-231500-k3j4xq --to /var/lib/scribe-new
  scribe up --node n1 --cluster n1=10.0.0.1:7420,... --data /var/lib/scribe-new --blobs s3 ... --adopt    # as a cell of nodes
  scribe restore --config serve.yaml --to ./restored --until 2026-11-28T23:00:00Z`,
		Args: cobra.NoArgs,
	}
	f.addTo(cmd)
	fs := cmd.Flags()
	fs.StringVar(&o.To, "to", "", "data folder to create")
	fs.StringVar(&o.Backup, "from", app.LatestBackup, "name of the backup")
	fs.StringVar(&until, "until", "", "moment to restore: "+units.TimeHelp+" (default: everything)")
	fs.BoolVar(&o.DryRun, "dry-run", false, "print what would be built, without building it")
	fs.IntVar(&o.Workers, "parallel", config.Defaults[recovery.Config]().Workers, "footers to read in parallel")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := f.configure(cmd)
		if err != nil {
			return err
		}
		switch {
		case o.To == "" && !o.DryRun:
			return usageError(errors.New("missing --to: want the data folder to create"))
		case o.Workers < 1 || o.Workers > 1024:
			return usageError(fmt.Errorf("invalid value %d for --parallel: want 1 to 1024", o.Workers))
		case o.Backup == "":
			return usageError(errors.New("missing --from: want the name of a backup, or latest"))
		}
		if until != "" {
			if o.Until, err = units.ParseTime(until, time.Now()); err != nil {
				return usageError(fmt.Errorf("--until: %w", err))
			}
		}
		to, err := c.BackupBlobs()
		if err != nil {
			return usageError(fmt.Errorf("--backup-to: %w", err))
		}
		if err := errors.Join(checkBlobs(c), checkBlobs(to)); err != nil {
			return err
		}
		o.Logger = newLogger(app.LogConfig{Level: "error", Format: "text"}, cmd.ErrOrStderr())
		return recoverMetadata(cmd.Context(), c, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// printRestored says what the operator has to know of the backup that was restored.
func printRestored(out io.Writer, b *app.RestoredBackup) {
	for _, s := range b.Skipped {
		fmt.Fprintf(out, "a newer backup can't be read, and was passed over: %s\n", s)
	}
	fmt.Fprintf(out, "tokens and grants that were revoked after %s are valid again, and categories that were deleted since are back: look at scribe token list, scribe grants and scribe category list\n",
		timeOf(b.Created).Format(time.RFC3339))
}
