package writeproxy

import (
	"fmt"
	"time"

	"scribe/columnar/divide"
	"scribe/internal/format/loss"
	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// placedRequest is a request of which some frames were encoded again: their writers did not know how the category places messages.
// So each frame that goes on is where readers look for its messages. Libraries place messages themselves; this is for plain HTTP
// calls, for older libraries, and for messages that were written while nobody could be asked.
type placedRequest struct {
	data []byte
	// results are the results of the caller's frames that are known already; nil for the others.
	results []*scribev1.FrameResult
	// origin has the caller's frame for each frame in data.
	origin []int
}

// placeFrames encodes the misplaced frames of a request again, divided by shard. It returns nil if there are none. Frames that
// have a result are left out.
func (p *Proxy) placeFrames(items []frameItem, charge func(int64) error) (*placedRequest, error) {
	misplaced, size := 0, 0
	for i := range items {
		size += len(items[i].bytes)
		if items[i].misplaced {
			misplaced++
		}
	}
	if misplaced == 0 {
		return nil, nil
	}
	if err := charge(int64(2 * size)); err != nil { // the new request, and the pieces of one frame
		return nil, err
	}
	r := &placedRequest{data: make([]byte, 0, size+misplaced*record.HeaderLen), results: make([]*scribev1.FrameResult, len(items))}
	for i := range items {
		it := &items[i]
		switch {
		case it.done:
			r.results[i] = it.result
			continue
		case !it.misplaced:
			r.data, r.origin = append(r.data, it.bytes...), append(r.origin, i)
			continue
		}
		grown, pieces, err := p.placeFrame(r.data, it)
		if err != nil {
			it.refuseWith(fmt.Errorf("category %s: %w", it.category.GetName(), err))
			r.results[i] = it.result
			continue
		}
		p.metrics.placed.Add(float64(it.messages))
		r.data = grown
		for range pieces {
			r.origin = append(r.origin, i)
		}
	}
	return r, nil
}

// placeFrame appends the pieces of a frame to dst, and returns their number.
func (p *Proxy) placeFrame(dst []byte, it *frameItem) (_ []byte, pieces int, err error) {
	if err := it.checkSum(); err != nil {
		return dst, 0, err
	}
	h, err := record.ParseHeader(it.bytes)
	if err != nil {
		return dst, 0, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
	}
	var (
		layout = layouts.Current(it.category)
		shards = max(it.category.GetShards(), 1)
		other  = h.Shard // of messages without a value to place them by
	)
	if h.Placement == placement.Unplaced && (layout != nil || it.category.GetShardBy() == scribev1.ShardBy_SHARD_BY_STICKY) {
		other = p.sticky.Add(1) % shards
	}
	other = min(other, shards-1)
	var tag uint32
	if layout != nil {
		tag = layout.Tag()
	}
	switch {
	case layout == nil, layout.Kind() == placement.ByKey && h.Encoding == record.EncodingArrow: // rows of columns have no keys
		begin := len(dst)
		dst = append(dst, it.bytes...)
		if err := record.SetPlacement(dst[begin:], other, tag); err != nil {
			return dst[:begin], 0, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
		}
		return dst, 1, nil
	case it.sequenced && it.category.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
		return dst, 0, rpc.Errorf(scribev1.Reason_REASON_INVALID,
			"it places messages by %s and is exactly_once, so only their producer can place them, which numbers them by shard: "+
				"this producer did not know the category (see Producer.Prepare), or its library is too old", layout)
	}
	env := h.Envelope()
	env.Placement = tag
	env.Sequenced, env.Producer, env.Epoch, env.FirstSequence = false, 0, 0, 0 // the numbers count messages of the frame as it was
	s := frameSplit{layout: layout, env: env, other: other, chosen: h.Placement == 0 && h.Shard != 0}
	if h.Encoding == record.EncodingArrow {
		err = s.splitRows(it.bytes[h.BodyOffset():h.Len])
	} else {
		err = s.splitMessages(it.bytes)
	}
	if err != nil {
		return dst, 0, err
	}
	if h.Atomic() && len(s.pieces) > 1 {
		return dst, 0, rpc.Errorf(scribev1.Reason_REASON_INVALID,
			"an atomic batch has messages of logical shards %d and %d, by their %s: write one for each", s.pieces[0].shard, s.pieces[1].shard, layout)
	}
	for i := range s.pieces {
		dst = append(dst, s.pieces[i].frame...)
	}
	return dst, len(s.pieces), nil
}

// frameSplit divides a frame by shard.
type frameSplit struct {
	layout *placement.Layout
	env    record.Envelope
	other  uint32
	// chosen: the writer chose the shard, which only reports of losses may.
	chosen bool
	pieces []framePiece
}

// framePiece is a frame with the messages of one shard, in order.
type framePiece struct {
	shard   uint32
	builder *record.Builder
	frame   []byte
}

// splitMessages divides a frame of messages.
func (s *frameSplit) splitMessages(frame []byte) error {
	var (
		d       record.Decoder
		r       record.Record
		scratch placement.Scratch
		index   = map[uint32]int{}
	)
	if _, err := d.Reset(frame); err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
	}
	for d.Next(&r) {
		shard, ok := s.layout.Place(r.Key, r.Payload, &scratch)
		if _, report := r.Attributes.Get(loss.Attribute); report {
			shard, ok = s.other, true
		} else if s.chosen {
			return s.errChosen()
		}
		if !ok {
			shard = s.other
		}
		at, known := index[shard]
		if !known {
			at = len(s.pieces)
			index[shard] = at
			env := s.env
			env.Shard = shard
			b := &record.Builder{MaxMessageSize: record.MaxFrameLen}
			if err := b.Reset(nil, env); err != nil {
				return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
			}
			s.pieces = append(s.pieces, framePiece{shard: shard, builder: b})
		}
		if err := s.pieces[at].builder.Append(messageOf(&r)); err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "message %d: %w", r.Index, err)
		}
	}
	if err := d.Err(); err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
	}
	for i := range s.pieces {
		var err error
		if s.pieces[i].frame, err = s.pieces[i].builder.Finish(); err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
		}
	}
	return nil
}

// messageOf returns a message as a writer would give it. It points into the record's frame.
func messageOf(r *record.Record) *record.Message {
	m := &record.Message{Payload: r.Payload, Key: r.Key}
	if r.HasTime {
		m.Time = time.UnixMicro(r.Time)
	}
	for name, value := range r.Attributes.All() {
		m.Attributes = append(m.Attributes, record.Attribute{Name: string(name), Value: value})
	}
	return m
}

// errChosen refuses a shard that the writer chose.
func (s *frameSplit) errChosen() error {
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "it places messages by %s: leave out the shard, %d", s.layout, s.other)
}

// splitRows divides a frame of columns.
func (s *frameSplit) splitRows(body []byte) error {
	if s.chosen {
		return s.errChosen()
	}
	parts, err := divide.Stream(body, s.layout, s.other)
	if err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "the rows can't be divided by %s: %w", s.layout, err)
	}
	for _, part := range parts {
		env := s.env
		env.Shard = part.Shard
		frame, err := record.AppendArrowFrame(nil, env, part.Rows, part.Body)
		if err != nil {
			return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
		}
		s.pieces = append(s.pieces, framePiece{shard: part.Shard, frame: frame})
	}
	return nil
}

// foldResults returns the results of the caller's frames from those of the pieces. A frame of which a part was stored has an
// unknown outcome: to send it again may repeat that part.
func (r *placedRequest) foldResults(items []frameItem) []*scribev1.FrameResult {
	stored := make([]bool, len(r.results))
	for i := range items {
		at, res := r.origin[i], items[i].result
		switch have := r.results[at]; {
		case have == nil, have.GetSampledOut() && res.GetError() == nil:
			r.results[at] = res
		case res.GetError() != nil && have.GetError() == nil, unknownOutcome(res):
			r.results[at] = res
		}
		stored[at] = stored[at] || res.GetError() == nil && !res.GetSampledOut()
	}
	for at, res := range r.results {
		if info := res.GetError(); info != nil && stored[at] {
			r.results[at] = &scribev1.FrameResult{Error: request.AsUnknown(info)}
		}
	}
	return r.results
}

func unknownOutcome(r *scribev1.FrameResult) bool {
	return r.GetError().GetReason() == scribev1.Reason_REASON_UNKNOWN_OUTCOME
}
