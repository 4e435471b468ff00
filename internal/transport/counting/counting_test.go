package counting_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/internal/transport/counting"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// service answers requests of frames that are all of one size.
type service struct {
	size    int
	answers []error // one a request: of all its frames
	whole   bool    // they are errors of the request
	acks    []scribev1.AckLevel
	bodies  [][]byte
}

func (s *service) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var err error
	if n := len(s.bodies); n < len(s.answers) {
		err = s.answers[n]
	}
	s.acks, s.bodies = append(s.acks, req.GetAck()), append(s.bodies, req.GetFrames())
	if err != nil && s.whole {
		return nil, err
	}
	res := &scribev1.WriteResponse{}
	for range len(req.GetFrames()) / s.size {
		res.Results = append(res.Results, &scribev1.FrameResult{Error: rpc.Info(err)})
	}
	return res, nil
}

// TestSend: frames go in their order, in requests of bounded size, until one has to be sent again.
func TestSend(t *testing.T) {
	const size = 400 << 10 // two fit a request
	frames := make([]*delivery.Pending, 7)
	for i := range frames {
		frames[i] = &delivery.Pending{Frame: make([]byte, size), Messages: 1}
		frames[i].Frame[0] = byte(i)
	}
	refused := rpc.Errorf(scribev1.Reason_REASON_DENIED, "no")
	for name, c := range map[string]struct {
		answers                 []error
		whole, renews           bool
		requests, stored, given int
		all                     bool
	}{
		"all":           {nil, false, false, 4, 7, 0, true},
		"refused":       {[]error{nil, refused}, false, false, 4, 5, 2, true},
		"later":         {[]error{nil, rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "later")}, false, false, 2, 2, 0, false},
		"away":          {[]error{nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away")}, true, false, 2, 2, 0, false},
		"an old token":  {[]error{nil, rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "who")}, true, true, 2, 2, 0, false},
		"no token":      {[]error{nil, rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "who")}, true, false, 4, 5, 2, true},
		"without words": {[]error{nil, context.DeadlineExceeded}, true, false, 2, 2, 0, false},
	} {
		s := &service{size: size, answers: c.answers, whole: c.whole}
		stored, given := 0, 0
		sender := counting.Sender{
			Service: s, Timeout: time.Minute, Renews: c.renews,
			Settle: func(done map[*delivery.Pending]bool) {
				for _, ok := range done {
					if ok {
						stored++
					}
				}
			},
			Refused: func(*delivery.Pending, error) { given++ },
		}
		all := sender.Send(t.Context(), frames, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
		if all != c.all || len(s.bodies) != c.requests || stored != c.stored || given != c.given {
			t.Errorf("%s: %v after %d requests, %d frames stored, %d refused, want %+v", name, all, len(s.bodies), stored, given, c)
		}
		for i, b := range s.bodies {
			if b[0] != byte(2*i) || len(b) > 1<<20 {
				t.Errorf("%s: request %d has %d bytes and begins with frame %d", name, i, len(b), b[0])
			}
		}
	}
}

// rowsService takes everything, after it has failed for a while.
type rowsService struct {
	fails int
	rows  map[string]int64
	acks  []scribev1.AckLevel
}

func (s *rowsService) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	if s.fails--; s.fails >= 0 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away")
	}
	s.acks = append(s.acks, req.GetAck())
	res := &scribev1.WriteResponse{}
	for f, err := range record.Split(req.GetFrames()) {
		if err == nil {
			err = delivery.RowsOf(f.Bytes, func(r *delivery.Row, _ int64) error {
				s.rows[r.ID] = r.Produced
				return nil
			})
		}
		if err != nil {
			return nil, err
		}
		res.Results = append(res.Results, &scribev1.FrameResult{})
	}
	return res, nil
}

// TestReporter: everything that was counted is told once, at intervals and at the end, whatever fails in between.
func TestReporter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &rowsService{fails: 2, rows: map[string]int64{}}
		r := counting.NewReporter(delivery.NewLedger(delivery.Library, "h", "", entropy.NewSeeded(1, "rows")), time.Second, time.Now,
			counting.Sender{Service: s, Timeout: time.Minute})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		add := func(n int64) { r.Add(delivery.Key{Category: "c", Producer: 7, Minute: 1}, delivery.Counts{Produced: n}) }
		for range 5 {
			add(1)
			<-time.After(1100 * time.Millisecond)
		}
		cancel()
		<-ended
		add(10)
		r.ReportRest(t.Context())
		sum := int64(0)
		for _, n := range s.rows {
			sum += n
		}
		if sum != 15 || len(s.rows) < 3 {
			t.Errorf("%d messages are told in %d rows, want 15", sum, len(s.rows))
		}
		if s.acks[0] != scribev1.AckLevel_ACK_LEVEL_COMMITTED || s.acks[len(s.acks)-1] != scribev1.AckLevel_ACK_LEVEL_SPOOLED {
			t.Errorf("levels %v", s.acks)
		}
		var none *counting.Reporter
		none.Add(delivery.Key{Category: "c"}, delivery.Counts{Produced: 1})
		none.ReportRest(t.Context())
	})
}
