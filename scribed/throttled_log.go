package scribed

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"scribe/internal/role/request"
)

// throttledLog writes to the log at a bounded rate: an outage, or a full category, is one line now and then, not one a request.
type throttledLog struct {
	log *slog.Logger
	now func() time.Time

	mu struct {
		sync.Mutex
		kinds map[string]*throttledKind
	}
}

// throttledKind counts the lines of one kind that were suppressed.
type throttledKind struct {
	at   time.Time
	left int
	sum  request.Amount
}

const (
	noteInterval = 10 * time.Second
	maxKinds     = 1000 // beyond this, all other kinds share one
)

func newNotes(log *slog.Logger, now func() time.Time) *throttledLog {
	n := &throttledLog{log: log, now: now}
	n.mu.kinds = make(map[string]*throttledKind)
	return n
}

// admitLine reports whether a line of a kind may be written now, and returns the number and sum of the lines suppressed since the
// last one, this one included.
func (n *throttledLog) admitLine(kind string, sum request.Amount) (left int, total request.Amount, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.mu.kinds[kind]
	if k == nil && len(n.mu.kinds) >= maxKinds {
		kind = ""
		k = n.mu.kinds[kind]
	}
	if k == nil {
		k = &throttledKind{}
		n.mu.kinds[kind] = k
	}
	k.left++
	k.sum = k.sum.Plus(sum)
	if now := n.now(); k.at.IsZero() || now.Sub(k.at) >= noteInterval {
		left, total = k.left, k.sum
		*k = throttledKind{at: now}
		return left, total, true
	}
	return 0, request.Amount{}, false
}

// warn logs a line of a kind as a warning, if its rate allows.
func (n *throttledLog) warn(ctx context.Context, kind, text string, attrs ...slog.Attr) {
	if left, _, ok := n.admitLine(kind, request.Amount{}); ok {
		attrs = append(attrs, slog.Int("times", left))
		n.log.LogAttrs(ctx, slog.LevelWarn, text, attrs...) //nolint:sloglint // the callers' texts are constants
	}
}

// warnDropped logs that frames of a category were dropped.
func (n *throttledLog) warnDropped(ctx context.Context, category, reason string, sum request.Amount) {
	if _, total, ok := n.admitLine("dropped "+reason+" "+category, sum); ok {
		n.log.LogAttrs(ctx, slog.LevelWarn, "frames dropped", slog.String("category", category), slog.String("reason", reason),
			slog.Int64("frames", total.Frames), slog.Int64("messages", total.Messages), slog.Int64("bytes", total.Bytes))
	}
}
