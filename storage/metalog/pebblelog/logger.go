package pebblelog

import (
	"fmt"
	"log/slog"
	"runtime"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// pebbleLogger forwards Pebble's log messages.
type pebbleLogger struct {
	log *slog.Logger
	g   *guardFS
}

// Infof implements pebble.Logger. Pebble's messages about each flush and compaction interest only its developers.
func (l pebbleLogger) Infof(format string, args ...any) {
	l.log.Debug("pebble", "text", fmt.Sprintf(format, args...))
}

// Errorf implements pebble.Logger.
func (l pebbleLogger) Errorf(format string, args ...any) {
	l.log.Error("pebble error", "text", fmt.Sprintf(format, args...))
}

// Fatalf implements pebble.Logger, whose callers rely on it not returning. While the engine opens or closes, the panic is turned
// into an error. Later, and in Pebble's own goroutines, nobody can recover it, so the goroutine is parked as in guardFS.
func (l pebbleLogger) Fatalf(format string, args ...any) {
	err := fatalError{text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err.cause = cause
		}
	}
	switch {
	case l.g.armed.Load():
		l.g.fail(err)
		park()
	case startedByPebble():
		l.g.lose(err)
		park()
	}
	panic(err)
}

// startedByPebble reports whether the goroutine is one of Pebble's: no function of this package called into it.
func startedByPebble() bool {
	const own = "scribe/storage/metalog/pebblelog."
	var pcs [128]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])]) // those above Fatalf
	for {
		f, more := frames.Next()
		if strings.HasPrefix(f.Function, own) {
			return false
		}
		if !more {
			return true
		}
	}
}

// fatalError is the error that Fatalf makes of its arguments.
type fatalError struct {
	text  string
	cause error
}

// Error implements error.
func (e fatalError) Error() string { return e.text }

// Unwrap returns the error among the arguments.
func (e fatalError) Unwrap() error { return e.cause }

// caught turns a value recovered from a panic of Fatalf into an error; for other values it returns err.
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

// events reports Pebble's background work to the engine.
func (e *Engine) events() *pebble.EventListener {
	flushed, damaged := func(pebble.FlushInfo) {}, func(error) {}
	if e.replica != nil {
		flushed, damaged = e.replica.room.noteFlush, e.replica.noteDamage
	}
	return &pebble.EventListener{
		FlushEnd: flushed,
		DataCorruption: func(info pebble.DataCorruptionInfo) {
			e.opts.Logger.Error("a file of the folder is damaged", "file", info.Path, "error", info.Details)
			damaged(fmt.Errorf("file %s: %w", info.Path, info.Details))
		},
		BackgroundError: func(err error) {
			if isDamaged(err) {
				damaged(err)
			}
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
