package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/scribed/deadletter"
	"scribe/scribed/keyring"
)

func newInspectDeadLetters() *cobra.Command {
	var keyFile, frames string
	cmd := &cobra.Command{
		Use:   "deadletters DIR|FILE...",
		Short: "Show the dead letters of a host's agent, and take their frames out",
		Long: `Show dead letters, which are frames that the cell refused for good: time, category, the reason, and the text of the error. An agent keeps them in the folder
deadletters of its spool. The command only reads, and is safe while the agent runs.

If the agent encrypts what it keeps, the text and the frame are shown with its --encryption-key-file only. The keys of a file are in the folder "keys" beside it.

With --frames the frames are appended to a file as they were, for "scribe inspect frame".`,
		Example: `  scribe inspect deadletters /var/lib/scribe/spool/deadletters
  scribe inspect deadletters /var/lib/scribe/spool/deadletters --encryption-key-file /etc/scribe/keys.txt --frames refused.bin
  scribe inspect frame refused.bin`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspectDeadLetters(args, keyFile, frames, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	keyFileFlag(cmd, &keyFile)
	cmd.Flags().StringVar(&frames, "frames", "", "file to append the frames to")
	return cmd
}

// deadLetterLine is a dead letter as it is shown.
type deadLetterLine struct {
	File     string    `json:"file"`
	Time     time.Time `json:"time"`
	Category string    `json:"category"`
	Reason   string    `json:"reason"`
	Message  string    `json:"message,omitempty"`
	Bytes    int       `json:"bytes,omitempty"`
	Messages int       `json:"messages,omitempty"`
	// Encrypted says why message and frame are not shown.
	Encrypted string `json:"encrypted,omitempty"`
}

func inspectDeadLetters(args []string, keyFile, framesPath string, stdout, stderr io.Writer) (err error) {
	wrapper, err := openKeyFile(keyFile)
	if err != nil {
		return usageError(err)
	}
	var files []string
	for _, arg := range args {
		found, err := deadLetterFiles(arg)
		if err != nil {
			return err
		}
		files = append(files, found...)
	}
	frames := io.Discard
	if framesPath != "" {
		out, err := os.OpenFile(framesPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			return fmt.Errorf("--frames: %w", err)
		}
		defer func() { err = errors.Join(err, out.Close()) }()
		frames = out
	}
	rings := map[string]*keyring.Keyring{} // by folder
	damaged := false
	for _, path := range files {
		dir := filepath.Join(filepath.Dir(path), keyring.FolderName)
		if rings[dir] == nil {
			if rings[dir], err = keyring.Open(keyring.Config{Dir: dir, Wrapper: wrapper}); err != nil {
				return err
			}
		}
		letters, err := readDeadLetters(path, rings[dir])
		for i := range letters {
			l := &letters[i]
			line := deadLetterLine{File: filepath.Base(path), Time: l.Time.UTC(), Category: l.Category, Reason: l.Reason, Message: l.Message, Bytes: len(l.Frame)}
			if h, err := record.ParseHeader(l.Frame); err == nil {
				line.Messages = h.Count
			}
			if l.Unread != nil {
				line.Encrypted = l.Unread.Error()
			}
			if err := printLines(stdout, line); err != nil {
				return err
			}
			if _, err := frames.Write(l.Frame); err != nil {
				return fmt.Errorf("--frames: %w", err)
			}
		}
		switch {
		case errors.Is(err, deadletter.ErrCorrupt):
			fmt.Fprintf(stderr, "%s: %v\n", path, err)
			damaged = true
		case err != nil:
			return fmt.Errorf("%s: %w", path, app.WithoutPath(err))
		}
	}
	if damaged {
		return errDamaged
	}
	return nil
}

// deadLetterFiles returns a file, or the files of a folder, the oldest first.
func deadLetterFiles(path string) ([]string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, missingError("no dead letters to inspect: %s: %w", path, app.WithoutPath(err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path) // in order of their names, which is that of their age
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), deadletter.Suffix) {
			files = append(files, filepath.Join(path, e.Name()))
		}
	}
	return files, nil
}

// readDeadLetters reads the letters of a file. Those before damage come with the error.
func readDeadLetters(path string, keys *keyring.Keyring) ([]deadletter.Letter, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	b, err := io.ReadAll(io.LimitReader(f, maxInspect+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxInspect {
		return nil, fmt.Errorf("the file is larger than %v", units.Bytes(maxInspect))
	}
	return deadletter.Decode(b, keys)
}
