package audit

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
)

const (
	// maxAccesses bounds the counts of a process, maxCallerAccesses those of one caller: names of categories come from outside, and nobody is to take the
	// room of all others. All of them can wait at once, and the entry about the rest with them.
	maxAccesses       = maxWaiting/2 - 1
	maxCallerAccesses = 1000
	// maxAccessBytes bounds what waits of a trail that can't be written before accesses are noted no more. The rest is for what is done and denied.
	maxAccessBytes = maxWaitingBytes / 2
	// accessBeyond is the action of the entry about calls beyond the bounds.
	accessBeyond = "access data"
)

// accessBook counts the access to data of an interval. An entry stands for all calls with which one caller did one thing to one category, so a busy producer
// makes no more entries than an idle one, and who came once is in the trail as well, which would not hold for one call of so many.
type accessBook struct {
	interval time.Duration
	now      func() time.Time
	leftOut  prometheus.Counter

	// mu guards the maps. Who holds it for reading may change the counts; who holds it for writing sees them as they are.
	mu      sync.RWMutex
	counts  map[accessKey]*accessCount
	callers map[accessCaller]int // how many of the counts each has
	// beyond are the calls since notedAt that have no count.
	beyond  atomic.Int64
	notedAt time.Time
}

// accessCaller is who calls, by whatever token.
type accessCaller struct {
	kind principal.Kind
	name string
}

// accessKey is what a count is of.
type accessKey struct {
	accessCaller
	token, action, category string
}

// accessCount is what one caller has done to one category since it was noted.
type accessCount struct {
	calls atomic.Int64
	// open are the streams, tails and queries that run, ended those that have ended.
	open, ended atomic.Int64
	// since is when the first of the calls came, or from when on nothing has come. address is where the last first one came from. Both are the business of who has
	// counted the first call, and of who holds accessBook.mu for writing.
	since   time.Time
	address string
}

func newAccessBook(interval time.Duration, now func() time.Time, leftOut prometheus.Counter) *accessBook {
	return &accessBook{
		interval: interval, now: now, leftOut: leftOut, counts: map[accessKey]*accessCount{}, callers: map[accessCaller]int{}, notedAt: now(),
	}
}

// size is for a metric.
func (b *accessBook) size() float64 {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return float64(len(b.counts))
}

// NotesAccess reports whether access to data is counted, and noted.
func (t *Trail) NotesAccess() bool { return t != nil && t.accesses != nil }

// CountAccess counts a call for the data of a category, which the caller of ctx was allowed. It costs a look-up.
func (t *Trail) CountAccess(ctx context.Context, action, category string) {
	if key, ok := t.accessKey(ctx, action, category); ok {
		t.accesses.enter(ctx, key, false)
	}
}

// HoldAccess has the entries of an access say that it goes on, until release is called. CountAccess counts its beginning.
func (t *Trail) HoldAccess(ctx context.Context, action, category string) (release func()) {
	key, ok := t.accessKey(ctx, action, category)
	if !ok {
		return func() {}
	}
	c := t.accesses.enter(ctx, key, true)
	if c == nil {
		return func() {}
	}
	return sync.OnceFunc(func() {
		t.accesses.mu.RLock()
		defer t.accesses.mu.RUnlock()
		c.open.Add(-1)
		c.ended.Add(1)
	})
}

// accessKey returns what the caller of ctx is counted as. What members do for others is counted where those others asked.
func (t *Trail) accessKey(ctx context.Context, action, category string) (accessKey, bool) {
	p := principal.FromContext(ctx)
	if !t.NotesAccess() || p.Kind == principal.Member {
		return accessKey{}, false
	}
	return accessKey{accessCaller{p.Kind, boundText(p.Name, maxText)}, boundText(p.TokenID(), maxText), action, boundText(category, maxText)}, true
}

// enter counts a call, or something that goes on. It returns the count; nil if there are too many.
func (b *accessBook) enter(ctx context.Context, key accessKey, goesOn bool) *accessCount {
	b.mu.RLock()
	c, full := b.counts[key], false
	if c != nil {
		c.enter(ctx, b.now, goesOn)
	} else {
		full = b.isFull(key)
	}
	b.mu.RUnlock()
	switch {
	case c != nil:
		return c
	case full: // who names ever new categories takes no lock from others
		return b.enterBeyond(goesOn)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c = b.counts[key]; c == nil {
		if b.isFull(key) {
			return b.enterBeyond(goesOn)
		}
		c = &accessCount{since: b.now(), address: rpc.RemoteAddress(ctx)}
		key.category = strings.Clone(key.category) // it may be a part of a request
		b.counts[key] = c
		b.callers[key.accessCaller]++
	}
	c.enter(ctx, b.now, goesOn)
	return c
}

// isFull reports whether there is no room for a count. b.mu is held.
func (b *accessBook) isFull(key accessKey) bool {
	return len(b.counts) >= maxAccesses || b.callers[key.accessCaller] >= maxCallerAccesses
}

// enterBeyond counts a call that has no count. What goes on has been counted as a call.
func (b *accessBook) enterBeyond(goesOn bool) *accessCount {
	if !goesOn {
		b.beyond.Add(1)
		b.leftOut.Inc()
	}
	return nil
}

// enter counts. accessBook.mu is held.
func (c *accessCount) enter(ctx context.Context, now func() time.Time, goesOn bool) {
	switch {
	case goesOn:
		c.open.Add(1)
	case c.calls.Add(1) == 1:
		c.since, c.address = now(), rpc.RemoteAddress(ctx)
	}
}

// take hands over an entry for each count that has something, those first that began first, and begins it anew if admit takes the entry. What is not
// taken goes on counting. Counts that had nothing are forgotten.
func (b *accessBook) take(admit func(Entry) bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	keys := make([]accessKey, 0, len(b.counts))
	for key, c := range b.counts {
		if c.calls.Load() == 0 && c.open.Load() == 0 && c.ended.Load() == 0 {
			b.forget(key)
			continue
		}
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(x, y accessKey) int { return cmp.Or(b.counts[x].since.Compare(b.counts[y].since), x.compare(y)) })
	for _, key := range keys {
		c := b.counts[key]
		if !admit(c.entry(key, now)) {
			return
		}
		c.calls.Store(0)
		c.ended.Store(0)
		c.since = now
	}
	if n := b.beyond.Load(); n > 0 {
		e := Entry{Action: accessBeyond, Outcome: Allowed, Reason: "too many", Kind: principal.Member.String(), Calls: n, Seconds: wholeSeconds(now.Sub(b.notedAt)), at: b.notedAt}
		if !admit(e) {
			return
		}
		b.beyond.Store(0)
	}
	b.notedAt = now
}

// forget removes a count. b.mu is held for writing.
func (b *accessBook) forget(key accessKey) {
	delete(b.counts, key)
	if b.callers[key.accessCaller]--; b.callers[key.accessCaller] == 0 {
		delete(b.callers, key.accessCaller)
	}
}

// entry returns what the trail has of a count.
func (c *accessCount) entry(key accessKey, now time.Time) Entry {
	return Entry{
		Action: key.action, Target: key.category, Outcome: Allowed, Principal: key.name, Kind: key.kind.String(), Token: key.token, Address: boundText(c.address, maxText),
		Calls: c.calls.Load(), Open: c.open.Load() + c.ended.Load(), Seconds: wholeSeconds(now.Sub(c.since)), at: c.since,
	}
}

// wholeSeconds rounds up. A clock may have been set back.
func wholeSeconds(d time.Duration) int64 { return max(1, int64((d+time.Second-1)/time.Second)) }

// compare orders keys.
func (k accessKey) compare(o accessKey) int {
	return cmp.Or(cmp.Compare(k.name, o.name), cmp.Compare(k.action, o.action), cmp.Compare(k.category, o.category), cmp.Compare(k.token, o.token), cmp.Compare(k.kind, o.kind))
}

// accessTicks says when accesses are due to be noted: never, if they are not counted.
func (t *Trail) accessTicks() (due <-chan time.Time, stop func()) {
	if !t.NotesAccess() {
		return nil, func() {}
	}
	ticker := time.NewTicker(t.accesses.interval)
	return ticker.C, ticker.Stop
}

// noteAccesses adds the entries of what was counted to those that wait. While many wait, counts go on instead: they take no more room with time.
func (t *Trail) noteAccesses() {
	if !t.NotesAccess() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.accesses.take(func(e Entry) bool {
		if t.ended || len(t.waiting) >= maxWaiting/2 || t.bytes+e.size() > maxAccessBytes {
			return false
		}
		e.ID = t.random.Text()
		t.waiting, t.bytes = append(t.waiting, e), t.bytes+e.size()
		return true
	})
}
