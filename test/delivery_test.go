package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/format/delivery"
	"scribe/test/program"
)

// counts are what turns counts of deliveries on, which are off in other tests.
var counts = []string{"SCRIBE_DELIVERY=true"}

// audit adds up what scribe audit says of a category.
func audit(t *testing.T, server, category string, args ...string) (sum delivery.Line, hosts map[string]bool, r program.Result) {
	t.Helper()
	sum.Reasons, hosts = map[string]int64{}, map[string]bool{}
	r = program.Run(t, nil, append([]string{"audit", category, "--server", server, "-o", "jsonl"}, args...)...)
	for text := range bytes.Lines(r.Stdout) {
		var l delivery.Line
		if err := json.Unmarshal(text, &l); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		hosts[l.Host] = true
		sum.Produced += l.Produced
		sum.Stored += l.Stored
		sum.Dropped += l.Dropped
		sum.Sampled += l.Sampled
		sum.Pending += l.Pending
		sum.Unaccounted += l.Unaccounted
		for reason, n := range l.Reasons {
			sum.Reasons[reason] += n
		}
	}
	return sum, hosts, r
}

// TestAudit: what was written to a cell is found by host, by the command and by SQL, with and without a look at the messages.
func TestAudit(t *testing.T) {
	cell := serve(t, counts, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Repeat("a line\n", 100)
	program.OK(t, strings.NewReader(lines), "produce", "web.access", "--server", cell.URL, "--delivery")
	// Of these the agent alone knows.
	program.OK(t, strings.NewReader(lines), "produce", "web.access", "--server", cell.URL)
	for _, verify := range []string{"never", "always"} {
		var sum delivery.Line
		var hosts map[string]bool
		var r program.Result
		eventually(t, waitLimit, "the counts have it all", func() bool {
			sum, hosts, r = audit(t, cell.URL, "web.access", "--since", "1h", "--verify", verify)
			return r.Code == 0 && sum.Produced == 200 && sum.Stored == 200
		})
		if sum.Dropped+sum.Sampled+sum.Pending+sum.Unaccounted != 0 || len(hosts) != 1 || !hosts[host] {
			t.Errorf("verify %s: %+v at %v: %s", verify, sum, hosts, r.Stderr)
		}
	}
	query := "SELECT host, sum(produced) AS produced, sum(stored) AS stored FROM _delivery WHERE category = 'web.access' AND hop = 'cell' GROUP BY host"
	if got, want := string(program.OK(t, nil, "query", query, "--server", cell.URL, "-o", "csv")), fmt.Sprintf("host,produced,stored\n%s,200,200\n", host); got != want {
		t.Errorf("SQL says %q, want %q", got, want)
	}
	if r := program.Run(t, nil, "audit", "nothing", "--server", cell.URL); r.Code != 3 {
		t.Errorf("a category that does not exist: exit code %d: %s", r.Code, r.Stderr)
	}
	table := string(program.OK(t, nil, "audit", "web.access", "--server", cell.URL))
	if !strings.HasPrefix(table, "MINUTE") || !strings.Contains(table, host) {
		t.Errorf("the table is\n%s", table)
	}
}

// TestAuditOfAnOutage: what an agent has dropped in an outage, and was stopped in, is found at its host, with the reason, and exactly.
func TestAuditOfAnOutage(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(config, []byte(outageConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	address := program.Reserve(t)
	args := []string{"agent", "--config", config, "--upstream", "http://" + address, "--spool", filepath.Join(dir, "spool"), "--listen", "127.0.0.1:0"}
	const frames, inFrame = 300, 100
	agent := serve(t, counts, args...)
	writeFrames(t, agent.URL, frames, inFrame)
	agent.Stop()
	cell := serve(t, counts, "up", "--data", filepath.Join(dir, "data"), "--listen", address)
	serve(t, counts, args...)
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	var sum delivery.Line
	eventually(t, waitLimit, "everything is stored or known to be lost", func() bool {
		var r program.Result
		sum, _, r = audit(t, cell.URL, "log", "--host", host, "--verify", "always")
		return r.Code == 0 && sum.Stored+sum.Dropped >= frames*inFrame && sum.Pending == 0
	})
	if sum.Produced != frames*inFrame || sum.Dropped == 0 || sum.Stored == 0 || sum.Dropped != sum.Reasons["agent:full"] || sum.Stored+sum.Dropped != frames*inFrame || sum.Unaccounted != 0 {
		t.Errorf("of %d messages: %+v", frames*inFrame, sum)
	}
}
