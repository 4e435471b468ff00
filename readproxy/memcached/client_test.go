package memcached

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"scribe/internal/base/config"
	"scribe/readproxy/memcached/memcachedtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t testing.TB, change func(*Config), servers ...string) *Client {
	t.Helper()
	cfg := config.Defaults[Config]()
	cfg.Servers, cfg.Timeout = servers, 10*time.Second
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func value(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return b
}

func set(t testing.TB, c *Client, key string, v []byte) {
	t.Helper()
	if err := c.Set(t.Context(), key, v, time.Hour); err != nil {
		t.Fatal(err)
	}
}

func get(t testing.TB, c *Client, key string, n int) ([]byte, bool) {
	t.Helper()
	dst := make([]byte, n)
	found, err := c.Get(t.Context(), key, dst)
	if err != nil {
		t.Fatal(err)
	}
	return dst, found
}

func TestValues(t *testing.T) {
	s := memcachedtest.Start(t)
	c := newClient(t, func(c *Config) { c.ItemBytes, c.ValueBytes = 1024, 100_000 }, s.Addr)
	for _, n := range []int{0, 1, 1023, 1024, 1025, 2048, 99_999, 100_000} {
		key, want := fmt.Sprint("key.", n), value(n)
		if _, found := get(t, c, key, n); found {
			t.Fatalf("%d bytes were there before", n)
		}
		set(t, c, key, want)
		if got, found := get(t, c, key, n); !found || !bytes.Equal(got, want) {
			t.Fatalf("%d bytes: found %v, equal %v", n, found, bytes.Equal(got, want))
		}
	}
	// A value is there with all of its items, or not at all.
	s.DropItems("/1")
	if _, found := get(t, c, "key.2048", 2048); found {
		t.Error("found although an item is gone")
	}
	if _, found := get(t, c, "key.1024", 1024); !found {
		t.Error("a value of one item is gone, too")
	}
	if err := c.Delete(t.Context(), "key.99999", 99_999); err != nil {
		t.Error(err)
	}
	if err := c.Delete(t.Context(), "key.none", 0); err != nil {
		t.Error(err)
	}
	if _, found := get(t, c, "key.99999", 99_999); found {
		t.Error("it was deleted")
	}
	// What is too large is refused without a word to the server, and not asked for.
	if err := c.Set(t.Context(), "key", value(100_001), time.Hour); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	gets := s.CountCalls("get")
	if _, found := get(t, c, "key", 100_001); found || s.CountCalls("get") != gets {
		t.Error("it was asked for")
	}
	if n := s.CountConnections(); n != 1 {
		t.Errorf("%d connections for calls one after another", n)
	}
	// A server that takes less than it should says so, and goes on.
	s.LimitItems(1000)
	if err := c.Set(t.Context(), "key", value(3000), time.Hour); !errors.Is(err, ErrTooLarge) {
		t.Errorf("got %v", err)
	}
	set(t, c, "key", value(10))
}

func TestKeys(t *testing.T) {
	s := memcachedtest.Start(t)
	c := newClient(t, nil, s.Addr)
	for _, key := range []string{"", "a b", "a\r\nflush_all", "a/0", "ä", strings.Repeat("k", maxKey)} {
		if err := c.Set(t.Context(), key, nil, time.Hour); err == nil {
			t.Errorf("%q was taken", key)
		}
		if _, err := c.Get(t.Context(), key, nil); err == nil {
			t.Errorf("%q was taken", key)
		}
	}
	if s.CountItems() != 0 {
		t.Error("something was stored")
	}
}

// Each key is on one server, all of its items too; servers share the keys, and when one goes only its own are affected.
func TestServers(t *testing.T) {
	servers := []*memcachedtest.Server{memcachedtest.Start(t), memcachedtest.Start(t), memcachedtest.Start(t)}
	addrs := []string{servers[0].Addr, servers[1].Addr, servers[2].Addr}
	c := newClient(t, func(c *Config) { c.ItemBytes, c.ValueBytes = 1024, 10_000 }, addrs...)
	other := newClient(t, func(c *Config) { c.ItemBytes, c.ValueBytes = 1024, 10_000 }, addrs[2], addrs[0], addrs[1])
	const keys = 300
	want := map[string][]byte{}
	for i := range keys {
		key := fmt.Sprint("key.", i)
		want[key] = value(3000)
		set(t, c, key, want[key])
	}
	for _, s := range servers {
		if n := s.CountItems(); n < 3*50 || n > 3*150 || n%3 != 0 {
			t.Errorf("%d items", n)
		}
	}
	lost := servers[1].CountItems() / 3
	servers[1].Stop()
	found, failed := 0, 0
	for key, v := range want {
		dst := make([]byte, len(v))
		ok, err := other.Get(t.Context(), key, dst)
		switch {
		case err != nil:
			failed++
		case ok && bytes.Equal(dst, v):
			found++
		}
	}
	if failed != lost || found != keys-lost {
		t.Errorf("%d found and %d failed, %d were on the server that ended", found, failed, lost)
	}
}

// A server that hangs costs its callers the timeout a few times, then nothing; when it is back it is used again.
func TestServerHangs(t *testing.T) {
	s := memcachedtest.Start(t)
	c := newClient(t, func(c *Config) { c.Connections = 4 }, s.Addr)
	set(t, c, "key", []byte("value"))
	s.Hang(true)
	patience := c.cfg.Timeout
	c.cfg.Timeout = 20 * time.Millisecond
	dst := make([]byte, 5)
	began, away := time.Now(), 0
	for range 100 {
		_, err := c.Get(t.Context(), "key", dst)
		if err == nil {
			t.Fatal("a hanging server answered")
		}
		if errors.Is(err, ErrUnavailable) {
			away++
		}
	}
	// After each pause one call is made to try.
	if tries := trip + int(time.Since(began)/firstPause); away < 100-tries || c.UnavailableServers() != 1 {
		t.Errorf("%d calls were spared, %d servers are away", away, c.UnavailableServers())
	}
	s.Hang(false)
	c.cfg.Timeout = patience
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if found, err := c.Get(t.Context(), "key", dst); err == nil && found && string(dst) == "value" {
			break
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it is never asked again")
		}
	}
	if c.UnavailableServers() != 0 {
		t.Error("it is still taken for away")
	}
}

func TestConnectionsAreBounded(t *testing.T) {
	s := memcachedtest.Start(t)
	c := newClient(t, func(c *Config) { c.Connections = 3 }, s.Addr)
	set(t, c, "key", []byte("value"))
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			for range 20 {
				if got, found := get(t, c, "key", 5); !found || string(got) != "value" {
					t.Errorf("%q, %v", got, found)
				}
			}
		})
	}
	all.Wait()
	if n := s.CountConnections(); n > 3 {
		t.Errorf("%d connections", n)
	}
	// Connections that broke are replaced.
	s.CutConnections()
	dst := make([]byte, 5)
	for try := 0; ; try++ {
		if found, err := c.Get(t.Context(), "key", dst); err == nil && found {
			break
		}
		if try == trip {
			t.Fatal("it does not connect again")
		}
	}
	c.Close()
	if _, err := c.Get(t.Context(), "key", dst); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
}

// Having every connection in use, and callers who give up, say nothing about a server.
func TestBusyIsNotAway(t *testing.T) {
	s := memcachedtest.Start(t)
	c := newClient(t, func(c *Config) { c.Connections = 1 }, s.Addr)
	s.Hang(true)
	ctx, cancel := context.WithCancel(t.Context())
	var all, quit sync.WaitGroup
	all.Go(func() { _, _ = c.Get(t.Context(), "key", nil) }) // has the connection
	for range 10 {
		quit.Go(func() {
			if _, err := c.Get(ctx, "key", nil); err == nil {
				t.Error("no error")
			}
		})
	}
	cancel()
	quit.Wait() // or there is an answer before they look
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for s.CountConnections() == 0 {
		<-tick.C
	}
	s.Hang(false)
	all.Wait()
	if c.UnavailableServers() != 0 {
		t.Error("it is taken for away")
	}
}

// Whatever a server says, the client gives an error or what it read, and is not confused afterwards.
func TestLies(t *testing.T) {
	s := memcachedtest.Start(t)
	for name, lie := range map[string]func([]byte) []byte{
		"longer":      func([]byte) []byte { return []byte("VALUE scribe:key/0 0 6\r\nvalues\r\nEND\r\n") },
		"shorter":     func([]byte) []byte { return []byte("VALUE scribe:key/0 0 4\r\nvalu\r\nEND\r\n") },
		"enormous":    func([]byte) []byte { return []byte("VALUE scribe:key/0 0 99999999999999\r\nvalue\r\nEND\r\n") },
		"negative":    func([]byte) []byte { return []byte("VALUE scribe:key/0 0 -5\r\nvalue\r\nEND\r\n") },
		"another key": func([]byte) []byte { return []byte("VALUE scribe:other/0 0 5\r\nvalue\r\nEND\r\n") },
		"twice":       func(b []byte) []byte { return append(bytes.TrimSuffix(b, []byte("END\r\n")), b...) },
		"no end":      func([]byte) []byte { return []byte("VALUE scribe:key/0 0 5\r\nvalueEND\r\n") },
		"an error":    func([]byte) []byte { return []byte("SERVER_ERROR out of memory\r\n") },
		"a long line": func([]byte) []byte { return bytes.Repeat([]byte("x"), 100_000) },
		"no line end": func([]byte) []byte { return []byte("END\n") },
	} {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, nil, s.Addr)
			set(t, c, "key", []byte("value"))
			s.ReplaceAnswers(lie)
			_, err := c.Get(t.Context(), "key", make([]byte, 5))
			if !errors.Is(err, ErrProtocol) {
				t.Errorf("got %v", err)
			}
			s.ReplaceAnswers(nil)
			if got, found := get(t, c, "key", 5); !found || string(got) != "value" {
				t.Errorf("afterwards %q, %v", got, found)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	_, err := New(Config{Servers: []string{"nowhere", "a:1", "a:1"}, Prefix: "a b", ItemBytes: 1})
	for _, want := range []string{"nowhere", "twice", "Timeout", "Connections", "ItemBytes", "ValueBytes", "Prefix"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	cfg := config.Defaults[Config]()
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "Servers") {
		t.Errorf("got %v", err)
	}
}

// Two clients at the same keys, with values that follow from their keys: what is found is what was stored.
func TestTruth(t *testing.T) {
	s := memcachedtest.Start(t)
	clients := []*Client{
		newClient(t, func(c *Config) { c.ItemBytes, c.ValueBytes = 1024, 10_000 }, s.Addr),
		newClient(t, func(c *Config) { c.ItemBytes, c.ValueBytes = 1024, 10_000 }, s.Addr),
	}
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			c := clients[rapid.IntRange(0, 1).Draw(t, "client")]
			n := rapid.IntRange(0, 5000).Draw(t, "length")
			key, want := fmt.Sprint("truth.", n), bytes.Repeat([]byte{byte(n)}, n)
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				if err := c.Set(context.Background(), key, want, time.Hour); err != nil {
					t.Fatal(err)
				}
			case 1:
				if err := c.Delete(context.Background(), key, n); err != nil {
					t.Fatal(err)
				}
			case 2:
				s.DropItems(fmt.Sprint("/", n%3))
			default:
				dst := make([]byte, n)
				if found, err := c.Get(context.Background(), key, dst); err != nil || found && !bytes.Equal(dst, want) {
					t.Fatalf("found %v, %v", found, err)
				}
			}
		}
	})
}

func FuzzReadValues(f *testing.F) {
	f.Add([]byte("VALUE k/0 0 3\r\nabc\r\nVALUE k/1 0 2\r\nde\r\nEND\r\n"))
	f.Add([]byte("VALUE k/1 0 2\r\nde\r\nEND\r\n"))
	f.Add([]byte("END\r\n"))
	f.Add([]byte("VALUE k/0 0 4294967296\r\n"))
	f.Add([]byte("SERVER_ERROR busy\r\n"))
	f.Fuzz(func(t *testing.T, answer []byte) {
		value := make([]byte, 5, 8)
		copy(value[5:8], "end")
		n, err := readValues(bufio.NewReader(bytes.NewReader(answer)), []string{"k/0", "k/1"}, [][]byte{value[0:3:3], value[3:5:5]})
		if n < 0 || n > 2 || err != nil && n != 0 {
			t.Fatalf("%d values, %v", n, err)
		}
		if string(value[5:8]) != "end" {
			t.Fatal("it was read behind its place")
		}
		// All of the value is there only where the answer has each item in whole.
		for _, item := range [][]byte{value[0:3:3], value[3:5:5]} {
			if n == 2 && !bytes.Contains(answer, append(item, "\r\n"...)) {
				t.Fatalf("%q is not in %q", item, answer)
			}
		}
	})
}

// FuzzServer answers anything to a call: it ends with an error or with what the protocol says, and the next call is not confused.
func FuzzServer(f *testing.F) {
	f.Add([]byte("VALUE scribe:key/0 0 5\r\nvalue\r\nEND\r\n"), byte(0))
	f.Add([]byte("STORED\r\n"), byte(1))
	f.Add([]byte("SERVER_ERROR object too large for cache\r\n"), byte(1))
	f.Add([]byte("NOT_FOUND\r\n"), byte(2))
	f.Add([]byte("END\r\nEND\r\n"), byte(0))
	f.Fuzz(func(t *testing.T, answer []byte, call byte) {
		c := newClient(t, nil, "nowhere:1")
		defer c.Close()
		var all sync.WaitGroup
		defer all.Wait()
		c.dial = func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			all.Go(func() {
				defer func() { _ = far.Close() }()
				all.Go(func() { _, _ = io.Copy(io.Discard, far) })
				_, _ = far.Write(answer)
			})
			return near, nil
		}
		for range 2 {
			switch call % 3 {
			case 0:
				dst := make([]byte, 5)
				if found, err := c.Get(t.Context(), "key", dst); found && (err != nil || !bytes.Contains(answer, dst)) {
					t.Errorf("found %q in %q, %v", dst, answer, err)
				}
			case 1:
				if err := c.Set(t.Context(), "key", []byte("value"), time.Hour); err == nil && !bytes.HasPrefix(answer, []byte("STORED\r\n")) {
					t.Errorf("stored, the server says %q", answer)
				}
			default:
				if err := c.Delete(t.Context(), "key", 5); err == nil && !bytes.HasPrefix(answer, []byte("DELETED\r\n")) && !bytes.HasPrefix(answer, []byte("NOT_FOUND\r\n")) {
					t.Errorf("deleted, the server says %q", answer)
				}
			}
		}
	})
}

// A dial that fails is a failure of the server.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(t, nil, "127.0.0.1:1")
		c.dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no route") }
		for i := range trip + 1 {
			_, err := c.Get(t.Context(), "key", nil)
			if err == nil || errors.Is(err, ErrUnavailable) != (i == trip) {
				t.Fatalf("call %d: %v", i, err)
			}
		}
	})
}
