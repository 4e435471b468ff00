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
		Short: "Keys of encrypted categories",
		Long: `Keys of encrypted categories. Each category has keys of its own (scribe category create --encrypted). They lie in the store beside the payloads,
and each is wrapped with a key of a file that only batchers and read proxies have (--encryption-key-file): the store alone shows nothing.

Without the key file all encrypted payloads are lost. Keep copies of it where the store's are not.`,
		Example: `  scribe key new 2026-11 > keys.txt                      # then: scribe up --encryption-key-file keys.txt
  scribe key list --data ./scribe-data
  scribe key new 2027-01 | cat - keys.txt > new.txt && mv new.txt keys.txt && scribe key rewrap --encryption-key-file keys.txt`,
	}, newKeyNew(), newKeyList(), newKeyRewrap(), newKeyDelete())
}

func newKeyNew() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "new NAME",
		Short: "Print a line of a key file, with a new key",
		Long: `Print a line of a key file, with a new key. The first line of a key file wraps new keys, and all of them unwrap: put a new one before the old
ones, at all processes, and remove these once "scribe key rewrap" is done.`,
		Example: `  scribe key new 2026-11 > keys.txt && chmod 600 keys.txt`,
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
	ID         string    `json:"id,omitempty"`
	Wrapper    string    `json:"wrapped_with,omitempty"`
	Stored     time.Time `json:"stored"`
	Error      string    `json:"error,omitempty"`
}

func newKeyList() *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the keys in a store, a JSON object per line",
		Long: `List the keys in a store, a JSON object per line: the id of the category, the number of its key, and the key of the file that wraps it. It needs no
key file.`,
		Example: `  scribe key list --data ./scribe-data
  scribe key list --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe`,
		Args: cobra.NoArgs,
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withKeyStore(cmd, &f, func(ctx context.Context, _ *app.Config, store blob.Store) error {
			unread := 0
			for k, err := range encryption.ListKeys(ctx, store, encryption.Prefix) {
				line := keyLine{Category: k.Category, Generation: k.Generation, Wrapper: k.Wrapper, Stored: k.Stored}
				switch {
				case err != nil && k == encryption.StoredKey{}:
					return err
				case err != nil:
					unread++
					line.Error = err.Error()
				default:
					line.ID = fmt.Sprintf("%016x", k.ID)
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
	var yes bool
	cmd := &cobra.Command{
		Use:   "delete CATEGORY-ID",
		Short: "Delete the keys of a category: nobody reads its payloads any more",
		Long: `Delete all keys of a category in a store: what they encrypted is unreadable from then on, also in copies of the store. Processes forget the keys
within an hour. Deleting a category (scribe category delete) does this by itself; the command is for keys that are left, and for what can't wait. New messages of the category get a new key.`,
		Example: `  scribe category describe payments.old | grep '"id"'
  scribe key delete 17 --data ./scribe-data --yes`,
		Args: cobra.ExactArgs(1),
	}
	f.addFlags(cmd, "blobs", app.DefaultConfig())
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := strconv.ParseUint(args[0], 10, 32)
		if err != nil {
			return usageError(fmt.Errorf("invalid id of a category %q: want the number that scribe category describe shows", args[0]))
		}
		return withKeyStore(cmd, &f, func(ctx context.Context, _ *app.Config, store blob.Store) error {
			if !yes {
				if err := confirmName(ctx, cmd.InOrStdin(), cmd.ErrOrStderr(), "delete the keys of category "+args[0]+", so that nobody reads its payloads any more", args[0]); err != nil {
					return err
				}
			}
			n, err := encryption.DeleteKeys(ctx, store, encryption.CategoryPrefix(uint32(id)))
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
