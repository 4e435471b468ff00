package batcher

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/memory"
)

// change changes category alpha, as a later revision.
func (c *cell) change(edit func(*scribev1.Category)) {
	v := proto.CloneOf(c.catalog["alpha"])
	edit(v)
	c.catalog["alpha"] = v
}

func encrypted(c *scribev1.Category) { c.Encrypted, c.KeyGeneration = true, c.GetKeyGeneration()+1 }

// awaitKey sends a frame until the category's key is there: it is fetched beside the requests, which are told to come again.
func (c *cell) awaitKey(frame []byte) {
	c.t.Helper()
	for {
		r := c.submit(committed, frame)[0]
		if r.GetError() == nil {
			c.mustHold(r, frame)
			return
		}
		if r.GetError().GetReason() != scribev1.Reason_REASON_NO_BACKEND || r.GetError().GetRetryAfter().AsDuration() <= 0 {
			c.t.Fatal(r.GetError())
		}
	}
}

// pointers returns all pointers of a shard.
func (c *cell) pointers(shard record.ShardID) (out []pointer.Pointer) {
	c.t.Helper()
	entries, err := c.log.Log.Read(c.t.Context(), shard, record.FirstLSN, 1000, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range entries {
		p, err := pointer.Decode(e.Data)
		if err != nil {
			c.t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// TestEncrypted: what an encrypted category has is in no blob as it was written, and not in a block with what another category has; from the
// moment that the category is known to be encrypted, and with a new key once there is one.
func TestEncrypted(t *testing.T) {
	c := newCell(t, testConfig(), nil, nil)
	secret, open := record.MakeShardID(1, 0, 7), record.MakeShardID(2, 0, 7)
	// Neither is compressible, so that what is in a block can be seen there.
	random := rand.NewChaCha8([32]byte{1})
	text := func(mark string) string {
		b := make([]byte, 400)
		_, _ = random.Read(b) // never fails
		return mark + string(b) + mark
	}
	c.commit(makeFrame(t, "alpha", 0, nil, text("PLAIN")))
	c.change(encrypted)
	c.awaitKey(makeFrame(t, "alpha", 0, nil, text("SECRET")))
	c.commit(makeFrame(t, "alpha", 0, nil, text("SECRET")), makeFrame(t, "beta", 0, nil, text("PLAIN")), makeFrame(t, "alpha", 1, nil, text("SECRET")))
	c.commit(makeFrame(t, "alpha", 0, nil, strings.Repeat("SECRET", 1000)), makeFrame(t, "beta", 0, nil, text("PLAIN")))
	c.change(encrypted) // again: a new key
	c.awaitKey(makeFrame(t, "alpha", 0, nil, text("SECRET")))
	c.change(func(c *scribev1.Category) { c.Encrypted = false })
	c.commit(makeFrame(t, "alpha", 0, nil, text("PLAIN")))

	var codecs []pointer.Codec
	offsets := map[string]bool{}
	for _, p := range c.pointers(secret) {
		codecs = append(codecs, p.Codec.Encrypted()-p.Codec) // 0 for what is encrypted
		offsets[fmt.Sprint(p.Blob, p.BlockOffset)] = true
	}
	if !slices.Equal(codecs, []pointer.Codec{2, 0, 0, 0, 0, 2}) {
		t.Errorf("codecs %v", codecs)
	}
	for _, p := range c.pointers(open) {
		if p.Codec.IsEncrypted() || offsets[fmt.Sprint(p.Blob, p.BlockOffset)] {
			t.Errorf("a payload that is not encrypted is in a block with one that is: %+v", p)
		}
	}
	plain := 0
	for _, key := range c.blobs() {
		info, err := c.store.Stat(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, info.Size)
		if err := c.store.ReadAt(t.Context(), key, b, 0); err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(b, []byte("SECRET")) {
			t.Errorf("%s has the secret", key)
		}
		plain += bytes.Count(b, []byte("PLAIN"))
	}
	if plain == 0 {
		t.Error("the test would not see a secret: nothing is in a blob as it was written")
	}
	generations := map[uint32]string{}
	for k, err := range encryption.ListKeys(t.Context(), c.store, encryption.Prefix) {
		if err != nil || k.Category != 1 {
			t.Errorf("%+v, %v", k, err)
		}
		generations[k.Generation] = k.Wrapper
	}
	if len(generations) != 2 || generations[1] != "test" || generations[2] != "test" {
		t.Errorf("keys %v", generations)
	}
	c.verify()
}

// TestEncryptedWithoutKeys: a batcher that can't encrypt refuses, says why, and stores nothing of the category. Others are not affected.
func TestEncryptedWithoutKeys(t *testing.T) {
	for name, keys := range map[string]Keys{"no keys": nil, "no key file": mustKeys(t)} {
		t.Run(name, func(t *testing.T) {
			c := newCellWith(t, testConfig(), nil, nil, func(d *Deps) { d.Keys = keys })
			c.change(encrypted)
			var text string
			for !strings.Contains(text, "--encryption-key-file") {
				results := c.submit(committed, makeFrame(t, "alpha", 0, nil, "secret"), makeFrame(t, "beta", 0, nil, "plain"))
				text = results[0].GetError().GetMessage()
				if got := reasons(results); got[0] != scribev1.Reason_REASON_NO_BACKEND || got[1] != 0 {
					t.Fatalf("%v: %s", got, text)
				}
			}
			if got := c.pointers(record.MakeShardID(1, 0, 7)); len(got) != 0 {
				t.Errorf("%d pointers", len(got))
			}
			c.verify()
		})
	}
}

func mustKeys(t *testing.T) *encryption.Keys {
	t.Helper()
	k, err := encryption.NewKeys(encryption.Config{Store: memory.New()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}
