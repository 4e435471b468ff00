package producer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// A batch is taken in order over shards, lingers for company, and its results name the messages that failed.
func TestWriteBatchAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		p := start(t, s, producer.WithLinger(10*time.Millisecond), producer.WithMaxMessageBytes(100))
		var msgs []producer.Message
		want := map[uint32][]string{}
		for i := range 50 {
			m := producer.Message{Payload: fmt.Appendf(nil, "message %d", i), Shard: uint32(i / 7 % 3)}
			if i == 20 || i == 21 {
				m.Payload = make([]byte, 101)
			} else {
				want[m.Shard] = append(want[m.Shard], string(m.Payload))
			}
			msgs = append(msgs, m)
		}
		b := p.WriteBatchAsync(t.Context(), "web.access", msgs...)
		synctest.Wait()
		if n, _ := s.count(); n != 0 {
			t.Fatalf("%d requests before the linger ended", n)
		}
		err := b.Wait(t.Context())
		batch := new(producer.BatchError)
		if !errors.As(err, &batch) || batch.Total != 50 || len(batch.Messages) != 2 || batch.Messages[0].Index != 20 || batch.Messages[1].Index != 21 ||
			!errors.Is(err, producer.ErrTooLarge) {
			t.Errorf("error is %v", err)
		}
		for shard, payloads := range want {
			if got := s.payloads("web.access", shard); !slices.Equal(got, payloads) {
				t.Errorf("shard %d has %q", shard, got)
			}
		}
		i := 0
		for r := range b.Results() {
			if failed := i == 20 || i == 21; (r.Err() != nil) != failed || (r.Position().LSN == 0) != failed {
				t.Errorf("message %d: %v at %+v", i, r.Err(), r.Position())
			}
			i++
		}
		if i != 50 {
			t.Errorf("%d results for 50 messages", i)
		}
		if n, frames := s.count(); n != 1 || frames != 3 {
			t.Errorf("%d requests with %d frames, want one frame a shard in one request", n, frames)
		}
	})
}

// A batch that is larger than the memory is taken as room comes free, and what was not taken says so when the context ends.
func TestWriteBatchAsyncWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		s := &server{fault: func(int, *scribev1.WriteRequest) *fault { return &fault{wait: hold} }}
		p := start(t, s, producer.WithMaxBufferedBytes(256<<10), producer.WithBatchBytes(16<<10), producer.WithLinger(0))
		msgs := make([]producer.Message, 100)
		for i := range msgs {
			msgs[i].Payload = make([]byte, 8<<10)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		b := p.WriteBatchAsync(ctx, "a", msgs...)
		close(hold)
		err := b.Wait(t.Context())
		batch := new(producer.BatchError)
		if !errors.As(err, &batch) || !errors.Is(err, producer.ErrBufferFull) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v", err)
		}
		stored := len(s.payloads("a", 0))
		if stored == 0 || stored+len(batch.Messages) != 100 || batch.Messages[0].Index != stored {
			t.Errorf("%d are stored, %d failed from %d on", stored, len(batch.Messages), batch.Messages[0].Index)
		}
		st := p.Stats()
		if st.Accepted != uint64(stored) || st.Refused != uint64(100-stored) {
			t.Errorf("stats are %+v", st)
		}
	})
}
