package producer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// What a server samples out is an outcome of its own: no error, no retry, not acknowledged, and no hole for what follows.
func TestSampledOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault {
			return &fault{sample: func(h record.Header) bool { return h.FirstSequence%2 == 1 }}
		}}
		var (
			sampled []producer.Sampled
			acked   int
		)
		p, err := producer.New("", producer.WithService(s), producer.WithLinger(0),
			producer.WithOnSampled(func(d producer.Sampled) { sampled = append(sampled, d) }),
			producer.WithOnAck(func(a producer.Acked) { acked += a.Messages }),
			producer.WithOnDrop(func(d producer.Drop) { t.Errorf("dropped %+v", d) }))
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 10 {
			r := p.WriteAsync("web.access", &producer.Message{Payload: fmt.Appendf(nil, "message %d", i)})
			if err := r.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			at := r.Position()
			if at.Sampled != (i%2 == 1) || at.Sampled && at.LSN != 0 {
				t.Errorf("message %d is at %+v", i, at)
			}
			if !at.Sampled {
				want = append(want, fmt.Sprintf("message %d", i))
			}
		}
		if got := s.payloads("web.access", 0); !slices.Equal(got, want) {
			t.Errorf("stored are %q", got)
		}
		if requests, _ := s.count(); requests != 10 {
			t.Errorf("%d requests for 10 messages", requests)
		}
		if len(sampled) != 5 || sampled[0] != (producer.Sampled{Shard: producer.Shard{Category: "web.access"}, Messages: 1, Bytes: 9}) || acked != 5 {
			t.Errorf("hooks saw %+v and %d acknowledged", sampled, acked)
		}
		st := p.Stats()
		if st.Accepted != 10 || st.Acked != 5 || st.AckedBytes != 45 || st.Sampled != 5 || st.SampledBytes != 45 || st.Failed != 0 || st.Buffered != 0 || len(st.Dropped) != 0 {
			t.Errorf("stats are %+v", st)
		}
		if q := p.Identity().Sequences[producer.Shard{Category: "web.access"}]; q.Next != 10 {
			t.Errorf("the identity continues at %d", q.Next)
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s.check(t)
	})
}
