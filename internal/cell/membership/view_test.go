package membership

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

// source is a control plane for tests that sends lists on its watches.
type source struct {
	mu struct {
		sync.Mutex
		down, silent bool
		begun        int
		cut          chan struct{}
	}
	lists chan []*scribev1.Member
}

func newSource() *source {
	s := &source{lists: make(chan []*scribev1.Member)}
	s.mu.cut = make(chan struct{})
	return s
}

func (s *source) set(change func(s *source)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
	if s.mu.down {
		close(s.mu.cut)
		s.mu.cut = make(chan struct{})
	}
}

func (s *source) begun() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.begun
}

func (s *source) WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	s.mu.Lock()
	s.mu.begun++
	down, silent, cut := s.mu.down, s.mu.silent, s.mu.cut
	s.mu.Unlock()
	if down {
		return errDown
	}
	ticker := time.NewTicker(req.GetHeartbeat().AsDuration())
	defer ticker.Stop()
	var last []*scribev1.Member
	for {
		select {
		case last = <-s.lists:
		case <-ticker.C:
			if silent {
				continue
			}
		case <-cut:
			return errDown
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := send(&scribev1.WatchMembersResponse{Members: last}); err != nil {
			return err
		}
	}
}

func member(id string, load uint32, roles ...scribev1.Role) *scribev1.Member {
	return &scribev1.Member{Id: id, Load: load, Roles: roles}
}

func runView(t *testing.T, s *source) (v *View, closeView func()) {
	t.Helper()
	v, err := NewView(DefaultViewConfig(), ViewDeps{Source: s})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- v.Run(t.Context()) }()
	synctest.Wait()
	return v, func() {
		t.Helper()
		if err := v.Close(context.Background()); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
}

func ids(members []*scribev1.Member) string {
	var out []string
	for _, m := range members {
		out = append(out, m.GetId())
	}
	return strings.Join(out, " ")
}

func TestView(t *testing.T) {
	const batcher, proxy, stream = scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_READPROXY, scribev1.Role_ROLE_READSTREAM
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		v, closeView := runView(t, s)
		select {
		case <-v.Ready():
			t.Error("ready without a list")
		default:
		}
		if len(v.Members(batcher)) != 0 {
			t.Error("members from nowhere")
		}
		_, changed := v.Watch(batcher)
		s.lists <- []*scribev1.Member{member("a", 0, batcher, proxy, batcher), member("b", 0, proxy)}
		<-changed
		<-v.Ready()
		if a, b, c, all := ids(v.Members(batcher)), ids(v.Members(proxy)), ids(v.Members(stream)), ids(v.Members(0)); a != "a" || b != "a b" || c != "" || all != "a b" {
			t.Errorf("%q %q %q %q", a, b, c, all)
		}
		// Heartbeats repeat the list: that is no change. Another load is.
		first, changed := v.Watch(batcher)
		advance(time.Minute)
		select {
		case <-changed:
			t.Error("a heartbeat is a change")
		default:
		}
		s.lists <- []*scribev1.Member{member("a", 500, batcher), member("b", 0, proxy)}
		<-changed
		if v.Members(batcher)[0].GetLoad() != 500 || first[0].GetLoad() != 0 {
			t.Error("lists are changed in place, or not at all")
		}
		s.lists <- nil
		synctest.Wait()
		if got := v.Members(0); len(got) != 0 {
			t.Errorf("%v", got)
		}
		closeView()
		if err := v.Run(t.Context()); !errors.Is(err, watch.ErrRunning) {
			t.Errorf("Run again: %v", err)
		}
	})
}

// TestViewOutage: the last list serves while the control plane is away.
func TestViewOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSource()
		v, closeView := runView(t, s)
		defer closeView()
		s.lists <- []*scribev1.Member{member("a", 0, scribev1.Role_ROLE_BATCHER)}
		synctest.Wait()
		s.set(func(s *source) { s.mu.down = true })
		advance(time.Minute)
		if got := ids(v.Members(scribev1.Role_ROLE_BATCHER)); got != "a" {
			t.Errorf("members %q during an outage", got)
		}
		if n := s.begun(); n < 12 || n > 40 {
			t.Errorf("%d attempts in a minute", n)
		}
		s.set(func(s *source) { s.mu.down = false })
		advance(5 * time.Second)
		s.lists <- []*scribev1.Member{member("b", 0, scribev1.Role_ROLE_BATCHER)}
		synctest.Wait()
		if got := ids(v.Members(scribev1.Role_ROLE_BATCHER)); got != "b" {
			t.Errorf("members %q after it", got)
		}
		// A watch that is silent is begun again.
		s.set(func(s *source) { s.mu.down, s.mu.silent = true, true })
		s.set(func(s *source) { s.mu.down = false })
		advance(5 * time.Second)
		n := s.begun()
		advance(21 * time.Second)
		if s.begun() != n+1 {
			t.Errorf("%d watches begun in 21 s of silence", s.begun()-n)
		}
	})
}

func TestViewConfig(t *testing.T) {
	if err := DefaultViewConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := ViewConfig{watch.Config{MaxBackoff: -1}}.Validate()
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 4 {
		t.Errorf("%v does not report every field", err)
	}
	if _, err := NewView(DefaultViewConfig(), ViewDeps{}); err == nil {
		t.Error("NewView takes no source")
	}
	if _, err := NewView(ViewConfig{}, ViewDeps{Source: newSource()}); err == nil {
		t.Error("NewView takes an invalid configuration")
	}
	registry := prometheus.NewRegistry()
	v, err := NewView(DefaultViewConfig(), ViewDeps{Source: newSource(), Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	if families, err := registry.Gather(); err != nil || len(families) != 5 {
		t.Errorf("%d families of metrics, %v", len(families), err)
	}
	if err := v.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := v.Run(t.Context()); err != nil {
		t.Errorf("Run after Close: %v", err)
	}
}

// TestAgeOf: a member's age is by the clock of the list, whatever this process's clock says, and grows while no other list comes.
func TestAgeOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v, err := NewView(DefaultViewConfig(), ViewDeps{Source: unused{}})
		if err != nil {
			t.Fatal(err)
		}
		m := &scribev1.Member{Id: "m", JoinedAt: 5e15}
		v.applyList(&scribev1.WatchMembersResponse{Members: []*scribev1.Member{m}, SentAt: 5e15 + 2e6})
		advance(3 * time.Second)
		if age, known := v.AgeOf(m); !known || age != 5*time.Second {
			t.Errorf("age %v, %v", age, known)
		}
		v.applyList(&scribev1.WatchMembersResponse{Members: []*scribev1.Member{m, {Id: "n"}}}) // of an older control plane
		if age, known := v.AgeOf(m); known {
			t.Errorf("age %v of a list without a time", age)
		}
	})
}

// unused is a source that nobody asks.
type unused struct{ MemberSource }
