package readstream

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/schema"
	"scribe/columnar/schema/schematest"
	"scribe/columnar/zone"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/role/zonenote"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// withSchema gives the test's category a schema, and returns it.
func (h *harness) withSchema() *schema.Schema {
	h.t.Helper()
	history := schematest.History(h.t, "format: json\nfields:\n  - {name: status, type: int32}\n")
	h.categories.set(&scribev1.Category{Name: testCategory, Id: testCategoryID, Shards: 4, Schema: history.Marshal()})
	return history.Latest()
}

// learn writes the zone map of a payload with one row beside a record.
func (h *harness) learn(s *schema.Schema, shard record.ShardID, lsn record.LSN, status int32, pointer []byte) {
	h.t.Helper()
	b := zone.NewBuilder(zone.Define(s))
	b.AddRows(1)
	values := array.NewInt32Builder(memory.DefaultAllocator)
	values.Append(status)
	b.AddArray("status", values.NewArray())
	note := metalog.Annotation{Shard: shard, LSN: lsn, Kind: metalog.AnnotationZones, Data: zonenote.Encode(pointer, b.Map())}
	if n, err := h.engine.Annotate(h.t.Context(), []metalog.Annotation{note}); err != nil || n != 1 {
		h.t.Fatal(n, err)
	}
}

func withFilter(text string) option {
	return func(s *scribev1.StreamStart) {
		s.Filter = &scribev1.Query{Text: text, SchemaVersion: 1, Now: time.Now().UnixMicro()}
	}
}

// filtered selects rows with the status 404 of the test's category.
var filtered = withFilter("SELECT status FROM " + `"` + testCategory + `"` + " WHERE status = 404")

// pointerAt returns the pointer of a record.
func (h *harness) pointerAt(shard record.ShardID, lsn record.LSN) []byte {
	h.t.Helper()
	entries, err := h.engine.Read(h.t.Context(), shard, lsn, 1, 0)
	if err != nil || len(entries) != 1 {
		h.t.Fatal(len(entries), err)
	}
	return entries[0].Data
}

// TestPruning leaves out what can't match, and nothing else, at any credits, and goes on where it was sent away.
func TestPruning(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHarness(t, func(c *Config) {
			c.BatchEntries = rapid.IntRange(1, 20).Draw(rt, "batch")
		})
		h.log.mu.oneNote = rapid.Bool().Draw(rt, "one note an answer")
		s := h.withSchema()
		all := shards(rapid.IntRange(1, 3).Draw(rt, "shards"))
		for range rapid.IntRange(1, 30).Draw(rt, "records") {
			h.write(10, all...)
		}
		wanted := map[[2]uint64]bool{} // whether the pointer is to come
		for _, shard := range all {
			for lsn := record.FirstLSN; lsn < h.next[shard]; lsn++ {
				at := [2]uint64{uint64(shard), uint64(lsn)}
				wanted[at] = true
				switch rapid.IntRange(0, 4).Draw(rt, "known") {
				case 0:
					h.learn(s, shard, lsn, 404, h.pointerAt(shard, lsn))
				case 1, 2:
					h.learn(s, shard, lsn, 200, h.pointerAt(shard, lsn))
					wanted[at] = false
				case 3:
					h.learn(s, shard, lsn, 200, encoded(7)) // of another pointer: it is not to be believed
				}
			}
		}
		want, out := 0, 0
		for _, w := range wanted {
			if w {
				want++
			} else {
				out++
			}
		}
		window := withWindow(time.Duration(rapid.SampledFrom([]int64{0, int64(time.Hour)}).Draw(rt, "window")))
		var got []*scribev1.StreamEntry
		var resume []*scribev1.ShardPosition
		skips := 0
		for turn := 0; len(got) < want || skips < out; turn++ {
			// The last turn has credits for all that there is to come; those before for a few.
			few := uint32(rapid.IntRange(1, 10).Draw(rt, "credits"))
			if turn > 2 {
				few = 1000
			}
			opts := []option{earliest, filtered, window, withCredits(few, 1<<30)}
			if resume != nil {
				opts = append(opts, resumeAt(resume))
			}
			c, _ := h.open(opts...)
			had := 0
			for had < min(int(few), want-len(got)) || few == 1000 && skips+count(c.skipped) < out {
				c.next()
				had = len(c.got)
			}
			_ = c.heartbeat() // what is left out behind the last entry has been told
			h.server.evict0()
			e := c.until(func(r *scribev1.StreamResponse) bool { return r.GetEvicted() != nil }).GetEvicted()
			resume = e.GetResume()
			for _, e := range c.got {
				if !wanted[[2]uint64{e.GetShard(), e.GetLsn()}] {
					rt.Fatalf("%v came although it can't match", e)
				}
			}
			got = append(got, c.got...)
			skips += count(c.skipped)
			if err := c.end(); err != nil {
				rt.Fatal(err)
			}
			for _, p := range resume {
				if p.GetLsn() != c.at[p.GetShard()] {
					rt.Fatalf("shard %d is to go on at %d, the stream was at %d", p.GetShard(), p.GetLsn(), c.at[p.GetShard()])
				}
			}
			h.restart()
		}
		seen := map[[2]uint64]bool{}
		for _, e := range got {
			at := [2]uint64{e.GetShard(), e.GetLsn()}
			if seen[at] || !wanted[at] {
				rt.Fatalf("%v came although it can't match, or twice", at)
			}
			seen[at] = true
		}
		if len(seen) != want || skips != out {
			rt.Fatalf("%d pointers came of %d, %d were left out of %d", len(seen), want, skips, out)
		}
	})
}

// count is how many pointers runs stand for.
func count(runs []*scribev1.StreamSkip) int {
	n := 0
	for _, r := range runs {
		n += int(r.GetMessages()) // one a pointer, in these tests
	}
	return n
}

// evict0 sends all streams away, as a server that is busier than others does.
func (s *Server) evict0() {
	for _, st := range s.openStreams() {
		st.sendAway(evictionNotice{scribev1.Reason_REASON_OVERLOADED, "a test"})
	}
}

// A record that was handed out in part before comes first, older ones of other shards wait: what is left out of these is not taken for it.
func TestPruningBehindARecordThatWasBegun(t *testing.T) {
	h := newHarness(t)
	s := h.withSchema()
	older, begun := shardID(0, 1), shardID(1, 1)
	h.write(1, older)
	h.write(1, begun)
	h.learn(s, older, 1, 200, h.pointerAt(older, 1))
	resume := resumeAt([]*scribev1.ShardPosition{{Shard: uint64(older), Lsn: 1}, {Shard: uint64(begun), Lsn: 1, Skip: 3}})
	c, _ := h.open(plenty, filtered, resume, withWindow(0))
	c.until(func(*scribev1.StreamResponse) bool { return len(c.skipped) > 0 })
	c.entries(1)
	if e := c.got[0]; e.GetShard() != uint64(begun) || c.skipped[0].GetShard() != uint64(older) {
		t.Errorf("%v came, %v was left out", e, c.skipped[0])
	}
}

// A record that was begun and is of a member's buckets comes, although an older one is not.
func TestBucketsOfARecordThatWasBegun(t *testing.T) {
	h := newHarness(t)
	scheme, set := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}, bucket.NewSet(16)
	others, own := shardID(0, 1), shardID(1, 1)
	set.Add(scheme.Of(own, 1))
	if set.Has(scheme.Of(others, 1)) {
		t.Fatal("both are in one bucket: the test does not test")
	}
	h.write(1, others)
	h.write(1, own)
	resume := resumeAt([]*scribev1.ShardPosition{{Shard: uint64(others), Lsn: 1}, {Shard: uint64(own), Lsn: 1, Skip: 3}})
	c := h.ofBuckets(scheme, set, plenty, resume, withWindow(0))
	c.entries(1)
	if e := c.got[0]; e.GetShard() != uint64(own) {
		t.Errorf("%v came", e)
	}
}

// What is kept of pointers that will be left out goes with them, also of those that others are sent, or that were trimmed meanwhile.
func TestNothingIsKeptOfWhatWasLeftOut(t *testing.T) {
	h := newHarness(t)
	s := h.withSchema()
	shard := shardID(0, 1)
	const records = 200
	for range records {
		h.write(1, shard)
	}
	for lsn := range record.LSN(records) {
		h.learn(s, shard, lsn+1, 200, h.pointerAt(shard, lsn+1))
	}
	scheme, set := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}, bucket.NewSet(16)
	set.Add(3)
	c := h.ofBuckets(scheme, set, earliest, plenty, filtered)
	for c.heartbeat().GetPending() > 0 {
	}
	if n := count(c.skipped); n == 0 || len(c.got) > 0 {
		t.Fatalf("%d were left out, %d came", n, len(c.got))
	}
	st := h.server.openStreams()[0]
	st.mu.Lock()
	defer st.mu.Unlock()
	if n := len(st.mu.left); n > 0 {
		t.Errorf("%d are kept", n)
	}
	// Those that were handed out before they were judged, and those that there was no room for.
	if st.keepPruned(shard, map[record.LSN]prunedPointer{1: {}, records: {}, records + 1: {}}); len(st.mu.left) > 0 {
		t.Errorf("%v is kept", st.mu.left)
	}
	// Those of a gap.
	st.mu.left = map[recordPlace]prunedPointer{{shard, records + 1}: {}, {shard, records + 2}: {}, {shard, records + 3}: {}}
	st.forgetPruned(&merge.Item{Kind: merge.Gap, Shard: shard, LSN: records + 1, To: records + 3})
	if _, ok := st.mu.left[recordPlace{shard, records + 3}]; !ok || len(st.mu.left) != 1 {
		t.Errorf("%v is kept", st.mu.left)
	}
}

// What is kept of pointers that will be left out takes no more than the records that a stream holds: it goes when these are given back, and comes
// again with them.
func TestWhatWillBeLeftOutIsBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) {
		c.StreamBytes, c.TotalBytes = metalog.MaxRecord, metalog.MaxRecord
		c.ReadGrace, c.ReadTimeout = patience, patience
	})
	s := h.withSchema()
	shard := shardID(0, 1)
	const records, every = 2000, 10
	for range records {
		h.write(1, shard)
	}
	for lsn := range record.LSN(records) {
		if lsn%every > 0 {
			h.learn(s, shard, lsn+1, 200, h.pointerAt(shard, lsn+1))
		}
	}
	const first = records / every / 2
	c, _ := h.open(earliest, filtered, withCredits(first, 1<<30))
	c.entries(first)
	c.heartbeat() // it waits for credits
	st := h.server.openStreams()[0]
	held := func() (kept, records int) {
		st.mu.Lock()
		defer st.mu.Unlock()
		from, to := st.merge.Held(shard)
		for at := range st.mu.left {
			if at.lsn < from || at.lsn >= to {
				t.Errorf("LSN %d is kept, the records are %d to %d", at.lsn, from, to)
			}
		}
		return len(st.mu.left), int(to - from)
	}
	before, _ := held()
	for range 9 { // others, with which it shares the memory
		t.Cleanup(merge.New(merge.Options{Budget: h.server.budget}).Close)
	}
	if given := st.shrinkToShare(); given == 0 {
		t.Fatal("nothing was given back: the test does not test")
	}
	if kept, n := held(); before == 0 || kept >= before || kept > n {
		t.Errorf("%d are kept of %d records, before it were %d", kept, n, before)
	}
	c.credit(records, 1<<30)
	c.entries(records / every)
	for c.heartbeat().GetPending() > 0 {
	}
	if n := count(c.skipped); n != records-records/every {
		t.Errorf("%d pointers were left out, want %d", n, records-records/every)
	}
}

// An engine that does not say what was learned delays a stream a little, and has nothing left out.
func TestAnnotationsThatDoNotCome(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		s := h.withSchema()
		shard := shardID(0, 1)
		h.write(1, shard)
		h.learn(s, shard, 1, 200, h.pointerAt(shard, 1))
		h.log.mu.deafNotes = true
		began := time.Now()
		c, _ := h.open(earliest, plenty, filtered)
		c.entries(1)
		if took := time.Since(began); took > 2*annotationsTimeout || len(c.skipped) > 0 {
			t.Errorf("it took %v, and left out %v", took, c.skipped)
		}
		if n := h.metric("log_errors_total"); n != 1 {
			t.Errorf("%v failed calls were counted", n)
		}
	}, func(c *Config) { c.ReadGrace = DefaultConfig().ReadGrace })
}

// TestPruningByPlace leaves out what was persisted too early, of which nothing was learned.
func TestPruningByPlace(t *testing.T) {
	h := newHarness(t)
	h.withSchema()
	shard := shardID(0, 1)
	for range 10 {
		h.write(1, shard)
	}
	entries, err := h.engine.Read(t.Context(), shard, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	from := time.UnixMicro(entries[6].Time).UTC().Format("2006-01-02 15:04:05.000000")
	late := 0
	for _, e := range entries {
		if e.Time >= entries[6].Time {
			late++
		}
	}
	c, _ := h.open(earliest, plenty, withFilter("SELECT status FROM "+`"`+testCategory+`"`+" WHERE _persisted >= timestamp '"+from+"'"))
	c.entries(late)
	if n := count(c.skipped); n != 10-late {
		t.Errorf("%d pointers were left out", n)
	}
	if n := h.metric("pruned_pointers_total"); n != float64(10-late) {
		t.Errorf("%v pointers were counted", n)
	}
}

func TestFiltersThatAreNone(t *testing.T) {
	h := newHarness(t)
	h.withSchema()
	h.write(1, shardID(0, 1))
	for name, text := range map[string]string{
		"no query": "", "no SQL": "SELECT", "no such column": "SELECT stauts FROM " + `"` + testCategory + `"`, "long": strings.Repeat("x", 1<<20),
		"of another category": "SELECT status FROM other",
	} {
		c := h.dial(earliest, plenty, withFilter(text))
		if err := c.end(); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("%s: %v", name, err)
		}
	}
	version := func(s *scribev1.StreamStart) { s.Filter.SchemaVersion = 3 }
	if err := h.dial(earliest, plenty, filtered, version).end(); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
		t.Errorf("a version that is not there: %v", err)
	}
	c, _ := h.open(earliest, plenty, filtered)
	c.entries(1)
	if slices.Contains([]int{1}, count(c.skipped)) {
		t.Error("what nothing is known of was left out")
	}
}
