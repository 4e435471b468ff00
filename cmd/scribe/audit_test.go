package main

import (
	"bytes"
	"testing"
	"time"

	"scribe/internal/format/delivery"
)

// TestPrintCompleteness: the table says where messages are, and why.
func TestPrintCompleteness(t *testing.T) {
	var out bytes.Buffer
	err := printCompleteness(&out, []delivery.Line{
		{
			Host: "web-7", Minute: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC), Produced: 100, Stored: 40, Dropped: 25, Sampled: 20, Pending: 14, Unaccounted: 1, Copies: 2, Rate: 1.5,
			Reasons: map[string]int64{"library:buffer_full": 5, "agent:full": 20}, Held: map[string]int64{"library": 4, "agent": 10}, Delivered: map[string]int64{"billing": 39},
		},
		{Minute: time.Date(2026, 11, 21, 9, 1, 0, 0, time.UTC), Produced: 1, Stored: 1},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := `MINUTE             HOST       PRODUCED  STORED  DROPPED  SAMPLED  PENDING  UNACCOUNTED  WHERE AND WHY
2026-11-21T09:00Z  web-7      100       40      25       20       14       1            20 dropped by the agent: full, 5 dropped by the library: buffer_full, 10 in the agent, 4 in the library, one stands for 1.5, 2 stored again, 39 delivered to billing
2026-11-21T09:01Z  (unknown)  1         1       0        0        0        0            
`
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}

// TestAuditFlags: mistakes are told before the cell is asked.
func TestAuditFlags(t *testing.T) {
	for _, args := range [][]string{
		{"audit"},
		{"audit", "a", "--since", "soon"},
		{"audit", "a", "--verify", "perhaps"},
		{"audit", "a", "-o", "xml"},
	} {
		if _, err := runCommand(t, append(args, "--server", "http://127.0.0.1:1")...); exitCode(err) != exitUsage {
			t.Errorf("%q: %v", args, err)
		}
	}
}
