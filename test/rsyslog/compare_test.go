package rsyslog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"scribe/internal/sample"
	"scribe/producer"
)

// producers is how many applications of the host write at the same time, each with a connection of its own.
const producers = 200

// linesEach is what each of them writes; about 47 MB in all.
const linesEach = 1000

// BenchmarkForward reports what the daemon that forwards took: CPU time for a byte of payload, and its largest resident set.
func BenchmarkForward(b *testing.B) {
	binary := build(b)
	lines := bytes.Split(bytes.TrimSuffix(sample.AccessLog(), []byte{'\n'}), []byte{'\n'})
	b.Run("agent/library", func(b *testing.B) {
		run(b, lines, func(b *testing.B) setup { return agent(b, binary, "", library) })
	})
	b.Run("agent/syslog", func(b *testing.B) {
		run(b, lines, func(b *testing.B) setup { return agent(b, binary, syslogInput, overTCP) })
	})
	b.Run("rsyslog", func(b *testing.B) {
		run(b, lines, func(b *testing.B) setup { return rsyslogd(b) })
	})
}

// setup is a daemon, where producers reach it, and how to see what has arrived behind it.
type setup struct {
	pid  int
	addr string
	// write is one producer: it writes n lines to addr and returns when they are handed over.
	write func(ctx context.Context, addr string, lines [][]byte, first, n int) error
	// arrived counts lines behind the daemon.
	arrived func() int64
}

func run(b *testing.B, lines [][]byte, start func(*testing.B) setup) {
	for b.Loop() {
		s := start(b)
		before := cpuOf(b, s.pid)
		begin := time.Now()
		size := int64(0)
		var group sync.WaitGroup
		errs := make([]error, producers)
		for p := range producers {
			for i := range linesEach {
				size += int64(len(lines[(p*linesEach+i)%len(lines)]))
			}
			group.Go(func() { errs[p] = s.write(b.Context(), s.addr, lines, p*linesEach, linesEach) })
		}
		group.Wait()
		if err := errors.Join(errs...); err != nil {
			b.Fatal(err)
		}
		await(b, func() bool { return s.arrived() >= producers*linesEach })
		wall, cpu := time.Since(begin), cpuOf(b, s.pid)-before
		b.ReportMetric(float64(cpu)/float64(size), "cpu-ns/B")
		b.ReportMetric(float64(peakOf(b, s.pid))/1e6, "peak-MB")
		b.ReportMetric(float64(size)/1e6/wall.Seconds(), "MB/s")
	}
}

// await polls for a condition that another process brings about.
func await(b *testing.B, done func() bool) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			b.Fatal("not everything arrived in two minutes")
		}
	}
}

// library writes with the producer library, fire and forget with a buffer that makes it wait.
func library(ctx context.Context, addr string, lines [][]byte, first, n int) error {
	p, err := producer.New(addr, producer.WithAck(producer.AckNone), producer.WithMaxBufferedBytes(1<<20))
	if err != nil {
		return err
	}
	var m producer.Message
	for i := range n {
		m.Payload = lines[(first+i)%len(lines)]
		p.WriteAsyncContext(ctx, "access", &m)
	}
	return errors.Join(p.Flush(ctx), p.Close(ctx))
}

// connecting lets one producer connect at a time: rsyslogd's queue of connections to accept has five places.
var connecting sync.Mutex

func connect(ctx context.Context, addr string) (net.Conn, error) {
	connecting.Lock()
	defer connecting.Unlock()
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// overTCP writes syslog messages (RFC 5424), each in a line.
func overTCP(ctx context.Context, addr string, lines [][]byte, first, n int) error {
	c, err := connect(ctx, addr)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(c, 16<<10)
	for i := range n {
		fmt.Fprintf(w, "<134>1 2026-01-02T03:04:05.678Z host web %d - - %s\n", first, lines[(first+i)%len(lines)])
	}
	return errors.Join(w.Flush(), c.Close())
}

const syslogInput = `
inputs:
  syslog:
    - name: syslog
      tcp: 127.0.0.1:%d
      category: access
`

// agent starts a cell and an agent that forwards to it, with a disk buffer.
func agent(b *testing.B, binary, inputs string, write func(context.Context, string, [][]byte, int, int) error) setup {
	cell, _ := launch(b, binary, "up", "--data", b.TempDir(), "--listen", "127.0.0.1:0")
	args := []string{"agent", "--upstream", cell, "--spool", b.TempDir(), "--listen", "127.0.0.1:0"}
	addr := ""
	if inputs != "" {
		port := freePort(b)
		file := filepath.Join(b.TempDir(), "agent.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, inputs, port), 0o600); err != nil {
			b.Fatal(err)
		}
		args, addr = append(args, "--config", file), fmt.Sprintf("127.0.0.1:%d", port)
	}
	url, pid := launch(b, binary, args...)
	if addr == "" {
		addr = url
	}
	return setup{pid: pid, addr: addr, write: write, arrived: func() int64 { return metric(b, cell, "scribe_batcher_committed_messages_total") }}
}

// rsyslogd starts one that takes syslog over TCP and forwards it to a sink, with a queue that is disk-assisted as the agent's is.
func rsyslogd(b *testing.B) setup {
	program, err := exec.LookPath("rsyslogd")
	if err != nil {
		lacking(b, "rsyslogd is not installed")
	}
	sink := listenSink(b)
	dir, port := b.TempDir(), freePort(b)
	host, sinkPort, _ := net.SplitHostPort(sink.addr)
	conf := filepath.Join(dir, "rsyslog.conf")
	text := fmt.Sprintf(`global(workDirectory=%q)
module(load="imtcp" MaxSessions="%d")
input(type="imtcp" address="127.0.0.1" port="%d")
action(type="omfwd" target=%q port=%q protocol="tcp" template="RSYSLOG_SyslogProtocol23Format" queue.type="LinkedList"
       queue.filename="forward" queue.size="100000" queue.saveOnShutdown="on" action.resumeRetryCount="-1")
`, dir, producers+10, port, host, sinkPort)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	cmd := exec.CommandContext(b.Context(), program, "-n", "-f", conf, "-i", filepath.Join(dir, "pid"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	await(b, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	return setup{pid: cmd.Process.Pid, addr: addr, write: overTCP, arrived: sink.lines.Load}
}

// sink counts lines that come over TCP.
type sink struct {
	addr  string
	lines atomic.Int64
}

func listenSink(b *testing.B) *sink {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s := &sink{addr: l.Addr().String()}
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				buf := make([]byte, 256<<10)
				for {
					n, err := c.Read(buf)
					s.lines.Add(int64(bytes.Count(buf[:n], []byte{'\n'})))
					if err != nil {
						_ = c.Close()
						return
					}
				}
			})
		}
	})
	b.Cleanup(func() { _ = l.Close() })
	return s
}

// launch starts the program and returns the URL that it serves at.
func launch(b *testing.B, binary string, args ...string) (url string, pid int) {
	cmd := exec.CommandContext(context.WithoutCancel(b.Context()), binary, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = cmd.Process.Signal(syscall.SIGTERM); _ = cmd.Wait() })
	line, _ := bufio.NewReader(out).ReadString('\n')
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if !ok {
		b.Fatalf("scribe %s said %q", args, line)
	}
	return url, cmd.Process.Pid
}

func build(b *testing.B) string {
	binary := filepath.Join(b.TempDir(), "scribe")
	if out, err := exec.CommandContext(b.Context(), "go", "build", "-o", binary, "scribe/cmd/scribe").CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

func freePort(b *testing.B) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // of a TCP listener
}

// lacking skips where a person runs it, and fails where everything must run.
func lacking(b *testing.B, what string) {
	if os.Getenv("SCRIBE_CI") != "" {
		b.Fatal(what)
	}
	b.Skip(what)
}

// cpuOf is the CPU time that a process has used, by the kernel's account (proc_pid_stat(5), fields 14 and 15).
func cpuOf(b *testing.B, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+2:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		b.Fatal(err)
	}
	const ticks = 100 // a second; USER_HZ on every Linux
	return time.Duration(user+system) * time.Second / ticks
}

// peakOf is the largest resident set of a process in bytes.
func peakOf(b *testing.B, pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n << 10
		}
	}
	b.Fatal("no VmHWM")
	return 0
}
