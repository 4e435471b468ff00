package pebblelog

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/base/lifecycle"
	"scribe/storage/metalog/journal"
)

// errNoRoom means that the folder can't be written. What the journal has is not lost by that.
var errNoRoom = errors.New("metalog: the replica's folder can't be written: is its disk full?")

// folderRoom tells whether the folder's tables can be written. While they can't, Pebble tries again for ever, and would block who
// writes more than its memory tables hold, so that the replica could neither lead, nor refuse calls, nor close. So Pebble of a
// replica never blocks, and the committer waits itself: nothing is applied while tables can't be written, and another replica leads.
type folderRoom struct {
	failing atomic.Bool
	// unflushed bounds the bytes that were applied and are in memory only.
	unflushed atomic.Int64
	changed   lifecycle.WakeChannel // for the committer
}

// memTables is how many memory tables a replica fills before it waits for their flush; replicaStall is as many as never are.
const (
	memTables    = 3
	replicaStall = 1 << 20
)

// emptyFlush is the text of the error of a flush that had nothing to write, which Pebble does not export.
const emptyFlush = "pebble: empty table"

// noteFlush takes note of the end of a flush.
func (f *folderRoom) noteFlush(info pebble.FlushInfo) {
	failed := info.Err != nil && info.Err.Error() != emptyFlush
	if !failed { // in memory, records take more than in a batch
		f.unflushed.Add(-min(int64(info.InputBytes), f.unflushed.Load())) //nolint:gosec // in memory
	}
	if f.failing.Swap(failed) != failed {
		f.changed.WakeUp()
	}
}

// awaitRoom waits until the folder can be written, and refuses calls meanwhile.
func (c *logCommitter) awaitRoom() error {
	for {
		err := c.awaitFlush()
		if !errors.Is(err, errNoRoom) {
			return err
		}
		if err := c.awaitChange(nil); err != nil {
			return err
		}
	}
}

// awaitFlush waits until no more than some memory tables are in memory only. It fails with errNoRoom while the folder can't be
// written.
func (c *logCommitter) awaitFlush() error {
	room := &c.e.replica.room
	if !room.failing.Load() && room.unflushed.Load() < memTables*c.e.opts.MemTableBytes {
		return nil
	}
	var flushed <-chan struct{}
	for !room.failing.Load() {
		if flushed == nil {
			var err error
			if flushed, err = c.e.db.AsyncFlush(); err != nil {
				return fmt.Errorf("%w: %w", errFolder, err)
			}
		}
		select {
		case <-flushed:
			room.unflushed.Store(0)
			return nil
		default:
		}
		if err := c.awaitChange(flushed); err != nil {
			return err
		}
	}
	return errNoRoom
}

// awaitChange waits until the room may have changed, or flushed is closed. A replica that does not lead refuses calls meanwhile; one that
// does gives up its group, which is not journaled yet, if another leads or shall lead.
func (c *logCommitter) awaitChange(flushed <-chan struct{}) error {
	r := c.e.replica
	queue, news := c.e.queue, r.news
	if c.leading != nil {
		queue = nil
	} else {
		news = nil
	}
	select {
	case <-news:
		if c.checkSeen() != nil {
			return journal.ErrDeposed
		}
	case <-r.room.changed:
	case <-flushed:
	case q := <-queue:
		c.refuse(q)
	case h := <-r.handOvers:
		if c.leading != nil {
			h.done <- c.handOver(h.ctx, h.detach)
			return journal.ErrDeposed
		}
		h.done <- r.notLeader()
	case <-r.life.Done():
		return errStopped
	case <-c.e.failed:
		return c.e.failedError()
	}
	return nil
}
