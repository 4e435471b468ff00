package producer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// writeFar writes messages to a server that is far away, as fast as the producer takes them, and returns how long that took.
func writeFar(t *testing.T, s *server, messages int, opts ...producer.Option) (took time.Duration) {
	t.Helper()
	payload := make([]byte, 1000)
	s.fault = func(n int, _ *scribev1.WriteRequest) *fault {
		return &fault{delay: time.Duration(50+n*7%30) * time.Millisecond} // later requests overtake earlier ones
	}
	start := time.Now()
	p, err := producer.New("", append(opts, producer.WithService(&pieceServer{server: s}), producer.WithBatchBytes(64<<10), producer.WithMaxBufferedBytes(8<<20), producer.WithMaxInFlight(16))...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		m := &producer.Message{Payload: append(fmt.Appendf(nil, "%06d", i), payload...)}
		if r := p.WriteAsyncContext(t.Context(), "a", m); r == nil {
			t.Fatal("no result")
		}
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	return time.Since(start)
}

// TestRequestsOverlap: several requests of one shard are in flight if the server keeps their order, one if it does not. All arrive
// once, in order, whatever overtakes what on the way.
func TestRequestsOverlap(t *testing.T) {
	const messages = 40_000
	run := func(t *testing.T, s *server) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			took = writeFar(t, s, messages)
			s.check(t)
			got := s.payloads("a", 0)
			if len(got) != messages || !slices.IsSorted(got) {
				t.Errorf("%d messages are stored, in order: %t", len(got), slices.IsSorted(got))
			}
		})
		return took
	}
	one, several := &server{}, &server{ordered: true}
	slow, quick := run(t, one), run(t, several)
	if one.most != 1 || one.follows != 0 {
		t.Errorf("%d requests were in flight at a server that does not keep their order", one.most)
	}
	if several.most < 4 || several.follows == 0 || quick > slow/2 {
		t.Errorf("%d requests were in flight, %d frames followed others: %v instead of %v", several.most, several.follows, quick, slow)
	}
}

// TestOrderIsLostOnTheWay: while the way to a server does not keep what it promises, requests go one at a time, but for a trial now and
// then.
func TestOrderIsLostOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{ordered: true, forgetful: true}
		writeFar(t, s, 40_000)
		if got := s.payloads("a", 0); len(got) != 40_000 || !slices.IsSorted(got) {
			t.Errorf("%d messages are stored, in order: %t", len(got), slices.IsSorted(got))
		}
		requests, _ := s.count()
		if s.follows == 0 || s.follows > requests/3 {
			t.Errorf("%d of %d requests followed others", s.follows, requests)
		}
	})
}

// unluckyServer refuses a frame for good, and loses a later one before it arrives.
type unluckyServer struct {
	*server
	state int
}

func (s *unluckyServer) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	s.mu.Lock()
	state := -1
	if len(req.GetFollows()) > 0 && s.follows > 10 && s.state < 3 {
		state = s.state
		s.state++
	}
	s.mu.Unlock()
	switch state {
	case 0:
		<-time.After(50 * time.Millisecond)
		res := &scribev1.WriteResponse{Ordered: true}
		for _, err := range record.Split(req.GetFrames()) {
			if err != nil {
				return nil, err
			}
			res.Results = append(res.Results, &scribev1.FrameResult{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OUT_OF_ORDER}})
		}
		res.Results[0].Error.Reason = scribev1.Reason_REASON_INVALID
		return res, nil
	case 2:
		<-time.After(200 * time.Millisecond)
		return nil, errLost
	}
	return s.server.Write(ctx, req)
}

// TestLossBehindRefusal: frames that were lost behind a refused one keep the numbers of an epoch which can't go on with them. They get
// new ones once the server says that it lacks what was before them.
func TestLossBehindRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &unluckyServer{server: &server{ordered: true, exactlyOnce: true}}
		s.fault = func(int, *scribev1.WriteRequest) *fault { return &fault{delay: 50 * time.Millisecond} }
		p := start(t, s.server, producer.WithService(s), producer.WithBatchBytes(16<<10), producer.WithMaxBufferedBytes(8<<20), producer.WithMaxInFlight(16))
		payload := make([]byte, 1000)
		for i := range 20_000 {
			p.WriteAsyncContext(t.Context(), "a", &producer.Message{Payload: append(fmt.Appendf(nil, "%06d", i), payload...)})
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Error(err)
		}
		st, stored := p.Stats(), len(s.payloads("a", 0))
		if s.state != 3 || st.Failed == 0 || st.Failed > 100 || int(st.Acked) != stored || stored+int(st.Failed) != 20_000 { //nolint:gosec // a few
			t.Errorf("%d are stored: %+v", stored, st)
		}
	})
}
