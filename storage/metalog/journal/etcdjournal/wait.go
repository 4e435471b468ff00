package etcdjournal

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/backoff"
	"scribe/storage/metalog/journal"
)

// headWatch is the newest head that the handle's one watch has seen. It starts with the first Wait.
type headWatch struct {
	start sync.Once
	mu    struct {
		sync.Mutex
		head journal.Head
		// err is why nobody may go on: the journal went back, or its head can't be read.
		err error
		// changed is closed when head or err changes.
		changed chan struct{}
	}
}

// Wait implements journal.Journal.
func (j *Journal) Wait(ctx context.Context, after journal.Head) (journal.Head, error) {
	if err := j.enterCall(ctx); err != nil {
		return journal.Head{}, err
	}
	j.watch.start.Do(func() { j.tasks.Go(j.watchHead) })
	for {
		head, changed, err := j.watch.read()
		if err != nil {
			return journal.Head{}, err
		}
		if head.Revision > after.Revision {
			return head, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return journal.Head{}, ctx.Err()
		case <-j.running.Done():
			return journal.Head{}, journal.ErrClosed
		}
	}
}

func (w *headWatch) read() (journal.Head, <-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.mu.head, w.mu.changed, w.mu.err
}

// publish tells a head, unless it is older than the one before, or an error.
func (w *headWatch) publish(head journal.Head, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil && head.Revision <= w.mu.head.Revision && w.mu.err == nil {
		return
	}
	w.mu.err = err
	if err == nil {
		w.mu.head = head
	}
	close(w.mu.changed)
	w.mu.changed = make(chan struct{})
}

// watchHead keeps the watch going until the handle closes. A watch may break at any time, so each begins with a Get.
func (j *Journal) watchHead() {
	pauses := backoff.Backoff{Min: 20 * time.Millisecond, Max: time.Second}
	for failures := 1; ; failures++ {
		began, err := j.followHead()
		if began {
			failures = 1
		}
		if errors.Is(err, journal.ErrWentBack) || errors.Is(err, journal.ErrCorrupt) || errors.Is(err, journal.ErrVersion) {
			j.watch.publish(journal.Head{}, err)
		}
		if backoff.Sleep(j.running, pauses.Pause(failures)) != nil {
			return
		}
	}
}

// followHead gets the head, and watches it until that fails. began says that the head was read.
func (j *Journal) followHead() (began bool, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(j.running))
	defer cancel()
	head, err := j.Head(ctx)
	if err != nil {
		return false, err
	}
	j.watch.publish(head, nil)
	for resp := range j.client.Watch(ctx, j.headKey(), clientv3.WithRev(int64(head.Revision)+1)) {
		if err := resp.Err(); err != nil {
			return true, err
		}
		if len(resp.Events) == 0 {
			continue
		}
		last := resp.Events[len(resp.Events)-1]
		if last.Type != clientv3.EventTypePut {
			return true, nil // the next Get tells
		}
		if head, err = j.parseHead(0, []*mvccpb.KeyValue{last.Kv}); err != nil {
			return true, err
		}
		j.watch.publish(head, nil)
	}
	return true, nil
}
