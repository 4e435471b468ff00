package readproxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what must come.
const patience = time.Minute

// categories are the names that exist.
type categories []string

func (c categories) Lookup(name string) (*scribev1.Category, bool) {
	for i, known := range c {
		if known == name {
			return &scribev1.Category{Name: name, Id: uint32(i + 1), Shards: 1}, true
		}
	}
	return nil, false
}

func (c categories) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	if name == "late" {
		return &scribev1.Category{Name: name, Id: 99}, nil // one that the local view does not have yet
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category %q", name)
}

// store counts reads, and lets a test change what they do.
type store struct {
	blob.Store
	reads atomic.Int64
	hook  atomic.Pointer[func(ctx context.Context, dst []byte, off int64) error]
}

func (s *store) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	s.reads.Add(1)
	if err := s.Store.ReadAt(ctx, key, dst, off); err != nil {
		return err
	}
	if hook := s.hook.Load(); hook != nil {
		return (*hook)(ctx, dst, off)
	}
	return nil
}

func (s *store) onRead(fn func(ctx context.Context, dst []byte, off int64) error) { s.hook.Store(&fn) }

type harness struct {
	t        testing.TB
	store    *store
	cfg      Config
	registry *prometheus.Registry
	server   *Server
	// region is that of the blobs that put makes, created when it makes them, Unix microseconds; 0 = now.
	region  string
	created int64
	// keys has the keys of the store, and key encrypts the blobs that put makes, unless it is nil.
	keys *encryption.Keys
	key  *encryption.Key
}

func newHarness(t testing.TB, change ...func(*Config)) *harness {
	t.Helper()
	return newHarnessWith(t, func(*Deps) {}, change...)
}

func newHarnessWith(t testing.TB, adjust func(*Deps), change ...func(*Config)) *harness {
	t.Helper()
	h := &harness{t: t, store: &store{Store: memory.New()}, cfg: config.Defaults[Config](), registry: prometheus.NewRegistry()}
	for _, c := range change {
		c(&h.cfg)
	}
	var err error
	deps := Deps{
		Blobs: func(region string) (blob.Store, error) {
			if region != "" {
				return nil, fmt.Errorf("no region %q", region)
			}
			return h.store, nil
		},
		Keys: func(region string) (layout.Decrypter, error) {
			if region != "" || h.keys == nil {
				return nil, fmt.Errorf("no keys of region %q", region)
			}
			return h.keys, nil
		},
		Categories: categories{"a", "b"},
		Registerer: h.registry,
	}
	adjust(&deps)
	if h.server, err = New(h.cfg, deps); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		// A test that ended the server with a context of its own has seen its error.
		if err := h.server.Close(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	return h
}

// message is the i-th message that tests write.
func message(i int) string {
	return fmt.Sprintf(`{"n":%d,"text":"%s"}`, i, strings.Repeat("scribe ", i%17))
}

// frame is a frame of n messages, numbered from first on.
func frame(t testing.TB, category string, first, n int) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: category, BaseTime: 1_700_000_000_000_000}); err != nil {
		t.Fatal(err)
	}
	for i := range n {
		if err := b.AppendPayload([]byte(message(first + i))); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var encoder = sync.OnceValue(func() *zstd.Encoder {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err)
	}
	return e
})

// payload is what goes into a blob.
type payload struct {
	category string
	frames   []byte
	messages int
}

func newPayload(t testing.TB, category string, messages int) payload {
	t.Helper()
	return payload{category: category, frames: frame(t, category, 0, messages), messages: messages}
}

// put stores a blob of blocks, each with the payloads given, and returns the pointers, encoded and not, block by block.
func (h *harness) put(codec pointer.Codec, blocks ...[]payload) (encoded [][]byte, pointers []pointer.Pointer) {
	h.t.Helper()
	ids := map[string]uint32{"a": 1, "b": 2}
	id := pointer.NewBlobID()
	if h.created != 0 {
		id = pointer.MakeBlobID(h.created, [10]byte(id[6:]))
	}
	b := layout.NewBuilder(id, 72, h.region, id.Time())
	lsn := record.LSN(0)
	for _, payloads := range blocks {
		var raw []byte
		for _, p := range payloads {
			raw = append(raw, p.frames...)
		}
		stored := raw
		if codec == pointer.CodecZstd {
			stored = encoder().EncodeAll(raw, nil)
		}
		codec := codec
		if h.key != nil {
			codec, stored = codec.Encrypted(), h.key.AppendBlock(nil, codec, stored, len(raw))
		}
		block := b.AddBlock(codec, stored, len(raw))
		at := uint32(0)
		for _, p := range payloads {
			lsn++
			ptr := b.AddPayload(block, at, uint32(len(p.frames)), layout.Entry{
				Shard: record.MakeShardID(ids[p.category], 0, 1), Epoch: 1, LSN: lsn, Category: p.category,
				Pointer: pointer.Pointer{Frames: 1, Messages: uint32(p.messages), MinTime: 1, MaxTime: 2},
			})
			at += uint32(len(p.frames))
			pointers = append(pointers, ptr)
			encoded = append(encoded, pointer.Append(nil, &ptr))
		}
	}
	parts, err := b.Finish()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.store.Put(h.t.Context(), pointer.Key(72, id), parts...); err != nil {
		h.t.Fatal(err)
	}
	return encoded, pointers
}

func (h *harness) fetch(encoding scribev1.PayloadEncoding, category string, pointers ...[]byte) []*scribev1.Payload {
	h.t.Helper()
	res, err := h.server.Fetch(h.t.Context(), &scribev1.FetchRequest{Pointers: pointers, Encoding: encoding, Category: category})
	if err != nil {
		h.t.Fatal(err)
	}
	return res.GetPayloads()
}

const (
	raw      = scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW
	json     = scribev1.PayloadEncoding_PAYLOAD_ENCODING_JSON
	arrowIPC = scribev1.PayloadEncoding_PAYLOAD_ENCODING_ARROW
)

// open decodes a raw payload the way a consumer does.
func open(p *scribev1.Payload) ([]byte, error) {
	if p.GetError() != nil {
		return nil, rpc.FromInfo(p.GetError())
	}
	if crc := record.CRC(p.GetData()); crc != p.GetCrc() {
		return nil, fmt.Errorf("checksum %#x, announced %#x", crc, p.GetCrc())
	}
	return layout.Decompress(nil, pointer.Codec(p.GetCodec()), p.GetData(), int(p.GetRawLength()))
}

func wantReason(t testing.TB, p *scribev1.Payload, want scribev1.Reason) {
	t.Helper()
	if got := p.GetError().GetReason(); got != want || len(p.GetData()) > 0 {
		t.Fatalf("%d bytes and error %v, want %v", len(p.GetData()), p.GetError(), want)
	}
}

// metric returns the value of a metric of the server, summed over its labels, or over those with one of the values given.
func (h *harness) metric(name string, labels ...string) float64 {
	h.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.t.Fatal(err)
	}
	var sum float64
	for _, f := range families {
		if f.GetName() == "scribe_readproxy_"+name {
			for _, m := range f.GetMetric() {
				if len(labels) > 0 && !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return slices.Contains(labels, l.GetValue()) }) {
					continue
				}
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// eventually waits until cond holds.
func (h *harness) eventually(cond func() bool) {
	h.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !cond(); {
		select {
		case <-tick.C:
		case <-end:
			h.t.Fatal("what must come does not")
		}
	}
}
