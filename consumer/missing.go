package consumer

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
)

// missing deals with a payload whose object does not exist, although its pointer was sent: retention was faster than the fetch, or the
// object is lost. Logs are trimmed before objects are deleted, so the log tells which. It fills in the item's gap or err; it is false
// when that is not known yet, and it.Err says why.
func (s *session) missing(ctx context.Context, it *item, why error) bool {
	first, err := s.firstReadable(ctx, it)
	switch {
	case err != nil:
		if cause := permanent(err); cause != nil {
			it.Err = &ServerError{Doing: fmt.Sprintf("asking for what is left of shard %v", it.pos.shard), cause: cause, Detail: err}
			return true
		}
		it.Err = fmt.Errorf("ask whether shard %v was trimmed beyond LSN %d: %w", it.pos.shard, it.LSN, err)
		return false
	case it.LSN < first:
		it.gap, it.Err = s.c.lostPayload(it, GapTrimmed, nil), nil
		return true
	}
	damage := it.place(s.c.category).damage("object", -1, why)
	damage.Missing = true
	it.Err = damage
	// A store whose answers are not all of the same age may have it the next time.
	it.tries++
	return it.tries >= maxTries
}

// firstReadable returns a bound of what is left of an item's shard: what is below it was trimmed.
func (s *session) firstReadable(ctx context.Context, it *item) (record.LSN, error) {
	c := s.c
	c.mu.Lock()
	first := it.pos.trimmed
	c.mu.Unlock()
	if it.LSN < first {
		return first, nil // it was asked for another payload already
	}
	first, err := s.probe(ctx, it)
	if err != nil {
		return 0, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	it.pos.trimmed = max(it.pos.trimmed, first)
	return it.pos.trimmed, nil
}

// errProbed ends a stream that has told what it was opened for.
var errProbed = errors.New("consumer: the shard's state is known")

// probePointers are the credits of a probe: shards that are not asked about may bring some pointers, too.
const probePointers = 1000

// probe opens a stream at an item's place: what comes first is the item, or the gap that it is in.
func (s *session) probe(ctx context.Context, it *item) (first record.LSN, err error) {
	shard, lsn := uint64(it.pos.shard), uint64(it.LSN)
	start := &scribev1.StreamStart{
		Category:      s.c.category,
		LogicalShards: []uint32{uint32(it.pos.shard.Logical())},
		StartAt:       scribev1.StartAt_START_AT_LATEST,
		Resume:        []*scribev1.ShardPosition{{Shard: shard, Lsn: lsn}},
		Credits:       &scribev1.StreamCredits{Pointers: probePointers, Bytes: 1 << 40},
		Heartbeat:     durationpb.New(s.c.cfg.heartbeat),
		Consumer:      s.c.cfg.name,
	}
	if sequenced.IsLog(it.pos.shard) {
		start.LogicalShards = nil // it holds all of them
	}
	opened := false
	recv := func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if !opened {
			opened = true
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	found := func(at uint64) error {
		first = record.LSN(at)
		return errProbed
	}
	send := func(m *scribev1.StreamResponse) error {
		switch step := m.GetStep().(type) {
		case *scribev1.StreamResponse_Opened:
			for _, sh := range step.Opened.GetShards() {
				if sh.GetShard() == shard {
					if sh.GetLsn() > lsn {
						return found(sh.GetLsn())
					}
					return nil
				}
			}
			return found(lsn + 1) // the shard itself is gone
		case *scribev1.StreamResponse_Entries:
			for _, e := range step.Entries.GetEntries() {
				if e.GetShard() == shard {
					return found(e.GetLsn())
				}
			}
		case *scribev1.StreamResponse_Gap:
			if g := step.Gap; g.GetShard() == shard && g.GetTo() > lsn {
				if g.GetReason() == scribev1.Reason_REASON_TRIMMED {
					return found(g.GetTo())
				}
				return found(lsn) // damaged, not trimmed
			}
		case *scribev1.StreamResponse_ShardEnded:
			if step.ShardEnded.GetShard() == shard {
				return found(max(step.ShardEnded.GetLsn(), lsn))
			}
		default: // a heartbeat, or the end
		}
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = s.c.streams.Stream(ctx, recv, send)
	switch {
	case first > 0:
		return first, nil
	case err == nil:
		return 0, io.ErrUnexpectedEOF // it was sent away
	default:
		return 0, err
	}
}
