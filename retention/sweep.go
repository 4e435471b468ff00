package retention

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/pointer"
	"scribe/storage/blob"
)

// blobSweeper finds dead blobs and deletes them. One goroutine owns it; it starts its workers and waits for them.
type blobSweeper struct {
	t         *leaseTerm
	c         *Keeper
	boundary  int64
	schedule  *sliceSchedule
	deletions *deletionQueue
	begun     bool
	rounds    uint64
	// listing iterates over the class listed of the running sweep; nil between classes.
	listing func() (blob.Info, error, bool)
	stop    func()
	listed  uint32
}

func newBlobSweeper(t *leaseTerm, boundary int64) *blobSweeper {
	return &blobSweeper{t: t, c: t.c, boundary: boundary, schedule: newSliceSchedule(t.c.cfg.Grace), deletions: newDeletionQueue(t.c.cfg.MaxDoomed)}
}

// noteRounds is the rounds between two updates of the state and the metrics while there is more work.
const noteRounds = 64

// errRestored ends the work: the engine was restored from an older state. The next check of the claims decides whether work goes on.
var errRestored = errors.New("retention: the metadata engine's boundary moved backward")

// runRound does one step of each kind of work that is due: it deletes a batch, examines a slice, and lists a page of a sweep. So no kind
// of work delays the others for long.
func (r *blobSweeper) runRound(ctx context.Context) (more bool, err error) {
	now, err := r.c.readTime(ctx)
	if err != nil {
		return false, err
	}
	if err := r.advanceBoundary(ctx, now); err != nil {
		return false, err
	}
	if !r.begun {
		if err := r.beginClasses(ctx); err != nil {
			return false, err
		}
	}
	r.startRechecks(now)
	deleted, err := r.deleteDue(ctx, now)
	if err != nil {
		return false, err
	}
	examined, err := r.examineNext(ctx, now)
	if err != nil {
		return false, err
	}
	if !examined {
		r.finishRechecks(now)
	}
	listing, err := r.listNext(ctx, now)
	more = deleted || examined || listing
	if r.rounds++; !more || r.rounds%noteRounds == 0 {
		r.publishProgress(now)
	}
	return more, err
}

// publishProgress updates the cursors of the state and the metrics.
func (r *blobSweeper) publishProgress(now int64) {
	r.t.updateState(func(s *keeperState) {
		for class := range r.schedule.frontier {
			s.Cursors[class] = r.schedule.classCursor(class)
		}
	})
	m := r.c.metrics
	m.boundary.Set(lagSeconds(max(r.boundary, 1), now))
	m.sliceLag.Set(lagSeconds(r.schedule.queue.oldestDue(), now))
	m.doomed.Set(float64(len(r.deletions.keys)))
	m.doomBytes.Set(float64(r.deletions.bytes))
}

// advanceBoundary advances the boundary when that is due, and schedules the slices that it has passed.
func (r *blobSweeper) advanceBoundary(ctx context.Context, now int64) error {
	if err := r.c.waitForLog(ctx); err != nil {
		return err
	}
	known, err := r.c.deps.Log.AdvanceBoundary(ctx, 0)
	if err != nil {
		return fmt.Errorf("read the boundary: %w", err)
	}
	if known < r.boundary {
		return fmt.Errorf("%w, from %d to %d", errRestored, r.boundary, known)
	}
	target := (now - r.c.cfg.Grace.Microseconds()) / 1000 * 1000
	if target-known < r.c.cfg.BoundaryStep.Microseconds() {
		r.boundary = known
		return nil
	}
	if known, err = r.c.deps.Log.AdvanceBoundary(ctx, target); err != nil {
		return fmt.Errorf("advance the boundary: %w", err)
	}
	if err := r.t.writeClaim(ctx, known); err != nil {
		return err
	}
	r.boundary = known
	if r.begun {
		for class := range r.schedule.frontier {
			r.schedule.advanceFrontier(class, known)
		}
	}
	return nil
}

// beginClasses schedules the slices of each class, from its oldest blob on.
func (r *blobSweeper) beginClasses(ctx context.Context) error {
	if r.boundary == 0 {
		return nil // no blob is old enough
	}
	longest := map[uint32]time.Duration{}
	for cat := range r.c.deps.Categories.All() {
		retention := cat.GetRetention().AsDuration()
		class := pointer.RetentionClass(retention)
		longest[class] = max(longest[class], retention)
	}
	cursors := map[uint32]int64{}
	r.t.updateState(func(s *keeperState) { maps.Copy(cursors, s.Cursors) })
	for _, class := range pointer.RetentionClasses() {
		oldest, err := r.oldestBlob(ctx, class)
		if err != nil {
			return err
		}
		expected := longest[class]
		if expected == 0 {
			expected = time.Duration(class) * time.Hour
		}
		if !r.schedule.beginClass(class, oldest, cursors[class], r.boundary, expected) {
			r.t.updateState(func(s *keeperState) { s.SweptAt = 0 })
		}
	}
	r.begun = true
	return nil
}

// oldestBlob returns the time of a class's oldest blob, -1 for none.
func (r *blobSweeper) oldestBlob(ctx context.Context, class uint32) (int64, error) {
	if err := r.c.waitForStore(ctx, 1); err != nil {
		return 0, err
	}
	for info, err := range r.c.deps.Blobs.List(ctx, classPrefix(class)) {
		if err != nil {
			return 0, fmt.Errorf("list class %d: %w", class, err)
		}
		if _, id, err := pointer.ParseKey(info.Key); err == nil {
			return id.Time(), nil
		}
	}
	return -1, nil
}

// startRechecks schedules the slices of new rechecks.
func (r *blobSweeper) startRechecks(now int64) {
	if !r.begun {
		return
	}
	r.t.updateState(func(s *keeperState) {
		for i := range s.Rechecks {
			if k := &s.Rechecks[i]; !k.taken {
				k.taken = true
				r.schedule.examineAgain(k.Class, k.From, k.To, now)
			}
		}
	})
}

// finishRechecks drops rechecks whose blobs were examined and, if dead, deleted. It is called when no slice is due, so every slice of a
// recheck was examined.
func (r *blobSweeper) finishRechecks(now int64) {
	if !r.begun {
		return
	}
	oldest, waiting := r.deletions.oldestFound()
	r.t.updateState(func(s *keeperState) {
		kept := s.Rechecks[:0]
		for _, k := range s.Rechecks {
			switch {
			case !k.taken:
			case k.examined == 0:
				k.examined = now
			}
			if k.examined == 0 || waiting && oldest <= k.examined {
				kept = append(kept, k)
			}
		}
		s.Rechecks = kept
	})
}

// examineNext examines the slice that has been due longest; it reports false when none is due.
func (r *blobSweeper) examineNext(ctx context.Context, now int64) (bool, error) {
	k, ok := r.schedule.takeDue(now)
	if !ok {
		return false, nil
	}
	o, err := r.examineSlice(ctx, k, now)
	if err != nil {
		r.schedule.retryAfter(k, now, r.c.cfg.Interval)
		return false, err
	}
	r.schedule.recordResult(k, o, now)
	return true, nil
}

// deleteDue deletes up to Config.Workers dead blobs that are due. It reports whether there were any and all were deleted.
func (r *blobSweeper) deleteDue(ctx context.Context, now int64) (bool, error) {
	batch := r.deletions.takeDue(now, r.c.cfg.Workers)
	if len(batch) == 0 {
		return false, nil
	}
	gone := make([]bool, len(batch))
	var workers errgroup.Group
	for i, d := range batch {
		workers.Go(func() error {
			if err := r.c.waitForStore(ctx, 1); err != nil {
				return err
			}
			if err := r.c.waitForDelete(ctx, d.size); err != nil {
				return err
			}
			if err := r.c.deps.Blobs.Delete(ctx, d.key); err != nil {
				return fmt.Errorf("delete dead blob: %w", err)
			}
			gone[i] = true
			return nil
		})
	}
	err := workers.Wait()
	for i, d := range batch {
		if !gone[i] {
			r.deletions.retryLater(d)
			continue
		}
		r.deletions.removeDeleted(d)
		r.schedule.recordDeleted(d.slice)
		r.c.metrics.collected.WithLabelValues(d.kind).Inc()
		r.c.metrics.freed.WithLabelValues(d.kind).Add(float64(d.size))
	}
	return err == nil, err
}

// listPage is how many blobs one request lists, and how many of them a round takes.
const listPage = 1000

// listNext lists a page of the sweep that runs or is due. It reports whether there is more.
func (r *blobSweeper) listNext(ctx context.Context, now int64) (bool, error) {
	if !r.begun {
		return false, nil
	}
	if r.listing == nil && !r.startListing(ctx, now) {
		return false, nil
	}
	if err := r.c.waitForStore(ctx, 1); err != nil {
		return false, err
	}
	for range listPage {
		info, err, ok := r.listing()
		if err != nil {
			r.stop()
			r.listing = nil // the listing of the class begins again
			return false, fmt.Errorf("list class %d: %w", r.listed, err)
		}
		if !ok {
			r.stop()
			r.listing = nil
			r.finishClass(now)
			return true, nil
		}
		class, id, err := pointer.ParseKey(info.Key)
		if err != nil {
			r.c.log.DebugContext(ctx, "ignoring object under the blob prefix: not a blob", "key", info.Key)
			continue
		}
		r.schedule.addListed(class, id.Time(), now, info.Modified.UnixMicro()-id.Time() > r.c.cfg.Grace.Microseconds())
	}
	return true, nil
}

// startListing starts to list the next class of a sweep that runs or is due; it reports false when none is.
func (r *blobSweeper) startListing(ctx context.Context, now int64) bool {
	var class uint32
	var last int64
	r.t.updateState(func(s *keeperState) { class, last = s.SweepClass, s.SweptAt })
	if class == 0 {
		if last != 0 && now-last < r.c.cfg.SweepInterval.Microseconds() {
			return false
		}
		class = pointer.RetentionClasses()[0]
		r.t.updateState(func(s *keeperState) { s.SweepClass = class })
	}
	r.listed = class
	r.listing, r.stop = iter.Pull2(r.c.deps.Blobs.List(ctx, classPrefix(class)))
	return true
}

// finishClass moves the sweep to the next class, or ends it.
func (r *blobSweeper) finishClass(now int64) {
	next := uint32(0)
	for _, class := range pointer.RetentionClasses() {
		if class > r.listed {
			next = class
			break
		}
	}
	r.t.updateState(func(s *keeperState) {
		if s.SweepClass = next; next == 0 {
			s.SweptAt = now
		}
	})
	if next == 0 {
		r.c.metrics.sweeps.Inc()
	}
}

// stopListing ends a running listing.
func (r *blobSweeper) stopListing() {
	if r.stop != nil {
		r.stop()
		r.listing = nil
	}
}
