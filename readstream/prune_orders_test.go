package readstream

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
)

// TestPruningSequenced leaves pointers of a sequenced log out, by what was learned of the payloads that its records point to: the numbers of
// messages go on over them, and a stream goes on exactly where one was sent away.
func TestPruningSequenced(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHarness(t, func(c *Config) {
			c.SequencedWait, c.BatchEntries = time.Millisecond, rapid.IntRange(1, 20).Draw(rt, "batch")
		})
		s := h.withSchema()
		cat, _ := h.categories.Lookup(testCategory)
		h.categories.set(&scribev1.Category{
			Name: testCategory, Id: testCategoryID, Shards: 4, Schema: cat.GetSchema(), Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED,
		})
		log, total := sequenced.Log(testCategoryID), rapid.IntRange(1, 40).Draw(rt, "records")
		type fate uint8
		const (
			comes fate = 0
			left  fate = 1
			gap   fate = 2
		)
		fates := make([]fate, total)
		offset := uint64(0)
		offsets := make([]uint64, total)
		for i := range fates {
			lsn, known := record.LSN(i+1), rapid.IntRange(0, 5).Draw(rt, "known")
			rec := sequencedPointer(shardID(0, 1), lsn, offset)
			if known == 5 {
				rec = sequenced.Record{Kind: sequenced.KindGap, Source: shardID(0, 1), LSN: lsn, To: lsn + 1, Cause: sequenced.CauseTrimmed, Offset: offset}
				fates[i] = gap
			}
			h.sequence(rec)
			switch offsets[i] = offset; {
			case known == 0:
				h.learn(s, log, lsn, 404, rec.Pointer)
			case known <= 2:
				h.learn(s, log, lsn, 200, rec.Pointer)
				fates[i] = left
			case known == 3:
				h.learn(s, log, lsn, 200, h.pointerAt(log, lsn)) // the record is no pointer: this is of something else
			}
			if fates[i] != gap {
				offset += 10
			}
		}
		got := make([]fate, total)
		var resume []*scribev1.ShardPosition
		for at := 0; at < total; {
			few := uint32(rapid.IntRange(1, 10).Draw(rt, "credits"))
			opts := []option{earliest, filtered, withCredits(few, 1<<30)}
			if resume != nil {
				opts = append(opts, resumeAt(resume))
			}
			c, _ := h.open(opts...)
			began, wanted := int(c.at[uint64(log)])-1, 0 //nolint:gosec // few
			stop := began                                // where it waits for credits
			for ; stop < total && (fates[stop] == left || wanted < int(few)); stop++ {
				if fates[stop] == comes {
					wanted++
				}
			}
			if began != at {
				rt.Fatalf("the stream begins at %d, the one before ended at %d", began, at)
			}
			for int(c.at[uint64(log)])-1 < stop { //nolint:gosec // few
				if r := c.next(); r.GetGap() != nil {
					got[r.GetGap().GetFrom()-1] = gap
				}
			}
			for _, e := range c.got {
				if i := e.GetLsn() - 1; e.GetOffset() != offsets[i] || e.GetSourceLsn() != e.GetLsn() || fates[i] != comes {
					rt.Fatalf("%v came, its messages begin at %d", e, offsets[i])
				}
			}
			for _, k := range c.skipped {
				if last := k.GetTo() - 2; k.GetNextOffset() != offsets[last]+10 || k.GetMessages() != 10*(k.GetTo()-k.GetFrom()) {
					rt.Fatalf("%v was left out, its last messages begin at %d", k, offsets[last])
				}
				for i := k.GetFrom(); i < k.GetTo(); i++ {
					got[i-1] = left
				}
			}
			h.server.evict0()
			e := c.until(func(r *scribev1.StreamResponse) bool { return r.GetEvicted() != nil }).GetEvicted()
			if resume = e.GetResume(); len(resume) != 1 || resume[0].GetLsn() != uint64(stop)+1 || resume[0].GetLsn() != c.at[uint64(log)] {
				rt.Fatalf("it is to go on at %v, the stream was at %v", resume, c.at)
			}
			at = stop
			if err := c.end(); err != nil {
				rt.Fatal(err)
			}
			h.restart()
		}
		for i := range fates {
			if got[i] != fates[i] {
				rt.Fatalf("record %d of %d: %d, want %d", i, total, got[i], fates[i])
			}
		}
	})
}

// TestPruningByPlaceSequenced: where a pointer stands in a sequenced log says nothing of _persisted and _shard, which are its source's.
func TestPruningByPlaceSequenced(t *testing.T) {
	h := sequencedHarness(t)
	h.withSchema()
	cat, _ := h.categories.Lookup(testCategory)
	h.categories.set(&scribev1.Category{
		Name: testCategory, Id: testCategoryID, Shards: 4, Schema: cat.GetSchema(), Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED,
	})
	h.sequence(sequencedPointer(shardID(0, 1), 1, 0))
	// Its source has it from 1970; the sequenced log from now.
	c, _ := h.open(earliest, plenty, withFilter("SELECT status FROM "+`"`+testCategory+`"`+" WHERE _persisted < timestamp '1971-01-01'"))
	c.entries(1)
}

// TestPruningWithBuckets: a member of a group that filters is sent those pointers of its buckets that may match, is told of the others of its
// buckets, and nothing of those of others, which leave nothing behind in the stream.
func TestPruningWithBuckets(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		h := newHarness(t, func(c *Config) { c.BatchEntries = rapid.IntRange(1, 20).Draw(rt, "batch") })
		s := h.withSchema()
		all := shards(rapid.IntRange(1, 3).Draw(rt, "shards"))
		for range rapid.IntRange(1, 40).Draw(rt, "records") {
			h.write(10, all...)
		}
		scheme := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 8}
		sets := []bucket.Set{bucket.NewSet(8), bucket.NewSet(8)}
		for b := range uint32(8) {
			sets[rapid.IntRange(0, 1).Draw(rt, "owner")].Add(b)
		}
		sets[0].Add(0) // a member has some
		sets[1].Add(1)
		wanted := map[[2]uint64]bool{}
		for _, shard := range all {
			for lsn := record.FirstLSN; lsn < h.next[shard]; lsn++ {
				matches := rapid.Bool().Draw(rt, "matches")
				wanted[[2]uint64{uint64(shard), uint64(lsn)}] = matches
				status := int32(200)
				if matches {
					status = 404
				}
				h.learn(s, shard, lsn, status, h.pointerAt(shard, lsn))
			}
		}
		for _, set := range sets {
			mine, out := 0, 0
			for at, w := range wanted {
				switch own := set.Has(scheme.Of(record.ShardID(at[0]), record.LSN(at[1]))); {
				case own && w:
					mine++
				case own:
					out++
				}
			}
			// The harness's own check is of streams that leave nothing out.
			c := h.dial(earliest, plenty, filtered, withBuckets(scheme, set), withWindow(0))
			c.sparse = func(record.ShardID, record.LSN) (record.LSN, bool) { return 0, false }
			c.opened()
			messages := func() (n int) {
				for _, k := range c.skipped {
					n += int(k.GetMessages()) //nolint:gosec // few
				}
				return n
			}
			for len(c.got) < mine || messages() < out {
				c.next()
			}
			c.until(func(r *scribev1.StreamResponse) bool {
				return r.GetHeartbeat() != nil && r.GetHeartbeat().GetPending() == 0
			})
			if len(c.got) != mine || messages() != out {
				rt.Fatalf("%d pointers came of %d, %d were left out of %d", len(c.got), mine, messages(), out)
			}
			seen := map[[2]uint64]bool{}
			for _, e := range c.got {
				at := [2]uint64{e.GetShard(), e.GetLsn()}
				if seen[at] || !wanted[at] || !set.Has(scheme.Of(record.ShardID(at[0]), record.LSN(at[1]))) {
					rt.Fatalf("%v came, twice or to the wrong member", at)
				}
				seen[at] = true
			}
			for _, k := range c.skipped {
				for _, end := range []uint64{k.GetFrom(), k.GetTo() - 1} {
					if at := [2]uint64{k.GetShard(), end}; wanted[at] || !set.Has(scheme.Of(record.ShardID(at[0]), record.LSN(at[1]))) {
						rt.Fatalf("%v is left out, and is not this member's or matches", k)
					}
				}
			}
			for _, st := range h.server.openStreams() {
				st.mu.Lock()
				left := len(st.mu.left)
				st.mu.Unlock()
				if left > 0 {
					rt.Fatalf("%d pointers are remembered that are passed", left)
				}
			}
			c.close()
		}
	})
}
