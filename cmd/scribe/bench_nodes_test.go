package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"scribe/cmd/scribe/bench"
)

// asProgram makes the test binary be the program, for benchmarks that start processes of it.
const asProgram = "TEST_IS_SCRIBE"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		_ = os.Unsetenv(asProgram)
		main()
	}
	os.Exit(m.Run())
}

// TestBenchFailover: nodes that end in both ways are noticed and lose nothing.
func TestBenchFailover(t *testing.T) {
	t.Setenv(asProgram, "1")
	var stdout, stderr bytes.Buffer
	cmd := newBenchFailover()
	cmd.SetArgs([]string{"--kills", "1", "--stops", "1", "--settle", "1s", "--data", t.TempDir(), "--json"})
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r bench.FailoverReport
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	if r.Messages == 0 || r.Lost != 0 || r.Kills == nil || len(r.Kills.Writes) != 1 || r.Kills.Writes[0] <= 0 || r.Stops == nil || len(r.Stops.Deliveries) != 1 {
		t.Errorf("%s", stdout.String())
	}
	var table strings.Builder
	if err := r.Print(&table); err != nil || !strings.Contains(table.String(), " 0 lost") || !strings.Contains(table.String(), "SIGTERM") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// TestBenchMetalog: the embedded engine and a node are measured in one run, held to a rate, each second by itself.
func TestBenchMetalog(t *testing.T) {
	t.Setenv(asProgram, "1")
	var stdout, stderr bytes.Buffer
	cmd := newBenchMetalog()
	cmd.SetArgs([]string{"--nodes", "0,1", "--group", "3", "--writers", "2", "--duration", "2s", "--every", "1s", "--rate", "300", "--keep", "4", "--data", t.TempDir(), "--json"})
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var reports []bench.MetalogReport
	for dec := json.NewDecoder(&stdout); dec.More(); {
		var r bench.MetalogReport
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Appends <= 0 || r.Commits <= 0 || r.Pointers < 2.9*r.Appends || r.Latency == nil || r.CPUMicros <= 0 || (r.JournalBytes > 0) != (r.Engine != "embedded") {
			t.Errorf("%+v", r)
		}
		if r.Barrier == nil || r.Barrier.P50 <= 0 || r.SeedSeconds != 0 || r.Visible != nil || r.Lag != nil {
			t.Errorf("%+v", r)
		}
		if r.ResidentMB <= 0 || (r.EtcdMB > 0) != (r.Engine != "embedded") {
			t.Errorf("%+v", r)
		}
		if r.Pointers > 350 {
			t.Errorf("%.0f pointers/s, and the rate was 300", r.Pointers)
		}
		reports = append(reports, r)
	}
	if len(reports) != 4 || reports[1].Engine != "embedded" || reports[2].Engine != "nodes=1" {
		t.Errorf("%+v", reports)
	}
}

// TestBenchSeed: what three nodes show is measured at those that follow, and a node that has lost its logs gets them again.
func TestBenchSeed(t *testing.T) {
	t.Setenv(asProgram, "1")
	var stdout, stderr bytes.Buffer
	cmd := newBenchMetalog()
	cmd.SetArgs([]string{"--nodes", "3", "--group", "10", "--writers", "1", "--duration", "1s", "--seed", "--data", t.TempDir(), "--json"})
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r bench.MetalogReport
	if err := json.Unmarshal(stdout.Bytes(), &r); err != nil {
		t.Fatalf("%v in %s", err, stdout.String())
	}
	if r.SeedSeconds <= 0 || r.SeedMB <= 0 {
		t.Errorf("%+v", r)
	}
	if r.Visible == nil || r.Visible.P50 <= 0 || r.Visible.P99 < r.Visible.P50 || r.Lag == nil || r.Lag.Max < r.Lag.P50 {
		t.Errorf("what followers show: %+v, %+v", r.Visible, r.Lag)
	}
	var table strings.Builder
	if err := bench.MetalogTable(&table, []bench.MetalogReport{r}); err != nil || !strings.Contains(table.String(), "had them again") || !strings.Contains(table.String(), "visible p50") {
		t.Errorf("%v\n%s", err, table.String())
	}
}

// TestBenchNodesUsage: what can't be measured is refused before anything starts.
func TestBenchNodesUsage(t *testing.T) {
	for _, args := range [][]string{
		{"failover", "--kills", "0", "--stops", "0"},
		{"failover", "--nodes", "2"},
		{"failover", "--settle", "1ms"},
		{"failover", "--every", "0s"},
		{"metalog", "--nodes", "2"},
		{"metalog", "--group", "0"},
		{"metalog", "--writers", "5000"},
		{"metalog", "--duration", "1ms"},
		{"metalog", "--every", "1ms"},
		{"metalog", "--rate", "-1"},
		{"metalog", "--keep", "-1"},
		{"metalog", "--keep", "100", "--group", "150"},
		{"metalog", "--count", "0"},
	} {
		cmd := newBench()
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		coded := new(codedError)
		if err := cmd.ExecuteContext(t.Context()); !errors.As(err, &coded) || coded.code != exitUsage {
			t.Errorf("%v: %v", args, err)
		}
	}
}
