package pebblelog

import (
	"errors"
	"fmt"
	"time"

	"scribe/storage/metalog/journal"
)

// mayReplace reports whether a snapshot may cure the error of a replica that runs: it is behind the trim, or the journal or the folder is
// damaged where it stands.
func (c *logCommitter) mayReplace(err error) bool {
	if c.e.opts.Snapshots == nil || c.e.replica.life.Err() != nil {
		return false
	}
	return errors.Is(err, journal.ErrTrimmed) || errors.Is(err, journal.ErrCorrupt) || errors.Is(err, errFolder) && isDamaged(err)
}

// replaceLimit is how long the calls that run may take to end before the folder is replaced. They end by themselves, but for subscribers
// that take nothing.
const replaceLimit = 30 * time.Second

// replaceFolder seeds the folder of a replica that runs, once the calls that use it have ended. Others are refused meanwhile. It fails with
// cause if that is no cure.
func (c *logCommitter) replaceFolder(cause error) error {
	r := c.e.replica
	c.e.opts.Logger.Warn("folder is to be replaced by a snapshot: other replicas serve meanwhile", "error", cause)
	before, damaged := r.position(), errors.Is(cause, errFolder)
	if err := c.drainFolder(cause); err != nil {
		return err
	}
	c.dropStaged()
	c.known.Purge()
	if err := c.prepareFolder(damaged, true); err != nil {
		return err
	}
	if !damaged && r.position().Seq <= before.Seq { // no snapshot leads over what can't be applied
		return cause
	}
	return nil
}

// drainFolder waits until no call uses the folder, and refuses those that wait for the committer.
func (c *logCommitter) drainFolder(cause error) error {
	r := c.e.replica
	folder := r.folder.Load()
	folder.Drain()
	limit := time.NewTimer(replaceLimit)
	defer limit.Stop()
	for {
		select {
		case <-folder.Idle():
			c.refuseQueued()
			return nil
		case q := <-c.e.queue:
			c.refuse(q)
		case h := <-r.handOvers:
			h.done <- r.notLeader()
		case <-c.e.stop:
			return errStopped
		case <-c.e.failed:
			return c.e.failedError()
		case <-limit.C:
			return fmt.Errorf("calls have not ended within %v, so the folder was not replaced: %w", replaceLimit, cause)
		}
	}
}

// noteDamage tells the committer that files of the folder are damaged.
func (r *replica) noteDamage(err error) {
	if r.e.opts.Snapshots != nil && r.e.guard.armed.Load() && r.damage.CompareAndSwap(nil, &err) {
		r.news.WakeUp()
	}
}

// checkDamage returns what the folder's files were found to be damaged by since it was opened.
func (r *replica) checkDamage() error {
	if damage := r.damage.Load(); damage != nil {
		return fmt.Errorf("%w: %w", errFolder, *damage)
	}
	return nil
}
