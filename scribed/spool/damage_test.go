package spool

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/testkit/testsize"
	"scribe/scribed/spool/layout"
)

// contentOf reads a file.
func contentOf(tb testing.TB, fs *vfs.MemFS, path string) []byte {
	tb.Helper()
	b, err := fs.UnsafeGetFileDataBuffer(path)
	if err != nil {
		tb.Fatal(err)
	}
	return slices.Clone(b)
}

func put(tb testing.TB, fs vfs.FS, path string, b []byte) {
	tb.Helper()
	f, err := fs.Create(path, diskCategory)
	if err == nil {
		_, err = f.WriteAt(b, 0)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		tb.Fatal(err)
	}
}

// folder is a spool's folder with one segment, and what is in it.
type folder struct {
	cfg     Config
	segment []byte
	name    string
	state   []byte
	want    []layout.IndexEntry // in order; the category's name is by index
	names   []string
	sealed  bool
	keys    map[string][]byte // files, by name
}

// makeFolderOf makes a folder whose segment holds records of two categories; sealed, or as a crash leaves it.
func makeFolderOf(t *testing.T, sealed bool) *folder {
	mem := vfs.NewCrashableMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	f := &folder{cfg: c, sealed: sealed}
	for i := range 12 {
		name := []string{"a", "b"}[i%2]
		ref := appendOne(t, s, name, i, 40+i*7, false)
		f.want = append(f.want, layout.IndexEntry{Position: ref.Position, Offset: ref.Position.Offset(), Size: ref.Size})
		f.names = append(f.names, name)
		if i%3 == 2 {
			syncAll(t, s)
		}
	}
	syncAll(t, s)
	crashed := mem.CrashClone(vfs.CrashCloneCfg{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !sealed {
		mem = crashed
	}
	f.name = layout.SegmentID{First: 1, Last: 1, Generation: 1}.Name()
	f.segment = contentOf(t, mem, c.Dir+"/"+f.name)
	f.state = contentOf(t, mem, c.Dir+"/"+stateName)
	f.keys = map[string][]byte{}
	if testWrapper != nil {
		names, err := mem.List(c.Dir + "/" + keysName)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f.keys[name] = contentOf(t, mem, c.Dir+"/"+keysName+"/"+name)
		}
	}
	return f
}

// putKeys puts the keys into the folder.
func (f *folder) putKeys(t *testing.T, mem vfs.FS) {
	t.Helper()
	if err := mem.MkdirAll(f.cfg.Dir+"/"+keysName, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range f.keys {
		put(t, mem, f.cfg.Dir+"/"+keysName+"/"+name, content)
	}
}

// open opens a spool on a copy of the folder with another segment.
func (f *folder) open(t *testing.T, segment []byte) (*Spool, *vfs.MemFS) {
	mem := vfs.NewMem()
	if err := mem.MkdirAll(f.cfg.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	put(t, mem, f.cfg.Dir+"/"+f.name, segment)
	put(t, mem, f.cfg.Dir+"/"+stateName, f.state)
	f.putKeys(t, mem)
	s, err := Open(f.cfg, testDeps(mem))
	if err != nil {
		t.Fatal(err)
	}
	return s, mem
}

// expect opens the spool with a damaged segment: every record that the damage does not touch is given out, in order, and those that it
// touches are lost and counted.
func (f *folder) expect(t *testing.T, what string, segment []byte, from, to int64) {
	t.Helper()
	s, mem := f.open(t, segment)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	var lost int64
	known := true
	next := map[string][]ClaimedRecord{"a": claimAll(t, s, "a"), "b": claimAll(t, s, "b")}
	for i, e := range f.want {
		touched := from < int64(e.Offset+e.Size) && to > int64(e.Offset)
		got := next[f.names[i]]
		if len(got) > 0 && got[0].Ref.Position.Offset() == e.Offset {
			if !bytes.Equal(got[0].Data, payload(f.names[i], i, 40+i*7)) {
				t.Fatalf("%s: record %d has other bytes", what, i)
			}
			if touched {
				t.Fatalf("%s: record %d is damaged and was given out", what, i)
			}
			next[f.names[i]] = got[1:]
			continue
		}
		if !touched {
			t.Fatalf("%s: record %d (%d to %d) is not damaged and is gone", what, i, e.Offset, e.Offset+e.Size)
		}
		lost++
	}
	if len(next["a"])+len(next["b"]) > 0 {
		t.Fatalf("%s: more records than were written: %+v", what, next)
	}
	var counted int64
	for _, l := range s.Losses() {
		if l.Records < 0 {
			known = false
		}
		counted += max(0, l.Records)
		if l.QuarantineFile != "" {
			if b := contentOf(t, mem, l.QuarantineFile); !bytes.Equal(b, segment[l.From:l.To]) {
				t.Fatalf("%s: the quarantine holds %d other bytes", what, len(b))
			}
		} else if l.To > l.From && l.From >= layout.SegmentHeaderLen && l.To-l.From < 4000 {
			t.Fatalf("%s: %d to %d is not in the quarantine", what, l.From, l.To)
		}
	}
	// What was written last is not known to have been synced when there is no footer.
	last := int64(f.want[9].Offset)
	if known && counted != lost && (f.sealed || to <= last) || !known && f.sealed {
		t.Fatalf("%s: %d records are counted as lost, %d are gone", what, counted, lost)
	}
	check(t, s)
}

// damageStep is the distance of bytes that are damaged one after another, by one goroutine.
func damageStep() int { return testsize.Test(1, 1, 17) }

// TestDamageSweep flips each byte of a segment, and ranges of it, with and without a footer. Only the records that are hit are
// missing, and they are counted and kept.
func TestDamageSweep(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		f := makeFolderOf(t, sealed)
		f.expect(t, "whole", f.segment, 0, 0)
		for at := 0; at < len(f.segment); at += damageStep() {
			b := slices.Clone(f.segment)
			b[at] ^= 0x41
			f.expect(t, fmt.Sprintf("sealed %v, byte %d", sealed, at), b, int64(at), int64(at)+1)
		}
		rng := rand.New(rand.NewPCG(3, 4))
		end := int(f.want[9].Offset) // of what is known to be on disk
		for range testsize.Test(300, 300, 20) {
			from := rng.IntN(end)
			to := min(end, from+1+rng.IntN(700))
			b := slices.Clone(f.segment)
			for i := from; i < to; i++ {
				b[i] = byte(rng.Uint32())
			}
			f.expectRange(t, fmt.Sprintf("sealed %v, bytes %d to %d", sealed, from, to), b, int64(from), int64(to))
		}
	}
}

// expectRange is expect for a range that may leave records' headers unreadable, of which only the bytes can be counted.
func (f *folder) expectRange(t *testing.T, what string, segment []byte, from, to int64) {
	t.Helper()
	s, _ := f.open(t, segment)
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	got := map[uint32]bool{}
	for _, c := range []string{"a", "b"} {
		for _, g := range claimAll(t, s, c) {
			got[g.Ref.Position.Offset()] = true
		}
	}
	gone := false
	for i, e := range f.want {
		touched := from < int64(e.Offset+e.Size) && to > int64(e.Offset)
		if !touched && !got[e.Offset] {
			t.Fatalf("%s: record %d is not damaged and is gone", what, i)
		}
		gone = gone || !got[e.Offset]
	}
	if l := s.Losses(); gone && len(l) == 0 {
		t.Fatalf("%s: records are gone, and nothing is counted", what)
	}
}

// TestTruncated cuts the file anywhere: what is in front of the cut is given out.
func TestTruncated(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		f := makeFolderOf(t, sealed)
		for n := 0; n < len(f.segment); n += damageStep() {
			s, _ := f.open(t, f.segment[:n])
			var got []ClaimedRecord
			for _, c := range []string{"a", "b"} {
				got = append(got, claimAll(t, s, c)...)
			}
			want := 0
			for _, e := range f.want {
				if int(e.Offset+e.Size) <= n {
					want++
				}
			}
			if len(got) != want {
				t.Fatalf("cut at %d of %d: %d records, want %d", n, len(f.segment), len(got), want)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestDamagedState: each byte of the state file may be damaged. One slot is always left, and without both everything is given out
// again.
func TestDamagedState(t *testing.T) {
	f := makeFolderOf(t, true)
	s, mem := f.open(t, f.segment)
	got := claimAll(t, s, "a")
	s.Done(refsOfClaimed(got[:3])...)
	if a := s.Drop("b", 1, time.Time{}, "test"); a.Records != 1 {
		t.Fatalf("dropped %+v", a)
	}
	saveNow(t, s)
	s.Done(got[3].Ref)
	saveNow(t, s)
	f.state = contentOf(t, mem, f.cfg.Dir+"/"+stateName)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	records := func(state []byte) (a, b int64, dropped int64) {
		f.state = state
		s, _ := f.open(t, f.segment)
		defer func() { _ = s.Close() }()
		if l := s.Losses(); len(l) > 0 {
			t.Fatalf("a damaged state is no loss: %+v", l)
		}
		check(t, s)
		return s.Queue("a").Held.Records, s.Queue("b").Held.Records, s.Dropped()["b"].Records
	}
	whole := slices.Clone(f.state)
	if a, b, d := records(whole); a != 2 || b != 5 || d != 1 {
		t.Fatalf("%d and %d held, %d dropped, want 2, 5, 1", a, b, d)
	}
	seen := map[int64]bool{}
	for at := 0; at < len(whole); at += testsize.Test(3, 3, 6) {
		bad := slices.Clone(whole)
		bad[at] ^= 0xff
		a, b, _ := records(bad)
		if a != 2 && a != 3 && a != 6 || at > 16 && a == 6 || b != 5 && a != 6 {
			t.Fatalf("byte %d: %d and %d held", at, a, b)
		}
		seen[a] = true
	}
	if !seen[2] || !seen[3] || !seen[6] {
		t.Errorf("the sweep did not meet every case: %v", seen)
	}
	if a, b, d := records(make([]byte, len(whole))); a != 6 || b != 6 || d != 0 {
		t.Errorf("without a state: %d and %d held, %d dropped, want everything", a, b, d)
	}
}

// TestMissingSegment: a segment that somebody removed is a loss.
func TestMissingSegment(t *testing.T) {
	f := makeFolderOf(t, true)
	s, mem := f.open(t, f.segment)
	s.Done(claimAll(t, s, "a")[0].Ref)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := mem.Remove(f.cfg.Dir + "/" + f.name); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} { // told once
		s := openSpool(t, f.cfg, mem)
		l := s.Losses()
		if len(l) != want || want == 1 && (l[0].Records != 11 || s.Lost().Records != 11) {
			t.Errorf("opened %d times: %+v, want %d losses", i+1, l, want)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestNewerVersion: what a newer program wrote is refused, and not touched.
func TestNewerVersion(t *testing.T) {
	f := makeFolderOf(t, false)
	b := slices.Clone(f.segment)
	b[4] = layout.VersionEncrypted + 1
	sum := layout.Checksum(b[:60])
	b[60], b[61], b[62], b[63] = byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24)
	mem := vfs.NewMem()
	if err := mem.MkdirAll(f.cfg.Dir, 0o750); err != nil {
		t.Fatal(err)
	}
	put(t, mem, f.cfg.Dir+"/"+f.name, b)
	if _, err := Open(f.cfg, testDeps(mem)); !errors.Is(err, layout.ErrVersion) {
		t.Fatalf("open: %v, want ErrVersion", err)
	}
	if got := contentOf(t, mem, f.cfg.Dir+"/"+f.name); !bytes.Equal(got, b) {
		t.Error("the file was changed")
	}
}

// TestBadSector: a block that the disk can't read costs what is in it.
func TestBadSector(t *testing.T) {
	mem := vfs.NewMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	for i := range 14 {
		appendOne(t, s, "a", i, 400, false)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	bad := faults(mem, func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && isSegment(op) && op.Offset/salvageBlock == 0 {
			return syscall.EIO
		}
		return nil
	})
	s = openSpool(t, c, bad)
	got := claimAll(t, s, "a")
	lost := s.Lost()
	if len(got) == 0 || lost.Records == 0 || len(got)+int(lost.Records) != 14 || s.Queue("a").Unclaimed.Records != 0 {
		t.Errorf("%d records, %+v lost, want 14 together", len(got), lost)
	}
	// Another error is no damage: the records stay.
	s.Release(refsOfClaimed(got)...)
	broken := true
	fs := faults(mem, func(op errorfs.Op) error {
		if broken && op.Kind == errorfs.OpFileReadAt && isSegment(op) {
			return errInjected
		}
		return nil
	})
	s.fs = fs
	if _, err := s.Claim("a", 1000, ^Position(0), nil); !errors.Is(err, errInjected) {
		t.Errorf("claim: %v", err)
	}
	broken = false
	if again := claimAll(t, s, "a"); len(again) != len(got) {
		t.Errorf("%d records after a passing error, want %d", len(again), len(got))
	}
}

// TestQuarantineBound: the oldest copies go.
func TestQuarantineBound(t *testing.T) {
	mem := vfs.NewMem()
	c := testConfig()
	c.QuarantineBytes = 2000
	s := openSpool(t, c, mem)
	for i := range 14 {
		appendOne(t, s, "a", i, 400, false)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := c.Dir + "/" + layout.SegmentID{First: 1, Last: 1, Generation: 1}.Name()
	b := contentOf(t, mem, path)
	for i := 200; i < 6000; i += 300 {
		b[i] ^= 1
	}
	put(t, mem, path, b)
	s = openSpool(t, c, mem)
	claimAll(t, s, "a")
	losses := s.Losses()
	if len(losses) < 8 || s.quarantine.usedBytes() > 2000 || s.quarantine.usedBytes() < 1000 {
		t.Fatalf("%d losses, %d bytes in the quarantine", len(losses), s.quarantine.usedBytes())
	}
	names, err := mem.List(c.Dir + "/" + quarantineName)
	if err != nil {
		t.Fatal(err)
	}
	last := losses[len(losses)-1].QuarantineFile
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(last, n) }) {
		t.Errorf("the newest copy %s is not among %q", last, names)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	c.QuarantineBytes = 500
	s = openSpool(t, c, mem)
	if n := s.quarantine.usedBytes(); n == 0 || n > 500 {
		t.Errorf("%d bytes are kept with a limit of 500", n)
	}
}

// TestSwappedRecords: whole records that stand in each other's place are damage.
func TestSwappedRecords(t *testing.T) {
	mem := vfs.NewMem()
	c := testConfig()
	s := openSpool(t, c, mem)
	refs := []Ref{appendOne(t, s, "a", 7, 400, false), appendOne(t, s, "a", 14, 400, false)}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := c.Dir + "/" + layout.SegmentID{First: 1, Last: 1, Generation: 1}.Name()
	b := contentOf(t, mem, path)
	first, second := b[refs[0].Position.Offset():][:refs[0].Size], b[refs[1].Position.Offset():][:refs[1].Size]
	for i := range first {
		first[i], second[i] = second[i], first[i]
	}
	put(t, mem, path, b)
	s = openSpool(t, c, mem)
	if got := claimAll(t, s, "a"); len(got) > 0 || s.Lost().Records != 2 {
		t.Errorf("%d records, %+v lost", len(got), s.Lost())
	}
}
