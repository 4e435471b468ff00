package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/scribed/spool"
	"scribe/storage/blob/encryption"
)

func newInspectSpool() *cobra.Command {
	var verify bool
	var keyFile string
	cmd := &cobra.Command{
		Use:   "spool DIR",
		Short: "Show and check the spool of a host's agent",
		Long: `Show the spool of an agent, which is its disk buffer: the folder, each segment, and the backlog of each category with its age. The command
only reads, and is safe while the agent runs; it may miss concurrent changes.

Footers and the state are checked, and with --verify every record. Unsynced bytes at the end are not damage: a spool in use has them, and so
may a spool after a crash.

None of this needs a key if the spool is encrypted: a line for each key says which one of the agent's key file wraps it. With --encryption-key-file, --verify also checks
that each record was encrypted as it stands there.`,
		Example: `  scribe inspect spool /var/lib/scribe/spool
  scribe inspect spool /var/lib/scribe/spool --verify
  scribe inspect spool /var/lib/scribe/spool --verify --encryption-key-file /etc/scribe/keys.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspectSpool(args[0], verify, keyFile, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "read every record")
	keyFileFlag(cmd, &keyFile)
	return cmd
}

// spoolAmount is how lines show an amount.
type spoolAmount struct {
	Records  int64 `json:"records"`
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

type spoolLine struct {
	Spool            string                 `json:"spool"`
	Segments         int                    `json:"segments"`
	Bytes            int64                  `json:"bytes"`
	Held             spoolAmount            `json:"held"`
	StateSaved       time.Time              `json:"state_saved,omitzero"`
	Dropped          map[string]spoolAmount `json:"dropped,omitempty"`
	Ballast          bool                   `json:"ballast"`
	Quarantined      int                    `json:"quarantined"`
	QuarantinedBytes int64                  `json:"quarantined_bytes"`
}

type spoolSegmentLine struct {
	Segment   string      `json:"segment"`
	State     string      `json:"state"` // sealed, unsealed, superseded
	Encrypted bool        `json:"encrypted,omitempty"`
	Bytes     int64       `json:"bytes"`
	Total     spoolAmount `json:"total"`
	Held      spoolAmount `json:"held"`
	Oldest    time.Time   `json:"oldest,omitzero"`
	Newest    time.Time   `json:"newest,omitzero"`
	Unsynced  int64       `json:"unsynced_tail_bytes,omitempty"`
}

type spoolCategoryLine struct {
	Category string      `json:"category"`
	Segments int         `json:"segments"`
	Total    spoolAmount `json:"total"`
	Held     spoolAmount `json:"held"`
	Oldest   time.Time   `json:"oldest,omitzero"`
	Newest   time.Time   `json:"newest,omitzero"`
}

// keyFileFlag adds the flag of the agent's key file to a command that only reads.
func keyFileFlag(cmd *cobra.Command, path *string) {
	cmd.Flags().StringVar(path, "encryption-key-file", "", "file with the keys that wrap those of the agent")
}

// openKeyFile returns the keys of the file that the flag names, nil without one.
func openKeyFile(path string) (encryption.Wrapper, error) {
	if path == "" {
		return nil, nil
	}
	return app.OpenWrapper(path, nil)
}

func inspectSpool(dir string, verify bool, keyFile string, stdout, stderr io.Writer) error {
	if _, err := os.Stat(dir); err != nil {
		return missingError("no spool to inspect: %s: %w", dir, app.WithoutPath(err))
	}
	wrapper, err := openKeyFile(keyFile)
	if err != nil {
		return usageError(err)
	}
	r, err := spool.Inspect(nil, dir, verify, wrapper)
	if err != nil {
		return err
	}
	if len(r.Segments) == 0 && r.State == nil && len(r.Damage) == 0 {
		return fmt.Errorf("%s contains no spool: it has neither segments nor a state file", dir)
	}
	if err := printLines(stdout, spoolLines(r)...); err != nil {
		return err
	}
	for _, d := range r.Damage {
		place := d.File
		if d.To > d.From {
			place = fmt.Sprintf("%s: bytes %d to %d", d.File, d.From, d.To)
		}
		if d.Category != "" {
			place += ": category " + d.Category
		}
		fmt.Fprintf(stderr, "%s: %v\n", place, d.Err)
	}
	if r.Unchecked > 0 {
		fmt.Fprintf(stderr, "%s: encrypted records of which only the checksums were checked: %d; the first because of: %v\n", dir, r.Unchecked, r.KeyErr)
	}
	if len(r.Damage) > 0 {
		return errDamaged
	}
	return nil
}

// spoolLines are the objects to print: the folder, its segments, its categories, its keys.
func spoolLines(r *spool.Report) []any {
	head := spoolLine{
		Spool: r.Dir, Segments: len(r.Segments), Ballast: r.Ballast, Quarantined: r.Quarantined, QuarantinedBytes: r.QuarantinedBytes,
	}
	if r.State != nil {
		head.StateSaved = r.State.Saved.UTC()
		head.Dropped = make(map[string]spoolAmount, len(r.State.Dropped))
		for name, a := range r.State.Dropped {
			head.Dropped[name] = spoolAmount(a)
		}
	}
	lines := []any{&head}
	for _, s := range r.Segments {
		state := "unsealed"
		switch {
		case s.Superseded:
			state = "superseded"
		case s.Sealed:
			state = "sealed"
		}
		head.Bytes += s.Bytes
		head.Held.Records += s.Held.Records
		head.Held.Messages += s.Held.Messages
		head.Held.Bytes += s.Held.Bytes
		lines = append(lines, spoolSegmentLine{s.File, state, s.Encrypted, s.Bytes, spoolAmount(s.Total), spoolAmount(s.Held), utcOrZero(s.Oldest), utcOrZero(s.Newest), s.Tail})
	}
	for _, c := range r.Categories {
		lines = append(lines, spoolCategoryLine{c.Category, c.Segments, spoolAmount(c.Total), spoolAmount(c.Held), utcOrZero(c.Oldest), utcOrZero(c.Newest)})
	}
	for i := range r.Keys {
		lines = append(lines, spoolInspectedKeyLine{spoolKeyJSON("", &r.Keys[i])})
	}
	return lines
}

// spoolInspectedKeyLine is a key among the lines of a spool.
type spoolInspectedKeyLine struct {
	Key spoolKeyLine `json:"key"`
}

// utcOrZero keeps a zero time zero, so that it is left out.
func utcOrZero(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
