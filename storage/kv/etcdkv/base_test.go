package etcdkv

import (
	"encoding/hex"
	"errors"
	"testing"

	"scribe/storage/kv"
)

const goldenBase = "0108070605040302017d0e0ae5"

// TestBaseBytes pins the bytes of version 1.
func TestBaseBytes(t *testing.T) {
	if got := hex.EncodeToString(encodeBase(0x0102030405060708)); got != goldenBase {
		t.Errorf("%s, want %s", got, goldenBase)
	}
	golden, err := hex.DecodeString(goldenBase)
	if err != nil {
		t.Fatal(err)
	}
	if base, err := decodeBase(golden); err != nil || base != 0x0102030405060708 {
		t.Errorf("decoded %x, %v", base, err)
	}
	for i := range golden {
		golden[i] ^= 0x10
		if _, err := decodeBase(golden); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("with a changed byte %d: %v", i, err)
		}
		golden[i] ^= 0x10
	}
}

func FuzzDecodeBase(f *testing.F) {
	f.Add(encodeBase(0))
	f.Add(encodeBase(maxBase + 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		base, err := decodeBase(b)
		if err == nil && string(encodeBase(base)) != string(b) {
			t.Errorf("%x decodes to %d, which is %x", b, base, encodeBase(base))
		}
		if err != nil && !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%v is not ErrCorrupt", err)
		}
	})
}

// TestRevisions: revisions of before the base, and those that etcd can't have, are none of etcd's.
func TestRevisions(t *testing.T) {
	var s Store
	base := uint64(100)
	s.base.Store(&base)
	for revision, want := range map[uint64]int64{0: 0, 1: -1, 100: -1, 101: 1, 250: 150, 1<<63 + 200: -1, ^uint64(0): -1} {
		if got := s.etcdRevision(revision); got != want {
			t.Errorf("revision %d is etcd's %d, want %d", revision, got, want)
		}
		if want > 0 && s.revisionOf(want) != revision {
			t.Errorf("etcd's %d is %d, want %d", want, s.revisionOf(want), revision)
		}
	}
}
