package test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"scribe/test/program"
)

// following is a tail whose standard output the test reads, or does not.
type following struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    *os.File
	lines  *bufio.Reader // of out
	stderr *program.Log
	ended  chan struct{}
}

// follow starts `scribe tail args...`.
func follow(t *testing.T, args ...string) *following {
	t.Helper()
	return followed(t, append([]string{"tail"}, args...)...)
}

// mustEndAtSecondSignal sends signals until the process ends, which must not be in order.
func (f *following) mustEndAtSecondSignal() {
	f.t.Helper()
	eventually(f.t, waitLimit, "another signal ends it", func() bool {
		_ = f.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-f.ended:
			return true
		default:
			return false
		}
	})
	status, isUnix := f.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !isUnix || !status.Signaled() || status.Signal() != syscall.SIGTERM {
		f.t.Errorf("ended with %v, want the second signal:\n%s", f.cmd.ProcessState, f.stderr)
	}
}

// followed starts a command that prints lines.
func followed(t *testing.T, args ...string) *following {
	t.Helper()
	return fed(t, nil, args...)
}

// fed starts a command that reads a file or a pipe; nil = no input.
func fed(t *testing.T, stdin *os.File, args ...string) *following {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	f := &following{t: t, out: r, lines: bufio.NewReader(r), stderr: new(program.Log), ended: make(chan struct{})}
	f.cmd = program.Command(t.Context(), program.Binary(), args...)
	f.cmd.Stdout, f.cmd.Stderr = w, f.stderr
	if stdin != nil {
		f.cmd.Stdin = stdin
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = f.cmd.Wait() // its state is looked at
		close(f.ended)
	}()
	t.Cleanup(func() {
		_ = f.cmd.Process.Kill()
		<-f.ended
		_ = r.Close()
		if t.Failed() {
			t.Logf("%s\n%s", strings.Join(f.cmd.Args, " "), f.stderr)
		}
	})
	return f
}

// line reads the next line.
func (f *following) line() string {
	f.t.Helper()
	limit := time.AfterFunc(waitLimit, func() { _ = f.cmd.Process.Kill() }) // then there is no further line
	s, err := f.lines.ReadString('\n')
	if !limit.Stop() {
		f.t.Fatalf("waited %v for a line\n%s", waitLimit, f.stderr)
	}
	if err != nil {
		f.t.Fatalf("read a line: %q, %v\n%s", s, err, f.stderr)
	}
	return s
}

func (f *following) signal(s os.Signal) {
	f.t.Helper()
	if err := f.cmd.Process.Signal(s); err != nil {
		f.t.Fatal(err)
	}
}

// code waits for the end and returns the exit code; that of a process that a signal has ended is -1.
func (f *following) code() int {
	f.t.Helper()
	select {
	case <-f.ended:
	case <-time.After(waitLimit):
		f.t.Fatalf("%s did not end:\n%s", strings.Join(f.cmd.Args, " "), f.stderr)
	}
	return f.cmd.ProcessState.ExitCode()
}

// rest is what it printed and nobody has read.
func (f *following) rest() []byte {
	f.t.Helper()
	b, err := io.ReadAll(f.lines)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// said waits until standard error holds a text.
func (f *following) said(text string) {
	f.t.Helper()
	eventually(f.t, waitLimit, "standard error says "+text, func() bool { return strings.Contains(f.stderr.String(), text) })
}

func single(t *testing.T) *cell {
	t.Helper()
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	return &cell{write: up.URL, read: up.URL}
}

func numbers(from, to int) []byte {
	var b []byte
	for i := from; i < to; i++ {
		b = fmt.Appendf(b, "%d\n", i)
	}
	return b
}

// TestInterrupted: a tail that is stopped by signals again and again while messages are written prints, over all its runs, each of them
// once; it was started before the first one was written.
func TestInterrupted(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "live", "--server", c.read)
		file := filepath.Join(t.TempDir(), "checkpoint")
		args := []string{"live", "--server", c.read, "--checkpoint", file}
		first := follow(t, args...)
		eventually(t, waitLimit, "the place is kept before there are messages", func() bool {
			_, err := os.Stat(file)
			return err == nil
		})
		first.signal(syscall.SIGTERM)
		if code := first.code(); code != 0 || len(first.rest()) > 0 {
			t.Fatalf("before there were messages: exit code %d", code)
		}
		// Each round has more to read than it reads, however fast the others were, and more is written meanwhile.
		const all, rounds, piece = 20_000, 8, 1_000
		pieces, written := make(chan int, all/piece), make(chan struct{})
		go func() {
			defer close(written)
			for i := range pieces {
				produce(t, c, "live", numbers(i, i+piece), "--batch-bytes", "4KiB")
			}
		}()
		end := sync.OnceFunc(func() { close(pieces) })
		defer end()
		var got []byte
		for round := range rounds {
			for i := round * all / piece / rounds; i < (round+1)*all/piece/rounds; i++ {
				pieces <- i * piece
			}
			f := follow(t, args...)
			for range all / rounds / 2 {
				got = append(got, f.line()...)
			}
			f.signal([]os.Signal{syscall.SIGINT, syscall.SIGTERM}[round%2])
			got = append(got, f.rest()...)
			if code := f.code(); code != 0 {
				t.Fatalf("interrupted: exit code %d\n%s", code, f.stderr)
			}
		}
		end()
		<-written
		got = append(got, ok(t, nil, append([]string{"tail", "--until-end"}, args...)...)...)
		sameBytes(t, "over all runs", got, numbers(0, all))
	})
}

// TestKilledTail: after a kill what was printed since the last save comes again, and nothing is left out.
func TestKilledTail(t *testing.T) {
	t.Parallel()
	c := single(t)
	file := filepath.Join(t.TempDir(), "checkpoint")
	const all = 60_000
	produce(t, c, "log", numbers(0, all), "--batch-bytes", "4KiB")
	tail(t, c, "log", "--checkpoint", file, "-n", "0")
	next, begins := 0, map[int]bool{} // every message before next was printed
	for next < all {
		held := readAll(t, file)
		f := follow(t, "log", "--server", c.read, "--from", "earliest", "--checkpoint", file)
		first, last := -1, -1
		printed := func(line string) {
			t.Helper()
			n, err := strconv.Atoi(strings.TrimSuffix(line, "\n"))
			if err != nil || first >= 0 && n != last+1 || n > next {
				t.Fatalf("%q follows %d, and before the run everything up to %d was printed", line, last, next-1)
			}
			if first < 0 {
				first = n
			}
			last = n
			next = max(next, n+1)
		}
		for before := next; next < min(before+3000, all); {
			printed(f.line())
		}
		eventually(t, waitLimit, "the file is kept current", func() bool { return readAll(t, file) != held })
		f.signal(syscall.SIGKILL)
		f.code()
		for line := range strings.Lines(string(f.rest())) {
			if strings.HasSuffix(line, "\n") {
				printed(line)
			}
		}
		begins[first] = true
	}
	if len(begins) < 2 {
		t.Errorf("all runs began at %v", begins)
	}
	tail(t, c, "log", "--checkpoint", file)
	if more := ok(t, nil, "tail", "log", "--server", c.read, "--checkpoint", file, "--until-end"); len(more) > 0 {
		t.Errorf("after the end: %q", more)
	}
}

// TestStuckReader: a signal ends a tail whose reader takes nothing any more, and its place is behind the last message that went out
// whole.
func TestStuckReader(t *testing.T) {
	c := single(t)
	file := filepath.Join(t.TempDir(), "checkpoint")
	const all = 100_000 // more than a pipe holds
	produce(t, c, "log", numbers(0, all))
	f := follow(t, "log", "--server", c.read, "--from", "earliest", "--checkpoint", file)
	if line := f.line(); line != "0\n" {
		t.Fatalf("got %q", line)
	}
	f.signal(syscall.SIGTERM)
	if code := f.code(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	printed := append([]byte("0\n"), f.rest()...)
	printed = printed[:bytes.LastIndexByte(printed, '\n')+1] // without a message that did not go out whole
	printed = append(printed, ok(t, nil, "tail", "log", "--server", c.read, "--checkpoint", file, "--until-end")...)
	sameBytes(t, "in two runs", printed, numbers(0, all))

	bounded := follow(t, "log", "--server", c.read, "--from", "earliest", "--until-end")
	bounded.line()
	bounded.signal(syscall.SIGINT)
	if code := bounded.code(); code != 1 || !strings.Contains(bounded.stderr.String(), "interrupted before everything was printed") {
		t.Errorf("interrupted before the end that was asked for: exit code %d", code)
	}
}

// TestClosedPipe: a reader that has seen enough ends the tail in good order, and what the pipe took counts as printed.
func TestClosedPipe(t *testing.T) {
	c := single(t)
	const all = 200_000
	produce(t, c, "log", numbers(0, all))
	for _, args := range [][]string{{"--until-end"}, {}, {"-n", strconv.Itoa(all)}} {
		file := filepath.Join(t.TempDir(), "checkpoint")
		f := follow(t, append([]string{"log", "--server", c.read, "--from", "earliest", "--checkpoint", file}, args...)...)
		var seen []byte
		for range 10 {
			seen = append(seen, f.line()...)
		}
		sameBytes(t, "what was read", seen, numbers(0, 10))
		if err := f.out.Close(); err != nil {
			t.Fatal(err)
		}
		if code := f.code(); code != 0 || f.stderr.String() != "" {
			t.Fatalf("%q: exit code %d", args, code)
		}
		// The pipe holds 64 KiB, and as much as the reader's buffer may have been read ahead.
		next := string(ok(t, nil, "tail", "log", "--server", c.read, "--checkpoint", file, "--until-end", "-n", "1"))
		if n, err := strconv.Atoi(strings.TrimSpace(next)); err != nil || n < 10 || len(numbers(0, n)) > 64<<10+f.lines.Size()+len(seen) {
			t.Errorf("%q: goes on with %q, which the pipe never took", args, next)
		}
	}
}

// TestSecondSignal: a signal after the first one ends the program at once, whatever holds it up: here a checkpoint that can't be
// written because opening its temporary file hangs.
func TestSecondSignal(t *testing.T) {
	c := single(t)
	file := filepath.Join(t.TempDir(), "checkpoint")
	produce(t, c, "log", numbers(0, 3))
	ok(t, nil, "tail", "log", "--server", c.read, "--checkpoint", file, "--from", "earliest", "-n", "0")
	if err := syscall.Mkfifo(file+".tmp", 0o600); err != nil {
		t.Fatal(err)
	}
	f := follow(t, "log", "--server", c.read, "--checkpoint", file)
	for range 3 {
		f.line()
	}
	f.mustEndAtSecondSignal()
	sameBytes(t, "the place did not move", ok(t, nil, "tail", "log", "--server", c.read, "--from", strings.TrimSpace(readAll(t, file)), "--until-end"), numbers(0, 3))
}

func readAll(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestServerGone: a tail outlives its server, and goes on where it was; with --timeout it gives up.
func TestServerGone(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	listen := program.Reserve(t)
	up := serve(t, nil, "up", "--data", data, "--listen", listen)
	c := &cell{write: up.URL, read: up.URL}
	produce(t, c, "log", numbers(0, 10))
	file := filepath.Join(t.TempDir(), "checkpoint")
	f := follow(t, "log", "--server", c.read, "--from", "earliest", "--checkpoint", file)
	impatient := follow(t, "log", "--server", c.read, "--timeout", "300ms")
	var got []byte
	for i := range 3 {
		for range 10 {
			got = append(got, f.line()...)
		}
		if i == 0 {
			up.Kill()
		} else {
			up.Stop()
		}
		if i == 0 {
			if code := impatient.code(); code != 5 {
				t.Errorf("without a server for longer than --timeout: exit code %d, want 5\n%s", code, impatient.stderr)
			}
		}
		up = serve(t, nil, "up", "--data", data, "--listen", listen)
		produce(t, c, "log", numbers(10*(i+1), 10*(i+2)))
	}
	for range 10 {
		got = append(got, f.line()...)
	}
	up.Kill()
	f.said("opening it again")
	f.signal(syscall.SIGTERM) // while nobody is there
	if code := f.code(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	sameBytes(t, "printed", got, numbers(0, 40))
	up = serve(t, nil, "up", "--data", data, "--listen", listen)
	produce(t, c, "log", numbers(40, 50))
	sameBytes(t, "and after it", ok(t, nil, "tail", "log", "--server", up.URL, "--checkpoint", file, "--until-end"), numbers(40, 50))
	up.Stop()
	if r := cli(t, nil, "tail", "log", "--server", c.read, "--checkpoint", file); r.Code != 5 {
		t.Errorf("without a server at the start: exit code %d, want 5\n%s", r.Code, r.Stderr)
	}
}

// TestUnwritableCheckpoint: a disk without room is an error before anything is printed, or of the end; in between the tail goes on.
func TestUnwritableCheckpoint(t *testing.T) {
	c := single(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "checkpoint")
	temp := file + ".tmp"
	produce(t, c, "log", numbers(0, 10))
	args := []string{"tail", "log", "--server", c.read, "--from", "earliest", "--checkpoint", file}

	if err := os.Symlink("/dev/full", temp); err != nil { // a disk that is full for as long as the file is there
		t.Fatal(err)
	}
	r := cli(t, nil, append(args, "--until-end")...)
	if r.Code != 1 || len(r.Stdout) > 0 || !strings.Contains(string(r.Stderr), file) || !strings.Contains(string(r.Stderr), syscall.ENOSPC.Error()) {
		t.Errorf("no room at the beginning: exit code %d, printed %q\n%s", r.Code, r.Stdout, r.Stderr)
	}
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("there is a file: %v", err)
	}

	f := follow(t, args[1:]...)
	for range 10 {
		f.line()
	}
	blocked := filepath.Join(temp, "blocked") // what a temporary file can't replace
	eventually(t, waitLimit, "the temporary file is not there", func() bool { return os.MkdirAll(blocked, 0o700) == nil })
	produce(t, c, "log", numbers(10, 20))
	for i := 10; i < 20; i++ {
		if got := f.line(); got != fmt.Sprintln(i) {
			t.Fatalf("got %q", got)
		}
	}
	f.said("trying again")
	before := readAll(t, file)
	if err := os.RemoveAll(temp); err != nil {
		t.Fatal(err)
	}
	f.said("is written again")
	if after := readAll(t, file); after == before {
		t.Error("the file is not written again")
	}
	eventually(t, waitLimit, "the temporary file is not there", func() bool { return os.MkdirAll(blocked, 0o700) == nil })
	produce(t, c, "log", numbers(20, 30))
	for range 10 {
		f.line()
	}
	held := readAll(t, file)
	f.signal(syscall.SIGTERM)
	if code := f.code(); code != 1 || !strings.Contains(f.stderr.String(), file) {
		t.Errorf("no room at the end: exit code %d, want 1", code)
	}
	if err := os.RemoveAll(temp); err != nil {
		t.Fatal(err)
	}
	if readAll(t, file) != held {
		t.Error("the file was changed")
	}
	sameBytes(t, "what comes again", ok(t, nil, append(args, "--until-end")...), numbers(20, 30))

	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = full.Close() }()
	produce(t, c, "log", numbers(30, 40))
	cmd := program.Command(t.Context(), program.Binary(), append(args, "--until-end")...)
	cmd.Stdout = full
	if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("standard output without room: %v, want exit code 1", err)
	}
	sameBytes(t, "what standard output did not take", ok(t, nil, append(args, "--until-end")...), numbers(30, 40))
}

// TestForeignCheckpointFile: files that are not of this category, of this program's version, or used by another tail, are errors.
func TestForeignCheckpointFile(t *testing.T) {
	c := single(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "checkpoint")
	produce(t, c, "log", numbers(0, 10))
	produce(t, c, "other", numbers(0, 10))
	tail(t, c, "log", "--checkpoint", file, "-n", "1")
	whole := readAll(t, file)
	refused := func(what string, code int, says string, args ...string) {
		t.Helper()
		r := cli(t, nil, append([]string{"tail", "--server", c.read, "--until-end"}, args...)...)
		if r.Code != code || len(r.Stdout) > 0 || !strings.Contains(string(r.Stderr), says) {
			t.Errorf("%s: exit code %d, want %d and %q, printed %q\n%s", what, r.Code, code, says, r.Stdout, r.Stderr)
		}
	}
	refused("another category", 1, file+` is of category "log", not of "other"`, "other", "--checkpoint", file)
	refused("another category, as text", 2, `of category "log", not of "other"`, "other", "--from", strings.TrimSpace(whole))
	refused("a folder", 2, dir+" is not a regular file", "log", "--checkpoint", dir)
	refused("in a folder that is not there", 1, filepath.Join(dir, "missing", "file"), "log", "--checkpoint", filepath.Join(dir, "missing", "file"))

	newer := filepath.Join(dir, "newer")
	if err := os.WriteFile(newer, []byte(strings.Replace(whole, "scribe1.", "scribe7.", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("a newer version", 1, "newer one", "log", "--checkpoint", newer)

	user := follow(t, "log", "--server", c.read, "--checkpoint", file)
	for i := 1; i < 10; i++ {
		user.line()
	}
	refused("used by another tail", 1, file+" is in use by another scribe tail", "log", "--checkpoint", file)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	refused("used by another tail under another name", 1, link+" is in use", "log", "--checkpoint", link)
	user.signal(syscall.SIGKILL)
	user.code()
	tail(t, c, "log", "--checkpoint", link) // whatever ended the one before
	if info, err := os.Lstat(link); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link was replaced: %v", err)
	}

	ok(t, nil, "category", "delete", "log", "--server", c.read)
	eventually(t, waitLimit, "the name is free again", func() bool {
		return cli(t, nil, "category", "create", "log", "--server", c.read).Code == 0
	})
	produce(t, c, "log", numbers(0, 10))
	refused("a category that was made anew", 1, file, "log", "--checkpoint", file)
	refused("a category that is not there", 3, "missing", "missing", "--checkpoint", filepath.Join(dir, "new"))
}

// TestTailGaps: messages that are gone are told of and counted; on request the tail ends in front of them.
func TestTailGaps(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	var before []string
	for i := range 3 {
		produce(t, c, "log", numbers(10*i, 10*(i+1)))
		for _, path := range blobFiles(t, data) {
			if i == 1 && !slices.Contains(before, path) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		}
		before = blobFiles(t, data)
	}
	up.Stop()
	up = serve(t, nil, "up", "--data", data, "--listen", "127.0.0.1:0")
	file := filepath.Join(t.TempDir(), "checkpoint")
	args := []string{"tail", "log", "--server", up.URL, "--from", "earliest", "--until-end", "--checkpoint", file}
	for range 2 { // it stays in front of it
		r := cli(t, nil, append(args, "--on-damage", "skip", "--fail-on-gap")...)
		if r.Code != 1 || !strings.Contains(string(r.Stderr), "messages of log are missing") || strings.Count(string(r.Stderr), "\n") != 1 {
			t.Fatalf("--fail-on-gap: exit code %d, printed %q\n%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	r := cli(t, nil, args...)
	if r.Code != 1 || len(r.Stdout) > 0 {
		t.Fatalf("damage: exit code %d, printed %q\n%s", r.Code, r.Stdout, r.Stderr)
	}
	r = cli(t, nil, append(args, "--on-damage", "skip")...)
	if r.Code != 0 || !strings.Contains(string(r.Stderr), "1 gaps: 10 messages are missing, and 0 payloads") {
		t.Fatalf("exit code %d\n%s", r.Code, r.Stderr)
	}
	sameBytes(t, "behind the gap", r.Stdout, numbers(20, 30))
	if more := ok(t, nil, args...); len(more) > 0 {
		t.Errorf("after the end: %q", more)
	}
}

// TestTailPlaces: the ways to say where to begin, and how much.
func TestTailPlaces(t *testing.T) {
	c := single(t)
	ok(t, nil, "category", "create", "log", "--shards", "4", "--server", c.read)
	file := filepath.Join(t.TempDir(), "checkpoint")
	args := func(more ...string) []string { return append([]string{"tail", "log", "--server", c.read}, more...) }
	ok(t, nil, args("--checkpoint", file, "-n", "0")...) // latest, kept for later
	for shard := range 4 {
		produce(t, c, "log", fmt.Appendf(nil, "%d\n", shard), "--shard", strconv.Itoa(shard))
	}
	middle := time.Now()
	for shard := range 4 {
		produce(t, c, "log", fmt.Appendf(nil, "later %d\n", shard), "--shard", strconv.Itoa(shard))
	}
	const early, late = "0\n1\n2\n3\n", "later 0\nlater 1\nlater 2\nlater 3\n"
	for _, q := range []struct {
		want string
		args []string
	}{
		{early + late, []string{"--from", "earliest", "--window", "0"}},
		{early + late, []string{"--checkpoint", file, "--window", "0"}},
		{"", []string{"--checkpoint", file, "--from", "earliest"}}, // the file wins
		{late, []string{"--from", middle.Format(time.RFC3339Nano), "--window", "0"}},
		{"", []string{"--from", "latest"}},
		{"1\n3\nlater 1\nlater 3\n", []string{"--from", "earliest", "--shards", "3,1", "--window", "0s"}},
		{"0\n1\n2\nlater 0\nlater 1\nlater 2\n", []string{"--from", "earliest", "--shards", "0-2", "--window", "1m"}},
		{"0\n1\n2\n", []string{"--from", "earliest", "-n", "3", "--window", "0"}},
	} {
		got := string(ok(t, nil, args(append(q.args, "--until-end")...)...))
		if strings.Contains(strings.Join(q.args, " "), "1m") { // within a minute in any order
			if len(got) != len(q.want) {
				t.Errorf("%q: %q", q.args, got)
			}
		} else if got != q.want {
			t.Errorf("%q: %q, want %q", q.args, got, q.want)
		}
	}
	if got := ok(t, nil, args("--from", "earliest", "--until-end", "--window", "unbounded")...); len(got) != len(early+late) {
		t.Errorf("unbounded: %q", got)
	}
	for code, mistakes := range map[int][][]string{
		2: {
			{"--window", "1"},
			{"--window", "-1s"},
			{"--window", "wide"},
			{"--shards", "2-1"},
			{"--shards", "65536"},
			{"--shards", ""},
			{"--shards", "a"},
			{"--from", "someday"},
			{"--from", "scribe1.AAAA"},
			{"-o", "xml"},
			{"-n", "-1"},
			{"--on-damage", "repair"},
		},
		3: {{"--shards", "4"}},
	} {
		for _, m := range mistakes {
			r := cli(t, nil, args(m...)...)
			if r.Code != code || len(r.Stdout) > 0 || len(r.Stderr) == 0 {
				t.Errorf("%q: exit code %d, want %d, printed %q\n%s", m, r.Code, code, r.Stdout, r.Stderr)
			}
		}
	}
}
