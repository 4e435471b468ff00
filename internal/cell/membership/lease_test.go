package membership

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errDown = errors.New("the control plane is down")

// registrar is a control plane for tests. It grants one slot, and fails as the test says.
type registrar struct {
	mu struct {
		sync.Mutex
		slot     uint32
		deadline time.Time
		ttl      time.Duration
		// fail, when not nil, is what every call returns; hang makes calls wait for their context.
		fail error
		hang bool
		log  []string
		// traffic is that of the last heartbeat.
		traffic []*scribev1.ShardTraffic
	}
	begin time.Time
}

func newRegistrar() *registrar {
	r := &registrar{begin: time.Now()}
	r.mu.slot = 7
	return r
}

// call notes a call and fails it if it has to.
func (r *registrar) call(ctx context.Context, format string, args ...any) error {
	r.mu.Lock()
	r.mu.log = append(r.mu.log, fmt.Sprintf("%v %s", time.Since(r.begin), fmt.Sprintf(format, args...)))
	hang, fail := r.mu.hang, r.mu.fail
	r.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	return fail
}

func (r *registrar) set(change func(r *registrar)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(r)
}

// calls returns the calls since it was last called.
func (r *registrar) calls() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	log := r.mu.log
	r.mu.log = nil
	return log
}

func (r *registrar) Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error) {
	if err := r.call(ctx, "join %s load %d%s", req.GetMember().GetId(), req.GetMember().GetLoad(), showIdentities(req.GetMember().GetIncarnation(), req.GetMember().GetStore())); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.ttl = req.GetTtl().AsDuration()
	r.mu.deadline = time.Now().Add(r.mu.ttl)
	m := proto.CloneOf(req.GetMember())
	m.Slot = r.mu.slot
	return &scribev1.JoinResponse{Member: m, Ttl: req.GetTtl()}, nil
}

func (r *registrar) Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	if err := r.call(ctx, "heartbeat load %d%s", req.GetLoad(), showIdentities(req.GetIncarnation(), req.GetStore())); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !time.Now().Before(r.mu.deadline) {
		return nil, rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED, "join again")
	}
	r.mu.deadline = time.Now().Add(r.mu.ttl)
	r.mu.traffic = req.GetTraffic()
	return &scribev1.HeartbeatResponse{}, nil
}

// TestTrafficGoesWithHeartbeats: each heartbeat has what there is to report at that time.
func TestTrafficGoesWithHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, reports := newRegistrar(), uint32(0)
		l, err := Join(t.Context(), r, LeaseConfig{Member: &scribev1.Member{Id: "m"}, TTL: 9 * time.Second, Traffic: func() []*scribev1.ShardTraffic {
			reports++
			return []*scribev1.ShardTraffic{{Category: reports}}
		}})
		if err != nil {
			t.Fatal(err)
		}
		for beat := range uint32(3) {
			advance(3 * time.Second)
			r.set(func(r *registrar) {
				if len(r.mu.traffic) != 1 || r.mu.traffic[0].GetCategory() != beat+1 {
					t.Errorf("heartbeat %d reports %v", beat+1, r.mu.traffic)
				}
			})
		}
		if err := l.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func (r *registrar) Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error) {
	return &scribev1.LeaveResponse{}, r.call(ctx, "leave %s%s", req.GetId(), showIdentities(req.GetIncarnation(), ""))
}

// showIdentities shows what a request names.
func showIdentities(incarnation, store string) (text string) {
	if incarnation != "" {
		text += " as " + incarnation
	}
	if store != "" {
		text += " store " + store
	}
	return text
}

// advance lets time pass in a bubble, and everything happen that is due.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// joined joins with a TTL of 9 s, and returns the lease and the states it went through.
func joined(t *testing.T, r *registrar, load func() uint32) (*Lease, func() string) {
	t.Helper()
	var mu sync.Mutex
	var states []string
	l, err := Join(t.Context(), r, LeaseConfig{
		Member: &scribev1.Member{Id: "m"}, TTL: 9 * time.Second,
		Loads: func() []*scribev1.RoleLoad {
			if load == nil {
				return nil
			}
			l := load()
			return []*scribev1.RoleLoad{{Role: scribev1.Role_ROLE_READPROXY, Load: min(2*l, 1000)}, {Role: scribev1.Role_ROLE_BATCHER, Load: l}}
		},
		OnChange: func(s LeaseState) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, fmt.Sprintf("%d/%v", s.Slot, s.Live))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l, func() string {
		mu.Lock()
		defer mu.Unlock()
		out := strings.Join(states, " ")
		states = nil
		return out
	}
}

func closeLease(t *testing.T, l *Lease) {
	t.Helper()
	if err := l.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func wantCalls(t *testing.T, r *registrar, want ...string) {
	t.Helper()
	if got := r.calls(); !slices.Equal(got, want) {
		t.Errorf("calls %q, want %q", got, want)
	}
}

func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		load := uint32(0)
		l, states := joined(t, r, func() uint32 { load += 10; return load })
		s := l.State()
		if s.Slot != 7 || !s.Live || s.Member.GetId() != "m" || l.Slot() != 7 || states() != "7/true" {
			t.Errorf("%+v", s)
		}
		advance(7 * time.Second)
		wantCalls(t, r, "0s join m load 10", "3s heartbeat load 20", "6s heartbeat load 30")
		if got := states(); got != "" {
			t.Errorf("a heartbeat changed the state: %s", got)
		}
		closeLease(t, l)
		closeLease(t, l)
		wantCalls(t, r, "7s leave m")
		if l.State().Live {
			t.Error("live after Close")
		}
	})
}

// TestShortOutage: a few heartbeats that fail are not worth telling.
func TestShortOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		l, states := joined(t, r, nil)
		r.set(func(r *registrar) { r.mu.fail = errDown })
		advance(7 * time.Second)
		r.set(func(r *registrar) { r.mu.fail = nil })
		advance(time.Minute)
		if got := states(); got != "7/true" || !l.State().Live {
			t.Errorf("states %q", got)
		}
		closeLease(t, l)
	})
}

// TestOutage: a lease that cannot be renewed is lost at its end, at the latest, by the member's clock, which goes on with its
// slot and joins again.
func TestOutage(t *testing.T) {
	for name, fail := range map[string]func(r *registrar){
		"errors": func(r *registrar) { r.mu.fail = errDown }, "silence": func(r *registrar) { r.mu.hang = true },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRegistrar()
				l, states := joined(t, r, nil)
				advance(4 * time.Second) // the heartbeat at 3 s keeps it until 12 s
				r.set(fail)
				advance(7900 * time.Millisecond)
				if got := states(); got != "7/true" {
					t.Errorf("states %q before the end of the lease", got)
				}
				advance(200 * time.Millisecond)
				if name == "silence" {
					advance(3 * time.Second) // a call that hangs is given up
				}
				if got := states(); got != "7/false" || l.Slot() != 7 {
					t.Errorf("states %q after the end of the lease, slot %d", got, l.Slot())
				}
				advance(time.Minute)
				if n := len(r.calls()); n > 60 {
					t.Errorf("%d calls in a minute", n)
				}
				r.set(func(r *registrar) { r.mu.fail, r.mu.hang, r.mu.slot = nil, false, 9 })
				advance(15 * time.Second)
				if got := states(); got != "9/true" {
					t.Errorf("states %q after the outage", got)
				}
				closeLease(t, l)
			})
		})
	}
}

// TestExpired: when the control plane says that the lease has ended, the member joins at once, and tells its new slot.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		l, states := joined(t, r, nil)
		r.set(func(r *registrar) { r.mu.deadline, r.mu.slot = time.Time{}, 8 })
		advance(3 * time.Second)
		wantCalls(t, r, "0s join m load 0", "3s heartbeat load 0", "3s join m load 0")
		if got := states(); got != "7/true 8/true" {
			t.Errorf("states %q", got)
		}
		closeLease(t, l)
	})
}

// lapsed fails joins of a member whose lease it says has ended.
type lapsed struct{ *registrar }

func (l lapsed) Heartbeat(context.Context, *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error) {
	return nil, rpc.Errorf(scribev1.Reason_REASON_LEASE_EXPIRED, "join again")
}

// TestExpiredAndRefused: a lease that the control plane does not know, and does not grant again, is not live.
func TestExpiredAndRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		l, err := Join(t.Context(), lapsed{r}, LeaseConfig{Member: &scribev1.Member{Id: "m"}})
		if err != nil {
			t.Fatal(err)
		}
		r.set(func(r *registrar) {
			r.mu.fail = rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "no slot is free")
		})
		advance(4 * time.Second)
		if l.State().Live {
			t.Error("live without a lease")
		}
		r.set(func(r *registrar) { r.mu.fail = nil })
		closeLease(t, l)
	})
}

// TestJoin: joining is tried again while the control plane may come, and not when it refuses for good.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		r.mu.fail = errDown
		done := make(chan struct{})
		go func() {
			defer close(done)
			l, err := Join(t.Context(), r, LeaseConfig{Member: &scribev1.Member{Id: "m"}})
			if err != nil {
				t.Error(err)
				return
			}
			closeLease(t, l)
		}()
		advance(time.Minute)
		if n := len(r.calls()); n < 12 || n > 40 {
			t.Errorf("%d attempts in a minute", n)
		}
		r.set(func(r *registrar) { r.mu.fail = nil })
		<-done

		r.set(func(r *registrar) { r.mu.fail = errDown })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := Join(ctx, r, LeaseConfig{Member: &scribev1.Member{Id: "m"}}); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, errDown) {
			t.Errorf("Join: %v", err)
		}
		r.set(func(r *registrar) { r.mu.fail = rpc.Errorf(scribev1.Reason_REASON_INVALID, "roles: none") })
		if _, err := Join(t.Context(), r, LeaseConfig{Member: &scribev1.Member{Id: "m"}}); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("Join: %v", err)
		}
		r.set(func(r *registrar) { r.mu.fail = nil })
		for _, cfg := range []LeaseConfig{{}, {Member: &scribev1.Member{}}, {Member: &scribev1.Member{Id: "m"}, TTL: -1}} {
			if _, err := Join(t.Context(), r, cfg); err == nil {
				t.Errorf("Join takes %+v", cfg)
			}
		}
	})
}

// TestCloseDuringOutage: closing does not wait for a control plane that does not answer longer than it is told to.
func TestCloseDuringOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistrar()
		l, _ := joined(t, r, nil)
		r.set(func(r *registrar) { r.mu.hang = true })
		advance(3 * time.Second) // a heartbeat hangs
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) != time.Second {
			t.Errorf("Close: %v after %v", err, time.Since(begin))
		}
	})
}
