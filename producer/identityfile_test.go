package producer_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"

	"scribe/producer"
)

func openIdentity(t *testing.T, path string, opts ...producer.IdentityOption) *producer.IdentityFile {
	t.Helper()
	f, err := producer.OpenIdentity(path, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Release(); err != nil {
			t.Error(err)
		}
	})
	return f
}

var shardA = producer.Shard{Category: "a"}

// Every start has a newer epoch, already in the file, and sequences that continue; who still runs with an older one is refused.
func TestIdentityFileShutsOutZombies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "identity")
		s := &server{exactlyOnce: true}
		f := openIdentity(t, path)
		if f.Identity().ID == 0 || f.Identity().Epoch != 1 || f.Position() != nil {
			t.Fatalf("a new file has %+v at %q", f.Identity(), f.Position())
		}
		zombie := start(t, s, producer.WithIdentity(f.Identity()))
		if err := zombie.Write(t.Context(), "a", messages(texts("m", 3))...); err != nil {
			t.Fatal(err)
		}
		if err := f.Save(zombie.Identity(), []byte("three")); err != nil {
			t.Fatal(err)
		}
		if err := f.Release(); err != nil { // as the end of its process; the producer lives on
			t.Fatal(err)
		}
		f = openIdentity(t, path)
		id := f.Identity()
		if id.ID != zombie.Identity().ID || id.Epoch != 2 || id.Sequences[shardA] != (producer.Sequence{Epoch: 2, Next: 3}) || string(f.Position()) != "three" {
			t.Fatalf("the file has %+v at %q", id, f.Position())
		}
		again := start(t, s, producer.WithIdentity(id))
		if err := again.Write(t.Context(), "a", messages(texts("n", 2))...); err != nil {
			t.Fatal(err)
		}
		if err := zombie.Write(t.Context(), "a", messages(texts("late", 1))...); !errors.Is(err, producer.ErrStaleProducer) {
			t.Errorf("the zombie's write: %v", err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, append(texts("m", 3), texts("n", 2)...)) {
			t.Errorf("stored %q", got)
		}
		// A start that saves nothing has raised the epoch too.
		if err := f.Release(); err != nil {
			t.Fatal(err)
		}
		if f = openIdentity(t, path); f.Identity().Epoch != 3 || f.Identity().Sequences[shardA].Next != 3 {
			t.Errorf("the third start has %+v", f.Identity())
		}
	})
}

// A program that writes again what followed its last Save is recognised after a crash, and gets a newer epoch after an orderly stop.
func TestIdentityFileReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "identity")
		s := &server{exactlyOnce: true}
		source := messages(texts("m", 10))
		f := openIdentity(t, path, producer.KeepEpochForReplay())
		first := start(t, s, producer.WithIdentity(f.Identity()))
		if err := first.Write(t.Context(), "a", source[:4]...); err != nil {
			t.Fatal(err)
		}
		if err := f.Save(first.Identity(), []byte{4}); err != nil {
			t.Fatal(err)
		}
		if err := first.Write(t.Context(), "a", source[4:7]...); err != nil { // and crashes
			t.Fatal(err)
		}
		if err := f.Release(); err != nil {
			t.Fatal(err)
		}
		f = openIdentity(t, path, producer.KeepEpochForReplay())
		second := start(t, s, producer.WithIdentity(f.Identity()))
		if err := second.Write(t.Context(), "a", source[f.Position()[0]:]...); err != nil {
			t.Fatal(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, texts("m", 10)) {
			t.Errorf("stored %q", got)
		}
		if err := second.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(second.Identity(), []byte{10}); err != nil {
			t.Fatal(err)
		}
		f = openIdentity(t, path, producer.KeepEpochForReplay())
		if q := f.Identity().Sequences[shardA]; q != (producer.Sequence{Epoch: 2, Next: 10}) || !bytes.Equal(f.Position(), []byte{10}) {
			t.Errorf("after an orderly stop: %+v at %v", q, f.Position())
		}
	})
}

func TestIdentityFileRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "identity")
	f := openIdentity(t, path)
	if _, err := producer.OpenIdentity(path); !errors.Is(err, producer.ErrIdentityInUse) {
		t.Errorf("a second opening: %v", err)
	}
	other := f.Identity()
	other.ID++
	if err := f.Save(other, nil); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("another identity: %v", err)
	}
	if err := f.Save(producer.Identity{ID: f.Identity().ID}, nil); err == nil {
		t.Error("epoch 0 was saved")
	}
	last := f.Identity()
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	if err := f.Save(last, nil); !errors.Is(err, producer.ErrClosed) {
		t.Errorf("saved after the release: %v", err)
	}
	last.Epoch = 1<<32 - 1
	f = openIdentity(t, path)
	if err := f.Save(last, nil); err != nil {
		t.Fatal(err)
	}
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	if _, err := producer.OpenIdentity(path); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("after the last epoch: %v", err)
	}
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"empty": {}, "torn": whole[:len(whole)-1], "newer": bytes.Replace(whole, []byte(" 1 "), []byte(" 2 "), 1),
		"flipped": append(bytes.Clone(whole[:len(whole)-3]), whole[len(whole)-3]^1, whole[len(whole)-2], whole[len(whole)-1]),
	} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := producer.OpenIdentity(path); !errors.Is(err, producer.ErrIdentityDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(path); err != nil || !bytes.Equal(left, data) {
			t.Errorf("%s: the damaged file was changed", name)
		}
	}
}

// Whatever a file holds is refused or an identity that a producer takes.
//
//	go test ./producer -run '^$' -fuzz IdentityFile -fuzztime 10s
func FuzzIdentityFile(f *testing.F) {
	path := filepath.Join(f.TempDir(), "identity")
	file, err := producer.OpenIdentity(path)
	if err != nil {
		f.Fatal(err)
	}
	id := file.Identity()
	id.Sequences = map[producer.Shard]producer.Sequence{shardA: {Epoch: 3, Next: 1 << 60}}
	if err := file.Close(id, []byte("position")); err != nil {
		f.Fatal(err)
	}
	seed, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(seed)
	f.Add([]byte("scribe-identity 1 00000000\n"))
	n := 0
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		n++
		path := filepath.Join(dir, fmt.Sprintf("%d-%d", os.Getpid(), n))
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := producer.OpenIdentity(path)
		if err != nil {
			return
		}
		p, err := producer.New("", producer.WithService(&server{}), producer.WithIdentity(file.Identity()))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(p.Close(t.Context()), file.Release()); err != nil {
			t.Error(err)
		}
	})
}
