package retention

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

const hour = int64(time.Hour / time.Microsecond)

func noneIsPlanned(record.ShardID) bool { return false }

// TestChooseLogs: which logs are removed, and when the next one may be.
func TestChooseLogs(t *testing.T) {
	const now, retention = 1000 * hour, 10 * hour
	log := func(writer uint16) record.ShardID { return record.MakeShardID(1, 0, writer) }
	empty := func(writer uint16, last int64) metalog.State {
		return metalog.State{Shard: log(writer), FirstLSN: 5, NextLSN: 5, Epoch: 3, LastTime: last}
	}
	states := []metalog.State{
		empty(1, now-20*hour),
		empty(2, now-10*hour), // in the grace
		empty(3, now-20*hour), // planned
		{Shard: log(4), FirstLSN: 5, NextLSN: 6, Epoch: 3, LastTime: now - 20*hour},               // its record is held, or damaged
		{Shard: log(5), FirstLSN: 5, NextLSN: 5, Epoch: 3, LastTime: now - 20*hour, Sealed: true}, // ended for good
		{Shard: log(6), FirstLSN: 1, NextLSN: 1, Epoch: 2},                                        // never used
		{Shard: sequenced.Log(1), FirstLSN: 5, NextLSN: 5, Epoch: 3, LastTime: now - 20*hour},
	}
	planned := func(shard record.ShardID) bool { return shard == log(3) }
	choose := func(u *unusedLogs, cat *scribev1.Category, at, now int64) ([]uint16, int64) {
		remove, next := u.chooseLogs(cat, states, at, now, planned)
		var writers []uint16
		for _, r := range remove {
			writers = append(writers, r.Shard.Writer())
		}
		return writers, next
	}
	u := newUnusedLogs(time.Hour)
	cat := &scribev1.Category{Id: 1, Name: "c"}
	if got, next := choose(u, cat, now-retention, now); !slices.Equal(got, []uint16{1}) || next != now+hour {
		t.Errorf("removed %v, next in %v", got, time.Duration(next-now)*time.Microsecond)
	}
	if got, _ := choose(u, cat, now-retention, now+23*hour); slices.Contains(got, 6) {
		t.Error("a log was removed that has existed for a day only")
	}
	if got, _ := choose(u, cat, now+24*hour-retention, now+24*hour); !slices.Equal(got, []uint16{1, 2, 6}) {
		t.Errorf("a day later: removed %v", got)
	}
	states[5].Epoch++ // somebody has opened it
	if got, next := choose(u, cat, now+25*hour-retention, now+25*hour); slices.Contains(got, 6) || next != now+49*hour {
		t.Errorf("opened again: removed %v, next in %v", got, time.Duration(next-now)*time.Microsecond)
	}
	// A pin holds the horizon of trimming back, and with it the removal.
	if got, _ := choose(u, cat, now-20*hour, now); len(got) > 0 {
		t.Errorf("removed %v that a reader holds", got)
	}
	for what, cat := range map[string]*scribev1.Category{
		"exactly_once": {Id: 1, Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE},
		"bound":        {Id: 1, Repeatable: scribev1.Repeatability_REPEATABILITY_BOUND},
		"sequenced":    {Id: 1, Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED},
	} {
		if got, next := choose(u, cat, now, now+100*hour); len(got) > 0 || next != 0 {
			t.Errorf("%s: removed %v, next %d", what, got, next)
		}
	}
	u.dropCategory(1)
	if u.count != 0 || len(u.never) != 0 {
		t.Errorf("%d logs are remembered of categories that are gone", u.count)
	}
}

// TestChooseLogsIsBounded: logs that were never used take bounded memory, and have their turn in the end.
func TestChooseLogsIsBounded(t *testing.T) {
	u := newUnusedLogs(0)
	now := 1000 * hour
	states := make([]metalog.State, 50_000)
	removed := 0
	for round := range int64(3) {
		for id := uint32(1); id <= 3; id++ {
			for i := range states {
				states[i] = metalog.State{Shard: record.MakeShardID(id, 0, uint16(i)), FirstLSN: 1, NextLSN: 1, Epoch: 1} //nolint:gosec // below 65,536
			}
			remove, _ := u.chooseLogs(&scribev1.Category{Id: id}, states, now, now+25*hour*round, noneIsPlanned)
			removed += len(remove)
			if u.count > maxNeverUsed {
				t.Fatalf("%d logs are remembered", u.count)
			}
		}
	}
	if removed < maxNeverUsed {
		t.Errorf("%d logs were removed", removed)
	}
}

// TestEmptyLogsGoWithinADay: a category with a night, a business day and a peak in its plan, for two weeks. A log of a batcher that is planned to
// have it open is never taken from it, all others are gone a day after the retention and the grace at the latest, and what was acknowledged
// keeps its place when a log comes back.
func TestEmptyLogsGoWithinADay(t *testing.T) {
	w := testWorld(t)
	w.cfg.LogRemovals = 1e6
	const batchers, days = 12, 14
	retention := 6 * time.Hour
	id := w.cell.create(retention, w.clock.Now())
	// used is how many batchers get records in an hour, ahead for how many the log is to be open.
	used := func(h int) int {
		switch h := h % 24; {
		case h == 14:
			return 10
		case h >= 8 && h < 20:
			return 4
		default:
			return 1
		}
	}
	ahead := func(h int) int { return min(max(2*used(h), used(h+1), used(h+24)), batchers) }
	// The batchers in the order that the shard has them: the first ones have its log open.
	order := w.cell.addBatchers(id, batchers)
	plan := func(h int) { w.cell.plan(id, uint32(ahead(h))) }
	planned := func(h int, log record.ShardID) bool { return slices.Contains(order[:ahead(h)], log.Writer()) }
	l := w.mustLead("one")
	most, least, back := 0, batchers, 0
	for at := range days * 24 {
		plan(at)
		// The batchers see which logs are open for them, and open those that the plan asks for and that are not.
		for _, writer := range order[:ahead(at)] {
			shard := record.MakeShardID(id, 0, writer)
			st, err := w.log.Tail(t.Context(), []record.ShardID{shard})
			if err != nil {
				t.Fatal(err)
			}
			if st[0].Epoch != w.epochs[shard] {
				if w.next[shard] > 0 && st[0].NextLSN != w.next[shard] {
					t.Fatalf("hour %d: %v would go on at LSN %d, it ended at %d", at, shard, st[0].NextLSN, w.next[shard])
				}
				if w.epochs[shard] > 0 {
					back++
				}
				delete(w.epochs, shard)
			}
			if w.epochs[shard] == 0 {
				opened, err := w.log.Open(t.Context(), "writer", []record.ShardID{shard})
				if err != nil {
					t.Fatal(err)
				}
				w.epochs[shard], w.next[shard] = opened[0].Epoch, opened[0].NextLSN
			}
		}
		for quarter := range 4 {
			w.clock.Advance(15 * time.Minute)
			for _, writer := range order[:used(at)] {
				if err := w.commit(w.put(writer, 6, id)); errors.Is(err, metalog.ErrFenced) {
					t.Fatalf("hour %d: a planned log was removed, and a write had to wait", at)
				} else if err != nil {
					t.Fatal(err)
				}
			}
			if err := l.pass(); err != nil {
				t.Fatalf("hour %d, quarter %d: %v", at, quarter, err)
			}
		}
		states, err := w.log.Shards(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		for _, st := range states {
			gone := st.LastTime + (retention + time.Hour + 24*time.Hour).Microseconds()
			if st.LastTime > 0 && st.FirstLSN == st.NextLSN && !planned(at, st.Shard) && !planned(max(at-1, 0), st.Shard) && w.clock.Now() > gone {
				t.Errorf("hour %d: %v is there, empty for %v", at, st.Shard, time.Duration(w.clock.Now()-st.LastTime)*time.Microsecond)
			}
		}
		if at >= 48 {
			most, least = max(most, len(states)), min(least, len(states))
		}
		w.resolves()
	}
	t.Logf("%d to %d logs after the second day; logs came back %d times in %d days", least, most, back, days)
	if least > 4 || most < 10 || back == 0 {
		t.Errorf("%d to %d logs, %d came back: the test shows nothing", least, most, back)
	}
}

// listings counts the listings of logs.
type listings struct {
	Log
	n int
}

func (l *listings) Shards(ctx context.Context, category uint32) ([]metalog.State, error) {
	l.n++
	return l.Log.Shards(ctx, category)
}

// TestRemovalIsPaced: of many unused logs as many are removed at once as the pace allows. The others wait, and neither is their category visited for
// them, nor do others that are due wait for it.
func TestRemovalIsPaced(t *testing.T) {
	w := testWorld(t)
	w.cfg.LogRemovals = 1e-6
	const logs = removalBurst + 500
	id := w.cell.create(time.Hour, w.clock.Now())
	shards := make([]record.ShardID, logs)
	for i := range shards {
		shards[i] = record.MakeShardID(id, 0, uint16(i+1))
	}
	if _, err := w.log.Open(t.Context(), "writer", shards); err != nil {
		t.Fatal(err)
	}
	deps := w.deps("one")
	counted := &listings{Log: w.log}
	deps.Log = counted
	l, err := w.lead(deps)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := l.pass(); err != nil {
			t.Fatal(err)
		}
		w.clock.Advance(neverUsedAge + time.Hour)
	}
	if err := l.pass(); err != nil {
		t.Fatal(err)
	}
	left, err := w.log.Shards(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != logs-removalBurst || l.logs.removals.waiting() != len(left) {
		t.Errorf("%d logs are left, %d of them wait", len(left), l.logs.removals.waiting())
	}
	counted.n = 0
	l.run(30*time.Minute, 10*time.Second)
	if counted.n != 0 {
		t.Errorf("logs were listed %d times in half an hour, because some of them wait", counted.n)
	}
}

// TestRemovalQueue: the queue is bounded. A category with more than fits is visited again once the queue is empty, and not before.
func TestRemovalQueue(t *testing.T) {
	q := newRemovalQueue()
	logs := func(id uint32, n int) (all []metalog.Unused) {
		for i := range n {
			all = append(all, metalog.Unused{Shard: record.MakeShardID(id, uint16(i>>16), uint16(i)), Epoch: 1}) //nolint:gosec // of a small number
		}
		return all
	}
	q.replace(1, logs(1, 10))
	q.replace(2, logs(2, maxQueuedRemovals))
	if len(q.logs) != maxQueuedRemovals || q.waiting() != maxQueuedRemovals+10 {
		t.Errorf("%d logs are queued, %d wait", len(q.logs), q.waiting())
	}
	taken := q.take(20)
	q.putBack(taken)
	if q.replace(1, nil); len(q.logs) != maxQueuedRemovals-10 || q.logs[0].Shard.Category() != 2 {
		t.Errorf("%d logs are queued, the first is %v", len(q.logs), q.logs[0].Shard)
	}
	for len(q.logs) > 0 {
		if id, ok := q.takeLeft(); ok {
			t.Fatalf("category %d is visited while %d logs wait", id, len(q.logs))
		}
		q.take(min(len(q.logs), removalBurst))
	}
	if id, ok := q.takeLeft(); !ok || id != 2 || q.waiting() != 0 || len(q.queued) != 0 {
		t.Errorf("category %d is visited, %v, %d wait", id, ok, q.waiting())
	}
	if _, ok := q.takeLeft(); ok {
		t.Error("a category is visited twice")
	}
}

// TestRemovalAwaitsMembers: nothing is removed while a member does not know removed logs, nor within the grace after one was seen, also if it is missing
// meanwhile.
func TestRemovalAwaitsMembers(t *testing.T) {
	w := testWorld(t)
	w.cfg.LogRemovals = 1e6
	const retention = 6 * time.Hour
	id := w.cell.create(retention, w.clock.Now())
	w.write(1, 6, id)
	l := w.mustLead("one")
	there := func() bool {
		t.Helper()
		states, err := w.log.Shards(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return len(states) == 1
	}
	visit := func() { l.logs.schedule.visitNow(id, w.clock.Now()) }
	older := &scribev1.Member{Id: "older", Roles: []scribev1.Role{scribev1.Role_ROLE_METALOG}}
	w.cell.setMembers(older)
	l.run(2*retention, 30*time.Minute)
	if !there() {
		t.Fatal("a log was removed in a cell with a replica that halts then")
	}
	w.cell.setMembers() // it restarts
	visit()
	l.run(30*time.Minute, 10*time.Minute)
	if !there() {
		t.Fatal("a log was removed while an older member was away for a moment")
	}
	older.RemovedLogs = true
	w.cell.setMembers(older)
	visit()
	l.run(20*time.Minute, 10*time.Minute)
	if !there() {
		t.Fatal("a log was removed soon after an older member was there")
	}
	if l.run(2*time.Hour, 10*time.Minute); there() {
		t.Error("a log stays although all members know removed logs")
	}
}

// TestRemovalBesideMissingBatcher: a log that is planned stays while its batcher, or the plan, is missing for a moment, and goes when it is gone.
func TestRemovalBesideMissingBatcher(t *testing.T) {
	for _, planMissing := range []bool{false, true} {
		w := testWorld(t)
		w.cfg.LogRemovals = 1e6
		const retention = 6 * time.Hour
		id := w.cell.create(retention, w.clock.Now())
		order := w.cell.addBatchers(id, 3)
		w.cell.plan(id, 2)
		w.write(order[1], 6, id)
		l := w.mustLead("one")
		there := func() bool {
			t.Helper()
			states, err := w.log.Shards(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			return len(states) == 1
		}
		l.run(2*retention, 30*time.Minute)
		if !there() {
			t.Fatal("a planned log was removed")
		}
		all := w.cell.listed()
		if planMissing {
			w.cell.plan(id, 0)
		} else {
			w.cell.setMembers(slices.DeleteFunc(slices.Clone(all), func(m *scribev1.Member) bool { return m.GetSlot() == uint32(order[1]) })...)
		}
		l.logs.schedule.visitNow(id, w.clock.Now())
		l.run(20*time.Minute, 10*time.Minute)
		if !there() {
			t.Errorf("a log was removed since its batcher, or its plan (%v), was missing for a moment", planMissing)
		}
		if l.run(6*retention, 30*time.Minute); there() {
			t.Errorf("a log stays although its batcher, or its plan (%v), is gone", planMissing)
		}
	}
}
