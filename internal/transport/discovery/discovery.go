package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/base/backoff"
	"scribe/internal/base/balance"
	"scribe/internal/base/entropy"
	"scribe/internal/base/inflight"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// refreshEvery is the age at which a list of instances is refreshed. It varies by a fifth, so that clients that started
	// together do not refresh together.
	refreshEvery = 5 * time.Second
	// refreshSoon is the time between two lookups if there is a reason for one: an instance failed, or a role has no instance.
	refreshSoon = time.Second
	// refreshLate is the longest time between failing lookups while a list is known.
	refreshLate = time.Minute
	// lookupTimeout bounds the first lookup at the given address, for which a call waits.
	lookupTimeout = 5 * time.Second
	// lookupPatience is the lookupTimeout while other given addresses are left to ask.
	lookupPatience = 2 * time.Second
	// recheckTimeout bounds each lookup while a list is known.
	recheckTimeout = time.Second
	// maxSubstitutes bounds the members that are asked if the given address does not answer.
	maxSubstitutes = 2
	// passOver is how long a failed instance is avoided while there are others.
	passOver = 3 * time.Second
	// maxTries bounds the instances that one call tries.
	maxTries = 3
)

// Cell is a client's view of a cell. It starts no goroutine: calls refresh the lists that they need. It is safe for concurrent
// use.
type Cell struct {
	transport *rpc.Transport
	server    string // one address, or the text of a list
	control   rpc.ControlService
	given     *rpc.AddressSet               // the addresses in server; nil if they are invalid
	lookups   map[string]rpc.ControlService // clients of each of them
	invalid   error
	random    *entropy.Source
	began     time.Time
	// retries bounds what fetches cost beyond their first tries.
	retries *backoff.Budget
	fetches struct{ calls, parts, repeats, waits, exhausted atomic.Uint64 }
	// writers knows which instance has what is in flight of a stream.
	writers inflight.Places[record.Stream, roleInstance]

	mu struct {
		sync.Mutex
		view cellView
		due  time.Time // the time of the next refresh
		soon time.Time // the earliest time of a refresh for a reason
		late time.Duration
		// loading is the running refresh; nil if there is none. At most one runs.
		loading *viewRefresh
		// failed has the time until which an instance is avoided. Only instances of the view are in it, and in clients.
		failed  map[roleInstance]time.Time
		clients map[roleInstance]any
		// ordered are the instances whose last answer had WriteResponse.ordered.
		ordered map[roleInstance]bool
		// choosers choose among the instances of a role.
		choosers map[scribev1.Role]*balance.Chooser
	}
}

// roleInstance is an instance of a role: the role of one process.
type roleInstance struct {
	role scribev1.Role
	url  string
}

// viewRefresh is a running refresh. err is set when done is closed.
type viewRefresh struct {
	done chan struct{}
	err  error
}

// New returns a view of the cell that server belongs to, which draws its choices from a source. With the text of an [rpc.AddressList]
// the first of them that answers is the given address, until it is away. It sends no request before the first call.
func New(t *rpc.Transport, server string, random *entropy.Source) *Cell {
	c := &Cell{transport: t, server: server, control: rpc.NewControlClient(t, server), random: random, began: time.Now(), retries: backoff.NewBudget(retryShare, maxRetries)}
	if c.given, c.invalid = t.Addresses(server); c.invalid == nil {
		c.lookups = make(map[string]rpc.ControlService)
		for _, url := range c.given.Order() {
			c.lookups[url] = rpc.NewControlClient(t, url)
		}
	}
	c.mu.failed = make(map[roleInstance]time.Time)
	c.mu.clients = make(map[roleInstance]any)
	c.mu.ordered = make(map[roleInstance]bool)
	c.mu.choosers = make(map[scribev1.Role]*balance.Chooser)
	return c
}

// Control returns the ControlService of the given address, or of the first of several that can be reached.
func (c *Cell) Control() rpc.ControlService { return c.control }

// instanceChoice orders instances for one call.
type instanceChoice struct {
	role scribev1.Role
	urls []string // the best first, recently failed ones last; never empty
}

// chooseInstances returns the instances of the first role that has any. Without a key the best one is that which a [balance.Chooser]
// chooses. With a key, the order is that of orderByAffinity.
func (c *Cell) chooseInstances(ctx context.Context, key *uint64, roles ...scribev1.Role) (instanceChoice, error) {
	if err := c.refreshView(ctx, roles); err != nil {
		return instanceChoice{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	role, ok := c.mu.view.first(roles)
	if !ok {
		last := roles[len(roles)-1]
		return instanceChoice{}, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, refreshSoon, "no %s is known to %s",
			cmp.Or(roleNames[last], last.String()), c.server)
	}
	urls := slices.Clone(c.mu.view.roles[role])
	if key != nil {
		if n := orderByAffinity(*key, urls); n > 1 {
			c.chooserOf(role).AvoidLoaded(c.now(), urls[1:1+n])
		}
		c.wellFirst(role, urls)
		return instanceChoice{role, urls}, nil
	}
	chooser, now := c.chooserOf(role), c.now()
	if well := c.wellFirst(role, urls); well > 0 {
		chooser.Order(now, urls[:well])
	} else {
		chooser.Order(now, urls)
	}
	chooser.Choose(now, urls[0])
	return instanceChoice{role, urls}, nil
}

// now returns the time of the choosers.
func (c *Cell) now() time.Duration { return time.Since(c.began) }

// chooserOf returns the chooser of a role. The mutex is held.
func (c *Cell) chooserOf(role scribev1.Role) *balance.Chooser {
	chooser := c.mu.choosers[role]
	if chooser == nil {
		chooser = balance.NewChooser(c.random)
		chooser.SetInstances(c.now(), c.mu.view.reportsOf(role))
		c.mu.choosers[role] = chooser
	}
	return chooser
}

// isFailing reports whether an instance is avoided. The mutex is held.
func (c *Cell) isFailing(role scribev1.Role, url string) bool {
	return c.mu.failed[roleInstance{role, url}].After(time.Now())
}

// wellFirst moves avoided instances to the end, in place, and returns the number of the others. The mutex is held.
func (c *Cell) wellFirst(role scribev1.Role, urls []string) (well int) {
	var avoided []string
	for _, url := range urls {
		if c.isFailing(role, url) {
			avoided = append(avoided, url)
		} else {
			urls[well] = url
			well++
		}
	}
	copy(urls[well:], avoided)
	return well
}

// chooseForStream returns the instance for a long call. If the given address offers the role but has recently failed or evicted such a call,
// other members are used.
func (c *Cell) chooseForStream(ctx context.Context, role scribev1.Role) (roleInstance, error) {
	ch, err := c.chooseInstances(ctx, nil, role)
	if err != nil {
		return roleInstance{}, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	failed := func(url string) bool { return c.isFailing(role, url) }
	best := ch.urls[0]
	if failed(best) { // then all have failed
		if others := slices.DeleteFunc(slices.Clone(c.mu.view.spare[role]), failed); len(others) > 0 {
			c.chooserOf(role).Order(c.now(), others)
			c.chooserOf(role).Choose(c.now(), others[0])
			best = others[0]
		}
	}
	return roleInstance{role, best}, nil
}

// rotateURLs moves the first n URLs to the end.
func rotateURLs(urls []string, n int) { copy(urls, append(slices.Clone(urls[n:]), urls[:n]...)) }

// reportOutcome records the outcome of a call at an instance.
func (c *Cell) reportOutcome(in roleInstance, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.mu.failed, in)
		if c.mu.view.has(in) {
			c.chooserOf(in.role).NoteOutcome(c.now(), in.url, true)
			c.chooserOf(in.role).NoteAvoided(in.url, 0)
		}
		return
	}
	if !c.mu.view.has(in) {
		return
	}
	pause, fault := passOver, false
	switch d := retry.Classify(err); {
	case d.Class == retry.Overloaded:
		if d.After > 0 {
			pause = min(d.After, passOver)
		}
	case d.Reason == scribev1.Reason_REASON_SHUTTING_DOWN && !c.isFailing(in.role, in.url):
		// Who serves instead is known already. It says so once: those that go on refusing are asked about as others are.
		c.mu.due, c.mu.soon = time.Time{}, time.Time{}
	default:
		c.mu.due = c.mu.soon // the membership may have changed
		fault = d.Reason != scribev1.Reason_REASON_SHUTTING_DOWN
	}
	c.mu.failed[in] = time.Now().Add(pause)
	chooser, now := c.chooserOf(in.role), c.now()
	chooser.NoteAvoided(in.url, now+pause)
	if fault {
		chooser.NoteOutcome(now, in.url, false)
	}
}

// clientOf returns the client of an instance, and keeps it if the instance is in the view.
func clientOf[T any](c *Cell, in roleInstance, dial func(*rpc.Transport, string) T) T {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.mu.clients[in].(T); ok {
		return known
	}
	made := dial(c.transport, in.url)
	if c.mu.view.has(in) {
		c.mu.clients[in] = made
	}
	return made
}

// refreshView refreshes the view if that is due. It waits for another call's refresh only if no instance of the roles is known.
func (c *Cell) refreshView(ctx context.Context, roles []scribev1.Role) error {
	for {
		c.mu.Lock()
		_, usable := c.mu.view.first(roles)
		now, due := time.Now(), c.mu.due
		if !usable {
			due = c.mu.soon
		}
		running := c.mu.loading
		if now.Before(due) || usable && running != nil {
			c.mu.Unlock()
			return nil
		}
		if running == nil {
			running, old := &viewRefresh{done: make(chan struct{})}, c.mu.view
			c.mu.loading = running
			c.mu.Unlock()
			return c.loadView(ctx, running, old, usable)
		}
		c.mu.Unlock()
		select {
		case <-running.done:
			if running.err != nil {
				return running.err
			}
		case <-ctx.Done():
			return fmt.Errorf("wait for the instances that %s knows: %w", c.server, context.Cause(ctx))
		}
	}
}

// loadView refreshes the view. If the old view is usable, a failure is not an error.
func (c *Cell) loadView(ctx context.Context, l *viewRefresh, old cellView, usable bool) error {
	found, err := c.lookupView(ctx, old)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(l.done)
	c.mu.loading = nil
	now := time.Now()
	switch {
	case err == nil:
		c.mu.view, c.mu.late = found, refreshEvery
		for role, chooser := range c.mu.choosers {
			chooser.SetInstances(c.now(), found.reportsOf(role))
		}
		c.mu.due = now.Add(backoff.Jitter(c.random, refreshEvery, 0.1))
		c.mu.soon = now.Add(refreshSoon)
		maps.DeleteFunc(c.mu.failed, func(in roleInstance, until time.Time) bool { return !found.has(in) || now.After(until) })
		maps.DeleteFunc(c.mu.clients, func(in roleInstance, _ any) bool { return !found.has(in) })
		maps.DeleteFunc(c.mu.ordered, func(in roleInstance, _ bool) bool { return !found.has(in) })
		return nil
	case usable:
		c.mu.due = now.Add(c.mu.late)
		c.mu.soon = now.Add(refreshSoon)
		c.mu.late = min(2*c.mu.late, refreshLate)
		return nil
	case gaveUp(ctx, err):
		return err // one of the waiting calls asks again
	default:
		l.err = err
		return err
	}
}

// lookupView asks the given address which roles it offers, and which members offer the others. Of several the first that answers
// counts. If none does, members that it named before are asked.
func (c *Cell) lookupView(ctx context.Context, old cellView) (cellView, error) {
	if c.invalid != nil {
		return cellView{}, rpc.Errorf(scribev1.Reason_REASON_INVALID, "server addresses: %w", c.invalid)
	}
	timeout := lookupTimeout
	if len(old.members) > 0 {
		timeout = recheckTimeout
	}
	found, err := c.lookupGiven(ctx, timeout, old)
	if err == nil {
		return found, nil
	}
	for _, url := range old.substitutes(c.given.Order(), c.random) {
		if ctx.Err() != nil {
			break
		}
		st, serr := c.askStatus(ctx, rpc.NewControlClient(c.transport, url), timeout)
		// A process of another cell may have taken over an address: the members must match.
		if serr != nil || !old.knows(st) {
			continue
		}
		return viewFrom(st, url, old), nil
	}
	return cellView{}, err
}

// lookupGiven asks the given addresses, until one answers.
func (c *Cell) lookupGiven(ctx context.Context, timeout time.Duration, old cellView) (cellView, error) {
	var failed []error
	order := c.given.Order()
	for i, url := range order {
		limit := timeout
		if i < len(order)-1 {
			limit = min(limit, lookupPatience)
		}
		st, err := c.askStatus(ctx, c.lookups[url], limit)
		switch {
		case err == nil:
			c.given.ReportOutcome(url, nil)
			return viewOf(st, url, old), nil
		case connect.CodeOf(err) == connect.CodeUnimplemented:
			c.given.ReportOutcome(url, nil)
			return viewOfOne(url), nil
		}
		failed = append(failed, err)
		if gaveUp(ctx, err) {
			break
		}
		c.given.ReportOutcome(url, err)
	}
	return cellView{}, c.lookupError(ctx, joinErrors(failed))
}

func (c *Cell) askStatus(ctx context.Context, control rpc.ControlService, timeout time.Duration) (*scribev1.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return control.GetStatus(ctx, &scribev1.GetStatusRequest{})
}

// lookupError returns the error of a call whose lookup failed. The call was not made, whatever the outcome of the lookup.
func (c *Cell) lookupError(ctx context.Context, err error) error {
	switch {
	case gaveUp(ctx, err):
		return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "ask %s what it serves: %w", c.server, err)
	case retry.Retryable(err):
		// The cause is not wrapped: a lookup that timed out does not mean that the caller's time is over.
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, refreshSoon, "ask %s what it serves: %s", c.server, rpc.Message(err))
	default:
		return fmt.Errorf("ask %s what it serves: %w", c.server, err)
	}
}

// gaveUp reports whether a lookup ended because the caller's time was over. The server ends a call at the deadline that it was
// told, which may be slightly earlier than the caller's own timer.
func gaveUp(ctx context.Context, err error) bool {
	const little = 50 * time.Millisecond
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && errors.Is(err, context.DeadlineExceeded) && time.Until(deadline) < little
}

// roleNames are the roles' names in errors.
var roleNames = map[scribev1.Role]string{
	scribev1.Role_ROLE_SCRIBED:      "agent",
	scribev1.Role_ROLE_WRITEPROXY:   "write proxy",
	scribev1.Role_ROLE_READSTREAM:   "read stream",
	scribev1.Role_ROLE_COLLECTOR:    "retention",
	scribev1.Role_ROLE_SEQUENCER:    "sequencer",
	scribev1.Role_ROLE_GATEWAY:      "sqlserver",
	scribev1.Role_ROLE_READPROXY:    "read proxy",
	scribev1.Role_ROLE_BATCHER:      "batcher",
	scribev1.Role_ROLE_CONTROLPLANE: "control plane",
	scribev1.Role_ROLE_METALOG:      "metalog",
}
