package test

import (
	"bufio"
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// TestLast: --last prints the messages that were persisted last, whatever the logs and payloads that they are in, and with -f goes on after
// them.
func TestLast(t *testing.T) {
	c := single(t)
	ok(t, nil, "category", "create", "log", "--shards", "3", "--shard-by", "explicit", "--server", c.write)
	n := 0
	write := func(shard, messages int) {
		var b bytes.Buffer
		for range messages {
			fmt.Fprintf(&b, "%d\n", n)
			n++
		}
		produce(t, c, "log", b.Bytes(), "--shard", fmt.Sprint(shard))
	}
	// A quiet shard, one of large payloads, and one of many small ones.
	write(2, 1)
	for range 4 {
		write(0, 30)
		for range 6 {
			write(1, 1)
		}
	}
	write(2, 2)
	all := strings.SplitAfter(strings.TrimSuffix(string(tail(t, c, "log", "--window", "0")), "\n"), "\n")
	all[len(all)-1] += "\n"
	if len(all) != n {
		t.Fatalf("%d messages, want %d", len(all), n)
	}
	for _, k := range []int{1, 2, 3, 10, 40, 100, n, n + 50} {
		got := ok(t, nil, "tail", "log", "--server", c.read, "--last", fmt.Sprint(k))
		sameBytes(t, fmt.Sprintf("the last %d", k), got, []byte(strings.Join(all[max(n-k, 0):], "")))
	}
	if got := ok(t, nil, "tail", "log", "--server", c.read, "--last", "2", "--where", "payload < '2'", "--format", "%s;"); len(bytes.Split(got, []byte(";"))) != 3 {
		t.Errorf("printed %s, want two messages", got)
	}
	p, stdout := launch(t, nil, "tail", "log", "--server", c.read, "--last", "2", "-f")
	defer p.Stop()
	lines := bufio.NewReader(stdout)
	next := func(want string) {
		t.Helper()
		if line, err := lines.ReadString('\n'); err != nil || line != want {
			t.Fatalf("got %q, %v, want %q", line, err, want)
		}
	}
	next(all[n-2])
	next(all[n-1])
	produce(t, c, "log", []byte("later\n"), "--shard", "1")
	next("later\n")

	ok(t, nil, "category", "create", "empty", "--server", c.write)
	if got := ok(t, nil, "tail", "empty", "--server", c.read, "--last", "5"); len(got) > 0 {
		t.Errorf("an empty category printed %q", got)
	}
	if r := cli(t, nil, "tail", "log", "--server", c.read, "--last", "5", "--from", "earliest"); r.Code != 2 || !strings.Contains(string(r.Stderr), "--last can't be combined with --from") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}

// TestRate: of a category that samples, each message says for how many it stands: in JSON, in a format string, and in SQL.
func TestRate(t *testing.T) {
	c := single(t)
	ok(t, nil, "category", "create", "log", "--quota", "1KiB", "--quota-mode", "sample", "--server", c.write)
	const written = 100_000
	produce(t, c, "log", numbers(0, written), "--batch-bytes", "4KiB")
	rates, stored := 0, 0
	for line := range strings.Lines(string(ok(t, nil, "tail", "log", "--server", c.read, "--from", "earliest", "--until-end", "--format", "%r\n"))) {
		var rate int
		if _, err := fmt.Sscan(line, &rate); err != nil {
			t.Fatal(err)
		}
		rates += rate
		stored++
	}
	if stored == written || stored == 0 {
		t.Fatalf("%d of %d messages are stored: nothing was sampled, or everything", stored, written)
	}
	if got := string(ok(t, nil, "tail", "log", "--server", c.read, "--from", "earliest", "--until-end", "-o", "jsonl")); strings.Count(got, `"rate":`) == 0 {
		t.Errorf("no rate in %.300s", got)
	}
	got := string(ok(t, nil, "query", "SELECT sum(_rate) AS written, count(*) AS stored, max(_rate) AS rate FROM log", "--server", c.read, "-o", "csv"))
	local := string(ok(t, nil, "query", "SELECT sum(_rate) AS written, count(*) AS stored, max(_rate) AS rate FROM log", "--server", c.read, "-o", "csv", "--local"))
	if want := fmt.Sprintf("%d,%d,", rates, stored); got != local || !strings.Contains(got, want) {
		t.Errorf("queried %q, here %q; want %s", got, local, want)
	}
}
