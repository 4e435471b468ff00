package pebblelog

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleLogger passes on what Pebble logs.
type pebbleLogger struct {
	log *slog.Logger
	g   *guardFS
}

// Infof implements pebble.Logger. What Pebble says of each flush and compaction is of interest to its developers.
func (l pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("pebble", "text", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("pebble error", "text", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger, whose callers rely on it not returning. While the engine opens or closes the panic is turned
// into an error; later there is nobody to catch it in Pebble's goroutines, so the goroutine is parked as in guardFS.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := fatalError{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.cause = cause
		}
	}
	if l.g.armed.Load() {
		l.g.fail(err)
		park()
	}
	panic(err)
}

// fatalError is what Fatalf makes of its arguments.
type fatalError struct {
	text  string
	cause error
}

// Error implements error.
func (e fatalError) Error() string { return e.text }

// Unwrap returns the error among the arguments.
func (e fatalError) Unwrap() error { return e.cause }

// caught turns what a deferred recover returned into an error, if it was a panic of Fatalf.
func caught(p any, err error) error {
	switch p := p.(type) {
	case nil:
		return err
	case fatalError:
		return p
	default:
		panic(p)
	}
}

// events tells the engine what Pebble does in the background.
func (e *Engine) events() *pebble.EventListener {
	return &pebble.EventListener{
		BackgroundError: func(err error) {
			e.metrics.background.Inc()
			e.opts.Logger.Error("flush or compaction failed: pebble retries it", "error", err)
		},
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			e.metrics.stalls.Inc()
			e.opts.Logger.Warn("appends stalled: flushes or compactions lag", "reason", info.Reason)
		},
		WriteStallEnd: func() { e.opts.Logger.Info("appends no longer stalled") },
	}
}
