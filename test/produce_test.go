package test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"scribe/test/program"
)

// summary is what the last line of a produce tells.
type summary struct{ stored, lost, unknown, sampled int }

var summaryLine = regexp.MustCompile(`^produced (\d+) messages, \d+ bytes in \d+\.\d{3} seconds \([^;]*, ack \w+\)(?:; (\d+) messages were not stored)?(?:; (\d+) of unknown outcome)?(?:; (\d+) left out by sampling)?$`)

// readSummary parses the last line of standard error, in the form that scripts rely on.
func readSummary(t *testing.T, stderr string) summary {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	parts := summaryLine.FindStringSubmatch(lines[len(lines)-1])
	if parts == nil {
		t.Fatalf("the last line is not a summary:\n%s", stderr)
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(parts[i]) // an empty part is 0
		return n
	}
	return summary{number(1), number(2), number(3), number(4)}
}

// pipe returns the standard input of a command, which stays open until the end of the test, and what feeds it.
func pipe(t *testing.T, text string) (stdin, feed *os.File) {
	t.Helper()
	stdin, feed, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(stdin.Close(), feed.Close()) })
	if _, err := feed.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return stdin, feed
}

// blocked starts a cell with a category that takes 4 KiB at once and then next to nothing.
func blocked(t *testing.T) (c *cell, input []byte) {
	t.Helper()
	c = single(t)
	ok(t, nil, "category", "create", "log", "--quota", "1KiB", "--quota-mode", "block", "--server", c.write)
	return c, numbers(10_000_000, 10_010_000)
}

// checkTold checks the numbers of a summary against what is stored: what is told as stored is, what is told as not stored is not, and
// all is told.
func checkTold(t *testing.T, c *cell, got summary, read int) {
	t.Helper()
	stored := bytes.Count(tail(t, c, "log"), []byte{'\n'})
	if got.stored+got.lost+got.unknown != read || stored < got.stored || stored > got.stored+got.unknown {
		t.Errorf("told %+v of %d lines; %d are stored", got, read, stored)
	}
}

// TestTimeLimitUnderQuota: when a time limit ends a produce that a quota blocks, it says of no stored message that it was not stored.
func TestTimeLimitUnderQuota(t *testing.T) {
	c := single(t)
	// What is on its way waits for longer than the limit, also where the program is slow to send it.
	ok(t, nil, "category", "create", "log", "--quota", "16KiB", "--quota-mode", "block", "--server", c.write)
	const lines = 50_000
	r := cli(t, bytes.NewReader(numbers(10_000_000, 10_000_000+lines)), "produce", "log", "--server", c.write, "--timeout", "2s", "--batch-bytes", "8KiB")
	if r.Code != 6 {
		t.Errorf("exit code %d, want 6\n%s", r.Code, r.Stderr)
	}
	got := readSummary(t, string(r.Stderr))
	if got.stored == lines {
		t.Fatal("the quota did not block")
	}
	checkTold(t, c, got, lines)
	readsWell(t, string(r.Stderr))
}

// TestSampledIsNotStored: what sampling left out is not told as stored, and is no error.
func TestSampledIsNotStored(t *testing.T) {
	c := single(t)
	ok(t, nil, "category", "create", "log", "--quota", "4KiB", "--quota-mode", "sample", "--server", c.write)
	const lines = 50_000
	r := cli(t, bytes.NewReader(numbers(10_000_000, 10_000_000+lines)), "produce", "log", "--server", c.write, "--batch-bytes", "4KiB")
	got := readSummary(t, string(r.Stderr))
	stored := bytes.Count(tail(t, c, "log"), []byte{'\n'})
	if want := (summary{stored: stored, sampled: lines - stored}); r.Code != 0 || got != want || got.sampled == 0 {
		t.Errorf("exit code %d, told %+v, want %+v\n%s", r.Code, got, want, r.Stderr)
	}
}

// TestNobodyListens: a wrong address is told at once, with what was tried and what to do, before any input is read.
func TestNobodyListens(t *testing.T) {
	file := filepath.Join(t.TempDir(), "input")
	if err := os.WriteFile(file, []byte("a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, server := range map[string]string{"TCP": program.Reserve(t), "a socket": "unix:" + filepath.Join(t.TempDir(), "socket")} {
		t.Run(name, func(t *testing.T) {
			input, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = input.Close() }()
			f := fed(t, input, "produce", "log", "--server", server, "--timeout", "0s") // without a limit of its own
			code, text := f.code(), f.stderr.String()
			if code != 5 || strings.Count(text, "\n") != 1 || !strings.HasPrefix(text, "scribe: produce to log: "+server+" is not available: dial ") || !strings.Contains(text, "--server") {
				t.Errorf("exit code %d:\n%s", code, text)
			}
			if at, err := input.Seek(0, io.SeekCurrent); err != nil || at != 0 {
				t.Errorf("read %d bytes of input, %v", at, err)
			}
		})
	}
}

// TestOutageIsRiddenOut: what is read while the cell is away is stored when it is back, and the outage is told once.
func TestOutageIsRiddenOut(t *testing.T) {
	data, listen := filepath.Join(t.TempDir(), "data"), program.Reserve(t)
	up := serve(t, nil, "up", "--data", data, "--listen", listen)
	c := &cell{read: up.URL, write: up.URL}
	ok(t, nil, "category", "create", "log", "--server", up.URL)
	stdin, feed := pipe(t, "before\n")
	f := fed(t, stdin, "produce", "log", "--server", program.URL(listen))
	eventually(t, waitLimit, "the first line is stored", func() bool { return string(tail(t, c, "log")) == "before\n" })
	up.Kill()
	if _, err := feed.WriteString("during\n"); err != nil {
		t.Fatal(err)
	}
	f.said("write request failed")
	serve(t, nil, "up", "--data", data, "--listen", listen)
	if err := feed.Close(); err != nil {
		t.Fatal(err)
	}
	if code := f.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got, want := readSummary(t, f.stderr.String()), (summary{stored: 2}); got != want || !strings.Contains(f.stderr.String(), "write requests succeed again") {
		t.Errorf("told %+v, want %+v:\n%s", got, want, f.stderr)
	}
	sameBytes(t, "stored", tail(t, c, "log"), []byte("before\nduring\n"))
}

// TestProduceInterrupted: a signal ends a produce whose input is idle, and what was read is stored, without a line whose end was not read.
// Only when an input is left unread, that is an error.
func TestProduceInterrupted(t *testing.T) {
	for _, tc := range []struct {
		name   string
		signal os.Signal
		args   []string
		code   int
	}{
		{"a pipe", syscall.SIGINT, nil, 0},
		{"a pipe and a file", syscall.SIGTERM, []string{"-", os.DevNull}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := single(t)
			ok(t, nil, "category", "create", "log", "--server", c.write)
			stdin, _ := pipe(t, "a\nb\nunfinished")
			f := fed(t, stdin, append([]string{"produce", "log", "--server", c.write}, tc.args...)...)
			eventually(t, waitLimit, "both lines are stored", func() bool { return string(tail(t, c, "log")) == "a\nb\n" })
			f.signal(tc.signal)
			code, text := f.code(), f.stderr.String()
			if got, want := readSummary(t, text), (summary{stored: 2}); code != tc.code || got != want {
				t.Errorf("exit code %d, want %d; told %+v, want %+v:\n%s", code, tc.code, got, want, text)
			}
			if told := strings.Contains(text, "interrupted before everything was read"); told != (tc.code != 0) || strings.Contains(text, "\x1b") {
				t.Errorf("told %q", text)
			}
			sameBytes(t, "stored", tail(t, c, "log"), []byte("a\nb\n"))
		})
	}
}

// TestProduceInterruptedUnderQuota: a signal ends a produce that a quota blocks, although it has no time limit, and the last line accounts
// for everything that was read. A second signal ends it at once.
func TestProduceInterruptedUnderQuota(t *testing.T) {
	for _, signals := range []int{1, 2} {
		t.Run(strconv.Itoa(signals), func(t *testing.T) {
			c, input := blocked(t)
			file := filepath.Join(t.TempDir(), "input")
			if err := os.WriteFile(file, input, 0o600); err != nil {
				t.Fatal(err)
			}
			f := followed(t, "produce", "log", file, "--server", c.write, "--timeout", "0s", "--batch-bytes", "4KiB")
			eventually(t, waitLimit, "something is stored", func() bool { return len(tail(t, c, "log")) > 0 })
			f.signal(syscall.SIGTERM)
			if signals == 1 {
				code, got, want := f.code(), readSummary(t, f.stderr.String()), 6
				if got.stored == 0 { // the signal came before the first answer
					want = 5
				}
				if code != want {
					t.Errorf("exit code %d, want %d; told %+v", code, want, got)
				}
				checkTold(t, c, got, bytes.Count(input, []byte{'\n'}))
				return
			}
			f.mustEndAtSecondSignal()
			if strings.Contains(f.stderr.String(), "produced ") {
				t.Errorf("ended in order:\n%s", f.stderr)
			}
		})
	}
}
