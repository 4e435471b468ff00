package discovery

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// refreshEvery is how old a list of instances may become before it is asked for again.
	refreshEvery = 5 * time.Second
	// passOver is how long an instance that failed is not asked while others are there.
	passOver = 3 * time.Second
	// lookupTimeout bounds one question to the control plane.
	lookupTimeout = 5 * time.Second
)

// Cell is a client's view of a cell. It starts no goroutine: lists are refreshed by the calls that need them. It is safe for
// concurrent use.
type Cell struct {
	transport *rpc.Transport
	server    string
	control   rpc.ControlService

	mu struct {
		sync.Mutex
		roles     map[scribev1.Role]*instances
		refreshed time.Time
		// loading is closed when the refresh that runs has ended; nil when none does.
		loading chan struct{}
		err     error
	}
}

// instances are the members that offer one role.
type instances struct {
	urls   []string
	failed map[string]time.Time // when they failed last
	next   int                  // of the next round-robin pick
}

// clientRoles are what clients call.
var clientRoles = []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_READSTREAM, scribev1.Role_ROLE_READPROXY}

// New returns a view of the cell that server belongs to. Nothing is asked before the first call.
func New(t *rpc.Transport, server string) *Cell {
	return &Cell{transport: t, server: server, control: rpc.NewControlClient(t, server)}
}

// Control calls the given address itself.
func (c *Cell) Control() rpc.ControlService { return c.control }

// pick returns the instances that offer a role, those that failed lately last. The first ones rotate from call to call unless
// key is not 0: then they are in the order of their rendezvous weight for it.
func (c *Cell) pick(ctx context.Context, role scribev1.Role, key uint64) ([]string, error) {
	if err := c.refresh(ctx, role); err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	in := c.mu.roles[role]
	if in == nil || len(in.urls) == 0 {
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "no %s is known to %s", roleName(role), c.server)
	}
	urls := slices.Clone(in.urls)
	if key != 0 {
		slices.SortFunc(urls, func(a, b string) int { return compareDesc(weight(key, a), weight(key, b)) })
	} else {
		in.next = (in.next + 1) % len(urls)
		urls = append(urls[in.next:], urls[:in.next]...)
	}
	now := time.Now()
	slices.SortStableFunc(urls, func(a, b string) int {
		return boolOrder(now.Sub(in.failed[a]) < passOver) - boolOrder(now.Sub(in.failed[b]) < passOver)
	})
	return urls, nil
}

// fail remembers that an instance did not serve.
func (c *Cell) fail(role scribev1.Role, url string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in := c.mu.roles[role]; in != nil {
		in.failed[url] = time.Now()
	}
	c.mu.refreshed = time.Time{} // the membership may know better by now
}

// refresh asks for the instances when the list is old, one caller for all. A list that can't be refreshed is still used.
func (c *Cell) refresh(ctx context.Context, role scribev1.Role) error {
	for {
		c.mu.Lock()
		if time.Since(c.mu.refreshed) < refreshEvery && c.mu.roles[role] != nil {
			c.mu.Unlock()
			return nil
		}
		if c.mu.loading == nil {
			break
		}
		loading := c.mu.loading
		c.mu.Unlock()
		select {
		case <-loading:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		c.mu.Lock()
		known, err := c.mu.roles[role] != nil, c.mu.err
		c.mu.Unlock()
		if known || err != nil {
			return err
		}
	}
	loading := make(chan struct{})
	c.mu.loading = loading
	c.mu.Unlock()

	found, err := c.load(ctx)

	c.mu.Lock()
	defer c.mu.Unlock()
	defer close(loading)
	c.mu.loading = nil
	c.mu.err = nil
	if err == nil {
		for r, in := range found {
			if old := c.mu.roles[r]; old != nil {
				in.failed, in.next = old.failed, old.next
			}
		}
		if found[role] == nil {
			found[role] = &instances{failed: map[string]time.Time{}}
		}
		c.mu.roles, c.mu.refreshed = found, time.Now()
		return nil
	}
	if in := c.mu.roles[role]; in != nil && len(in.urls) > 0 {
		c.mu.refreshed = time.Now() // go on with what was known
		return nil
	}
	c.mu.err = err
	return err
}

// load asks the given address what it offers itself, and who offers the rest.
func (c *Cell) load(ctx context.Context) (map[scribev1.Role]*instances, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	st, err := c.control.GetStatus(ctx, &scribev1.GetStatusRequest{})
	if connect.CodeOf(err) == connect.CodeUnimplemented {
		// Something that serves single services at one address, such as a load balancer in front of a role.
		st, err = &scribev1.GetStatusResponse{Roles: clientRoles}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s what it serves: %w", c.server, err)
	}
	found := make(map[scribev1.Role]*instances)
	add := func(r scribev1.Role, url string) {
		if found[r] == nil {
			found[r] = &instances{failed: map[string]time.Time{}}
		}
		if !slices.Contains(found[r].urls, url) {
			found[r].urls = append(found[r].urls, url)
		}
	}
	for _, m := range st.GetMembers() {
		for _, r := range m.GetRoles() {
			if m.GetUrl() != "" && !slices.Contains(st.GetRoles(), r) {
				add(r, m.GetUrl())
			}
		}
	}
	for _, r := range st.GetRoles() {
		add(r, c.server)
	}
	return found, nil
}

// try calls one instance after the other until one answers. Errors that another instance would give as well end it.
func try[T any](ctx context.Context, c *Cell, role scribev1.Role, key uint64, call func(url string) (T, error)) (T, error) {
	var zero T
	urls, err := c.pick(ctx, role, key)
	if err != nil {
		return zero, err
	}
	for _, url := range urls[:min(len(urls), 3)] {
		var res T
		if res, err = call(url); err == nil {
			return res, nil
		}
		if ctx.Err() != nil || !elsewhere(err) {
			return zero, err
		}
		c.fail(role, url)
	}
	return zero, err
}

// elsewhere reports whether another instance may do what this one could not.
func elsewhere(err error) bool {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_NO_BACKEND, scribev1.Reason_REASON_SHUTTING_DOWN, scribev1.Reason_REASON_OVERLOADED:
		return true
	default:
		return connect.CodeOf(err) == connect.CodeUnavailable
	}
}

func roleName(r scribev1.Role) string {
	switch r {
	case scribev1.Role_ROLE_WRITEPROXY, scribev1.Role_ROLE_SCRIBED:
		return "write proxy"
	case scribev1.Role_ROLE_READSTREAM:
		return "read stream"
	case scribev1.Role_ROLE_READPROXY:
		return "read proxy"
	case scribev1.Role_ROLE_BATCHER:
		return "batcher"
	case scribev1.Role_ROLE_CONTROLPLANE:
		return "control plane"
	case scribev1.Role_ROLE_METALOG:
		return "metalog"
	case scribev1.Role_ROLE_UNSPECIFIED:
	}
	return r.String()
}

func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}
