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
	// Member describes the process; Join sets slot, load and joined_at.
	Member *scribev1.Member
	// TTL is how long the lease lasts without a heartbeat; three heartbeats are sent in each TTL. 0 means 10 seconds.
	TTL time.Duration
	// Load returns the process's load, 0 (idle) to 1000 (refusing). It is called before each heartbeat; nil means always idle.
	Load func() uint32
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
	if cfg.Load == nil {
		cfg.Load = func() uint32 { return 0 }
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
		return true
	}
}

// State returns the lease's state.
func (l *Lease) State() LeaseState {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mu.state
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
		if _, err = l.control.Leave(ctx, &scribev1.LeaveRequest{Id: l.cfg.Member.GetId()}); err != nil {
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
	if l.State().Slot == 0 && l.joinFirst(ctx, func(error) bool { return true }) != nil {
		return // ctx has ended
	}
	failures := 0
	var trouble logthrottle.Throttle
	wait := l.ttl / 3
	for backoff.Sleep(ctx, wait) == nil {
		err := l.renewLease(ctx)
		switch {
		case ctx.Err() != nil:
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

// renewLease sends a heartbeat, or joins again if the lease has ended.
func (l *Lease) renewLease(ctx context.Context) error {
	if !l.State().Live {
		return l.joinOnce(ctx)
	}
	sent := time.Now()
	ctx, cancel := context.WithTimeout(ctx, l.ttl/3)
	defer cancel()
	_, err := l.control.Heartbeat(ctx, &scribev1.HeartbeatRequest{Id: l.cfg.Member.GetId(), Load: l.cfg.Load(), Traffic: l.cfg.Traffic()})
	if rpc.ReasonOf(err) == scribev1.Reason_REASON_LEASE_EXPIRED {
		if err = l.joinOnce(ctx); err != nil {
			l.deadline = time.Time{} // it is known to be lost
		}
		return err
	}
	if err == nil {
		l.deadline = sent.Add(l.ttl) // the control plane counts from a later time
	}
	return err
}

// joinOnce joins once, and takes over the granted lease.
func (l *Lease) joinOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(l.cfg.TTL, time.Second))
	defer cancel()
	member := proto.CloneOf(l.cfg.Member)
	member.Load = l.cfg.Load()
	sent := time.Now()
	resp, err := l.control.Join(ctx, &scribev1.JoinRequest{Member: member, Ttl: durationpb.New(l.cfg.TTL)})
	if err != nil {
		return err
	}
	if resp.GetMember().GetSlot() == 0 || resp.GetTtl().AsDuration() <= 0 {
		return fmt.Errorf("membership: the control plane granted slot %d for %v", resp.GetMember().GetSlot(), resp.GetTtl().AsDuration())
	}
	l.ttl = resp.GetTtl().AsDuration()
	l.deadline = sent.Add(l.ttl)
	l.setState(LeaseState{Slot: resp.GetMember().GetSlot(), Live: true, Member: resp.GetMember()})
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
