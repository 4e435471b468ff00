package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
)

func newKey() *cobra.Command {
	return newParent(&cobra.Command{
		Use:   "key",
		Short: "Keys of encrypted categories, and of agents' disk buffers",
		Long: `Keys of encrypted categories. Each category has keys of its own (scribe category create --encrypted). They lie in the store beside the payloads,
and each is wrapped with a key of a file that only batchers and read proxies have (--encryption-key-file): the store alone shows nothing.

Without the key file all encrypted payloads are lost. Keep copies of it where the store's are not.

An agent that is started with --encryption-key-file encrypts what it keeps on its host's disk, with keys of its own that lie in its spool: --in-spool names that.
Give each host a key file of its own.`,
		Example: `  umask 077; scribe key new 2026-11 > keys.txt           # then: scribe up --encryption-key-file keys.txt
  scribe key list --data ./scribe-data
  scribe key list --in-spool /var/lib/scribe/spool
  scribe key new 2027-01 | cat - keys.txt > new.txt && mv new.txt keys.txt && scribe key rewrap --encryption-key-file keys.txt`,
	}, newKeyNew(), newKeyList(), newKeyRewrap(), newKeyDelete())
}

func newKeyNew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Print a line of a key file, with a new key",
		Long: `Print a line of a key file, with a new key. The first line of a key file wraps new keys, and all of them unwrap: put a new one before the old
ones, at all processes, and remove these once "scribe key rewrap" is done.`,
		Example: `  umask 077; scribe key new 2026-11 > keys.txt`,
		Args:    cobra.ExactArgs(1),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		line, err := encryption.NewFileKey(args[0], nil)
		if err != nil {
			return usageError(err)
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), line)
		return err
	}
	return cmd
}

// keyLine is a key of a category as it is listed.
type keyLine struct {
	Category   uint32    `json:"category"`
	Generation uint32    `json:"generation"`
	ID         string    `json:"id"`
	Wrapper    string    `json:"wrapped_with,omitempty"`
	Stored     time.Time `json:"stored"`
	Error      string    `json:"error,omitempty"`
}

func newKeyList() *cobra.Command {
	var f serverFlags
	var inSpool string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys in a store or a spool, a JSON object per line",
		Long: `List the keys in a store, a JSON object per line: the id of the category, the number of its key, and the key of the file that wraps it. It needs no
key file. With --in-spool it lists those in an agent's spool, also while the agent runs.`,
		Example: `  scribe key list --data ./scribe-data
  scribe key list --in-spool /var/lib/scribe/spool
  scribe key list --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	inSpoolFlag(cmd, &inSpool)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if inSpool != "" {
			return listSpoolKeys(inSpool, cmd.OutOrStdout())
		}
		return withKeyStore(cmd, &f, func(ctx context.Context, _ *app.Config, store blob.Store) error {
			unread := 0
			for k, err := range encryption.ListKeys(ctx, store, encryption.Prefix) {
				line := keyLine{Category: k.Category, Generation: k.Generation, ID: fmt.Sprintf("%016x", k.ID), Wrapper: k.Wrapper, Stored: k.Stored}
				switch {
				case err != nil && k == encryption.StoredKey{}:
					return err
				case err != nil:
					unread++
					line.Error = err.Error()
				}
				if err := printLines(cmd.OutOrStdout(), line); err != nil {
					return err
				}
			}
			if unread > 0 {
				return fmt.Errorf("%d keys can't be read; they are named above", unread)
			}
			return nil
		})
	}
	return cmd
}

func newKeyRewrap() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "rewrap",
		Short: "Wrap all keys in a store with the first key of the key file",
		Long: `Wrap all keys in a store with the first key of --encryption-key-file that are wrapped with another one. The categories' keys stay the same, and no
payload is touched; it is safe while the cell runs, and can be repeated. All processes must have the new key in their files before. Keys that are younger than an
hour are left out: repeat the command later, until it says that there are none, before the old key is removed from the files.`,
		Example: `  scribe key rewrap --data ./scribe-data --encryption-key-file keys.txt`,
		Args:    cobra.NoArgs,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withKeyStore(cmd, &f, func(ctx context.Context, c *app.Config, store blob.Store) error {
			if c.Blobs.KeyFile == "" {
				return usageError(errors.New("--encryption-key-file is missing: it has the new key first, and the old ones"))
			}
			rewrapped, young, err := encryption.RewrapKeys(ctx, store, encryption.KeyFile{Path: c.Blobs.KeyFile}, time.Now())
			fmt.Fprintf(cmd.OutOrStdout(), "%d keys were wrapped again\n", rewrapped)
			if err == nil && young > 0 {
				fmt.Fprintf(cmd.OutOrStdout(), "%d were made within the last hour, and left as they are: repeat the command in an hour\n", young)
			}
			return err
		})
	}
	return cmd
}

func newKeyDelete() *cobra.Command {
	var f serverFlags
	var yes, all bool
	var inSpool string
	cmd := &cobra.Command{
		Use:   "delete CATEGORY-ID | delete CATEGORY --in-spool DIR",
		Short: "Delete former keys of a category, or all: nobody reads what they encrypted any more",
		Long: `Delete the keys of a category in a store, but for the newest generation, which new payloads take: what they encrypted is unreadable from then on.
Processes forget the keys within an hour. To make all that a category has unreadable, rotate its key first (scribe category update --rotate-key), and wait until
batchers have heard of it.

--all deletes the newest one as well. It is for categories that are deleted: batchers of one that is not encrypt with that key for up to an hour, and what they write is lost.
Deleting a category (scribe category delete) does this by itself.

With --in-spool it deletes the keys that an agent's spool has for the category of a name: what waits there of it, and its dead letters, are unreadable from then on. The
agent must be stopped; when it starts again, it counts these messages as dropped (reason key_deleted).`,
		Example: `  scribe category describe payments | grep '"id"'
  scribe category update payments --rotate-key && sleep 60 && scribe key delete 17 --data ./scribe-data
  scribe key delete 16 --data ./scribe-data --all --yes
  scribe key delete payments --in-spool /var/lib/scribe/spool`,
		Args: cobra.ExactArgs(1),
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&all, "all", false, "the newest generation, too")
	inSpoolFlag(cmd, &inSpool)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if inSpool != "" {
			return deleteSpoolKeys(cmd, inSpool, args[0], yes)
		}
		id, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return usageError(fmt.Errorf("invalid id of a category %q: want the number that scribe category describe shows", args[0]))
		}
		return withKeyStore(cmd, &f, func(ctx context.Context, _ *app.Config, store blob.Store) error {
			if !yes {
				if err := confirmName(ctx, cmd.InOrStdin(), cmd.ErrOrStderr(), "delete keys of category "+args[0]+", so that nobody reads what they encrypted any more", args[0]); err != nil {
					return err
				}
			}
			n, err := encryption.DeleteKeys(ctx, store, uint32(id), !all)
			fmt.Fprintf(cmd.OutOrStdout(), "%d keys were deleted\n", n)
			return err
		})
	}
	return cmd
}

// withKeyStore runs fn over the store that the flags name.
func withKeyStore(cmd *cobra.Command, f *serverFlags, fn func(context.Context, *app.Config, blob.Store) error) error {
	c, err := f.configure(cmd)
	if err != nil {
		return err
	}
	return withBlobs(cmd.Context(), c, func(store blob.Store) error { return fn(cmd.Context(), &c, store) })
}
