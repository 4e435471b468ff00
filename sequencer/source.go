package sequencer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
)

// byteCredits are what a stream begins with, and what it is capped at: a sequencer reads no payloads, so only pointers count.
const byteCredits = 64 << 30

// errSilent ends a stream that says nothing any more.
var errSilent = errors.New("sequencer: the stream fell silent")

// source is one stream of a term.
type source struct {
	t         *term
	in        *inbox
	reception *reception
	opened    bool
	alive     *time.Timer
}

// read opens a stream from where the term stands and puts what it brings into the inbox, until it ends.
func (t *term) read(ctx context.Context, in *inbox) error {
	cfg := &t.r.s.cfg
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silence := max(10*cfg.Heartbeat, 10*time.Second)
	s := &source{t: t, in: in, reception: newReception(t.ledger.state), alive: time.AfterFunc(silence, func() { cancel(errSilent) })}
	defer s.alive.Stop()
	start := &scribev1.StreamStart{
		Category: t.r.cat.GetName(), StartAt: scribev1.StartAt_START_AT_EARLIEST, Resume: t.ledger.resume(), Unsequenced: true,
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
		pointers, bytes, err := in.credits(rctx)
		if err != nil {
			return nil, err
		}
		return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{
			Credits: &scribev1.StreamCredits{Pointers: uint32(pointers), Bytes: bytes}, //nolint:gosec // no more than was given
		}}, nil
	}, func(m *scribev1.StreamResponse) error {
		s.alive.Reset(silence)
		return s.take(ctx, m)
	})
	if cause := context.Cause(ctx); errors.Is(cause, errSilent) {
		err = cause
	}
	return err
}

// maxConsumer is the longest name of a reader in bytes.
const maxConsumer = 255

// take takes one message of the stream.
func (s *source) take(ctx context.Context, m *scribev1.StreamResponse) error {
	if m.GetOpened() == nil && !s.opened {
		return fmt.Errorf("%w: its first message is %T", errStream, m.GetStep())
	}
	switch m := m.GetStep().(type) {
	case *scribev1.StreamResponse_Opened:
		return s.open(ctx, m.Opened)
	case *scribev1.StreamResponse_Entries:
		steps := make([]step, 0, len(m.Entries.GetEntries()))
		for _, e := range m.Entries.GetEntries() {
			st, err := s.reception.entry(e)
			if err != nil {
				return err
			}
			steps = append(steps, st)
		}
		return s.in.put(ctx, m.Entries.GetWatermark(), steps...)
	case *scribev1.StreamResponse_Gap:
		st, err := s.reception.gap(m.Gap)
		if err != nil {
			return err
		}
		return s.in.put(ctx, 0, st)
	case *scribev1.StreamResponse_ShardAdded:
		return s.join(ctx, m.ShardAdded)
	case *scribev1.StreamResponse_Heartbeat:
		s.in.mark(m.Heartbeat.GetWatermark())
		s.t.r.progress(s.in)
	case *scribev1.StreamResponse_Evicted:
		s.t.r.log.Info("the stream was evicted, another one goes on", "reason", m.Evicted.GetReason().String(), "message", m.Evicted.GetMessage())
	default: // the end of a shard; what a newer server says goes without credits, so it brings no pointers
	}
	return nil
}

func (s *source) open(ctx context.Context, o *scribev1.StreamOpened) error {
	if s.opened {
		return fmt.Errorf("%w: it is opened twice", errStream)
	}
	s.opened = true
	if id := o.GetCategory().GetId(); id != s.t.r.cat.GetId() {
		return fmt.Errorf("%w: the category has the id %d, not %d: it was deleted and made again", errStream, id, s.t.r.cat.GetId())
	}
	if w := o.GetWindow(); w == nil || w.AsDuration() != 0 {
		return fmt.Errorf("%w: its window is %v, not 0", errStream, w)
	}
	for _, v := range o.GetShards() {
		if err := s.join(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (s *source) join(ctx context.Context, v *scribev1.StreamShard) error {
	st, err := s.reception.join(v)
	if err != nil || st == nil {
		return err
	}
	return s.in.put(ctx, 0, *st)
}
