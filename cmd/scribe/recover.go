package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/recovery"
	"scribe/internal/base/config"
	"scribe/storage/backup"
	"scribe/storage/blob"
)

func newRecover() *cobra.Command {
	var f serverFlags
	var o app.RecoverOptions
	cmd := &cobra.Command{
		Use:   "recover --to DIR",
		Short: "Rebuild lost metadata from the footers of the blobs",
		Long: `Build a new data folder from the blobs alone: the metadata logs with their pointers and LSNs, the state of producers, and the categories.
The command only reads the blobs, mostly their footers, and never changes an existing folder: DIR must be missing or empty. First stop
every process that writes to the cell.

--data, --blobs or --config give the location of the blobs, as for "scribe serve". --catalog is an earlier copy of the categories: the file
"catalog" in the data folder of any process of the cell, with "catalog.quotas" beside it if there is one, or, if only the logs are lost, the folder "control" of its control plane. Without it,
categories are rebuilt from the blobs, and each assumption is reported on a line.

Nothing of etcd is needed: for a cell of nodes, or one whose metadata is in etcd, the result is the folder of a cell of one process as well, and a new cell of nodes, or in
etcd, begins with it (--adopt). Its --catalog is the newest file "catalog" of any process.

The first findings of each kind are printed on standard error, and all of them are written to DIR/recovery.jsonl. The summary is a JSON
object on standard output. After an interruption, run the command again: it resumes reading from DIR.recovering.

Exit codes: 0 everything was recovered, 6 something is damaged or lost (it is named), 3 there are no blobs, 4 the store denies access,
5 the store is unavailable.`,
		Example: `  scribe recover --data ./scribe-data --to ./recovered --dry-run
  scribe recover --data ./scribe-data --to ./recovered --catalog ./scribe-data/catalog
  scribe up --data ./recovered --blob-path ./scribe-data/blobs
  scribe up --node n1 --cluster n1=10.0.0.1:7420,... --data ./recovered --blobs s3 ... --adopt    # as a cell of nodes
  scribe serve --roles controlplane,metalog --etcd http://10.0.0.5:2379 --cell eu2 --data ./recovered --blobs s3 ... --adopt
  scribe recover --config serve.yaml --to /var/lib/scribe-new --catalog /backup/control
  scribe recover --blobs s3 --s3-endpoint https://s3.example.org --s3-bucket scribe --to ./recovered`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	fs := cmd.Flags()
	fs.StringVar(&f.config, "config", "", "YAML configuration file of a process of the cell; flags and environment variables override it")
	fs.StringVar(&o.To, "to", "", "data folder to create")
	fs.StringVar(&o.Catalog, "catalog", "", "copy of the categories: the file \"catalog\" of a process, or the folder of a control store")
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
		}
		if err := checkBlobs(c); err != nil {
			return err
		}
		o.Logger = newLogger(app.LogConfig{Level: "error", Format: "text"}, cmd.ErrOrStderr())
		return recoverMetadata(cmd.Context(), c, o, cmd.OutOrStdout(), cmd.ErrOrStderr())
	}
	return cmd
}

// maxShown is how many findings of a kind are shown; all of them are in the file.
const maxShown = 20

func recoverMetadata(ctx context.Context, c app.Config, o app.RecoverOptions, stdout, stderr io.Writer) error {
	show := &recoverScreen{statusLine: newStatusLine(stderr), terminal: isTerminal(stderr), shown: map[recovery.FindingKind]int{}}
	o.Progress, o.Found = show.showProgress, show.showFinding
	start := time.Now()
	done, err := app.Recover(ctx, c, o)
	show.hideText()
	switch {
	case errors.Is(err, app.ErrNothing):
		return &codedError{code: exitNotFound, err: err}
	case errors.Is(err, blob.ErrDenied):
		return &codedError{code: exitDenied, err: err}
	case errors.Is(err, backup.ErrDamaged):
		return &codedError{code: exitPartly, err: err}
	case errors.Is(err, blob.ErrUnavailable):
		return &codedError{code: exitUnavailable, err: err}
	case err != nil:
		return err
	}
	show.showOmitted()
	if err := printJSON(stdout, summaryJSON(done, o, time.Since(start))); err != nil {
		return err
	}
	if done.Backup != nil {
		printRestored(stderr, done.Backup)
	}
	if len(done.Claims) > 0 {
		fmt.Fprintf(stderr, "retention deletes nothing until it starts with --retention-adopt %s; first check that the recovered data is complete\n", strings.Join(done.Claims, ","))
	}
	if !done.Whole() {
		return &codedError{code: exitPartly, err: fmt.Errorf(
			"recovered, but %d blobs are damaged, %d of a newer version, %d records lost in %d gaps, and %d conflicts and %d contradictions found",
			done.Damaged, done.Newer, done.Lost, done.Gaps, done.Conflicts, done.Contradictions)}
	}
	return nil
}

// recoverScreen shows progress and findings.
type recoverScreen struct {
	*statusLine

	terminal bool
	shown    map[recovery.FindingKind]int
}

func (s *recoverScreen) showProgress(phase string, done int64) {
	if s.terminal {
		s.showText(fmt.Sprintf("%s: %d", phase, done))
	}
}

func (s *recoverScreen) showFinding(f recovery.Finding) error {
	if s.shown[f.Kind]++; f.Kind != recovery.FindingCategory && s.shown[f.Kind] > maxShown {
		return nil
	}
	switch {
	case f.From != 0:
		s.printLine("%s: %s shard %v, LSN %d to %d: %s%s", f.Kind, f.Category, f.Shard, f.From, f.To-1, f.Reason, ofBlob(f.Key))
	case f.Key != "":
		s.printLine("%s: %s: %s", f.Kind, f.Key, f.Reason)
	default:
		s.printLine("%s: %s: %s", f.Kind, f.Category, f.Reason)
	}
	for _, c := range f.Contents {
		s.printLine("  it holds %d messages in %d frames of %s, logical shard %d", c.Messages, c.Frames, c.Category, c.Shard)
	}
	return nil
}

func ofBlob(key string) string {
	if key == "" {
		return ""
	}
	return " (blob " + key + ")"
}

// showOmitted says what was not shown.
func (s *recoverScreen) showOmitted() {
	for kind, n := range s.shown {
		if kind != recovery.FindingCategory && n > maxShown {
			s.printLine("%s: %d more", kind, n-maxShown)
		}
	}
}

type recoverLine struct {
	To      string  `json:"to,omitempty"`
	DryRun  bool    `json:"dry_run,omitempty"`
	Seconds float64 `json:"seconds"`
	recovery.BlobCounts
	Categories int `json:"categories"`
	Dropped    int `json:"categories_deleted"`
	recovery.LogCounts
	Oldest   time.Time `json:"oldest_blob,omitzero"`
	Newest   time.Time `json:"newest_blob,omitzero"`
	Boundary time.Time `json:"boundary"`
	NextID   uint64    `json:"next_category_id"`
	Claims   []string  `json:"collector_claims,omitempty"`
	Backup   string    `json:"backup,omitempty"`
	BackupAt time.Time `json:"backup_created,omitzero"`
}

func summaryJSON(r *app.Recovered, o app.RecoverOptions, took time.Duration) recoverLine {
	at := func(micros int64) time.Time {
		if micros == 0 {
			return time.Time{}
		}
		return timeOf(micros)
	}
	line := recoverLine{
		To: o.To, DryRun: o.DryRun, Seconds: took.Seconds(), BlobCounts: r.BlobCounts, Categories: len(r.Categories), Dropped: len(r.Dropped),
		LogCounts: r.LogCounts, Oldest: at(r.Oldest), Newest: at(r.Newest), Boundary: at(r.Boundary), NextID: r.NextID, Claims: r.Claims,
	}
	if b := r.Backup; b != nil {
		line.Backup, line.BackupAt = b.Name, at(b.Created)
	}
	return line
}
