package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"scribe/internal/base/units"
)

// outputFlag adds -o, of which the first of the formats is the default.
func outputFlag(cmd *cobra.Command, formats ...string) (format func() (string, error)) {
	var output string
	cmd.Flags().StringVarP(&output, "output", "o", formats[0], listChoices(formats))
	return func() (string, error) { return output, checkChoice("-o", output, formats...) }
}

// tableFlag adds -o table|json, and --json as other commands have it.
func tableFlag(cmd *cobra.Command) func() (asJSON bool, err error) {
	format := outputFlag(cmd, "table", "json")
	asJSON := cmd.Flags().Bool("json", false, "the same as -o json")
	return func() (bool, error) {
		output, err := format()
		return *asJSON || output == "json", err
	}
}

// checkChoice is a usage error unless the value of a flag is one of its choices.
func checkChoice(flag, value string, choices ...string) error {
	if slices.Contains(choices, value) {
		return nil
	}
	return usageError(fmt.Errorf("invalid value %q for %s: want %s", value, flag, listChoices(choices)))
}

// listChoices writes "a, b or c".
func listChoices(choices []string) string {
	last := len(choices) - 1
	return strings.Join(choices[:last], ", ") + " or " + choices[last]
}

// newTable begins a table whose header and rows are separated by tabs.
func newTable(w io.Writer, header string) *tabwriter.Writer {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	return t
}

// printJSON prints one object for people.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// printLines prints objects as JSON, a line each.
func printLines[T any](w io.Writer, lines ...T) error {
	enc := json.NewEncoder(w)
	for i := range lines {
		if err := enc.Encode(&lines[i]); err != nil {
			return err
		}
	}
	return nil
}

// timeOf is a time of the protocol or of stored data, Unix microseconds.
func timeOf(micros int64) time.Time { return time.UnixMicro(micros).UTC() }

// elapsedSince returns the time since micros, in whole seconds. The clock of micros may be ahead of this one.
func elapsedSince(micros int64) units.Duration {
	return units.Duration(max(time.Since(time.UnixMicro(micros)), 0).Round(time.Second))
}

// countText is a number of things.
func countText[N int | int64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// excerptOf keeps a checkpoint from filling a screen.
func excerptOf(text string) string {
	if len(text) > 60 {
		return text[:57] + "..."
	}
	return text
}

// statusLine is standard error for a command that shows its progress. On a terminal, progress is one line that is rewritten, and removed
// before any other output.
type statusLine struct {
	w  io.Writer
	mu struct {
		sync.Mutex
		shown bool
	}
}

func newStatusLine(w io.Writer) *statusLine { return &statusLine{w: w} }

// clearLine goes to the beginning of the line and empties it.
const clearLine = "\r\x1b[K"

// Write implements io.Writer.
func (s *statusLine) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearText()
	return s.w.Write(b)
}

// printLine prints a line.
func (s *statusLine) printLine(format string, args ...any) {
	_, _ = fmt.Fprintf(s, format+"\n", args...) // an error can't be reported anywhere
}

func (s *statusLine) showText(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = io.WriteString(s.w, clearLine+text)
	s.mu.shown = true
}

// clearText is hideText for callers that hold the mutex.
func (s *statusLine) clearText() {
	if s.mu.shown {
		_, _ = io.WriteString(s.w, clearLine)
		s.mu.shown = false
	}
}

// progressEvery is how often progress is shown.
const progressEvery = time.Second

// keepShowing shows the result of text every progressEvery. The returned function stops it and removes the line.
func (s *statusLine) keepShowing(text func() string) (stop func()) {
	var (
		ended  = make(chan struct{})
		worker sync.WaitGroup
	)
	worker.Go(func() {
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ended:
				return
			}
			s.showText(text())
		}
	})
	return func() {
		close(ended)
		worker.Wait()
		s.hideText()
	}
}

// byteRate is the rate of bytes between two looks at a growing count, for progress.
type byteRate struct {
	bytes uint64
	at    time.Time
}

func newByteRate() *byteRate { return &byteRate{at: time.Now()} }

// measureRate returns the bytes a second since the call before.
func (r *byteRate) measureRate(bytes uint64) float64 {
	before := *r
	r.bytes, r.at = bytes, time.Now()
	return float64(bytes-before.bytes) / r.at.Sub(before.at).Seconds()
}

// hideText removes the progress line.
func (s *statusLine) hideText() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clearText()
}

// terminalWidth returns how many columns an output has if it is a terminal, and 0 otherwise.
func terminalWidth(out io.Writer) int {
	if f, ok := out.(*os.File); ok && isTerminal(out) {
		return windowColumns(f)
	}
	return 0
}

// isTerminal reports whether an input or output is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
