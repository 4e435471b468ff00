package memcached

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"scribe/test/program"
)

// cell is a cell with a memcached in front of its store, and what is in its category.
type cell struct {
	*program.Process
	t        *testing.T
	data     string
	cache    *memcached
	messages []byte
}

// configure writes what its read proxies have in common: memory keeps nothing, so that every read is one of memcached.
func (c *cell) configure() string {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "readproxy.yaml")
	text := fmt.Sprintf(`read_proxy: {memcached: {servers: [%q], timeout: 3s}, rules: [{match: "*", memory: never}]}`, c.cache.addr)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return file
}

// newCell fills a category with lines that do not compress, several payloads of them, and reads them once, which fills memcached.
func newCell(t *testing.T, cache *memcached) *cell {
	t.Helper()
	c := &cell{t: t, data: t.TempDir(), cache: cache}
	c.Process = program.Serve(t, nil, "up", "--data", c.data, "--listen", "127.0.0.1:0", "--config", c.configure())
	noise := make([]byte, 90)
	for range 60_000 {
		_, _ = rand.Read(noise)
		c.messages = append(base64.StdEncoding.AppendEncode(c.messages, noise), '\n')
	}
	program.OK(t, bytes.NewReader(c.messages), "produce", "noise", "--server", c.URL)
	return c
}

// read reads the category through a read proxy: everything arrives, once, as it was written. It returns what the proxy has counted.
func (c *cell) read(url string) program.Metrics {
	c.t.Helper()
	got := program.OK(c.t, nil, "tail", "noise", "--server", url, "--from", "earliest", "--until-end", "-o", "raw")
	if !bytes.Equal(got, c.messages) {
		c.t.Fatalf("%d bytes were read, %d written, or they are not the same", len(got), len(c.messages))
	}
	m, err := program.Scrape(c.t.Context(), url)
	if err != nil {
		c.t.Fatal(err)
	}
	return m
}

// another starts a read proxy of the cell that has fetched nothing yet.
func (c *cell) another() *program.Process {
	c.t.Helper()
	return program.Serve(c.t, nil, "serve", "--roles", "readproxy", "--control", c.URL, "--blob-path", filepath.Join(c.data, "blobs"),
		"--data", c.t.TempDir(), "--listen", "127.0.0.1:0", "--config", c.configure())
}

const (
	hits   = `scribe_readproxy_cache_hits_total{tier="memcached"}`
	misses = `scribe_readproxy_cache_misses_total{tier="memcached"}`
	stored = `scribe_readproxy_memcached_fills_total{outcome="stored"}`
	blocks = `scribe_readproxy_store_blocks_total`
	wrong  = `scribe_readproxy_damaged_blocks_total{tier="memcached"}`
	kept   = `scribe_readproxy_pushed_blocks_total{outcome="kept"}`
	failed = `scribe_readproxy_memcached_failures_total`
	away   = `scribe_readproxy_memcached_servers_away`
)

// fill reads once, and waits until memcached has what was read.
func (c *cell) fill() (payloads float64) {
	c.t.Helper()
	payloads = c.read(c.URL)[blocks]
	await(c.t, func() bool {
		m, err := program.Scrape(c.t.Context(), c.URL)
		return err == nil && m[stored] == payloads
	})
	return payloads
}

// What one read proxy has fetched, another one, a restarted one, and the same one again get from memcached.
func TestShared(t *testing.T) {
	c := newCell(t, start(t))
	payloads := c.fill()
	if payloads < 2 || c.cache.stat("curr_items") < int(payloads) {
		t.Fatalf("%v payloads are %d items", payloads, c.cache.stat("curr_items"))
	}
	if m := c.read(c.URL); m[hits] != payloads || m[blocks] != payloads {
		t.Errorf("the same proxy: %v hits, %v blocks from the store, of %v", m[hits], m[blocks], payloads)
	}
	other := c.another()
	if m := c.read(other.URL); m[hits] != payloads || m[blocks] != 0 || m.Sum(failed) != 0 {
		t.Errorf("another proxy: %v hits, %v blocks from the store, of %v", m[hits], m[blocks], payloads)
	}
	// A category that does not want it is read from the store.
	program.OK(t, nil, "category", "update", "noise", "--cache", "memcached=never", "--server", c.URL)
	await(t, func() bool {
		before := c.read(other.URL)
		m := c.read(other.URL)
		return m[blocks] > before[blocks] && m[hits] == before[hits]
	})
}

// What is written while somebody reads the tail is in memcached before anybody asks for it: no read proxy reads the store.
func TestPushed(t *testing.T) {
	c := newCell(t, start(t))
	c.fill()
	write := func() {
		t.Helper()
		line := fmt.Appendf(nil, "line %d\n", len(c.messages))
		program.OK(t, bytes.NewReader(line), "produce", "noise", "--server", c.URL)
		c.messages = append(c.messages, line...)
	}
	scrape := func() program.Metrics {
		t.Helper()
		m, err := program.Scrape(t.Context(), c.URL)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	await(t, func() bool { // batchers ask what is wanted when they write
		write()
		return scrape()[kept] > 0
	})
	before := c.read(c.URL)
	for range 5 {
		write()
	}
	await(t, func() bool { m := scrape(); return m[kept] >= before[kept]+5 && m[stored] >= before[stored]+5 })
	if m := c.read(c.URL); m[blocks] != before[blocks] {
		t.Errorf("%v blocks were read from the store", m[blocks]-before[blocks])
	}
	other := c.another()
	if m := c.read(other.URL); m[blocks] != 0 || m.Sum(failed) != 0 {
		t.Errorf("another proxy: %v blocks were read from the store", m[blocks])
	}
}

// While memcached does anything but what it should, and afterwards, consumers get everything.
func TestTrouble(t *testing.T) {
	for _, tc := range []struct {
		name  string
		args  []string
		spoil func(*testing.T, *cell)
		check func(t *testing.T, m program.Metrics, payloads float64)
		heal  func(*cell)
	}{
		{"killed", nil, func(_ *testing.T, c *cell) { c.cache.Kill() }, func(t *testing.T, m program.Metrics, payloads float64) {
			t.Helper()
			if m[blocks] != payloads || m.Sum(failed) == 0 {
				t.Errorf("%v blocks from the store, %v failures", m[blocks], m.Sum(failed))
			}
		}, func(c *cell) { c.cache.run() }},
		{"hung", nil, func(_ *testing.T, c *cell) { c.cache.Pause() }, func(t *testing.T, m program.Metrics, payloads float64) {
			t.Helper()
			if m[blocks] != payloads || m[away] != 1 {
				t.Errorf("%v blocks from the store, %v servers away", m[blocks], m[away])
			}
		}, func(c *cell) { c.cache.Resume() }},
		{"restarted", nil, func(_ *testing.T, c *cell) { c.cache.Kill(); c.cache.run() }, func(t *testing.T, m program.Metrics, payloads float64) {
			t.Helper()
			if m[blocks] != payloads || m[misses] != payloads {
				t.Errorf("%v blocks from the store, %v misses", m[blocks], m[misses])
			}
		}, func(*cell) {}},
		{"wrong bytes", nil, func(t *testing.T, c *cell) {
			t.Helper()
			if n := c.cache.spoil(); n == 0 {
				t.Fatal("nothing was spoiled")
			}
		}, func(t *testing.T, m program.Metrics, payloads float64) {
			t.Helper()
			if m[wrong] != payloads || m[blocks] != payloads || m[hits] != 0 {
				t.Errorf("%v damaged, %v blocks from the store, %v hits", m[wrong], m[blocks], m[hits])
			}
		}, func(*cell) {}},
		{"full", []string{"-m", "3"}, nil, func(t *testing.T, m program.Metrics, payloads float64) {
			t.Helper()
			if m[hits]+m[blocks] != payloads || m[blocks] == 0 {
				t.Errorf("%v hits and %v blocks from the store of %v", m[hits], m[blocks], payloads)
			}
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCell(t, start(t, tc.args...))
			if tc.spoil == nil {
				payloads := c.read(c.URL)[blocks]
				tc.check(t, c.read(c.another().URL), payloads)
				return
			}
			payloads := c.fill()
			tc.spoil(t, c)
			proxy := c.another()
			tc.check(t, c.read(proxy.URL), payloads)
			tc.heal(c)
			// It is used again: what was read meanwhile is kept, what was spoiled is replaced.
			await(t, func() bool {
				before := c.read(proxy.URL)
				return c.read(proxy.URL)[hits] == before[hits]+payloads
			})
		})
	}
}
