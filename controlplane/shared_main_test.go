package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// sharedStore is control planes that share a store, inside a bubble.
type sharedStore struct {
	t     *testing.T
	store *memkv.Store

	mu    sync.Mutex
	alive map[string]*instance // by URL
}

// instance is one of them, with its way to the store.
type instance struct {
	*ControlPlane
	name string
	way  *storeWay
}

func newSharedStore(t *testing.T) *sharedStore {
	s := &sharedStore{t: t, store: memkv.New(), alive: map[string]*instance{}}
	t.Cleanup(s.endAll)
	return s
}

// testShared runs a test in a bubble, with instances of these names, of which one leads.
func testShared(t *testing.T, names string, test func(t *testing.T, s *sharedStore, leader *instance)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := newSharedStore(t)
		for name := range strings.FieldsSeq(names) {
			s.serve(name, nil)
		}
		synctest.Wait()
		test(t, s, s.leader())
	})
}

// serve starts an instance.
func (s *sharedStore) serve(name string, change func(*Config, *Deps)) *instance {
	s.t.Helper()
	i := &instance{name: name, way: &storeWay{Store: s.store}}
	i.ControlPlane = run(s.t, i.way, func(c *Config, d *Deps) {
		c.Shared, c.Instance, c.URL = true, name, "http://"+name
		d.Peer = s.dial
		if change != nil {
			change(c, d)
		}
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.alive[i.cfg.URL] = i
	return i
}

// dial returns a client for the instance at a URL, or one that finds nobody there.
func (s *sharedStore) dial(url string) rpc.ControlService { return &peerClient{s: s, url: url} }

func (s *sharedStore) at(url string) (*instance, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.alive[url]; i != nil {
		return i, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "nobody is at %s", url)
}

// instances returns those that run, by name.
func (s *sharedStore) instances() []*instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.alive), func(a, b *instance) int { return strings.Compare(a.name, b.name) })
}

// leaders returns the instances that lead now: there must never be two.
func (s *sharedStore) leaders() (leading []*instance) {
	s.t.Helper()
	for _, i := range s.instances() {
		if i.leadership.currentTerm(time.Now()) != nil {
			leading = append(leading, i)
		}
	}
	if len(leading) > 1 {
		s.t.Fatalf("%s and %s lead at the same time", leading[0].name, leading[1].name)
	}
	return leading
}

func (s *sharedStore) leader() *instance {
	s.t.Helper()
	leading := s.leaders()
	if len(leading) == 0 {
		s.t.Fatal("nobody leads")
	}
	return leading[0]
}

// followers returns those that run and do not lead, by name.
func (s *sharedStore) followers() []*instance {
	s.t.Helper()
	leader := s.leader()
	return slices.DeleteFunc(s.instances(), func(i *instance) bool { return i == leader })
}

// startJoin joins a batcher, and returns at once.
func (i *instance) startJoin(t *testing.T, id string) (joined <-chan error) {
	result := make(chan error, 1)
	go func() {
		_, err := i.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}})
		result <- err
	}()
	synctest.Wait()
	return result
}

// awaitLeader waits until an instance other than one leads, and returns it and how long that took.
func (s *sharedStore) awaitLeader(but *instance) (*instance, time.Duration) {
	s.t.Helper()
	for began := time.Now(); ; {
		if l := s.leaders(); len(l) > 0 && l[0] != but {
			return l[0], time.Since(began)
		}
		if time.Since(began) > time.Minute {
			s.t.Fatal("nobody else leads after a minute")
		}
		advance(time.Millisecond)
	}
}

// kill ends an instance as a crash does: it reaches nobody, and nobody reaches it. What runs in it is cleared away.
func (s *sharedStore) kill(i *instance) {
	s.t.Helper()
	i.way.cut()
	s.mu.Lock()
	delete(s.alive, i.cfg.URL)
	s.mu.Unlock()
	i.stop()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = i.Close(ctx) // it can't hand over
}

// end closes an instance in order.
func (s *sharedStore) end(i *instance) {
	s.t.Helper()
	stop(s.t, i.ControlPlane)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.alive, i.cfg.URL)
}

func (s *sharedStore) endAll() {
	for _, i := range s.instances() {
		i.way.mend()
		s.end(i)
	}
}

// slots returns what the store has of slots: who holds which.
func (s *sharedStore) slots() string {
	s.t.Helper()
	var out []string
	for e, err := range kv.All(context.Background(), s.store, slotPrefix) {
		if err != nil {
			s.t.Fatal(err)
		}
		m, _, _, err := decodeSlot(e.Key, e.Value)
		if err != nil {
			s.t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%s/%d", m.GetId(), m.GetSlot()))
	}
	return strings.Join(out, " ")
}

// peerClient calls whoever is at a URL.
type peerClient struct {
	rpc.ControlService
	s   *sharedStore
	url string
}

func callPeer[Req, Res any](ctx context.Context, p *peerClient, req *Req, call func(rpc.ControlService, context.Context, *Req) (*Res, error)) (*Res, error) {
	i, err := p.s.at(p.url)
	if err != nil {
		return nil, err
	}
	return call(i, ctx, req)
}

func (p *peerClient) Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.Join)
}

func (p *peerClient) Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.Heartbeat)
}

func (p *peerClient) Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.Leave)
}

func (p *peerClient) ListMembers(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.ListMembers)
}

func (p *peerClient) HoldPins(ctx context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.HoldPins)
}

func (p *peerClient) ShareQuotas(ctx context.Context, req *scribev1.ShareQuotasRequest) (*scribev1.ShareQuotasResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.ShareQuotas)
}

func (p *peerClient) SetTenantQuota(ctx context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.SetTenantQuota)
}

func (p *peerClient) RemoveTenantQuota(ctx context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.RemoveTenantQuota)
}

func (p *peerClient) ListTenantQuotas(ctx context.Context, req *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.ListTenantQuotas)
}

func (p *peerClient) ListPins(ctx context.Context, req *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error) {
	return callPeer(ctx, p, req, rpc.ControlService.ListPins)
}

func (p *peerClient) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	i, err := p.s.at(p.url)
	if err != nil {
		return err
	}
	return i.WatchMembers(ctx, req, send)
}

// storeWay is the way of one instance to the store.
type storeWay struct {
	kv.Store
	// careless removes the condition of the term from all transactions: the fault that the tests must find.
	careless bool

	mu sync.Mutex
	// broken refuses all calls, unless they hang.
	broken, hangs bool
	// stalled holds back the transactions that write a key with that prefix until release is closed: they arrive then, however long
	// their senders have been gone.
	stalled string
	release chan struct{}
	// late is how long the answers of transactions that write a key with the prefix delayed are on their way.
	delayed string
	late    time.Duration
}

var errCut = errors.New("the store can't be reached")

func (w *storeWay) set(broken, hangs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.broken, w.hangs = broken, hangs
}

func (w *storeWay) cut()  { w.set(true, false) }
func (w *storeWay) hang() { w.set(true, true) }
func (w *storeWay) mend() { w.set(false, false) }

// stall holds transactions back until the returned function is called.
func (w *storeWay) stall(prefix string) (release func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stalled, w.release = prefix, make(chan struct{})
	return func() { close(w.release) }
}

// delay delays answers.
func (w *storeWay) delay(prefix string, by time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delayed, w.late = prefix, by
}

// writes reports whether a transaction writes a key with a prefix.
func writes(ops []kv.Op, prefix string) bool {
	return prefix != "" && slices.ContainsFunc(ops, func(op kv.Op) bool { return op.Kind != kv.OpCheck && strings.HasPrefix(op.Key, prefix) })
}

// pass returns an error if nothing passes.
func (w *storeWay) pass(ctx context.Context) error {
	w.mu.Lock()
	broken, hangs := w.broken, w.hangs
	w.mu.Unlock()
	if hangs {
		<-ctx.Done()
		return ctx.Err()
	}
	if broken {
		return errCut
	}
	return nil
}

func (w *storeWay) Get(ctx context.Context, key string) (kv.Entry, error) {
	if err := w.pass(ctx); err != nil {
		return kv.Entry{}, err
	}
	return w.Store.Get(ctx, key)
}

func (w *storeWay) Range(ctx context.Context, r kv.KeyRange) (kv.RangePage, error) {
	if err := w.pass(ctx); err != nil {
		return kv.RangePage{}, err
	}
	return w.Store.Range(ctx, r)
}

func (w *storeWay) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	w.mu.Lock()
	stalled, release, delayed, late := w.stalled, w.release, w.delayed, w.late
	w.mu.Unlock()
	if writes(ops, delayed) {
		defer func() { <-time.After(late) }()
	}
	if writes(ops, stalled) {
		<-release
		ctx = context.WithoutCancel(ctx)
	} else if err := w.pass(ctx); err != nil {
		return 0, err
	}
	if w.careless {
		ops = slices.DeleteFunc(slices.Clone(ops), func(op kv.Op) bool { return op.Kind == kv.OpCheck && op.Key == leaderTermKey })
	}
	return w.Store.Commit(ctx, ops...)
}

func (w *storeWay) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if err := w.pass(ctx); err != nil {
		return err
	}
	return w.Store.Watch(ctx, prefix, after, func(b kv.EventBatch) error {
		if err := w.pass(ctx); err != nil {
			return err
		}
		return fn(b)
	})
}

// count returns how many categories were retired.
func (l *fakeLogs) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.retired)
}
