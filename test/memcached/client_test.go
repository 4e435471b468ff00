package memcached

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"scribe/internal/base/config"
	client "scribe/readproxy/memcached"
	"scribe/test/program"
)

func newClient(t *testing.T, change func(*client.Config), servers ...*memcached) *client.Client {
	t.Helper()
	cfg := config.Defaults[client.Config]()
	cfg.Timeout = program.WaitLimit / 4
	for _, s := range servers {
		cfg.Servers = append(cfg.Servers, s.addr)
	}
	if change != nil {
		change(&cfg)
	}
	c, err := client.New(cfg)
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

// found returns whether a value is there, and fails when what is there is not the value.
func found(t *testing.T, c *client.Client, key string, want []byte) bool {
	t.Helper()
	dst := make([]byte, len(want))
	ok, err := c.Get(t.Context(), key, dst)
	if err != nil {
		t.Fatalf("get %s: %v", key, err)
	}
	if ok && !bytes.Equal(dst, want) {
		t.Fatalf("%s has other bytes than it was given", key)
	}
	return ok
}

// Values of every size around the bounds, over three servers: kept, found, deleted, and gone when their time is over.
func TestValues(t *testing.T) {
	servers := []*memcached{start(t), start(t), start(t)}
	c := newClient(t, nil, servers...)
	values := map[string][]byte{}
	for _, n := range []int{0, 1, 100, 999_999, 1_000_000, 1_000_001, 2_000_000, 5_000_000, 16 << 20} {
		for i := range 3 {
			values[fmt.Sprintf("key.%d.%d", n, i)] = value(n)
		}
	}
	for key, v := range values {
		if found(t, c, key, v) {
			t.Fatalf("%s was there before", key)
		}
	}
	for key, v := range values {
		if err := c.Set(t.Context(), key, v, time.Hour); err != nil {
			t.Fatalf("set %s: %v", key, err)
		}
	}
	missing := 0
	for key, v := range values {
		if !found(t, c, key, v) {
			missing++ // a server has 64 MiB, and what is large may push out what was before it
		}
	}
	if missing > len(values)/2 {
		t.Errorf("%d of %d values are not there", missing, len(values))
	}
	for _, s := range servers {
		if s.stat("curr_items") == 0 {
			t.Error("one of the servers has nothing")
		}
	}
	small := []byte("small")
	if err := c.Set(t.Context(), "again", small, time.Hour); err != nil || !found(t, c, "again", small) {
		t.Fatal(err)
	}
	if err := c.Delete(t.Context(), "again", len(small)); err != nil || found(t, c, "again", small) {
		t.Errorf("it is still there, %v", err)
	}
	if err := c.Set(t.Context(), "short", small, time.Second); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return !found(t, c, "short", small) })
}

// A server without room gives up old values, some of them only in part: what is found is whole.
func TestFull(t *testing.T) {
	s := start(t, "-m", "8")
	c := newClient(t, func(c *client.Config) { c.ItemBytes = 200_000 }, s)
	values := map[string][]byte{}
	for i := range 40 {
		key := fmt.Sprint("key.", i)
		values[key] = value(1_000_000)
		if err := c.Set(t.Context(), key, values[key], time.Hour); err != nil {
			t.Logf("set %s: %v", key, err) // out of memory is an answer, too
		}
	}
	there := 0
	for key, v := range values {
		if found(t, c, key, v) {
			there++
		}
	}
	if there == 0 || there == len(values) {
		t.Errorf("%d of %d values are there", there, len(values))
	}
	if s.stat("evictions") == 0 {
		t.Error("it was not full")
	}
}

// A server that takes smaller items than it should says so, and the connection goes on.
func TestItemsTooLarge(t *testing.T) {
	s := start(t)
	c := newClient(t, func(c *client.Config) { c.ItemBytes = 4_000_000 }, s)
	large, small := value(3_500_000), value(1000)
	const times = 20
	for range times {
		if err := c.Set(t.Context(), "large", large, time.Hour); !errors.Is(err, client.ErrTooLarge) {
			t.Errorf("got %v", err)
		}
		if err := c.Set(t.Context(), "small", small, time.Hour); err != nil || !found(t, c, "small", small) {
			t.Errorf("afterwards: %v", err)
		}
	}
	if n := s.stat("total_connections"); n >= times { // the client's, those of this test, and its own
		t.Errorf("%d connections were made", n)
	}
}

// Killed, it is missed quickly; hung, it costs the timeout a few times; back, it is used again.
func TestOutages(t *testing.T) {
	for name, outage := range map[string]struct{ begin, end func(*memcached) }{
		"killed": {func(s *memcached) { s.Kill() }, func(s *memcached) { s.run() }},
		"hung":   {func(s *memcached) { s.Pause() }, func(s *memcached) { s.Resume() }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t)
			c := newClient(t, func(c *client.Config) { c.Timeout = 50 * time.Millisecond }, s)
			v := value(1_500_000)
			await(t, func() bool { return c.Set(t.Context(), "key", v, time.Hour) == nil })
			outage.begin(s)
			away := 0
			begin := time.Now()
			for range 1000 {
				ok, err := c.Get(t.Context(), "key", make([]byte, len(v)))
				if ok || err == nil {
					t.Fatalf("found %v, %v", ok, err)
				}
				if errors.Is(err, client.ErrUnavailable) {
					away++
				}
			}
			if away < 900 || c.UnavailableServers() != 1 || time.Since(begin) > program.WaitLimit/4 {
				t.Errorf("%d of 1000 calls were spared, %d servers are away, it took %v", away, c.UnavailableServers(), time.Since(begin))
			}
			outage.end(s)
			await(t, func() bool {
				return c.Set(t.Context(), "key", v, time.Hour) == nil && func() bool {
					dst := make([]byte, len(v))
					ok, err := c.Get(t.Context(), "key", dst)
					return err == nil && ok && bytes.Equal(dst, v)
				}()
			})
			if c.UnavailableServers() != 0 {
				t.Error("it is still taken for away")
			}
		})
	}
}
