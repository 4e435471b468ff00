package readproxy

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached/memcachedtest"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
	"scribe/storage/blob/layout"
)

// encrypt makes put encrypt what it stores from now on.
func (h *harness) encrypt(t *testing.T, file encryption.KeyFile) {
	t.Helper()
	h.keys = h.openKeys(t, file)
	for h.key == nil {
		var err error
		if h.key, err = h.keys.WritingKey(1, 1); err != nil && !errors.Is(err, encryption.ErrLoading) {
			t.Fatal(err)
		}
		<-time.After(time.Millisecond)
	}
}

func (h *harness) openKeys(t *testing.T, w encryption.Wrapper) *encryption.Keys {
	t.Helper()
	keys, err := encryption.NewKeys(encryption.Config{Store: h.store, Wrapper: w})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(keys.Close)
	return keys
}

// TestEncrypted: encrypted payloads are served as others are, whole and out of a block that several share, from the store, from memory and from a push.
func TestEncrypted(t *testing.T) {
	for _, codec := range []pointer.Codec{pointer.CodecNone, pointer.CodecZstd} {
		h := newHarness(t)
		h.encrypt(t, encryptiontest.KeyFile(t, "test"))
		whole, small := newPayload(t, "a", 500), []payload{newPayload(t, "a", 3), newPayload(t, "a", 4)}
		enc, pointers := h.put(codec, []payload{whole}, small)
		if !pointers[0].Codec.IsEncrypted() || !pointers[2].Codec.IsEncrypted() {
			t.Fatalf("%+v", pointers)
		}
		for range 3 {
			got := h.fetch(raw, "a", enc...)
			good(t, got[0], whole)
			good(t, got[1], small[0])
			good(t, got[2], small[1])
			if pointer.Codec(got[0].GetCodec()) != codec {
				t.Errorf("%s: the whole block is sent with codec %d", codec, got[0].GetCodec())
			}
			for _, p := range h.fetch(json, "a", enc...) {
				if !bytes.Contains(p.GetData(), []byte("scribe")) {
					t.Errorf("%s: %q, %v", codec, p.GetData(), p.GetError())
				}
			}
		}
		if n := h.metric("store_blocks_total"); n != 2 {
			t.Errorf("%s: %v blocks were read", codec, n)
		}
		wantReason(t, h.fetch(raw, "b", enc[0])[0], scribev1.Reason_REASON_INVALID)

		pushed := newPayload(t, "a", 100)
		enc, _ = h.put(codec, []payload{pushed})
		h.push(h.pushed(enc[0], "a"))
		h.outcome(pushKept, 1)
		good(t, h.fetch(raw, "a", enc[0])[0], pushed)
		if n := h.metric("store_blocks_total"); n != 2 {
			t.Errorf("%s: %v blocks were read, what was pushed too", codec, n)
		}
		// What is in memory is checked as ever.
		for _, part := range [][]*checkedBlock{h.server.cache.mu.proven.Values(), h.server.cache.mu.trial.Values()} {
			for _, b := range part {
				b.data[len(b.data)/2] ^= 1
			}
		}
		good(t, h.fetch(raw, "a", enc[0])[0], pushed)
	}
}

// TestEncryptedOutside: memcached has encrypted payloads as the store has them, and neither views of them nor their values are kept outside of this process.
func TestEncryptedOutside(t *testing.T) {
	cache := memcachedtest.Start(t)
	v := newViewHarness(t, withMemcached(cache))
	file := encryptiontest.KeyFile(t, "test")
	v.encrypt(t, file)
	want := rows(t, `{"status":200,"path":"/secret"}`, `{"status":404,"path":"/secret"}`)
	enc, pointers := v.put(pointer.CodecZstd, []payload{want})
	for range 3 {
		req := v.request("SELECT path FROM a WHERE status = 200", enc...)
		req.Places = []*scribev1.PointerPlace{{Shard: uint64(testShard), Lsn: 1}}
		res, err := v.server.Fetch(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.finish(t, req.GetView().GetQuery().GetText(), res.GetPayloads()[0]); len(got) != 1 || !strings.Contains(got[0], "/secret") {
			t.Errorf("rows %v", got)
		}
		good(t, v.fetch(raw, "a", enc[0])[0], want)
	}
	// What is asked for next is not encrypted: its view and its zone map are kept, and so would those before be.
	v.key = nil
	plain, _ := v.put(pointer.CodecZstd, []payload{want})
	req := v.request("SELECT path FROM a WHERE status = 200", plain...)
	req.Places = []*scribev1.PointerPlace{{Shard: uint64(testShard), Lsn: 2}}
	if _, err := v.server.Fetch(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	v.eventually(func() bool { return v.metric("memcached_fills_total", "stored") == 3 && v.notes.get(2) != nil }) // two blocks and a view
	stored, cached := make([]byte, pointers[0].BlockLen), make([]byte, pointers[0].BlockLen)
	if err := v.store.ReadAt(t.Context(), pointers[0].Key(), stored, int64(pointers[0].BlockOffset)); err != nil {
		t.Fatal(err)
	}
	key := blockKeyOf(&pointers[0], false)
	if found, err := v.server.shared.Get(t.Context(), key.sharedKey(), cached); !found || err != nil || !bytes.Equal(cached, stored) {
		t.Errorf("memcached has %q, %v, %v", cached, found, err)
	}
	if v.notes.get(1) != nil || v.metric("memcached_fills_total") != 3 {
		t.Errorf("the zone map of the encrypted payload is beside its pointer, or %v values are in memcached", v.metric("memcached_fills_total"))
	}

	other := newHarnessWith(t, func(d *Deps) {
		d.Blobs = func(string) (blob.Store, error) { return nil, errors.New("the store is not asked") }
	}, withMemcached(cache))
	other.keys = v.openKeys(t, file)
	good(t, other.fetch(raw, "a", enc[0])[0], want)
}

// TestEncryptedInAnotherRegion: encrypted blocks are read from the store of their region, with its keys, and not asked of its read proxies.
func TestEncryptedInAnotherRegion(t *testing.T) {
	here, there := twoRegions(t, true)
	there.encrypt(t, encryptiontest.KeyFile(t, "test"))
	here.server.deps.Keys = func(region string) (layout.Decrypter, error) {
		if region != "there" {
			t.Errorf("the keys of region %q are asked for", region)
		}
		return there.keys, nil
	}
	want := newPayload(t, "a", 5)
	enc, _ := there.put(pointer.CodecZstd, []payload{want})
	good(t, here.fetch(raw, "a", enc[0])[0], want)
	if n := there.asked.Load(); n != 0 {
		t.Errorf("the read proxy of the other region was asked %d times", n)
	}
}

// TestEncryptedErrors: a reader is told what is lost for ever, what may come, and what is damaged.
func TestEncryptedErrors(t *testing.T) {
	h := newHarness(t)
	h.encrypt(t, encryptiontest.KeyFile(t, "test"))
	enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 5)}, []payload{newPayload(t, "a", 5), newPayload(t, "a", 5)})
	ask := func(keys *encryption.Keys, want scribev1.Reason, text string) {
		t.Helper()
		h.server.cache.clear()
		h.keys = keys
		for _, p := range h.fetch(raw, "a", enc...) {
			wantReason(t, p, want)
			if got := p.GetError().GetMessage(); !strings.Contains(got, text) {
				t.Errorf("%q does not say %q", got, text)
			}
		}
	}
	right := h.keys
	ask(nil, scribev1.Reason_REASON_NO_BACKEND, "its log says why")
	ask(h.openKeys(t, nil), scribev1.Reason_REASON_NO_BACKEND, "its log says why")
	ask(h.openKeys(t, encryptiontest.KeyFile(t, "test")), scribev1.Reason_REASON_NO_BACKEND, "its log says why")
	h.push(h.pushed(enc[0], "a"))
	h.outcome(pushNoKey, 1)
	// A block whose checksum was made right after it was changed: only the key tells.
	h.keys = right
	b := h.key.AppendBlock(nil, pointer.CodecNone, frame(t, "a", 0, 3), len(frame(t, "a", 0, 3)))
	b[len(b)-1] ^= 1
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecEncrypted, BlockLen: uint32(len(b)), BlockRawLen: uint32(len(b) - pointer.EncryptionOverhead),
		BlockCRC: record.CRC(b), Length: uint32(len(b) - pointer.EncryptionOverhead), Frames: 1, Messages: 3, MinTime: 1, MaxTime: 2,
	}
	if err := h.store.Put(t.Context(), p.Key(), b); err != nil {
		t.Fatal(err)
	}
	wantReason(t, h.fetch(raw, "a", pointer.Append(nil, &p))[0], scribev1.Reason_REASON_CORRUPT)

	if n, err := encryption.DeleteKeys(context.Background(), h.store, 1, false); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	ask(h.openKeys(t, encryptiontest.KeyFile(t, "test")), scribev1.Reason_REASON_MISSING, "can't be decrypted any more")
}
