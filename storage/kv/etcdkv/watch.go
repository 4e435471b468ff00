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

// reopening are the pauses before a watch is opened again, and repeating those before a refused transaction is sent again.
var (
	reopening = backoff.Backoff{Min: 100 * time.Millisecond, Max: 2 * time.Second}
	repeating = backoff.Backoff{Min: 25 * time.Millisecond, Max: 500 * time.Millisecond}
)

// Watch implements kv.Store. While etcd is away it waits.
func (s *Store) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if err := s.enterCall(ctx); err != nil {
		return err
	}
	defer s.calls.Leave()
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.ctx, func() { cancel(kv.ErrClosed) })
	defer stop()
	w := watch{store: s, prefix: s.cfg.Prefix + prefix, begin: after, queue: newEventQueue(s.cfg.HistoryEvents)}
	var following sync.WaitGroup
	following.Go(func() { w.queue.finish(w.follow(ctx)) })
	defer following.Wait()
	defer cancel(nil)
	for {
		batch, err := w.queue.nextBatch()
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
	// begin is the store's revision after which the watch begins.
	begin uint64
	// after is etcd's revision that the queue has come to, once begun.
	after int64
	begun bool
	// opened is what after was when etcd's watch was opened.
	opened int64
	queue  *eventQueue
}

// follow opens the watch, again and again where it breaks, until it can't be continued.
func (w *watch) follow(ctx context.Context) error {
	for failures := 1; ; failures++ {
		from := w.after
		err := w.followOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case isFinal(err):
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
	if err := w.comparePosition(ctx); err != nil {
		return err
	}
	w.opened = w.after
	// Without a leader there is nothing new here, while another member may have it.
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	changes := w.store.cfg.Client.Watch(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithRev(w.after+1), clientv3.WithFragment())
	progress := time.NewTicker(w.store.cfg.ProgressEvery)
	defer progress.Stop()
	for answered := true; ; {
		select {
		case res, ok := <-changes:
			if !ok {
				return errWatchEnded
			}
			if err := w.queueEvents(&res); err != nil {
				return err
			}
			answered = true
		case <-progress.C:
			// etcd is silent where it is away, and where it is at an earlier revision than the one to watch from, for ever.
			if !answered {
				if err := w.comparePosition(ctx); isFinal(err) {
					return err
				}
			}
			// A quiet watch that is opened again goes on from where etcd was, not from its last change, which may be compacted by then.
			_ = w.store.cfg.Client.RequestProgress(ctx) // the watch itself tells what is wrong
			answered = false
		}
	}
}

// isFinal reports whether a watch can't go on after an error.
func isFinal(err error) bool {
	return errors.Is(err, kv.ErrCompacted) || errors.Is(err, ErrWentBack) || errors.Is(err, kv.ErrCorrupt)
}

// errWatchEnded means that a watch is to be opened again.
var errWatchEnded = errors.New("etcdkv: the watch ended")

// comparePosition compares the position of the watch with etcd's revision, before etcd's watch is opened: one of the future would wait for
// its revision, also in an etcd that lost changes.
func (w *watch) comparePosition(ctx context.Context) error {
	if err := w.store.loadBase(ctx); err != nil {
		return err
	}
	res, err := w.store.getKeys(ctx, w.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	newest := w.store.revisionOf(res.Header.Revision)
	if !w.begun {
		base := *w.store.base.Load()
		if w.begin < base || w.begin > newest {
			return &kv.CompactedError{After: w.begin, Oldest: min(base, newest), Newest: newest}
		}
		w.after, w.begun = int64(w.begin-base), true //nolint:gosec // at most etcd's revision
	}
	if w.after > res.Header.Revision {
		return w.compactedAt(res.Header.Revision, res.Header.Revision)
	}
	return nil
}

// compactedAt is the error of a watch that can't be continued.
func (w *watch) compactedAt(oldest, newest int64) error {
	s := w.store
	return &kv.CompactedError{After: s.revisionOf(w.after), Oldest: s.revisionOf(oldest), Newest: s.revisionOf(max(oldest, newest))}
}

// queueEvents takes what an answer has.
func (w *watch) queueEvents(res *clientv3.WatchResponse) error {
	switch {
	case res.CompactRevision > 0 && w.after > w.opened:
		return errWatchEnded // the client went on from an earlier revision than this watch has come to
	case res.CompactRevision > 0:
		return w.compactedAt(res.CompactRevision, res.Header.Revision)
	case res.Err() != nil:
		return res.Err()
	case res.IsProgressNotify() && res.Header.Revision < w.after:
		return errWatchEnded // a member that is behind, or an etcd that went back
	case res.IsProgressNotify():
		w.after = res.Header.Revision
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
	last := res.Events[len(res.Events)-1].Kv.ModRevision
	if !w.queue.push(kv.EventBatch{Events: events, Revision: w.store.revisionOf(last)}) {
		return w.compactedAt(last, res.Header.Revision)
	}
	w.after = last
	return nil
}

func (w *watch) eventOf(e *clientv3.Event) kv.KeyEvent {
	event := kv.KeyEvent{Key: string(e.Kv.Key[len(w.store.cfg.Prefix):]), Revision: w.store.revisionOf(e.Kv.ModRevision)}
	if e.Type == mvccpb.Event_DELETE {
		event.Deleted = true
		return event
	}
	event.Value = append(make([]byte, 0, len(e.Kv.Value)), e.Kv.Value...)
	return event
}
