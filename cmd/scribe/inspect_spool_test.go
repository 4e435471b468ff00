package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/scribed/spool"
)

// TestInspectSpool shows a folder line by line, and names damage with its place.
func TestInspectSpool(t *testing.T) {
	c := spool.DefaultConfig()
	c.Dir, c.BallastBytes = t.TempDir(), 0
	s, err := spool.Open(c, spool.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	recs := []spool.Record{{Category: "access", Messages: 3, Data: []byte("three lines")}, {Category: "audit", Messages: 1, Data: []byte("one")}}
	if _, err := s.Append(recs); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	run := func() ([]map[string]any, string, error) {
		var stdout, stderr bytes.Buffer
		cmd := newInspectSpool()
		cmd.SetArgs([]string{c.Dir, "--verify"})
		cmd.SetOut(&stdout)
		cmd.SetErr(&stderr)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		var lines []map[string]any
		for line := range strings.Lines(stdout.String()) {
			var m map[string]any
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				t.Fatal(err)
			}
			lines = append(lines, m)
		}
		return lines, stderr.String(), err
	}
	lines, stderr, err := run()
	if err != nil || stderr != "" || len(lines) != 4 || lines[0]["spool"] != c.Dir || lines[1]["state"] != "sealed" || lines[2]["category"] != "access" {
		t.Fatalf("%v\n%s%v", lines, stderr, err)
	}
	if held, ok := lines[2]["held"].(map[string]any); !ok || held["messages"] != 3.0 {
		t.Errorf("held of access: %v", lines[2])
	}

	segments, err := filepath.Glob(filepath.Join(c.Dir, "*.segment"))
	if err != nil || len(segments) != 1 {
		t.Fatal(segments, err)
	}
	b, err := os.ReadFile(segments[0])
	if err != nil {
		t.Fatal(err)
	}
	b[bytes.Index(b, []byte("three"))] ^= 1
	if err := os.WriteFile(segments[0], b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := run(); !errors.Is(err, errDamaged) || !strings.Contains(stderr, "bytes 64 to 136: category access") {
		t.Errorf("%s%v", stderr, err)
	}
	c.Dir = t.TempDir()
	if _, _, err := run(); err == nil {
		t.Error("an empty folder")
	}
	c.Dir = filepath.Join(c.Dir, "none")
	if _, _, err := run(); err == nil {
		t.Error("no folder")
	}
}
