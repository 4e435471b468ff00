package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"scribe/cmd/scribe/bench"
)

// TestBenchOutage: whichever way the cell is away, there is a backlog then, writers that do not ask for committed are measured in every
// phase, and everything is in the cell in the end.
func TestBenchOutage(t *testing.T) {
	for _, backend := range []string{backendRefuses, backendHangs} {
		t.Run(backend, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			cmd := newBenchOutage()
			cmd.SetArgs([]string{"--backend", backend, "--rate", "1MB", "--normal", "1s", "--outage", "3s", "--json"})
			cmd.SetOut(&stdout)
			cmd.SetErr(&stderr)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatalf("%v\n%s", err, stderr.String())
			}
			var r bench.OutageReport
			if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
				t.Fatalf("%v in %s", err, stdout.String())
			}
			if r.Messages == 0 || r.Refused != 0 || r.Lost != 0 || r.BacklogMB == 0 || r.Seconds < 3 || r.MBPerSecond <= 0 {
				t.Errorf("%+v", r)
			}
			for name, l := range map[string]bench.OutageLatency{"none": r.None, "spooled": r.Spooled, "committed": r.Committed} {
				if l.Normal == nil || l.Drain == nil || l.DrainRatio() <= 0 || (l.Outage == nil) != (name == "committed") {
					t.Errorf("%s: %+v", name, l)
				}
			}
			var table strings.Builder
			if err := r.Print(&table); err != nil || !strings.Contains(table.String(), "0 refused, 0 lost") {
				t.Errorf("%v\n%s", err, table.String())
			}
		})
	}
}

// TestBenchOutageUsage: what can't be measured is refused before anything starts.
func TestBenchOutageUsage(t *testing.T) {
	for _, args := range [][]string{{"--backend", "sleeps"}, {"--rate", "0"}, {"--outage", "1ms"}, {"--every", "0s"}, {"--workload", "poems"}} {
		cmd := newBenchOutage()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		coded := new(codedError)
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &coded) || coded.code != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}
