package membership

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/base/logthrottle"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Registrar is the part of the control plane that a lease uses. rpc.ControlService has it.
type Registrar interface {
	Join(ctx context.Context, req *scribev1.JoinRequest) (*scribev1.JoinResponse, error)
	Heartbeat(ctx context.Context, req *scribev1.HeartbeatRequest) (*scribev1.HeartbeatResponse, error)
	Leave(ctx context.Context, req *scribev1.LeaveRequest) (*scribev1.LeaveResponse, error)
}

// LeaseConfig configures the membership of a process.
type LeaseConfig struct {
	// Member describes the process; Join sets slot, load, joined_at and store.
	Member *scribev1.Member
	// TTL is how long the lease lasts without a heartbeat; three heartbeats are sent in each TTL. 0 means 10 seconds.
	TTL time.Duration
	// Loads returns the loads of the process's roles, 0 (idle) to 1000 (refusing). It is called before each heartbeat, never concurrently; nil
	// means that there are none to advertise.
	Loads func() []*scribev1.RoleLoad
	// Store returns the identity of the process's store of payloads, "" while it is not known. It is called before each request; nil means that there is none.
	Store func() string
	// OnRefused is called once with the error if the cell refuses the process after Join or Keep has returned: another process has its id, or its store is not the
	// cell's. No heartbeat follows, and the process has to end.
	OnRefused func(error)
	// Traffic returns what the process's write proxy has sent since the last call, of its busiest shards. It is called before each
	// heartbeat, never concurrently; nil means that there is nothing to report.
	Traffic func() []*scribev1.ShardTraffic
	// OnChange is called with each new state, the first included, never concurrently. It must not block, and must not call Close.
	OnChange func(LeaseState)
	// Logger may be nil.
	Logger *slog.Logger
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
}

// LeaseState is a process's view of its lease.
type LeaseState struct {
	// Slot is the writer slot that was granted last; with Keep it is 0 before the first grant.
	Slot uint32
	// Live says that the lease is known to be valid. The package comment explains what to do when it is not.
	Live bool
	// Member is the member as the control plane last registered it. It is shared and must not be changed.
	Member *scribev1.Member
	// Store is the identity of the store of payloads with which the cell has admitted the process; "" before it was known.
	Store string
}

const defaultTTL = 10 * time.Second

// pauses returns the pauses between attempts to join.
func (c *LeaseConfig) pauses() backoff.Backoff {
	return backoff.Backoff{Min: 50 * time.Millisecond, Max: 5 * time.Second, Random: c.Random}
}

// Lease keeps a process registered as a member. Make it with Join.
type Lease struct {
	control Registrar
	cfg     LeaseConfig
	stop    context.CancelFunc
	done    chan struct{}
	closing sync.Once

	mu struct {
		sync.Mutex
		state LeaseState
		// renewed is when the request was sent that renewed the lease last; lasts is how long a lease lasts.
		renewed time.Time
		lasts   time.Duration
	}
	// ttl and deadline are those of the lease; only the renewing goroutine uses them.
	ttl      time.Duration
	deadline time.Time
}

// Join makes the process a member and keeps it one until Close. It retries until ctx ends or the control plane refuses for good.
func Join(ctx context.Context, control Registrar, cfg LeaseConfig) (*Lease, error) {
	l, err := newLease(control, cfg)
	if err != nil {
		return nil, err
	}
	if err := l.joinFirst(ctx, mayRetry); err != nil {
		return nil, err
	}
	l.startKeeping()
	return l, nil
}

// Keep is Join without waiting: it returns at once, and the process becomes a member when the control plane can be reached. It is
// for processes that can work without a slot.
func Keep(control Registrar, cfg LeaseConfig) (*Lease, error) {
	l, err := newLease(control, cfg)
	if err != nil {
		return nil, err
	}
	l.startKeeping()
	return l, nil
}

func newLease(control Registrar, cfg LeaseConfig) (*Lease, error) {
	if control == nil || cfg.Member.GetId() == "" {
		return nil, errors.New("membership: a lease needs a control plane and a member with an id")
	}
	if cfg.TTL < 0 {
		return nil, fmt.Errorf("membership: invalid TTL %v: want 0 or more", cfg.TTL)
	}
	cfg.TTL = cmp.Or(cfg.TTL, defaultTTL)
	cfg.Logger = cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler))
	if cfg.Loads == nil {
		cfg.Loads = func() []*scribev1.RoleLoad { return nil }
	}
	if cfg.Store == nil {
		cfg.Store = func() string { return "" }
	}
	if cfg.OnRefused == nil {
		cfg.OnRefused = func(error) {}
	}
	if cfg.Traffic == nil {
		cfg.Traffic = func() []*scribev1.ShardTraffic { return nil }
	}
	if cfg.OnChange == nil {
		cfg.OnChange = func(LeaseState) {}
	}
	cfg.Member = proto.CloneOf(cfg.Member)
	l := &Lease{control: control, cfg: cfg, done: make(chan struct{})}
	return l, nil
}

// startKeeping starts the goroutine that renews the lease.
func (l *Lease) startKeeping() {
	run, stop := context.WithCancel(context.Background())
	l.stop = stop
	go l.keepRenewing(run)
}

// joinFirst joins for the first time, and retries errors for which retry is true, until ctx ends.
func (l *Lease) joinFirst(ctx context.Context, retry func(error) bool) error {
	var trouble logthrottle.Throttle
	for failures := 1; ; failures++ {
		err := l.joinOnce(ctx)
		if err == nil {
			return nil
		}
		if !retry(err) {
			return err
		}
		pause := l.cfg.pauses().Pause(failures)
		trouble.Failed(ctx, l.cfg.Logger, "join failed", "member", l.cfg.Member.GetId(), "error", err, "retry_after", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("membership: join as %q: %w (last: %w)", l.cfg.Member.GetId(), ctx.Err(), err)
		}
	}
}

// mayRetry reports whether an attempt to join may succeed later.
func mayRetry(err error) bool {
	switch rpc.ReasonOf(err) {
	case scribev1.Reason_REASON_INVALID, scribev1.Reason_REASON_TOO_LARGE:
		return false
	default:
		return !isRefusal(err)
	}
}

// isRefusal reports whether the cell refuses the process, and will not admit it later.
func isRefusal(err error) bool {
	info := rpc.Info(err)
	return info.GetReason() == scribev1.Reason_REASON_MEMBER_REFUSED && info.GetRetryAfter().AsDuration() <= 0
}

// State returns the lease's state.
func (l *Lease) State() LeaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state
}

// LastRenewal returns when the lease was last renewed, zero if it never began, and for how long a renewal holds.
func (l *Lease) LastRenewal() (last time.Time, ttl time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.renewed, l.mu.lasts
}

// extendLease notes that a request renewed the lease that was sent at a time: the control plane counts from a later one.
func (l *Lease) extendLease(sent time.Time) {
	l.deadline = sent.Add(l.ttl)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.renewed, l.mu.lasts = sent, l.ttl
}

// Slot returns the writer slot that was granted last.
func (l *Lease) Slot() uint32 { return l.State().Slot }

// Close ends the lease: it stops the heartbeats and tells the control plane, as long as ctx allows. When that fails the lease
// ends by itself, after its TTL. Repeating it is harmless.
func (l *Lease) Close(ctx context.Context) error {
	var err error
	l.closing.Do(func() {
		l.stop()
		select {
		case <-l.done:
		case <-ctx.Done():
			err = ctx.Err()
			return
		}
		if l.State().Slot == 0 {
			return // as far as the process knows, it never was a member
		}
		if _, err = l.control.Leave(ctx, &scribev1.LeaveRequest{Id: l.cfg.Member.GetId(), Incarnation: l.cfg.Member.GetIncarnation()}); err != nil {
			err = fmt.Errorf("membership: leave as %q: %w", l.cfg.Member.GetId(), err)
		}
		l.mu.Lock()
		l.mu.state.Live = false
		l.mu.Unlock()
	})
	return err
}

// keepRenewing renews the lease until ctx ends.
func (l *Lease) keepRenewing(ctx context.Context) {
	defer close(l.done)
	if l.State().Slot == 0 {
		if err := l.joinFirst(ctx, func(err error) bool { return !isRefusal(err) }); err != nil {
			l.stopRefused(err)
			return // or ctx has ended
		}
	}
	failures := 0
	var trouble logthrottle.Throttle
	wait := l.ttl / 3
	for backoff.Sleep(ctx, wait) == nil {
		err := l.renewLease(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case isRefusal(err):
			l.stopRefused(err)
			return
		case err == nil:
			failures, wait = 0, l.ttl/3
			trouble.Recovered(ctx, l.cfg.Logger, "lease renewed again", "member", l.cfg.Member.GetId())
			continue
		}
		if time.Now().After(l.deadline) && l.markLost() {
			l.cfg.Logger.Error("lease lost: not renewed in time; work goes on without it while joining is retried",
				"member", l.cfg.Member.GetId(), "slot", l.Slot(), "error", err)
		} else {
			trouble.Failed(ctx, l.cfg.Logger, "lease not renewed", "member", l.cfg.Member.GetId(), "error", err)
		}
		failures++
		wait = l.cfg.pauses().Pause(failures)
		if l.State().Live {
			// Retry several times before the lease ends, and once right after, when it is known to be lost.
			wait = min(wait, l.ttl/6, max(0, time.Until(l.deadline))+time.Millisecond)
		}
	}
}

// stopRefused tells that the cell refuses the process, if that is what err says.
func (l *Lease) stopRefused(err error) {
	if !isRefusal(err) {
		return
	}
	l.markLost()
	l.cfg.Logger.Error("the cell refuses this process", "member", l.cfg.Member.GetId(), "error", err)
	l.cfg.OnRefused(err)
}

// renewLease sends a heartbeat, or joins again if the lease has ended.
func (l *Lease) renewLease(ctx context.Context) error {
	if !l.State().Live {
		return l.joinOnce(ctx)
	}
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.ttl/3)
	defer cancel()
	store, loads := l.cfg.Store(), l.cfg.Loads()
	res, err := l.control.Heartbeat(ctx, &scribev1.HeartbeatRequest{
		Id: l.cfg.Member.GetId(), Load: scribev1.JointLoad(loads), Loads: loads, Incarnation: l.cfg.Member.GetIncarnation(), Store: store, Traffic: l.cfg.Traffic(),
	})
	if rpc.ReasonOf(err) == scribev1.Reason_REASON_LEASE_EXPIRED {
		if err = l.joinOnce(ctx); err != nil {
			l.deadline = time.Time{} // it is known to be lost
		}
		return err
	}
	if err == nil {
		l.extendLease(sent)
		if s := l.State(); s.Store != store && !res.GetStoreUnchecked() {
			s.Store = store
			l.setState(s)
		}
	}
	return err
}

// joinOnce joins once, and takes over the granted lease.
func (l *Lease) joinOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.cfg.TTL, time.Second))
	defer cancel()
	member := proto.CloneOf(l.cfg.Member)
	member.Loads, member.Store = l.cfg.Loads(), l.cfg.Store()
	member.Load = scribev1.JointLoad(member.GetLoads())
	sent := time.Now()
	resp, err := l.control.Join(ctx, &scribev1.JoinRequest{Member: member, Ttl: durationpb.New(l.cfg.TTL)})
	if err != nil {
		return err
	}
	if resp.GetMember().GetSlot() == 0 || resp.GetTtl().AsDuration() <= 0 {
		return fmt.Errorf("membership: the control plane granted slot %d for %v", resp.GetMember().GetSlot(), resp.GetTtl().AsDuration())
	}
	l.ttl = resp.GetTtl().AsDuration()
	l.extendLease(sent)
	l.setState(LeaseState{Slot: resp.GetMember().GetSlot(), Live: true, Member: resp.GetMember(), Store: member.GetStore()})
	l.cfg.Logger.Info("joined the cell", "member", member.GetId(), "slot", resp.GetMember().GetSlot(), "ttl", l.ttl)
	return nil
}

// markLost records that the lease has ended, and reports whether it was live.
func (l *Lease) markLost() bool {
	s := l.State()
	if !s.Live {
		return false
	}
	s.Live = false
	l.setState(s)
	return true
}

// setState changes the state and tells OnChange.
func (l *Lease) setState(s LeaseState) {
	l.mu.Lock()
	l.mu.state = s
	l.mu.Unlock()
	l.cfg.OnChange(s)
}
