package readproxy

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/proto"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/role/admission"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
)

// everywhere is a store in which every blob has the same bytes at every position.
type everywhere struct {
	blob.Store
	data    []byte
	reading atomic.Int64 // bytes
	release chan struct{}
}

func (s *everywhere) ReadAt(ctx context.Context, _ string, dst []byte, _ int64) error {
	s.reading.Add(int64(len(dst)))
	defer s.reading.Add(-int64(len(dst)))
	copy(dst, s.data)
	select {
	case <-s.release:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// another is a pointer to the same bytes in a blob of its own.
func (s *everywhere) another() []byte {
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecNone, BlockLen: uint32(len(s.data)), BlockRawLen: uint32(len(s.data)),
		BlockCRC: record.CRC(s.data), Length: uint32(len(s.data)), Frames: 1, Messages: 1, MinTime: 1, MaxTime: 1,
	}
	return pointer.Append(nil, &p)
}

// huge is a frame of n bytes of noise.
func huge(t testing.TB, n int) []byte {
	t.Helper()
	noise := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{1})
	_, _ = rng.Read(noise)
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "a", BaseTime: 1}); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload(noise); err != nil {
		t.Fatal(err)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// heap is what is alive.
func heap() int64 {
	runtime.GC()
	runtime.GC() // pools keep what they hold for one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// slowReaders are connections that ask for a payload and read nothing of the answer.
type slowReaders struct {
	t        testing.TB
	listener *memhttp.Listener
	conns    []net.Conn
}

// serveOver serves a harness's server over memory.
func serveOver(t testing.TB, s *Server) (*slowReaders, rpc.ReadProxyService) {
	t.Helper()
	mux := http.NewServeMux()
	services := rpc.Services{ReadProxy: s, AdmitFetch: s.Admit}
	services.Register(mux)
	server := rpc.NewServer(mux, nil)
	r := &slowReaders{t: t, listener: memhttp.Listen()}
	server.Serve(r.listener)
	transport := rpc.NewTransport(r.listener.Dial)
	t.Cleanup(func() {
		transport.Close()
		r.close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := server.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return r, rpc.NewReadProxyClient(transport, "http://x")
}

func (r *slowReaders) ask(pointers ...[]byte) net.Conn {
	r.t.Helper()
	body, err := proto.Marshal(&scribev1.FetchRequest{Pointers: pointers, Category: "a"})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := r.listener.Dial(r.t.Context(), "", "")
	if err != nil {
		r.t.Fatal(err)
	}
	head := fmt.Sprintf("POST /scribe.v1.ReadProxyService/Fetch HTTP/1.1\r\nHost: x\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n", len(body))
	if _, err := c.Write(append([]byte(head), body...)); err != nil {
		r.t.Fatal(err)
	}
	r.conns = append(r.conns, c)
	return c
}

func (r *slowReaders) close() {
	for _, c := range r.conns {
		_ = c.Close()
	}
	r.conns = nil
}

// Huge payloads, a store that does not get on, more askers than there is room for, and clients that do not read what they asked for:
// what is alive stays within the bounds, whoever does not fit is told so at once with a hint, and in the end everything is given back.
func TestMemoryUnderLoad(t *testing.T) {
	const (
		size                       = 8 << 20
		cacheB, fetchB, reqB       = 4 * size, 4 * size, 6 * size
		slack                      = 2 * size // one block being put together, and everything else
		askers                     = 60
		bound                      = cacheB + 2*fetchB + reqB + slack
		unbounded            int64 = askers * size
	)
	if unbounded < bound*2 {
		t.Fatal("the test shows nothing")
	}
	s := &everywhere{data: huge(t, size), release: make(chan struct{})}
	h := newHarnessWith(t, func(d *Deps) { d.Blobs = func(string) (blob.Store, error) { return s, nil } }, func(c *Config) {
		c.CacheBytes, c.RequestBytes, c.QueueTimeout = cacheB, reqB, 50*time.Millisecond
		c.RequestsPerSecond, c.Queue = 0, admission.ControllerConfig{Target: 1, Least: 100, Most: 100}
	})
	h.server.cfg.FetchBytes, h.server.fetchBytes = fetchB, semaphore.NewWeighted(fetchB)
	readers, _ := serveOver(t, h.server)
	before := heap()
	check := func(when string) {
		t.Helper()
		if grown := heap() - before; grown > bound {
			t.Errorf("%s: %d MB are alive, the bounds are %d MB in all", when, grown>>20, int64(bound)>>20)
		}
	}

	// The store does not get on: some wait for it, the others are refused quickly.
	var all sync.WaitGroup
	var served, refused atomic.Int64
	fetch := func() {
		begin := time.Now()
		res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{s.another()}, Category: "a"})
		if err == nil && res.GetPayloads()[0].GetError() != nil {
			err = rpc.FromInfo(res.GetPayloads()[0].GetError())
		}
		if err == nil {
			served.Add(1)
			return
		}
		refused.Add(1)
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 || time.Since(begin) > patience/3 {
			t.Errorf("refused after %v with %v", time.Since(begin), err)
		}
	}
	for range askers {
		all.Go(fetch)
	}
	h.eventually(func() bool { return refused.Load() >= askers-fetchB/size && s.reading.Load() > 0 })
	check("with a store that hangs")
	close(s.release)
	all.Wait()
	if served.Load() == 0 {
		t.Error("nothing was served")
	}

	// Clients that do not read: their answers are charged until they are gone.
	h.eventually(func() bool {
		if h.metric("queue_requests") < 2 { // more would only be refused
			readers.ask(s.another())
		}
		return h.metric("answer_bytes") > reqB-size-size/2
	})
	for range 20 {
		all.Go(fetch)
	}
	all.Wait()
	check("with clients that do not read")
	if n := h.metric("request_bytes"); n > reqB {
		t.Errorf("%v bytes are charged", n)
	}
	late := refused.Load()
	fetch()
	if refused.Load() != late+1 {
		t.Error("one more was served although all bytes are taken")
	}
	readers.close()
	h.eventually(func() bool {
		return h.metric("request_bytes") == 0 && h.metric("answer_bytes") == 0 && h.metric("body_bytes") == 0
	})
	fetch()
	if refused.Load() != late+1 {
		t.Error("it is refused although everything was given back")
	}
}

// A block that goes to many at the same time is in memory once, and charged once.
func TestFanOutIsChargedOnce(t *testing.T) {
	const size = 1 << 20
	s := &everywhere{data: huge(t, size), release: make(chan struct{})}
	close(s.release)
	h := newHarnessWith(t, func(d *Deps) { d.Blobs = func(string) (blob.Store, error) { return s, nil } }, func(c *Config) {
		c.RequestBytes, c.RequestsPerSecond = 4*size, 0
	})
	readers, client := serveOver(t, h.server)
	tail := s.another()
	const many = 30
	for range many {
		readers.ask(tail)
	}
	h.eventually(func() bool { return h.metric("payloads_total") == many })
	h.eventually(func() bool { return h.metric("request_bytes") == h.metric("answer_bytes") })
	if n := h.metric("answer_bytes"); n < size || n > size+1000 {
		t.Errorf("%v bytes are charged for the answers", n)
	}
	// There is room for others, whose answers arrive.
	res, err := client.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{s.another()}, Category: "a"})
	if err != nil || len(res.GetPayloads()[0].GetData()) == 0 {
		t.Fatal(err)
	}
	for _, c := range readers.conns {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.CopyN(io.Discard, c, size); err != nil {
			t.Fatal(err)
		}
	}
	readers.close()
	h.eventually(func() bool { return h.metric("request_bytes") == 0 })
}

// Requests that are large themselves are refused before they are read.
func TestBodiesAreBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestBytes = 4 << 20 })
	_, client := serveOver(t, h.server)
	_, err := client.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{make([]byte, 1<<20)}, Category: "a"})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE || h.metric("denied_total", "body") != 1 {
		t.Errorf("got %v", err)
	}
	release, err := h.server.Admit(250 << 10)
	if err != nil {
		t.Fatal(err)
	}
	small := &scribev1.FetchRequest{Pointers: [][]byte{make([]byte, 20<<10)}, Category: "a"}
	if _, err := client.Fetch(t.Context(), small); rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
		t.Errorf("got %v", err)
	}
	release()
	if res, err := client.Fetch(t.Context(), small); err != nil || res.GetPayloads()[0].GetError().GetReason() != scribev1.Reason_REASON_CORRUPT {
		t.Errorf("got %v, %v", res, err)
	}
}
