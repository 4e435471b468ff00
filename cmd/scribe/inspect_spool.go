package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"scribe/scribed/spool"
)

func newInspectSpool() *cobra.Command {
	var verify bool
	cmd := &cobra.Command{
		Use:   "spool DIR",
		Short: "Show and check the disk buffer of a host's agent",
		Long: `Show what is in the disk buffer of an agent: the folder, each segment, and for each category what is held and how old it is. It only
reads, and may run beside the agent; what changes meanwhile may be missing.

Footers and the state are checked; with --verify also every record. A tail of unsynced bytes is no damage: a buffer in use has one, and so has
one after a crash.`,
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
		return missing("no spool to inspect: %s: %w", dir, pathless(err))
	}
	r, err := spool.Inspect(nil, dir, verify)
	if err != nil {
		return err
	}
	if len(r.Segments) == 0 && r.State == nil && len(r.Damage) == 0 {
		return fmt.Errorf("%s holds no spool: neither segments nor a state", dir)
	}
	enc := json.NewEncoder(stdout)
	for _, line := range spoolLines(r) {
		if err := enc.Encode(line); err != nil {
			return err
		}
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
		lines = append(lines, spoolSegmentLine{s.File, state, s.Bytes, spoolAmount(s.Total), spoolAmount(s.Held), utc(s.Oldest), utc(s.Newest), s.Tail})
	}
	for _, c := range r.Categories {
		lines = append(lines, spoolCategoryLine{c.Category, c.Segments, spoolAmount(c.Total), spoolAmount(c.Held), utc(c.Oldest), utc(c.Newest)})
	}
	return lines
}

// utc keeps a zero time zero, so that it is left out.
func utc(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC()
}
