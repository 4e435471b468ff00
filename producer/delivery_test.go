package producer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// leastRandom is a source of zeros.
type leastRandom struct{}

func (leastRandom) Uint64() uint64 { return 0 }

// nth makes the n-th request fail.
func nth(n int, f fault) func(int, *scribev1.WriteRequest) *fault {
	return func(i int, _ *scribev1.WriteRequest) *fault {
		if i == n {
			return &f
		}
		return nil
	}
}

// An answer that was lost is asked for again with the same bytes, and the server knows what it has.
func TestLostAnswerIsNotStoredTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{exactlyOnce: true, fault: nth(1, fault{after: errLost})}
		var acked []producer.Acked
		p := start(t, s, producer.WithOnAck(func(a producer.Acked) { acked = append(acked, a) }))
		if err := p.Write(t.Context(), "a", messages(texts("m", 3))...); err != nil {
			t.Fatal(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, texts("m", 3)) {
			t.Errorf("stored %q", got)
		}
		if len(s.bodies) != 2 || !bytes.Equal(s.bodies[0], s.bodies[1]) {
			t.Error("the second attempt has other bytes")
		}
		if len(acked) != 1 || acked[0].Messages != 3 || acked[0].Attempts != 2 || !acked[0].Position.Duplicate || acked[0].Latency < producer.DefaultBackoff/2 {
			t.Errorf("acknowledged %+v", acked)
		}
	})
}

func TestBackoffAndHints(t *testing.T) {
	var times []time.Duration
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		s := &server{fault: func(n int, _ *scribev1.WriteRequest) *fault {
			times = append(times, time.Since(begun))
			switch n {
			case 1, 2, 3:
				return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
			case 4:
				return &fault{before: refusal(scribev1.Reason_REASON_OVERLOADED, 7*time.Second)}
			case 5: // a part of an answer
				return &fault{frame: func(record.Header) *scribev1.ErrorInfo {
					return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED, RetryAfter: durationpb.New(3 * time.Second)}
				}}
			}
			return nil
		}}
		p := start(t, s, producer.WithBackoff(100*time.Millisecond, time.Second), producer.WithRandom(leastRandom{}))
		if err := p.Write(t.Context(), "a", producer.Message{}); err != nil {
			t.Fatal(err)
		}
	})
	ms := time.Millisecond
	want := []time.Duration{0, 50 * ms, 150 * ms, 350 * ms, 7350 * ms, 10350 * ms}
	if !slices.Equal(times, want) {
		t.Errorf("attempts at %v, want %v", times, want)
	}
}

// A category that is refused by itself does not hold back others.
func TestOneCategoryFailsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault {
			return &fault{frame: func(h record.Header) *scribev1.ErrorInfo {
				if string(h.Category) == "quota" {
					return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED, Message: "over its quota"}
				}
				return nil
			}}
		}}
		p := start(t, s, producer.WithDeliveryTimeout(10*time.Second))
		bad := p.WriteAsync("quota", &producer.Message{Payload: []byte("x")})
		for i := range 20 {
			begun := time.Now()
			if err := p.Write(t.Context(), "fine", producer.Message{Payload: []byte("x")}); err != nil || time.Since(begun) != 0 {
				t.Errorf("write %d took %v: %v", i, time.Since(begun), err)
			}
			<-time.After(100 * time.Millisecond)
		}
		err := bad.Wait(t.Context())
		if !errors.Is(err, producer.ErrOverloaded) || errors.Is(err, producer.ErrUnknownOutcome) || !strings.Contains(err.Error(), "over its quota") {
			t.Errorf("error is %v", err)
		}
		if got := p.Stats().Dropped[producer.DropOverloaded]; got != 1 {
			t.Errorf("%d counted", got)
		}
	})
}

// A request that is refused as a whole is taken apart, so that one frame's fault is not another's.
func TestFaultyFrameIsFoundAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(_ int, req *scribev1.WriteRequest) *fault {
			if bytes.Contains(req.GetFrames(), []byte("poison")) {
				return &fault{before: refusal(scribev1.Reason_REASON_INVALID, 0)}
			}
			return nil
		}}
		p := start(t, s)
		var results []*producer.Result
		for i := range 10 {
			text := "fine"
			if i == 4 {
				text = "poison"
			}
			results = append(results, p.WriteAsync(fmt.Sprintf("c%d", i), &producer.Message{Payload: []byte(text)}))
		}
		for i, r := range results {
			err := r.Wait(t.Context())
			if (i == 4) != errors.Is(err, producer.ErrInvalid) || i != 4 && err != nil {
				t.Errorf("message %d: %v", i, err)
			}
		}
	})
}

func TestWhatAnErrorMeans(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	for name, c := range map[string]struct {
		err      error
		is       error
		unknown  bool
		attempts int
	}{
		"unreachable":  {dial, producer.ErrUnavailable, false, 3},
		"broken":       {errLost, producer.ErrUnavailable, true, 3},
		"shutting":     {refusal(scribev1.Reason_REASON_SHUTTING_DOWN, 0), producer.ErrUnavailable, false, 3},
		"overloaded":   {refusal(scribev1.Reason_REASON_OVERLOADED, 0), producer.ErrOverloaded, false, 3},
		"maybe":        {refusal(scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0), producer.ErrUnknownOutcome, true, 3},
		"late":         {context.DeadlineExceeded, producer.ErrUnknownOutcome, true, 3},
		"too large":    {refusal(scribev1.Reason_REASON_TOO_LARGE, 0), producer.ErrTooLarge, false, 1},
		"damaged":      {refusal(scribev1.Reason_REASON_CORRUPT, 0), producer.ErrDamaged, false, 1},
		"no category":  {refusal(scribev1.Reason_REASON_UNKNOWN_CATEGORY, 0), producer.ErrUnknownCategory, false, 1},
		"no shard":     {refusal(scribev1.Reason_REASON_UNKNOWN_SHARD, 0), producer.ErrUnknownShard, false, 1},
		"stale":        {refusal(scribev1.Reason_REASON_STALE_PRODUCER, 0), producer.ErrStaleProducer, false, 1},
		"unmotivated":  {refusal(scribev1.Reason_REASON_CONFLICT, 0), producer.ErrRefused, false, 1},
		"wrong answer": {nil, producer.ErrUnknownOutcome, true, 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{before: c.err} }}
				opts := []producer.Option{producer.WithRetries(2)}
				if c.err == nil {
					opts = append(opts, producer.WithService(mute{}))
				}
				p := start(t, s, opts...)
				err := p.Write(t.Context(), "a", producer.Message{})
				why := new(producer.WriteError)
				if !errors.Is(err, c.is) || errors.Is(err, producer.ErrUnknownOutcome) != c.unknown || !errors.As(err, &why) || why.Attempts != c.attempts {
					t.Errorf("error is %v (%+v)", err, why)
				}
				if c.err != nil && !errors.Is(err, c.err) {
					t.Error("the error does not wrap its cause")
				}
			})
		})
	}
}

// mute answers for no frame.
type mute struct{}

func (mute) Write(context.Context, *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	return &scribev1.WriteResponse{}, nil
}

// A failure after an attempt with an unknown outcome is not a definite one.
func TestUnknownOutcomeIsRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(n int, _ *scribev1.WriteRequest) *fault {
			if n == 1 {
				return &fault{after: errLost}
			}
			return &fault{before: refusal(scribev1.Reason_REASON_UNKNOWN_CATEGORY, 0)}
		}}
		p := start(t, s)
		err := p.Write(t.Context(), "a", producer.Message{})
		if !errors.Is(err, producer.ErrUnknownCategory) || !errors.Is(err, producer.ErrUnknownOutcome) {
			t.Errorf("error is %v", err)
		}
	})
}

// A frame whose first messages an earlier producer has stored, and whose rest is refused: its messages share one outcome, so it is unknown.
func TestFailureOfACutFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{exactlyOnce: true}
		id := producer.Identity{ID: 5, Epoch: 1}
		if err := start(t, s, producer.WithIdentity(id)).Write(t.Context(), "a", messages(texts("m", 2))...); err != nil {
			t.Fatal(err)
		}
		s.fault = func(n int, _ *scribev1.WriteRequest) *fault {
			if n < 3 { // the second request learns what is stored
				return nil
			}
			return &fault{before: refusal(scribev1.Reason_REASON_CORRUPT, 0)}
		}
		err := start(t, s, producer.WithIdentity(id)).Write(t.Context(), "a", messages(texts("m", 3))...)
		if !errors.Is(err, producer.ErrDamaged) || !errors.Is(err, producer.ErrUnknownOutcome) {
			t.Errorf("two of three messages are stored, the error is %v", err)
		}
	})
}

// An outage is logged when it begins, once a minute while it lasts, and when it is over, however often requests are repeated.
func TestOutageIsLoggedSparsely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const failures = 10
		s := &server{fault: func(n int, _ *scribev1.WriteRequest) *fault {
			if n > failures {
				return nil
			}
			return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
		}}
		var log bytes.Buffer
		p := start(t, s, producer.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if err := p.Write(t.Context(), "a", producer.Message{}); err != nil {
			t.Fatal(err)
		}
		if text := log.String(); strings.Count(text, "write request failed") != 1 || strings.Count(text, "write requests succeed again\" failures=10") != 1 {
			t.Errorf("logged for %d failures within a minute:\n%s", failures, text)
		}
	})
}

// What is given up leaves a hole in the sequences. The messages behind it get through all the same, and what was given up never
// comes back.
func TestGivingUpLeavesNoHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var late []*scribev1.WriteRequest
		s := &server{exactlyOnce: true, fault: func(n int, req *scribev1.WriteRequest) *fault {
			switch n {
			case 2: // lost on the way to the server
				late = append(late, &scribev1.WriteRequest{Frames: bytes.Clone(req.GetFrames())})
				return &fault{before: errLost}
			case 3:
				return &fault{before: refusal(scribev1.Reason_REASON_CORRUPT, 0)}
			}
			return nil
		}}
		p := start(t, s)
		write := func(text string) error {
			return p.Write(t.Context(), "a", producer.Message{Payload: []byte(text)})
		}
		if err := write("one"); err != nil {
			t.Fatal(err)
		}
		if err := write("two"); !errors.Is(err, producer.ErrDamaged) || !errors.Is(err, producer.ErrUnknownOutcome) {
			t.Fatalf("error is %v", err)
		}
		for _, text := range []string{"three", "four"} {
			if err := write(text); err != nil {
				t.Fatal(err)
			}
		}
		res, err := s.Write(t.Context(), late[0])
		if err != nil || res.GetResults()[0].GetError().GetReason() != scribev1.Reason_REASON_STALE_PRODUCER {
			t.Errorf("the late copy was answered with %v, %v", res, err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, []string{"one", "three", "four"}) {
			t.Errorf("stored %q", got)
		}
	})
}

// Frames behind one that failed, in the same request, are refused as out of sequence: they are sent again with new numbers.
func TestFailureInTheMiddleOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{exactlyOnce: true, fault: func(n int, _ *scribev1.WriteRequest) *fault {
			f := &fault{frame: func(h record.Header) *scribev1.ErrorInfo {
				if h.Count == 7 {
					return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TOO_LARGE}
				}
				return nil
			}}
			if n == 1 {
				f.wait = hold
			}
			return f
		}}
		p := start(t, s)
		var errs [5]error
		var wg sync.WaitGroup
		for i, n := range []int{1, 2, 7, 3, 4} { // the first alone, and then a frame each in one request
			wg.Go(func() { errs[i] = p.WriteAtomic(t.Context(), "a", 0, messages(texts(fmt.Sprint(i), n))...) })
			synctest.Wait()
		}
		close(hold)
		wg.Wait()
		for i, err := range errs {
			if (i == 2) != errors.Is(err, producer.ErrTooLarge) || i != 2 && err != nil {
				t.Errorf("batch %d: %v", i, err)
			}
		}
		want := slices.Concat(texts("0", 1), texts("1", 2), texts("3", 3), texts("4", 4))
		if got := s.payloads("a", 0); !slices.Equal(got, want) {
			t.Errorf("stored %q, want %q", got, want)
		}
		if n, _ := s.count(); n != 4 {
			t.Errorf("%d requests, want 4: the second begins an epoch, whose first frame goes alone", n)
		}
	})
}

func TestRetryWithinARequestKeepsTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refused := 0
		s := &server{exactlyOnce: true, fault: func(int, *scribev1.WriteRequest) *fault {
			return &fault{frame: func(h record.Header) *scribev1.ErrorInfo {
				if h.FirstSequence > 0 && refused < 4 {
					refused++
					return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED}
				}
				return nil
			}}
		}}
		p := start(t, s, producer.WithBatchBytes(4<<10))
		payloads := texts(strings.Repeat("x", 200), 200)
		if err := p.Write(t.Context(), "a", messages(payloads)...); err != nil {
			t.Fatal(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, payloads) || refused != 4 {
			t.Errorf("%d refused, stored %q", refused, got)
		}
	})
}

// A producer that continues an earlier one cuts its batches elsewhere, and what was stored is still recognised.
func TestIdentityContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{exactlyOnce: true}
		payloads := texts("m", 20)
		source := func() []producer.Message {
			msgs := messages(payloads)
			for i := range msgs {
				msgs[i].Key, msgs[i].Time = []byte("k"), time.UnixMicro(int64(1000+i))
				msgs[i].Attributes = []producer.Attribute{{Name: "n", Value: []byte{byte(i)}}}
			}
			return msgs
		}
		first := start(t, s)
		if err := first.Write(t.Context(), "a", source()[:5]...); err != nil {
			t.Fatal(err)
		}
		kept := first.Identity() // the source's position is 5
		shard := producer.Shard{Category: "a"}
		if got := kept.Sequences[shard]; got != (producer.Sequence{Epoch: 1, Next: 5}) {
			t.Fatalf("sequence is %+v", got)
		}
		for _, m := range source()[5:12] { // and crashes before it keeps the next position
			if err := first.Write(t.Context(), "a", m); err != nil {
				t.Fatal(err)
			}
		}
		second := start(t, s, producer.WithIdentity(kept))
		if got := second.Identity().Sequences[shard]; got.Next != 5 {
			t.Errorf("before anything was written the sequence is %+v", got)
		}
		if err := second.Write(t.Context(), "a", source()[5:8]...); err != nil { // all stored
			t.Fatal(err)
		}
		if err := second.Write(t.Context(), "a", source()[8:]...); err != nil { // half of it stored
			t.Fatal(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, payloads) {
			t.Errorf("stored %q", got)
		}
		for i, m := range s.messages("a") {
			if m.key != "k" || m.time != int64(1000+i) || m.attributes != "n="+string(byte(i))+";" {
				t.Errorf("message %d is %+v", i, m)
			}
		}
		if got := second.Identity().Sequences[shard]; got.Next != 20 {
			t.Errorf("sequence is %+v", got)
		}

		// A batch that is to be whole can't be cut.
		third := start(t, s, producer.WithIdentity(producer.Identity{ID: kept.ID, Epoch: 1, Sequences: map[producer.Shard]producer.Sequence{shard: {Epoch: 1, Next: 19}}}))
		if err := third.WriteAtomic(t.Context(), "a", 0, source()[18:]...); !errors.Is(err, producer.ErrOutOfSequence) {
			t.Errorf("half an atomic batch: %v", err)
		}

		// A newer epoch shuts the older ones out.
		fourth := start(t, s, producer.WithIdentity(producer.Identity{ID: kept.ID, Epoch: 9}))
		if err := fourth.Write(t.Context(), "a", producer.Message{Payload: []byte("new")}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := second.Write(t.Context(), "a", producer.Message{Payload: []byte("old")}); !errors.Is(err, producer.ErrStaleProducer) {
				t.Errorf("a producer that was shut out: %v", err)
			}
		}

		// An identity ahead of what is stored is told so, instead of losing messages silently.
		ahead := start(t, s, producer.WithIdentity(producer.Identity{ID: kept.ID, Epoch: 1, Sequences: map[producer.Shard]producer.Sequence{shard: {Epoch: 9, Next: 100}}}))
		if err := ahead.Write(t.Context(), "a", producer.Message{Payload: []byte("x")}); !errors.Is(err, producer.ErrOutOfSequence) {
			t.Errorf("an identity ahead of its time: %v", err)
		}
	})
}

// Below committed, a server may forget what it acknowledged. In an exactly_once category it then waits for it; the producer goes
// on under a new epoch.
func TestForgottenMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{exactlyOnce: true}
		p := start(t, s, producer.WithAck(producer.AckNone))
		for i := range 3 {
			if err := p.Write(t.Context(), "a", producer.Message{Payload: fmt.Append(nil, i)}); err != nil {
				t.Fatal(err)
			}
			if i == 1 { // the server loses the second
				s.mu.Lock()
				for k, q := range s.known {
					s.known[k] = sequence{q.epoch, 1}
				}
				s.mu.Unlock()
			}
		}
		if got := s.payloads("a", 0); !slices.Equal(got, []string{"0", "1", "2"}) {
			t.Errorf("stored %q", got)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithLinger(time.Hour))
		r := p.WriteAsync("a", &producer.Message{Payload: []byte("x")})
		if err := errors.Join(p.Close(t.Context()), p.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		if err := r.Err(); err != nil {
			t.Errorf("Close did not send: %v", err)
		}
		if err := p.Write(t.Context(), "a", producer.Message{}); !errors.Is(err, producer.ErrClosed) {
			t.Errorf("Write after Close: %v", err)
		}
		if err := p.WriteAtomic(t.Context(), "a", 0, producer.Message{}); !errors.Is(err, producer.ErrClosed) {
			t.Errorf("WriteAtomic after Close: %v", err)
		}
		if r := p.WriteAsync("a", &producer.Message{}); !errors.Is(r.Err(), producer.ErrClosed) {
			t.Errorf("WriteAsync after Close: %v", r.Err())
		}
		p.Log("a", nil)
		if got := p.Stats().Dropped[producer.DropClosed]; got != 1 {
			t.Errorf("%d drops counted", got)
		}
	})
}

func TestCloseSaysWhatWasNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: make(chan struct{})} }}
		p := start(t, s, producer.WithLinger(0), producer.WithMaxBufferedBytes(256<<10))
		var results []*producer.Result
		for i := range 5 {
			results = append(results, p.WriteAsync("a", &producer.Message{Payload: fmt.Append(nil, i)}))
			synctest.Wait() // the first is in a request, the others wait behind it
		}
		// Someone waits for room.
		blocked := make(chan error)
		go func() { blocked <- p.Write(t.Context(), "b", messages(texts(strings.Repeat("x", 10_000), 50))...) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Close(ctx)
		unsent := new(producer.UnsentError)
		if !errors.As(err, &unsent) || !errors.Is(err, producer.ErrClosed) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v", err)
		}
		st := p.Stats()
		if unsent.Messages != st.Accepted || unsent.Bytes != st.AcceptedBytes || unsent.Unknown == 0 || unsent.Unknown >= unsent.Messages {
			t.Errorf("unsent: %+v of %+v", unsent, st)
		}
		for i, r := range results {
			if err := r.Err(); !errors.Is(err, producer.ErrClosed) || errors.Is(err, producer.ErrUnknownOutcome) != (i == 0) {
				t.Errorf("message %d: %v", i, err)
			}
		}
		if err := <-blocked; !errors.Is(err, producer.ErrClosed) {
			t.Errorf("the waiting call: %v", err)
		}
	})
}

func TestDeliveryTimeoutAndFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault {
			return &fault{before: refusal(scribev1.Reason_REASON_NO_BACKEND, 0)}
		}}
		p := start(t, s, producer.WithDeliveryTimeout(30*time.Second))
		r := p.WriteAsync("a", &producer.Message{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Flush(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Flush: %v", err)
		}
		begun := time.Now()
		if err := p.Flush(t.Context()); err != nil {
			t.Errorf("Flush: %v", err)
		}
		if d := time.Since(begun); d < 28*time.Second || d > 36*time.Second {
			t.Errorf("given up after %v", d)
		}
		if err := r.Err(); !errors.Is(err, producer.ErrUnavailable) || errors.Is(err, producer.ErrUnknownOutcome) {
			t.Errorf("error is %v", err)
		}
		if n, _ := s.count(); n < 6 || n > 20 {
			t.Errorf("%d attempts in half a minute", n)
		}
	})
}

// TestDeliveryTimeoutInAPause: what a server refuses for longer than the delivery timeout is given up when that ends, not when the pause does.
func TestDeliveryTimeoutInAPause(t *testing.T) {
	for name, whole := range map[string]bool{"of a request": true, "of its frames": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{fault: func(int, *scribev1.WriteRequest) *fault {
					if whole {
						return &fault{before: refusal(scribev1.Reason_REASON_OVERLOADED, time.Minute)}
					}
					return &fault{frame: func(record.Header) *scribev1.ErrorInfo {
						return rpc.Info(refusal(scribev1.Reason_REASON_OVERLOADED, time.Minute))
					}}
				}}
				p := start(t, s, producer.WithDeliveryTimeout(3*time.Second))
				begun := time.Now()
				first := p.WriteAsync("a", &producer.Message{})
				<-time.After(2 * time.Second)
				second := p.WriteAsync("a", &producer.Message{}) // waits behind it
				for i, r := range []*producer.Result{first, second} {
					<-r.Done()
					want := time.Duration(3+2*i) * time.Second
					if d := time.Since(begun); d < want || d > want+100*time.Millisecond {
						t.Errorf("message %d was given up after %v, want %v", i, d, want)
					}
				}
				if err := first.Err(); !errors.Is(err, producer.ErrOverloaded) {
					t.Errorf("error is %v", err)
				}
				if n, _ := s.count(); n != 1 {
					t.Errorf("%d requests before the pause was over", n)
				}
			})
		})
	}
}

func TestRequestTimeoutIsTheServersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		never := make(chan struct{})
		s := &server{exactlyOnce: true, fault: nth(1, fault{wait: never})}
		p := start(t, s, producer.WithRequestTimeout(3*time.Second), producer.WithRandom(leastRandom{}))
		begun := time.Now()
		if err := p.Write(t.Context(), "a", producer.Message{}); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begun); d != 3*time.Second+producer.DefaultBackoff/2 {
			t.Errorf("took %v", d)
		}
	})
}

// TestTokenLapse: a producer whose token somebody renews waits until a server takes the next one, also for single frames; with any other token it fails at once.
func TestTokenLapse(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("a.b.c\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lapsed := func(n int, _ *scribev1.WriteRequest) *fault {
		switch {
		case n <= 3:
			return &fault{before: refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)}
		case n <= 5:
			return &fault{frame: func(record.Header) *scribev1.ErrorInfo {
				return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_UNAUTHENTICATED}
			}}
		}
		return nil
	}
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: lapsed}
		p := start(t, s, producer.WithTokenFile(file))
		if err := p.Write(t.Context(), "a", messages(texts("m", 3))...); err != nil {
			t.Error(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, texts("m", 3)) {
			t.Errorf("stored %q", got)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: lapsed}
		p := start(t, s, producer.WithToken("a.b.c"))
		if err := p.Write(t.Context(), "a", producer.Message{}); !errors.Is(err, producer.ErrRefused) || s.requests != 1 {
			t.Errorf("without a file: %v after %d requests", err, s.requests)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault {
			return &fault{before: refusal(scribev1.Reason_REASON_UNAUTHENTICATED, 0)}
		}}
		p := start(t, s, producer.WithTokenFile(file), producer.WithDeliveryTimeout(10*time.Second))
		begun := time.Now()
		if err := p.Write(t.Context(), "a", producer.Message{}); err == nil || time.Since(begun) < 10*time.Second || time.Since(begun) > time.Minute {
			t.Errorf("a token that nobody renews: %v after %v", err, time.Since(begun))
		}
	})
}
