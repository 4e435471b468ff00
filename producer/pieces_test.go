package producer_test

import (
	"bytes"
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// pieceServer takes the frames of a request in pieces, too.
type pieceServer struct {
	*server
	pieces []int // of the requests that came so
}

func (s *pieceServer) WritePieces(ctx context.Context, req *scribev1.WriteRequest, frames ...[]byte) (*scribev1.WriteResponse, error) {
	s.mu.Lock()
	s.pieces = append(s.pieces, len(frames))
	s.mu.Unlock()
	return s.Write(ctx, &scribev1.WriteRequest{Frames: slices.Concat(frames...), Ack: req.GetAck(), Follows: req.GetFollows()})
}

// backlog has a producer make frames while its first request is held up.
func backlog(t *testing.T, s producer.Service, hold chan struct{}, payload []byte, messages int, opts ...producer.Option) {
	t.Helper()
	p, err := producer.New("", append(opts, producer.WithService(s), producer.WithLinger(0))...)
	if err != nil {
		t.Fatal(err)
	}
	p.Log("web.access", []byte("first"))
	synctest.Wait()
	for range messages {
		p.Log("web.access", payload)
	}
	close(hold)
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Large frames go out from where they are, small ones as a copy.
func TestFramesGoOutInPieces(t *testing.T) {
	for _, c := range []struct {
		size  int
		large bool
	}{{60_000, true}, {3_500, false}} {
		synctest.Test(t, func(t *testing.T) {
			hold := make(chan struct{})
			s := &pieceServer{server: &server{fault: nth(1, fault{wait: hold})}}
			payload := bytes.Repeat([]byte("x"), c.size)
			backlog(t, s, hold, payload, 6, producer.WithBatchBytes(c.size+1000))
			want := []int{6}
			if !c.large {
				want = nil
			}
			if !slices.Equal(s.pieces, want) {
				t.Errorf("frames of %d bytes: requests in %v pieces, want %v", c.size, s.pieces, want)
			}
			if got := s.payloads("web.access", 0); len(got) != 7 || got[6] != string(payload) {
				t.Errorf("frames of %d bytes: %d messages arrived", c.size, len(got))
			}
			s.check(t)
		})
	}
}

// A producer that is faster than its server fills its memory with few frames, also the last of it.
func TestFullMemoryIsFewFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: nth(1, fault{wait: hold})}
		backlog(t, s, hold, make([]byte, 100), 100_000, producer.WithMaxBufferedBytes(4<<20))
		stored := len(s.payloads("web.access", 0))
		if _, frames := s.count(); frames > 30 || stored < 20_000 {
			t.Errorf("%d frames for %d messages", frames, stored)
		}
		s.check(t)
	})
}
