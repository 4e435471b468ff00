package producer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/time/rate"

	"scribe/internal/base/backoff"
	"scribe/internal/base/lifecycle"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// CategorySource says how a category's messages find their shards: a client of the control plane, or the control plane itself.
type CategorySource interface {
	ListCategories(ctx context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error)
}

const (
	// lookupTimeout bounds one question about a category, for which calls wait. It is short: programs of a host must start and
	// continue while everything that its agent forwards to hangs.
	lookupTimeout = time.Second
	// lookupSoon is the time to the next question if the category does not exist yet, or can't change before frames are sent.
	lookupSoon = time.Second
	// lookupSilence is how long nobody waits for a source that did not answer.
	lookupSilence = 5 * time.Second
	// maxLookup bounds the categories of one question. Who writes to thousands of them asks about many at once.
	maxLookup = 500
	// lookupGather is the pause after a question that nobody waits for: more categories gather for the next one.
	lookupGather = 20 * time.Millisecond
	// waitRate bounds how many categories a second a call of WriteAsyncContext waits for the first answer about, after waitBurst of them.
	waitRate  = 100
	waitBurst = 200
)

// categoryDirectory has what the producer knows of the categories that it writes to. Its mutex may be taken while a stripe's is
// held, not the other way.
type categoryDirectory struct {
	core    *sharedCore
	source  CategorySource        // nil: shards are as callers give them
	waits   *rate.Limiter         // of calls that need not wait
	waiting lifecycle.WakeChannel // somebody waits for an answer
	running sync.WaitGroup
	// silent is the time, in Unix nanoseconds, until which calls do not wait for the source.
	silent atomic.Int64

	mu struct {
		sync.RWMutex
		byName map[string]*categoryState
		// asking are those to ask about, in order. asks: a goroutine does.
		asking []*categoryState
		asks   bool
		closed bool
	}
}

func newDirectory(c *sharedCore, source CategorySource) *categoryDirectory {
	d := &categoryDirectory{core: c, source: source, waits: rate.NewLimiter(waitRate, waitBurst), waiting: lifecycle.NewWakeChannel()}
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
	// linger is the category's own, in nanoseconds; below 0 if it has none.
	linger atomic.Int64
	// known: the source has answered.
	known  atomic.Bool
	sticky stickyShard

	// Guarded by the directory's mutex. asking: a question is under way, or to be asked.
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
		cat.linger.Store(-1)
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

// refresh asks about a category that is used, if it is time.
func (d *categoryDirectory) refresh(cat *categoryState, now time.Time) {
	if cat == nil || now.UnixNano() < cat.due.Load() {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ask(cat)
}

// ask makes a category be asked about. The mutex is held.
func (d *categoryDirectory) ask(cat *categoryState) {
	if cat.asking || d.mu.closed {
		return
	}
	cat.asking = true
	d.mu.asking = append(d.mu.asking, cat)
	if !d.mu.asks {
		d.mu.asks = true
		d.running.Go(d.askAll)
	}
}

// askAll asks until there is nothing left to ask.
func (d *categoryDirectory) askAll() {
	for {
		d.mu.Lock()
		batch := slices.Clone(d.mu.asking[:min(len(d.mu.asking), maxLookup)])
		d.mu.asking = slices.Delete(d.mu.asking, 0, len(batch))
		d.mu.asks = len(batch) > 0
		d.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		d.lookUp(batch)
		select {
		case <-time.After(lookupGather):
		case <-d.waiting:
		case <-d.core.ctx.Done():
		}
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
	d.ask(cat)
	d.waiting.WakeUp()
	d.mu.Unlock()
	select {
	case <-answered:
	case <-ctx.Done():
	case <-d.core.closing.Done():
	}
}

// lookUp asks about categories once, and uses the answer.
func (d *categoryDirectory) lookUp(batch []*categoryState) {
	ctx, cancel := context.WithTimeout(d.core.ctx, lookupTimeout)
	defer cancel()
	req := &scribev1.ListCategoriesRequest{WithoutSchemas: true}
	for _, cat := range batch {
		req.Names = append(req.Names, cat.name)
	}
	res, err := d.source.ListCategories(ctx, req)
	known := make(map[string]*scribev1.Category, len(batch))
	for _, c := range res.GetCategories() {
		known[c.GetName()] = c
	}
	// A server that lists others, or none, takes only writes, or is older.
	silent := err != nil && connect.CodeOf(err) != connect.CodeUnimplemented
	now := time.Now()
	if silent {
		d.silent.Store(now.Add(lookupSilence).UnixNano())
	}
	for _, cat := range batch {
		next := backoff.Jitter(d.core.cfg.random, d.core.cfg.categoryRefresh, 0.2)
		switch {
		case silent:
			next = lookupSilence
		case res.GetNamed():
			if !d.learn(cat, known[cat.name]) {
				next = min(next, lookupSoon)
			}
			cat.known.Store(true)
		default:
			cat.known.Store(true)
		}
		cat.due.Store(now.Add(next).UnixNano())
		d.endLookup(cat)
	}
}

// learn uses what a category is; nil if it does not exist yet. It reports whether that is all for some time.
func (d *categoryDirectory) learn(cat *categoryState, c *scribev1.Category) bool {
	if c == nil { // it may be created any time, perhaps by the first message
		return false
	}
	cat.linger.Store(-1)
	if l := c.GetLinger(); l != nil {
		cat.linger.Store(int64(l.AsDuration()))
	}
	return d.switchPlacing(cat, d.core.placingOf(c))
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
