package readproxy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/readproxy/view"
	"scribe/storage/blob"
)

// A view that one server has made others find in memcached, in each compression: they make nothing, and read no store.
func TestViewsAreShared(t *testing.T) {
	cache := memcachedtest.Start(t)
	v := newViewHarness(t, withMemcached(cache))
	var messages []string
	for i := range 500 {
		messages = append(messages, fmt.Sprintf(`{"status":%d,"path":"/the/same/again/%d"}`, 200+i%3, i%7))
	}
	loss := rows(t, `{"status":200,"path":"/after"}`)
	loss.frames = slices.Concat(lossFrame(t), loss.frames)
	loss.messages++
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, messages...), rows(t, messages[:10]...)}, []payload{loss})
	other := newViewHarness(t, withMemcached(cache), func(c *Config) { c.Views.Queries = v.cfg.Views.Queries })
	other.now = v.now
	other.server.deps.Blobs = func(string) (blob.Store, error) { return v.store, nil }
	ask := func(h *viewHarness, q string, codec uint32) []*scribev1.Payload {
		t.Helper()
		req := h.request(q, enc...)
		req.View.Codec = codec
		res, err := h.server.Fetch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return res.GetPayloads()
	}
	fills := 2.0 // the blocks
	for _, q := range []string{"SELECT path FROM a WHERE status = 201", "SELECT path FROM a WHERE status = 202"} {
		for _, codec := range []uint32{0, codecZstd, codecS2} {
			want := ask(v, q, codec)
			if fills += float64(len(enc)); v.metric("view_payloads_total") != fills-2 {
				t.Fatalf("%v views were made", v.metric("view_payloads_total"))
			}
			v.eventually(func() bool { return v.metric("memcached_fills_total", "stored") == fills })
			reads := v.store.reads.Load()
			got := ask(other, q, codec)
			for i, p := range got {
				if p.GetCodec() != want[i].GetCodec() || !slices.Equal(other.finish(t, q, p), v.finish(t, q, want[i])) {
					t.Errorf("%s, codec %d: payload %d differs", q, codec, i)
				}
				p.View.View, p.View.Reused = want[i].GetView().GetView(), want[i].GetView().GetReused()
				if !proto.Equal(p.GetView(), want[i].GetView()) {
					t.Errorf("%s, codec %d: payload %d is described as %v, not %v", q, codec, i, p.GetView(), want[i].GetView())
				}
			}
			if v.store.reads.Load() != reads {
				t.Error("the store was read")
			}
		}
	}
	if n := other.metric("view_payloads_total"); n != 0 {
		t.Errorf("%v views were made again", n)
	}
	if n := other.metric("memcached_fills_total"); n != 0 {
		t.Errorf("%v values that came out of memcached were put into it again", n)
	}
	if hits, n := other.metric("view_memcached_hits_total"), fills-2; hits != n {
		t.Errorf("%v hits of %v", hits, n)
	}
}

// Views follow the policy of their category.
func TestViewsFollowThePolicy(t *testing.T) {
	for _, c := range []struct {
		name   string
		rule   Rule
		old    bool
		asks   int
		stored float64
	}{
		{"never", Rule{Shared: KeepNever}, false, 2, 0},
		{"too old", Rule{}, true, 2, 0},
		{"reused, once", Rule{Shared: KeepReused}, true, 1, 0},
		{"reused, twice", Rule{Shared: KeepReused, SharedAge: 4 * time.Hour}, true, 2, 1},
		{"always", Rule{}, false, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.rule.Pattern = "*"
			v := newViewHarness(t, withMemcached(memcachedtest.Start(t)), func(cfg *Config) { cfg.Rules = []Rule{c.rule} })
			if c.old {
				v.created = time.Now().Add(-3 * time.Hour).UnixMicro()
			}
			enc, _ := v.put(pointer.CodecNone, []payload{rows(t, `{"status":1}`)})
			for range c.asks {
				v.ask(t, "SELECT status FROM a", enc[0])
			}
			v.eventually(func() bool { return v.metric("memcached_fills_total", "stored") == c.stored })
		})
	}
}

// A view from memcached that is damaged anywhere is made again.
func TestDamagedSharedViews(t *testing.T) {
	const q = "SELECT status FROM a"
	cache := memcachedtest.Start(t)
	v := newViewHarness(t, withMemcached(cache))
	enc, _ := v.put(pointer.CodecNone, []payload{rows(t, `{"status":1}`, `{"status":2}`)})
	want := v.finish(t, q, v.ask(t, q, enc[0])[0])
	v.eventually(func() bool { return v.metric("memcached_fills_total", "stored") == 2 })
	isHead := func(item []byte) bool { return bytes.HasPrefix(item, []byte(viewMagic)) }
	for name, c := range map[string]struct {
		is    func([]byte) bool
		fills float64
	}{"head": {isHead, 1}, "body": {func(item []byte) bool { return !isHead(item) }, 2}} { // of which one is the block's
		cache.ChangeItems(func(item []byte) []byte {
			if c.is(item) {
				item = bytes.Clone(item)
				item[len(item)-1] ^= 1 // of a body: in what describes the view
			}
			return item
		})
		other := newViewHarness(t, withMemcached(cache))
		other.server.deps.Blobs = func(string) (blob.Store, error) { return v.store, nil }
		if got := other.finish(t, q, other.ask(t, q, enc[0])[0]); !slices.Equal(got, want) {
			t.Errorf("with a damaged %s: %v, want %v", name, got, want)
		}
		if n := other.metric("damaged_blocks_total", tierShared); n == 0 || other.metric("view_payloads_total") != 1 {
			t.Errorf("with a damaged %s: %v damaged values", name, n)
		}
		// It was put back as it should be.
		other.eventually(func() bool { return other.metric("memcached_fills_total", "stored") == c.fills })
		again := newViewHarness(t, withMemcached(cache))
		again.ask(t, q, enc[0])
		if n := again.metric("view_memcached_hits_total"); n != 1 {
			t.Errorf("after a damaged %s: %v hits", name, n)
		}
	}
}

// A head with any other bit, or of another length, is not a head.
func TestViewHead(t *testing.T) {
	head, body, err := encodeView(newViewBlock([]byte("data"), codecPlain, &scribev1.PayloadView{Rows: 3}))
	if err != nil {
		t.Fatal(err)
	}
	if n, _, err := decodeViewHead(head); err != nil || int(n) != len(body) {
		t.Fatalf("length %d of %d, %v", n, len(body), err)
	}
	for i := range head {
		changed := bytes.Clone(head)
		changed[i] ^= 1
		for _, bad := range [][]byte{changed, head[:i], append(bytes.Clone(head), 0)} {
			if _, _, err := decodeViewHead(bad); !errors.Is(err, errViewValue) {
				t.Errorf("byte %d: %v", i, err)
			}
		}
	}
}

// The key has everything that determines a view's rows and columns.
func TestSharedViewKeys(t *testing.T) {
	key := blockKey{at: 1, part: 2}
	shape := view.ShapeOf(view.NewNeed([]string{"x"}, nil, false))
	base := sharedViewKey(&key, view.Key{Category: 1, Version: 1}, shape, codecZstd)
	other := key
	other.at = 2
	keys := []string{
		base, sharedViewKey(&other, view.Key{Category: 1, Version: 1}, shape, codecZstd), sharedViewKey(&key, view.Key{Category: 2, Version: 1}, shape, codecZstd),
		sharedViewKey(&key, view.Key{Category: 1, Version: 2}, shape, codecZstd), sharedViewKey(&key, view.Key{Category: 1, Version: 1}, shape, codecS2),
		sharedViewKey(&key, view.Key{Category: 1, Version: 1}, view.ShapeOf(view.NewNeed([]string{"y"}, nil, false)), codecZstd),
	}
	slices.Sort(keys)
	if n := len(slices.Compact(keys)); n != 6 {
		t.Errorf("%d keys of 6 views", n)
	}
	other = key
	other.view = 77 // a number of this server
	if sharedViewKey(&other, view.Key{Category: 1, Version: 1}, shape, codecZstd) != base {
		t.Error("the key depends on the server")
	}
}

// FuzzViewValue decodes anything as the two values of a view.
func FuzzViewValue(f *testing.F) {
	head, body, err := encodeView(newViewBlock([]byte("data"), codecPlain, &scribev1.PayloadView{Rows: 3, Losses: []*scribev1.LossFrame{{Frame: []byte("x")}}}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(head, body)
	f.Add(head, []byte{})
	f.Fuzz(func(t *testing.T, head, body []byte) {
		if _, crc, err := decodeViewHead(head); err == nil {
			if b, err := decodeView(body, crc); err == nil && !b.isIntact(&blockKey{raw: true}, 0, uint64(len(b.data))) {
				t.Error("a damaged view was accepted")
			}
		}
	})
}
