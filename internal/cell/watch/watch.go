// Package watch keeps a process's copy of the control plane's state current. It follows the control plane's watch, restarts it
// with growing pauses when it ends or is silent, and keeps the last good state in a file, so that a process that starts while the
// control plane is unavailable serves with that state. Packages catalog and membership use it for their copies.
package watch

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/atomicfile"
	"scribe/internal/base/backoff"
	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/base/logthrottle"
	"scribe/internal/base/metrics"
)

// Config configures how a copy is kept current. Start from DefaultConfig.
type Config struct {
	// File is the path of the file of the last good state. Empty means no file. Its folder must exist.
	File string
	// FS is the file system of the file; nil = the operating system's.
	FS vfs.FS
	// Now is the clock that stamps the file; nil = time.Now.
	Now func() time.Time
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
	// FileInterval is the shortest time between two writes of the file.
	FileInterval time.Duration `default:"30s" min:">0s"`
	// Heartbeat is the longest silence requested from the control plane. A watch that is silent for three times as long counts as
	// broken and is restarted.
	Heartbeat time.Duration `default:"5s" min:"50ms"`
	// MinBackoff and MaxBackoff bound the pause before a watch is restarted. The pause doubles, with jitter.
	MinBackoff time.Duration `default:"50ms" min:">0s"`
	MaxBackoff time.Duration `default:"5s" min:"MinBackoff"`
}

// WatchedCopy is a copy that messages of type M change.
type WatchedCopy[M any] struct {
	// Package is the name of the copy's package; Plural names the elements, as in "categories".
	Package, Plural string
	// Watch follows the control plane until ctx ends or receive fails.
	Watch func(ctx context.Context, heartbeat *durationpb.Duration, receive func(M) error) error
	// Apply changes the copy. It reports whether the copy is complete with this message, and whether the file is out of date.
	Apply func(M) (complete, changed bool)
	// Ended, if not nil, is called when a watch has ended.
	Ended func()
	// Count returns the number of elements in the copy.
	Count func() int
	// Decode takes the content of a file into the copy. It returns when the file was written, in Unix microseconds.
	Decode func(io.Reader) (savedAt int64, err error)
	// Encode writes the copy as a file of a time, in Unix microseconds.
	Encode func(w io.Writer, savedAt int64) error
}

// ErrRunning means that Run was called twice.
var ErrRunning = errors.New("the watch runs already, or has run")

// errSilent means that the control plane sent nothing on a watch, not even a heartbeat.
var errSilent = errors.New("the control plane is silent")

// Loop keeps a copy current while it runs. It is safe for concurrent use.
type Loop[M any] struct {
	cfg     Config
	subject WatchedCopy[M]
	logger  *slog.Logger
	watches prometheus.Counter
	writes  prometheus.Counter
	failed  *prometheus.CounterVec

	synced    atomic.Bool
	ready     chan struct{}
	readyOnce sync.Once
	// dirty tells the saver that the file is out of date.
	dirty lifecycle.WakeChannel

	began atomic.Bool
	calls lifecycle.Calls // includes Run
	// throttle is used by Run and by the watch that it waits for.
	throttle logthrottle.Throttle
}

// NewLoop returns a loop for a copy, and loads the file's state into the copy if the file exists and is readable. logger and
// registerer may be nil.
func NewLoop[M any](cfg Config, subject WatchedCopy[M], logger *slog.Logger, registerer prometheus.Registerer) (*Loop[M], error) {
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	if cfg.FS == nil {
		cfg.FS = vfs.Default
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	l := &Loop[M]{cfg: cfg, subject: subject, logger: logger, ready: make(chan struct{}), dirty: lifecycle.NewWakeChannel()}
	if err := l.registerMetrics(registerer); err != nil {
		return nil, fmt.Errorf("%s: %w", subject.Package, err)
	}
	l.loadFile()
	return l, nil
}

func (l *Loop[M]) registerMetrics(r prometheus.Registerer) error {
	set := metrics.NewSet("scribe_" + l.subject.Package + "_")
	l.watches = set.Counter("watches_total", "Watches begun.")
	l.writes = set.Counter("file_writes_total", "Writes of the last good state.")
	l.failed = set.CounterOf("file_errors_total", "Files of the last good state that could not be read or written.", "operation", "read", "write")
	set.GaugeFunc("in_sync", "1 while the control plane's watch keeps the "+l.subject.Plural+" current, 0 while the last good state serves.",
		func() float64 {
			if l.InSync() {
				return 1
			}
			return 0
		})
	set.GaugeFunc(l.subject.Plural, "Known "+l.subject.Plural+".", func() float64 { return float64(l.subject.Count()) })
	return set.Register(r)
}

// Ready is closed once the copy is complete, from the control plane or from the file.
func (l *Loop[M]) Ready() <-chan struct{} { return l.ready }

// InSync reports whether the control plane keeps the copy current. While it does not, the copy is the last good state.
func (l *Loop[M]) InSync() bool { return l.synced.Load() }

func (l *Loop[M]) setReady() { l.readyOnce.Do(func() { close(l.ready) }) }

// Run follows the control plane until ctx ends or Close is called, and returns nil then. It may be called once.
func (l *Loop[M]) Run(ctx context.Context) error {
	if l.began.Swap(true) {
		return fmt.Errorf("%s: %w", l.subject.Package, ErrRunning)
	}
	if !l.calls.Enter() {
		return nil
	}
	defer l.calls.Leave()
	ctx, cancel := context.WithCancel(ctx)
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel()
	helpers.Go(func() {
		select {
		case <-l.calls.Draining():
			cancel()
		case <-ctx.Done():
		}
	})
	if l.cfg.File != "" {
		helpers.Go(func() { atomicfile.KeepSaved(ctx, l.dirty, l.cfg.FileInterval, l.saveFile) })
	}
	pauses := backoff.Backoff{Min: l.cfg.MinBackoff, Max: l.cfg.MaxBackoff, Random: l.cfg.Random}
	for failures := 1; ; failures++ {
		l.watches.Inc()
		synced, err := l.watchOnce(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if synced {
			failures = 1
		}
		pause := pauses.Pause(failures)
		l.throttle.Failed(ctx, l.logger, "watch of "+l.subject.Plural+" ended, the last good state serves", "error", err, "retry_after", pause)
		if backoff.Sleep(ctx, pause) != nil {
			return nil
		}
	}
}

// Close ends Run, writes the last good state, and waits for both until ctx ends. The copy stays usable. Repeating it is harmless.
func (l *Loop[M]) Close(ctx context.Context) error {
	l.calls.Drain()
	return l.calls.Wait(ctx)
}

// watchOnce runs one watch. It reports whether the watch completed the copy.
func (l *Loop[M]) watchOnce(ctx context.Context) (synced bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	maxSilence := 3 * l.cfg.Heartbeat
	silence := time.AfterFunc(maxSilence, func() { cancel(errSilent) })
	defer silence.Stop()
	err = l.subject.Watch(ctx, durationpb.New(l.cfg.Heartbeat), func(msg M) error {
		silence.Stop()
		defer silence.Reset(maxSilence)
		if err := ctx.Err(); err != nil {
			return err
		}
		complete, changed := l.subject.Apply(msg)
		if complete {
			l.synced.Store(true)
			l.setReady()
			l.throttle.Recovered(ctx, l.logger, "watch of "+l.subject.Plural+" is in sync again")
		}
		if changed {
			l.dirty.WakeUp()
		}
		return nil
	})
	synced = l.synced.Swap(false)
	if l.subject.Ended != nil {
		l.subject.Ended()
	}
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	return synced, err
}

// loadFile loads the last good state from the file, if it exists. It ignores a damaged file.
func (l *Loop[M]) loadFile() {
	if l.cfg.File == "" {
		return
	}
	f, err := l.cfg.FS.Open(l.cfg.File)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var savedAt int64
	if err == nil {
		defer f.Close() //nolint:errcheck // it was only read
		savedAt, err = l.subject.Decode(bufio.NewReaderSize(f, 256<<10))
	}
	if err != nil {
		l.failed.WithLabelValues("read").Inc()
		l.logger.Error("last good state ignored: the file cannot be read", "of", l.subject.Plural, "file", l.cfg.File, "error", err)
		return
	}
	l.setReady()
	l.logger.Info("last good state read", "of", l.subject.Plural, "file", l.cfg.File,
		"count", l.subject.Count(), "saved_at", time.UnixMicro(savedAt))
}

func (l *Loop[M]) saveFile() {
	encode := func(w io.Writer) error { return l.subject.Encode(w, l.cfg.Now().UnixMicro()) }
	if err := durable.ReplaceFile(l.cfg.FS, l.cfg.File, encode); err != nil {
		l.failed.WithLabelValues("write").Inc()
		l.logger.Error("last good state not written", "of", l.subject.Plural, "file", l.cfg.File, "error", err)
		return
	}
	l.writes.Inc()
}
