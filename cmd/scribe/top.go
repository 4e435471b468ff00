package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/survey"
	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

type topFlags struct {
	interval units.Duration
	sort     string
	by       string
	prefix   string
	owner    string
	rows     int
	once     bool
}

func newTop() *cobra.Command {
	f := topFlags{interval: units.Duration(2 * time.Second), rows: 20}
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show who writes and reads how much",
		Long: `Show rates by category, the busiest first: bytes and messages that write proxies acknowledged (IN) and read proxies served (OUT), errors, use of
the quota, and the readers with the lag of the one that is furthest behind. Write proxies, read proxies and read streams are asked twice,
--interval apart; what lies between is shown. On a terminal the table is shown again and again, until Ctrl-C; otherwise, with --once and with
-o json, once.

  IN, OUT    bytes a second, frames as written and payloads as sent (compressed, or the columns of a query); MSGS messages a second
  ERRORS     messages that were not stored and payloads that could not be served, a second, those over quota included
  QUOTA      bytes written as a share of the quota, that of the category, the owner or the prefix; a + says that messages were refused or left
             out for it, +owner and +prefix that they were refused for the quota of the owner, or of a prefix of the name
  READERS    open read streams; LAG is how long ago the oldest message was stored that one of them has not been sent

Each process counts its 10,000 busiest categories; all others are in the line (rest).`,
		Example: `  scribe top
  scribe top --sort errors --filter web.
  scribe top --by owner --interval 10s
  scribe top --by prefix
  scribe top -o json | jq -r '.categories[] | select(.quota_used > 0.8) | .category'`,
		Args: cobra.NoArgs,
	}
	server := serverFlag(cmd)
	fs := cmd.Flags()
	format := tableFlag(cmd)
	fs.Var(&f.interval, "interval", "time over which rates are measured, at least 100ms")
	fs.StringVar(&f.sort, "sort", "bytes", "order: "+listChoices(survey.SortNames()))
	fs.StringVar(&f.by, "by", "category", "a line for each category, each owner, or each prefix that has a quota")
	fs.StringVar(&f.prefix, "filter", "", "only categories whose names begin so")
	fs.StringVar(&f.owner, "owner", "", "only categories of this owner")
	fs.IntVarP(&f.rows, "rows", "n", f.rows, "at most so many lines; 0 = all")
	fs.BoolVar(&f.once, "once", false, "show one measurement and end, also on a terminal")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err == nil {
			err = f.checkFlags()
		}
		if err != nil {
			return err
		}
		return runTop(cmd, *server, &f, asJSON)
	}
	return cmd
}

const minInterval = units.Duration(100 * time.Millisecond)

func (f *topFlags) checkFlags() error {
	if f.interval < minInterval {
		return usageError(fmt.Errorf("invalid value %v for --interval: want at least %v", f.interval, minInterval))
	}
	if f.rows < 0 {
		return usageError(fmt.Errorf("invalid value %d for --rows: want 0 or more", f.rows))
	}
	return errors.Join(checkChoice("--sort", f.sort, survey.SortNames()...), checkChoice("--by", f.by, survey.ByNames...))
}

// runTop measures and shows until it is enough.
func runTop(cmd *cobra.Command, server string, f *topFlags, asJSON bool) error {
	out := cmd.OutOrStdout()
	once := f.once || asJSON || !isTerminal(out)
	ctx, stop := untilReaderGone(cmd.Context(), out)
	defer stop()
	before, err := sampleCell(ctx, server, f.prefix)
	if err != nil {
		return err
	}
	for {
		select {
		case <-time.After(f.interval.Std()):
		case <-ctx.Done():
			return nil
		}
		after, err := sampleCell(ctx, server, f.prefix)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		view := f.choice().CompareSamples(before, after)
		switch {
		case asJSON:
			return errors.Join(printJSON(out, view), sampleFailure(after))
		case once:
			return errors.Join(printTop(out, view), sampleFailure(after))
		}
		var screen bytes.Buffer
		screen.WriteString("\x1b[H\x1b[2J") // the cursor to the top, and an empty screen
		fmt.Fprintf(&screen, "%s  every %v  %s\n\n", server, f.interval, time.Now().Format(time.TimeOnly))
		if err := printTop(&screen, view); err != nil {
			return err
		}
		if _, err := out.Write(screen.Bytes()); err != nil {
			return err
		}
		before = after
	}
}

// choice is what the flags say about rows.
func (f *topFlags) choice() *survey.RowChoice {
	return &survey.RowChoice{Sort: f.sort, By: f.by, Owner: f.owner, Rows: f.rows}
}

// sampleCell asks every process of a cell that counts.
func sampleCell(ctx context.Context, server, prefix string) (*survey.TrafficSample, error) {
	members, err := callCell(ctx, server, "top", controlClient(server).ListMembers, &scribev1.ListMembersRequest{})
	if err != nil {
		return nil, err
	}
	s, err := survey.SampleTraffic(ctx, rpc.Default(), members.GetMembers(), prefix)
	if err != nil {
		return nil, &codedError{code: exitUnavailable, err: fmt.Errorf("top: ask the cell of %s: %w", server, err)}
	}
	return s, nil
}

// sampleFailure is the error of a measurement in which processes are missing.
func sampleFailure(s *survey.TrafficSample) error {
	if len(s.Failed) == 0 {
		return nil
	}
	return &codedError{code: exitUnavailable, err: errors.Join(s.Failed...)}
}

// printTop prints a table.
func printTop(out io.Writer, v *survey.TrafficView) error {
	w := newTable(out, v.By+"\tIN/s\tMSGS/s\tOUT/s\tMSGS/s\tERRORS/s\tQUOTA\tREADERS\tLAG")
	for _, row := range append(slices.Clone(v.Categories), v.Rest, v.Total) {
		name := row.Category
		if row.Owner != "" && name != "" {
			name += " (" + row.Owner + ")"
		} else if name == "" {
			name = cmp.Or(row.Owner, row.Prefix)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\n", name, units.About(row.WrittenBytes), rateText(row.WrittenMessages), units.About(row.ReadBytes),
			rateText(row.ReadMessages), rateText(row.Errors), quotaUseText(&row), row.Readers, lagOfReaders(row.Lag))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, failed := range v.Failed {
		if _, err := fmt.Fprintf(out, "\n%s", failed); err != nil {
			return err
		}
	}
	return nil
}

// rateText is a number a second for people.
func rateText(rate float64) string {
	switch {
	case rate == 0:
		return "0"
	case rate < 10:
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}

func lagOfReaders(seconds float64) string {
	if seconds == 0 {
		return "-"
	}
	return units.Duration(time.Duration(seconds * float64(time.Second)).Round(100 * time.Millisecond)).String()
}

func quotaUseText(r *survey.TrafficRow) string {
	var text string
	if r.Quota > 0 || r.QuotaUsed > 0 {
		text = fmt.Sprintf("%.0f%%", 100*r.QuotaUsed)
	}
	switch {
	case r.OverOwner > 0:
		text += "+owner"
	case r.OverPrefix > 0:
		text += "+prefix"
	case r.OverQuota+r.Sampled > 0 && text != "":
		text += "+"
	}
	return cmp.Or(text, "-")
}
