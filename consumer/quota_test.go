package consumer_test

import (
	"context"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestSampledReads: what a quota for reading leaves out is passed over and counted, the rest carries the rate of its frame times that of
// its payload, and the position is after all of it.
func TestSampledReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		marked := frame(0, "marked")
		if err := record.SetSampleRate(marked, 5); err != nil {
			t.Fatal(err)
		}
		c.add(shard, "a", "b")
		c.add(shard, "left", "out")
		c.addFrames(shard, marked)
		c.add(shard, "out, too")
		pointerOf := func(lsn int) string { return string(c.logs[shard].entries[lsn-1].pointer) }
		c.onFetch = func(_ int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			if !req.GetAcceptsSamples() {
				t.Error("the consumer does not accept samples")
			}
			for i, p := range res.GetPayloads() {
				switch asked := string(req.GetPointers()[i]); asked {
				case pointerOf(2), pointerOf(4):
					res.Payloads[i] = &scribev1.Payload{SampledOut: true}
				case pointerOf(3):
					p.SampleRate = 3
				}
			}
			return nil
		}
		r := open(t, c, consumer.WithUntilEnd())
		rates := map[string]uint32{}
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			rates[string(rec.Payload)] = rec.SampleRate
		}
		if len(rates) != 3 || rates["a"] != 1 || rates["b"] != 1 || rates["marked"] != 15 {
			t.Errorf("rates %v", rates)
		}
		if s := r.Stats(); s.SampledOut != 3 || s.Records != 3 {
			t.Errorf("%d messages left out, %d delivered", s.SampledOut, s.Records)
		}
		c.onFetch = nil
		got, err := read(t.Context(), open(t, c, from(t, r.Checkpoint()), consumer.WithUntilEnd()), math.MaxInt)
		want(t, got, err)
	})
}

// TestRestOfAPayloadIsNotSampled: what follows messages that were delivered before is fetched whole.
func TestRestOfAPayloadIsNotSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "a", "b", "c")
		r := open(t, c)
		got, err := read(t.Context(), r, 1)
		want(t, got, err, "a")
		at := r.Checkpoint()
		c.onFetch = func(_ int, req *scribev1.FetchRequest, _ *scribev1.FetchResponse) error {
			if req.GetAcceptsSamples() {
				t.Error("the rest of a payload may be left out")
			}
			return nil
		}
		got, err = read(t.Context(), open(t, c, from(t, at)), 2)
		want(t, got, err, "b", "c")
	})
}

// TestThrottledReads: a consumer beyond a quota for reading comes back when it was told to, however long that goes on, and gets everything.
func TestThrottledReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		for _, text := range []string{"a", "b", "c", "d"} {
			c.add(shardID(0, 1), text)
		}
		begin := time.Now()
		c.onFetch = func(n int, _ *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			if n%3 != 0 {
				return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, 10*time.Second, "over the quota")
			}
			res.Payloads = res.GetPayloads()[:1]
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		got, err := read(ctx, open(t, c, consumer.WithRetryTimeout(5*time.Second)), 4)
		want(t, got, err, "a", "b", "c", "d")
		if d := time.Since(begin); d < 20*time.Second || d > 5*time.Minute {
			t.Errorf("it took %v", d)
		}
	})
}
