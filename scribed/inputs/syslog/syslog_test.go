package syslog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"scribe/producer"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/inputstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// now is when these messages are read: just after New Year.
var now = time.Date(2026, 1, 1, 0, 0, 30, 0, time.UTC)

func parserOf(adjust func(*Config), host string) *messageParser {
	cfg := DefaultConfig()
	cfg.Location = "UTC"
	if adjust != nil {
		adjust(&cfg)
	}
	return newParser(&cfg, time.UTC, func() time.Time { return now }, host)
}

// The first ones are examples of the RFCs: 5424 section 6.5, 3164 section 5.4.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		raw, local string
		want       messageFields
		time       string
	}{
		{
			raw:  "<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xEF\xBB\xBF'su root' failed for lonvick on /dev/pts/8",
			want: messageFields{Facility: "auth", Severity: "crit", Host: "mymachine.example.com", App: "su", MsgID: "ID47", Message: "\xEF\xBB\xBF'su root' failed for lonvick on /dev/pts/8"},
			time: "2003-10-11T22:14:15.003Z",
		},
		{
			raw:  `<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.`,
			want: messageFields{Facility: "local4", Severity: "notice", Host: "192.0.2.1", App: "myproc", ProcID: "8710", Message: "%% It's time to make the do-nuts."},
			time: "2003-08-24T12:14:15.000003Z",
		},
		{
			raw: `<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="Application"] An event`,
			want: messageFields{
				Facility: "local4", Severity: "notice", Host: "host", App: "evntslog", MsgID: "ID47", Message: "An event",
				Data: map[string]string{"exampleSDID@32473.iut": "3", "exampleSDID@32473.eventSource": "Application"},
			},
			time: "2003-10-11T22:14:15.003Z",
		},
		{
			raw:  "<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
			want: messageFields{Facility: "auth", Severity: "crit", Host: "mymachine", App: "su", Message: "'su root' failed for lonvick on /dev/pts/8"},
			time: "2025-10-11T22:14:15Z",
		},
		{ // the year before, seen after New Year; and the other way round
			raw:  "<13>Dec 31 23:59:59 h app[12]: x",
			want: messageFields{Facility: "user", Severity: "notice", Host: "h", App: "app", ProcID: "12", Message: "x"},
			time: "2025-12-31T23:59:59Z",
		},
		{raw: "<13>Jan  1 00:00:01 h app: x", want: messageFields{Facility: "user", Severity: "notice", Host: "h", App: "app", Message: "x"}, time: "2026-01-01T00:00:01Z"},
		{ // without a host, and without a space behind the tag
			raw:  "<13>Jan  1 00:00:01 app:x y",
			want: messageFields{Facility: "user", Severity: "notice", App: "app", Message: "app:x y"}, time: "2026-01-01T00:00:01Z",
		},
		{ // of a device that is named by its IPv6 address
			raw:  "<13>Jan  1 00:00:01 2001:db8::7 app: x",
			want: messageFields{Facility: "user", Severity: "notice", Host: "2001:db8::7", App: "app", Message: "x"}, time: "2026-01-01T00:00:01Z",
		},
		{ // of devices that send no host, a zero in front of the day, and more spaces
			raw:  "<13> Jan 01 00:00:01  app[12]: x\n\x01: y",
			want: messageFields{Facility: "user", Severity: "notice", App: "app", ProcID: "12", Message: "x\n\x01: y"}, time: "2026-01-01T00:00:01Z",
		},
		{raw: "<13>Jan  1 00:00:01 h app:x", want: messageFields{Facility: "user", Severity: "notice", Host: "h", App: "app", Message: "app:x"}, time: "2026-01-01T00:00:01Z"},
		{raw: "<13>Jan  1 00:00:01 h app[12 x", want: messageFields{Facility: "user", Severity: "notice", Host: "h", Message: "app[12 x"}, time: "2026-01-01T00:00:01Z"},
		{raw: "<13>Jan  1 00:00:01 alone", want: messageFields{Facility: "user", Severity: "notice", Message: "alone"}, time: "2026-01-01T00:00:01Z"},
		{raw: "<13>Jan 32 00:00:01 h app: x", want: messageFields{Message: "<13>Jan 32 00:00:01 h app: x", unparsed: true}},
		{ // of /dev/log, without a host
			raw: "<30>Jan  1 00:00:02 systemd[1]: Started.", local: "here",
			want: messageFields{Facility: "daemon", Severity: "info", Host: "here", App: "systemd", ProcID: "1", Message: "Started."},
			time: "2026-01-01T00:00:02Z",
		},
		{raw: "Use the BFG!", want: messageFields{Message: "Use the BFG!", unparsed: true}},
		{raw: "<999>1 nonsense", want: messageFields{Message: "<999>1 nonsense", unparsed: true}},
	} {
		m, f, ok := parserOf(nil, c.local).parseMessage([]byte(c.raw + "\n"))
		if !ok || string(m.Payload) != c.raw {
			t.Errorf("%s: payload %q, %v", c.raw, m.Payload, ok)
		}
		at := ""
		if f.Time != nil {
			at = f.Time.UTC().Format(time.RFC3339Nano)
			f.Time = nil
		}
		if fmt.Sprint(f) != fmt.Sprint(c.want) || at != c.time {
			t.Errorf("%s:\n got %+v at %s\nwant %+v at %s", c.raw, f, at, c.want, c.time)
		}
	}
}

func TestFormats(t *testing.T) {
	raw := []byte(`<34>1 2003-10-11T22:14:15Z host app 1 ID [a x="1"] the text`)
	m, _, _ := parserOf(func(c *Config) { c.Format, c.HostKey = formatMessage, true }, "").parseMessage(raw)
	if string(m.Payload) != "the text" || string(m.Key) != "host" || m.Time.Unix() != 1065910455 {
		t.Fatalf("%q %q %v", m.Payload, m.Key, m.Time)
	}
	m, _, _ = parserOf(func(c *Config) { c.Format = formatJSON }, "").parseMessage(raw)
	var got map[string]any
	if err := json.Unmarshal(m.Payload, &got); err != nil || got["message"] != "the text" || got["app"] != "app" || got["severity"] != "crit" {
		t.Fatalf("%s %v", m.Payload, err)
	}
	if _, _, ok := parserOf(func(c *Config) { c.Unparsed = drop }, "").parseMessage([]byte("what")); ok {
		t.Fatal("kept")
	}
	var names []string
	for _, a := range m.Attributes {
		names = append(names, a.Name+"="+string(a.Value))
	}
	if want := []string{"facility=auth", "severity=crit", "host=host", "app=app", "procid=1", "msgid=ID", "a.x=1"}; !slices.Equal(names, want) {
		t.Fatalf("%q", names)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("<34>1 2003-10-11T22:14:15.003Z host su - ID47 - x"), true)
	f.Add([]byte("<34>Oct 11 22:14:15 mymachine su: x"), false)
	f.Add([]byte("<34>Feb 29 22:14:15 su: x"), true)
	f.Fuzz(func(t *testing.T, b []byte, local bool) {
		host := ""
		if local {
			host = "here"
		}
		m, fs, ok := parserOf(nil, host).parseMessage(b)
		if !ok || !bytes.HasPrefix(b, m.Payload) || len(m.Attributes) > 8+maxData {
			t.Fatalf("%q: %+v", b, m)
		}
		_ = fs
	})
}

// FuzzPlain: what the short way reads, the full parser reads in the same way.
func FuzzPlain(f *testing.F) {
	for _, raw := range []string{
		"<34>1 2003-10-11T22:14:15.003Z host su - ID47 - x", "<0>1 - - - - - -", "<191>1 2003-10-11T22:14:15.000003-07:00 h a p m - \xEF\xBB\xBFx\ny",
		"<34>1 2003-10-11T22:14:15,5Z h a p m - x", "<34>1 2003-02-30T22:14:60Z h a p m - ", "<034>1 - - - - - - x", "<34>1 2003-10-11T22:14:15.0000001Z h a p m - x",
		"<34>12 - - - - - - x", "<34>1 - - - - - [a b=\"c\"] x", "<34>1 2003-10-11T22:14:15+24:00 h a p m - x", "<34>1 2003-10-11T22:14:15.Z h a p m - x",
		"<34>1 - " + strings.Repeat("h", 256) + " a p m - x", "<34>1 - h  p m - x", "<34>1 - h a p m -x",
		"<10>1 0000-10-01T0:00:00+00:00 0 0 0 0 -", "<10>1 2003-10-11T22:14:15.5-23:59 h a p m -", "<10>1 2003-10-11T22:14:15.5 h a p m -",
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got, ok := parsePlain5424(b)
		if !ok {
			return
		}
		want, ok := parserOf(nil, "").parseFull5424(b)
		if !ok || (got.Time == nil) != (want.Time == nil) || got.Time != nil && !got.Time.Equal(*want.Time) {
			t.Fatalf("%q: %+v, want %+v, %v", b, got, want, ok)
		}
		if got.Time, want.Time = nil, nil; fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
			t.Fatalf("%q: %+v, want %+v", b, got, want)
		}
	})
}

// TestPlain: the usual message goes the short way.
func TestPlain(t *testing.T) {
	raw := []byte("<134>1 2026-01-02T03:04:05.678901+01:00 host app 12 ID - the text")
	if f, ok := parsePlain5424(raw); !ok || f.Message != "the text" || f.Host != "host" {
		t.Fatalf("%+v, %v", f, ok)
	}
	p := parserOf(nil, "")
	allocs := testing.AllocsPerRun(100, func() {
		p.reset()
		if _, _, ok := p.parseMessage(raw); !ok {
			t.Fatal("not parsed")
		}
	})
	if allocs > 4 { // the text, the time and its zone
		t.Errorf("%v allocations a message", allocs)
	}
}

// TestMessagesOfABatchAreApart: messages that are parsed one after the other share memory, and no bytes.
func TestMessagesOfABatchAreApart(t *testing.T) {
	p := parserOf(nil, "")
	var all []producer.Message
	const n = 200
	for i := range n {
		m, _, _ := p.parseMessage(fmt.Appendf(nil, "<34>1 - host-%d app-%d %d - - x", i, i, i))
		all = append(all, m)
	}
	for i, m := range all {
		var got []string
		for _, a := range m.Attributes {
			got = append(got, string(append(a.Value, '!'))) // which must not reach the next one
		}
		if want := []string{"auth!", "crit!", fmt.Sprintf("host-%d!", i), fmt.Sprintf("app-%d!", i), fmt.Sprintf("%d!", i)}; !slices.Equal(got, want) {
			t.Fatalf("%q, want %q", got, want)
		}
	}
}

// streamed cuts a stream that arrives in pieces.
func streamed(text []byte, limit, piece int) (out []string, truncated int) {
	f := streamFrames{limit: limit}
	var held []byte
	for len(text) > 0 || len(held) > 0 {
		n := min(piece, len(text))
		held = append(held, text[:n]...)
		text = text[n:]
		for len(held) > 0 {
			m, n, ok := f.nextMessage(held, len(text) == 0)
			if ok && len(m) > 0 {
				out = append(out, string(m))
			}
			held = held[n:]
			if n == 0 {
				break
			}
		}
		if len(text) == 0 {
			break
		}
	}
	return out, f.truncated
}

func TestFraming(t *testing.T) {
	for _, c := range []struct {
		text      string
		want      []string
		truncated int
	}{
		{"<1>a\n<2>b\r\n\n<3>c", []string{"<1>a", "<2>b", "<3>c"}, 0},
		{"4 <1>a8 <2>b\nc\nd<3>line\n3 <4>", []string{"<1>a", "<2>b\nc\nd", "<3>line", "<4>"}, 0},
		{"12 0123456789xx4 <1>a", []string{"0123456789", "<1>a"}, 1},
		{"<1>0123456789\n<2>b\n", []string{"<1>0123456", "<2>b"}, 1},
		{"<1>012345678901234567890123456789\n<2>b\n", []string{"<1>0123456", "<2>b"}, 1},
		{"99 broken off", []string{"broken off"}, 1},
		{"2024 is no count\n", []string{"is no coun"}, 1},
		{"3rd is no count\n", []string{"3rd is no "}, 1},
	} {
		for piece := 1; piece <= len(c.text); piece++ {
			if got, cut := streamed([]byte(c.text), 10, piece); !slices.Equal(got, c.want) || cut != c.truncated {
				t.Errorf("%q in pieces of %d: %q, %d truncated, want %q, %d", c.text, piece, got, cut, c.want, c.truncated)
				break
			}
		}
	}
}

func FuzzFraming(f *testing.F) {
	f.Add([]byte("4 <1>a<2>b\n"), uint8(3))
	f.Fuzz(func(t *testing.T, b []byte, piece uint8) {
		got, _ := streamed(b, 16, int(piece)+1)
		whole, _ := streamed(b, 16, len(b)+1)
		for _, m := range got {
			if len(m) > 16 {
				t.Fatalf("%q is over the limit", m)
			}
		}
		if !slices.Equal(got, whole) {
			t.Fatalf("in pieces %q, at once %q", got, whole)
		}
	})
}

// agent is one that keeps what it is given.
type agent struct {
	mu     sync.Mutex
	got    []string
	more   chan struct{}
	refuse int // deliveries that fail first
}

func newAgent() *agent { return &agent{more: make(chan struct{}, 1000)} }

func (a *agent) Deliver(_ context.Context, category string, messages []producer.Message) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse > 0 {
		a.refuse--
		return errors.New("no room")
	}
	for _, m := range messages {
		a.got = append(a.got, category+":"+string(m.Payload))
		a.more <- struct{}{}
	}
	return nil
}

// start runs an input on free ports.
func start(t *testing.T, a *agent, adjust func(*Config)) (openSockets, *Input, func()) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.UDP, cfg.TCP.Address, cfg.Unix = "127.0.0.1:0", "127.0.0.1:0", filepath.Join(t.TempDir(), "log")
	cfg.Category, cfg.Location = "sys.{app}", "UTC"
	if adjust != nil {
		adjust(&cfg)
	}
	i, err := New(cfg, inputs.Deps{Host: "here", Clock: func() time.Time { return now }})
	if err != nil {
		t.Fatal(err)
	}
	if i.metrics, err = inputs.NewNetworkMetrics("syslog", cfg.Name, nil); err != nil {
		t.Fatal(err)
	}
	i.agent = inputstest.NewProducer(t, a.Deliver)
	s, err := i.openSockets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- i.serveSockets(ctx, s) }()
	return s, i, func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func send(t *testing.T, network, addr, text string) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
}

func TestSockets(t *testing.T) {
	a := newAgent()
	s, i, stop := start(t, a, func(c *Config) { c.MaxCategories = 2 })
	send(t, "udp", s.udp.LocalAddr().String(), "<13>Jan  1 00:00:01 h one: by udp")
	<-a.more
	send(t, "unixgram", i.cfg.Unix, "<13>Jan  1 00:00:01 two: by unix")
	<-a.more
	a.mu.Lock()
	a.refuse = 1 // a connection waits
	a.mu.Unlock()
	send(t, "tcp", s.tcp.Addr().String(), "<13>Jan  1 00:00:01 h one: by tcp\n34 <13>Jan  1 00:00:01 h three: x\ny\n")
	<-a.more
	<-a.more
	stop()
	want := []string{
		"sys.one:<13>Jan  1 00:00:01 h one: by udp", "sys.two:<13>Jan  1 00:00:01 two: by unix",
		"sys.one:<13>Jan  1 00:00:01 h one: by tcp", "syslog.other:<13>Jan  1 00:00:01 h three: x\ny",
	}
	if !slices.Equal(a.got, want) {
		t.Fatalf("%q", a.got)
	}
}

// An input that stops waits for the write under way, and does not repeat what the agent takes.
func TestStopDoesNotRepeatWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.UDP = "127.0.0.1:0" // is not opened
		i, err := New(cfg, inputs.Deps{Clock: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		if i.metrics, err = inputs.NewNetworkMetrics("syslog", i.cfg.Name, nil); err != nil {
			t.Fatal(err)
		}
		answer, taken := make(chan struct{}), 0
		i.agent = inputstest.NewProducer(t, func(_ context.Context, _ string, messages []producer.Message) error {
			<-answer
			taken += len(messages)
			return nil
		})
		b := &messageBatch{input: i, parser: newParser(&i.cfg, i.rules.location, i.deps.Clock, "")}
		b.addMessage([]byte("<13>Jan  1 00:00:01 h one: text"))
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan bool)
		go func() { done <- b.writeToAgent(ctx) }()
		synctest.Wait()
		stop()
		synctest.Wait()
		close(answer)
		if goesOn := <-done; goesOn || taken != 1 {
			t.Errorf("taken %d times, goes on %v", taken, goesOn)
		}
	})
}

// A datagram that finds no capacity is dropped, and the next one is read.
func TestDatagramsDoNotWait(t *testing.T) {
	a := newAgent()
	s, i, stop := start(t, a, nil)
	if err := i.agent.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		send(t, "udp", s.udp.LocalAddr().String(), "<13>x")
		for testutil.ToFloat64(i.metrics.Dropped.WithLabelValues(inputs.DropFull)) <= float64(n) {
			<-time.After(time.Millisecond)
		}
	}
	stop()
	if len(a.got) != 0 {
		t.Fatalf("%q", a.got)
	}
}

func TestBoundsConnections(t *testing.T) {
	a := newAgent()
	s, _, stop := start(t, a, func(c *Config) { c.MaxConnections = 1 })
	first, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := first.Write([]byte("<13>x\n")); err != nil {
		t.Fatal(err)
	}
	<-a.more // it has its place
	second, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.tcp.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.Read(make([]byte, 1)); err == nil {
		t.Fatal("a second connection was taken")
	}
	_ = first.Close()
	_ = second.Close()
	stop()
}

// TestUnixSocketOfARunBefore: one that was left behind is replaced, one that somebody reads from is not.
func TestUnixSocketOfARunBefore(t *testing.T) {
	_, i, stop := start(t, newAgent(), nil)
	if _, err := i.openSockets(t.Context()); err == nil || !strings.Contains(err.Error(), "another process reads") {
		t.Errorf("a socket in use: %v", err)
	}
	stop()
	s, err := i.openSockets(t.Context())
	if err != nil {
		t.Fatalf("a socket that was left behind: %v", err)
	}
	s.close()
}

func TestRunReportsABusyPort(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	cfg := DefaultConfig()
	cfg.TCP.Address = l.Addr().String()
	i, err := New(cfg, inputs.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	err = i.Run(t.Context(), inputstest.NewProducer(t, newAgent().Deliver), func() { t.Error("it is open") })
	if err == nil || strings.Count(err.Error(), "syslog "+i.Name()+": ") != 1 {
		t.Fatal(err)
	}
}

func TestValidate(t *testing.T) {
	err := (&Config{Name: "x", UDP: "nowhere", Category: "{nope}", Location: "Mars", Protocol: "p"}).Validate()
	if err == nil {
		t.Fatal("taken")
	}
	for _, want := range []string{"UDP:", "{nope}", "Mars", "Protocol:", "Format:", "Fallback:", "MaxMessage:", "IdleTimeout:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("nothing of %s in %v", want, err)
		}
	}
}
