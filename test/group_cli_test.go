package test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/test/program"
)

func countedLines(from, to int) []byte {
	var b bytes.Buffer
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.Bytes()
}

// TestGroupCommands: a group is made by its first reader, goes on where the last one ended, to the message, and is listed, described, reset
// and deleted, with the exit codes that scripts rely on.
func TestGroupCommands(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		produce(t, c, "log", countedLines(0, 1000), "--batch-bytes", "4KiB")
		member := func(args ...string) []byte {
			return ok(t, nil, append([]string{"tail", "log", "--server", c.read, "--group", "audit", "--member", "one", "--from", "earliest"}, args...)...)
		}
		var got []byte
		for _, n := range []string{"1", "10", "489"} {
			got = append(got, member("-n", n)...)
		}
		got = append(got, member("--until-end")...)
		sameBytes(t, "read in four runs", got, countedLines(0, 1000))
		if more := member("--until-end"); len(more) > 0 {
			t.Errorf("after the end: %q", more)
		}
		produce(t, c, "log", []byte("later\n"))
		sameBytes(t, "what came later", member("--until-end"), []byte("later\n"))

		group := func(args ...string) []byte {
			return ok(t, nil, append(append([]string{"group"}, args...), "--server", c.read)...)
		}
		var listed struct {
			Name, Category, Sharing string
			Buckets, Members        int
		}
		if err := json.Unmarshal(group("list", "-o", "json"), &listed); err != nil || listed.Name != "audit" || listed.Category != "log" ||
			listed.Sharing != "pointers" || listed.Buckets != 256 || listed.Members != 0 {
			t.Errorf("listed %+v, %v", listed, err)
		}
		var described struct {
			Lag struct {
				Pointers int
			}
			BucketList         []any `json:"bucket_list"`
			ShardList          []any `json:"shard_list"`
			RecommendedMembers int   `json:"recommended_members"`
		}
		if err := json.Unmarshal(group("describe", "audit", "--json"), &described); err != nil || described.Lag.Pointers != 0 || len(described.BucketList) != 256 || len(described.ShardList) == 0 {
			t.Errorf("described %+v, %v", described, err)
		}
		if text := string(group("describe", "audit", "--buckets", "--shards")); !strings.Contains(text, "lag          none") || !strings.Contains(text, "COMMITTED") {
			t.Errorf("described as\n%s", text)
		}

		group("reset", "audit", "--to", "earliest")
		sameBytes(t, "after a reset", member("--until-end"), append(countedLines(0, 1000), "later\n"...))
		group("reset", "audit", "--to", time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
		sameBytes(t, "after a reset to a time", member("-n", "3"), countedLines(0, 3))
		checkpoint := filepath.Join(t.TempDir(), "checkpoint")
		tail(t, c, "log", "--checkpoint", checkpoint, "-n", "77")
		group("reset", "audit", "--to", strings.TrimSpace(string(readFile(t, checkpoint))))
		sameBytes(t, "after a reset to a checkpoint", member("-n", "2"), countedLines(77, 79))
		group("reset", "audit", "--to", "latest")
		if more := member("--until-end"); len(more) > 0 {
			t.Errorf("after a reset to the end: %q", more)
		}

		code := func(want int, args ...string) {
			t.Helper()
			if r := cli(t, nil, append(args, "--server", c.read)...); r.Code != want || len(r.Stderr) == 0 {
				t.Errorf("scribe %s: exit code %d, want %d:\n%s", strings.Join(args, " "), r.Code, want, r.Stderr)
			}
		}
		code(3, "group", "describe", "nobody")
		code(3, "group", "reset", "nobody", "--to", "latest")
		code(3, "group", "delete", "nobody")
		code(2, "group", "reset", "audit")
		code(2, "group", "reset", "audit", "--to", "someday")
		code(2, "group", "describe", "audit", "-o", "yaml")
		code(2, "tail", "log", "--group", "audit", "--checkpoint", "f")
		code(2, "tail", "log", "--group", "a/b")
		code(1, "tail", "log", "--group", "audit", "--sharing", "shards")
		code(3, "tail", "nothing", "--group", "audit")
		if r := cli(t, nil, "group", "list", "--server", "127.0.0.1:1"); r.Code != 5 {
			t.Errorf("without a server: exit code %d", r.Code)
		}

		follower, out := launch(t, nil, "tail", "log", "--server", c.read, "--group", "audit", "--member", "two")
		var printed bytes.Buffer
		var reading sync.WaitGroup
		reading.Go(func() { _, _ = printed.ReadFrom(out) })
		awaitMembers(t, c, "audit", 1)
		code(1, "group", "reset", "audit", "--to", "earliest")
		code(1, "group", "delete", "audit")
		group("reset", "audit", "--to", "earliest", "--force")
		caughtUp(t, c, "audit")
		follower.Stop()
		reading.Wait()
		sameBytes(t, "after a forced reset", printed.Bytes(), append(countedLines(0, 1000), "later\n"...))
		awaitMembers(t, c, "audit", 0)
		group("delete", "audit")
		if list := group("list"); bytes.Contains(list, []byte("audit")) {
			t.Errorf("listed after it was deleted:\n%s", list)
		}
	})
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// cliHead runs a command, closes its standard output after so many lines, and returns these.
func cliHead(t *testing.T, n int, args ...string) (lines []string) {
	t.Helper()
	cmd := program.Command(t.Context(), program.Binary(), args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	scan := bufio.NewScanner(out)
	for len(lines) < n && scan.Scan() {
		lines = append(lines, scan.Text())
	}
	_ = out.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("scribe %s ended with %v", strings.Join(args, " "), err)
	}
	return lines
}

// TestTailsOfAGroup: several tails share a category. What one that is killed had printed and not committed comes again; nothing is left
// out. A pipe that is closed early is a clean end.
func TestTailsOfAGroup(t *testing.T) {
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	write(t, c, 0, 2000)
	args := func(group string) []string {
		return []string{"tail", "log", "--server", c.read, "--group", group, "--from", "earliest"}
	}
	if first := cliHead(t, 3, args("another")...); len(first) != 3 {
		t.Fatalf("%d lines before the pipe was closed", len(first))
	}
	var (
		mu  sync.Mutex
		got = map[string]int{}
		all sync.WaitGroup
	)
	count := func(line string) {
		mu.Lock()
		defer mu.Unlock()
		got[strings.TrimSpace(line)]++
	}
	killed, out := launch(t, nil, args("audit")...)
	begun := make(chan struct{})
	all.Go(func() {
		scan := bufio.NewScanner(out)
		for n := 1; scan.Scan(); n++ {
			if count(scan.Text()); n == 100 {
				close(begun)
			}
		}
	})
	<-begun
	killed.Kill()
	for range 3 {
		all.Go(func() {
			for line := range bytes.Lines(ok(t, nil, append(args("audit"), "--until-end")...)) {
				count(string(line))
			}
		})
	}
	all.Wait()
	again := 0
	for i := range 2000 {
		n := got[fmt.Sprintf("message %06d", i)]
		if n == 0 {
			t.Fatalf("message %d is missing", i)
		}
		again += n - 1
	}
	t.Logf("%d came again", again)
	if len(got) > 2001 { // a line that was cut
		t.Errorf("%d different lines", len(got))
	}
	up.Stop()
}
