package consumer_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// counts takes rows of counts. The answer to the first request is lost.
type counts struct {
	mu       sync.Mutex
	requests int
	seen     map[string]bool
	rows     []delivery.Row
	minutes  []int64
}

func (c *counts) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &scribev1.WriteResponse{}
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, err
		}
		res.Results = append(res.Results, &scribev1.FrameResult{})
		err := delivery.RowsOf(f.Bytes, func(r *delivery.Row, minute int64) error {
			if !c.seen[r.ID] {
				c.seen[r.ID] = true
				c.rows, c.minutes = append(c.rows, *r), append(c.minutes, minute)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if c.requests++; c.requests == 1 {
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "the answer was lost")
	}
	return res, nil
}

// What a reader's loop is given is counted by producer and minute, under the reader's name, and each message says where it comes from.
func TestDeliveryIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		numbered := func(producer, first uint64, minute int64, texts ...string) []byte {
			var b record.Builder
			err := b.Reset(nil, record.Envelope{
				Category: categoryName, BaseTime: minute * time.Minute.Microseconds(), Sequenced: true, Producer: producer, Epoch: 3, FirstSequence: first,
			})
			for _, text := range texts {
				if err == nil {
					err = b.AppendPayload([]byte(text))
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			f, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			return f
		}
		c.addFrames(shard, numbered(7, 10, 1, "a", "b"), numbered(8, 0, 1, "c"), numbered(7, 12, 2, "d", "e"))
		c.add(shard, "f") // without a number
		w := &counts{seen: map[string]bool{}}
		reader, err := consumer.New("", categoryName, consumer.WithServices(c, c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(),
			consumer.WithName("billing"), consumer.WithWriteService(w), consumer.WithDeliveryReports(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		read := func(most int) (got string) {
			for r, err := range reader.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if o := r.Origin; string(r.Payload) == "e" && (o.Producer != 7 || o.Epoch != 3 || o.Begun != 2*time.Minute.Microseconds() || r.Sequence != 13) {
					t.Errorf("it comes from %+v, sequence %d", o, r.Sequence)
				}
				if got += string(r.Payload); len(got) == most {
					break
				}
			}
			return got
		}
		if got := read(4); got != "abcd" { // in the middle of a frame
			t.Errorf("read %q", got)
		}
		<-time.After(5 * time.Second)
		if got := read(0); got != "ef" {
			t.Errorf("read %q", got)
		}
		if err := reader.Close(); err != nil {
			t.Error(err)
		}
		sum := map[delivery.Key]int64{}
		for i, r := range w.rows {
			producer, err := r.ProducerID()
			if err != nil || r.Hop != delivery.Reader || r.Reader != "billing" || r.Category != categoryName {
				t.Errorf("row %+v, %v", r, err)
			}
			sum[delivery.Key{Producer: producer, Minute: w.minutes[i]}] += r.Delivered
		}
		for key, want := range map[delivery.Key]int64{{Producer: 7, Minute: 1}: 2, {Producer: 8, Minute: 1}: 1, {Producer: 7, Minute: 2}: 2, {}: 1} {
			if sum[key] != want {
				t.Errorf("%d messages of %+v, want %d: %+v", sum[key], key, want, w.rows)
			}
		}
	})
}
