package membership

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

var exampleList = []*scribev1.Member{
	{Id: "a", Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}, Url: "http://a:1", Slot: 2, Load: 700, Loads: []*scribev1.RoleLoad{{Role: scribev1.Role_ROLE_BATCHER, Load: 700}}, JoinedAt: 5, Version: "v"},
	{Id: "b", Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, Slot: 3},
}

// goldenFile is exampleList in version 1, saved at 7.
const goldenFile = "534d454d" + "01000000" + "0700000000000000" + "25000000" +
	"0a19" + "0a0161" + "120103" + "1a0a687474703a2f2f613a31" + "2002" + "3005" + "3a0176" +
	"0a08" + "0a0162" + "120102" + "2003"

func exampleFile(t testing.TB) []byte {
	t.Helper()
	b, err := encodeFile(exampleList, 7)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	file := exampleFile(t)
	if got := hex.EncodeToString(file[:len(file)-4]); got != goldenFile {
		t.Errorf("%s, want %s", got, goldenFile)
	}
	got, savedAt, err := decodeFile(file)
	if err != nil || savedAt != 7 || !sameIdentities(got, exampleList) || got[0].GetLoad() != 0 {
		t.Errorf("%v of %d, %v", got, savedAt, err)
	}
}

// TestDamage flips every bit and cuts at every byte: nothing goes unnoticed.
func TestDamage(t *testing.T) {
	file := exampleFile(t)
	for bit := range len(file) * 8 {
		b := bytes.Clone(file)
		b[bit/8] ^= 1 << (bit % 8)
		if _, _, err := decodeFile(b); !errors.Is(err, errDamaged) {
			t.Errorf("bit %d: %v", bit, err)
		}
	}
	for n := range file {
		if _, _, err := decodeFile(file[:n]); !errors.Is(err, errDamaged) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if _, _, err := decodeFile(append(bytes.Clone(file), 0)); !errors.Is(err, errDamaged) {
		t.Errorf("a byte too many: %v", err)
	}
	newer := bytes.Clone(file)
	newer[4] = 2
	if _, _, err := decodeFile(newer); !errors.Is(err, errDamaged) || !strings.Contains(err.Error(), "a newer program may have written it") {
		t.Errorf("a newer version: %v", err)
	}
	twice, err := encodeFile([]*scribev1.Member{{Id: "a"}, {Id: "a"}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := decodeFile(twice); !errors.Is(err, errDamaged) {
		t.Errorf("a member twice: %v", err)
	}
}

// FuzzFile gives the decoder arbitrary bodies with a right checksum.
//
//	go test ./internal/cell/membership -run '^$' -fuzz FuzzFile -fuzztime 10s
func FuzzFile(f *testing.F) {
	file := exampleFile(f)
	f.Add(file[:len(file)-4])
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		b = binary.LittleEndian.AppendUint32(bytes.Clone(b), record.CRC(b))
		members, savedAt, err := decodeFile(b)
		if err != nil {
			if !errors.Is(err, errDamaged) {
				t.Error(err)
			}
			return
		}
		again, err := encodeFile(members, savedAt)
		if err != nil {
			t.Fatal(err)
		}
		if got, _, err := decodeFile(again); err != nil || !sameIdentities(got, members) {
			t.Errorf("%v became %v, %v", members, got, err)
		}
	})
}

// TestStartWithoutControlPlane: a view that starts while the control plane is away has the members that it knew last.
func TestStartWithoutControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		cfg := DefaultViewConfig()
		cfg.File = filepath.Join(t.TempDir(), "members")
		run := func() (*View, func()) {
			t.Helper()
			v, err := NewView(cfg, ViewDeps{Source: s})
			if err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() { done <- v.Run(t.Context()) }()
			synctest.Wait()
			return v, func() {
				if err := errors.Join(v.Close(context.Background()), <-done); err != nil {
					t.Error(err)
				}
			}
		}
		v, stop := run()
		s.lists <- []*scribev1.Member{member("a", 10, scribev1.Role_ROLE_BATCHER), member("b", 0, scribev1.Role_ROLE_WRITEPROXY)}
		synctest.Wait()
		before, err := os.ReadFile(cfg.File)
		if err != nil {
			t.Fatal(err)
		}
		// Loads alone are not worth a write.
		s.lists <- []*scribev1.Member{member("a", 20, scribev1.Role_ROLE_BATCHER), member("b", 0, scribev1.Role_ROLE_WRITEPROXY)}
		advance(time.Minute)
		if after, err := os.ReadFile(cfg.File); err != nil || !bytes.Equal(before, after) {
			t.Errorf("written again for a load: %v", err)
		}
		s.lists <- []*scribev1.Member{member("c", 20, scribev1.Role_ROLE_BATCHER)}
		synctest.Wait()
		if got := v.Members(0); ids(got) != "c" {
			t.Errorf("members %q", ids(got))
		}
		// Nobody offers the role of b any more.
		if none, last := v.Members(scribev1.Role_ROLE_WRITEPROXY), v.Last(scribev1.Role_ROLE_WRITEPROXY); len(none) != 0 || ids(last) != "b" {
			t.Errorf("write proxies %q, and last %q", ids(none), ids(last))
		}
		if last := v.Last(scribev1.Role_ROLE_BATCHER); ids(last) != "c" {
			t.Errorf("the last batchers are %q", ids(last))
		}
		stop()

		s.set(func(s *source) { s.mu.down = true })
		v, stop = run()
		select {
		case <-v.Ready():
		default:
			t.Error("not ready with the file")
		}
		if got := ids(v.Members(scribev1.Role_ROLE_BATCHER)); got != "c" {
			t.Errorf("members %q from the file", got)
		}
		stop()

		if err := os.WriteFile(cfg.File, []byte("something else"), 0o600); err != nil {
			t.Fatal(err)
		}
		v, stop = run()
		if got := v.Members(0); len(got) != 0 {
			t.Errorf("members %v from a damaged file", got)
		}
		stop()
	})
}

// TestKeep: who can do without a slot becomes a member when the control plane is there.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		r.set(func(r *registrar) { r.mu.fail = errDown })
		l, err := Keep(r, LeaseConfig{Member: &scribev1.Member{Id: "m"}, TTL: 9 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		if s := l.State(); s.Slot != 0 || s.Live {
			t.Errorf("%+v without a control plane", s)
		}
		if n := len(r.calls()); n < 5 || n > 60 {
			t.Errorf("%d attempts in a minute", n)
		}
		r.set(func(r *registrar) { r.mu.fail = nil })
		advance(10 * time.Second)
		if s := l.State(); s.Slot != 7 || !s.Live {
			t.Errorf("%+v with one", s)
		}
		closeLease(t, l)
		if calls := r.calls(); !strings.HasSuffix(calls[len(calls)-1], "leave m") {
			t.Errorf("calls %q", calls)
		}

		// One that never was a member has nothing to leave.
		r.set(func(r *registrar) { r.mu.fail = errDown })
		if l, err = Keep(r, LeaseConfig{Member: &scribev1.Member{Id: "m"}}); err != nil {
			t.Fatal(err)
		}
		advance(time.Second)
		closeLease(t, l)
		if _, err := Keep(r, LeaseConfig{}); err == nil {
			t.Error("a member without an id")
		}
	})
}

func TestFileBounds(t *testing.T) {
	long := strings.Repeat("x", maxFileBody)
	if _, err := encodeFile([]*scribev1.Member{{Id: "a", Version: long}}, 0); err == nil {
		t.Error("a list beyond the limit was encoded")
	}
}
