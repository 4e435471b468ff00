package readproxy

import (
	"testing"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	scribev1 "scribe/proto/scribe/v1"
)

// FuzzPointers gives a server anything for pointers: each has a payload or an error with a reason, and the server goes on.
func FuzzPointers(f *testing.F) {
	h := newHarness(f)
	want := newPayload(f, "a", 10)
	enc, ptrs := h.put(pointer.CodecZstd, []payload{want}, []payload{newPayload(f, "b", 1), newPayload(f, "a", 2)})
	for i, e := range enc {
		f.Add(e)
		p := ptrs[i]
		p.Region, p.BlockOffset = "elsewhere", p.BlockOffset+1
		f.Add(pointer.Append(nil, &p))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{b, enc[0]}, Category: "a"})
		if err != nil {
			t.Fatal(err)
		}
		got := res.GetPayloads()
		if len(got) != 2 {
			t.Fatalf("%d payloads", len(got))
		}
		if e := got[0].GetError(); e != nil && e.GetReason() == scribev1.Reason_REASON_UNSPECIFIED {
			t.Errorf("an error without a reason: %v", e)
		}
		good(t, got[1], want)
	})
}

// FuzzBlocks puts anything into a store under the checksum that it has: in every encoding the answer is frames of the category, or an
// error with a reason.
func FuzzBlocks(f *testing.F) {
	for _, messages := range []int{1, 50} {
		p := newPayload(f, "a", messages)
		f.Add(p.frames, byte(pointer.CodecNone), uint32(0), uint32(len(p.frames)), uint32(len(p.frames)))
		f.Add(encoder().EncodeAll(p.frames, nil), byte(pointer.CodecZstd), uint32(0), uint32(len(p.frames)), uint32(len(p.frames)))
	}
	f.Add([]byte{1, 2, 3}, byte(pointer.CodecZstd), uint32(1), uint32(1), uint32(100))
	h := newHarness(f)
	f.Fuzz(func(t *testing.T, stored []byte, codec byte, offset, length, raw uint32) {
		const most = 1 << 20
		p := pointer.Pointer{
			Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.Codec(codec), BlockLen: uint32(len(stored)), BlockRawLen: raw % most, BlockCRC: record.CRC(stored),
			Offset: offset % most, Length: length % most, Frames: 1, Messages: 1, MinTime: 1, MaxTime: 1,
		}
		encoded := pointer.Append(nil, &p)
		if _, err := pointer.Decode(encoded); err != nil {
			return // it says what can't be
		}
		if err := h.store.Put(t.Context(), p.Key(), stored); err != nil {
			t.Fatal(err)
		}
		for _, encoding := range []scribev1.PayloadEncoding{1, 2, 3, blockEncoding} {
			res, err := h.server.Fetch(t.Context(), &scribev1.FetchRequest{Pointers: [][]byte{encoded}, Encoding: encoding, Category: "a"})
			if err != nil {
				t.Fatal(err)
			}
			got := res.GetPayloads()[0]
			if e := got.GetError(); e != nil {
				if e.GetReason() == scribev1.Reason_REASON_UNSPECIFIED || retry.ClassOf(e.GetReason()).Retryable() {
					t.Errorf("what is stored will not change, and the answer is %v", e)
				}
				continue
			}
			if record.CRC(got.GetData()) != got.GetCrc() {
				t.Error("the checksum is another one's")
			}
		}
	})
}

// FuzzPeerAnswer gives a server anything as another region's answer: only the block that was asked for is taken.
func FuzzPeerAnswer(f *testing.F) {
	h := newHarness(f, func(c *Config) { c.Region = "here" })
	want := newPayload(f, "a", 10)
	_, ptrs := h.put(pointer.CodecZstd, []payload{want})
	sound := encoder().EncodeAll(want.frames, nil)
	f.Add(sound, uint32(2), uint64(len(want.frames)), false)
	f.Add([]byte{}, uint32(0), uint64(0), true)
	f.Add(sound[1:], uint32(1), uint64(1<<60), false)
	f.Fuzz(func(t *testing.T, data []byte, codec uint32, rawLength uint64, failed bool) {
		p := &scribev1.Payload{Data: data, Codec: codec, RawLength: rawLength, Crc: record.CRC(data)}
		if failed {
			p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason(codec)}
		}
		fl := &blockFetch{key: blockKeyOf(&ptrs[0], true), p: ptrs[0], done: make(chan struct{}), need: 1}
		if !h.server.calls.Enter() || !h.server.fetchBytes.TryAcquire(1) {
			t.Fatal("the server is closed")
		}
		h.server.metrics.fetching.Inc()
		err := h.server.fromAnswer(fl, p)
		if err != nil {
			h.server.endFetch(fl, nil, err)
		}
		if fl.err == nil && (failed || fl.block == nil || string(fl.block.data) != string(want.frames)) {
			t.Errorf("another block was taken")
		}
		h.server.cache.clear()
	})
}
