package retention

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// sliceExamination is one pass over the blobs of a slice.
type sliceExamination struct {
	r     *blobSweeper
	slice timeSlice
	now   int64

	mu struct {
		sync.Mutex // workers share it
		result     sliceResult
		dead       []deadBlob
	}
}

// examineSlice classifies each blob of a slice, and queues the dead ones for deletion. After an error, the dead blobs that were found
// stay queued; the next examination skips them.
func (r *blobSweeper) examineSlice(ctx context.Context, k timeSlice, now int64) (sliceResult, error) {
	if err := r.c.waitForStore(ctx, 1); err != nil {
		return sliceResult{}, err
	}
	x := sliceExamination{r: r, slice: k, now: now}
	err := x.examineBlobs(ctx)
	if queueErr := r.queueDead(ctx, x.mu.dead); queueErr != nil {
		return sliceResult{}, errors.Join(err, queueErr) // the next examination finds the dead blobs again
	}
	x.mu.result.doomed = len(x.mu.dead)
	if err != nil {
		r.schedule.recordDoomed(k, x.mu.result.doomed)
		return sliceResult{}, fmt.Errorf("examine %s: %w", k.keyPrefix(), err)
	}
	return x.mu.result, nil
}

// examineBlobs lists the blobs of the slice and has workers classify them. It returns when all workers have ended.
func (x *sliceExamination) examineBlobs(ctx context.Context) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(x.r.c.cfg.Workers)
	listErr := x.startWorkers(ctx, workers)
	if err := workers.Wait(); err != nil {
		return err
	}
	return listErr
}

// startWorkers starts a worker for each blob. It stops when ctx ends, which it does when a worker fails.
func (x *sliceExamination) startWorkers(ctx context.Context, workers *errgroup.Group) error {
	listed := 0
	for info, err := range x.r.c.deps.Blobs.List(ctx, x.slice.keyPrefix()) {
		if err == nil {
			err = ctx.Err()
		}
		if listed++; err == nil && listed%listPage == 0 {
			err = x.r.c.waitForStore(ctx, 1)
		}
		if err != nil {
			return err
		}
		workers.Go(func() error {
			if x.r.deletions.hasKey(info.Key) {
				return nil
			}
			status, err := x.r.examineBlob(ctx, info)
			if err == nil {
				x.recordStatus(info, status)
			}
			return err
		})
	}
	return nil
}

// recordStatus adds a blob to the result of the slice.
func (x *sliceExamination) recordStatus(info blob.Info, status blobStatus) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case status.gone:
	case !status.dead:
		if status.due == 0 {
			status.due = x.now + x.r.c.cfg.SweepInterval.Microseconds()
		}
		x.mu.result.addKept(status.due)
	case x.r.deletions.remainingCapacity() <= len(x.mu.dead):
		x.mu.result.cut = true
	default:
		x.mu.dead = append(x.mu.dead, deadBlob{key: info.Key, size: info.Size, slice: x.slice, kind: status.kind})
	}
}

// queueDead queues dead blobs for deletion after Config.Linger. The time counts from now, not from the beginning of the examination,
// which may take long: a reader may have received a pointer until the moment that its blob was found dead.
func (r *blobSweeper) queueDead(ctx context.Context, dead []deadBlob) error {
	if len(dead) == 0 {
		return nil
	}
	found, err := r.c.readTime(ctx)
	if err != nil {
		return err
	}
	for _, d := range dead {
		d.found, d.notBefore = found, found+r.c.cfg.Linger.Microseconds()
		r.deletions.addBlob(d)
	}
	return nil
}

// examineBlob classifies a blob. A blob whose references are unknown is kept and counted.
func (r *blobSweeper) examineBlob(ctx context.Context, info blob.Info) (blobStatus, error) {
	_, id, err := pointer.ParseKey(info.Key)
	if err != nil || id.Time() >= r.boundary {
		return blobStatus{}, nil //nolint:nilerr // not a blob's key; or its pointers may still be appended
	}
	if err := r.c.waitForStore(ctx, 2); err != nil {
		return blobStatus{}, err
	}
	footer, err := layout.ReadFooter(ctx, r.c.deps.Blobs, info.Key)
	switch {
	case errors.Is(err, blob.ErrNotFound):
		return blobStatus{gone: true}, nil
	case errors.Is(err, layout.ErrDamaged):
		r.countKept(ctx, info, reasonDamaged, err)
		return blobStatus{}, nil
	case errors.Is(err, layout.ErrVersion):
		r.countKept(ctx, info, reasonNewer, err)
		return blobStatus{}, nil
	case err != nil:
		return blobStatus{}, err
	}
	status, err := classifyBlob(ctx, r.c.deps.Log, r.c.waitForLog, footer, r.categoryRetention)
	if err != nil {
		return blobStatus{}, err
	}
	r.c.metrics.examined.Inc()
	if status.unknown {
		r.countKept(ctx, info, reasonUnknown, errUnknownEpoch)
		return blobStatus{}, nil
	}
	return status, nil
}

// errUnknownEpoch is why a blob is kept whose writer or log the engine does not know.
var errUnknownEpoch = errors.New("its writer's epoch is unknown to the metadata engine: the blob is another cell's, or the engine was restored, or its log has moved to or from another engine")

// countKept counts and logs a blob that is kept because its references are unknown.
func (r *blobSweeper) countKept(ctx context.Context, info blob.Info, reason string, err error) {
	r.c.metrics.kept.WithLabelValues(reason).Inc()
	r.c.log.WarnContext(ctx, "keeping a blob with unknown references", "key", info.Key, "bytes", info.Size, "reason", reason, "error", err)
}

// categoryRetention returns a category's retention, 0 when the category is unknown.
func (r *blobSweeper) categoryRetention(category uint32) time.Duration {
	cat, ok := r.c.deps.Categories.ByID(category)
	if !ok {
		return 0
	}
	if d := cat.GetRetention().AsDuration(); d > 0 {
		return d
	}
	return pointer.DefaultRetention
}
