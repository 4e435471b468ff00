package sequencer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/rendezvous"
	scribev1 "scribe/proto/scribe/v1"
)

// Sequencer is the role. It is safe for concurrent use.
type Sequencer struct {
	cfg     Config
	deps    Deps
	log     *slog.Logger
	metrics *roleMetrics
	// starts limits concurrent takeovers.
	starts chan struct{}

	end   context.CancelFunc
	ended chan struct{}

	mu struct {
		sync.Mutex
		// runs are the running categories of this process, by id.
		runs map[uint32]*categoryRun
	}
}

// New starts a sequencer, which runs until Close.
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
	s.mu.runs = map[uint32]*categoryRun{}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, s); err != nil {
		return nil, err
	}
	var ctx context.Context
	ctx, s.end = context.WithCancel(context.Background())
	go s.runAssignments(ctx)
	return s, nil
}

// Close ends the sequencer. The next sequencer continues with what was not appended. Repeated calls are harmless.
func (s *Sequencer) Close(ctx context.Context) error {
	s.end()
	select {
	case <-s.ended:
		s.metrics.Unregister()
		return nil
	case <-ctx.Done():
		return fmt.Errorf("sequencer: close: a step is still running: %w", context.Cause(ctx))
	}
}

// runAssignments keeps the categories of this process running.
func (s *Sequencer) runAssignments(ctx context.Context) {
	defer close(s.ended)
	defer s.stopAll()
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	view := categoryAssignment{s: s}
	for {
		if mine, changed := view.findCategories(); changed {
			s.reconcileRuns(ctx, mine)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// rescan is the number of checks after which all categories are compared again, even without a change.
const rescan = 20

// categoryAssignment decides which categories this process sequences. It scans all categories only after a change.
type categoryAssignment struct {
	s        *Sequencer
	members  []string
	revision uint64
	looks    int
}

// findCategories returns the sequenced categories of this process, those with the lowest ids if there are too many, and whether
// they may have changed.
func (a *categoryAssignment) findCategories() (mine map[uint32]*scribev1.Category, changed bool) {
	members, revision := slices.Clone(a.s.deps.Members()), a.s.deps.Categories.Revision()
	slices.Sort(members)
	a.looks++
	if slices.Equal(members, a.members) && revision == a.revision && a.looks%rescan != 1 {
		return nil, false
	}
	a.members, a.revision = members, revision
	var found []*scribev1.Category
	for cat := range a.s.deps.Categories.All() {
		if cat.IsSequenced() && chooseMember(cat.GetId(), members) == a.s.deps.ID {
			found = append(found, cat)
		}
	}
	slices.SortFunc(found, func(x, y *scribev1.Category) int { return cmp.Compare(x.GetId(), y.GetId()) })
	over := max(len(found)-a.s.cfg.MaxCategories, 0)
	a.s.metrics.refused.Set(float64(over))
	if over > 0 {
		a.s.log.Error("too many categories for this process: start more sequencers", "over", over, "limit", a.s.cfg.MaxCategories)
	}
	mine = make(map[uint32]*scribev1.Category, len(found))
	for _, cat := range found[:len(found)-over] {
		mine[cat.GetId()] = cat
	}
	return mine, true
}

// reconcileRuns starts this process's categories that are not running, and ends the runs of other categories.
func (s *Sequencer) reconcileRuns(ctx context.Context, mine map[uint32]*scribev1.Category) {
	s.mu.Lock()
	var gone []*categoryRun
	for id, r := range s.mu.runs {
		if mine[id] == nil {
			gone = append(gone, r)
			delete(s.mu.runs, id)
		}
	}
	s.mu.Unlock()
	endRuns(gone)
	for _, r := range gone {
		r.log.Info("category reassigned to another process")
	}
	for id, cat := range mine {
		s.mu.Lock()
		if s.mu.runs[id] == nil {
			s.mu.runs[id] = s.startRun(ctx, cat)
		}
		s.mu.Unlock()
	}
}

// startRun starts sequencing a category.
func (s *Sequencer) startRun(ctx context.Context, cat *scribev1.Category) *categoryRun {
	ctx, cancel := context.WithCancel(ctx)
	r := &categoryRun{s: s, cat: cat, log: s.log.With(slog.String("category", cat.GetName())), cancel: cancel, done: make(chan struct{})}
	r.reached.Store(s.deps.Now().UnixMicro())
	go r.runTerms(ctx)
	return r
}

// stopAll ends every run.
func (s *Sequencer) stopAll() {
	s.mu.Lock()
	runs := slices.Collect(maps.Values(s.mu.runs))
	clear(s.mu.runs)
	s.mu.Unlock()
	endRuns(runs)
}

// endRuns ends runs and waits for them.
func endRuns(runs []*categoryRun) {
	for _, r := range runs {
		r.cancel()
	}
	for _, r := range runs {
		<-r.done
	}
}

// roleStatus is the sequencer's status.
type roleStatus struct {
	categories, sequencing, failing int
	lag                             time.Duration
}

func (s *Sequencer) readStatus() (out roleStatus) {
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

// chooseMember returns the member that sequences a category: the one with the highest rendezvous weight (Thaler and Ravishankar,
// 1996), so that a member that joins or leaves moves only its own share; "" when there are no members. The order of members does
// not matter.
func chooseMember(category uint32, members []string) string {
	var best string
	var most uint64
	for _, m := range members {
		if w := rendezvous.WeightOf(uint64(category)+1, xxhash.Sum64String(m)); best == "" || w > most || w == most && m < best {
			best, most = m, w
		}
	}
	return best
}
