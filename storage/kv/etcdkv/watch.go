package etcdkv

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/backoff"
	"scribe/storage/kv"
)

// reopening are the pauses before a watch is opened again.
var reopening = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}

// Watch implements kv.Store. While etcd is away it waits.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	ctx, leave, err := s.enterCall(ctx)
	if err != nil {
		return err
	}
	defer leave()
	ctx, cancel := context.WithCancel(ctx)
	w := watch{store: s, prefix: s.cfg.Prefix + prefix, after: int64(min(after, maxRevision)), queue: newEventQueue(s.cfg.HistoryEvents)} //nolint:gosec // bounded
	var following sync.WaitGroup
	following.Go(func() { w.queue.finish(w.follow(ctx)) })
	defer following.Wait()
	defer cancel()
	for {
		batch, err := w.queue.next()
		if err != nil {
			return err
		}
		if err := fn(batch); err != nil {
			return err
		}
	}
}

// maxRevision is the largest revision of etcd.
const maxRevision = 1<<63 - 2

// watch is a running Watch.
type watch struct {
	store  *Store
	prefix string
	// after is how far the queue has come.
	after int64
	queue *eventQueue
	// begun says that after was compared with etcd's revision.
	begun bool
}

// follow opens the watch, again and again where it breaks, until it can't be continued.
func (w *watch) follow(ctx context.Context) error {
	for failures := 1; ; failures++ {
		from := w.after
		err := w.followOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, kv.ErrCompacted), errors.Is(err, ErrWentBack):
			return err
		case w.after > from:
			failures = 1
		}
		if backoff.Sleep(ctx, reopening.Mean(failures)) != nil {
			return context.Cause(ctx)
		}
	}
}

// followOnce watches until that fails.
func (w *watch) followOnce(ctx context.Context) error {
	if !w.begun {
		if err := w.checkBegin(ctx); err != nil {
			return err
		}
	}
	// Without a leader there is nothing new here, while another member may have it.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := w.store.cfg.Client.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.after+1), clientv3.WithFragment())
	progress := time.NewTicker(w.store.cfg.ProgressEvery)
	defer progress.Stop()
	for {
		select {
		case res, ok := <-changes:
			if !ok {
				return errWatchEnded
			}
			if err := w.queueEvents(&res); err != nil {
				return err
			}
		case <-progress.C:
			// A watch of an etcd that went back would wait for its old revision. Of everything else, the watch itself tells what is wrong.
			if _, err := w.newestRevision(ctx); errors.Is(err, ErrWentBack) {
				return err
			}
			_ = w.store.cfg.Client.RequestProgress(ctx)
		}
	}
}

// errWatchEnded means that a watch is to be opened again.
var errWatchEnded = errors.New("etcdkv: the watch ended")

// checkBegin compares the position of a new watch with etcd's revision.
func (w *watch) checkBegin(ctx context.Context) error {
	newest, err := w.newestRevision(ctx)
	if err != nil {
		return err
	}
	if w.after > newest {
		return w.compactedAt(newest, newest)
	}
	w.begun = true
	return nil
}

// newestRevision asks for etcd's revision. It fails with ErrWentBack if the store has seen a later one.
func (w *watch) newestRevision(ctx context.Context) (int64, error) {
	res, err := w.store.getKeys(ctx, w.prefix, clientv3.WithCountOnly()) // of any key, also one that isn't there
	if err != nil {
		return 0, err
	}
	return res.Header.Revision, nil
}

// advance moves the position, which is one that etcd told.
func (w *watch) advance(revision int64) {
	w.after = max(w.after, revision)
	w.store.noteRevision(w.after)
}

// compactedAt is the error of a watch that can't be continued.
func (w *watch) compactedAt(oldest, newest int64) error {
	return &kv.CompactedError{After: uint64(w.after), Oldest: uint64(oldest), Newest: uint64(max(oldest, newest))} //nolint:gosec // not negative
}

// queueEvents takes what an answer has.
func (w *watch) queueEvents(res *clientv3.WatchResponse) error {
	switch {
	case res.CompactRevision > 0:
		return w.compactedAt(res.CompactRevision, res.Header.Revision)
	case res.Err() != nil:
		return res.Err()
	case res.IsProgressNotify():
		w.advance(res.Header.Revision)
		return nil
	}
	var events []kv.KeyEvent
	for _, e := range res.Events {
		if e.Kv.ModRevision > w.after {
			events = append(events, w.eventOf(e))
		}
	}
	if len(events) == 0 {
		return nil
	}
	// The answer's own revision is etcd's, and events of this prefix up to it may come with the next one.
	batch := kv.EventBatch{Events: events, Revision: events[len(events)-1].Revision}
	if !w.queue.push(batch) {
		return w.compactedAt(int64(batch.Revision), res.Header.Revision) //nolint:gosec // it was etcd's
	}
	w.advance(int64(batch.Revision)) //nolint:gosec // it was etcd's
	return nil
}

func (w *watch) eventOf(e *clientv3.Event) kv.KeyEvent {
	event := kv.KeyEvent{Key: string(e.Kv.Key[len(w.store.cfg.Prefix):]), Revision: uint64(e.Kv.ModRevision)} //nolint:gosec // not negative
	if e.Type == mvccpb.Event_DELETE {
		event.Deleted = true
		return event
	}
	event.Value = append(make([]byte, 0, len(e.Kv.Value)), e.Kv.Value...)
	return event
}
