package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/completeness"
	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/internal/format/delivery"
)

type auditFlags struct {
	since  string
	verify string
	host   string
}

// Values of --verify.
const (
	verifyAuto   = "auto"
	verifyAlways = "always"
	verifyNever  = "never"
)

// autoVerified is how many messages are read to compare them with the counts, if nobody asks for more.
const autoVerified = 1_000_000

func newAudit() *cobra.Command {
	f := auditFlags{}
	cmd := &cobra.Command{
		Use:   "audit CATEGORY",
		Short: "Show how complete a category is: what was produced, stored and lost",
		Long: `Show what became of the messages of a category, by the minute in which they were produced and the host that produced them. Agents and the producer
library count what they take and what becomes of it, and write the counts to the category _delivery every five seconds; this command adds them up.

  PRODUCED      messages that producers took of their programs
  STORED        messages that the cell has, each once
  DROPPED       messages that an agent or a producer gave up; WHERE AND WHY says who, and for which reason
  SAMPLED       messages that the category's quota left out
  PENDING       messages that an agent or a producer still has; WHERE AND WHY says which of the two, at the line's host
  UNACCOUNTED   messages of which nobody says what became of them: their outcome is unknown, or a crash took them

Then PRODUCED = STORED + DROPPED + SAMPLED + PENDING + UNACCOUNTED. An agent that drops from its disk buffer knows how many messages, not of which minute:
the oldest that it had are taken for them.

--verify compares the counts with the messages of the category themselves, which it reads: STORED is exact then, also when an agent was killed before
it could tell of its last five seconds, and copies are counted. With auto, the default, that is done if there are at most a million of them.

The counts of all categories are in one category of the cell, _delivery, which needs the right to read it in a secured cell (read:_delivery); without it the
command shows what the category itself has. A cell with --delivery=false has none.`,
		Example: `  scribe audit web.access --since 1h
  scribe audit web.access --since 2026-11-21T09:00:00Z --verify always
  scribe audit web.access --host web-7
  scribe audit web.access -o jsonl | jq -c 'select(.dropped + .unaccounted > 0)'
  scribe query "SELECT host, reason, sum(dropped) AS n FROM _delivery WHERE category = 'web.access' AND dropped > 0 GROUP BY host, reason"`,
		Args: cobra.ExactArgs(1),
	}
	server := serverFlag(cmd)
	format := outputFlag(cmd, "table", "jsonl")
	fs := cmd.Flags()
	fs.StringVar(&f.since, "since", "1h", "the first minute: "+units.TimeHelp)
	fs.StringVar(&f.verify, "verify", verifyAuto, "read the category and compare: auto, always or never")
	fs.StringVar(&f.host, "host", "", "only the lines of this host")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		output, err := format()
		if err == nil {
			err = checkChoice("--verify", f.verify, verifyAuto, verifyAlways, verifyNever)
		}
		if err != nil {
			return err
		}
		return runAudit(cmd, *server, args[0], &f, output == "jsonl")
	}
	return cmd
}

func runAudit(cmd *cobra.Command, server, category string, f *auditFlags, asLines bool) error {
	since, err := units.ParseTime(f.since, time.Now())
	if err != nil {
		return usageError(fmt.Errorf("--since %w", err))
	}
	if err := requireCategory(cmd.Context(), server, "audit "+category, category, nil); err != nil {
		return err
	}
	ctx, stop := untilReaderGone(cmd.Context(), cmd.OutOrStdout())
	defer stop()
	stderr := newStatusLine(cmd.ErrOrStderr())
	answer, err := completeness.Read(ctx, completeness.Query{
		Server: server, Category: category, Since: since, Most: map[string]int{verifyAuto: autoVerified, verifyAlways: -1, verifyNever: 0}[f.verify],
		Options: []consumer.Option{consumer.WithName("scribe audit"), consumer.WithLogger(newLogger(app.LogConfig{Level: "warn"}, stderr))},
	})
	if err != nil {
		return fmt.Errorf("audit %s: %w", category, err)
	}
	if f.verify == verifyAlways && answer.Log != nil {
		return fmt.Errorf("audit %s: compare with the category: %w", category, answer.Log)
	}
	reportSources(stderr, &answer)
	if f.host != "" {
		answer.Lines = slices.DeleteFunc(answer.Lines, func(l delivery.Line) bool { return l.Host != f.host })
	}
	if asLines {
		return printLines(cmd.OutOrStdout(), answer.Lines...)
	}
	return printCompleteness(cmd.OutOrStdout(), answer.Lines)
}

// reportSources says what an answer lacks.
func reportSources(stderr *statusLine, a *completeness.Answer) {
	switch {
	case errors.Is(a.Counts, consumer.ErrUnknownCategory):
		stderr.printLine("scribe: the cell has no counts of deliveries yet: only what is stored is known")
	case a.Counts != nil:
		stderr.printLine("scribe: the counts of deliveries can't be read, only what is stored is known: %v", a.Counts)
	}
	switch {
	case a.Log == nil, errors.Is(a.Log, completeness.ErrNotAsked):
	case errors.Is(a.Log, completeness.ErrTooMany):
		stderr.printLine("scribe: stored is what agents and producers were told, not compared with the messages: there are more than %d (--verify always)", autoVerified)
	default:
		stderr.printLine("scribe: stored is what agents and producers were told, not compared with the messages: %v", a.Log)
	}
	if a.Gaps > 0 {
		stderr.printLine("scribe: stored messages or counts can't be read at %d places: stored may be too small", a.Gaps)
	}
}

// printCompleteness prints lines for people.
func printCompleteness(w io.Writer, lines []delivery.Line) error {
	t := newTable(w, "MINUTE\tHOST\tPRODUCED\tSTORED\tDROPPED\tSAMPLED\tPENDING\tUNACCOUNTED\tWHERE AND WHY")
	for i := range lines {
		l := &lines[i]
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", l.Minute.Format("2006-01-02T15:04Z"), cmp.Or(l.Host, "(unknown)"), l.Produced, l.Stored, l.Dropped, l.Sampled,
			l.Pending, l.Unaccounted, explainLine(l))
	}
	return t.Flush()
}

// explainLine says where the messages of a line are, and why.
func explainLine(l *delivery.Line) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(l.Reasons)) {
		hop, why, _ := strings.Cut(reason, ":")
		parts = append(parts, fmt.Sprintf("%d dropped by the %s: %s", l.Reasons[reason], hop, why))
	}
	for _, hop := range slices.Sorted(maps.Keys(l.Held)) {
		parts = append(parts, fmt.Sprintf("%d in the %s", l.Held[hop], hop))
	}
	if l.Rate > 0 {
		parts = append(parts, fmt.Sprintf("one stands for %.3g", l.Rate))
	}
	if l.Copies > 0 {
		parts = append(parts, fmt.Sprintf("%d stored again", l.Copies))
	}
	for _, reader := range slices.Sorted(maps.Keys(l.Delivered)) {
		parts = append(parts, fmt.Sprintf("%d delivered to %s", l.Delivered[reader], reader))
	}
	return strings.Join(parts, ", ")
}
