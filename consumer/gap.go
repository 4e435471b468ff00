package consumer

import (
	"errors"
	"fmt"
	"strings"

	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// GapReason is why messages are missing; the values are stable and fit a metric's label.
type GapReason string

// Reasons of gaps.
const (
	// GapTrimmed: retention removed them before they were read.
	GapTrimmed GapReason = "trimmed"
	// GapDamaged: they, or the pointer to them, are damaged.
	GapDamaged GapReason = "damaged"
	// GapMissing: the object that should hold them does not exist, although retention has not removed the pointer to it.
	GapMissing GapReason = "missing"
	// GapDropped: an agent or a producer had to drop them before they were stored. They never had a place in the category: the gap
	// stands where the report of them was stored.
	GapDropped GapReason = "dropped"
)

// LossReport is what an agent or a producer says of messages that it had to drop: how many, why, and when.
type LossReport = loss.Report

// GapError tells of messages that this consumer will not bring. It matches [ErrGap]. An iteration goes on after it.
//
// Those of pointers [From, To) of a physical shard are missing, but for the first Delivered messages of From. With [GapDropped] From
// and To are both the pointer that the report came in: no position is lost.
type GapError struct {
	Category  string
	Shard     ShardID
	From, To  uint64 // log sequence numbers
	Delivered uint32
	Reason    GapReason
	// Messages is how many messages are missing, and Bytes how many bytes of frames they were in, as far as that is known: Counted
	// says whether it is. Of pointers that retention removed before they were seen, only their number is known: To - From.
	Messages, Bytes uint64
	Counted         bool
	// Report says more of messages that were dropped; nil with other reasons.
	Report *LossReport
	// Cause is what was found, when the consumer itself found it: a *[DamageError].
	Cause error
}

// Pointers is how many pointers of the shard are missing, as a whole or in part: 0 with [GapDropped].
func (e *GapError) Pointers() uint64 { return e.To - e.From }

// Error names the place, the reason, and how much is missing.
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

// lostPayload is the gap that a payload leaves, or the rest of it.
func (c *Consumer) lostPayload(it *streamItem, reason GapReason, cause error) *GapError {
	return &GapError{
		Category: c.category, Shard: it.pos.shard, From: uint64(it.LSN), To: uint64(it.LSN) + 1, Reason: reason, Cause: cause,
		Messages: uint64(it.ptr.Messages), Bytes: uint64(it.ptr.Length), Counted: it.ptr.Messages > 0,
	}
}

// handleDamage deals with a payload that can't be delivered, or not further, as the policy says.
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

// tellGapAt moves the position behind a gap and tells of it.
func (c *Consumer) tellGapAt(it *streamItem, g *GapError, refuse func(error) bool) bool {
	c.mu.Lock()
	if it.pos.lsn == record.LSN(g.From) {
		g.Delivered = it.pos.skip
	}
	if n := min(uint64(g.Delivered), g.Messages); n > 0 {
		// How many bytes those took that were delivered is not known: their share.
		g.Bytes -= uint64(float64(g.Bytes) * float64(n) / float64(g.Messages))
		g.Messages -= n
	}
	it.pos.lsn, it.pos.skip = record.LSN(g.To), 0
	advanceLost(it)
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

// tellReport yields what an upstream says of messages that it dropped, if a frame of one message is such a report. It counts as that
// message: the place behind it is the one after it. told is false when the frame is something else.
func (c *Consumer) tellReport(it *streamItem, r *record.Record, refuse func(error) bool) (told, goOn bool) {
	report, ok := loss.Parse(r.Payload, r.Attributes)
	if !ok {
		return false, true
	}
	return true, c.tellLoss(it, new(report), refuse) // a copy: most messages are no report
}

// tellLoss yields the gap of a report.
func (c *Consumer) tellLoss(it *streamItem, r *loss.Report, refuse func(error) bool) bool {
	return c.tellGap(&GapError{
		Category: c.category, Shard: it.pos.shard, From: uint64(it.LSN), To: uint64(it.LSN), Reason: GapDropped,
		Messages: r.Messages, Bytes: r.Bytes, Counted: true, Report: r,
	}, refuse)
}
