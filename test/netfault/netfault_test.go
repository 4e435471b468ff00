package netfault_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scribe/test/netfault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it gets, and counts it.
func echo(t *testing.T) (addr string, received *atomic.Int64) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	received = new(atomic.Int64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = c.Close() }()
				_, _ = io.Copy(c, io.TeeReader(c, counter{received}))
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String(), received
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

func dial(t *testing.T, p *netfault.Proxy) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// askNew is ask over a new connection. One that is cut at once may fail before it is there.
func askNew(t *testing.T, p *netfault.Proxy) error {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return ask(t, c, long)
}

// ask sends a byte and waits for its echo, shortly if none is expected.
func ask(t *testing.T, c net.Conn, patience time.Duration) error {
	t.Helper()
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	_, err := io.ReadFull(c, make([]byte, 1))
	return err
}

// silent looks whether nothing comes, shortly.
func silent(t *testing.T, c net.Conn) error {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(short)); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(make([]byte, 1)); !timeout(err) {
		return fmt.Errorf("%d bytes, %w", n, err)
	}
	return nil
}

// awaitLost waits until a proxy has dropped so many answers, and no more.
func awaitLost(t *testing.T, p *netfault.Proxy, n int) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(long); p.Lost() < n && time.Now().Before(deadline); {
		<-tick.C
	}
	if got := p.Lost(); got != n {
		t.Fatalf("%d answers were lost, want %d", got, n)
	}
}

const (
	long  = time.Minute
	short = 50 * time.Millisecond
)

func timeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

func TestProxyModes(t *testing.T) {
	server, received := echo(t)
	p := netfault.Listen(t, "127.0.0.1:0")
	if err := askNew(t, p); err == nil || timeout(err) {
		t.Errorf("without a target: %v, want a connection that is cut", err)
	}
	p.Target(server)
	c := dial(t, p)
	if err := ask(t, c, long); err != nil {
		t.Fatal(err)
	}

	p.Set(netfault.Hang)
	before := received.Load()
	if err := ask(t, c, short); !timeout(err) || received.Load() != before {
		t.Errorf("while it hangs: %v, and %d bytes arrived", err, received.Load()-before)
	}
	other := dial(t, p)
	if err := ask(t, other, short); !timeout(err) {
		t.Errorf("a new connection while it hangs: %v", err)
	}
	p.Set(netfault.Pass)
	for _, c := range []net.Conn{c, other} {
		if err := c.SetReadDeadline(time.Now().Add(long)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Errorf("what waited does not come: %v", err)
		}
	}

	p.Set(netfault.LoseAnswers)
	before = received.Load()
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	awaitLost(t, p, 1)
	if err := silent(t, c); err != nil || received.Load() != before+1 {
		t.Errorf("while answers are lost: %v, and %d bytes arrived, want 1", err, received.Load()-before)
	}
	p.Set(netfault.Pass)
	if err := ask(t, c, long); err == nil || timeout(err) {
		t.Errorf("a connection that has lost an answer: %v, want that it is cut", err)
	}

	c = dial(t, p)
	if err := ask(t, c, long); err != nil {
		t.Fatal(err)
	}
	p.Set(netfault.Refuse)
	if err := ask(t, c, long); err == nil || timeout(err) {
		t.Errorf("an open connection while it refuses: %v", err)
	}
	if err := askNew(t, p); err == nil || timeout(err) {
		t.Errorf("a new connection while it refuses: %v", err)
	}
	p.Set(netfault.Pass)
	c = dial(t, p)
	if err := ask(t, c, long); err != nil {
		t.Error(err)
	}
	cuts := p.Cuts()
	p.Cut()
	if err := ask(t, c, long); err == nil || timeout(err) || p.Cuts() <= cuts {
		t.Errorf("after Cut: %v", err)
	}
}

func TestProxyChaos(t *testing.T) {
	server, _ := echo(t)
	p := netfault.Listen(t, "127.0.0.1:0")
	p.Target(server)
	p.SetChaos(netfault.Chaos{CutRequest: 0.1, CutAnswer: 0.1, Delay: 0.5, MaxDelay: time.Millisecond}, 1)
	ok, cut := 0, 0
	for range 200 {
		if askNew(t, p) == nil {
			ok++
		} else {
			cut++
		}
	}
	if ok < 100 || cut < 10 || p.Cuts() != cut {
		t.Errorf("%d exchanges went well and %d were cut; the proxy counts %d", ok, cut, p.Cuts())
	}
	p.SetChaos(netfault.Chaos{}, 1)
	for range 50 {
		if err := ask(t, dial(t, p), long); err != nil {
			t.Fatal(err)
		}
	}
}

// TestProxyKeepsHalfClosed: an end of input is forwarded, and the answer still comes.
func TestProxyKeepsHalfClosed(t *testing.T) {
	server, _ := echo(t)
	p := netfault.Listen(t, "127.0.0.1:0")
	p.Target(server)
	c := dial(t, p).(*net.TCPConn)
	if _, err := c.Write([]byte("all of it")); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "all of it" {
		t.Errorf("got %q, %v", got, err)
	}
}

// TestStoreFaults sends requests through each fault and looks at both ends.
func TestStoreFaults(t *testing.T) {
	body := strings.Repeat("0123456789abcdef", 1000)
	var whole atomic.Int64 // requests that arrived with their body
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := io.ReadAll(r.Body); err != nil || r.Method == http.MethodPut && string(got) != body {
			return
		}
		whole.Add(1)
		w.Header().Set("X-Host", r.Host)
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, body)
		}
	}))
	defer server.Close()
	s := netfault.NewStore(t, "127.0.0.1:0", server.Listener.Addr().String(), 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	query := "?x=1"
	send := func(method string) (status int, got string, err error) {
		var in io.Reader
		if method == http.MethodPut {
			in = strings.NewReader(body)
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Endpoint()+"/bucket/a%2Fb"+query, in)
		if err != nil {
			t.Fatal(err)
		}
		res, err := client.Do(req)
		if err != nil {
			return 0, "", err
		}
		defer func() { _ = res.Body.Close() }()
		b, err := io.ReadAll(res.Body)
		if host := res.Header.Get("X-Host"); host != "" && host != s.Endpoint() {
			t.Errorf("the server saw the host %q, signatures are for %q", host, s.Endpoint())
		}
		return res.StatusCode, string(b), err
	}
	for _, c := range []struct {
		fault   string
		faults  netfault.StoreFaults
		method  string
		applied bool
		status  int // 0 = no answer, or not a whole one
	}{
		{"", netfault.StoreFaults{}, http.MethodPut, true, 200},
		{"", netfault.StoreFaults{}, http.MethodGet, true, 200},
		{netfault.FaultSlowDown, netfault.StoreFaults{SlowDown: 1}, http.MethodPut, false, 503},
		{netfault.FaultCutBefore, netfault.StoreFaults{CutBefore: 1}, http.MethodPut, false, 0},
		{netfault.FaultCutUpload, netfault.StoreFaults{CutUpload: 1}, http.MethodPut, false, 0},
		{netfault.FaultCutAfter, netfault.StoreFaults{CutAfter: 1}, http.MethodPut, true, 0},
		{netfault.FaultFailAfter, netfault.StoreFaults{FailAfter: 1}, http.MethodPut, true, 500},
		{netfault.FaultCutAnswer, netfault.StoreFaults{CutAnswer: 1}, http.MethodGet, true, 0},
		{netfault.FaultDelay, netfault.StoreFaults{Delay: 1, MaxDelay: time.Millisecond}, http.MethodPut, true, 200},
	} {
		s.Set(c.faults)
		applied, count := whole.Load(), s.Counts()[c.fault]
		status, got, err := send(c.method)
		if (whole.Load() > applied) != c.applied {
			t.Errorf("%s %q: carried out: %v, want %v", c.method, c.fault, !c.applied, c.applied)
		}
		if err != nil {
			status = 0
		}
		if status != c.status || status == 200 && c.method == http.MethodGet && got != body {
			t.Errorf("%s %q: status %d, %d bytes, %v, want status %d", c.method, c.fault, status, len(got), err, c.status)
		}
		if c.fault != "" && s.Counts()[c.fault] != count+1 {
			t.Errorf("%q is not counted", c.fault)
		}
	}
	s.Set(netfault.StoreFaults{Damage: 1})
	if _, got, err := send(http.MethodGet); err != nil || got != body {
		t.Errorf("damage of what is no object: %v", err)
	}
	query = ""
	if status, got, err := send(http.MethodGet); err != nil || status != 200 || len(got) != len(body) || got == body {
		t.Errorf("damage: status %d, %d bytes, the right ones %v, %v", status, len(got), got == body, err)
	}
	s.Set(netfault.StoreFaults{Hang: 1, Hold: short})
	applied := whole.Load()
	for range 20 {
		if status, _, err := send(http.MethodPut); err == nil {
			t.Fatalf("hang: status %d", status)
		}
	}
	if n := whole.Load() - applied; n == 0 || n == 20 {
		t.Errorf("%d of 20 requests that hung were carried out: some should be, and some not", n)
	}
}

// TestHoldPut: an upload is carried out, and its writer is not told before the hold is released.
func TestHoldPut(t *testing.T) {
	var put atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err == nil && r.Method == http.MethodPut {
			put.Add(1)
		}
	}))
	defer server.Close()
	s := netfault.NewStore(t, "127.0.0.1:0", server.Listener.Addr().String(), 1)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, path string) error {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.Endpoint()+path, strings.NewReader("x"))
		if err != nil {
			return err
		}
		res, err := client.Do(req)
		if err != nil {
			return err
		}
		return res.Body.Close()
	}
	h := s.HoldPut("held")
	for method, path := range map[string]string{http.MethodGet: "/held", http.MethodPut: "/other"} {
		if err := send(method, path); err != nil {
			t.Fatal(err)
		}
	}
	answered := make(chan error, 1)
	go func() { answered <- send(http.MethodPut, "/held") }()
	<-h.Reached
	if h.Path != "/held" || put.Load() != 2 {
		t.Errorf("%s is held, %d objects were put", h.Path, put.Load())
	}
	select {
	case err := <-answered:
		t.Errorf("the writer was told: %v", err)
	default:
	}
	if err := send(http.MethodPut, "/next"); err != nil { // only one is held
		t.Error(err)
	}
	h.Release()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
