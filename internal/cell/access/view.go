package access

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/base/metrics"
	"scribe/internal/cell/watch"
	scribev1 "scribe/proto/scribe/v1"
)

// RecordSource is the part of the control plane that a view uses. rpc.AccessService has it.
type RecordSource interface {
	WatchAccess(ctx context.Context, req *scribev1.WatchAccessRequest, send func(*scribev1.WatchAccessResponse) error) error
}

// ViewConfig configures a view. Start from DefaultViewConfig.
type ViewConfig struct{ watch.Config }

// DefaultViewConfig returns the defaults, without a file.
func DefaultViewConfig() ViewConfig { return config.Defaults[ViewConfig]() }

// Validate reports every violation.
func (c ViewConfig) Validate() error { return config.Check("access", &c, nil).Err() }

// ViewDeps are the dependencies of a view.
type ViewDeps struct {
	// Source is required.
	Source RecordSource
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// View is a process's copy of who may do what. While the control plane is unavailable the last one counts.
type View struct {
	*watch.Loop[*scribev1.WatchAccessResponse]
	logger *slog.Logger
	damage prometheus.Counter
	state  atomic.Pointer[viewState]

	mu struct {
		sync.Mutex
		// records are those of the state, by key; building those of a set that is not complete yet, nil if there is none.
		records  map[string][]byte
		building map[string][]byte
		revision uint64
	}
}

// viewState is one immutable state of a view.
type viewState struct {
	set   *Set
	known bool
	// replaced is closed when another state has replaced this one.
	replaced chan struct{}
}

// NewView returns a view with the records of the file, if it exists and is readable; else nothing is known. Run keeps it current.
func NewView(cfg ViewConfig, deps ViewDeps) (*View, error) {
	if deps.Source == nil {
		return nil, errors.Join(errors.New("access: missing source"), cfg.Validate())
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	v := &View{logger: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler))}
	v.state.Store(&viewState{set: &Set{closed: true}, replaced: make(chan struct{})})
	set := metrics.NewSet("scribe_access_")
	v.damage = set.Counter("damaged_records_total", "Damaged records of tokens, grants and keys, each time one was received: they deny what they allowed before.")
	set.GaugeFunc("closed", "1 while only what a rule allows is allowed, 0 in an open cell.", func() float64 { return asGauge(v.Set().Closed()) })
	set.GaugeFunc("known", "1 once it is known who may do what, from the control plane or from the file. Until then everything is denied.",
		func() float64 { return asGauge(v.Known()) })
	set.GaugeFunc("tokens", "Tokens, those that have ended lately included.", func() float64 { return float64(v.Set().Tokens()) })
	set.GaugeFunc("principals", "Principals and roles with grants.", func() float64 { return float64(v.Set().Principals()) })
	set.GaugeFunc("rules", "Rules of principals and roles.", func() float64 { return float64(v.Set().Rules()) })
	set.GaugeFunc("damaged", "Records that deny since they are damaged.", func() float64 { return float64(v.Set().Damaged()) })
	if err := set.Register(deps.Registerer); err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	var err error
	v.Loop, err = watch.NewLoop(cfg.Config, watch.WatchedCopy[*scribev1.WatchAccessResponse]{
		Package: "access", Plural: "records", Watch: v.watcher(deps.Source), Apply: v.applyMessage, Ended: v.endWatch,
		Count: v.countRecords, Decode: v.takeFile, Encode: v.writeRecords,
	}, deps.Logger, deps.Registerer)
	if err != nil {
		return nil, err
	}
	return v, nil
}

func asGauge(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// watcher follows a source. A control plane that does not serve AccessService is older than it: the cell is open, unless it was
// known to be closed.
func (v *View) watcher(source RecordSource) func(context.Context, *durationpb.Duration, func(*scribev1.WatchAccessResponse) error) error {
	return func(ctx context.Context, heartbeat *durationpb.Duration, receive func(*scribev1.WatchAccessResponse) error) error {
		err := source.WatchAccess(ctx, &scribev1.WatchAccessRequest{Heartbeat: heartbeat}, receive)
		if connect.CodeOf(err) == connect.CodeUnimplemented && !v.Known() {
			return errors.Join(err, receive(&scribev1.WatchAccessResponse{Reset_: true, Synced: true}))
		}
		return err
	}
}

// Set returns the newest set. Until one is known it denies everything to all but members.
func (v *View) Set() *Set { return v.state.Load().set }

// Known reports whether the view has had a complete set.
func (v *View) Known() bool { return v.state.Load().known }

// Watch returns the newest set, and a channel that is closed when there is a newer one.
func (v *View) Watch() (*Set, <-chan struct{}) {
	s := v.state.Load()
	return s.set, s.replaced
}

func (v *View) countRecords() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.mu.records)
}

// applyMessage applies a message of the watch, and reports whether the copy is complete with it, and whether the message changes
// anything. A message before the complete set, such as a heartbeat, makes nothing known.
func (v *View) applyMessage(msg *scribev1.WatchAccessResponse) (complete, changed bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if msg.GetRevision() != 0 {
		v.mu.revision = msg.GetRevision()
	}
	if msg.GetReset_() {
		v.mu.building = make(map[string][]byte)
	}
	if v.mu.building != nil {
		for _, key := range msg.GetDeleted() {
			delete(v.mu.building, key)
		}
		for _, r := range msg.GetUpdated() {
			v.mu.building[r.GetKey()] = r.GetValue()
		}
		if !msg.GetSynced() {
			return false, false
		}
		v.replaceRecords(v.mu.building)
		v.mu.building = nil
		return true, true
	}
	if !v.Known() || len(msg.GetUpdated())+len(msg.GetDeleted()) == 0 {
		return false, false
	}
	put := make(map[string][]byte, len(msg.GetUpdated()))
	for _, r := range msg.GetUpdated() {
		put[r.GetKey()], v.mu.records[r.GetKey()] = r.GetValue(), r.GetValue()
	}
	for _, key := range msg.GetDeleted() {
		delete(v.mu.records, key)
	}
	set, damaged := v.Set().Apply(put, msg.GetDeleted())
	v.publish(set, damaged)
	return false, true
}

// replaceRecords takes a complete set of records. v.mu is held.
func (v *View) replaceRecords(records map[string][]byte) {
	set, damaged := NewSet(records)
	if !set.closed && v.Known() && v.Set().closed {
		v.logger.Error("the control plane has no record of who may do what, though the cell was closed: only members are let in; see docs/operations.md, A lost control store")
		set.closed = true
	}
	v.mu.records = records
	v.publish(set, damaged)
}

// publish makes a set the newest one. v.mu is held.
func (v *View) publish(set *Set, damaged []error) {
	for _, err := range damaged {
		v.damage.Inc()
		v.logger.Error("damaged record of who may do what: it denies", "error", err)
	}
	old := v.state.Swap(&viewState{set: set, known: true, replaced: make(chan struct{})})
	close(old.replaced)
}

// endWatch drops the incomplete set of a watch that has ended.
func (v *View) endWatch() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.building = nil
}
