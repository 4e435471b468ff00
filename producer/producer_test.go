package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// start returns a producer that writes to s and is closed with the test.
func start(t testing.TB, s *server, opts ...producer.Option) *producer.Producer {
	t.Helper()
	p, err := producer.New("", append([]producer.Option{producer.WithService(s)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := p.Close(ctx); err != nil && !errors.Is(err, producer.ErrClosed) {
			t.Error(err)
		}
		checkStats(t, p, 0)
		s.check(t)
	})
	return p
}

// checkStats checks that every message is accounted for.
func checkStats(t testing.TB, p *producer.Producer, buffered uint64) {
	t.Helper()
	st := p.Stats()
	if st.Accepted != st.Acked+st.Sampled+st.Failed+st.Buffered || st.AcceptedBytes != st.AckedBytes+st.SampledBytes+st.FailedBytes+st.BufferedBytes {
		t.Errorf("not all messages are accounted for: %+v", st)
	}
	if st.Buffered != buffered {
		t.Errorf("%d messages are buffered, want %d", st.Buffered, buffered)
	}
	if buffered == 0 && (st.BufferedBytes != 0 || st.Memory != 0) {
		t.Errorf("an empty producer holds memory: %+v", st)
	}
}

func texts(prefix string, n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("%s%d", prefix, i)
	}
	return out
}

func messages(payloads []string) []producer.Message {
	out := make([]producer.Message, len(payloads))
	for i, p := range payloads {
		out[i].Payload = []byte(p)
	}
	return out
}

func TestWriteKeepsEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s)
		when := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
		begun := time.Now()
		err := p.Write(t.Context(), "web.access",
			producer.Message{Payload: []byte("plain")},
			producer.Message{Payload: []byte("all"), Key: []byte("k"), Time: when, Attributes: []producer.Attribute{{Name: "a", Value: []byte("1")}, {Name: "b"}}},
			producer.Message{Key: []byte{}},
		)
		if err != nil {
			t.Fatal(err)
		}
		// Nobody lingered: the bubble's clock stood still.
		if d := time.Since(begun); d != 0 {
			t.Errorf("a write that waits took %v", d)
		}
		want := []message{
			{payload: "plain", time: begun.UnixMicro(), frame: 1},
			{payload: "all", key: "k", hasKey: true, time: when.UnixMicro(), attributes: "a=1;b=;", frame: 1},
			{hasKey: true, time: begun.UnixMicro(), frame: 1},
		}
		if got := s.messages("web.access"); !slices.Equal(got, want) {
			t.Errorf("stored %+v, want %+v", got, want)
		}
		st := p.Stats()
		if st.Accepted != 3 || st.Acked != 3 || st.AckedBytes != uint64(len("plain")+len("all")+len("k")+len("a1b")) || st.Streams != 1 {
			t.Errorf("stats are %+v", st)
		}
	})
}

func TestLingerMakesOneFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithLinger(10*time.Millisecond))
		for i := range 100 {
			p.Log("a", fmt.Appendf(nil, "%d", i))
			p.Log("b", fmt.Appendf(nil, "%d", i))
		}
		<-time.After(9 * time.Millisecond)
		synctest.Wait()
		if n, _ := s.count(); n != 0 {
			t.Fatalf("%d requests before the linger ended", n)
		}
		checkStats(t, p, 200)
		<-time.After(time.Millisecond)
		synctest.Wait()
		if n, frames := s.count(); n != 1 || frames != 2 {
			t.Errorf("%d requests with %d frames, want both frames in one request", n, frames)
		}
		if got := s.payloads("a", 0); len(got) != 100 || got[99] != "99" {
			t.Errorf("stored %q", got)
		}
	})
}

func TestEventTimesFollowTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithLinger(time.Second))
		begun := time.Now().UnixMicro()
		for range 5 {
			p.Log("a", []byte("x"))
			<-time.After(100 * time.Millisecond)
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, m := range s.messages("a") {
			if want := begun + int64(i)*100_000; m.time != want {
				t.Errorf("message %d has time %d, want %d", i, m.time-begun, want-begun)
			}
		}
	})
}

// While a request runs, what comes in makes the next one: nobody waits for a linger, and nobody sends frame by frame.
func TestWritersShareRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(n int, _ *scribev1.WriteRequest) *fault {
			if n == 1 {
				return &fault{wait: hold}
			}
			return nil
		}}
		p := start(t, s)
		var wg sync.WaitGroup
		write := func(text string) {
			wg.Go(func() {
				if err := p.Write(t.Context(), "a", producer.Message{Payload: []byte(text)}); err != nil {
					t.Error(err)
				}
			})
		}
		write("first")
		synctest.Wait()
		for i := range 50 {
			write(fmt.Sprint(i))
		}
		synctest.Wait()
		close(hold)
		wg.Wait()
		if n, frames := s.count(); n != 2 || frames != 2 {
			t.Errorf("%d requests with %d frames, want 2 with one each", n, frames)
		}
	})
}

func TestLogNeverBlocksAndCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: hold} }}
		var drops []producer.Drop
		p := start(t, s, producer.WithMaxBufferedBytes(1<<20), producer.WithMaxMessageBytes(1000),
			producer.WithOnDrop(func(d producer.Drop) { drops = append(drops, d) }))
		payload := make([]byte, 500)
		for range 4000 { // 2 MB into 1 MiB while nothing leaves
			p.Log("a", payload)
		}
		p.Log("not a name", payload)
		p.Log("a", make([]byte, 1001))
		st := p.Stats()
		full := st.Dropped[producer.DropBufferFull]
		if st.Accepted+full != 4000 || full == 0 || st.Accepted < 1000 {
			t.Errorf("%d accepted, %d dropped", st.Accepted, full)
		}
		if st.Memory > 1<<20 {
			t.Errorf("%d bytes are held, the bound is %d", st.Memory, 1<<20)
		}
		if st.Dropped[producer.DropInvalid] != 1 || st.Dropped[producer.DropTooLarge] != 1 || st.Refused != full+2 {
			t.Errorf("drops are %v", st.Dropped)
		}
		last := drops[len(drops)-1]
		if uint64(len(drops)) != st.Refused || last.Reason != producer.DropTooLarge || last.Bytes != 1001 || !errors.Is(last.Err, producer.ErrTooLarge) {
			t.Errorf("the hook saw %d drops, the last %+v", len(drops), last)
		}
		close(hold)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := len(s.payloads("a", 0)); uint64(got) != st.Accepted {
			t.Errorf("%d stored, %d accepted", got, st.Accepted)
		}
		p.Log("a", payload) // there is room again
		checkStats(t, p, 1)
	})
}

func TestWriteWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: hold} }}
		p := start(t, s, producer.WithMaxBufferedBytes(256<<10), producer.WithBatchBytes(16<<10))
		msgs := make([]producer.Message, 1000) // 1 MB through 256 KiB
		for i := range msgs {
			msgs[i].Payload = slices.Repeat([]byte{byte(i)}, 1000)
		}
		done := make(chan error)
		go func() { done <- p.Write(t.Context(), "a", msgs...) }()
		synctest.Wait()
		if r := p.WriteAsync("b", &producer.Message{Payload: make([]byte, 2000)}); !errors.Is(r.Err(), producer.ErrBufferFull) {
			t.Errorf("WriteAsync without room: %v", r.Err())
		}
		// A call whose time is up fails; nothing of it is sent.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := p.Write(ctx, "b", producer.Message{Payload: make([]byte, 2000)})
		if !errors.Is(err, producer.ErrBufferFull) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, producer.ErrUnknownOutcome) {
			t.Errorf("Write without room: %v", err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if got := len(s.payloads("a", 0)); got != 1000 {
			t.Errorf("%d stored", got)
		}
		if got := s.payloads("b", 0); got != nil {
			t.Errorf("%d messages stored that were refused", len(got))
		}
	})
}

func TestBatchErrorNamesTheMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{only: []string{"a"}}
		p := start(t, s, producer.WithMaxMessageBytes(100))
		msgs := messages(texts("m", 6))
		msgs[2].Payload = make([]byte, 101)
		msgs[4].Shard = 70_000
		msgs[5].Attributes = []producer.Attribute{{}}
		err := p.Write(t.Context(), "a", msgs...)
		batch := new(producer.BatchError)
		if !errors.As(err, &batch) || batch.Total != 6 || len(batch.Messages) != 3 {
			t.Fatalf("error is %v", err)
		}
		for i, want := range []struct {
			index int
			is    error
		}{{2, producer.ErrTooLarge}, {4, producer.ErrInvalid}, {5, producer.ErrInvalid}} {
			if got := batch.Messages[i]; got.Index != want.index || !errors.Is(got.Err, want.is) || !errors.Is(err, want.is) {
				t.Errorf("failure %d is %+v, want index %d: %v", i, got, want.index, want.is)
			}
		}
		size := new(producer.MessageTooLargeError)
		if !errors.As(err, &size) || size.Size != 101 || size.Limit != 100 {
			t.Errorf("the size error is %+v", size)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, []string{"m0", "m1", "m3"}) {
			t.Errorf("stored %q", got)
		}

		err = p.Write(t.Context(), "nowhere", messages(texts("m", 2))...)
		if !errors.Is(err, producer.ErrUnknownCategory) || errors.Is(err, producer.ErrUnknownOutcome) {
			t.Errorf("unknown category: %v", err)
		}
		why := new(producer.WriteError)
		if !errors.As(err, &why) || why.Shard != (producer.Shard{Category: "nowhere"}) || why.Attempts != 1 {
			t.Errorf("the write error is %+v", why)
		}
		if got := p.Stats().Dropped[producer.DropUnknownCategory]; got != 2 {
			t.Errorf("%d counted", got)
		}
	})
}

func TestWriteAtomic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithBatchBytes(4<<10), producer.WithMaxBufferedBytes(1<<20))
		p.Log("a", []byte("before"))
		payloads := texts("a long text that fills frames quickly ", 2000)
		r := make(chan error)
		go func() { r <- p.WriteAtomic(t.Context(), "a", 0, messages(payloads)...) }()
		synctest.Wait()
		p.Log("a", []byte("after"))
		if err := errors.Join(<-r, p.Flush(t.Context())); err != nil {
			t.Fatal(err)
		}
		got := s.messages("a")
		if len(got) != 2002 || got[0].payload != "before" || got[2001].payload != "after" {
			t.Fatalf("%d messages stored", len(got))
		}
		for i, m := range got[1:2001] {
			if m.payload != payloads[i] || m.frame != got[1].frame || !m.atomic {
				t.Fatalf("message %d of the batch is %+v", i, m)
			}
		}
		if got[0].atomic || got[2001].atomic || got[0].frame == got[1].frame || got[2001].frame == got[1].frame {
			t.Error("the batch's frame holds other messages")
		}

		// What does not fit is refused as a whole, with nothing sent.
		err := p.WriteAtomic(t.Context(), "b", 0, messages(texts(strings.Repeat("x", 1000), 1000))...)
		if !errors.Is(err, producer.ErrTooLarge) {
			t.Errorf("a batch over the memory bound: %v", err)
		}
		bad := messages(texts("m", 3))
		bad[1].Attributes = []producer.Attribute{{Name: "\xff"}}
		if err := p.WriteAtomic(t.Context(), "b", 0, bad...); !errors.Is(err, producer.ErrInvalid) {
			t.Errorf("a batch with an invalid message: %v", err)
		}
		if got := s.payloads("b", 0); got != nil {
			t.Errorf("stored %d", len(got))
		}
		if err := p.WriteAtomic(t.Context(), "b", 0); err != nil {
			t.Errorf("an empty batch: %v", err)
		}
	})
}

func TestAckLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithAck(producer.AckSpooled))
		levels := []producer.AckLevel{producer.AckNone, producer.AckCommitted, producer.AckSpooled}
		var want []string
		for i := range 30 {
			text := fmt.Sprint(i)
			want = append(want, text)
			p.WithCallAck(levels[i/2%3]).WriteAsync("a", &producer.Message{Payload: []byte(text)})
		}
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.payloads("a", 0); !slices.Equal(got, want) {
			t.Errorf("levels changed the order: %q", got)
		}
		if len(s.acks) != 15 || s.acks[0] != scribev1.AckLevel_ACK_LEVEL_NONE || s.acks[1] != scribev1.AckLevel_ACK_LEVEL_COMMITTED ||
			s.acks[2] != scribev1.AckLevel_ACK_LEVEL_SPOOLED {
			t.Errorf("levels asked for: %v", s.acks)
		}
		if err := p.Write(t.Context(), "a", producer.Message{}); err != nil || s.acks[15] != scribev1.AckLevel_ACK_LEVEL_SPOOLED {
			t.Errorf("the default is %v (%v)", s.acks[15], err)
		}
	})
	for _, a := range []producer.AckLevel{producer.AckNone, producer.AckSpooled, producer.AckCommitted} {
		if got, err := producer.ParseAckLevel(a.String()); got != a || err != nil {
			t.Errorf("%v parses as %v, %v", a, got, err)
		}
	}
	if _, err := producer.ParseAckLevel("all"); err == nil {
		t.Error("a level that does not exist was parsed")
	}
}

func TestInFlightIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: hold} }}
		p := start(t, s, producer.WithMaxInFlight(3), producer.WithLinger(0))
		for i := range 100 {
			p.Log(fmt.Sprintf("c%d", i), []byte("x"))
			synctest.Wait()
		}
		if s.running != 3 {
			t.Errorf("%d requests run", s.running)
		}
		close(hold)
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n, frames := s.count(); s.most != 3 || frames != 100 || n > 10 {
			t.Errorf("%d requests, %d at once, with %d frames", n, s.most, frames)
		}
	})
}

// Buffers follow the traffic: a category with little takes little memory, one with much sends large frames.
func TestFramesFollowTheTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithMaxBufferedBytes(16<<20))
		for _, size := range []int{100, 1000, 20_000} {
			category := fmt.Sprint(size)
			for i := range 4_000_000 / size {
				p.Log(category, slices.Repeat([]byte{byte(i)}, size))
			}
			if err := p.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, frames := s.count()
			s.frames = nil
			if got := len(s.payloads(category, 0)); got != 4_000_000/size || frames > 12 {
				t.Errorf("size %d: %d messages in %d frames", size, got, frames)
			}
		}
		synctest.Wait() // the senders have given back what they held
		p.Log("trickle", []byte("x"))
		if st := p.Stats(); st.Memory > 2<<10 {
			t.Errorf("one small message holds %d bytes", st.Memory)
		}
	})
}

func TestFramesPerRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithBatchBytes(4<<10), producer.WithFramesPerRequest(1))
		msgs := messages(texts(strings.Repeat("x", 500), 50))
		if err := p.Write(t.Context(), "a", msgs...); err != nil {
			t.Fatal(err)
		}
		if n, frames := s.count(); n != frames || frames < 5 {
			t.Errorf("%d requests for %d frames", n, frames)
		}
	})
}

func TestResult(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: hold} }}
		p := start(t, s)
		r := p.WriteAsync("a", &producer.Message{Payload: []byte("x"), Shard: 2})
		select {
		case <-r.Done():
			t.Fatal("done before it was sent")
		default:
		}
		if r.Err() != nil || r.Position() != (producer.Position{}) {
			t.Errorf("pending result: %v, %+v", r.Err(), r.Position())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx); !errors.Is(err, producer.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("stopped waiting: %v", err)
		}
		close(hold)
		if err := r.Wait(t.Context()); err != nil || r.Err() != nil {
			t.Fatal(err)
		}
		if got := r.Position(); got != (producer.Position{Shard: 3, LSN: 1}) {
			t.Errorf("position is %+v", got)
		}
		if err := r.Wait(ctx); err != nil {
			t.Errorf("a known outcome was not told because the context had ended: %v", err)
		}
		if r := p.WriteAsyncContext(ctx, "a", &producer.Message{Shard: record.MaxLogicalShard + 1}); !errors.Is(r.Err(), producer.ErrInvalid) {
			t.Errorf("a shard that cannot be: %v", r.Err())
		}
		p.LogMessage("a", &producer.Message{Payload: []byte("y"), Shard: 2})
		p.LogMessage("a", &producer.Message{Shard: record.MaxLogicalShard + 1})
		if err := p.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := s.payloads("a", 2); !slices.Equal(got, []string{"x", "y"}) || p.Stats().Dropped[producer.DropInvalid] != 1 {
			t.Errorf("stored %q, %+v", got, p.Stats())
		}
	})
}

func TestOptionsReportEveryViolation(t *testing.T) {
	_, err := producer.New("", producer.WithAck(9), producer.WithLinger(-1), producer.WithBatchBytes(1), producer.WithMaxBufferedBytes(1),
		producer.WithMaxInFlight(0), producer.WithFramesPerRequest(-1), producer.WithRequestTimeout(0), producer.WithDeliveryTimeout(-1),
		producer.WithBackoff(2, 1), producer.WithMaxMessageBytes(0), producer.WithClock(nil), producer.WithRandom(nil),
		producer.WithLogger(nil), producer.WithIdentity(producer.Identity{
			Sequences: map[producer.Shard]producer.Sequence{{Category: "-"}: {}},
		}))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, option := range []string{
		"WithAck", "WithLinger", "WithBatchBytes", "WithMaxBufferedBytes", "WithMaxInFlight", "WithFramesPerRequest", "WithRequestTimeout",
		"WithDeliveryTimeout", "WithBackoff", "WithMaxMessageBytes", "WithClock", "WithRandom", "WithLogger", "ID 0", "epoch 0", "invalid shard",
	} {
		if !strings.Contains(err.Error(), option) {
			t.Errorf("%s is not reported", option)
		}
	}
}
