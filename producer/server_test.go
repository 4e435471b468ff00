package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is a small log server in memory: it checks frames as a write proxy does and stores their messages, and in an
// exactly_once category recognises what it has by the producers' sequences. Its zero value takes every category.
type server struct {
	// exactlyOnce checks sequences.
	exactlyOnce bool
	// ordered keeps the order of a producer's requests in flight.
	ordered bool
	// forgetful refuses all that follows others.
	forgetful bool
	// only names the categories that exist; nil = all.
	only []string
	// fault, when set, is asked for each request, numbered from 1, before it is carried out.
	fault func(n int, req *scribev1.WriteRequest) *fault

	mu       sync.Mutex
	requests int
	running  int
	most     int // requests at the same time
	busy     map[shardStream]bool
	logs     map[shardStream][]message
	frames   []record.Header
	bodies   [][]byte // of all requests
	acks     []scribev1.AckLevel
	known    map[known]sequence
	tails    map[known]sequence // of the frames stored last, with ordered
	follows  int                // frames that followed others in flight
	changed  chan struct{}      // closed when something is stored; nil if nobody waits
	wrong    error              // the producer broke a promise
}

// fault is what goes wrong with a request.
type fault struct {
	wait <-chan struct{} // first, and until then or the end of the context nothing happens
	// delay is how long the request is on its way.
	delay time.Duration
	// before is returned instead of carrying it out, after instead of the answer.
	before, after error
	// frame, when set, may refuse single frames.
	frame func(h record.Header) *scribev1.ErrorInfo
	// sample, when set, says which frames are left out on purpose.
	sample func(h record.Header) bool
}

type shardStream struct {
	category string
	shard    uint32
}

type known struct {
	shardStream
	producer uint64
}

type sequence struct {
	epoch uint32
	next  uint64
}

// message is a stored message.
type message struct {
	payload, key string
	hasKey       bool
	time         int64
	attributes   string
	frame        int // number of the frame in the server
	atomic       bool
}

func (s *server) Publish(context.Context, *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "not served here")
}

func (s *server) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	s.mu.Lock()
	s.requests++
	n := s.requests
	s.running++
	s.most = max(s.most, s.running)
	streams, err := s.enter(req)
	s.bodies = append(s.bodies, slices.Clone(req.GetFrames()))
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.running--
		for _, st := range streams {
			delete(s.busy, st)
		}
	}()
	if err != nil {
		return nil, err
	}
	f := &fault{}
	if s.fault != nil {
		if f = s.fault(n, req); f == nil {
			f = &fault{}
		}
	}
	if f.wait != nil {
		select {
		case <-f.wait:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if f.delay > 0 {
		<-time.After(f.delay)
	}
	if f.before != nil {
		return nil, f.before
	}
	s.awaitOrder(req)
	res, err := s.store(req, f)
	if err == nil && f.after != nil {
		return nil, f.after
	}
	return res, err
}

// enter notes which streams a request carries: one must not be in two, except in frames that follow others, and its frames stand
// together.
func (s *server) enter(req *scribev1.WriteRequest) ([]shardStream, error) {
	if s.busy == nil {
		s.busy, s.logs, s.known, s.tails = map[shardStream]bool{}, map[shardStream][]message{}, map[known]sequence{}, map[known]sequence{}
	}
	index, following := -1, shardStream{}
	s.acks = append(s.acks, req.GetAck())
	var streams []shardStream
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			s.wrong = errors.Join(s.wrong, err)
			return streams, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
		}
		index++
		st := shardStream{f.CategoryName(), f.Shard}
		if following == st || len(streams) > 0 && streams[len(streams)-1] == st {
			continue
		}
		if s.ordered && slices.Contains(req.GetFollows(), uint32(index)) {
			following = st
			s.follows++
			continue
		}
		if s.busy[st] {
			s.wrong = errors.Join(s.wrong, fmt.Errorf("%v is in two requests, or twice in one", st))
		}
		s.busy[st] = true
		streams = append(streams, st)
	}
	return streams, nil
}

// awaitOrder holds a request for a second at most until what its frames follow is stored.
func (s *server) awaitOrder(req *scribev1.WriteRequest) {
	limit := time.After(time.Second)
	for {
		index, held := -1, false
		s.mu.Lock()
		for f, err := range record.Split(req.GetFrames()) {
			index++
			if err == nil && slices.Contains(req.GetFollows(), uint32(index)) {
				held = held || !s.mayFollow(f.Header)
			}
		}
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		if !held || s.forgetful {
			return
		}
		select {
		case <-changed:
		case <-limit:
			return
		}
	}
}

func (s *server) mayFollow(h record.Header) bool {
	return !s.forgetful && s.tails[known{shardStream{h.CategoryName(), h.Shard}, h.Producer}] == sequence{h.Epoch, h.FirstSequence}
}

func (s *server) store(req *scribev1.WriteRequest, flt *fault) (*scribev1.WriteResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
	res := &scribev1.WriteResponse{Ordered: s.ordered}
	refused := map[shardStream]bool{} // for a passing reason
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, err // enter looked at them
		}
		r := &scribev1.FrameResult{}
		res.Results = append(res.Results, r)
		st := shardStream{f.CategoryName(), f.Shard}
		if s.ordered {
			follows := slices.Contains(req.GetFollows(), uint32(len(res.Results)-1))
			if refused[st] || follows && !s.mayFollow(f.Header) {
				refused[st] = true
				r.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OUT_OF_ORDER}
				continue
			}
		}
		if flt.frame != nil {
			if r.Error = flt.frame(f.Header); r.Error != nil {
				refused[st] = retry.ClassOf(r.Error.GetReason()).Retryable()
				continue
			}
		}
		if flt.sample != nil && flt.sample(f.Header) {
			r.SampledOut = true
			continue
		}
		if _, err := record.Check(f.Bytes); err != nil {
			s.wrong = errors.Join(s.wrong, err)
		}
		if s.only != nil && !slices.Contains(s.only, f.CategoryName()) {
			r.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_UNKNOWN_CATEGORY, Message: "no category " + f.CategoryName()}
			continue
		}
		if r.Error = s.sequence(f.Header); r.Error != nil {
			continue
		}
		s.tails[known{st, f.Producer}] = sequence{f.Epoch, f.NextSequence()}
		s.keep(st, f)
		r.Shard, r.Lsn = uint64(f.Shard)+1, uint64(len(s.logs[st]))
	}
	return res, nil
}

// sequence is what a metadata engine does with a run of sequences.
func (s *server) sequence(h record.Header) *scribev1.ErrorInfo {
	if !h.Sequenced() {
		s.wrong = errors.Join(s.wrong, errors.New("a frame is not sequenced"))
	}
	if !s.exactlyOnce {
		return nil
	}
	k := known{shardStream{h.CategoryName(), h.Shard}, h.Producer}
	q, ok := s.known[k]
	reason := scribev1.Reason_REASON_UNSPECIFIED
	switch {
	case !ok || h.Epoch > q.epoch:
	case h.Epoch < q.epoch:
		reason = scribev1.Reason_REASON_STALE_PRODUCER
	case h.FirstSequence < q.next:
		reason = scribev1.Reason_REASON_DUPLICATE
	case h.FirstSequence > q.next:
		reason = scribev1.Reason_REASON_OUT_OF_SEQUENCE
	}
	if reason != scribev1.Reason_REASON_UNSPECIFIED {
		whole := reason
		if reason == scribev1.Reason_REASON_DUPLICATE && h.NextSequence() > q.next {
			whole = scribev1.Reason_REASON_INVALID // as a batcher says of a frame that is stored in part
		}
		return &scribev1.ErrorInfo{Reason: whole, Message: "sequences", Conflicts: []*scribev1.SequenceConflict{
			{Shard: uint64(h.Shard), Producer: h.Producer, Reason: reason, Epoch: q.epoch, NextSequence: q.next},
		}}
	}
	s.known[k] = sequence{h.Epoch, h.NextSequence()}
	return nil
}

func (s *server) keep(st shardStream, f record.Frame) {
	s.frames = append(s.frames, f.Header)
	if f.Encoding == record.EncodingArrow {
		s.logs[st] = append(s.logs[st], message{payload: string(f.Body()), frame: len(s.frames)})
		return
	}
	var (
		d record.Decoder
		r record.Record
	)
	if _, err := d.Reset(f.Bytes); err != nil {
		s.wrong = errors.Join(s.wrong, err)
	}
	for d.Next(&r) {
		m := message{payload: string(r.Payload), key: string(r.Key), hasKey: r.HasKey, time: r.Time, frame: len(s.frames), atomic: f.Atomic()}
		for name, value := range r.Attributes.All() {
			m.attributes += string(name) + "=" + string(value) + ";"
		}
		s.logs[st] = append(s.logs[st], m)
	}
	if err := d.Err(); err != nil {
		s.wrong = errors.Join(s.wrong, err)
	}
}

// payloads are those stored of a stream, in order.
func (s *server) payloads(category string, shard uint32) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	for _, m := range s.logs[shardStream{category, shard}] {
		out = append(out, m.payload)
	}
	return out
}

// messages are those stored of shard 0, in order.
func (s *server) messages(category string) []message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.logs[shardStream{category, 0}])
}

func (s *server) count() (requests, frames int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests, len(s.frames)
}

// check fails the test when the producer broke a promise.
func (s *server) check(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wrong != nil {
		t.Error(s.wrong)
	}
}

// refusal is an error of a server.
func refusal(r scribev1.Reason, after time.Duration) error {
	return rpc.RetryErrorf(r, after, "refused with %v", r)
}

var errLost = errors.New("connection reset") // as a transport's: it does not say what the server did
