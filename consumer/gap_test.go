package consumer_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// steps walks an iteration to its end and writes down what it yields: texts, and gaps in short.
func steps(t *testing.T, r *consumer.Consumer) (out []string) {
	t.Helper()
	for rec, err := range r.Records(t.Context()) {
		gap := new(consumer.GapError)
		switch {
		case errors.As(err, &gap):
			out = append(out, fmt.Sprintf("%s %d+%d of %d (%t)", gap.Reason, gap.From, gap.Delivered, gap.Messages, gap.Counted))
		case err != nil:
			t.Fatal(err)
		default:
			out = append(out, string(rec.Payload))
		}
	}
	return out
}

// Pointers were sent, and retention removed the log and the objects before they were fetched: one explicit gap for each, with its
// counts, then what is left; and the stream's own gap where it had not come that far.
func TestRetentionOvertakesTheFetch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		for i := range 40 {
			c.add(shard, fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "c"))
		}
		var overtaken sync.Once
		c.onFetch = func(_ int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			overtaken.Do(func() { c.expire(shard, 38) })
			c.mu.Lock()
			defer c.mu.Unlock()
			// Of those that were asked for at the same time none is older; what is left may be among them.
			for i, raw := range req.GetPointers() {
				if c.payloads[string(raw)] == nil {
					res.Payloads[i] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING}}
				}
			}
			return nil
		}
		begun := time.Now()
		r := open(t, c, consumer.WithUntilEnd())
		got := steps(t, r)
		if d := time.Since(begun); d > time.Second {
			t.Errorf("it took %v", d)
		}
		lost, at := uint64(0), 1
		for len(got) > 9 {
			var reason string
			var from, delivered, messages int
			var counted bool
			if _, err := fmt.Sscanf(got[0], "%s %d+%d of %d (%t)", &reason, &from, &delivered, &messages, &counted); err != nil || reason != "trimmed" || from != at {
				t.Fatalf("%q: %v", got[0], err)
			}
			if counted {
				if messages != 3 {
					t.Errorf("%q", got[0])
				}
				at++
				lost++
			} else { // one gap for what the stream had not sent
				at = 38
			}
			got = got[1:]
		}
		if lost == 0 || at != 38 {
			t.Errorf("%d pointers lost, up to %d", lost, at)
		}
		want(t, got, nil, "37a", "37b", "37c", "38a", "38b", "38c", "39a", "39b", "39c")
		if c.streams > 6 {
			t.Errorf("%d streams: each lost payload asked anew", c.streams)
		}
	})
}

// A payload that was delivered in part and then removed leaves a gap of the rest.
func TestRetentionOvertakesTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		c.add(shard, "1", "2", "3", "4")
		c.add(shard, "5")
		r := open(t, c, consumer.WithUntilEnd())
		got, err := read(t.Context(), r, 1)
		want(t, got, err, "1")
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetEntries() != nil {
				c.expire(shard, 2)
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		var gap *consumer.GapError
		for _, err := range r.Records(t.Context()) {
			if gap == nil {
				if !errors.As(err, &gap) {
					t.Fatal(err)
				}
				break
			}
		}
		if gap == nil || gap.Delivered != 1 || gap.Messages != 3 || gap.Bytes == 0 || gap.Pointers() != 1 || !strings.Contains(gap.Error(), "LSN 1 to 1: trimmed, 3 messages") {
			t.Fatalf("the gap is %+v", gap)
		}
		want(t, steps(t, r), nil, "5")
	})
}

// The servers that could tell why an object is missing are away for a while: the answer waits for them.
func TestMissingWhileStreamsAreAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		c.add(shard, "1")
		c.add(shard, "2")
		c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			switch {
			case n == 1 && m.GetEntries() != nil:
				c.expire(shard, 2)
			case n == 3:
				return []*scribev1.StreamResponse{nil}, nil
			case n > 1 && n < 6:
				return nil, errBroken
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		r := open(t, c, consumer.WithUntilEnd(), consumer.WithServices(breaking{c}, c))
		want(t, steps(t, r), nil, "trimmed 1+0 of 1 (true)", "2")
	})
}

// report is a frame that tells of a loss.
func report(shard uint32, number uint64) ([]byte, loss.Report) {
	r := loss.Report{
		Reason: "full", Messages: 100 + number, Frames: 2, Bytes: 5000, Since: 1_709_208_000_000_000, Until: 1_709_208_001_000_000,
		By: loss.ByAgent, Run: "f00d", Number: number,
	}
	f, err := loss.AppendFrame(nil, categoryName, shard, 1000, &r)
	if err != nil {
		panic(err)
	}
	return f, r
}

// What an agent had to drop is told as a gap where the report stands, by both kinds of iteration, and once.
func TestDroppedUpstream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		first, rep := report(0, 1)
		second, _ := report(0, 2)
		third, _ := report(0, 3)
		c.addFrames(shard, frame(0, "1"), first, frame(0, "2", "3"), second)
		c.addFrames(shard, third)
		c.addFrames(shard, frame(0, "4"))
		all := []string{"1", "dropped 1+0 of 101 (true)", "2", "3", "dropped 1+0 of 102 (true)", "dropped 2+0 of 103 (true)", "4"}
		r := open(t, c, consumer.WithUntilEnd())
		want(t, steps(t, r), nil, all...)
		if st := r.Stats(); st.Gaps != 3 {
			t.Errorf("stats are %+v", st)
		}

		// From every checkpoint on, the rest.
		r = open(t, c, consumer.WithUntilEnd())
		done := 0
		for _, err := range r.Records(t.Context()) {
			gap := new(consumer.GapError)
			if errors.As(err, &gap) && done == 1 {
				if gap.From != 1 || gap.To != 1 || gap.Pointers() != 0 || gap.Bytes != 5000 || !reflect.DeepEqual(*gap.Report, rep) ||
					!strings.Contains(gap.Error(), "LSN 1: dropped, 101 messages (5000 bytes) (agent: full, 2024-02-29T12:00:00Z") {
					t.Errorf("the gap is %+v: %v", gap, gap)
				}
			}
			done++
			again := open(t, c, consumer.WithUntilEnd(), from(t, r.Checkpoint()))
			want(t, steps(t, again), nil, all[done:]...)
		}

		var rows []string
		r = open(t, c, consumer.WithUntilEnd())
		for batch, err := range columns.Batches(t.Context(), r) {
			gap := new(consumer.GapError)
			switch {
			case errors.As(err, &gap):
				rows = append(rows, fmt.Sprint(gap.Reason, gap.Messages))
			case err != nil:
				t.Fatal(err)
			default:
				rows = append(rows, fmt.Sprint(batch.NumRows()))
			}
			if r.Checkpoint() == "" {
				t.Error("no checkpoint")
			}
		}
		want(t, rows, nil, "1", "dropped101", "2", "dropped102", "dropped103", "1")
		// An iteration that was left at a report goes on behind it.
		r = open(t, c, consumer.WithUntilEnd())
		for _, err := range columns.Batches(t.Context(), r) {
			if err != nil {
				break
			}
		}
		want(t, steps(t, r), nil, all[2:]...)
	})
}

// What only looks like a report is a message.
func TestNoReport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		var b record.Builder
		marked := record.Message{Payload: []byte("mine"), Attributes: []record.Attribute{{Name: loss.Attribute, Value: []byte(loss.Version)}}}
		if err := errors.Join(b.Reset(nil, record.Envelope{Category: categoryName}), b.Append(&marked)); err != nil {
			t.Fatal(err)
		}
		f, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.addFrames(shardID(0, 1), f)
		want(t, steps(t, open(t, c, consumer.WithUntilEnd())), nil, "mine")
	})
}

// An atomic batch says where it ends, also to a reader that begins in its middle.
func TestAtomicBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		var b record.Builder
		if err := b.Reset(nil, record.Envelope{Category: categoryName, Atomic: true, SampleRate: 10}); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"a", "b", "c"} {
			if err := b.AppendPayload([]byte(text)); err != nil {
				t.Fatal(err)
			}
		}
		atomic, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		c.addFrames(shardID(0, 1), frame(0, "1"), atomic, frame(0, "2"))
		r := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 2); err != nil {
			t.Fatal(err)
		}
		var got []string
		for rec, err := range open(t, c, consumer.WithUntilEnd(), from(t, r.Checkpoint())).Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%s %t %d %d", rec.Payload, rec.Atomic, rec.BatchLeft, rec.SampleRate))
		}
		want(t, got, nil, "b true 1 10", "c true 0 10", "2 false 0 1")
	})
}
