package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// errLost ends a term: another keeper leads or may lead.
var errLost = errors.New("retention: lease lost")

// lease decides when a waiting keeper may take over. It does no I/O. Its times are the local clock's, so clocks need not agree.
type lease struct {
	ttl time.Duration
	// epoch and next are the lease shard's last known state, unchanged since then.
	epoch uint64
	next  record.LSN
	since time.Time
}

// checkTakeover takes the state of the lease shard at now and its last record, nil for none. It returns whether to take over, or else the
// wait before the next check.
func (l *lease) checkTakeover(now time.Time, owner string, st metalog.State, last *keeperState) (take bool, wait time.Duration) {
	if l.since.IsZero() || st.Epoch != l.epoch || st.NextLSN != l.next {
		l.epoch, l.next, l.since = st.Epoch, st.NextLSN, now
	}
	switch {
	case st.Epoch == 0:
		return true, 0
	case last != nil && (last.Released || last.Owner == owner):
		// An owner holds the lock of its data folder: its former process has ended.
		return true, 0
	}
	left := l.ttl - now.Sub(l.since)
	return left <= 0, min(max(left, time.Millisecond), l.ttl/3)
}

// leaseTerm is the time for which a keeper leads. A running step may end after it, which is safe.
type leaseTerm struct {
	c     *Keeper
	epoch uint64

	// saving serialises appends of the state. It is held across calls of the engine, so who waits for it must be able to give up: a renewal
	// that could not would outlast the lease.
	saving *semaphore.Weighted
	mu     struct {
		sync.Mutex
		state *keeperState
	}
}

// keptRecords is how many records of the lease shard are kept, for inspection.
const keptRecords = 16

// awaitLease waits until this keeper leads. It returns nil when ctx ends first.
func (c *Keeper) awaitLease(ctx context.Context) *leaseTerm {
	l := lease{ttl: c.cfg.LeaseTTL}
	for {
		take, wait, err := c.checkLease(ctx, &l)
		if err == nil && take {
			var t *leaseTerm
			if t, err = c.takeLease(ctx); err == nil {
				return t
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			c.reportFailure("lease", err)
			wait = c.cfg.LeaseTTL / 3
		}
		if backoff.Sleep(ctx, wait) != nil {
			return nil
		}
	}
}

func (c *Keeper) checkLease(ctx context.Context, l *lease) (take bool, wait time.Duration, err error) {
	st, err := c.leaseState(ctx)
	if err != nil {
		return false, 0, err
	}
	last, err := c.lastState(ctx, st)
	if err != nil && !errors.Is(err, errState) {
		return false, 0, err
	}
	take, wait = l.checkTakeover(time.Now(), c.deps.Owner, st, last)
	return take, wait, nil
}

func (c *Keeper) leaseState(ctx context.Context) (metalog.State, error) {
	states, err := c.deps.Log.Tail(ctx, []record.ShardID{LeaseShard})
	if err != nil {
		return metalog.State{}, fmt.Errorf("read the lease: %w", err)
	}
	return states[0], nil
}

// lastState returns the newest state in the lease shard, nil if there is none.
func (c *Keeper) lastState(ctx context.Context, st metalog.State) (*keeperState, error) {
	if st.NextLSN == st.FirstLSN {
		return nil, nil
	}
	entries, err := c.deps.Log.Read(ctx, LeaseShard, st.NextLSN-1, 1, 0)
	if err != nil || len(entries) == 0 {
		return nil, fmt.Errorf("read the previous keeper's state: %w", errors.Join(err, context.Cause(ctx)))
	}
	return decodeState(entries[0].Data)
}

// takeLease makes this keeper the leader. It starts with the previous leader's state.
func (c *Keeper) takeLease(ctx context.Context) (*leaseTerm, error) {
	states, err := c.deps.Log.Open(ctx, c.deps.Owner, []record.ShardID{LeaseShard})
	if err != nil {
		return nil, fmt.Errorf("take the lease: %w", err)
	}
	// Appends with older epochs fail from here on: the last record stays the last.
	s, err := c.lastState(ctx, states[0])
	switch {
	case errors.Is(err, errState):
		// The state holds progress and permits no deletion: a new one only costs another examination of everything. It has a new
		// cell name, so the former cell's claim must be adopted.
		c.log.ErrorContext(ctx, "previous keeper's state is damaged, starting with a new state", "error", err)
	case err != nil:
		return nil, err
	}
	if s == nil {
		s = &keeperState{Cell: strings.ToLower(c.deps.Random.Text()[:16]), Unclaimed: true}
	}
	if s.Cursors == nil {
		s.Cursors = map[uint32]int64{}
	}
	s.Owner, s.Released = c.deps.Owner, false
	t := &leaseTerm{c: c, epoch: states[0].Epoch, saving: semaphore.NewWeighted(1)}
	t.mu.state = s
	if err := t.saveState(ctx); err != nil {
		return nil, err
	}
	return t, nil
}

func (t *leaseTerm) cellName() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.state.Cell
}

// updateState changes the state. The next saveState persists the change.
func (t *leaseTerm) updateState(fn func(*keeperState)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	fn(t.mu.state)
}

// saveState appends the state, which also renews the lease. It fails with errLost when another keeper leads.
func (t *leaseTerm) saveState(ctx context.Context) error {
	if err := t.saving.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for another write of the state: %w", err)
	}
	defer t.saving.Release(1)
	t.mu.Lock()
	data, err := t.mu.state.encode()
	t.mu.Unlock()
	if err != nil {
		return err
	}
	done, err := t.c.deps.Log.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: LeaseShard, Epoch: t.epoch, Records: [][]byte{data}}}})
	switch {
	case errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrSealed):
		return fmt.Errorf("%w: %w", errLost, err)
	case err != nil:
		return fmt.Errorf("write the state: %w", err)
	}
	if lsn := done[0].FirstLSN; lsn > keptRecords && lsn%keptRecords == 0 {
		if err := t.c.deps.Log.Trim(ctx, LeaseShard, lsn-keptRecords+1); err != nil {
			return fmt.Errorf("trim old states: %w", err)
		}
	}
	return nil
}

// renewLease renews the lease until ctx ends or the lease is lost. It counts as lost, too, when no renewal succeeded for two thirds of
// LeaseTTL: the other keepers wait for all of it.
func (t *leaseTerm) renewLease(ctx context.Context) error {
	ttl := t.c.cfg.LeaseTTL
	kept, pause := time.Now(), ttl/3
	for backoff.Sleep(ctx, pause) == nil {
		began := time.Now()
		limit := time.Until(kept.Add(2 * ttl / 3))
		if limit <= 0 {
			return fmt.Errorf("%w: not renewed in time", errLost)
		}
		attempt, cancel := context.WithTimeout(ctx, limit)
		err := t.saveState(attempt)
		cancel()
		switch {
		case errors.Is(err, errLost):
			return err
		case err == nil:
			kept, pause = began, ttl/3
		case ctx.Err() == nil:
			t.c.reportFailure("lease", err)
			pause = ttl / 10
		}
	}
	return nil
}

// releaseLease marks the lease as released, so that another keeper takes over at once.
func (t *leaseTerm) releaseLease(ctx context.Context) error {
	t.updateState(func(s *keeperState) { s.Released = true })
	if err := t.saveState(ctx); err != nil && !errors.Is(err, errLost) {
		return fmt.Errorf("retention: release the lease: %w", err)
	}
	return nil
}
