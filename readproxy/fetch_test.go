package readproxy

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/columnar"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
)

func TestRaw(t *testing.T) {
	h := newHarness(t)
	whole := newPayload(t, "a", 500)
	small := []payload{newPayload(t, "b", 3), newPayload(t, "a", 4), newPayload(t, "a", 5)}
	for _, codec := range []pointer.Codec{pointer.CodecNone, pointer.CodecZstd} {
		enc, ptrs := h.put(codec, []payload{whole}, small)
		got := h.fetch(raw, "a", enc[0], enc[2], enc[3])
		if len(got) != 3 {
			t.Fatalf("%d payloads", len(got))
		}
		for i, want := range []payload{whole, small[1], small[2]} {
			frames, err := open(got[i])
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(frames, want.frames) {
				t.Fatalf("%v: payload %d is not what was written", codec, i)
			}
		}
		// A whole block goes out as it is stored; a part of one uncompressed.
		if got[0].GetCodec() != uint32(codec) || len(got[0].GetData()) != int(ptrs[0].BlockLen) || got[0].GetCrc() != ptrs[0].BlockCRC {
			t.Fatalf("%v: the whole block was not passed through", codec)
		}
		if got[1].GetCodec() != uint32(pointer.CodecNone) {
			t.Fatalf("codec %d", got[1].GetCodec())
		}
		// What is not set is raw. Both payloads of the shared block are in the cache now.
		reads := h.store.reads.Load()
		if p := h.fetch(0, "b", enc[1]); p[0].GetError() != nil {
			t.Fatal(p[0].GetError())
		}
		if h.store.reads.Load() != reads {
			t.Fatal("a block in the cache was read again")
		}
	}
	if hits, misses, blocks := h.metric("cache_hits_total"), h.metric("cache_misses_total"), h.metric("store_blocks_total"); hits != 2 || misses != 4 || blocks != 4 {
		t.Fatalf("%v hits, %v misses, %v blocks counted", hits, misses, blocks)
	}
}

func TestOtherCategoryIsRefused(t *testing.T) {
	h := newHarness(t)
	enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 100)}, []payload{newPayload(t, "a", 1), newPayload(t, "b", 1)})
	for _, encoding := range []scribev1.PayloadEncoding{raw, json, arrowIPC} {
		for range 2 { // fetched, and cached
			got := h.fetch(encoding, "b", enc...)
			wantReason(t, got[0], scribev1.Reason_REASON_INVALID)
			wantReason(t, got[1], scribev1.Reason_REASON_INVALID)
			if got[2].GetError() != nil {
				t.Fatal(got[2].GetError())
			}
		}
	}
}

// Whatever byte of a block changes on the way from the store, the answer is an error that names the position, and the next fetch of the
// good block is not spoiled by it.
func TestDamage(t *testing.T) {
	h := newHarness(t)
	for _, codec := range []pointer.Codec{pointer.CodecNone, pointer.CodecZstd} {
		enc, ptrs := h.put(codec, []payload{newPayload(t, "a", 3)}, []payload{newPayload(t, "b", 1), newPayload(t, "a", 1)})
		for _, at := range []int{0, 2} {
			p := ptrs[at]
			for i := range int(p.BlockLen) {
				h.store.onRead(func(_ context.Context, dst []byte, _ int64) error {
					dst[i] ^= 1 << (i % 8)
					return nil
				})
				got := h.fetch(raw, "a", enc[at])[0]
				wantReason(t, got, scribev1.Reason_REASON_CORRUPT)
				if !strings.Contains(got.GetError().GetMessage(), p.Key()) {
					t.Fatalf("the blob is not named: %v", got.GetError())
				}
			}
			h.store.onRead(func(context.Context, []byte, int64) error { return nil })
			if got := h.fetch(raw, "a", enc[at])[0]; got.GetError() != nil {
				t.Fatal(got.GetError())
			}
		}
	}
}

// Damage on the way from the store is made up for by reading the block once more, by itself: those that were read with it are served from
// the first read.
func TestDamageOnTheWay(t *testing.T) {
	h := newHarness(t)
	var blocks [][]payload
	for range 3 {
		blocks = append(blocks, []payload{newPayload(t, "a", 20)})
	}
	enc, ptrs := h.put(pointer.CodecZstd, blocks...)
	var sizes []int
	h.store.onRead(func(_ context.Context, dst []byte, off int64) error {
		if sizes = append(sizes, len(dst)); len(sizes) == 1 {
			dst[int64(ptrs[1].BlockOffset)-off] ^= 1
		}
		return nil
	})
	for range 2 { // fetched, and cached
		for i, p := range h.fetch(raw, "a", enc...) {
			good(t, p, blocks[i][0])
		}
	}
	if len(sizes) != 2 || sizes[1] != int(ptrs[1].BlockLen) || h.metric("damaged_blocks_total", tierStore) != 1 {
		t.Errorf("reads of %v bytes, %v damaged", sizes, h.metric("damaged_blocks_total"))
	}
}

// A checksum that fits says nothing about what was summed.
func TestGarbageWithAChecksum(t *testing.T) {
	h := newHarness(t)
	good := newPayload(t, "a", 3)
	bad := payload{category: "a", frames: bytes.Repeat([]byte("no frame"), 100), messages: 1}
	cut := payload{category: "a", frames: good.frames[:len(good.frames)-1], messages: 1}
	enc, _ := h.put(pointer.CodecZstd, []payload{bad}, []payload{good, bad}, []payload{good, cut})
	for _, encoding := range []scribev1.PayloadEncoding{raw, json, arrowIPC} {
		got := h.fetch(encoding, "a", enc[0], enc[2], enc[4])
		for _, p := range got {
			wantReason(t, p, scribev1.Reason_REASON_CORRUPT)
		}
	}
}

func TestPointerFaults(t *testing.T) {
	h := newHarness(t)
	enc, ptrs := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 10)})
	change := func(fn func(*pointer.Pointer)) []byte {
		p := ptrs[0]
		fn(&p)
		return pointer.Append(nil, &p)
	}
	flipped := bytes.Clone(enc[0])
	flipped[20] ^= 1
	newer := bytes.Clone(enc[0])
	newer[0] = 99
	newer = append(newer[:len(newer)-4], 0, 0, 0, 0)
	crc := record.CRC(newer[:len(newer)-4])
	for i := range 4 {
		newer[len(newer)-4+i] = byte(crc >> (8 * i))
	}
	for name, c := range map[string]struct {
		pointer []byte
		want    scribev1.Reason
	}{
		"flipped":           {flipped, scribev1.Reason_REASON_CORRUPT},
		"empty":             {nil, scribev1.Reason_REASON_CORRUPT},
		"newer version":     {newer, scribev1.Reason_REASON_INVALID},
		"no such blob":      {change(func(p *pointer.Pointer) { p.Blob = pointer.NewBlobID() }), scribev1.Reason_REASON_MISSING},
		"no such region":    {change(func(p *pointer.Pointer) { p.Region = "mars" }), scribev1.Reason_REASON_NO_BACKEND},
		"other checksum":    {change(func(p *pointer.Pointer) { p.BlockCRC++ }), scribev1.Reason_REASON_CORRUPT},
		"beyond the blob":   {change(func(p *pointer.Pointer) { p.BlockOffset += 1 << 20 }), scribev1.Reason_REASON_CORRUPT},
		"longer when raw":   {change(func(p *pointer.Pointer) { p.BlockRawLen++ }), scribev1.Reason_REASON_CORRUPT},
		"a part of a frame": {change(func(p *pointer.Pointer) { p.Length-- }), scribev1.Reason_REASON_CORRUPT},
	} {
		t.Run(name, func(t *testing.T) {
			// A good pointer to the same block, before and after, is served: faults are not shared.
			got := h.fetch(raw, "a", enc[0], c.pointer, enc[0])
			wantReason(t, got[1], c.want)
			if got[0].GetError() != nil || got[2].GetError() != nil {
				t.Fatalf("the good pointers fail, too: %v, %v", got[0].GetError(), got[2].GetError())
			}
		})
	}
}

// What is not in its store any more when its retention is over has expired; before, it was lost.
func TestExpired(t *testing.T) {
	h := newHarness(t)
	_, ptrs := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 10)})
	for name, c := range map[string]struct {
		age  time.Duration
		want scribev1.Reason
	}{
		"expired": {pointer.DefaultRetention + time.Minute, scribev1.Reason_REASON_TRIMMED},
		"lost":    {pointer.DefaultRetention - time.Minute, scribev1.Reason_REASON_MISSING},
	} {
		p := ptrs[0]
		p.Blob = pointer.MakeBlobID(time.Now().Add(-c.age).UnixMicro(), [10]byte{1})
		got := h.fetch(raw, "a", pointer.Append(nil, &p))[0]
		wantReason(t, got, c.want)
		if retry.ClassOf(got.GetError().GetReason()).Retryable() {
			t.Errorf("%s: it is worth trying again", name)
		}
	}
}

func TestStoreTrouble(t *testing.T) {
	for name, c := range map[string]struct {
		hook func(ctx context.Context) error
		want scribev1.Reason
	}{
		"error":   {func(context.Context) error { return errors.New("boom") }, scribev1.Reason_REASON_NO_BACKEND},
		"slow":    {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, scribev1.Reason_REASON_OVERLOADED},
		"deleted": {func(context.Context) error { return blob.ErrNotFound }, scribev1.Reason_REASON_MISSING},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHarness(t)
				enc, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 10)})
				h.store.onRead(func(ctx context.Context, _ []byte, _ int64) error { return c.hook(ctx) })
				got := h.fetch(raw, "a", enc[0])[0]
				wantReason(t, got, c.want)
				if hinted := got.GetError().GetRetryAfter().AsDuration() > 0; hinted != retry.ClassOf(got.GetError().GetReason()).Retryable() {
					t.Fatalf("retry hint %t in %v", hinted, got.GetError())
				}
				h.store.onRead(func(context.Context, []byte, int64) error { return nil })
				if got := h.fetch(raw, "a", enc[0])[0]; got.GetError() != nil {
					t.Fatalf("trouble was kept: %v", got.GetError())
				}
			})
		})
	}
}

// However many ask for a block, the store is read once; askers that give up fail nobody else.
func TestOneFetchForAll(t *testing.T) {
	h := newHarness(t)
	want := newPayload(t, "a", 200)
	enc, _ := h.put(pointer.CodecZstd, []payload{want})
	release, reading := make(chan struct{}), make(chan struct{})
	h.store.onRead(func(context.Context, []byte, int64) error {
		close(reading) // a second read would panic
		<-release
		return nil
	})
	const askers, quitters = 100, 30
	var all, quit sync.WaitGroup
	ask := func(group *sync.WaitGroup, ctx context.Context, check func(*scribev1.FetchResponse, error)) {
		group.Go(func() {
			check(h.server.Fetch(ctx, &scribev1.FetchRequest{Pointers: enc, Category: "a"}))
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	// The first asker, whose fetch it is, is one of those that give up.
	for range quitters {
		ask(&quit, ctx, func(_ *scribev1.FetchResponse, err error) {
			if !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
		})
	}
	<-reading
	for range askers {
		ask(&all, t.Context(), func(res *scribev1.FetchResponse, err error) {
			if err != nil {
				t.Error(err)
				return
			}
			if frames, err := open(res.GetPayloads()[0]); err != nil || !bytes.Equal(frames, want.frames) {
				t.Errorf("got %d bytes, %v", len(frames), err)
			}
		})
	}
	cancel()
	quit.Wait() // or what is released may be there before they look
	close(release)
	all.Wait()
	if n := h.store.reads.Load(); n != 1 {
		t.Fatalf("%d reads", n)
	}
	if saved, read := h.metric("saved_bytes_total"), h.metric("store_bytes_total"); saved < (askers-1)*read || saved > (askers+quitters)*read {
		t.Fatalf("%v bytes read, %v saved", read, saved)
	}
}

func TestCacheIsBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.CacheBytes = 20_000 })
	var enc [][]byte
	for range 30 {
		e, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 20)}, []payload{newPayload(t, "a", 10), newPayload(t, "b", 10)})
		enc = append(enc, e[0], e[1])
	}
	for round := range 3 {
		for i, e := range enc {
			if got := h.fetch(raw, "a", e)[0]; got.GetError() != nil {
				t.Fatal(got.GetError())
			}
			if used := h.metric("cache_bytes"); used > 20_000 || used == 0 {
				t.Fatalf("round %d, block %d: %v bytes in the cache", round, i, used)
			}
			reads := h.store.reads.Load()
			h.fetch(raw, "a", e)
			if h.store.reads.Load() != reads {
				t.Fatal("the block used last is not in the cache")
			}
		}
	}
	// A block larger than the cache is served, and moves nothing out.
	blocks := h.metric("cache_blocks")
	big, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 1000)})
	if got := h.fetch(raw, "a", big[0])[0]; got.GetError() != nil || len(got.GetData()) < 20_000 {
		t.Fatalf("%d bytes, %v", len(got.GetData()), got.GetError())
	}
	if now := h.metric("cache_blocks"); now != blocks {
		t.Fatalf("%v blocks in the cache, %v before", now, blocks)
	}
}

func TestAnswersAreCut(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.AnswerBytes = 10_000 })
	var enc [][]byte
	for range 10 {
		e, p := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 45)})
		if p[0].Length < 3000 || p[0].Length > 3300 {
			t.Fatalf("the test wants payloads of about 3 KB, not %d", p[0].Length)
		}
		enc = append(enc, e...)
	}
	answers := 0
	for left := enc; len(left) > 0; answers++ {
		got := h.fetch(raw, "a", left...)
		size := 0
		for _, p := range got {
			if p.GetError() != nil {
				t.Fatal(p.GetError())
			}
			size += len(p.GetData())
		}
		if len(got) == 0 || size > 10_000 {
			t.Fatalf("%d payloads, %d bytes", len(got), size)
		}
		left = left[len(got):]
	}
	if answers != 4 {
		t.Fatalf("%d answers", answers)
	}
	// One that is too large alone is served alone, also after an error.
	big, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 400)})
	if got := h.fetch(raw, "a", []byte("bad"), big[0]); len(got) != 1 {
		t.Fatalf("%d payloads", len(got))
	}
	if got := h.fetch(raw, "a", big[0], enc[0]); len(got) != 1 || len(got[0].GetData()) <= 10_000 {
		t.Fatalf("%d payloads", len(got))
	}
}

func TestFetchBound(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.FetchBytes, c.Fetches = LeastFetchBytes, 1 })
	var enc [][]byte
	for range 4 {
		e, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 10)})
		enc = append(enc, e...)
	}
	// Blocks that exist only in their pointers: what is announced is reserved before anything is read.
	huge := func() []byte {
		_, p := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 1)})
		p[0].BlockLen, p[0].BlockRawLen, p[0].Length = pointer.MaxBlockRaw, pointer.MaxBlockRaw, pointer.MaxBlockRaw
		return pointer.Append(nil, &p[0])
	}
	release, reading := make(chan struct{}), make(chan struct{}, 10)
	h.store.onRead(func(context.Context, []byte, int64) error {
		reading <- struct{}{}
		<-release
		return nil
	})
	var all sync.WaitGroup
	all.Go(func() {
		if got := h.fetch(raw, "a", enc[0])[0]; got.GetError() != nil {
			t.Error(got.GetError())
		}
	})
	<-reading // it has the one slot
	for range 2 {
		all.Go(func() { wantReason(t, h.fetch(raw, "a", huge())[0], scribev1.Reason_REASON_CORRUPT) })
	}
	h.eventually(func() bool { return h.metric("fetches_in_flight") == 3 })
	// The third does not fit beside the two that wait, and is told so at once.
	got := h.fetch(raw, "a", huge())[0]
	wantReason(t, got, scribev1.Reason_REASON_OVERLOADED)
	if got.GetError().GetRetryAfter().AsDuration() <= 0 {
		t.Error("no hint when to try again")
	}
	close(release)
	all.Wait()
	wantReason(t, h.fetch(raw, "a", huge())[0], scribev1.Reason_REASON_CORRUPT) // there is room again
}

func TestRequestBound(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.RequestBytes, c.QueueTimeout = 1<<20, 10*time.Millisecond })
	enc, _ := h.put(pointer.CodecNone, []payload{newPayload(t, "a", 12_000)})
	release, reading := make(chan struct{}), make(chan struct{})
	h.store.onRead(func(context.Context, []byte, int64) error {
		close(reading)
		<-release
		return nil
	})
	var first sync.WaitGroup
	first.Go(func() {
		if got := h.fetch(raw, "a", enc[0])[0]; got.GetError() != nil {
			t.Error(got.GetError())
		}
	})
	<-reading
	_, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc, Category: "a"})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_OVERLOADED || rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
		t.Fatalf("got %v", err)
	}
	close(release)
	first.Wait()
	if got := h.fetch(raw, "a", enc[0])[0]; got.GetError() != nil {
		t.Fatal(got.GetError())
	}
}

func TestRequestFaults(t *testing.T) {
	h := newHarness(t)
	one := [][]byte{[]byte("p")}
	for name, c := range map[string]struct {
		req  *scribev1.FetchRequest
		want scribev1.Reason
		say  []string
	}{
		"everything": {
			&scribev1.FetchRequest{Category: "-", Encoding: 77},
			scribev1.Reason_REASON_INVALID,
			[]string{"category name", "number of pointers 0", "encoding 77"},
		},
		"many":     {&scribev1.FetchRequest{Category: "a", Pointers: make([][]byte, 1001)}, scribev1.Reason_REASON_INVALID, []string{"1001"}},
		"category": {&scribev1.FetchRequest{Category: "x", Pointers: one}, scribev1.Reason_REASON_UNKNOWN_CATEGORY, []string{"x"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := h.server.Fetch(t.Context(), c.req)
			if rpc.ReasonOf(err) != c.want {
				t.Fatalf("got %v", err)
			}
			for _, part := range c.say {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q is not in: %v", part, err)
				}
			}
		})
	}
	// The control plane may know more than the local view.
	if _, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Category: "late", Pointers: one}); err != nil {
		t.Fatal(err)
	}
}

func TestConfigReportsEveryViolation(t *testing.T) {
	_, err := New(Config{CacheBytes: -1, RetryAfter: -1}, Deps{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"CacheBytes", "FetchBytes", "Fetches", "FetchTimeout", "PeerTimeout", "ReadBurst", "RequestBytes", "Queue.Target", "QueueTimeout", "RequestBurst", "AnswerBytes",
		"RetryAfter", "Deps.Blobs", "Deps.Categories",
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not named in: %v", name, err)
		}
	}
}

func TestClose(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.FetchTimeout = time.Hour })
	enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 10)})
	reading := make(chan struct{})
	h.store.onRead(func(ctx context.Context, _ []byte, _ int64) error {
		close(reading)
		<-ctx.Done()
		return ctx.Err()
	})
	cut := make(chan []*scribev1.Payload)
	go func() { cut <- h.fetch(raw, "a", enc[0]) }()
	<-reading
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.server.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	wantReason(t, (<-cut)[0], scribev1.Reason_REASON_SHUTTING_DOWN)
	_, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: enc, Category: "a"})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
		t.Fatalf("got %v", err)
	}
}

func TestArrow(t *testing.T) {
	h := newHarness(t)
	whole, shared := newPayload(t, "a", 50), newPayload(t, "a", 2)
	enc, _ := h.put(pointer.CodecZstd, []payload{whole}, []payload{shared, newPayload(t, "b", 1)})
	for i, p := range h.fetch(arrowIPC, "a", enc[0], enc[1]) {
		if p.GetError() != nil {
			t.Fatal(p.GetError())
		}
		if crc := record.CRC(p.GetData()); crc != p.GetCrc() || p.GetRawLength() != uint64(len(p.GetData())) {
			t.Fatalf("checksum %#x of %v", crc, p)
		}
		rec, err := columnar.DecodeIPC(p.GetData())
		if err != nil {
			t.Fatal(err)
		}
		if want := []payload{whole, shared}[i].messages; int(rec.NumRows()) != want || rec.Column(5).ValueStr(1) == "" {
			t.Errorf("%d rows, want %d", rec.NumRows(), want)
		}
		rec.Release()
	}
}

func TestArrowFramesAreServedRaw(t *testing.T) {
	h := newHarness(t)
	rec, err := columnar.FromFrames(newPayload(t, "a", 3).frames, columnar.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	body, err := columnar.EncodeIPC(nil, rec)
	if err != nil {
		t.Fatal(err)
	}
	frames, err := record.AppendArrowFrame(nil, record.Envelope{Category: "a"}, 3, body)
	if err != nil {
		t.Fatal(err)
	}
	enc, _ := h.put(pointer.CodecZstd, []payload{{category: "a", frames: frames, messages: 3}})
	if got, err := open(h.fetch(raw, "a", enc[0])[0]); err != nil || !bytes.Equal(got, frames) {
		t.Fatal(err)
	}
	wantReason(t, h.fetch(json, "a", enc[0])[0], scribev1.Reason_REASON_INVALID)
	wantReason(t, h.fetch(arrowIPC, "a", enc[0])[0], scribev1.Reason_REASON_INVALID)
}
