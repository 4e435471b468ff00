package test

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// recorder notes the pointers that a consumer fetches.
type recorder struct {
	rpc.ReadProxyService
	mu struct {
		sync.Mutex
		pointers [][]byte
	}
}

func (r *recorder) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	r.mu.Lock()
	for _, p := range req.GetPointers() {
		r.mu.pointers = append(r.mu.pointers, bytes.Clone(p))
	}
	r.mu.Unlock()
	if r.ReadProxyService == nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "only pointers are wanted")
	}
	return r.ReadProxyService.Fetch(ctx, req)
}

// pointersOf reads a category from its beginning to its end, the stream from one cell and the payloads from another, and returns the
// pointers. Without an address for payloads none is fetched, and the pointers are the first ones.
func pointersOf(t *testing.T, tr *rpc.Transport, category, streams, payloads string) [][]byte {
	t.Helper()
	r := &recorder{}
	if payloads != "" {
		r.ReadProxyService = discovery.New(tr, payloads, nil).ReadProxy()
	}
	c, err := consumer.New("", category, consumer.WithServices(discovery.New(tr, streams, nil).ReadStream(), r), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	for _, err := range c.Records(t.Context()) {
		if err != nil && payloads != "" {
			t.Fatal(err)
		}
	}
	return r.mu.pointers
}

// TestRegions: consumers of one region read another's category through the read proxies of their own. Each payload crosses once, and is
// read from its store once, however many regions read it. When the region is away, what was read is there still, and what was not
// is refused with its name and a hint; when it is back, it is read again.
func TestRegions(t *testing.T) {
	program.OneProcess(t, "it counts what the read proxy of each region does")
	up := func(name, listen string, args ...string) *program.Process {
		data := filepath.Join(t.TempDir(), name)
		return serve(t, nil, append([]string{"up", "--data", data, "--listen", listen, "--region", name}, args...)...)
	}
	dataA := filepath.Join(t.TempDir(), "a")
	startA := func(listen string) *program.Process {
		return serve(t, nil, "up", "--data", dataA, "--listen", listen, "--region", "a")
	}
	address := program.Reserve(t)
	a := startA(address)
	b, c := up("b", "127.0.0.1:0", "--regions", "a="+a.URL), up("c", "127.0.0.1:0", "--regions", "a="+a.URL)
	var input bytes.Buffer
	for i := range 40_000 {
		fmt.Fprintf(&input, "line %d of region a, %x\n", i, i*i*7919)
	}
	for _, category := range []string{"log", "other"} {
		produce(t, &cell{write: a.URL}, category, input.Bytes(), "--batch-bytes", "256KiB")
	}
	scrape := func(p *program.Process) program.Metrics {
		m, err := program.Scrape(t.Context(), p.URL)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	through := func(p *program.Process) {
		t.Helper()
		got := ok(t, nil, "tail", "log", "--server", a.URL, "--read-proxy", p.URL, "--from", "earliest", "--until-end", "-o", "raw")
		sameBytes(t, "through "+p.Name, got, input.Bytes())
	}
	const (
		blocks  = "scribe_readproxy_store_blocks_total"
		crossed = "scribe_readproxy_region_bytes_total"
		region  = `scribe_readproxy_cache_hits_total{tier="region"}`
	)
	through(b)
	first, there := scrape(b), scrape(a)
	if first[blocks] != 0 || first[region] == 0 || first[region] != there[blocks] || first[crossed] == 0 {
		t.Errorf("%v blocks from b's store, %v from region a, which read %v", first[blocks], first[region], there[blocks])
	}
	through(b)
	if again := scrape(b); again[crossed] != first[crossed] {
		t.Errorf("%v bytes crossed for the first consumer, %v for two", first[crossed], again[crossed])
	}
	through(c)
	if again := scrape(a); again[blocks] != there[blocks] || scrape(c)[crossed] != first[crossed] {
		t.Errorf("region a read %v blocks for one region, %v for two", there[blocks], again[blocks])
	}

	// Region b's own categories are its own.
	produce(t, &cell{write: b.URL}, "own", []byte("here\n"))
	if got := ok(t, nil, "tail", "own", "--server", b.URL, "--from", "earliest", "--until-end", "-o", "raw"); string(got) != "here\n" {
		t.Errorf("read %q", got)
	}

	tr := rpc.NewTransport(nil)
	defer tr.Close()
	known, unknown := pointersOf(t, tr, "log", a.URL, b.URL), pointersOf(t, tr, "other", a.URL, a.URL)
	proxy := rpc.NewReadProxyClient(tr, b.URL)
	fetch := func(category string, pointer []byte) *scribev1.Payload {
		t.Helper()
		res, err := proxy.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{pointer}, Category: category})
		if err != nil {
			t.Fatal(err)
		}
		return res.GetPayloads()[0]
	}
	a.Kill()
	for _, p := range known {
		if got := fetch("log", p); got.GetError() != nil {
			t.Fatalf("what was read before is not served: %v", got.GetError())
		}
	}
	for range 10 {
		begin := time.Now()
		e := fetch("other", unknown[0]).GetError()
		if e.GetReason() != scribev1.Reason_REASON_NO_BACKEND || e.GetRetryAfter().AsDuration() <= 0 || !strings.Contains(e.GetMessage(), `region "a"`) {
			t.Fatalf("got %v", e)
		}
		if took := time.Since(begin); took > waitLimit/4 {
			t.Errorf("it took %v to say so", took)
		}
	}
	if m := scrape(b); m["scribe_readproxy_regions_away"] != 1 || m[`scribe_readproxy_payload_errors_total{reason="no_backend"}`] == 0 {
		t.Error("the metrics do not show that the region is away")
	}
	a = startA(address)
	deadline := time.After(waitLimit)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for fetch("other", unknown[0]).GetError() != nil {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("region a is back, and not read")
		}
	}
	through(b)
}
