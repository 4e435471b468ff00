package sequencer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

// byteCredits are a stream's initial byte credits, and their cap: a sequencer reads no payloads, so only pointers count.
const byteCredits = 64 << 30

// errSilent ends a silent stream.
var errSilent = errors.New("sequencer: no message from the read stream within its timeout")

// sourceStream is one stream of a term.
type sourceStream struct {
	t       *categoryTerm
	in      *stepInbox
	checker *streamChecker
	opened  bool
	alive   *time.Timer
}

// readStream opens a stream at the term's positions and puts what it brings into the inbox, until it ends.
func (t *categoryTerm) readStream(ctx context.Context, in *stepInbox) error {
	cfg := &t.r.s.cfg
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := max(10*cfg.Heartbeat, 10*time.Second)
	s := &sourceStream{t: t, in: in, checker: newStreamChecker(t.ledger.state), alive: time.AfterFunc(silence, func() { cancel(errSilent) })}
	defer s.alive.Stop()
	start := &scribev1.StreamStart{
		Category: t.r.cat.GetName(), StartAt: scribev1.StartAt_START_AT_EARLIEST, Resume: t.ledger.resumePositions(), Unsequenced: true,
		Window: durationpb.New(0), Heartbeat: durationpb.New(cfg.Heartbeat), Consumer: "sequencer " + t.r.s.deps.ID,
		Credits: &scribev1.StreamCredits{Pointers: uint32(cfg.Pointers), Bytes: byteCredits}, //nolint:gosec // bounded by Config.Validate
	}
	start.Consumer = start.Consumer[:min(len(start.Consumer), maxConsumer)]
	first := true
	err := t.r.s.deps.Streams.Stream(ctx, func(rctx context.Context) (*scribev1.StreamRequest, error) {
		if first {
			first = false
			return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: start}}, nil
		}
		pointers, bytes, err := in.takeCredits(rctx)
		if err != nil {
			return nil, err
		}
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{
			Credits: &scribev1.StreamCredits{Pointers: uint32(pointers), Bytes: bytes}, //nolint:gosec // no more than was given
		}}, nil
	}, func(m *scribev1.StreamResponse) error {
		s.alive.Reset(silence)
		return s.takeMessage(ctx, m)
	})
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	return err
}

// maxConsumer is the maximum length of a consumer's name in bytes.
const maxConsumer = 255

// takeMessage handles one message of the stream.
func (s *sourceStream) takeMessage(ctx context.Context, m *scribev1.StreamResponse) error {
	if m.GetOpened() == nil && !s.opened {
		return fmt.Errorf("%w: first message is %T, want opened", errStream, m.GetStep())
	}
	switch m := m.GetStep().(type) {
	case *scribev1.StreamResponse_Opened:
		return s.checkOpened(ctx, m.Opened)
	case *scribev1.StreamResponse_Entries:
		steps := make([]sourceStep, 0, len(m.Entries.GetEntries()))
		for _, e := range m.Entries.GetEntries() {
			st, err := s.checker.checkEntry(e)
			if err != nil {
				return err
			}
			steps = append(steps, st)
		}
		return s.in.putSteps(ctx, m.Entries.GetWatermark(), steps...)
	case *scribev1.StreamResponse_Gap:
		if m.Gap.GetBeforeOrigin() {
			return s.checker.startSource(m.Gap)
		}
		st, err := s.checker.checkGap(m.Gap)
		if err != nil {
			return err
		}
		return s.in.putSteps(ctx, 0, st)
	case *scribev1.StreamResponse_ShardAdded:
		return s.joinShard(ctx, m.ShardAdded)
	case *scribev1.StreamResponse_Heartbeat:
		s.in.advanceWatermark(m.Heartbeat.GetWatermark())
		s.t.r.recordProgress(s.in)
	case *scribev1.StreamResponse_Evicted:
		s.t.r.log.Info("read stream evicted, opening another one", "reason", m.Evicted.GetReason().String(), "message", m.Evicted.GetMessage())
	default: // the end of a shard; messages of newer servers have no credits, so they bring no pointers
	}
	return nil
}

func (s *sourceStream) checkOpened(ctx context.Context, o *scribev1.StreamOpened) error {
	if s.opened {
		return fmt.Errorf("%w: opened twice", errStream)
	}
	s.opened = true
	if id := o.GetCategory().GetId(); id != s.t.r.cat.GetId() {
		return fmt.Errorf("%w: category id %d, want %d: the category was deleted and created again", errStream, id, s.t.r.cat.GetId())
	}
	if w := o.GetWindow(); w == nil || w.AsDuration() != 0 {
		return fmt.Errorf("%w: window %v, want 0", errStream, w)
	}
	for _, v := range o.GetShards() {
		if err := s.joinShard(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *sourceStream) joinShard(ctx context.Context, v *scribev1.StreamShard) error {
	st, err := s.checker.joinShard(v)
	if err != nil || st == nil {
		return err
	}
	return s.in.putSteps(ctx, 0, *st)
}
