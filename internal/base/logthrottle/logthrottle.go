// Package logthrottle says when a failure that comes again and again is worth a line in the log. Loops that wait for a server that is
// unavailable try again every few seconds, for hours if need be: the first failure is news, and so is, once a minute, that it goes on.
// The others would only push what matters out of the log. That it works again is news, too.
package logthrottle

import (
	"context"
	"log/slog"
	"time"
)

// Every is the time between two warnings about a failure that goes on.
const Every = time.Minute

// Throttle is about one thing that is tried again and again. The zero value is ready. One goroutine at a time uses it.
type Throttle struct {
	failures int       // in a row
	since    time.Time // of the first of them
	lastWarn time.Time
}

// Failed logs a failure: as a warning if it is the first one in a row, or the last warning is old enough, else for those who debug.
func (t *Throttle) Failed(ctx context.Context, log *slog.Logger, msg string, args ...any) {
	now, level := time.Now(), slog.LevelDebug
	if t.failures == 0 {
		t.since = now
	}
	if t.failures == 0 || now.Sub(t.lastWarn) >= Every {
		t.lastWarn, level = now, slog.LevelWarn
	}
	t.failures++
	log.Log(ctx, level, msg, args...) //nolint:sloglint // the caller's message
}

// Recovered ends a row of failures, if there is one: it logs msg, how many failures there were, and for how long.
func (t *Throttle) Recovered(ctx context.Context, log *slog.Logger, msg string, args ...any) {
	if t.failures == 0 {
		return
	}
	args = append(args, "failures", t.failures, "failing_for", time.Since(t.since))
	*t = Throttle{}
	log.InfoContext(ctx, msg, args...) //nolint:sloglint // the caller's message
}
