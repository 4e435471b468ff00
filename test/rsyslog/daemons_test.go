package rsyslog

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/producer"
	"scribe/test/program"
)

// category is where the agent forwards to.
const category = "access"

// daemon is one that forwards.
type daemon struct {
	process *program.Process
	// dial begins a producer: a connection of its own.
	dial func(ctx context.Context, number int) (writer, error)
	// arrived returns how many lines are behind the daemon, and check what is wrong with them.
	arrived func() int64
	check   func() []string
}

// writer is one producer.
type writer interface {
	// write hands a line over, now says that it must not wait for others.
	write(ctx context.Context, line []byte, now bool) error
	// close returns when everything was handed over.
	close(ctx context.Context) error
}

// setups are what is compared.
var setups = []struct {
	name  string
	start func(testing.TB, corpus) daemon
}{
	{"agent/memory/library-unix", agent{}.unix},
	{"agent/memory/library-tcp", agent{}.tcp},
	{"agent/memory/syslog", agent{}.syslog},
	{"agent/spool/library-unix", agent{spool: true}.unix},
	{"agent/spool/library-tcp", agent{spool: true}.tcp},
	{"agent/spool/library-unix-spooled", agent{spool: true, ack: producer.AckSpooled}.unix},
	{"agent/spool/syslog", agent{spool: true}.syslog},
	{"rsyslog/memory", rsyslogd(`queue.type="LinkedList"`)},
	{"rsyslog/memory-and-disk", rsyslogd(`queue.type="LinkedList" queue.filename="forward" queue.saveOnShutdown="on"`)},
	{"rsyslog/disk", rsyslogd(`queue.type="Disk" queue.filename="forward" queue.saveOnShutdown="on"`)},
}

// agent is a host's agent in front of a cell.
type agent struct {
	spool bool
	ack   producer.AckLevel // of the library; none by default
}

func (a agent) start(t testing.TB, c corpus, args ...string) daemon {
	cell := program.Serve(t, nil, "up", "--data", t.TempDir(), "--listen", "127.0.0.1:0")
	spool := ""
	if a.spool {
		spool = t.TempDir()
	}
	p := program.Serve(t, nil, append([]string{"agent", "--upstream", cell.URL, "--spool", spool, "--listen", "127.0.0.1:0"}, args...)...)
	return daemon{
		process: p,
		arrived: func() int64 {
			m, err := program.Scrape(t.Context(), cell.URL)
			if err != nil {
				t.Fatal(err)
			}
			return int64(m.Sum("scribe_batcher_committed_messages_total"))
		},
		check: func() []string {
			l := newLedger(c)
			if err := readAll(t.Context(), cell.URL, l); err != nil {
				return []string{err.Error()}
			}
			return l.faults()
		},
	}
}

func readAll(ctx context.Context, server string, l *ledger) error {
	in, err := consumer.New(server, category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		return err
	}
	for rec, err := range in.Records(ctx) {
		if err != nil {
			return errors.Join(err, in.Close())
		}
		l.note(rec.Payload)
	}
	return in.Close()
}

// unix and tcp are written to with the library.
func (a agent) unix(t testing.TB, c corpus) daemon {
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // the path of a socket is at most some 100 bytes, t.TempDir's are long
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	d := a.start(t, c, "--socket", socket)
	d.dial = a.library("unix:" + socket)
	return d
}

func (a agent) tcp(t testing.TB, c corpus) daemon {
	d := a.start(t, c)
	d.dial = a.library(d.process.URL)
	return d
}

// library is an application that logs with the producer library.
func (a agent) library(server string) func(context.Context, int) (writer, error) {
	ack := a.ack
	if ack == 0 {
		ack = producer.AckNone
	}
	return func(context.Context, int) (writer, error) {
		p, err := producer.New(server, producer.WithAck(ack), producer.WithMaxBufferedBytes(1<<20))
		return &application{p}, err
	}
}

type application struct{ p *producer.Producer }

func (a *application) write(ctx context.Context, line []byte, _ bool) error {
	return a.p.WriteAsyncContext(ctx, category, &producer.Message{Payload: line}).Err() // nil while it is on its way
}

func (a *application) close(ctx context.Context) error {
	err := errors.Join(a.p.Flush(ctx), a.p.Close(ctx))
	if s := a.p.Stats(); err == nil && s.Acked != s.Accepted {
		err = fmt.Errorf("%d of %d lines were acknowledged", s.Acked, s.Accepted)
	}
	return err
}

// syslog is written to as rsyslogd is.
func (a agent) syslog(t testing.TB, c corpus) daemon {
	addr := program.Reserve(t)
	file := filepath.Join(t.TempDir(), "agent.yaml")
	yaml := fmt.Sprintf("inputs: {syslog: [{name: compare, tcp: {address: %q}, category: %s}]}\n", addr, category)
	if err := os.WriteFile(file, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	d := a.start(t, c, "--config", file)
	awaitListening(t, addr)
	d.dial = overTCP(addr)
	return d
}

// rsyslogd starts one that takes syslog over TCP and forwards it to a sink, with a queue of its own for that.
func rsyslogd(queue string) func(testing.TB, corpus) daemon {
	return func(t testing.TB, c corpus) daemon {
		path, err := exec.LookPath("rsyslogd")
		if err != nil {
			lacking(t, "rsyslogd is not installed: it is Debian's package rsyslog")
		}
		s := listen(t, c)
		dir, addr := t.TempDir(), program.Reserve(t)
		_, port, _ := net.SplitHostPort(addr)
		host, sinkPort, _ := net.SplitHostPort(s.addr)
		conf := filepath.Join(dir, "rsyslog.conf")
		config := fmt.Sprintf(`global(workDirectory=%q)
module(load="imtcp" MaxSessions="%d")
input(type="imtcp" address="127.0.0.1" port=%q)
action(type="omfwd" target=%q port=%q protocol="tcp" template="RSYSLOG_SyslogProtocol23Format" queue.size="100000"
       action.resumeRetryCount="-1" %s)
`, dir, producers+10, port, host, sinkPort, queue)
		if err := os.WriteFile(conf, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		p := program.Other(t, path, "-n", "-f", conf, "-i", filepath.Join(dir, "pid"))
		awaitListening(t, addr)
		return daemon{process: p, dial: overTCP(addr), arrived: s.ledger.count.Load, check: s.ledger.faults}
	}
}

// lacking skips where a person runs it, and fails where everything must run.
func lacking(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("SCRIBE_CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// overTCP is an application that writes syslog messages, each in a line. Applications connect one at a time: rsyslogd's list of
// connections to accept is short.
func overTCP(addr string) func(context.Context, int) (writer, error) {
	var connecting sync.Mutex
	return func(ctx context.Context, number int) (writer, error) {
		connecting.Lock()
		defer connecting.Unlock()
		c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &connection{c, bufio.NewWriterSize(c, 16<<10), header(number)}, nil
	}
}

type connection struct {
	c      net.Conn
	w      *bufio.Writer
	header string
}

func (c *connection) write(_ context.Context, line []byte, now bool) error {
	_, _ = c.w.WriteString(c.header) // the last error stays
	_, _ = c.w.Write(line)
	err := c.w.WriteByte('\n')
	if now {
		err = c.w.Flush()
	}
	return err
}

func (c *connection) close(context.Context) error { return errors.Join(c.w.Flush(), c.c.Close()) }

// sink takes lines over TCP.
type sink struct {
	addr   string
	ledger *ledger
}

func listen(t testing.TB, c corpus) *sink {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{addr: l.Addr().String(), ledger: newLedger(c)}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			stop := context.AfterFunc(t.Context(), func() { _ = conn.Close() })
			running.Go(func() {
				defer stop()
				s.take(conn)
			})
		}
	})
	t.Cleanup(func() { _ = l.Close(); running.Wait() })
	return s
}

func (s *sink) take(c io.ReadCloser) {
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		s.ledger.note(lines.Bytes())
	}
	_ = c.Close()
}

func awaitListening(t testing.TB, addr string) {
	t.Helper()
	await(t, func() bool {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
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
