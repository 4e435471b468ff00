package membership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/base/logthrottle"
	scribev1 "scribe/proto/scribe/v1"
)

// Source is what a view needs of the control plane. rpc.ControlService has it.
type Source interface {
	WatchMembers(ctx context.Context, req *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error
}

// ViewConfig is what a view is made with. Start from DefaultViewConfig.
type ViewConfig struct {
	// Heartbeat is the longest silence asked of the control plane; three times as long and the watch is begun again.
	Heartbeat time.Duration
	// File keeps the last list, without loads, for a process that starts while the control plane is away. Empty keeps none. Its
	// folder must exist.
	File string
	// FileInterval is the shortest time between two writes of the file.
	FileInterval time.Duration
	// MinBackoff and MaxBackoff bound the pause before a watch that ended is begun again: doubling, with jitter.
	MinBackoff, MaxBackoff time.Duration
}

// DefaultViewConfig returns the defaults, without a file.
func DefaultViewConfig() ViewConfig {
	return ViewConfig{Heartbeat: 5 * time.Second, FileInterval: 30 * time.Second, MinBackoff: minPause, MaxBackoff: maxPause}
}

// Validate reports every field that is out of its range.
func (c ViewConfig) Validate() error {
	f := config.Of("membership")
	f.Duration("Heartbeat", c.Heartbeat, 50*time.Millisecond, config.Open)
	f.Duration("FileInterval", c.FileInterval, 1, config.Open)
	f.Duration("MinBackoff", c.MinBackoff, 1, config.Open)
	f.Duration("MaxBackoff", c.MaxBackoff, c.MinBackoff, config.Open)
	return f.Err()
}

// ViewDeps is what a view is given by the program.
type ViewDeps struct {
	// Source is required.
	Source Source
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// View is a process's copy of the membership, for routing. While the control plane is away it keeps the last list: members that
// are gone are found out by calling them.
type View struct {
	cfg    ViewConfig
	source Source
	logger *slog.Logger

	list    atomic.Pointer[list]
	ready   chan struct{}
	readied sync.Once

	// dirty tells the saver that there is something to write.
	dirty chan struct{}

	inSync     prometheus.Gauge
	watches    prometheus.Counter
	fileErrors *prometheus.CounterVec

	mu struct {
		sync.Mutex
		running, closed bool
		stop            context.CancelFunc
		stopped         chan struct{}
	}
}

// list is one state of the membership. It is never changed.
type list struct {
	all    []*scribev1.Member
	byRole map[scribev1.Role][]*scribev1.Member
	// last has, for roles that nobody offers, those who offered them in the newest list before that had any.
	last map[scribev1.Role][]*scribev1.Member
	// replaced is closed when another list has taken its place.
	replaced chan struct{}
}

// newList returns the list of members that follows another one; nil for the first.
func newList(members []*scribev1.Member, before *list) *list {
	l := &list{all: members, byRole: make(map[scribev1.Role][]*scribev1.Member), replaced: make(chan struct{})}
	for _, m := range members {
		for i, role := range m.GetRoles() {
			if !slices.Contains(m.GetRoles()[:i], role) {
				l.byRole[role] = append(l.byRole[role], m)
			}
		}
	}
	if before == nil {
		return l
	}
	l.last = maps.Clone(before.last)
	for role, members := range before.byRole {
		if l.last == nil {
			l.last = make(map[scribev1.Role][]*scribev1.Member)
		}
		l.last[role] = members
	}
	maps.DeleteFunc(l.last, func(role scribev1.Role, _ []*scribev1.Member) bool { return len(l.byRole[role]) > 0 })
	return l
}

// NewView returns a view with the members of the file, if there is one that can be read, or none. Run keeps it current.
func NewView(cfg ViewConfig, deps ViewDeps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("membership: no source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	v := &View{
		cfg: cfg, source: deps.Source, logger: deps.Logger, ready: make(chan struct{}), dirty: make(chan struct{}, 1),
		inSync: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "scribe_membership_in_sync", Help: "1 while the control plane's watch keeps the members current, 0 while the last list serves.",
		}),
		watches: prometheus.NewCounter(prometheus.CounterOpts{Name: "scribe_membership_watches_total", Help: "Watches begun."}),
		fileErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "scribe_membership_file_errors_total", Help: "Files of the last list that could not be read or written.",
		}, []string{"operation"}),
	}
	for _, op := range []string{"read", "write"} {
		v.fileErrors.WithLabelValues(op)
	}
	v.list.Store(newList(nil, nil))
	v.mu.stopped = make(chan struct{})
	v.load()
	if deps.Registerer == nil {
		return v, nil
	}
	count := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "scribe_membership_members", Help: "Members known."}, func() float64 {
		return float64(len(v.list.Load().all))
	})
	for _, c := range []prometheus.Collector{v.inSync, v.watches, v.fileErrors, count} {
		if err := deps.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("membership: metrics: %w", err)
		}
	}
	return v, nil
}

// Members returns the members that offer a role, by id; all members for ROLE_UNSPECIFIED. It takes no lock. The slice and the
// members are shared and must not be changed; a later list is another slice.
func (v *View) Members(role scribev1.Role) []*scribev1.Member {
	members, _ := v.Watch(role)
	return members
}

// Last is Members, but where nobody offers the role it returns those who did in the newest list that had any. A control plane that comes back after
// the leases of its members, or without its store, names nobody until they join again, and they do their work meanwhile. It is for who loses
// nothing by calling one that is gone.
func (v *View) Last(role scribev1.Role) []*scribev1.Member {
	l := v.list.Load()
	if members := l.byRole[role]; len(members) > 0 {
		return members
	}
	return l.last[role]
}

// Watch is Members, with a channel that is closed when there is a newer list.
func (v *View) Watch(role scribev1.Role) ([]*scribev1.Member, <-chan struct{}) {
	l := v.list.Load()
	if role == scribev1.Role_ROLE_UNSPECIFIED {
		return l.all, l.replaced
	}
	return l.byRole[role], l.replaced
}

// Ready is closed once there is a list: the control plane's, or that of the file.
func (v *View) Ready() <-chan struct{} { return v.ready }

// errRunning means that Run was called twice.
var errRunning = errors.New("membership: the view runs already, or has run")

// Run follows the control plane until ctx ends or Close is called, and returns nil then. It may be called once.
func (v *View) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	v.mu.Lock()
	switch {
	case v.mu.running:
		v.mu.Unlock()
		return errRunning
	case v.mu.closed:
		v.mu.Unlock()
		return nil
	}
	v.mu.running, v.mu.stop = true, cancel
	v.mu.Unlock()
	defer close(v.mu.stopped)

	var saver sync.WaitGroup
	saver.Go(func() { v.save(ctx) })
	defer saver.Wait()

	pause := v.cfg.MinBackoff
	var trouble logthrottle.Throttle
	for {
		v.watches.Inc()
		answered, err := v.watch(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if answered {
			pause = v.cfg.MinBackoff
			trouble.Recovered(ctx, v.logger, "watch of members began again")
		}
		trouble.Failed(ctx, v.logger, "the watch of members ended, the last list serves until it is begun again", "error", err, "pause", pause)
		if !sleep(ctx, jitter(pause)) {
			return nil
		}
		pause = min(2*pause, v.cfg.MaxBackoff)
	}
}

// Close ends Run, writes the file, and waits for both until ctx ends. Members goes on returning the last list. Repeating it is harmless.
func (v *View) Close(ctx context.Context) error {
	v.mu.Lock()
	v.mu.closed = true
	running := v.mu.running
	if running {
		v.mu.stop()
	}
	v.mu.Unlock()
	if !running {
		return nil
	}
	select {
	case <-v.mu.stopped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// errSilent is why a watch is given up that the control plane has nothing to say on, not even a heartbeat.
var errSilent = errors.New("membership: the control plane is silent")

// watch runs one watch. It reports whether a list arrived.
func (v *View) watch(ctx context.Context) (answered bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	patience := 3 * v.cfg.Heartbeat
	silence := time.AfterFunc(patience, func() { cancel(errSilent) })
	defer silence.Stop()
	defer v.inSync.Set(0)
	req := &scribev1.WatchMembersRequest{Heartbeat: durationpb.New(v.cfg.Heartbeat)}
	err = v.source.WatchMembers(ctx, req, func(msg *scribev1.WatchMembersResponse) error {
		silence.Stop()
		defer silence.Reset(patience)
		if err := ctx.Err(); err != nil {
			return err
		}
		answered = true
		v.inSync.Set(1)
		v.apply(msg.GetMembers())
		return nil
	})
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	return answered, err
}

// apply takes a list, and wakes who waits for a change unless it says what the last one said.
func (v *View) apply(members []*scribev1.Member) {
	old := v.list.Load()
	same := func(a, b *scribev1.Member) bool { return proto.Equal(a, b) }
	if !slices.EqualFunc(old.all, members, same) {
		v.list.Store(newList(members, old))
		close(old.replaced)
		if !sameIdentities(old.all, members) {
			select {
			case v.dirty <- struct{}{}:
			default:
			}
		}
	}
	v.readied.Do(func() { close(v.ready) })
}
