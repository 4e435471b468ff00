package catalog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// plane is a control plane for tests: it knows categories, and sends on its watches what the test says.
type plane struct {
	mu struct {
		sync.Mutex
		revision   uint64
		categories map[string]*scribev1.Category
		gets       int
		// down makes every call fail, silent makes watches say nothing, slow delays answers of GetCategory.
		down, silent bool
		slow         time.Duration
		watches      map[*planeWatch]bool
		begun        int
	}
}

type planeWatch struct {
	messages chan *scribev1.WatchCategoriesResponse
	cut      chan struct{}
}

var errDown = errors.New("the control plane is down")

func newPlane() *plane {
	p := &plane{}
	p.mu.categories = map[string]*scribev1.Category{}
	p.mu.watches = map[*planeWatch]bool{}
	return p
}

// put stores a category and tells it, unless the watches are held back.
func (p *plane) put(name string, id uint32, tell bool) *scribev1.Category {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.revision++
	c := &scribev1.Category{Name: name, Id: id, Revision: p.mu.revision, Shards: 1}
	p.mu.categories[name] = c
	if tell {
		p.send(&scribev1.WatchCategoriesResponse{Updated: []*scribev1.Category{proto.CloneOf(c)}, Revision: p.mu.revision})
	}
	return c
}

func (p *plane) remove(name string, tell bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.revision++
	delete(p.mu.categories, name)
	if tell {
		p.send(&scribev1.WatchCategoriesResponse{Deleted: []string{name}, Revision: p.mu.revision})
	}
}

// tell sends a message on all watches.
func (p *plane) tell(msg *scribev1.WatchCategoriesResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.send(msg)
}

func (p *plane) send(msg *scribev1.WatchCategoriesResponse) {
	for w := range p.mu.watches {
		w.messages <- msg
	}
}

// set changes how the plane behaves; taking it down ends the watches.
func (p *plane) set(change func(p *plane)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(p)
	if p.mu.down {
		for w := range p.mu.watches {
			close(w.cut)
			delete(p.mu.watches, w)
		}
	}
}

// complete is the complete set as one message.
func (p *plane) complete() *scribev1.WatchCategoriesResponse {
	msg := &scribev1.WatchCategoriesResponse{Reset_: true, Synced: true, Revision: p.mu.revision}
	for _, c := range p.mu.categories {
		msg.Updated = append(msg.Updated, proto.CloneOf(c))
	}
	return msg
}

func (p *plane) WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error {
	w := &planeWatch{messages: make(chan *scribev1.WatchCategoriesResponse, 100), cut: make(chan struct{})}
	p.mu.Lock()
	p.mu.begun++
	if p.mu.down {
		p.mu.Unlock()
		return errDown
	}
	silent := p.mu.silent
	if !silent {
		w.messages <- p.complete()
	}
	p.mu.watches[w] = true
	p.mu.Unlock()
	defer p.set(func(p *plane) { delete(p.mu.watches, w) })
	ticker := time.NewTicker(req.GetHeartbeat().AsDuration())
	defer ticker.Stop()
	for {
		var err error
		select {
		case msg := <-w.messages:
			err = send(msg)
		case <-ticker.C:
			if !silent {
				err = send(&scribev1.WatchCategoriesResponse{})
			}
		case <-w.cut:
			err = errDown
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

func (p *plane) GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	p.mu.Lock()
	p.mu.gets++
	down, slow := p.mu.down, p.mu.slow
	c := proto.CloneOf(p.mu.categories[req.GetName()])
	p.mu.Unlock()
	if slow > 0 {
		timer := time.NewTimer(slow)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	switch {
	case down:
		return nil, errDown
	case c.GetName() == "":
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, `get category %q: it does not exist; did you mean "x"?`, req.GetName())
	}
	return &scribev1.GetCategoryResponse{Category: c}, nil
}

func (p *plane) gets() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.gets
}

func (p *plane) begun() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.begun
}

// newView returns a view, changed by options.
func newView(t testing.TB, p *plane, change func(*ViewConfig)) *View {
	t.Helper()
	cfg := DefaultViewConfig()
	if change != nil {
		change(&cfg)
	}
	v, err := New(cfg, ViewDeps{Source: p})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// runView runs a view in a bubble until the returned function is called, which closes it.
func runView(t *testing.T, v *View) (closeView func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- v.Run(t.Context()) }()
	synctest.Wait()
	return func() {
		t.Helper()
		if err := v.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

// advance lets time pass in a bubble, and everything happen that is due.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// wantID checks that a name stands for an id, 0 for none, by every way of looking it up.
func wantID(t *testing.T, v *View, name string, id uint32) {
	t.Helper()
	a, aok := v.Lookup(name)
	b, bok := v.LookupBytes([]byte(name))
	if a != b || aok != bok || aok != (id != 0) || a.GetId() != id {
		t.Fatalf("%q is %v (%v) and %v (%v), want id %d", name, a, aok, b, bok, id)
	}
	if id == 0 {
		return
	}
	if c, ok := v.ByID(id); !ok || c.GetName() != name {
		t.Fatalf("id %d is %v (%v), want %q", id, c, ok, name)
	}
}
