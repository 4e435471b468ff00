package controlplane

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/logthrottle"
	"scribe/storage/kv"
)

// candidate runs this instance's part in the election: it beats while it leads, and otherwise watches for silence. One goroutine
// uses it.
type candidate struct {
	c        *ControlPlane
	election election
	beats    uint64
	trouble  logthrottle.Throttle
}

// runElection takes part in the election until the control plane closes, and then hands over.
func (c *ControlPlane) runElection() {
	r := &candidate{c: c, election: election{interval: c.cfg.BeatInterval, patience: c.cfg.TakeoverAfter}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-c.leadership.wake:
		case <-c.calls.Draining():
			if held, _, _ := c.leadership.heldNow(time.Now()); held != nil {
				c.handOver(held)
			}
			return
		}
		began := time.Now()
		r.election.reluctant = c.leadership.reluctant.Load()
		held, _, _ := c.leadership.heldNow(began)
		if handsOver := c.leadership.handsOver.Swap(false); handsOver && held != nil {
			c.handOver(held)
			held = nil
		}
		if held != nil {
			r.beatOnce(held)
			timer.Reset(max(c.cfg.BeatInterval-time.Since(began), 0))
		} else {
			r.standBy()
			timer.Reset(c.cfg.BeatInterval)
		}
	}
}

// StandAside hands over if this instance leads, and lets others lead first from now on: it is for a process that is about to stop, and still
// needs a leader until then. It returns when another instance leads, and fails with the cause of ctx if that ends first. Then, and if all
// others end, this one leads again after a while.
func (c *ControlPlane) StandAside(ctx context.Context) error {
	l := c.leadership
	if !c.cfg.Shared {
		return nil
	}
	l.reluctant.Store(true)
	if held, _, _ := l.heldNow(time.Now()); held == nil {
		return nil
	}
	l.handsOver.Store(true)
	l.wake.WakeUp()
	for {
		seen, changed := l.seenTerm()
		if !seen.isFree() && seen.Holder != c.cfg.Instance {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("controlplane: no other instance has taken over: %w", context.Cause(ctx))
		case <-c.calls.Draining():
			return nil
		}
	}
}

// electionContext bounds a call of the election.
func (c *ControlPlane) electionContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.stopped, max(c.cfg.TakeoverAfter, time.Second))
}

// readLeader reads the term and the beat, of one revision of the store.
func (c *ControlPlane) readLeader(ctx context.Context) (s leaderState, err error) {
	page, err := c.deps.Store.Range(ctx, kv.KeyRange{Prefix: leaderPrefix})
	if err != nil {
		return leaderState{}, err
	}
	for _, e := range page.Entries {
		switch e.Key {
		case leaderBeatKey:
			s.beatRevision = e.Revision
		case leaderTermKey:
			s.termRevision = e.Revision
			s.term, err = decodeTerm(e.Value)
			s.unreadable = err != nil
		}
	}
	c.noteLeader(s, err)
	return s, nil
}

// noteLeader records who leads, and logs a change.
func (c *ControlPlane) noteLeader(s leaderState, damage error) {
	if !c.leadership.noteSeen(s.term, s.termRevision) {
		return
	}
	c.metrics.leaderChanges.Inc()
	switch {
	case damage != nil:
		c.metrics.damaged.Inc()
		c.logger.Error("the control planes' term can't be read: it is replaced when its holder is silent", "error", damage)
	case s.term.isFree():
		c.logger.Info("no control plane leads: the last leader has handed over", "term", s.term.Term)
	case s.term.Holder != c.cfg.Instance:
		c.logger.Info("another control plane leads", "leader", s.term.Holder, "url", s.term.URL, "term", s.term.Term)
	}
}

// standBy looks at the store once, and takes over when the leader is silent or has handed over.
func (r *candidate) standBy() {
	c := r.c
	ctx, cancel := c.electionContext()
	defer cancel()
	began := time.Now()
	s, err := c.readLeader(ctx)
	if err != nil {
		r.election.noteFailure()
		r.trouble.Failed(c.stopped, c.logger, "control plane can't read who leads: it does not take over meanwhile", "error", err)
		return
	}
	r.trouble.Recovered(c.stopped, c.logger, "control plane reads who leads again")
	if r.election.noteRead(s, began, time.Now()) {
		r.takeOver(ctx, s)
	}
}

// takeOver tries to begin the term after the one that was read.
func (r *candidate) takeOver(ctx context.Context, s leaderState) {
	c := r.c
	before, _ := c.leadership.seenTerm()
	next := leaderTerm{Term: max(s.term.Term, before.Term) + 1, Holder: c.cfg.Instance, URL: c.cfg.URL, Since: c.deps.Now().UnixMicro()}
	value, err := encodeTerm(next)
	if err != nil {
		c.logger.Error("control plane can't lead: its term is not encoded", "error", err)
		return
	}
	sent := time.Now()
	// The condition on the beat is for a leader whose next beat was stored after the read: it answers from its memory, counting on that beat.
	revision, err := c.deps.Store.Commit(ctx, kv.Put(leaderTermKey, value).If(s.termRevision), kv.Put(leaderBeatKey, encodeBeat(0)).If(s.beatRevision))
	if err != nil {
		// With an unknown outcome it may be the leader without knowing: the term is then silent, and is followed by another.
		r.election.noteFailure()
		if !errors.Is(err, kv.ErrConflict) {
			r.trouble.Failed(c.stopped, c.logger, "control plane could not take over", "term", next.Term, "error", err)
		}
		return
	}
	r.beats = 0
	held := &heldTerm{leaderTerm: next, revision: revision, ended: make(chan struct{})}
	c.leadership.beginTerm(held, sent.Add(c.cfg.TakeoverAfter))
	c.noteLeader(leaderState{term: next, termRevision: revision}, nil)
	c.logger.Info("control plane takes over", "instance", c.cfg.Instance, "term", next.Term, "former", s.term.Holder)
	c.workers.Go(func() { c.restoreTerm(held) })
}

// restoreTerm reads what a leader keeps in memory, while its election beats, and then lets it lead. Writes of former leaders are
// refused since the term began, so what it reads is complete.
func (c *ControlPlane) restoreTerm(t *heldTerm) {
	r, err := c.loadMembers(c.stopped)
	if err != nil {
		c.logger.Error("control plane gives up its term: the members can't be read", "term", t.Term, "error", err)
		c.handOver(t)
		return
	}
	installed := c.leadership.setRestored(t, func() {
		c.members.replaceRegistry(r)
		c.pins.restart(time.Now())
		c.quotas.restart()
	})
	if !installed {
		return
	}
	c.logger.Info("control plane leads", "instance", c.cfg.Instance, "term", t.Term, "members", c.members.countMembers())
	c.members.wake.WakeUp()
	c.retireSchedule.requestScan()
}

// beatOnce tells the others that this instance is alive, and learns whether it still leads. It gives a beat up early enough for
// another one: a single lost answer must not end the term.
func (r *candidate) beatOnce(t *heldTerm) {
	c := r.c
	ctx, cancel := context.WithTimeout(c.stopped, max(c.cfg.TakeoverAfter/2, time.Millisecond))
	defer cancel()
	sent := time.Now()
	r.beats++
	_, err := c.deps.Store.Commit(ctx, t.only(kv.Put(leaderBeatKey, encodeBeat(r.beats)))...)
	switch {
	case errors.Is(err, kv.ErrConflict):
		c.loseTerm(t)
	case err != nil:
		c.metrics.beatFailures.Inc()
		r.trouble.Failed(c.stopped, c.logger, "control plane could not confirm that it leads", "term", t.Term, "error", err)
	default:
		r.trouble.Recovered(c.stopped, c.logger, "control plane has confirmed that it leads")
		c.confirmTerm(t, sent)
	}
}

// confirmTerm lets a term last, since a beat that was sent at a time is stored. If the beat before was too long ago, calls were
// refused meanwhile, and what the members did not repeat is missing: as after a restart, members get a whole TTL and pins time to
// come back.
func (c *ControlPlane) confirmTerm(t *heldTerm, sent time.Time) {
	if _, restored, lapsed := c.leadership.heldNow(time.Now()); restored && lapsed {
		now := time.Now()
		c.members.extendLeases(now)
		c.pins.restart(now)
		c.quotas.restart()
		c.logger.Warn("control plane leads on: the store had not answered in time", "term", t.Term)
		defer c.retireSchedule.requestScan()
	}
	c.leadership.extend(t, sent.Add(c.cfg.TakeoverAfter))
	c.members.wake.WakeUp()
}

// forgetMembers forgets what only a leader knows.
func (c *ControlPlane) forgetMembers() {
	c.members.replaceRegistry(newRegistry(c.cfg.MaxSlot))
	c.pins.restart(time.Now())
	c.quotas.restart()
}

// loseTerm ends a term after another instance has begun one.
func (c *ControlPlane) loseTerm(t *heldTerm) {
	if !c.leadership.endTerm(t, c.forgetMembers) {
		return
	}
	c.logger.Warn("control plane leads no more: another one took over", "instance", c.cfg.Instance, "term", t.Term)
	c.leadership.wake.WakeUp()
}

// handOver ends a term, and lets another instance begin one at once. If the store does not answer, the others wait for silence.
func (c *ControlPlane) handOver(t *heldTerm) {
	if !c.leadership.endTerm(t, c.forgetMembers) {
		return
	}
	value, err := encodeTerm(leaderTerm{Term: t.Term, Since: c.deps.Now().UnixMicro()})
	if err == nil {
		ctx, cancel := c.electionContext()
		defer cancel()
		_, err = c.deps.Store.Commit(ctx, kv.Put(leaderTermKey, value).If(t.revision))
	}
	if err != nil {
		c.logger.Warn("control plane did not hand over: another one takes over when it has been silent", "term", t.Term, "error", err)
		return
	}
	c.logger.Info("control plane has handed over", "instance", c.cfg.Instance, "term", t.Term)
}

// followTerm wakes the election when the term changes, until the control plane stops. Without it the election would notice at its
// next look.
func (c *ControlPlane) followTerm() {
	c.followKeys(leaderTermKey, nil, func(kv.EventBatch) { c.leadership.wake.WakeUp() })
}

// followKeys calls changed with the changes of keys until the control plane stops. Before it begins, and after each failure, it
// calls begin with all entries and the revision that they are of, if begin is not nil.
func (c *ControlPlane) followKeys(prefix string, begin func([]kv.Entry, uint64), changed func(kv.EventBatch)) {
	var trouble logthrottle.Throttle
	pauses := backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second, Random: c.deps.Random}
	for failures := 1; ; failures++ {
		began := time.Now()
		err := c.followKeysOnce(prefix, begin, changed)
		if c.stopped.Err() != nil || errors.Is(err, kv.ErrClosed) {
			return
		}
		if time.Since(began) > pauses.Max {
			failures = 1
		}
		pause := pauses.Pause(failures)
		trouble.Failed(c.stopped, c.logger, "following the store failed", "keys", prefix, "error", err, "retry_after", pause)
		if backoff.Sleep(c.stopped, pause) != nil {
			return
		}
	}
}

func (c *ControlPlane) followKeysOnce(prefix string, begin func([]kv.Entry, uint64), changed func(kv.EventBatch)) error {
	var (
		all      []kv.Entry
		revision uint64
	)
	for after := ""; ; after = all[len(all)-1].Key {
		page, err := c.deps.Store.Range(c.stopped, kv.KeyRange{Prefix: prefix, After: after})
		if err != nil {
			return err
		}
		if after == "" {
			revision = page.Revision // of the first page: changes during the read are repeated
		}
		all = append(all, page.Entries...)
		if !page.More {
			break
		}
	}
	if begin != nil {
		begin(all, revision)
	}
	return c.deps.Store.Watch(c.stopped, prefix, revision, func(b kv.EventBatch) error {
		changed(b)
		return nil
	})
}
