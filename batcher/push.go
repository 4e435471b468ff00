package batcher

import (
	"bytes"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"scribe/internal/base/backoff"
	"scribe/internal/base/logthrottle"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// ReadProxy is a read proxy of the cell.
type ReadProxy struct {
	// URL is the base URL under which clients know it. It determines which blobs it is the home of.
	URL     string
	Service rpc.PushService
}

const (
	// askEvery is the least time between two requests to a read proxy that only ask what it wants. Only flushes cause them.
	askEvery = time.Second
	// pushTimeout bounds a request to a read proxy.
	pushTimeout = 2 * time.Second
	// latePush is the age at which a queued block is dropped: by then its readers have it from the store.
	latePush = 2 * time.Second
	// pushRequestBytes and pushRequestBlocks bound the blocks of a request. A larger block has a request of its own.
	pushRequestBytes  = 8 << 20
	pushRequestBlocks = 1000
	// maxPushedBlock bounds a block that is pushed: a request has to fit a message.
	maxPushedBlock = 32 << 20
	// maxPushedCategories bounds the categories that are named with a block.
	maxPushedCategories = 1000
)

// minPushPause and maxPushPause bound the pauses of a read proxy that fails.
const (
	minPushPause = time.Second
	maxPushPause = 30 * time.Second
)

// Outcomes of blocks that were to be pushed, as values of a label.
const (
	pushSent        = "sent"
	pushFull        = "full"        // too many bytes were queued
	pushPaced       = "paced"       // over the rate
	pushLate        = "late"        // queued for too long
	pushFailed      = "failed"      // the request failed
	pushUnavailable = "unavailable" // the read proxy failed before, and was not asked
	pushTooLarge    = "too_large"
)

// blockPusher hands blocks of categories that are read at the tail to read proxies, while the blobs are put. No flush waits for
// it: a block is copied into a bounded queue or dropped. A block that is not pushed costs a read of the store, nothing else, and
// neither does one whose put fails: no pointer ever names it.
//
// A block goes to the home of its blob if any read proxy wants one of its categories, and to the read proxies that want all
// blocks of one. Each proxy is served by at most one goroutine, which runs while there is something to send.
type blockPusher struct {
	limit   int64
	pauses  backoff.Backoff
	pace    *rate.Limiter // nil without a bound
	proxies func() []ReadProxy
	now     func() time.Time
	log     *slog.Logger
	metrics *batcherMetrics

	ctx    context.Context //nolint:containedctx // pushes outlive the flushes that they are of
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu struct {
		sync.Mutex
		closed bool
		// known is the list that targets are made of: the proxies by URL. urls has those URLs.
		known   []ReadProxy
		urls    []string
		targets map[string]*pushTarget
		// wanted has the categories that any target wants, each with the targets that want all of its blocks.
		wanted map[string][]*pushTarget
		bytes  int64 // of blocks that are queued or being sent, for each target
	}
}

// pushTarget is a read proxy. blockPusher.mu guards it, but for what only its goroutine uses.
type pushTarget struct {
	proxy   ReadProxy
	queue   []queuedPush
	running bool
	// version identifies the list of wanted categories; asked is the time of the last request.
	version uint64
	wanted  []*scribev1.WantedCategory
	asked   time.Time
	// After failures in a row nothing is sent until pausedUntil.
	failures    int
	pausedUntil time.Time
	throttle    logthrottle.Throttle // its goroutine's
}

// queuedPush is a block that waits to be sent.
type queuedPush struct {
	block *scribev1.PushedBlock
	since time.Time
}

// newPusher returns a pusher; nil if nothing is to be pushed.
func newPusher(cfg *Config, deps *Deps, m *batcherMetrics) *blockPusher {
	if deps.ReadProxies == nil || cfg.PushBytes == 0 {
		return nil
	}
	u := &blockPusher{
		limit: cfg.PushBytes, pauses: backoff.Backoff{Min: minPushPause, Max: maxPushPause, Random: deps.Random.Named("pushes")},
		proxies: deps.ReadProxies, now: deps.Clock, log: deps.Logger, metrics: m,
	}
	if perSecond := cfg.PushBytesPerSecond; perSecond > 0 {
		u.pace = rate.NewLimiter(rate.Limit(perSecond), int(max(perSecond, maxPushedBlock)))
	}
	u.ctx, u.cancel = context.WithCancel(context.Background())
	u.mu.targets = map[string]*pushTarget{}
	return u
}

// stopPushing drops what is queued, and waits for the running requests, which it cancels.
func (u *blockPusher) stopPushing() {
	if u == nil {
		return
	}
	u.mu.Lock()
	u.mu.closed = true
	u.mu.Unlock()
	u.cancel()
	u.tasks.Wait()
}

// queuedBytes returns the bytes that are queued or being sent.
func (u *blockPusher) queuedBytes() int64 {
	if u == nil {
		return 0
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.mu.bytes
}

// plannedPush is a block with the targets that it goes to.
type plannedPush struct {
	share      *blockShare
	categories []string
	targets    []*pushTarget
}

// pushPart queues the blocks of a part whose blob is built for the read proxies that want them. It copies them: the part's memory
// is free when the part ends. It never waits.
func (u *blockPusher) pushPart(p *flushPart) {
	if u == nil {
		return
	}
	now := u.now()
	plans := u.planPushes(p, now)
	for i := range plans {
		c := &plans[i]
		encoded, err := pushedPointer(c.share)
		if err != nil { // a pointer of this process's own making
			u.dropPlan(c, pushFailed)
			continue
		}
		block := &scribev1.PushedBlock{Pointer: encoded, Data: bytes.Clone(c.share.block.stored.B), Categories: c.categories}
		u.mu.Lock()
		for _, t := range c.targets {
			t.queue = append(t.queue, queuedPush{block, now})
			u.startTarget(t)
		}
		u.mu.Unlock()
	}
}

// pushedPointer returns the pointer of the first payload of a share, without sequences, which may be most of it.
func pushedPointer(share *blockShare) ([]byte, error) {
	for _, pl := range share.payloads {
		if len(pl.ranges) > 0 {
			p, err := pointer.Decode(pl.ranges[0].record)
			if err != nil {
				return nil, err
			}
			p.Sequences = nil
			return pointer.Append(nil, &p), nil
		}
	}
	return nil, pointer.ErrCorrupt
}

// planPushes decides which blocks of a part go where, and charges them. It also makes each read proxy be asked what it wants if
// the last answer is old.
func (u *blockPusher) planPushes(p *flushPart, now time.Time) (plans []plannedPush) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.mu.closed {
		return nil
	}
	u.updateTargets()
	for _, t := range u.mu.targets {
		if now.Sub(t.asked) >= askEvery {
			u.startTarget(t)
		}
	}
	if len(u.mu.wanted) == 0 || len(u.mu.urls) == 0 {
		return nil
	}
	home := u.mu.targets[u.mu.urls[discovery.HomeOf(p.id, u.mu.urls)]]
	for i := range p.shares {
		c := plannedPush{share: &p.shares[i]}
		if u.chooseTargets(&c, home); len(c.targets) > 0 && u.chargePlan(&c, now) {
			plans = append(plans, c)
		}
	}
	return plans
}

// chooseTargets sets the categories and targets of a block. The mutex is held.
func (u *blockPusher) chooseTargets(c *plannedPush, home *pushTarget) {
	var last string
	for _, pl := range c.share.payloads {
		name := pl.batch.category
		if len(pl.ranges) == 0 || name == last || len(c.categories) >= maxPushedCategories {
			continue
		}
		last = name
		alls, ok := u.mu.wanted[name]
		if !ok || slices.Contains(c.categories, name) {
			continue
		}
		if c.categories = append(c.categories, name); len(c.targets) == 0 {
			c.targets = append(c.targets, home)
		}
		for _, t := range alls {
			if !slices.Contains(c.targets, t) {
				c.targets = append(c.targets, t)
			}
		}
	}
}

// chargePlan removes the targets that can't take the block now, counts them, and charges the rest. It reports whether any are
// left. The mutex is held.
func (u *blockPusher) chargePlan(c *plannedPush, now time.Time) bool {
	n := int64(len(c.share.block.stored.B))
	c.targets = slices.DeleteFunc(c.targets, func(t *pushTarget) bool {
		outcome := ""
		switch {
		case n > maxPushedBlock:
			outcome = pushTooLarge
		case now.Before(t.pausedUntil):
			outcome = pushUnavailable
		case u.mu.bytes+n > u.limit:
			outcome = pushFull
		case u.pace != nil && !u.pace.AllowN(now, int(n)):
			outcome = pushPaced
		default:
			u.mu.bytes += n
			return false
		}
		u.metrics.pushed.WithLabelValues(outcome).Inc()
		return true
	})
	return len(c.targets) > 0
}

// dropPlan drops a block that is charged.
func (u *blockPusher) dropPlan(c *plannedPush, outcome string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.bytes -= int64(len(c.targets)) * int64(len(c.share.block.stored.B))
	u.metrics.pushed.WithLabelValues(outcome).Add(float64(len(c.targets)))
}

// updateTargets follows the list of read proxies. A proxy that left loses its queue as its requests fail. The mutex is held.
func (u *blockPusher) updateTargets() {
	list := u.proxies()
	if len(list) == len(u.mu.known) && (len(list) == 0 || &list[0] == &u.mu.known[0]) {
		return
	}
	u.mu.known, u.mu.urls = list, u.mu.urls[:0]
	targets := make(map[string]*pushTarget, len(list))
	for _, x := range list {
		if targets[x.URL] != nil {
			continue
		}
		t := u.mu.targets[x.URL]
		if t == nil || t.proxy.Service != x.Service {
			t = &pushTarget{proxy: x}
		}
		targets[x.URL] = t
		u.mu.urls = append(u.mu.urls, x.URL)
	}
	u.mu.targets = targets
	u.collectWanted()
}

// collectWanted unites what the targets want. The mutex is held.
func (u *blockPusher) collectWanted() {
	u.mu.wanted = map[string][]*pushTarget{}
	for _, url := range u.mu.urls {
		t := u.mu.targets[url]
		for _, w := range t.wanted {
			alls := u.mu.wanted[w.GetName()]
			if w.GetAll() {
				alls = append(alls, t)
			}
			u.mu.wanted[w.GetName()] = alls
		}
	}
}

// startTarget starts a target's goroutine unless it runs. The mutex is held.
func (u *blockPusher) startTarget(t *pushTarget) {
	if !t.running && !u.mu.closed {
		t.running = true
		u.tasks.Go(func() { u.runTarget(t) })
	}
}

// runTarget sends what is queued for a target, and asks what it wants.
func (u *blockPusher) runTarget(t *pushTarget) {
	for {
		req, bytes := u.nextPush(t)
		if req == nil {
			return
		}
		ctx, cancel := context.WithTimeout(u.ctx, pushTimeout)
		res, err := t.proxy.Service.Push(ctx, req)
		cancel()
		u.endPush(t, req, bytes, res, err)
	}
}

// nextPush returns the next request to a target and the bytes of its blocks; nil if there is nothing to send or ask, which ends
// the target's goroutine.
func (u *blockPusher) nextPush(t *pushTarget) (req *scribev1.PushRequest, size int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := u.now()
	paused := u.mu.closed || now.Before(t.pausedUntil)
	req = &scribev1.PushRequest{Version: t.version}
	taken := 0
	for _, q := range t.queue {
		n := int64(len(q.block.GetData()))
		late := now.Sub(q.since) > latePush
		if !late && !paused && len(req.GetBlocks()) > 0 && (size+n > pushRequestBytes || len(req.GetBlocks()) >= pushRequestBlocks) {
			break
		}
		taken++
		switch {
		case paused:
			u.mu.bytes -= n
			u.metrics.pushed.WithLabelValues(pushUnavailable).Inc()
		case late:
			u.mu.bytes -= n
			u.metrics.pushed.WithLabelValues(pushLate).Inc()
		default:
			req.Blocks = append(req.Blocks, q.block)
			size += n
		}
	}
	t.queue = slices.Delete(t.queue, 0, taken)
	if paused || len(req.GetBlocks()) == 0 && now.Sub(t.asked) < askEvery {
		t.running, t.queue = false, nil
		return nil, 0
	}
	t.asked = now
	return req, size
}

// endPush records the outcome of a request.
func (u *blockPusher) endPush(t *pushTarget, req *scribev1.PushRequest, size int64, res *scribev1.PushResponse, err error) {
	u.logOutcome(t, err)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mu.bytes -= size
	count := float64(len(req.GetBlocks()))
	if err != nil {
		u.metrics.pushed.WithLabelValues(pushFailed).Add(count)
		if rpc.ReasonOf(err) == scribev1.Reason_REASON_TOO_LARGE {
			return // this request's fault
		}
		t.failures++
		pause := u.pauses.Pause(t.failures)
		if d := retry.Classify(err); d.Class == retry.Overloaded && d.After > 0 {
			pause = min(d.After, pause)
		}
		t.pausedUntil = u.now().Add(pause)
		return
	}
	t.failures = 0
	u.metrics.pushed.WithLabelValues(pushSent).Add(count)
	u.metrics.pushedBytes.Add(float64(size))
	if t.version != res.GetVersion() {
		t.version, t.wanted = res.GetVersion(), res.GetWanted()
		u.collectWanted()
	}
}

// logOutcome logs the beginning and the end of a target's failures. Only its goroutine calls it.
func (u *blockPusher) logOutcome(t *pushTarget, err error) {
	switch {
	case err == nil:
		t.throttle.Recovered(u.ctx, u.log, "read proxy takes fresh blocks again", slog.String("url", t.proxy.URL))
	case u.ctx.Err() == nil:
		t.throttle.Failed(u.ctx, u.log, "failed to push fresh blocks to a read proxy: its readers fetch them from the store", slog.String("url", t.proxy.URL), slog.Any("error", err))
	}
}
