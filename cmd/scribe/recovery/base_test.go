package recovery

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

const watermark = created + 50_000

// baseLog is a log of a base: the blobs of its records from LSN first on.
type baseLog struct {
	shard record.ShardID
	first record.LSN
	blobs []int
	epoch uint64
}

// baseOf makes a copy of logs whose records point to blobs in a store. Blobs from before the n-th are older than its boundary.
func baseOf(t *testing.T, store blob.Store, boundary int, logs ...baseLog) Base {
	t.Helper()
	fs := vfs.NewMem()
	r, err := pebblelog.NewRestorer("base", pebblelog.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range logs {
		st := metalog.State{Shard: l.shard, FirstLSN: l.first, NextLSN: l.first, Epoch: l.epoch}
		for _, n := range l.blobs {
			f, err := layout.ReadFooter(t.Context(), store, keyOf(n))
			must(err)
			i := slices.IndexFunc(f.Entries, func(e layout.Entry) bool { return e.Shard == l.shard })
			st.LastTime = created + int64(n)*1000
			must(r.Record(l.shard, st.NextLSN, st.LastTime, pointer.Append(nil, &f.Entries[i].Pointer)))
			st.NextLSN++
		}
		must(r.Producer(l.shard, metalog.ProducerState{Producer: 7, Epoch: 1, Next: 10}, max(st.NextLSN-1, 1), created))
		must(r.Shard(st))
	}
	r.Retire(99)
	must(r.Finish(blobID(boundary).Time(), watermark, pebblelog.Origin{}))
	c, err := pebblelog.OpenCopy("base", pebblelog.Options{FS: fs})
	must(err)
	t.Cleanup(func() { must(c.Close()) })
	return c
}

// restoreAll runs a recovery that begins with a base and a control store of the same time.
func restoreAll(t *testing.T, store blob.Store, base Base, retention time.Duration, edit func(*Config, *Deps)) (*logs, *Report, []Finding) {
	t.Helper()
	return recoverAll(t, store, func(c *Config, d *Deps) {
		d.Base, d.Watermark = base, watermark
		c.Catalog = &Catalog{Older: true, NextID: 20, SavedAt: watermark, Categories: []*scribev1.Category{{Name: "web", Id: 17, Shards: 1, Retention: durationpb.New(retention)}}}
		if edit != nil {
			edit(c, d)
		}
	})
}

// TestBaseDecides: what the base has was committed, and nothing else that claims its positions; nor what claims a later one in an earlier epoch. What follows it is taken from the blobs, and the
// footers of blobs that can't be later than the base are not needed.
func TestBaseDecides(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 5, 1, 0}, at{web, 5, 2, 1}, at{web, 5, 2, 2}, at{web, 5, 3, 3}, at{web, 5, 4, 4}, at{web, 4, 5, 5}, at{web, 6, 5, 6})
	base := baseOf(t, store, 2, baseLog{web, 1, []int{0, 1, 3}, 5}, baseLog{orders, 1, []int{}, 3})
	l, report, findings := restoreAll(t, store, base, 100*time.Hour, nil)
	want := []at{{web, 0, 1, 0}, {web, 0, 2, 1}, {web, 0, 3, 3}, {web, 0, 4, 4}, {web, 0, 5, 6}}
	if got := l.list(t); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if report.Settled != 2 || report.Read != 5 || report.Copied != 3 || report.Records != 5 || !report.Whole() || report.NextID != 20+IDMargin || len(kinds(findings)) != int(report.Void) || report.Void != 2 {
		t.Errorf("%+v, %v", report, findings)
	}
	st := l.states[web]
	if st.Epoch != 6+EpochMargin || st.FirstLSN != 1 || st.NextLSN != 6 || st.LastTime < watermark || report.Clock < watermark {
		t.Errorf("%+v", st)
	}
	if records := l.records[web]; records[2].Time != created+3000 || records[3].Time < watermark {
		t.Errorf("times %d and %d", records[2].Time, records[3].Time)
	}
	// The category of orders is in no control store, and 99 was retired.
	slices.Sort(l.retired)
	if !slices.Equal(l.retired, []uint32{orders.Category(), 99}) {
		t.Errorf("retired %v", l.retired)
	}
	if p := l.producers[web][7]; p != (metalog.ProducerState{Producer: 7, Epoch: 1, Next: 10}) {
		t.Errorf("%+v", p)
	}
}

// TestBaseEpoch: a writer of before the epoch of the base has committed nothing behind it, also if no blob of a later epoch shows that.
func TestBaseEpoch(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 5, 1, 0}, at{web, 4, 2, 1})
	l, report, _ := restoreAll(t, store, baseOf(t, store, 1, baseLog{web, 1, []int{0}, 5}), 100*time.Hour, nil)
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}}) || report.Void != 1 || l.states[web].NextLSN != 2 {
		t.Errorf("%v, %+v", got, report)
	}
}

// TestBaseWithoutBlobs: pointers to blobs that are gone do not come back: at the beginning of a log they are left out, elsewhere there is a gap. It is told of messages that should still be there.
func TestBaseWithoutBlobs(t *testing.T) {
	for name, test := range map[string]struct {
		retention  time.Duration
		lost, gaps int64
		expired    int64
	}{"kept": {100 * time.Hour, 3, 2, 0}, "expired": {time.Minute, 0, 0, 3}} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			putAll(t, store, at{web, 5, 1, 0}, at{web, 5, 2, 1}, at{web, 5, 3, 2}, at{web, 5, 4, 3}, at{web, 5, 5, 4})
			base := baseOf(t, store, 10, baseLog{web, 1, []int{0, 1, 2, 3, 4}, 5})
			for _, n := range []int{0, 1, 3} {
				if err := store.Delete(t.Context(), keyOf(n)); err != nil {
					t.Fatal(err)
				}
			}
			l, report, findings := restoreAll(t, store, base, test.retention, nil)
			want := []at{{web, 0, 3, 2}, {web, 0, 4, -1}, {web, 0, 5, 4}}
			if got := l.list(t); !slices.Equal(got, want) {
				t.Errorf("%v, want %v", got, want)
			}
			if st := l.states[web]; st.FirstLSN != 3 || st.NextLSN != 6 || report.Lost != test.lost || report.Gaps != test.gaps || report.Expired != test.expired || int64(len(kinds(findings))) != test.gaps {
				t.Errorf("%+v, %+v, %v", st, report, findings)
			}
		})
	}
}

// TestBaseGap: a record that was committed after the base, and is in no blob, is a gap behind it.
func TestBaseGap(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 5, 1, 0}, at{web, 5, 3, 1})
	l, report, _ := restoreAll(t, store, baseOf(t, store, 0, baseLog{web, 1, []int{0}, 5}), 100*time.Hour, nil)
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}, {web, 0, 2, -1}, {web, 0, 3, 1}}) || report.Lost != 1 {
		t.Errorf("%v, %+v", got, report)
	}
	if times := l.records[web]; times[1].Time < watermark || times[2].Time < times[1].Time || l.states[web].LastTime != times[2].Time {
		t.Errorf("%+v, %+v", times, l.states[web])
	}
}

// TestBaseEnds: a log of which nothing is later than the base goes on behind it, whatever has expired, if retention has not run since for what could be missing. Else it begins anew.
func TestBaseEnds(t *testing.T) {
	for name, test := range map[string]struct {
		trimmed int64
		blobs   []int
		anew    bool
	}{
		"retention never ran":     {0, []int{0}, false},
		"nothing can be missing":  {watermark + time.Minute.Microseconds() - 1, []int{0}, false},
		"an empty log":            {watermark + time.Minute.Microseconds() - 1, nil, false},
		"something may have been": {watermark + time.Minute.Microseconds(), []int{0}, true},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory.New()
			putAll(t, store, at{web, 5, 3, 0})
			base := baseOf(t, store, 1, baseLog{web, 3, test.blobs, 5})
			l, report, _ := restoreAll(t, store, base, time.Minute, func(c *Config, _ *Deps) { c.TrimmedUntil = test.trimmed })
			next := record.LSN(3 + len(test.blobs))
			if test.anew {
				next = report.Origin
			}
			if st := l.states[web]; st.NextLSN != next {
				t.Errorf("%+v, want next %d", st, next)
			}
		})
	}
}

// TestBaseSequences: an uncertain blob that repeats sequences which the base knows was not committed.
func TestBaseSequences(t *testing.T) {
	store := memory.New()
	once := func(lsn record.LSN, first, last uint64) layout.Entry {
		return layout.Entry{Shard: web, Epoch: 5, LSN: lsn, Start: 1, Pointer: pointer.Pointer{Sequences: []pointer.Sequence{{Producer: 7, Epoch: 1, First: first, Last: last}}}}
	}
	put(t, store, 0, layout.History{Run: 1, Build: 1}, once(1, 1, 9))
	base := baseOf(t, store, 1, baseLog{web, 1, []int{0}, 5})
	put(t, store, 1, layout.History{Run: 2, Build: 1}, once(2, 5, 9))
	l, report, _ := restoreAll(t, store, base, 100*time.Hour, nil)
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}}) || l.producers[web][7].Next != 10 || report.Void != 1 {
		t.Errorf("repeated: %v, %+v, %+v", got, l.producers, report)
	}
	put(t, store, 2, layout.History{Run: 3, Build: 1}, once(2, 10, 11))
	l, report, _ = restoreAll(t, store, base, 100*time.Hour, nil)
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}, {web, 0, 2, 2}}) || l.producers[web][7].Next != 12 {
		t.Errorf("continued: %v, %+v, %+v", got, l.producers, report)
	}
}

// TestUntil: what is later than the moment has placeholders, and so has all behind it in the log. Sequences stay used.
func TestUntil(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 5, 1, 0}, at{web, 5, 2, 1}, at{web, 5, 4, 2})
	put(t, store, 5, layout.History{}, layout.Entry{Shard: web, Epoch: 5, LSN: 3, Pointer: pointer.Pointer{Sequences: []pointer.Sequence{{Producer: 7, Epoch: 1, First: 10, Last: 12}}}})
	base := baseOf(t, store, 1, baseLog{web, 1, []int{0}, 5})
	l, report, findings := restoreAll(t, store, base, 100*time.Hour, func(c *Config, _ *Deps) { c.Until = blobID(2).Time() })
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}, {web, 0, 2, 1}, {web, 0, 3, -2}, {web, 0, 4, -2}}) {
		t.Errorf("%v", got)
	}
	if st := l.states[web]; st.NextLSN != 5 || report.Cut != 2 || report.Messages != 2 || !report.Whole() || l.producers[web][7].Next != 13 {
		t.Errorf("%+v, %+v, %+v", st, report, l.producers)
	}
	i := slices.IndexFunc(findings, func(f Finding) bool { return f.Kind == FindingCut })
	if i < 0 || findings[i].From != 3 || findings[i].To != 5 || !strings.Contains(findings[i].Reason, "later than the moment") {
		t.Errorf("%+v", findings)
	}
}
