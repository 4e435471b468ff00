package pebblelog

import (
	"errors"
	"time"
)

// errSeed means that the folder does not continue in the journal and can't be replaced.
var errSeed = errors.New("metalog: the folder needs a snapshot")

// prepareFolder finds out whether the folder continues in the journal, and admits calls then.
func (c *logCommitter) prepareFolder() error {
	r := c.e.replica
	for tries := 1; ; tries++ {
		head, err := r.readHead(r.life)
		if err == nil {
			r.offerHead(head)
		}
		if err == nil || tries >= 3 && r.position().Seq > 0 {
			r.admitted.Store(true)
			r.changeState(func() {})
			return nil
		}
		select {
		case <-c.e.stop:
			return errStopped
		case <-time.After(c.e.opts.TakeoverAfter / 4):
		}
	}
}

func (r *replica) awaitRoom() error   { return nil }
func (r *replica) addUnflushed(n int) {}
