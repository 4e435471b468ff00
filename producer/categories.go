package producer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// CategorySource says how a category's messages find their shards: a client of the control plane, or the control plane itself.
type CategorySource interface {
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
}

const (
	// lookupTimeout bounds one question about a category, for which calls wait. It is short: programs of a host must start and
	// continue while everything that its agent forwards to hangs.
	lookupTimeout = time.Second
	// lookupSoon is the time to the next question if the category does not exist yet, or can't change before frames are sent.
	lookupSoon = time.Second
	// lookupSilence is how long nobody waits for a source that did not answer.
	lookupSilence = 5 * time.Second
	// maxLookups bounds the questions at a time.
	maxLookups = 8
	// lookupRate bounds the questions a second for which nobody waits, after lookupBurst of them. Who writes to thousands of categories
	// learns of each later; servers place what they have to until then.
	lookupRate  = 100
	lookupBurst = 200
)

// categoryDirectory has what the producer knows of the categories that it writes to. Its mutex may be taken while a stripe's is
// held, not the other way.
type categoryDirectory struct {
	core    *sharedCore
	source  CategorySource // nil: shards are as callers give them
	slots   chan struct{}  // taken by questions
	pace    *rate.Limiter  // of questions for which nobody waits
	running sync.WaitGroup
	// silent is the time, in Unix nanoseconds, until which calls do not wait for the source.
	silent atomic.Int64

	mu struct {
		sync.RWMutex
		byName map[string]*categoryState
		closed bool
	}
}

func newDirectory(c *sharedCore, source CategorySource) *categoryDirectory {
	d := &categoryDirectory{core: c, source: source, slots: make(chan struct{}, maxLookups), pace: rate.NewLimiter(lookupRate, lookupBurst)}
	d.mu.byName = make(map[string]*categoryState)
	return d
}

// categoryState is what the producer knows of a category.
type categoryState struct {
	name string
	// placing is how messages are placed; nil until that is known, and while it is as callers say.
	placing atomic.Pointer[placing]
	// sent is the newest generation whose frames may be sent: see switchPlacing.
	sent atomic.Uint64
	// due is the time of the next question, in Unix nanoseconds.
	due atomic.Int64
	// known: the source has answered.
	known  atomic.Bool
	sticky stickyShard

	// Guarded by the directory's mutex. asking: a question is under way, or waits for a slot.
	asking   bool
	streams  []*shardStream
	answered chan struct{} // closed after the next answer or failure; nil if nobody waits
	// draining are the streams that may still have frames of an earlier generation, once preparing is over.
	draining  []*shardStream
	preparing bool
}

// stateOf returns the state of a category; nil without a source, and for names that can't be a category's.
func (d *categoryDirectory) stateOf(name string) *categoryState {
	if d.source == nil {
		return nil
	}
	d.mu.RLock()
	cat := d.mu.byName[name]
	d.mu.RUnlock()
	if cat != nil || record.ValidateCategory(name) != nil {
		return cat
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if cat = d.mu.byName[name]; cat == nil && len(d.mu.byName) < MaxStreams {
		cat = &categoryState{name: strings.Clone(name)}
		cat.sticky.shard = uint32(d.core.cfg.random.Uint64()) // producers that start together should not all begin with the same shard
		d.mu.byName[cat.name] = cat
	}
	return cat
}

// addStream adds a new stream of the category. Its stripe's mutex is held.
func (d *categoryDirectory) addStream(cat *categoryState, s *shardStream) {
	if cat == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	cat.streams = append(cat.streams, s)
}

// refresh asks about a category that is used, if it is time and not too much is being asked.
func (d *categoryDirectory) refresh(cat *categoryState, now time.Time) {
	if cat == nil || now.UnixNano() < cat.due.Load() {
		return
	}
	if !d.pace.AllowN(now, 1) {
		cat.due.Store(now.Add(lookupSoon).UnixNano())
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if cat.asking || d.mu.closed {
		return
	}
	select {
	case d.slots <- struct{}{}:
		cat.asking = true
		d.running.Go(func() { d.lookUp(cat) })
	default: // the next frame tries again
	}
}

// await waits until the category is known, if the source answers.
func (d *categoryDirectory) await(ctx context.Context, cat *categoryState) {
	if cat == nil || cat.known.Load() || time.Now().UnixNano() < d.silent.Load() {
		return
	}
	d.mu.Lock()
	if d.mu.closed || cat.known.Load() {
		d.mu.Unlock()
		return
	}
	if cat.answered == nil {
		cat.answered = make(chan struct{})
	}
	answered := cat.answered
	if !cat.asking {
		cat.asking = true
		d.running.Go(func() {
			select {
			case d.slots <- struct{}{}:
				d.lookUp(cat)
			case <-d.core.ctx.Done():
				d.endLookup(cat)
			}
		})
	}
	d.mu.Unlock()
	select {
	case <-answered:
	case <-ctx.Done():
	case <-d.core.closing.Done():
	}
}

// endLookup wakes who waits for the answer of a question.
func (d *categoryDirectory) endLookup(cat *categoryState) {
	d.mu.Lock()
	defer d.mu.Unlock()
	cat.asking = false
	if cat.answered != nil {
		close(cat.answered)
		cat.answered = nil
	}
}

// lookUp asks about a category once, and uses the answer. The caller has taken a slot.
func (d *categoryDirectory) lookUp(cat *categoryState) {
	defer d.endLookup(cat)
	defer func() { <-d.slots }()
	ctx, cancel := context.WithTimeout(d.core.ctx, lookupTimeout)
	defer cancel()
	res, err := d.source.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: cat.name})
	now := time.Now()
	next := backoff.Jitter(d.core.cfg.random, d.core.cfg.categoryRefresh, 0.2)
	switch {
	case err == nil:
		if !d.switchPlacing(cat, d.core.placingOf(res.GetCategory())) {
			next = min(next, lookupSoon)
		}
		cat.known.Store(true)
	case rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY: // it may be created any time, perhaps by the first message
		cat.known.Store(true)
		next = min(next, lookupSoon)
	case connect.CodeOf(err) == connect.CodeUnimplemented: // the address takes only writes
		cat.known.Store(true)
	default:
		d.silent.Store(now.Add(lookupSilence).UnixNano())
		next = lookupSilence
	}
	cat.due.Store(now.Add(next).UnixNano())
}

// close refuses further questions, and waits for those that are under way: their context has ended.
func (d *categoryDirectory) close() {
	d.mu.Lock()
	d.mu.closed = true
	d.mu.Unlock()
	d.running.Wait()
}

// Prepare asks how messages of categories are placed, and waits for the answers until ctx ends. Calls that wait do this by
// themselves. Log and WriteAsync do not wait: what they write first, and what is written while nobody answers, is placed by a
// server. In a category that is exactly_once and places by key or field, servers refuse such messages: prepare it first.
// The error matches [ErrUnavailable].
func (p *Producer) Prepare(ctx context.Context, categories ...string) error {
	d := p.categories
	for _, name := range categories {
		cat := d.stateOf(name)
		for cat != nil && !cat.known.Load() {
			d.silent.Store(0)
			d.await(ctx, cat)
			switch {
			case cat.known.Load():
			case p.closing.Err() != nil:
				return ErrClosed
			case ctx.Err() != nil:
				return fmt.Errorf("%w: nobody says how messages of category %s are placed: %w", ErrUnavailable, name, context.Cause(ctx))
			default:
				select {
				case <-time.After(p.cfg.backoffMin):
				case <-ctx.Done():
				}
			}
		}
	}
	return nil
}

// placingOf returns how messages of a category are placed; nil if that is as callers say.
func (c *sharedCore) placingOf(category *scribev1.Category) *placing {
	p := &placing{layout: layouts.Current(category), shards: max(category.GetShards(), 1)}
	switch {
	case p.layout != nil:
		p.tag = p.layout.Tag()
		p.sticky = true // messages without a value
	case c.cfg.partitioner != nil:
		p.partitioner = c.cfg.partitioner
	case category.GetShardBy() == scribev1.ShardBy_SHARD_BY_STICKY && p.shards > 1:
		p.sticky = true
	default:
		return nil
	}
	if category.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
		p.exactlyOnce = true
	}
	return p
}

// errMoved means that the placing of the category changed while a message was placed: place it again.
var errMoved = errors.New("producer: the category places messages differently now")
