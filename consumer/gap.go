package consumer

import (
	"errors"
	"fmt"
	"strings"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// GapReason is why messages are missing. The values are stable and usable as metric labels.
type GapReason string

// Reasons of gaps.
const (
	// GapTrimmed: retention removed them before they were read.
	GapTrimmed GapReason = "trimmed"
	// GapDamaged: they, or the pointer to them, are damaged.
	GapDamaged GapReason = "damaged"
	// GapMissing: the object that should hold them does not exist, although retention has not removed the pointer to it.
	GapMissing GapReason = "missing"
	// GapDropped: an agent or a producer dropped them before they were stored. They never had a position in the category: the gap
	// stands where the loss report was stored.
	GapDropped GapReason = "dropped"
)

// LossReport is an agent's or a producer's report of messages that it dropped.
type LossReport = loss.Report

// GapError reports messages that this consumer will not deliver. It matches [ErrGap]. The iteration may continue after it.
//
// It covers the pointers [From, To) of a physical shard, except the first Delivered messages of From. With [GapDropped], From and
// To are both the pointer that the loss report came in: the gap covers no position.
type GapError struct {
	Category  string
	Shard     ShardID
	From, To  uint64 // log sequence numbers
	Delivered uint32
	Reason    GapReason
	// Messages is the number of missing messages, Bytes the size of their frames; Counted reports whether they are known. Of
	// pointers that retention removed before they were read, and of all that a reader gets whose grants are limited to some rows and columns, only the number is known: To - From.
	Messages, Bytes uint64
	Counted         bool
	// Report describes messages that were dropped; nil with other reasons.
	Report *LossReport
	// Cause is the *[DamageError] if the consumer itself found the damage.
	Cause error
}

// Pointers returns how many pointers of the shard are missing, entirely or in part: 0 with [GapDropped].
func (e *GapError) Pointers() uint64 { return e.To - e.From }

// Error names the shard and the LSNs, the reason, and how much is missing.
func (e *GapError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "consumer: messages of %s are missing: shard %v, LSN %d", e.Category, e.Shard, e.From)
	if e.To > e.From {
		fmt.Fprintf(&b, " to %d", e.To-1)
	}
	fmt.Fprintf(&b, ": %s", e.Reason)
	if e.Counted {
		fmt.Fprintf(&b, ", %d messages (%d bytes)", e.Messages, e.Bytes)
	}
	if e.Report != nil {
		fmt.Fprintf(&b, " %s", e.Report)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// Is reports whether target is [ErrGap].
func (e *GapError) Is(target error) bool { return target == ErrGap }

// Unwrap returns the cause.
func (e *GapError) Unwrap() error { return e.Cause }

// gapReason translates a server's reason.
func gapReason(r scribev1.Reason) GapReason {
	switch r {
	case scribev1.Reason_REASON_TRIMMED, scribev1.Reason_REASON_STALE_BLOB:
		return GapTrimmed
	case scribev1.Reason_REASON_MISSING:
		return GapMissing
	default:
		return GapDamaged
	}
}

// lostPayload returns the gap for a payload, or for the rest of it.
func (c *Consumer) lostPayload(it *streamItem, reason GapReason, cause error) *GapError {
	g := &GapError{Category: c.category, Shard: it.pos.shard, From: uint64(it.LSN), To: uint64(it.LSN) + 1, Reason: reason, Cause: cause}
	if it.ptr.Messages > 0 && !it.uncounted {
		g.Messages, g.Bytes, g.Counted = uint64(it.ptr.Messages), uint64(it.ptr.Length), true
	}
	return g
}

// handleDamage applies the damage policy to a payload that can't be delivered, or only in part.
func (c *Consumer) handleDamage(it *streamItem, err error, refuse func(error) bool) bool {
	damage := new(DamageError)
	if c.cfg.damage != DamageSkip || !errors.As(err, &damage) {
		refuse(err)
		return false
	}
	reason := GapDamaged
	if damage.Missing {
		reason = GapMissing
	}
	return c.tellGapAt(it, c.lostPayload(it, reason, damage), refuse)
}

// tellGapAt moves the position after a gap and yields it.
func (c *Consumer) tellGapAt(it *streamItem, g *GapError, refuse func(error) bool) bool {
	c.mu.Lock()
	if it.pos.lsn == record.LSN(g.From) {
		g.Delivered = it.pos.skip
	}
	if n := min(uint64(g.Delivered), g.Messages); n > 0 {
		// The size of the delivered messages is not known: subtract their share.
		g.Bytes -= uint64(float64(g.Bytes) * float64(n) / float64(g.Messages))
		g.Messages -= n
	}
	it.pos.lsn, it.pos.skip = record.LSN(g.To), 0
	for _, p := range it.lost { // pos and, in a group, others
		p.lsn, p.skip = record.LSN(g.To), 0
	}
	c.mu.Unlock()
	return c.tellGap(g, refuse)
}

// tellGap yields a gap.
func (c *Consumer) tellGap(g *GapError, refuse func(error) bool) bool {
	c.stats.gaps.Add(1)
	if c.cfg.onGap != nil {
		c.cfg.onGap(g)
	}
	return refuse(g)
}

// tellLoss yields the gap of a loss report.
func (c *Consumer) tellLoss(it *streamItem, r *loss.Report, refuse func(error) bool) bool {
	return c.tellGap(&GapError{
		Category: c.category, Shard: it.pos.shard, From: uint64(it.LSN), To: uint64(it.LSN), Reason: GapDropped,
		Messages: r.Messages, Bytes: r.Bytes, Counted: true, Report: r,
	}, refuse)
}
