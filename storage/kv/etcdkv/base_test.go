package etcdkv

import (
	"encoding/hex"
	"errors"
	"testing"

	"scribe/storage/kv"
)

const (
	goldenBase  = "0108070605040302017d0e0ae5"
	goldenEnded = "0208070605040302015402a5fc"
)

// TestBaseBytes pins the bytes of both versions.
func TestBaseBytes(t *testing.T) {
	for version, want := range map[byte]string{baseVersion: goldenBase, endedVersion: goldenEnded} {
		b := encodeBase(version, 0x0102030405060708)
		if got := hex.EncodeToString(b); got != want {
			t.Errorf("%s, want %s", got, want)
		}
		if base, ended, err := decodeBase(b); err != nil || base != 0x0102030405060708 || ended != (version == endedVersion) {
			t.Errorf("decoded %x, %v, %v", base, ended, err)
		}
	}
	golden, err := hex.DecodeString(goldenBase)
	if err != nil {
		t.Fatal(err)
	}
	for i := range golden {
		golden[i] ^= 0x10
		if _, _, err := decodeBase(golden); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("with a changed byte %d: %v", i, err)
		}
		golden[i] ^= 0x10
	}
}

func FuzzDecodeBase(f *testing.F) {
	f.Add(encodeBase(baseVersion, 0))
	f.Add(encodeBase(endedVersion, maxBase+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		base, ended, err := decodeBase(b)
		version := byte(baseVersion)
		if ended {
			version = endedVersion
		}
		if err == nil && string(encodeBase(version, base)) != string(b) {
			t.Errorf("%x decodes to %d, which is %x", b, base, encodeBase(version, base))
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
