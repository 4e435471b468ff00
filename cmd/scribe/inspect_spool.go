package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/scribed/spool"
)

func newInspectSpool() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use:   "spool DIR",
		Short: "Show and check the spool of a host's agent",
		Long: `Show the spool of an agent, which is its disk buffer: the folder, each segment, and the backlog of each category with its age. The command
only reads, and is safe while the agent runs; it may miss concurrent changes.

Footers and the state are checked, and with --verify every record. Unsynced bytes at the end are not damage: a spool in use has them, and so
may a spool after a crash.`,
		Example: `  scribe inspect spool /var/lib/scribe/spool
  scribe inspect spool /var/lib/scribe/spool --verify`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return inspectSpool(args[0], verify, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&verify, "verify", false, "read every record")
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
	Segment  string      `json:"segment"`
	State    string      `json:"state"` // sealed, unsealed, superseded
	Bytes    int64       `json:"bytes"`
	Total    spoolAmount `json:"total"`
	Held     spoolAmount `json:"held"`
	Oldest   time.Time   `json:"oldest,omitzero"`
	Newest   time.Time   `json:"newest,omitzero"`
	Unsynced int64       `json:"unsynced_tail_bytes,omitempty"`
}

type spoolCategoryLine struct {
	Category string      `json:"category"`
	Segments int         `json:"segments"`
	Total    spoolAmount `json:"total"`
	Held     spoolAmount `json:"held"`
	Oldest   time.Time   `json:"oldest,omitzero"`
	Newest   time.Time   `json:"newest,omitzero"`
}

func inspectSpool(dir string, verify bool, stdout, stderr io.Writer) error {
	if _, err := os.Stat(dir); err != nil {
		return missingError("no spool to inspect: %s: %w", dir, app.WithoutPath(err))
	}
	r, err := spool.Inspect(nil, dir, verify)
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
	if len(r.Damage) > 0 {
		return errDamaged
	}
	return nil
}

// spoolLines are the objects to print: the folder, its segments, its categories.
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
		lines = append(lines, spoolSegmentLine{s.File, state, s.Bytes, spoolAmount(s.Total), spoolAmount(s.Held), utcOrZero(s.Oldest), utcOrZero(s.Newest), s.Tail})
	}
	for _, c := range r.Categories {
		lines = append(lines, spoolCategoryLine{c.Category, c.Segments, spoolAmount(c.Total), spoolAmount(c.Held), utcOrZero(c.Oldest), utcOrZero(c.Newest)})
	}
	return lines
}

// utcOrZero keeps a zero time zero, so that it is left out.
func utcOrZero(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
