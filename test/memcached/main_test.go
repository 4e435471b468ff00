package memcached

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

func TestMain(m *testing.M) { os.Exit(program.Main(m)) }

// memcached is a server.
type memcached struct {
	*program.Process
	t    testing.TB
	addr string
	args []string
}

// start starts one, with further arguments, which ends with the test.
func start(t testing.TB, args ...string) *memcached {
	t.Helper()
	if _, err := exec.LookPath("memcached"); err != nil {
		lacking(t, "memcached is not installed: it is Debian's package memcached")
	}
	s := &memcached{t: t, addr: program.Reserve(t), args: args}
	s.run()
	return s
}

// run starts it, again when it was killed.
func (s *memcached) run() {
	s.t.Helper()
	host, port, _ := net.SplitHostPort(s.addr)
	args := []string{"-l", host, "-p", port, "-U", "0", "-t", "2"}
	if os.Getuid() == 0 {
		args = append(args, "-u", "root") // it refuses to be root without being told
	}
	s.Process = program.Other(s.t, "memcached", append(args, s.args...)...)
	await(s.t, func() bool {
		select {
		case <-s.Done:
			s.t.Fatalf("memcached ended with %v", s.Err)
		default:
		}
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// command sends a command of the text protocol and returns the lines of the answer before its last one.
func (s *memcached) command(last, format string, args ...any) []string {
	s.t.Helper()
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(program.WaitLimit))
	if _, err := fmt.Fprintf(c, format+"\r\n", args...); err != nil {
		s.t.Fatal(err)
	}
	var lines []string
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			s.t.Fatalf("%v after %q", err, lines)
		}
		if line = strings.TrimSpace(line); line == last {
			return lines
		}
		lines = append(lines, line)
	}
}

// stat returns one of its statistics.
func (s *memcached) stat(name string) int {
	s.t.Helper()
	for _, line := range s.command("END", "stats") {
		if f := strings.Fields(line); len(f) == 3 && f[1] == name {
			n, err := strconv.Atoi(f[2])
			if err != nil {
				s.t.Fatal(err)
			}
			return n
		}
	}
	s.t.Fatalf("no statistic %s", name)
	return 0
}

// items are the keys that it has, with the lengths of their values.
func (s *memcached) items() map[string]int {
	s.t.Helper()
	out := map[string]int{}
	for _, line := range s.command("END", "lru_crawler metadump all") {
		key := ""
		for f := range strings.FieldsSeq(line) {
			if k, ok := strings.CutPrefix(f, "key="); ok {
				key = strings.NewReplacer("%3A", ":", "%2F", "/", "%3a", ":", "%2f", "/").Replace(k)
			}
		}
		value := s.command("END", "get %s", key) // of no line ends, or else of more lines
		if f := strings.Fields(value[0]); len(f) == 4 {
			out[key], _ = strconv.Atoi(f[3])
		}
	}
	return out
}

// spoil puts other bytes of the same length under every key.
func (s *memcached) spoil() (n int) {
	s.t.Helper()
	for key, length := range s.items() {
		s.command("STORED", "set %s 0 3600 %d\r\n%s", key, length, strings.Repeat("x", length))
		n++
	}
	return n
}

// lacking skips where a person runs it, and fails where everything must run.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SCRIBE_CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// await polls for what another process brings about.
func await(t testing.TB, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(program.WaitLimit)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not happen in time")
		}
	}
}
