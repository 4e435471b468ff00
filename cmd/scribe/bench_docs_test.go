package main

import (
	"os"
	"strings"
	"testing"
)

// TestBenchIsDocumented: each measurement says how to run it, and stands in the guide.
func TestBenchIsDocumented(t *testing.T) {
	guide, err := os.ReadFile("../../docs/benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range newBench().Commands() {
		command := "scribe bench " + c.Name()
		if !strings.Contains(string(guide), "`"+command+"`") {
			t.Errorf("docs/benchmarks.md does not have %q", command)
		}
		if !strings.Contains(c.Example, "  "+command) || c.Long == "" || c.Flags().Lookup("json") == nil {
			t.Errorf("%s: an example, a description and --json are needed", command)
		}
	}
}
