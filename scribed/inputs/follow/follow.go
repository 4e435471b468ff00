package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"scribe/producer"
	"scribe/scribed/inputs"
)

// Follower is an inputs.Input. It is used by one goroutine only.
type Follower struct {
	cfg      Config
	deps     inputs.Deps
	rules    compiledConfig
	splitter lineSplitter
	metrics  *followMetrics
	log      *slog.Logger

	agent   *producer.Producer
	sources map[fileID]*followedFile
	// first says that no file was ever followed, so existing files begin where Config.Start says.
	first bool
	full  bool // too many files were logged
	// opened counts open files: up to one more than Config.MaxOpen, plus those without a matching name.
	opened int

	// dirty says that the positions have changed since they were saved.
	dirty   bool
	savedAt time.Time
	// fresh says that there is a file without a saved position.
	fresh bool
	// began is when the Step began, by the clock: its reads may take longer than positions may stay unsaved.
	began time.Time

	buf, scratch []byte
	messages     []producer.Message
}

var _ inputs.Input = (*Follower)(nil)

// New returns a follower with the positions of the last run. It fails on an invalid configuration, and when StateDir cannot be
// created.
func New(cfg Config, deps inputs.Deps) (*Follower, error) {
	rules, err := cfg.compile()
	if deps.StateDir == "" {
		err = errors.Join(err, fmt.Errorf("follow %s: Deps.StateDir is missing", cfg.Name))
	}
	if err != nil {
		return nil, err
	}
	deps = deps.WithDefaults(cfg.Name)
	f := &Follower{
		cfg: cfg, deps: deps, rules: rules, log: deps.Logger,
		splitter: lineSplitter{maxLine: int(cfg.MaxLine), long: cfg.LongLines, multiline: rules.multiline},
		sources:  map[fileID]*followedFile{},
		// The end of the longest line must be seen, and "\r\n" has two bytes.
		buf:     make([]byte, max(int(cfg.Batch), int(cfg.MaxLine)+2)),
		scratch: make([]byte, cfg.Fingerprint),
	}
	if err := os.MkdirAll(deps.StateDir, 0o755); err != nil {
		return nil, fmt.Errorf("follow %s: %w", cfg.Name, err)
	}
	if f.metrics, err = newMetrics(cfg.Name, deps.Registerer); err != nil {
		return nil, err
	}
	f.loadSources()
	return f, nil
}

func (f *Follower) loadSources() {
	list, first, damage := loadPositions(f.positionsPath())
	if damage != nil {
		f.log.Warn("positions damaged: using the previous ones, or reading files from their beginning; lines may be repeated", "error", damage)
	}
	f.first = first
	for _, x := range list {
		s := &followedFile{id: x.File, readState: readState{x.Path, x.Position, x.Prints}, skipping: x.Skipping, size: x.Position}
		if int64(len(f.scratch)) < max(x.Prints.Head.Len, x.Prints.Tail.Len) {
			f.scratch = make([]byte, max(x.Prints.Head.Len, x.Prints.Tail.Len)) // Fingerprint was larger
		}
		f.setCategory(s)
		f.sources[s.id] = s
	}
}

func (f *Follower) positionsPath() string {
	return filepath.Join(f.deps.StateDir, "follow-"+f.cfg.Name+".positions")
}

// Name implements inputs.Input.
func (f *Follower) Name() string { return f.cfg.Name }

// Run implements inputs.Input.
func (f *Follower) Run(ctx context.Context, agent *producer.Producer, open func()) error {
	defer f.metrics.Unregister()
	open()
	tick := time.NewTicker(f.cfg.Interval.Std())
	defer tick.Stop()
	for {
		f.Step(ctx, agent, f.deps.Clock())
		select {
		case <-tick.C:
		case <-ctx.Done():
			return f.Close()
		}
	}
}

// saveInterval is how old saved positions may be. A crash repeats the lines of that time.
const saveInterval = time.Second

// Step scans the files once and delivers what there is to read, until ctx ends.
func (f *Follower) Step(ctx context.Context, agent *producer.Producer, now time.Time) {
	f.agent, f.began = agent, f.deps.Clock()
	f.lookAtFiles(ctx, now)
	if f.fresh {
		f.fresh = false
		f.savePositions(ctx) // before reading: a file with a saved position is found again if it was renamed while the input was down
	}
	f.readAll(ctx, now)
	f.updateGauges(ctx, f.timeInStep(now))
}

// timeInStep returns the current time during a Step that began at now.
func (f *Follower) timeInStep(now time.Time) time.Time { return now.Add(f.deps.Clock().Sub(f.began)) }

// updateGauges updates the gauges, and saves the positions when they are due.
func (f *Follower) updateGauges(ctx context.Context, now time.Time) {
	var lag int64
	for _, s := range f.sources {
		lag += max(s.size-s.position, 0)
	}
	f.metrics.lag.Set(float64(lag))
	f.metrics.open.Set(float64(f.opened))
	f.metrics.files.Set(float64(len(f.sources)))
	if now.Sub(f.savedAt) >= saveInterval {
		f.savedAt = now
		f.savePositions(ctx)
	}
}

// savePositions saves the positions if they have changed.
func (f *Follower) savePositions(ctx context.Context) {
	if err := f.writePositions(); err != nil {
		f.metrics.failures.Inc()
		f.log.WarnContext(ctx, "saving positions failed, lines may be repeated after a restart", "error", err)
	}
}

// readAll reads all files in turn, a buffer from each, until none has more.
func (f *Follower) readAll(ctx context.Context, now time.Time) {
	for more := true; more; {
		more = false
		for _, s := range f.sources {
			if ctx.Err() != nil {
				return
			}
			if s.pending() && f.readFollowed(ctx, s, now) && s.pending() {
				more = true
			}
			// Reading a backlog may take hours, and a crash must repeat only a moment of it.
			if at := f.timeInStep(now); at.Sub(f.savedAt) >= saveInterval {
				f.updateGauges(ctx, at)
			}
		}
	}
}

// Close saves the positions and closes the files. A later Step continues.
func (f *Follower) Close() error {
	for _, s := range f.sources {
		f.closeFile(s)
	}
	if err := f.writePositions(); err != nil {
		return fmt.Errorf("follow %s: save positions: %w", f.cfg.Name, err)
	}
	return nil
}

func (f *Follower) writePositions() error {
	if !f.dirty {
		return nil
	}
	list := make([]savedPosition, 0, len(f.sources))
	for _, s := range f.sources {
		list = append(list, s.positionEntry())
	}
	if err := savePositions(f.positionsPath(), list); err != nil {
		return err
	}
	f.dirty = false
	return nil
}
