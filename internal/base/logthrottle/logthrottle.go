// Package logthrottle limits log lines about repeated failures. Loops that wait for an unavailable server retry every few
// seconds, possibly for hours. A [Throttle] logs the first failure and then one warning a minute; the other failures are logged
// at debug level. It also logs the recovery.
package logthrottle

import (
	"context"
	"log/slog"
	"time"
)

// Every is the time between two warnings about a continuing failure.
const Every = time.Minute

// Throttle limits the log lines of one retry loop. The zero value is ready. It is not safe for concurrent use.
type Throttle struct {
	failures int       // in a row
	since    time.Time // of the first of them
	lastWarn time.Time
}

// Failed logs a failure: as a warning if it is the first in a row or the last warning is at least Every ago, otherwise at debug
// level.
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

// Recovered ends a row of failures, if any: it logs msg with their number and duration.
func (t *Throttle) Recovered(ctx context.Context, log *slog.Logger, msg string, args ...any) {
	if t.failures == 0 {
		return
	}
	args = append(args, "failures", t.failures, "failing_for", time.Since(t.since))
	*t = Throttle{}
	log.InfoContext(ctx, msg, args...) //nolint:sloglint // the caller's message
}
