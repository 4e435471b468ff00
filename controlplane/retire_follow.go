package controlplane

import (
	"strings"
	"time"

	"scribe/storage/kv"
)

// followRetiring keeps the schedule informed of what the control planes that share the store change, until this one stops: the
// leader retires what others delete, and the others learn that it has.
func (c *ControlPlane) followRetiring() {
	var names map[string]bool
	c.followKeys(retiringPrefix, func(all []kv.Entry, _ uint64) {
		names = make(map[string]bool, len(all))
		for _, e := range all {
			names[strings.TrimPrefix(e.Key, retiringPrefix)] = true
		}
		c.retireSchedule.setPending(len(names))
		c.retireSchedule.requestScan()
		c.retireSchedule.wakeWaiters()
	}, func(b kv.EventBatch) {
		for _, e := range b.Events {
			name := strings.TrimPrefix(e.Key, retiringPrefix)
			if e.Deleted {
				delete(names, name)
				continue
			}
			names[name] = true
			c.requestFollowed(e)
		}
		c.retireSchedule.setPending(len(names))
		c.retireSchedule.wakeWaiters()
	})
}

// requestFollowed requests the retirement of a category that was deleted, here or by another control plane, if this one leads.
func (c *ControlPlane) requestFollowed(e kv.KeyEvent) {
	if c.leadership.currentTerm(time.Now()) == nil {
		return
	}
	p, err := c.decodeRetiring(kv.Entry{Key: e.Key, Value: e.Value, Revision: e.Revision})
	if err != nil {
		c.logger.Error("ignoring damaged deleted category: not retired", "key", e.Key, "error", err)
		return
	}
	c.retireSchedule.requestNow(p)
}
