package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/metalog"
)

// pinSettle is how long the control plane must have collected pins before they count as complete: readers renew them more often.
const pinSettle = 30 * time.Second

// maxTrimFailures ends a round: the engine or the control plane is probably unavailable.
const maxTrimFailures = 5

// maxOldestReads bounds the logs of a category whose oldest record is read to find out when the category is due again.
const maxOldestReads = 64

// logTrimmer trims logs, and erases those of deleted categories. One goroutine owns it.
type logTrimmer struct {
	t        *leaseTerm
	c        *Keeper
	schedule *trimSchedule
	rounds   uint64
	pins     map[uint32]int64
	held     map[uint32]bool
	// fenced are, by category, the epochs with which this keeper opened sequenced logs: no sequencer can append while an epoch is the log's.
	fenced map[uint32]uint64
	// cell says who may have which logs open, and unused which empty logs are removed; removals are those that wait for the pace of it. mayRemove
	// says that every member knows removed logs, as of this round.
	cell      *cellMemory
	unused    *unusedLogs
	removals  *removalQueue
	mayRemove bool
}

func newLogTrimmer(t *leaseTerm) *logTrimmer {
	return &logTrimmer{
		t: t, c: t.c, schedule: newTrimSchedule(t.c.cfg.Interval), held: map[uint32]bool{}, fenced: map[uint32]uint64{},
		cell: newCellMemory(t.c.cfg.LogGrace), unused: newUnusedLogs(t.c.cfg.LogGrace), removals: newRemovalQueue(),
	}
}

// runRound erases deleted categories, trims those that are due, and removes logs that were found to be unused.
func (r *logTrimmer) runRound(ctx context.Context) (more bool, err error) {
	if err := r.eraseDropped(ctx); err != nil {
		return false, err
	}
	now, err := r.c.readTime(ctx)
	if err != nil {
		return false, err
	}
	if complete, err := r.readPins(ctx); err != nil || !complete {
		return false, err
	}
	r.observeCell(ctx, now)
	r.rounds++
	r.schedule.syncCategories(r.c.deps.Categories.All(), r.rounds, now)
	r.c.metrics.trimLag.Set(lagSeconds(r.schedule.queue.oldestDue(), now))
	var errs []error
	for len(errs) < maxTrimFailures && ctx.Err() == nil {
		id, st, ok := r.schedule.takeDue(now)
		if !ok {
			r.c.metrics.trimLag.Set(0)
			break
		}
		if err := r.trimCategory(ctx, id, st, now); err != nil {
			r.schedule.retryLater(id, now)
			errs = append(errs, fmt.Errorf("trim category %q: %w", st.name, err))
		}
	}
	r.removeQueued(ctx, now)
	return false, errors.Join(errs...)
}

// readPins reads the readers' pins. complete is false while pins may be missing because the control plane has just started.
func (r *logTrimmer) readPins(ctx context.Context) (complete bool, err error) {
	res, err := r.c.deps.Control.ListPins(ctx, &scribev1.ListPinsRequest{})
	if err != nil {
		return false, fmt.Errorf("list the readers' pins: %w", err)
	}
	r.pins = make(map[uint32]int64, len(res.GetPins()))
	for _, p := range res.GetPins() {
		r.pins[p.GetCategory()] = p.GetFrom()
	}
	return res.GetAge().AsDuration() >= pinSettle, nil
}

// trimCategory trims one category.
func (r *logTrimmer) trimCategory(ctx context.Context, id uint32, st *trimState, now int64) error {
	if err := r.c.waitForLog(ctx); err != nil {
		return err
	}
	res, err := r.c.deps.Control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: st.name})
	if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY || err == nil && res.GetCategory().GetId() != id {
		return nil // it was deleted: eraseDropped handles it
	}
	if err != nil {
		return err
	}
	retention := res.GetCategory().GetRetention().AsDuration()
	if retention <= 0 {
		retention = pointer.DefaultRetention
	}
	at, held, revoked := trimHorizon(now, retention, r.pins[id], r.c.cfg.PinLimit)
	r.setHeld(id, held)
	var seq *sequencedTrim
	if res.GetCategory().IsSequenced() {
		seq = &sequencedTrim{r: r, category: id, at: at, least: now - retention.Microseconds() - min(r.c.cfg.PinLimit, retention).Microseconds()}
	}
	states, found, trimmed, err := r.trimLogs(ctx, id, at, seq)
	if err != nil {
		return err
	}
	r.queueUnused(res.GetCategory(), states, at, now, &found)
	found.held = found.held || held
	if revoked && trimmed > 0 {
		r.c.metrics.revoked.Inc()
		r.c.log.InfoContext(ctx, "category trimmed beyond its readers' pins: the pins reached their limit", "category", st.name, "pointers", trimmed)
	}
	if st.lowered > retention {
		lowered := st.lowered
		st.lowered = 0
		// Its blobs were stored in the class of the longer retention, and may be dead earlier than scheduled.
		r.t.updateState(func(s *keeperState) {
			s.addRecheck(recheckRange{Class: pointer.RetentionClass(lowered), From: now - lowered.Microseconds() - classLength(1), To: at, At: now})
		})
	}
	r.schedule.recordResult(id, retention, found, now)
	return nil
}

func (r *logTrimmer) setHeld(id uint32, held bool) {
	if held {
		r.held[id] = true
	} else {
		delete(r.held, id)
	}
	r.c.metrics.held.Set(float64(len(r.held)))
}

// trimLogs trims the logs of a category below a persisted time, and returns how many pointers were trimmed, and the states that the logs had
// before. seq is nil for a category that is not sequenced.
func (r *logTrimmer) trimLogs(ctx context.Context, id uint32, at int64, seq *sequencedTrim) (
	states []metalog.State, found trimResult, trimmed uint64, err error,
) {
	if err := r.c.waitForLog(ctx); err != nil {
		return nil, found, 0, err
	}
	states, err = r.c.deps.Log.Shards(ctx, id)
	if err != nil {
		return nil, found, 0, err
	}
	if seq != nil {
		if states, err = seq.beginTrim(ctx, states); err != nil {
			return nil, found, 0, err
		}
	}
	var filled []metalog.State
	for _, st := range states {
		if st.FirstLSN < st.NextLSN {
			filled = append(filled, st)
		}
	}
	left := 0
	for len(filled) > 0 {
		part := filled[:min(len(filled), metalog.MaxShards)]
		filled = filled[len(part):]
		n, gone, err := r.trimBatch(ctx, part, at, seq)
		if err != nil {
			return nil, found, trimmed, err
		}
		trimmed += n
		left += len(part) - gone
		for i := range part {
			if left <= maxOldestReads && part[i].FirstLSN < part[i].NextLSN {
				t, err := r.oldestRecord(ctx, part[i])
				if err != nil {
					return nil, found, trimmed, err
				}
				if found.oldest == 0 || t < found.oldest {
					found.oldest = t
				}
			}
		}
	}
	if seq != nil {
		if err := seq.fenceOvertaken(ctx); err != nil {
			return nil, found, trimmed, err
		}
		found.held = seq.held
	}
	found.empty = left == 0 && !seq.hasRecords()
	if left > maxOldestReads {
		found.oldest = 0
	}
	return states, found, trimmed, nil
}

// trimBatch trims up to metalog.MaxShards logs below a persisted time, and updates their states.
func (r *logTrimmer) trimBatch(ctx context.Context, states []metalog.State, at int64, seq *sequencedTrim) (trimmed uint64, emptied int, err error) {
	ids := make([]record.ShardID, len(states))
	for i := range states {
		ids[i] = states[i].Shard
	}
	if err := r.c.waitForLog(ctx); err != nil {
		return 0, 0, err
	}
	lsns, err := r.c.deps.Log.Seek(ctx, ids, at)
	if err == nil && seq != nil {
		err = seq.holdSources(ctx, ids, lsns)
	}
	if err != nil {
		return 0, 0, err
	}
	for i := range states {
		st := &states[i]
		if lsns[i] > st.FirstLSN {
			if err := r.c.waitForLog(ctx); err != nil {
				return trimmed, emptied, err
			}
			if err := r.c.deps.Log.Trim(ctx, st.Shard, lsns[i]); err != nil {
				return trimmed, emptied, err
			}
			n := uint64(lsns[i] - st.FirstLSN)
			r.c.metrics.trims.Inc()
			r.c.metrics.trimmed.Add(float64(n))
			trimmed += n
			st.FirstLSN, st.NextLSN = lsns[i], max(lsns[i], st.NextLSN)
		}
		if st.FirstLSN == st.NextLSN {
			emptied++
		}
	}
	return trimmed, emptied, nil
}

// oldestRecord returns the persisted time of a log's oldest record; 0 when it can't be read.
func (r *logTrimmer) oldestRecord(ctx context.Context, st metalog.State) (int64, error) {
	if err := r.c.waitForLog(ctx); err != nil {
		return 0, err
	}
	entries, err := r.c.deps.Log.Read(ctx, st.Shard, st.FirstLSN, 1, 0)
	if err != nil || len(entries) == 0 {
		return 0, ctx.Err() // a damaged record is trimmed like the others when it expires
	}
	return entries[0].Time, nil
}

// eraseDropped erases the logs of all deleted categories, a page of the control plane's list at a time.
func (r *logTrimmer) eraseDropped(ctx context.Context) error {
	for after := uint32(0); ; {
		res, err := r.c.deps.Control.ListDropped(ctx, &scribev1.ListDroppedRequest{After: after})
		if err != nil {
			return fmt.Errorf("list deleted categories: %w", err)
		}
		cats := res.GetCategories()
		if after == 0 {
			r.c.metrics.dropped.Set(float64(len(cats)))
		}
		if len(cats) > 0 {
			if err := r.eraseCategories(ctx, cats); err != nil {
				return err
			}
			after = cats[len(cats)-1].GetId()
		}
		if !res.GetMore() || len(cats) == 0 {
			r.c.metrics.dropped.Set(0)
			return nil
		}
	}
}

// eraseCategories erases the logs of deleted categories, schedules their blobs, and then has the control plane forget them.
func (r *logTrimmer) eraseCategories(ctx context.Context, cats []*scribev1.Category) error {
	ids := make([]uint32, 0, len(cats))
	for _, cat := range cats {
		if err := r.c.waitForLog(ctx); err != nil {
			return err
		}
		// The control plane retires it, too. Whichever retires first, no append succeeds from here on.
		if err := r.c.deps.Log.Retire(ctx, cat.GetId()); err != nil {
			return fmt.Errorf("retire deleted category %q: %w", cat.GetName(), err)
		}
		if err := r.c.deps.Log.Erase(ctx, cat.GetId()); err != nil {
			return fmt.Errorf("erase deleted category %q: %w", cat.GetName(), err)
		}
		if cat.GetKeyGeneration() > 0 { // then its payloads are unreadable, wherever they are
			if _, err := encryption.DeleteKeys(ctx, r.c.deps.Blobs, cat.GetId(), false); err != nil {
				return fmt.Errorf("delete the keys of deleted category %q: %w", cat.GetName(), err)
			}
		}
		ids = append(ids, cat.GetId())
		r.unused.dropCategory(cat.GetId())
		r.removals.replace(cat.GetId(), nil)
	}
	now, err := r.c.readTime(ctx)
	if err != nil {
		return err
	}
	oldest := map[uint32]int64{}
	for _, cat := range cats {
		class := pointer.RetentionClass(cat.GetRetention().AsDuration())
		if t, ok := oldest[class]; !ok || cat.GetCreatedAt() < t {
			oldest[class] = cat.GetCreatedAt()
		}
	}
	r.t.updateState(func(s *keeperState) {
		for class, from := range oldest {
			s.addRecheck(recheckRange{Class: class, From: max(from-classLength(1), now-2*classLength(class)), To: now, At: now})
		}
	})
	// The rechecks must be durable before the control plane forgets the categories.
	if err := r.t.saveState(ctx); err != nil {
		return err
	}
	if _, err := r.c.deps.Control.ForgetDropped(ctx, &scribev1.ForgetDroppedRequest{Ids: ids}); err != nil {
		return fmt.Errorf("forget deleted categories: %w", err)
	}
	r.c.metrics.erased.Add(float64(len(ids)))
	r.c.log.InfoContext(ctx, "logs of deleted categories erased", "categories", len(ids))
	return nil
}

// lagSeconds is how long something has been due; 0 for a due time of 0 or in the future.
func lagSeconds(due, now int64) float64 {
	if due == 0 || due > now {
		return 0
	}
	return time.Duration((now - due) * int64(time.Microsecond)).Seconds()
}
