package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// plan is a run of a producer: what is written, and what goes wrong with each request.
type plan struct {
	exactlyOnce bool
	ordered     bool
	steps       []step
	faults      []int
	delays      []time.Duration // of requests on their way
	frameFaults []int
	opts        []producer.Option
}

type step struct {
	stream int
	count  int
	size   int
	call   int // which method writes it
	pause  time.Duration
}

func drawPlan(t *rapid.T) plan {
	p := plan{exactlyOnce: rapid.Bool().Draw(t, "exactly_once"), ordered: rapid.Bool().Draw(t, "ordered")}
	p.steps = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) step {
		return step{
			stream: rapid.IntRange(0, 3).Draw(t, "stream"), count: rapid.IntRange(1, 20).Draw(t, "count"),
			size: rapid.SampledFrom([]int{0, 10, 700, 3000}).Draw(t, "size"), call: rapid.IntRange(0, 2).Draw(t, "call"),
			pause: rapid.SampledFrom([]time.Duration{0, 0, time.Millisecond, time.Second}).Draw(t, "pause"),
		}
	}), 1, 40).Draw(t, "steps")
	p.faults = rapid.SliceOfN(rapid.IntRange(0, 12), 0, 30).Draw(t, "faults")
	p.frameFaults = rapid.SliceOfN(rapid.IntRange(0, 8), 0, 30).Draw(t, "frame_faults")
	p.delays = rapid.SliceOfN(rapid.SampledFrom([]time.Duration{0, time.Millisecond, 20 * time.Millisecond, 300 * time.Millisecond}), 0, 30).Draw(t, "delays")
	p.opts = []producer.Option{
		producer.WithMaxBufferedBytes(rapid.SampledFrom([]int64{256 << 10, 4 << 20}).Draw(t, "memory")),
		producer.WithBatchBytes(rapid.SampledFrom([]int{4 << 10, 64 << 10}).Draw(t, "batch")),
		producer.WithMaxInFlight(rapid.IntRange(1, 5).Draw(t, "in_flight")),
		producer.WithLinger(rapid.SampledFrom([]time.Duration{0, 5 * time.Millisecond}).Draw(t, "linger")),
		producer.WithDeliveryTimeout(rapid.SampledFrom([]time.Duration{time.Second, time.Minute}).Draw(t, "delivery")),
		producer.WithRequestTimeout(2 * time.Second),
	}
	return p
}

// faultOf is what goes wrong with the n-th request. When the list is used up nothing does.
func (p *plan) faultOf(n int) *fault {
	f := &fault{}
	if n <= len(p.delays) {
		f.delay = p.delays[n-1]
	}
	if n <= len(p.faults) {
		switch p.faults[n-1] {
		case 0, 1:
			f.after = errLost
		case 2:
			f.before = errLost
		case 3:
			f.before = refusal(scribev1.Reason_REASON_OVERLOADED, 300*time.Millisecond)
		case 4:
			f.before = refusal(scribev1.Reason_REASON_INVALID, 0)
		case 5:
			f.wait = make(chan struct{}) // until the request's deadline
		}
	}
	if n <= len(p.frameFaults) {
		left := p.frameFaults[n-1]
		f.frame = func(record.Header) *scribev1.ErrorInfo {
			left--
			switch left {
			case 0:
				return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED}
			case 1:
				return &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_TOO_LARGE}
			}
			return nil
		}
	}
	return f
}

// run carries the plan out and says what did not hold.
func (p *plan) run(t *testing.T) (err error) {
	wrong := func(format string, args ...any) { err = errors.Join(err, fmt.Errorf(format, args...)) }
	s := &server{exactlyOnce: p.exactlyOnce, ordered: p.ordered, fault: func(n int, _ *scribev1.WriteRequest) *fault { return p.faultOf(n) }}
	var dropped atomic.Int64 // by the producer's goroutine, and by those that call Log
	w, perr := producer.New("", append(p.opts, producer.WithService(s), producer.WithOnDrop(func(d producer.Drop) { dropped.Add(int64(d.Messages)) }))...)
	if perr != nil {
		return perr
	}
	type sent struct {
		text string
		r    *producer.Result
	}
	var (
		written [4][]sent
		logged  int
	)
	for i, st := range p.steps {
		category, shard := fmt.Sprintf("c%d", st.stream/2), uint32(st.stream%2)
		msgs := messages(texts(fmt.Sprintf("%d.%0*d.", i, st.size, 0), st.count))
		for j := range msgs {
			msgs[j].Shard = shard
			m := &msgs[j]
			switch st.call {
			case 0:
				r := w.WriteAsyncContext(t.Context(), category, m)
				written[st.stream] = append(written[st.stream], sent{string(m.Payload), r})
			case 1:
				r := w.WriteAsync(category, m)
				written[st.stream] = append(written[st.stream], sent{string(m.Payload), r})
			case 2:
				w.LogMessage(category, m)
				logged++
			}
		}
		<-time.After(st.pause)
		if st := w.Stats(); st.Accepted != st.Acked+st.Sampled+st.Failed+st.Buffered || st.Memory > 4<<20 {
			wrong("stats are %+v", st)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if cerr := w.Close(ctx); cerr != nil {
		wrong("Close: %v", cerr)
	}
	for i, all := range written {
		stored := s.payloads(fmt.Sprintf("c%d", i/2), uint32(i%2))
		count := map[string]int{}
		for _, text := range stored {
			count[text]++
		}
		var acked []string
		for _, m := range all {
			n := count[m.text]
			switch e := m.r.Err(); {
			case e == nil && n == 0:
				wrong("%.20q was acknowledged and is lost", m.text)
			case e == nil && n > 1 && p.exactlyOnce:
				wrong("%.20q is stored %d times", m.text, n)
			case e != nil && !errors.Is(e, producer.ErrUnknownOutcome) && n > 0:
				wrong("%.20q failed for good and is stored: %v", m.text, e)
			case e != nil && n > 1 && p.exactlyOnce:
				wrong("%.20q has an unknown outcome and is stored %d times", m.text, n)
			}
			if m.r.Err() == nil {
				acked = append(acked, m.text)
			}
		}
		if p.exactlyOnce || p.ordered { // the order is that of the calls
			at, seen := 0, map[string]bool{}
			for _, text := range stored {
				if at < len(acked) && text == acked[at] && !seen[text] {
					at++
				}
				seen[text] = true
			}
			if at < len(acked) {
				wrong("stream %d: %.20q is out of order", i, acked[at])
			}
		}
	}
	st := w.Stats()
	if st.Buffered != 0 || st.Memory != 0 || st.BufferedBytes != 0 || st.Accepted != st.Acked+st.Failed {
		wrong("at the end the stats are %+v", st)
	}
	lost := uint64(0)
	for _, n := range st.Dropped {
		lost += n
	}
	if n := dropped.Load(); n != int64(lost) { //nolint:gosec // a few
		wrong("the hook saw %d losses, the stats %v", n, st.Dropped)
	}
	if s.wrong != nil {
		wrong("%w", s.wrong)
	}
	return err
}

// Whatever goes wrong: acknowledged is stored, failed is not, unknown at most once in an exactly_once category, in order, and
// everything is accounted for.
func TestPromises(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPlan(rt)
		var err error
		// The plan is drawn before, since a bubble is another goroutine.
		synctest.Test(t, func(t *testing.T) { err = p.run(t) })
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// Frames that are cut keep what is left of them.
func TestCutKeepsTheRest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		total := rapid.IntRange(2, 30).Draw(rt, "total")
		stored := rapid.IntRange(0, total).Draw(rt, "stored")
		size := rapid.SampledFrom([]int{0, 5, 2000}).Draw(rt, "size")
		synctest.Test(t, func(t *testing.T) {
			s := &server{exactlyOnce: true}
			shard := producer.Shard{Category: "a", Number: 3}
			id := producer.Identity{ID: 5, Epoch: 2, Sequences: map[producer.Shard]producer.Sequence{shard: {Epoch: 4, Next: 1000}}}
			msgs := messages(texts(fmt.Sprintf("%0*d.", size, 0), total))
			for i := range msgs {
				msgs[i].Shard = 3
			}
			for _, part := range [][]producer.Message{msgs[:stored], msgs} {
				p := start(t, s, producer.WithIdentity(id), producer.WithBatchBytes(8<<10))
				if err := p.Write(t.Context(), "a", part...); err != nil {
					t.Error(err)
				}
				if st := p.Stats(); st.Acked != uint64(len(part)) {
					t.Errorf("stats are %+v", st)
				}
			}
			if got := s.payloads("a", 3); !slices.Equal(got, texts(fmt.Sprintf("%0*d.", size, 0), total)) {
				t.Errorf("stored %d messages: %.200q", len(got), got)
			}
		})
	})
}
