package readstream

import (
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

func TestTrimmedPositionsAreGaps(t *testing.T) {
	h := newHarness(t)
	shard := shardID(0, 1)
	for range 10 {
		h.write(1, shard)
	}
	if err := h.engine.Trim(t.Context(), shard, 5); err != nil {
		t.Fatal(err)
	}
	c, _ := h.open(plenty, resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shard), Lsn: 2}}))
	c.entries(6)
	if c.got[0].GetLsn() != 5 {
		t.Fatalf("the first entry is %v", c.got[0])
	}
	if got := h.metric("gap_pointers_total"); got != 3 {
		t.Fatalf("%v pointers in gaps, want 3", got)
	}
	// Everything is gone, and the shard idle.
	if err := h.engine.Trim(t.Context(), shard, 11); err != nil {
		t.Fatal(err)
	}
	c, _ = h.open(resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shard), Lsn: 2}}))
	gap := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
	if gap.GetFrom() != 2 || gap.GetTo() != 11 || gap.GetReason() != scribev1.Reason_REASON_TRIMMED {
		t.Fatalf("got %v", gap)
	}
}

// newRecoveredHarness returns a cell after a recovery that found no log: each begins at the origin.
func newRecoveredHarness(t *testing.T, origin record.LSN) *harness {
	t.Helper()
	fs := vfs.NewMem()
	r, err := pebblelog.NewRestorer("log", pebblelog.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(1, 1, pebblelog.Origin{LSN: origin, End: testCategoryID + 1}); err != nil {
		t.Fatal(err)
	}
	return newHarnessOn(t, fs)
}

// Who resumes in a log that a recovery did not find is told of a gap, whether the log was opened again or not, and then gets what is
// written after the recovery, also once the log has more records than before.
func TestLostLogsAreGaps(t *testing.T) {
	const origin = 1 << 50
	h := newRecoveredHarness(t, origin)
	opened, absent := shardID(0, 1), shardID(0, 2)
	for range 20 {
		h.write(1, opened)
	}
	c, _ := h.open(plenty, resumeAt([]*scribev1.ShardPosition{{Shard: uint64(opened), Lsn: 14}, {Shard: uint64(absent), Lsn: 7}}))
	gaps := map[uint64]*scribev1.StreamGap{}
	for len(gaps) < 2 {
		g := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
		gaps[g.GetShard()] = g
	}
	for shard, from := range map[record.ShardID]uint64{opened: 14, absent: 7} {
		if g := gaps[uint64(shard)]; g.GetFrom() != from || g.GetTo() != origin || g.GetReason() != scribev1.Reason_REASON_TRIMMED {
			t.Errorf("shard %v: %v", shard, g)
		}
	}
	h.write(1, absent)
	c.entries(21)
	if got := h.metric("gap_pointers_total"); got != 0 {
		t.Errorf("%v pointers in gaps: how many there were is not known", got)
	}
}

// Who has read nothing of such a log is not told of missing messages, however it comes to the log: its position moves to where the log
// began. What was trimmed since is a gap all the same.
func TestLostLogsBeginAtTheirOrigin(t *testing.T) {
	const origin = 1 << 50
	for name, test := range map[string]struct {
		change  func(*scribev1.StreamStart)
		late    bool // the log appears once the stream is there
		trimmed record.LSN
		quiet   bool // there is a gap up to the origin, without a word
	}{
		"from the beginning":       {change: func(s *scribev1.StreamStart) { s.StartAt = scribev1.StartAt_START_AT_EARLIEST }, quiet: true},
		"a log that appears":       {change: func(s *scribev1.StreamStart) { s.StartAt = scribev1.StartAt_START_AT_EARLIEST }, late: true, quiet: true},
		"a checkpoint of others":   {change: resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 2)), Lsn: 7}}), quiet: true},
		"at LSN 1":                 {change: resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 1}}), quiet: true},
		"within LSN 1":             {change: resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 1, Skip: 1}})},
		"at LSN 1, trimmed since":  {change: resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 1}}), trimmed: origin + 2, quiet: true},
		"behind LSN 1, and beyond": {change: resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 9}}), trimmed: origin + 2},
	} {
		t.Run(name, func(t *testing.T) {
			h := newRecoveredHarness(t, origin)
			shard := shardID(0, 1)
			write := func() {
				for range 5 {
					h.write(1, shard)
				}
			}
			if !test.late {
				write()
			}
			if test.trimmed != 0 {
				if err := h.engine.Trim(t.Context(), shard, test.trimmed); err != nil {
					t.Fatal(err)
				}
			}
			c, _ := h.open(plenty, test.change)
			if test.late {
				write()
			}
			var quiet, told []*scribev1.StreamGap
			for entries := 0; entries < 5-int(max(test.trimmed, origin)-origin); {
				m := c.until(func(r *scribev1.StreamResponse) bool {
					return r.GetGap().GetShard() == uint64(shard) || len(r.GetEntries().GetEntries()) > 0
				})
				entries += len(m.GetEntries().GetEntries())
				switch g := m.GetGap(); {
				case g.GetBeforeOrigin():
					quiet = append(quiet, g)
				case g != nil:
					told = append(told, g)
				}
			}
			if len(quiet) == 1 != test.quiet || test.quiet && (quiet[0].GetFrom() != 1 || quiet[0].GetTo() != origin) {
				t.Errorf("up to the origin: %v", quiet)
			}
			if want := !test.quiet || test.trimmed != 0; len(told) == 1 != want {
				t.Errorf("told of %v", told)
			}
			for _, g := range told {
				if g.GetTo() != uint64(max(test.trimmed, origin)) || len(quiet) == 1 && g.GetFrom() != origin {
					t.Errorf("told of %v", g)
				}
			}
		})
	}
}

// writeAndRemove writes records to a shard, trims them, and removes the shard. It returns the time of the newest one.
func (h *harness) writeAndRemove(shard record.ShardID, records int) int64 {
	h.t.Helper()
	for range records {
		h.write(1, shard)
	}
	return h.remove(shard)
}

// remove trims and removes a shard, and returns the time of its newest record.
func (h *harness) remove(shard record.ShardID) int64 {
	h.t.Helper()
	states, err := h.engine.Tail(h.t.Context(), []record.ShardID{shard})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := h.engine.Trim(h.t.Context(), shard, states[0].NextLSN); err != nil {
		h.t.Fatal(err)
	}
	if n, err := h.engine.Remove(h.t.Context(), []metalog.Unused{{Shard: shard, Epoch: states[0].Epoch}}); n != 1 || err != nil {
		h.t.Fatalf("%d logs were removed, %v", n, err)
	}
	return states[0].LastTime
}

func knownUntil(at int64) option {
	return func(s *scribev1.StreamStart) { s.KnownUntil = at }
}

// gapsUntil reads until an entry of a shard has come, and returns the gaps before it: those that the reader is told of, and those up to an origin.
func (c *client) gapsUntil(shard record.ShardID) (told, quiet []*scribev1.StreamGap) {
	c.t.Helper()
	for {
		m := c.next()
		if g := m.GetGap(); g.GetBeforeOrigin() {
			quiet = append(quiet, g)
		} else if g != nil {
			told = append(told, g)
		}
		for _, e := range m.GetEntries().GetEntries() {
			if e.GetShard() == uint64(shard) {
				return told, quiet
			}
		}
	}
}

// isGap reports whether gaps are one of a shard that is told as trimmed.
func isGap(gaps []*scribev1.StreamGap, shard record.ShardID, from, to uint64) bool {
	return len(gaps) == 1 && gaps[0].GetShard() == uint64(shard) && gaps[0].GetFrom() == from && gaps[0].GetTo() == to &&
		gaps[0].GetReason() == scribev1.Reason_REASON_TRIMMED && !gaps[0].GetBeforeOrigin()
}

// Who was away while a log was written, trimmed and removed is told of the gap if it may have missed something: unless it says that it knew the
// logs at a later time. That also holds once the log is back.
func TestRemovedWhileAway(t *testing.T) {
	h := newHarness(t)
	known, gone := shardID(0, 1), shardID(0, 2)
	h.write(1, known)
	last := h.writeAndRemove(gone, 5)
	resume := resumeAt([]*scribev1.ShardPosition{{Shard: uint64(known), Lsn: 2}})
	for until, owed := range map[int64]bool{0: true, 1: true, last: true, last + 1: false} {
		c, opened := h.open(plenty, resume, knownUntil(until))
		if follows := len(opened.GetShards()) == 2; follows != owed {
			t.Fatalf("known until %d of %d: the stream has %v", until, last, opened.GetShards())
		}
		if owed {
			gap := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
			if !isGap([]*scribev1.StreamGap{gap}, gone, 1, 6) {
				t.Errorf("known until %d of %d: %v", until, last, gap)
			}
		}
	}
	// A stream that does not have the log meets it when it is written again.
	late, _ := h.open(plenty, resume, knownUntil(last+1))
	h.create(gone)
	h.write(1, gone)
	added := late.until(func(r *scribev1.StreamResponse) bool { return r.GetShardAdded() != nil }).GetShardAdded()
	if added.GetLsn() != 1 || added.GetOrigin() != 6 {
		t.Errorf("the log is added as %v", added)
	}
	if told, quiet := late.gapsUntil(gone); len(told) > 0 || len(quiet) != 1 || quiet[0].GetTo() != 6 {
		t.Errorf("a stream that was there: told of %v, quiet up to %v", told, quiet)
	}
	for until, owed := range map[int64]bool{0: true, last: true, last + 1: false} {
		c, _ := h.open(plenty, resume, knownUntil(until))
		if told, quiet := c.gapsUntil(gone); owed != isGap(told, gone, 1, 6) || owed != (len(quiet) == 0) || len(told) > 1 {
			t.Errorf("it is back, known until %d of %d: told of %v, quiet up to %v", until, last, told, quiet)
		}
	}
	fresh, _ := h.open(plenty, earliest)
	if told, quiet := fresh.gapsUntil(gone); len(told) > 0 || len(quiet) != 1 {
		t.Errorf("a reader that begins: told of %v, quiet up to %v", told, quiet)
	}
}

// TestRemovedThatIsNamed: whose positions name a removed log is told of everything from there to where it ended, also at its first LSN: the log had been
// opened ahead, and had no records yet. At its end nothing is missing.
func TestRemovedThatIsNamed(t *testing.T) {
	for _, back := range []bool{false, true} {
		h := newHarness(t)
		gone, other := shardID(0, 1), shardID(0, 2)
		last := h.writeAndRemove(gone, 5)
		h.write(1, other)
		if back {
			h.create(gone)
			h.write(1, gone)
		}
		for lsn := uint64(1); lsn <= 6; lsn++ {
			c, _ := h.open(plenty, resumeAt([]*scribev1.ShardPosition{{Shard: uint64(gone), Lsn: lsn}, {Shard: uint64(other), Lsn: 1}}), knownUntil(last+1))
			if lsn < 6 {
				gap := c.until(func(r *scribev1.StreamResponse) bool { return r.GetGap() != nil }).GetGap()
				if !isGap([]*scribev1.StreamGap{gap}, gone, lsn, 6) {
					t.Errorf("back %v, from LSN %d: %v", back, lsn, gap)
				}
				continue
			}
			awaited := other
			if back {
				awaited = gone
			}
			if told, quiet := c.gapsUntil(awaited); len(told)+len(quiet) > 0 {
				t.Errorf("back %v, from its end: %v, %v", back, told, quiet)
			}
		}
	}
}

// TestRemovedWhileOpen: a stream that met a log before its records is owed them, and is told when they are trimmed and the log removed before it has
// read any.
func TestRemovedWhileOpen(t *testing.T) {
	h := newHarness(t)
	slow, other := shardID(0, 1), shardID(0, 2)
	for range 5 {
		h.write(1, slow)
	}
	release := h.log.stall(slow)
	defer release()
	c, _ := h.open(plenty, earliest)
	h.remove(slow)
	release()
	h.create(slow)
	h.write(1, slow, other)
	if told, quiet := c.gapsUntil(slow); !isGap(told, slow, 1, 6) || len(quiet) > 0 {
		t.Errorf("told of %v, quiet up to %v", told, quiet)
	}
}

// TestReopenedBetweenListings: a removed log that is opened after the shards were listed, and before the removed ones are, is in neither list. A reader that
// resumes is told of its gap all the same, and does not know the logs any later before that.
func TestReopenedBetweenListings(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.LookEvery = 50 * time.Millisecond }) // watches tell nothing here
	known, gone := shardID(0, 1), shardID(0, 2)
	h.write(1, known)
	last := h.writeAndRemove(gone, 5)
	reopen := sync.OnceFunc(func() {
		h.create(gone)
		h.write(1, gone)
	})
	h.log.mu.Lock()
	h.log.mu.listed = reopen
	h.log.mu.Unlock()
	c, opened := h.open(plenty, resumeAt([]*scribev1.ShardPosition{{Shard: uint64(known), Lsn: 2}}), knownUntil(last))
	if len(opened.GetShards()) != 1 || opened.GetKnownUntil() != last {
		t.Fatalf("the stream has %v, known until %d, want %d", opened.GetShards(), opened.GetKnownUntil(), last)
	}
	if told, quiet := c.gapsUntil(gone); !isGap(told, gone, 1, 6) || len(quiet) > 0 {
		t.Errorf("told of %v, quiet up to %v", told, quiet)
	}
}

// TestKnownUntil: a stream says until when its reader knows the logs, from the beginning and also where there is none, and later times as it looks for
// new ones.
func TestKnownUntil(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		gone := shardID(0, 1)
		last := h.writeAndRemove(gone, 1)
		<-time.After(time.Second)
		none, opened := h.open(plenty, earliest)
		if len(opened.GetShards()) != 0 || opened.GetKnownUntil() <= last {
			t.Errorf("%v is known until %d, the removed log is of %d", opened.GetShards(), opened.GetKnownUntil(), last)
		}
		none.close()
		h.create(shardID(0, 2))
		c, opened := h.open(plenty, earliest)
		at := opened.GetKnownUntil()
		if at <= last {
			t.Errorf("known until %d, the removed log is of %d", at, last)
		}
		for began := time.Now(); at <= last+(20*time.Second).Microseconds(); {
			if time.Since(began) > time.Minute {
				t.Fatalf("known until %d after a minute, it was %d", at, opened.GetKnownUntil())
			}
			beat := c.heartbeat()
			if beat.GetKnownUntil() < at {
				t.Fatalf("known until %d after %d", beat.GetKnownUntil(), at)
			}
			at = beat.GetKnownUntil()
		}
		h.create(gone)
		h.write(1, gone)
		if told, quiet := c.gapsUntil(gone); len(told) > 0 || len(quiet) != 1 {
			t.Errorf("told of %v, quiet up to %v", told, quiet)
		}
	})
}

func TestDamageIsAGap(t *testing.T) {
	for name, typed := range map[string]bool{"place known": true, "place unknown": false} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			shard := shardID(0, 1)
			for i := range 10 {
				if i == 7 {
					h.writeRecord([]byte("no pointer"), shard)
					continue
				}
				h.write(1, shard)
			}
			h.log.failReads(func(s record.ShardID, from record.LSN, n int) error {
				if from > 4 || from+record.LSN(n) <= 4 {
					return nil
				}
				if typed {
					return &metalog.CorruptError{Shard: s, LSN: 4, Detail: "test"}
				}
				return metalog.ErrCorrupt
			})
			c, _ := h.open(earliest, plenty)
			var gaps []*scribev1.StreamGap
			for len(c.got) < 8 {
				if g := c.next().GetGap(); g != nil {
					gaps = append(gaps, g)
				}
			}
			if len(gaps) != 2 || gaps[0].GetFrom() != 4 || gaps[0].GetTo() != 5 || gaps[1].GetFrom() != 8 || gaps[1].GetTo() != 9 ||
				gaps[0].GetReason() != scribev1.Reason_REASON_CORRUPT || gaps[1].GetReason() != scribev1.Reason_REASON_CORRUPT {
				t.Fatalf("got %v", gaps)
			}
		})
	}
}

// Damage of a shard's own state says nothing of its records: nothing is skipped.
func TestDamagedStateIsNoGap(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		shard := shardID(0, 1)
		h.write(1, shard)
		h.log.failReads(func(s record.ShardID, _ record.LSN, _ int) error {
			return &metalog.CorruptError{Shard: s, Detail: "test"}
		})
		c, _ := h.open(earliest, plenty)
		wantReason(t, c.end(), scribev1.Reason_REASON_NO_BACKEND)
		if len(c.got) != 0 || c.at[uint64(shard)] != 1 {
			t.Fatalf("the stream went on to %v", c.at)
		}
	}, func(c *Config) { c.FailAfter = time.Millisecond })
}

func TestSkipIsKeptUntilPassed(t *testing.T) {
	h := newHarness(t)
	a, b := shardID(0, 1), shardID(1, 1)
	h.write(1, a, b)
	h.write(1, a, b)
	c, _ := h.open(withCredits(1, 1), resumeAt([]*scribev1.ShardPosition{{Shard: uint64(a), Lsn: 1, Skip: 5}, {Shard: uint64(b), Lsn: 2, Skip: 9}}))
	c.entries(1) // LSN 1 of a is older than LSN 2 of b
	h.restartWhile()
	for _, p := range c.evicted() {
		want := uint32(0)
		if p.GetShard() == uint64(b) {
			want = 9
		}
		if p.GetLsn() != 2 || p.GetSkip() != want {
			t.Errorf("resume at %v, want LSN 2 and %d to skip", p, want)
		}
	}
}
