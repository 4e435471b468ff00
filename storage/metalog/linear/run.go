package linear

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// Config configures a history. Zero fields have defaults.
type Config struct {
	Seed uint64
	// Clients make Calls calls each, on Logs logs of one category; the first log is trimmed at times. The defaults are 6, 40 and
	// 3.
	Clients, Calls, Logs int
	// Category is the id of the category, which the engine must not have yet; the default is 77.
	Category uint32
	// Subscribers is the number of followers of each log; the default is 1.
	Subscribers int
	// Hurry bounds the random timeout of one call in eight; the default is 60 µs, about the duration of a call of an engine that does
	// not sync.
	Hurry time.Duration
	// Patience is the timeout of the other calls; 0 means until the context ends.
	Patience time.Duration
	// Regret is the longest pause after a call with an unknown outcome, so that an unavailable engine does not use up the calls.
	Regret time.Duration
	// Pace is the longest pause before a call; 0 means none. Enough, when it is closed, ends the calls before there are Calls of them.
	Pace   time.Duration
	Enough <-chan struct{}
	// Disturb is called Disturbances times, at moments that the seed chooses by the number of calls made, by one goroutine.
	Disturb      func(rng *rand.Rand)
	Disturbances int
	// CatchUp bounds how long subscriptions take at the end to deliver all records; the default is a minute.
	CatchUp time.Duration
}

func (c Config) withDefaults() Config {
	c.Clients, c.Calls, c.Logs, c.Subscribers = cmp.Or(c.Clients, 6), cmp.Or(c.Calls, 40), cmp.Or(c.Logs, 3), cmp.Or(c.Subscribers, 1)
	c.Category = cmp.Or(c.Category, 77)
	c.Hurry, c.CatchUp = cmp.Or(c.Hurry, 60*time.Microsecond), cmp.Or(c.CatchUp, time.Minute)
	return c
}

// runState is the state of a running history.
type runState struct {
	cfg   Config
	ctx   context.Context //nolint:containedctx // of the run
	log   Log
	h     *History
	logs  []record.ShardID
	made  atomic.Int64
	moved chan struct{} // signals that a call was made; has a buffer of one
	// followers of all logs, with the position of each.
	followers []*historyFollower
}

// Run makes calls, and returns when all calls, followers and disturbances have ended. Later calls of the engine are not in the history.
func Run(ctx context.Context, cfg Config, log Log) *History {
	r := &runState{cfg: cfg.withDefaults(), ctx: ctx, log: log, h: newHistory(), moved: make(chan struct{}, 1)}
	for i := range r.cfg.Logs {
		r.logs = append(r.logs, record.MakeShardID(r.cfg.Category, uint16(i), 1))
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	var clients, others sync.WaitGroup
	for i := range r.cfg.Subscribers {
		for at := range r.logs {
			f := &historyFollower{runState: r, at: at, heartbeat: time.Duration(1+i) * metalog.MinHeartbeat, FollowedShard: FollowedShard{Next: record.FirstLSN}}
			r.followers = append(r.followers, f)
			others.Go(func() { f.followShard(following) })
		}
	}
	done := make(chan struct{})
	others.Go(func() { r.disturbEngine(done) })
	for id := range r.cfg.Clients {
		clients.Go(func() { r.runClient(id) })
	}
	clients.Wait()
	close(done)
	r.readLast()
	stop()
	others.Wait()
	return r.h
}

// newRand returns a source of randomness for one purpose.
func (r *runState) newRand(purpose uint64) *rand.Rand {
	return rand.New(rand.NewPCG(r.cfg.Seed, purpose)) //nolint:gosec // reproducible on purpose
}

// disturbEngine calls Disturb at moments spread over the run.
func (r *runState) disturbEngine(done <-chan struct{}) {
	rng := r.newRand(1 << 32)
	total := int64(r.cfg.Clients * r.cfg.Calls)
	for n := range r.cfg.Disturbances {
		at := total*int64(n)/int64(r.cfg.Disturbances) + rng.Int64N(total/int64(r.cfg.Disturbances)+1)
		for r.made.Load() < at {
			select {
			case <-r.moved:
			case <-done:
				return
			}
		}
		r.cfg.Disturb(rng)
	}
}

// readLast reads all logs, retrying until they answer, so that their final content is in the history. Then it waits until the
// subscribers have it, too.
func (r *runState) readLast() {
	c := r.newClient(r.cfg.Clients)
	for at := range r.logs {
		var st metalog.State
		for st.FirstLSN == 0 && r.ctx.Err() == nil {
			st = c.tailShard(r.patientContext(), at)
		}
		for r.ctx.Err() == nil && !c.readShard(r.patientContext(), at, st.FirstLSN, metalog.MaxReadRecords) {
		}
		for _, f := range r.followers {
			if f.at == at && !f.waitPosition(st.NextLSN) {
				r.h.addViolation("log %d: a subscription did not bring LSN %d within %v", at, st.NextLSN-1, r.cfg.CatchUp)
			}
		}
	}
}

// patientContext returns the context of a call that gets the usual timeout.
func (r *runState) patientContext() context.Context {
	if r.cfg.Patience == 0 {
		return r.ctx
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Patience)
	context.AfterFunc(ctx, cancel)
	return ctx
}

// runClient makes calls and remembers their results.
type runClient struct {
	*runState
	rng *rand.Rand
	id  int
	// known is the client's knowledge of each log.
	known []knownShard
	// unknown says that the last call had an unknown outcome.
	unknown bool
}

type knownShard struct {
	epoch uint64
	next  record.LSN
}

func (r *runState) newClient(id int) *runClient {
	c := &runClient{runState: r, rng: r.newRand(uint64(id)), id: id, known: make([]knownShard, len(r.logs))} //nolint:gosec // a few
	for i := range c.known {
		c.known[i].next = record.FirstLSN
	}
	return c
}

func (r *runState) runClient(id int) {
	c := r.newClient(id)
	for n := range r.cfg.Calls {
		if r.cfg.Pace > 0 {
			c.pauseUpTo(r.cfg.Pace)
		}
		if r.hasEnough() {
			return
		}
		c.makeCall(uint64(id)<<32 | uint64(n)<<8) //nolint:gosec // a few
		r.made.Add(1)
		if c.unknown && r.cfg.Regret > 0 {
			c.pauseUpTo(r.cfg.Regret)
		}
		select {
		case r.moved <- struct{}{}:
		default:
		}
	}
}

// pauseUpTo waits for a random time, at most until no more calls are wanted.
func (c *runClient) pauseUpTo(most time.Duration) {
	select {
	case <-time.After(time.Duration(c.rng.Int64N(int64(most)))):
	case <-c.cfg.Enough:
	case <-c.ctx.Done():
	}
}

// hasEnough reports whether no more calls are wanted.
func (r *runState) hasEnough() bool {
	select {
	case <-r.cfg.Enough:
		return true
	case <-r.ctx.Done():
		return true
	default:
		return false
	}
}

// makeCall makes a call; value is what it may append.
func (c *runClient) makeCall(value uint64) {
	ctx, at := c.patientContext(), c.rng.IntN(len(c.logs))
	k := &c.known[at]
	if c.rng.IntN(8) == 0 {
		hurried, cancel := context.WithTimeout(ctx, time.Duration(c.rng.Int64N(int64(c.cfg.Hurry))))
		defer cancel()
		ctx = hurried
	}
	switch n := c.rng.IntN(20); {
	case k.epoch == 0 || n == 0:
		c.openShard(ctx, at)
	case n < 10:
		c.appendRecord(ctx, at, value)
	case n < 15:
		c.readShard(ctx, at, 1+record.LSN(c.rng.IntN(int(k.next)+2)), 1+c.rng.IntN(30)) //nolint:gosec // small
	case n == 15 && k.next > 1 && at == 0:
		c.trimShard(ctx, at, 1+record.LSN(c.rng.IntN(int(k.next)/2+1))) //nolint:gosec // small
	default:
		c.tailShard(ctx, at)
	}
}

func (c *runClient) outcome(err error) modelAnswer {
	a := outcome(err)
	c.unknown = a.unknown
	return a
}

// outcome classifies an error: an error that is not definite has an unknown outcome.
func outcome(err error) modelAnswer {
	sentinel := metalog.FindSentinel(err)
	return modelAnswer{refused: sentinel, unknown: err != nil && sentinel == nil}
}

func (c *runClient) openShard(ctx context.Context, at int) {
	op := c.h.beginCall(at, modelCall{kind: doOpen})
	states, err := c.log.Open(ctx, "linear", []record.ShardID{c.logs[at]})
	a := c.outcome(err)
	if err == nil {
		a.state = states[0]
		c.known[at] = knownShard{a.state.Epoch, a.state.NextLSN}
	}
	op.endCall(a, err)
}

func (c *runClient) tailShard(ctx context.Context, at int) metalog.State {
	op := c.h.beginCall(at, modelCall{kind: doTail})
	states, err := c.log.Tail(ctx, []record.ShardID{c.logs[at]})
	a := c.outcome(err)
	if err == nil {
		a.state = states[0]
	}
	op.endCall(a, err)
	return a.state
}

func (c *runClient) trimShard(ctx context.Context, at int, before record.LSN) {
	op := c.h.beginCall(at, modelCall{kind: doTrim, from: before})
	err := c.log.Trim(ctx, c.logs[at], before)
	op.endCall(c.outcome(err), err)
}

// readShard reports whether there was an answer.
func (c *runClient) readShard(ctx context.Context, at int, from record.LSN, limit int) bool {
	op := c.h.beginCall(at, modelCall{kind: doRead, from: from, limit: limit})
	entries, err := c.log.Read(ctx, c.logs[at], from, limit, 0)
	a := c.outcome(err)
	if trimmed := new(metalog.TrimmedError); errors.As(err, &trimmed) {
		a.lsn = trimmed.First
	}
	a.entries = c.h.toEntries(c.logs[at], from, entries)
	op.endCall(a, err)
	return !a.unknown && a.refused == nil
}

// appendRecord appends up to three records to a log, sometimes with another log in the same transaction.
func (c *runClient) appendRecord(ctx context.Context, at int, value uint64) {
	into := []int{at}
	if other := c.rng.IntN(len(c.logs)); other != at && c.known[other].epoch != 0 && c.rng.IntN(3) == 0 {
		into = append(into, other)
	}
	a := new(metalog.Append)
	ops := make([]*openOperation, len(into))
	for i, at := range into {
		k := c.known[at]
		in := modelCall{kind: doAppend, epoch: k.epoch}
		if c.rng.IntN(3) == 0 {
			in.expect = k.next
		}
		s := metalog.ShardAppend{Shard: c.logs[at], Epoch: in.epoch, ExpectLSN: in.expect}
		for n := range 1 + uint64(c.rng.IntN(3)) { //nolint:gosec // small
			in.values = append(in.values, value|n)
			s.Records = append(s.Records, binary.BigEndian.AppendUint64(nil, value|n))
		}
		a.Shards = append(a.Shards, s)
		ops[i] = c.h.beginCall(at, in)
	}
	if len(into) > 1 {
		c.h.noteTransaction(value, into)
	}
	done, err := c.log.Append(ctx, a)
	refused := new(metalog.RefusedError)
	errors.As(err, &refused)
	for i, at := range into {
		out := c.outcome(err)
		switch {
		case err == nil:
			out.lsn, out.time = done[i].FirstLSN, done[i].Time
			c.known[at].next = out.lsn + record.LSN(len(a.Shards[i].Records))
		case out.refused != nil && len(refused.Refusals) > 0:
			// Only the named logs have refused; the answer says nothing about the others.
			out.refused = metalog.ErrClosed
			for _, r := range refused.Refusals {
				if r.State.Shard == c.logs[at] {
					out = outcome(r.Err)
					out.state = r.State
				}
			}
		}
		if errors.Is(out.refused, metalog.ErrFenced) {
			c.known[at].epoch = 0
		}
		ops[i].endCall(out, err)
	}
}

// historyFollower subscribes to a log, again after each end, checks the updates, and adds them to the history.
type historyFollower struct {
	*runState
	at        int
	heartbeat time.Duration
	reached   atomic.Uint64 // FollowedShard.Next, for others

	// State of the running subscription:
	FollowedShard
	began int64
}

func (f *historyFollower) followShard(ctx context.Context) {
	for ctx.Err() == nil {
		f.began, f.FollowedShard = f.h.now(), FollowedShard{Next: f.Next, last: f.last, promised: max(f.promised, f.Watermark)}
		err := f.log.Subscribe(ctx, []metalog.Position{{Shard: f.logs[f.at], LSN: f.Next}}, f.heartbeat, f.takeUpdates)
		if errors.Is(err, errViolation) {
			f.h.addViolation("log %d: %v", f.at, err)
			f.reached.Store(math.MaxUint64)
			return
		}
		select { // an engine that was closed is replaced soon
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// waitPosition waits until a subscription has delivered everything before an LSN.
func (f *historyFollower) waitPosition(next record.LSN) bool {
	deadline := time.After(f.cfg.CatchUp)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for f.reached.Load() < uint64(next) {
		select {
		case <-tick.C:
		case <-f.ctx.Done():
			return true // the caller does not wait any more
		case <-deadline:
			return false
		}
	}
	return true
}

// errViolation means that a subscription violated its own rules.
var errViolation = errors.New("invalid update of a subscription")

func (f *historyFollower) takeUpdates(updates []metalog.Update) error {
	for i := range updates {
		u := &updates[i]
		from, tail := max(f.Next, u.TrimmedTo), f.Tail
		if u.Shard != f.logs[f.at] {
			return fmt.Errorf("%w: of shard %v", errViolation, u.Shard)
		}
		if err := f.TakeUpdate(u); err != nil {
			return fmt.Errorf("%w: %w", errViolation, err)
		}
		if len(u.Entries) > 0 || u.TrimmedTo != 0 || u.NextLSN != tail {
			a := modelAnswer{entries: f.h.toEntries(u.Shard, from, u.Entries), next: u.NextLSN, watermark: u.Watermark, trimmed: u.TrimmedTo}
			f.h.beginAt(f.at, modelCall{kind: doObserve, from: from}, f.began).endCall(a, nil)
		}
		f.reached.Store(uint64(f.Next))
	}
	return nil
}
