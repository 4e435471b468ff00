package spool

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"scribe/scribed/spool/layout"
)

func TestValidate(t *testing.T) {
	c := DefaultConfig()
	c.Dir = "x"
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults: %v", err)
	}
	bad := Config{SegmentBytes: 1, BallastBytes: -1, IndexBytes: -1, QuarantineBytes: -1}
	err := bad.Validate()
	for _, field := range []string{"Dir", "MaxBytes", "SegmentBytes", "BallastBytes", "SyncInterval", "StateInterval", "UnsyncedBytes", "IndexBytes", "QuarantineBytes"} {
		if err == nil || !strings.Contains(err.Error(), "spool: "+field+": ") {
			t.Errorf("%s is not among the violations: %v", field, err)
		}
	}
	if _, err := Open(bad, Deps{}); err == nil {
		t.Error("opened with a bad configuration")
	}
	c.MaxBytes = 4*c.SegmentBytes - 1
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "MaxBytes") {
		t.Errorf("fewer than 4 segments: %v", err)
	}
}

// TestSpans compares the set with a plain one.
func TestSpans(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, other positionSet
		in, inOther := map[layout.Position]bool{}, map[layout.Position]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				from, n := rapid.Uint64Range(0, 60).Draw(t, "from"), rapid.Uint64Range(0, 8).Draw(t, "n")
				to := from + n
				set, m := &s, in
				if rapid.Bool().Draw(t, "other") {
					set, m = &other, inOther
				}
				set.addRange(layout.Position(from), layout.Position(to))
				for i := from; i < to; i++ {
					m[layout.Position(i)] = true
				}
			},
			"remove": func(t *rapid.T) {
				from, n := rapid.Uint64Range(0, 60).Draw(t, "from"), rapid.Uint64Range(0, 20).Draw(t, "n")
				s.removeRange(layout.Position(from), layout.Position(from+n))
				for i := from; i < from+n; i++ {
					delete(in, layout.Position(i))
				}
			},
			"": func(t *rapid.T) {
				union, without := s.union(other), s.without(other)
				gaps := map[layout.Position]bool{}
				s.eachGap(5, 50, func(from, to layout.Position) {
					for i := from; i < to; i++ {
						gaps[i] = true
					}
				})
				for i := range layout.Position(90) {
					if s.contains(i) != in[i] || union.contains(i) != (in[i] || inOther[i]) || without.contains(i) != (in[i] && !inOther[i]) ||
						gaps[i] != (i >= 5 && i < 50 && !in[i]) {
						t.Fatalf("%d in %v, %v", i, s, other)
					}
				}
				for i := 1; i < len(s); i++ {
					if s[i].From <= s[i-1].To || s[i].From >= s[i].To {
						t.Fatalf("ranges touch or are not in order: %v", s)
					}
				}
			},
		})
	})
}

// TestLocked: a folder has one spool at a time.
func TestLocked(t *testing.T) {
	c := testConfig()
	c.Dir = t.TempDir()
	s := openSpool(t, c, nil)
	if _, err := Open(c, Deps{}); err == nil {
		t.Fatal("the folder was opened twice")
	}
	appendOne(t, s, "a", 0, 100, false)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openSpool(t, c, nil)
	if got := claimAll(t, s, "a"); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}

// TestClosed: after Close nothing is done, and everything is on disk.
func TestClosed(t *testing.T) {
	mem := vfs.NewCrashableMem()
	s := openSpool(t, testConfig(), mem)
	ref := appendOne(t, s, "a", 0, 100, true)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := appendRecords(s, []Record{{Category: "a"}}, false)
	_, cerr := s.Claim("a", 1, ^Position(0), nil)
	s.Done(ref)
	for _, err := range []error{err, cerr, s.Sync(t.Context()), s.Close()} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%v, want ErrClosed", err)
		}
	}
	if a := s.Drop("a", 1, time.Time{}, "test"); a != (Amount{}) {
		t.Errorf("dropped %+v", a)
	}
	again := openSpool(t, testConfig(), mem.CrashClone(vfs.CrashCloneCfg{}))
	if got := claimAll(t, again, "a"); len(got) != 1 {
		t.Errorf("%d records", len(got))
	}
}

// TestRefusedRecords: what breaks a limit is refused as a whole.
func TestRefusedRecords(t *testing.T) {
	s := openSpool(t, testConfig(), vfs.NewMem())
	for _, r := range []Record{{Category: ""}, {Category: strings.Repeat("x", 256)}, {Category: "a", Messages: -1}, {Category: "a", Messages: 1 << 32}} {
		if _, err := appendRecords(s, []Record{{Category: "a"}, r}, false); err == nil {
			t.Errorf("%.10q with %d messages was taken", r.Category, r.Messages)
		}
	}
	if _, err := appendRecords(s, []Record{{Category: "a", Data: make([]byte, 400<<10)}}, false); !errors.Is(err, ErrFull) {
		t.Errorf("more than MaxBytes: %v", err)
	}
	if refs, err := appendRecords(s, nil, false); refs != nil || err != nil {
		t.Errorf("nothing: %v, %v", refs, err)
	}
	if q := s.Queue("a"); q.Held != (Amount{}) {
		t.Errorf("held: %+v", q)
	}
	// One that is larger than a segment gets its own.
	big := payload("a", 1, 50<<10)
	if _, err := appendRecords(s, []Record{{Category: "a", Data: big}}, false); err != nil {
		t.Fatal(err)
	}
	if got := claimAll(t, s, "a"); len(got) != 1 || !bytes.Equal(got[0].Data, big) {
		t.Errorf("%d records", len(got))
	}
}

// TestClaimBuffer: data comes in the buffer if that is large enough, and nobody else's.
func TestClaimBuffer(t *testing.T) {
	s := openSpool(t, testConfig(), vfs.NewMem())
	for i := range 6 {
		appendOne(t, s, []string{"a", "b"}[i%2], i, 200, false)
	}
	buf := make([]byte, 0, 4096)
	got, err := s.Claim("a", 450, ^Position(0), buf)
	if err != nil || len(got) != 2 {
		t.Fatalf("%d records, %v, want the two that fit", len(got), err)
	}
	buf = buf[:cap(buf)]
	for i, g := range got {
		if want := payload("a", 2*i, 200); !bytes.Equal(g.Data, want) || !bytes.Contains(buf, want) {
			t.Errorf("record %d is not in the buffer", i)
		}
		if cap(g.Data) != len(g.Data) {
			t.Errorf("record %d may be appended to", i)
		}
	}
	if got, err = s.Claim("a", 1, ^Position(0), make([]byte, 3)); err != nil || len(got) != 1 || !bytes.Equal(got[0].Data, payload("a", 4, 200)) {
		t.Errorf("%d records, %v, want one in new memory", len(got), err)
	}
}

// TestDropByAge takes what is too old, and no more.
func TestDropByAge(t *testing.T) {
	var now atomic.Int64
	start := time.UnixMicro(1_700_000_000_000_000)
	now.Store(start.UnixMicro())
	c := testConfig()
	mem := vfs.NewMem()
	s, err := Open(c, Deps{FS: mem, Clock: func() time.Time { return time.UnixMicro(now.Load()) }})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		now.Store(start.Add(time.Duration(i) * time.Minute).UnixMicro())
		appendOne(t, s, "a", i, 700, false)
	}
	settle(t, s)
	first, err := s.Claim("a", 1500, ^Position(0), nil)
	if err != nil || len(first) != 2 {
		t.Fatal(err)
	}
	if q := s.Queue("a"); !q.Oldest.Equal(start) {
		t.Errorf("the oldest is of %v, want %v", q.Oldest, start)
	}
	if a := s.Drop("a", 0, start.Add(21*time.Minute), "test"); a.Records != 19 { // 2 to 20; 0 and 1 are claimed
		t.Errorf("dropped %+v, want 19 records", a)
	}
	if a := s.Drop("a", 1400, start, "test"); a.Records != 2 || a.Bytes != 1400 {
		t.Errorf("dropped %+v, want 2 records", a)
	}
	if a := s.Drop("a", 0, time.Time{}, "test"); a != (Amount{}) {
		t.Errorf("dropped %+v, want nothing", a)
	}
	if a := s.Drop("none", 100, time.Time{}, "test"); a != (Amount{}) {
		t.Errorf("dropped %+v of nothing", a)
	}
	s.Release(refsOfClaimed(first)...)
	check(t, s)
	got := claimAll(t, s, "a")
	if len(got) != 2+17 || string(got[2].Data) != string(payload("a", 23, 700)) {
		t.Errorf("%d records are left", len(got))
	}
	if d := s.Dropped()["a"]; d.Records != 21 {
		t.Errorf("dropped in all: %+v", d)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := openSpool(t, c, mem)
	if d := again.Dropped()["a"]; d.Records != 21 {
		t.Errorf("dropped in all, after a restart: %+v", d)
	}
}

// TestPinned: a category that nobody takes does not keep the space of the others, and its records and claims outlive the rewriting.
func TestPinned(t *testing.T) {
	mem := vfs.NewCrashableMem()
	d := newDisk(mem)
	c := testConfig()
	s := openSpool(t, c, d)
	var pinned []Ref
	for i := range 600 {
		if i%20 == 0 {
			pinned = append(pinned, appendOne(t, s, "pinned", i, 100, i%40 == 0))
		}
		ref := appendOne(t, s, "busy", i, 1500, true)
		s.Done(ref)
		if i%20 == 0 {
			settle(t, s)
		}
	}
	settle(t, s)
	check(t, s)
	if most := d.mostUsed(); most > c.MaxBytes {
		t.Errorf("the files took %d bytes, the limit is %d", most, c.MaxBytes)
	}
	if used, _ := s.Used(); used > c.MaxBytes*3/4 {
		t.Errorf("%d bytes are used for 30 records of 100 bytes", used)
	}
	s.mu.Lock()
	if !slices.ContainsFunc(s.mu.segments, func(g *segmentFile) bool { return g.id.Generation > 1 && g.id.First < g.id.Last }) {
		t.Error("no segments were made one")
	}
	s.mu.Unlock()
	clone := mem.CrashClone(vfs.CrashCloneCfg{})
	s.Release(pinned...)
	got := claimAll(t, s, "pinned")
	if len(got) != len(pinned) {
		t.Fatalf("%d records of %d", len(got), len(pinned))
	}
	for i := range got {
		if got[i].Ref != pinned[i] || !bytes.Equal(got[i].Data, payload("pinned", i*20, 100)) {
			t.Errorf("record %d is %+v, want %+v", i, got[i].Ref, pinned[i])
		}
	}
	s.Done(pinned...)
	settle(t, s)
	if q := s.Queues(); len(q) != 0 {
		t.Errorf("left: %+v", q)
	}
	again := openSpool(t, c, clone)
	if got := claimAll(t, again, "pinned"); len(got) != len(pinned) {
		t.Errorf("after a crash: %d records of %d", len(got), len(pinned))
	}
}

// TestFull: appends are refused at the limit and go on when records are done; the files never take more.
func TestFull(t *testing.T) {
	d := newDisk(vfs.NewMem())
	c := testConfig()
	s := openSpool(t, c, d)
	for round := range 3 {
		n := 0
		for ; ; n++ {
			if _, err := appendRecords(s, []Record{{Category: "a", Data: payload("a", n, 1000)}}, false); err != nil {
				if !errors.Is(err, ErrFull) {
					t.Fatal(err)
				}
				break
			}
		}
		if n < 100 {
			t.Errorf("round %d: full after %d records of 1000 bytes in %d", round, n, c.MaxBytes)
		}
		s.Done(refsOfClaimed(claimAll(t, s, "a"))...)
		settle(t, s)
	}
	if most := d.mostUsed(); most > c.MaxBytes || most < c.MaxBytes*3/4 {
		t.Errorf("the files took %d bytes, the limit is %d", most, c.MaxBytes)
	}
}

// TestIndexMemory: indexes of sealed segments stay under their bound, whatever is read.
func TestIndexMemory(t *testing.T) {
	c := testConfig()
	c.IndexBytes = 40 * entryBytes
	s := openSpool(t, c, vfs.NewMem())
	for i := range 800 {
		appendOne(t, s, fmt.Sprint(i%10), i, 50, false)
	}
	settle(t, s)
	for range 8 {
		for k := range 10 {
			if _, err := s.Claim(fmt.Sprint(k), 200, ^Position(0), nil); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			var sum int64
			for _, g := range s.mu.segments {
				for _, p := range g.parts {
					if s.mu.indexes.Contains(p) {
						sum += int64(len(p.entries)) * entryBytes
					}
				}
			}
			if sum != s.mu.indexes.used || sum > c.IndexBytes {
				t.Errorf("indexes take %d bytes, counted are %d, the limit is %d", sum, s.mu.indexes.used, c.IndexBytes)
			}
			s.mu.Unlock()
		}
	}
}

// TestUnsyncedBytes: an append waits for the disk when too much is not synced.
func TestUnsyncedBytes(t *testing.T) {
	d := newDisk(vfs.NewMem())
	c := testConfig()
	c.UnsyncedBytes = 4000
	s := openSpool(t, c, d)
	before := d.syncs.Load()
	for i := range 30 {
		appendOne(t, s, "a", i, 900, false)
		s.mu.Lock()
		if s.mu.unsynced > c.UnsyncedBytes {
			t.Errorf("%d bytes are not synced", s.mu.unsynced)
		}
		s.mu.Unlock()
	}
	if d.syncs.Load() == before {
		t.Error("nothing was synced")
	}
	// One that is larger goes alone.
	appendOne(t, s, "a", 31, 6000, false)
	if got := claimAll(t, s, "a"); len(got) != 31 {
		t.Errorf("%d records", len(got))
	}
}

// TestIntervals: what nobody syncs is synced after SyncInterval, and what is done is saved after StateInterval.
func TestIntervals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := vfs.NewCrashableMem()
		c := testConfig()
		c.SyncInterval, c.StateInterval = time.Second, 3*time.Second
		s := openSpool(t, c, mem)
		held := func() int {
			again := openSpool(t, c, mem.CrashClone(vfs.CrashCloneCfg{}))
			defer func() { _ = again.Close() }()
			return len(claimAll(t, again, "a"))
		}
		ref := appendOne(t, s, "a", 0, 100, true)
		appendOne(t, s, "a", 1, 100, false)
		if n := held(); n != 0 {
			t.Errorf("%d records are on disk at once", n)
		}
		<-time.After(1100 * time.Millisecond)
		synctest.Wait()
		if n := held(); n != 2 {
			t.Errorf("%d records are on disk after the interval", n)
		}
		s.Done(ref)
		<-time.After(2 * time.Second)
		if n := held(); n != 2 {
			t.Errorf("%d records are held after 2s", n)
		}
		<-time.After(2 * time.Second)
		synctest.Wait()
		if n := held(); n != 1 {
			t.Errorf("%d records are held after 4s", n)
		}
	})
}

// TestConcurrent runs everything at once, for the race detector: each record is done exactly once.
func TestConcurrent(t *testing.T) {
	const perWriter, writers = 150, 4
	c := testConfig()
	s := openSpool(t, c, newDisk(vfs.NewMem()))
	var mu sync.Mutex
	seen := map[string]int{}
	take := func(data []byte) {
		mu.Lock()
		defer mu.Unlock()
		seen[string(data)]++
	}
	total := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(seen)
	}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range perWriter {
				n, claimed := w*perWriter+i, i%3 == 0
				data := payload("x", n, 600)
				for {
					refs, err := appendRecords(s, []Record{{Category: "x", Messages: 1, Data: data}}, claimed)
					if errors.Is(err, ErrFull) {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					if i%10 == 0 {
						if err := s.Sync(t.Context()); err != nil {
							t.Error(err)
						}
					}
					if claimed && i%2 == 0 {
						take(data)
						s.Done(refs...)
					} else if claimed {
						s.Release(refs...)
					}
					break
				}
			}
		})
	}
	for range 2 {
		wg.Go(func() {
			buf := make([]byte, 8192)
			for round := 0; total() < writers*perWriter; round++ {
				got, err := s.Claim("x", 4000, ^Position(0), buf)
				if err != nil {
					t.Error(err)
					return
				}
				if round%7 == 3 {
					s.Release(refsOfClaimed(got)...)
					continue
				}
				for _, g := range got {
					take(g.Data)
				}
				s.Done(refsOfClaimed(got)...)
				s.Queues()
				s.Used()
			}
		})
	}
	wg.Wait()
	for data, n := range seen {
		if n != 1 {
			t.Errorf("%.8q was done %d times", data, n)
		}
	}
	check(t, s)
	if q := s.Queues(); len(q) > 0 {
		t.Errorf("left: %+v", q)
	}
}

// TestMetrics: names and values follow what happened.
func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	var log bytes.Buffer
	s, err := Open(testConfig(), Deps{FS: vfs.NewMem(), Registerer: reg, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	appendOne(t, s, "a", 1, 100, false)
	appendOne(t, s, "a", 2, 100, false)
	s.Drop("a", 1, time.Time{}, "test")
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"appended_messages_total": 5, "dropped_bytes_total": 100, "held_records": 1, "limit_bytes": 256 << 10, "segments": 1} {
		if got["scribe_scribed_spool_"+name] != want {
			t.Errorf("%s is %v, want %v", name, got["scribe_scribed_spool_"+name], want)
		}
	}
	if _, err := Open(testConfig(), Deps{FS: vfs.NewMem(), Registerer: reg}); err == nil {
		t.Error("a second spool with the same metrics was opened")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(testConfig(), Deps{FS: vfs.NewMem(), Registerer: reg})
	if err != nil {
		t.Fatalf("Close left its metrics: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}
