package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/scribed/keyring"
	"scribe/scribed/spool"
)

func inSpoolFlag(cmd *cobra.Command, dir *string) {
	cmd.Flags().StringVar(dir, "in-spool", "", "folder of an agent's spool, whose keys are meant instead of those in a store")
}

// keyFolders returns the folders of keys of a spool: that of its records, and that of its dead letters.
func keyFolders(spoolDir string) ([]string, error) {
	if _, err := os.Stat(spoolDir); err != nil {
		return nil, missingError("no spool: %s: %w", spoolDir, app.WithoutPath(err))
	}
	folders := []string{filepath.Join(spoolDir, keyring.FolderName), filepath.Join(spoolDir, app.DeadLetters, keyring.FolderName)}
	if _, err := os.Stat(folders[0]); err != nil {
		if _, other := os.Stat(folders[1]); other != nil {
			return nil, missingError("%s has no keys: the agent does not encrypt, or it is not the folder of a spool: %w", spoolDir, app.WithoutPath(err))
		}
	}
	return folders, nil
}

// spoolKeyLine is a key in a spool as it is listed.
type spoolKeyLine struct {
	Folder   string `json:"folder,omitempty"`
	Category string `json:"category"`
	ID       string `json:"id"`
	// From is the number from which on the key encrypts: of a segment, or of a file of dead letters.
	From    uint64 `json:"from"`
	Wrapper string `json:"wrapped_with,omitempty"`
	Deleted bool   `json:"deleted,omitempty"`
	Error   string `json:"error,omitempty"`
}

func spoolKeyJSON(folder string, k *keyring.Stored) spoolKeyLine {
	line := spoolKeyLine{Folder: folder, Category: k.Category, ID: fmt.Sprintf("%016x", k.ID), From: k.From, Wrapper: k.Wrapper, Deleted: k.Deleted}
	if k.Err != nil {
		line.Error = k.Err.Error()
	}
	return line
}

func listSpoolKeys(dir string, stdout io.Writer) error {
	folders, err := keyFolders(dir)
	if err != nil {
		return err
	}
	unread := 0
	for _, folder := range folders {
		keys, err := keyring.Open(keyring.Config{Dir: folder})
		if err != nil {
			return err
		}
		for _, k := range keys.List() {
			if k.Err != nil {
				unread++
			}
			if err := printLines(stdout, spoolKeyJSON(folder, &k)); err != nil {
				return err
			}
		}
	}
	if unread > 0 {
		return fmt.Errorf("%d keys can't be read; they are named above", unread)
	}
	return nil
}

// deleteSpoolKeys deletes the keys of a category in the spool of an agent that does not run.
func deleteSpoolKeys(cmd *cobra.Command, dir, category string, yes bool) (err error) {
	folders, err := keyFolders(dir)
	if err != nil {
		return err
	}
	if !yes {
		doing := "delete the keys of category " + category + " in " + dir + ", so that nobody reads what waits there any more"
		if err := confirmName(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr(), doing, category); err != nil {
			return err
		}
	}
	lock, err := spool.LockFolder(vfs.Default, dir)
	if err != nil {
		return fmt.Errorf("spool %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	deleted := 0
	for _, folder := range folders {
		n, err := keyring.Delete(vfs.Default, folder, category)
		deleted += n
		if err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d keys were deleted\n", deleted)
	return err
}
