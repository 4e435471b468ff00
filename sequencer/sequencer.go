package sequencer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

// Sequencer is the role. It is safe for concurrent use.
type Sequencer struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *metrics
	// starts has a place for each category that may be taken over at the same time.
	starts chan struct{}

	end   context.CancelFunc
	ended chan struct{}

	mu struct {
		sync.Mutex
		// runs are the categories of this process, by id.
		runs map[uint32]*run
	}
}

// New starts a sequencer, which works until Close.
func New(cfg Config, deps Deps) (*Sequencer, error) {
	if err := errors.Join(cfg.Validate(), deps.validate()); err != nil {
		return nil, err
	}
	if deps.Logger == nil {
		deps.Logger = slog.New(slog.DiscardHandler)
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	s := &Sequencer{cfg: cfg, deps: deps, log: deps.Logger, starts: make(chan struct{}, cfg.Starts), ended: make(chan struct{})}
	s.mu.runs = map[uint32]*run{}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, s); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	go s.work(ctx)
	return s, nil
}

// Close ends the sequencer. What it had not appended is sequenced by whoever comes next. Repeating it is harmless.
func (s *Sequencer) Close(ctx context.Context) error {
	s.end()
	select {
	case <-s.ended:
		s.metrics.close()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sequencer: a step still runs: %w", context.Cause(ctx))
	}
}

// work keeps the categories of this process running.
func (s *Sequencer) work(ctx context.Context) {
	defer close(s.ended)
	defer s.stopAll()
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	view := assignment{s: s}
	for {
		if mine, changed := view.look(); changed {
			s.reconcile(ctx, mine)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// rescan is after how many looks everything is compared in any case.
const rescan = 20

// assignment decides which categories are this process's. It looks at all of them only when something has changed.
type assignment struct {
	s        *Sequencer
	members  []string
	revision uint64
	looks    int
}

// look returns the sequenced categories that are this process's, those with the lowest ids if there are too many, and whether they may have changed.
func (a *assignment) look() (mine map[uint32]*scribev1.Category, changed bool) {
	members, revision := slices.Clone(a.s.deps.Members()), a.s.deps.Categories.Revision()
	slices.Sort(members)
	a.looks++
	if slices.Equal(members, a.members) && revision == a.revision && a.looks%rescan != 1 {
		return nil, false
	}
	a.members, a.revision = members, revision
	var found []*scribev1.Category
	for cat := range a.s.deps.Categories.All() {
		if cat.IsSequenced() && chosen(cat.GetId(), members) == a.s.deps.ID {
			found = append(found, cat)
		}
	}
	slices.SortFunc(found, func(x, y *scribev1.Category) int { return cmp.Compare(x.GetId(), y.GetId()) })
	over := max(len(found)-a.s.cfg.MaxCategories, 0)
	a.s.metrics.refused.Set(float64(over))
	if over > 0 {
		a.s.log.Error("more categories than this process may sequence: start more sequencers", "over", over, "limit", a.s.cfg.MaxCategories)
	}
	mine = make(map[uint32]*scribev1.Category, len(found))
	for _, cat := range found[:len(found)-over] {
		mine[cat.GetId()] = cat
	}
	return mine, true
}

// reconcile starts what is this process's and is not running, and ends what is not any more.
func (s *Sequencer) reconcile(ctx context.Context, mine map[uint32]*scribev1.Category) {
	s.mu.Lock()
	var gone []*run
	for id, r := range s.mu.runs {
		if mine[id] == nil {
			gone = append(gone, r)
			delete(s.mu.runs, id)
		}
	}
	s.mu.Unlock()
	for _, r := range gone {
		r.cancel()
	}
	for _, r := range gone {
		<-r.done
		r.log.Info("the category is not this process's any more")
	}
	for id, cat := range mine {
		s.mu.Lock()
		if s.mu.runs[id] == nil {
			s.mu.runs[id] = s.start(ctx, cat)
		}
		s.mu.Unlock()
	}
}

// start makes a category run.
func (s *Sequencer) start(ctx context.Context, cat *scribev1.Category) *run {
	ctx, cancel := context.WithCancel(ctx)
	r := &run{s: s, cat: cat, log: s.log.With(slog.String("category", cat.GetName())), cancel: cancel, done: make(chan struct{})}
	r.reached.Store(s.deps.Now().UnixMicro())
	go r.loop(ctx)
	return r
}

// stopAll ends every category.
func (s *Sequencer) stopAll() {
	s.mu.Lock()
	runs := s.mu.runs
	s.mu.runs = map[uint32]*run{}
	s.mu.Unlock()
	for _, r := range runs {
		r.cancel()
	}
	for _, r := range runs {
		<-r.done
	}
}

// status is what the sequencer is doing.
type status struct {
	categories, sequencing, failing int
	lag                             time.Duration
}

func (s *Sequencer) status() (out status) {
	now := s.deps.Now().UnixMicro()
	s.mu.Lock()
	defer s.mu.Unlock()
	out.categories = len(s.mu.runs)
	for _, r := range s.mu.runs {
		if r.sequencing.Load() {
			out.sequencing++
		}
		if r.failing.Load() {
			out.failing++
		}
		out.lag = max(out.lag, time.Duration(now-r.reached.Load())*time.Microsecond)
	}
	return out
}
