package spool

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/scribed/keyring"
	"scribe/scribed/spool/layout"
	"scribe/storage/blob/encryption"
)

// wrapper stands for a key file or a service with keys of some names, of which the first one wraps.
type wrapper []string

func (w wrapper) Current(context.Context) (string, error) { return w[0], nil }

func (w wrapper) Wrap(_ context.Context, key []byte, label string) (string, []byte, error) {
	return w[0], slices.Concat([]byte(w[0]+"|"+label+"|"), key), nil
}

func (w wrapper) Unwrap(_ context.Context, name string, wrapped []byte, label string) ([]byte, error) {
	key, ok := bytes.CutPrefix(wrapped, []byte(name+"|"+label+"|"))
	if !ok || !slices.Contains(w, name) {
		return nil, fmt.Errorf("%w: there is no key %s", encryption.ErrWrapped, name)
	}
	return key, nil
}

// TestEncrypted runs the suite over spools whose records are encrypted: torn tails, damage, faults, crashes and limits are as they are without.
func TestEncrypted(t *testing.T) {
	testWrapper = wrapper{"k1"}
	defer func() { testWrapper = nil }()
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Model", TestModel},
		{"DamageSweep", TestDamageSweep},
		{"Truncated", TestTruncated},
		{"DamagedState", TestDamagedState},
		{"MissingSegment", TestMissingSegment},
		{"NewerVersion", TestNewerVersion},
		{"BadSector", TestBadSector},
		{"QuarantineBound", TestQuarantineBound},
		{"SwappedRecords", TestSwappedRecords},
		{"FailingOperations", TestFailingOperations},
		{"FailingOpen", TestFailingOpen},
		{"FailsWhileWritten", TestFailsWhileWritten},
		{"DiskFull", TestDiskFull},
		{"HalfWritten", TestHalfWritten},
		{"ForgottenBySync", TestForgottenBySync},
		{"DoneWhileSaved", TestDoneWhileSaved},
		{"StateOfUnsynced", TestStateOfUnsynced},
		{"FailedSync", TestFailedSync},
		{"FailedSyncReachesLateCallers", TestFailedSyncReachesLateCallers},
		{"Closed", TestClosed},
		{"Full", TestFull},
		{"Pinned", TestPinned},
		{"IndexMemory", TestIndexMemory},
		{"UnsyncedBytes", TestUnsyncedBytes},
		{"ClaimBuffer", TestClaimBuffer},
		{"Concurrent", TestConcurrent},
		{"Inspect", TestInspect},
		{"InspectDamage", TestInspectDamage},
	} {
		t.Run(test.name, test.run)
	}
}

// files returns the content of all files below a folder, by path.
func files(tb testing.TB, fs *vfs.MemFS, dir string) map[string][]byte {
	tb.Helper()
	out := map[string][]byte{}
	names, err := fs.List(dir)
	if err != nil {
		tb.Fatal(err)
	}
	for _, name := range names {
		path := dir + "/" + name
		info, err := fs.Stat(path)
		switch {
		case err != nil:
			tb.Fatal(err)
		case info.IsDir():
			maps.Copy(out, files(tb, fs, path))
		default:
			f, err := fs.Open(path)
			if err != nil {
				tb.Fatal(err)
			}
			b, err := io.ReadAll(f)
			if err := errors.Join(err, f.Close()); err != nil {
				tb.Fatal(err)
			}
			out[path] = b
		}
	}
	return out
}

func openWith(tb testing.TB, fs vfs.FS, w encryption.Wrapper) *Spool {
	tb.Helper()
	was := testWrapper
	testWrapper = w
	defer func() { testWrapper = was }()
	return openSpool(tb, testConfig(), fs)
}

func closeSpool(tb testing.TB, s *Spool) {
	tb.Helper()
	if err := s.Close(); err != nil {
		tb.Fatal(err)
	}
}

// mergeSegments rewrites neighbours that are sealed to one file.
func mergeSegments(tb testing.TB, s *Spool, from, to int) {
	tb.Helper()
	s.mu.Lock()
	chosen := slices.Clone(s.mu.segments[from:to])
	for _, g := range chosen {
		if g.state != sealed || g.busy {
			tb.Errorf("%s is in state %d", g.path, g.state)
		}
		g.busy = true
	}
	s.mu.Unlock()
	if err := s.rewriteSegments(chosen); err != nil {
		tb.Fatal(err)
	}
}

// wantRecords claims everything of a category, and compares it with records by number.
func wantRecords(tb testing.TB, s *Spool, category string, size int, numbers ...int) []ClaimedRecord {
	tb.Helper()
	got := claimAll(tb, s, category)
	if len(got) != len(numbers) {
		tb.Fatalf("%d records of %s, want %d", len(got), category, len(numbers))
	}
	for i, g := range got {
		if !bytes.Equal(g.Data, payload(category, numbers[i], size)) {
			tb.Errorf("record %d of %s is %.40q", i, category, g.Data)
		}
	}
	return got
}

// TestNothingPlain: what is appended is in no file of the folder as it was, also after segments were rewritten and damage was quarantined. Without a
// wrapper it is.
func TestNothingPlain(t *testing.T) {
	frame := payload("b", 1, 700)[:40] // of the first that is held
	for _, w := range []encryption.Wrapper{nil, wrapper{"k1"}} {
		mem := vfs.NewMem()
		s := openWith(t, mem, w)
		for i := range 60 {
			appendOne(t, s, []string{"a", "b"}[i%2], i, 700, false)
		}
		settle(t, s)
		s.Done(refsOfClaimed(claimAll(t, s, "a"))...)
		mergeSegments(t, s, 0, 2)
		closeSpool(t, s)
		segment := testDir + "/" + layout.SegmentID{First: 1, Last: 2, Generation: 2}.Name()
		found := false
		for _, b := range files(t, mem, testDir) {
			found = found || bytes.Contains(b, frame)
		}
		if found != (w == nil) {
			t.Errorf("encrypted %v: a frame is in a file: %v", w != nil, found)
		}
		b := contentOf(t, mem, segment)
		b[layout.SegmentHeaderLen+layout.RecordHeaderLen+100] ^= 1
		put(t, mem, segment, b)
		s = openWith(t, mem, w)
		claimAll(t, s, "b")
		closeSpool(t, s)
		if s.Lost().Records != 1 {
			t.Errorf("%+v are lost, want one", s.Lost())
		}
		for path, b := range files(t, mem, testDir) {
			if w != nil && bytes.Contains(b, frame) {
				t.Errorf("%s has a frame", path)
			}
		}
	}
}

// reseal gives a record at an offset of a segment the checksums that it should have.
func reseal(tb testing.TB, segment []byte, offset uint32, change func(h *layout.RecordHeader, data []byte)) {
	tb.Helper()
	b := segment[offset:]
	h, err := layout.ParseRecordHeader(b)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := h.Data(b)
	if err != nil {
		tb.Fatal(err)
	}
	change(&h, data)
	h.DataCRC = layout.Checksum(data)
	copy(b, layout.AppendRecordHeader(nil, &h))
}

// TestForged: a record with right checksums that was not written so is damage: it is lost, counted, and quarantined as it was found. The others
// are not affected.
func TestForged(t *testing.T) {
	w := wrapper{"k1"}
	for name, change := range map[string]func(segment []byte, refs []Ref){
		"another byte": func(segment []byte, refs []Ref) {
			reseal(t, segment, refs[1].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { data[30] ^= 1 })
		},
		"another nonce": func(segment []byte, refs []Ref) {
			reseal(t, segment, refs[1].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { data[10] ^= 1 })
		},
		"another time": func(segment []byte, refs []Ref) {
			reseal(t, segment, refs[1].Position.Offset(), func(h *layout.RecordHeader, _ []byte) { h.Time++ })
		},
		"the data of another place": func(segment []byte, refs []Ref) {
			var first []byte
			reseal(t, segment, refs[0].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { first = slices.Clone(data) })
			reseal(t, segment, refs[1].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { copy(data, first) })
		},
		"the data of another category": func(segment []byte, refs []Ref) {
			var other []byte
			reseal(t, segment, refs[3].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { other = slices.Clone(data) })
			reseal(t, segment, refs[1].Position.Offset(), func(_ *layout.RecordHeader, data []byte) { copy(data, other) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewCrashableMem()
			s := openWith(t, mem, w)
			var refs []Ref
			for i := range 3 {
				refs = append(refs, appendOne(t, s, "a", i, 400, false))
			}
			refs = append(refs, appendOne(t, s, "b", 0, 400, false))
			syncAll(t, s)
			crashed := mem.CrashClone(vfs.CrashCloneCfg{}) // without a footer, whose index would not be that of the forged record
			closeSpool(t, s)
			path := testDir + "/" + layout.SegmentID{First: 1, Last: 1, Generation: 1}.Name()
			segment := contentOf(t, crashed, path)
			change(segment, refs)
			put(t, crashed, path, segment)
			forged := slices.Clone(segment[refs[1].Position.Offset():][:refs[1].Size])

			if r, err := Inspect(crashed, testDir, true, w); err != nil || len(r.Damage) != 1 || !errors.Is(r.Damage[0].Err, layout.ErrDamaged) || r.Unchecked != 0 {
				t.Errorf("inspect: %+v, %v", r, err)
			}
			s = openWith(t, crashed, w)
			wantRecords(t, s, "a", 400, 0, 2)
			wantRecords(t, s, "b", 400, 0)
			losses := s.Losses()
			if len(losses) != 1 || losses[0].Records != 1 || losses[0].Category != "a" || s.Lost().Records != 1 {
				t.Fatalf("losses %+v, counted %+v", losses, s.Lost())
			}
			if got := contentOf(t, crashed, losses[0].QuarantineFile); !bytes.Equal(got, forged) {
				t.Errorf("the quarantine has %d other bytes", len(got))
			}
			check(t, s)
		})
	}
}

// TestRefusedWithoutKey: a folder whose keys can't be unwrapped is refused with an error that names the key, the one that wraps it and what to do, and
// nothing in it changes. With the key all of it is there.
func TestRefusedWithoutKey(t *testing.T) {
	mem := vfs.NewMem()
	s := openWith(t, mem, wrapper{"k1"})
	for i := range 30 {
		appendOne(t, s, "a", i, 700, false)
	}
	id := s.keys.List()[0].ID
	closeSpool(t, s)
	before := files(t, mem, testDir)
	for what, w := range map[string]encryption.Wrapper{"no wrapper": nil, "another key": wrapper{"k2"}, "another key of the name": renamed{}} {
		_, err := Open(testConfig(), Deps{FS: mem, Wrapper: w})
		if !errors.Is(err, encryption.ErrWrapped) {
			t.Fatalf("%s: %v", what, err)
		}
		for _, part := range []string{fmt.Sprintf("%016x", id), "category a", "wrapped with k1", "--encryption-key-file", "nothing was changed"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: the error does not say %q: %v", what, part, err)
			}
		}
		after := files(t, mem, testDir)
		if len(after) != len(before) {
			t.Errorf("%s: %d files, %d before", what, len(after), len(before))
		}
		for path, b := range before {
			if !bytes.Equal(after[path], b) {
				t.Errorf("%s: %s has changed", what, path)
			}
		}
		// Who looks into it sees what needs no key.
		r, err := Inspect(mem, testDir, true, w)
		if err != nil || len(r.Damage) > 0 || r.Unchecked != 30 || !errors.Is(r.KeyErr, encryption.ErrWrapped) || len(r.Keys) != 1 || r.Keys[0].Wrapper != "k1" || !r.Segments[0].Encrypted {
			t.Errorf("%s: inspect: %+v, %v", what, r, err)
		}
	}
	if r, err := Inspect(mem, testDir, true, wrapper{"k1"}); err != nil || r.Unchecked != 0 || r.KeyErr != nil || len(r.Damage) > 0 {
		t.Errorf("inspect with the key: %+v, %v", r, err)
	}
	s = openWith(t, mem, wrapper{"k1"})
	if got := claimAll(t, s, "a"); len(got) != 30 || len(s.Losses()) > 0 {
		t.Errorf("%d records, %+v", len(got), s.Losses())
	}
}

// renamed has another key of the name k1.
type renamed struct{ wrapper }

func (renamed) Unwrap(context.Context, string, []byte, string) ([]byte, error) {
	return nil, fmt.Errorf("%w: it was not wrapped with this key k1", encryption.ErrWrapped)
}

// TestLostKeyFile: records whose key's file is gone are not lost: they wait, and are there when it is back.
func TestLostKeyFile(t *testing.T) {
	mem := vfs.NewMem()
	s := openWith(t, mem, wrapper{"k1"})
	appendOne(t, s, "a", 0, 100, false)
	appendOne(t, s, "b", 0, 100, false)
	keys := s.keys.List()
	closeSpool(t, s)
	path := testDir + "/" + keysName + "/" + keys[0].File
	kept := contentOf(t, mem, path)
	if err := mem.Remove(path); err != nil {
		t.Fatal(err)
	}
	for _, content := range [][]byte{nil, []byte("damaged"), kept} {
		if content != nil {
			put(t, mem, path, content)
		}
		s = openWith(t, mem, wrapper{"k1"})
		wantRecords(t, s, "b", 100, 0)
		got, err := s.Claim("a", 1000, ^Position(0), nil)
		if whole := bytes.Equal(content, kept); whole != (err == nil && len(got) == 1) || !whole && !errors.Is(err, keyring.ErrNoKey) {
			t.Errorf("with %.20q: %d records, %v", content, len(got), err)
		}
		if q := s.Queue("a"); q.Held.Records != 1 || len(s.Losses()) > 0 {
			t.Errorf("with %.20q: %+v held, %+v", content, q, s.Losses())
		}
		check(t, s)
		closeSpool(t, s)
	}
}

// TestRotatedKey: new records take the first key, older ones are read as long as theirs is there; once they are done, it is not needed any more.
func TestRotatedKey(t *testing.T) {
	mem := vfs.NewMem()
	s := openWith(t, mem, wrapper{"old"})
	appendOne(t, s, "a", 0, 100, false)
	closeSpool(t, s)
	s = openWith(t, mem, wrapper{"new", "old"})
	appendOne(t, s, "a", 1, 100, false)
	var names []string
	for _, k := range s.keys.List() {
		names = append(names, k.Wrapper)
	}
	if !slices.Equal(names, []string{"old", "new"}) {
		t.Errorf("the keys are wrapped with %q", names)
	}
	closeSpool(t, s)
	if _, err := Open(testConfig(), Deps{FS: mem, Wrapper: wrapper{"new"}}); !errors.Is(err, encryption.ErrWrapped) || !strings.Contains(err.Error(), "old") {
		t.Errorf("without the old key: %v", err)
	}
	s = openWith(t, mem, wrapper{"new", "old"})
	got := wantRecords(t, s, "a", 100, 0, 1)
	s.Done(got[0].Ref)
	closeSpool(t, s)
	s = openWith(t, mem, wrapper{"new"})
	wantRecords(t, s, "a", 100, 1)
	if keys := s.keys.List(); len(keys) != 1 || keys[0].Wrapper != "new" {
		t.Errorf("keys %+v", keys)
	}
}

// TestTurnedOnAndOff: a spool that was not encrypted goes on with records of both kinds, also where segments of both kinds are merged. Once the
// encrypted ones are done, it opens without a key again, and is written as before.
func TestTurnedOnAndOff(t *testing.T) {
	mem := vfs.NewMem()
	w := wrapper{"k1"}
	s := openWith(t, mem, nil)
	for i := range 40 {
		appendOne(t, s, []string{"a", "done"}[i%2], i, 300, false)
	}
	closeSpool(t, s)
	s = openWith(t, mem, w)
	for i := range 40 {
		appendOne(t, s, []string{"a", "done"}[i%2], 40+i, 300, false)
	}
	settle(t, s)
	s.Done(refsOfClaimed(claimAll(t, s, "done"))...)
	s.mu.Lock()
	first := slices.IndexFunc(s.mu.segments, func(g *segmentFile) bool { return g.encrypted })
	s.mu.Unlock()
	mergeSegments(t, s, first-1, first+1)
	if held := s.Queue("a").Held; held.Bytes != 40*300 || held.Records != 40 {
		t.Errorf("%+v are held, want the bytes of frames", held)
	}
	closeSpool(t, s)
	s = openWith(t, mem, w)
	if held := s.Queue("a").Held; held.Bytes != 40*300 || held.Records != 40 {
		t.Errorf("after a restart %+v are held, want the bytes of frames", held)
	}
	var even []int
	for i := 0; i < 80; i += 2 {
		even = append(even, i)
	}
	s.Done(refsOfClaimed(wantRecords(t, s, "a", 300, even...))...)
	closeSpool(t, s)

	s = openWith(t, mem, nil)
	if n := s.keys.Count(); n != 0 {
		t.Errorf("%d keys are left", n)
	}
	appendOne(t, s, "a", 99, 300, false)
	closeSpool(t, s)
	versions := map[uint32]int{}
	for path, b := range files(t, mem, testDir) {
		if strings.HasSuffix(path, ".segment") {
			versions[binary.LittleEndian.Uint32(b[4:])]++
		}
	}
	if versions[layout.Version] == 0 || len(versions) != 1 {
		t.Errorf("segments by version: %v", versions)
	}
}

// TestDeletedKey: after the key of a category was deleted, its records are gone, counted with the reason, and not taken for damage.
func TestDeletedKey(t *testing.T) {
	mem := vfs.NewMem()
	w := wrapper{"k1"}
	s := openWith(t, mem, w)
	for i := range 5 {
		appendOne(t, s, "a", i, 100, false)
		appendOne(t, s, "b", i, 100, false)
	}
	closeSpool(t, s)
	if n, err := keyring.Delete(mem, testDir+"/"+keysName, "a"); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if r, err := Inspect(mem, testDir, true, w); err != nil || r.Unchecked != 5 || !errors.Is(r.KeyErr, keyring.ErrDeleted) || len(r.Damage) > 0 {
		t.Errorf("inspect: %+v, %v", r, err)
	}
	s = openWith(t, mem, w)
	if got := claimAll(t, s, "a"); len(got) != 0 {
		t.Errorf("%d records", len(got))
	}
	wantRecords(t, s, "b", 100, 0, 1, 2, 3, 4)
	_, gone := s.Account()
	if len(gone) != 1 || gone[0].Category != "a" || gone[0].Reason != KeyDeleted || gone[0].Records != 5 || gone[0].Bytes != 500 {
		t.Errorf("gone: %+v", gone)
	}
	if s.Lost() != (Amount{}) || len(s.Losses()) > 0 || s.quarantine.usedBytes() > 0 {
		t.Errorf("taken for damage: %+v", s.Lost())
	}
	check(t, s)
	appendOne(t, s, "a", 7, 100, false) // with a new key
	wantRecords(t, s, "a", 100, 7)
}

// failing is a wrapper that may be away.
type failing struct {
	wrapper

	away bool
}

func (f *failing) Wrap(ctx context.Context, key []byte, label string) (string, []byte, error) {
	if f.away {
		return "", nil, errInjected
	}
	return f.wrapper.Wrap(ctx, key, label)
}

// TestNoKeyToWrite: while a key can't be made, nothing of its category is written, not even as it is.
func TestNoKeyToWrite(t *testing.T) {
	mem := vfs.NewMem()
	w := &failing{wrapper: wrapper{"k1"}}
	s := openWith(t, mem, w)
	appendOne(t, s, "a", 0, 100, false)
	w.away = true
	if _, err := s.Append([]Record{{Category: "b", Data: payload("b", 0, 100)}}); !errors.Is(err, errInjected) || !strings.Contains(err.Error(), "category b") {
		t.Errorf("append: %v", err)
	}
	appendOne(t, s, "a", 1, 100, false) // its key is there
	if n := testutil.ToFloat64(s.metrics.keyFailures); n != 1 {
		t.Errorf("%v failures", n)
	}
	w.away = false
	appendOne(t, s, "b", 1, 100, false)
	wantRecords(t, s, "a", 100, 0, 1)
	wantRecords(t, s, "b", 100, 1)
}

// TestCopiedFolder: two processes on copies of one folder, and the same one after a restart, never encrypt with the same key.
func TestCopiedFolder(t *testing.T) {
	mem := vfs.NewCrashableMem()
	w := wrapper{"k1"}
	s := openWith(t, mem, w)
	appendOne(t, s, "a", 0, 100, false)
	syncAll(t, s)
	seen := map[uint64]bool{s.keys.List()[0].ID: true}
	for range 3 {
		clone := mem.CrashClone(vfs.CrashCloneCfg{})
		again := openWith(t, clone, w)
		ref := appendOne(t, again, "a", 1, 100, false)
		if ref.Position.Segment() != 2 {
			t.Fatalf("at %v: the copies do not write to the same place", ref.Position)
		}
		for _, k := range again.keys.List() {
			if k.From == 2 && seen[k.ID] {
				t.Errorf("key %016x is used twice", k.ID)
			}
			seen[k.ID] = true
		}
		wantRecords(t, again, "a", 100, 0, 1)
		closeSpool(t, again)
	}
	if len(seen) != 4 {
		t.Errorf("%d keys, want 4", len(seen))
	}
}
