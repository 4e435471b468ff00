package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// open returns a consumer of a cell that begins with the earliest message.
func open(t testing.TB, c *cell, opts ...consumer.Option) *consumer.Consumer {
	t.Helper()
	opts = append([]consumer.Option{consumer.WithServices(c, c), consumer.WithStart(consumer.Earliest())}, opts...)
	r, err := consumer.New("", categoryName, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		c.check(t)
	})
	return r
}

// read yields the texts of the next n messages, or of all until the iteration ends, and the error that ended it.
func read(ctx context.Context, r *consumer.Consumer, n int) (texts []string, err error) {
	for rec, err := range r.Records(ctx) {
		if err != nil {
			return texts, err
		}
		if texts = append(texts, string(rec.Payload)); len(texts) == n {
			return texts, nil
		}
	}
	return texts, nil
}

func want(t testing.TB, got []string, err error, texts ...string) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	if !slices.Equal(got, texts) {
		t.Errorf("got %q, want %q", got, texts)
	}
}

// from is the option to start at a checkpoint.
func from(t testing.TB, text string) consumer.Option {
	t.Helper()
	s, err := consumer.Checkpoint(text)
	if err != nil {
		t.Fatal(err)
	}
	return consumer.WithStart(s)
}

func TestRecordsInMergedOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		a, b := shardID(0, 1), shardID(3, 2)
		c.add(a, "1", "2")
		c.add(b, "3")
		c.add(a, "4")
		c.add(b, "5", "6")
		r := open(t, c, consumer.WithUntilEnd())
		if r.Checkpoint() != "" || !r.Watermark().IsZero() || r.Lag() != 0 || r.Buffered() != 0 {
			t.Error("something is known before anything was read")
		}
		got, err := read(t.Context(), r, 0)
		want(t, got, err, "1", "2", "3", "4", "5", "6")
		if st := r.Stats(); st.Records != 6 || st.Bytes != 6 || st.Payloads != 4 || st.FetchedBytes == 0 || st.Gaps != 0 || st.Reconnects != 0 {
			t.Errorf("stats are %+v", st)
		}
	})
}

func TestRecordHasEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		var b record.Builder
		if err := b.Reset(nil, record.Envelope{Category: categoryName, Shard: 3, BaseTime: 5000}); err != nil {
			t.Fatal(err)
		}
		for _, m := range []record.Message{
			{Payload: []byte("plain")},
			{Payload: []byte("all"), Key: []byte("k"), Time: time.UnixMicro(77), Attributes: []record.Attribute{{Name: "a", Value: []byte("1")}}},
			{Key: []byte{}},
		} {
			if err := b.Append(&m); err != nil {
				t.Fatal(err)
			}
		}
		f, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		shard := shardID(3, 9)
		c.add(shard, "first")
		c.addFrames(shard, frame(3, "x"), f)
		n := 0
		for rec, err := range open(t, c, consumer.WithUntilEnd()).Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n < 3 {
				continue
			}
			persisted := time.UnixMicro(c.logs[shard].entries[1].time)
			if rec.LogicalShard != 3 || rec.Shard != shard || rec.LSN != 2 || rec.Index != n-2 || !rec.Persisted.Equal(persisted) {
				t.Errorf("record %d is at %+v", n, rec)
			}
			switch n {
			case 3:
				if rec.Key != nil || rec.Attributes != nil || rec.Time.UnixMicro() != 5000 || string(rec.Payload) != "plain" {
					t.Errorf("plain message: %+v", rec)
				}
			case 4:
				v, ok := rec.Attributes.Get("a")
				if string(rec.Key) != "k" || rec.Time.UnixMicro() != 77 || !ok || string(v) != "1" || rec.Attributes.Len() != 1 {
					t.Errorf("full message: %+v", rec)
				}
			case 5:
				if rec.Key == nil || len(rec.Key) != 0 || len(rec.Payload) != 0 {
					t.Errorf("empty key: %+v", rec)
				}
			}
		}
		if n != 5 {
			t.Errorf("%d records", n)
		}
	})
}

func TestStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		c.add(shard, "1")
		c.add(shard, "2", "3")
		at := time.UnixMicro(c.logs[shard].entries[1].time)

		got, err := read(t.Context(), open(t, c, consumer.WithStart(consumer.At(at)), consumer.WithUntilEnd()), 0)
		want(t, got, err, "2", "3")
		got, err = read(t.Context(), open(t, c, consumer.WithStart(consumer.At(at.Add(time.Hour))), consumer.WithUntilEnd()), 0)
		want(t, got, err)

		latest := open(t, c, consumer.WithStart(consumer.Latest()))
		go func() {
			synctest.Wait()
			c.add(shard, "4")
		}()
		got, err = read(t.Context(), latest, 1)
		want(t, got, err, "4")

		// Reading on continues; it does not start again.
		go func() {
			synctest.Wait()
			c.add(shard, "5")
			c.add(shardID(0, 2), "6") // a new shard is read from its beginning
		}()
		got, err = read(t.Context(), latest, 2)
		want(t, got, err, "5", "6")
	})
}

func TestCheckpointIsExact(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.create(shardID(1, 1)) // a shard without a message has a position too
		c.add(shardID(0, 1), "1", "2", "3")
		c.addFrames(shardID(0, 2), frame(0, "4", "5"), frame(0, "6"))
		c.add(shardID(0, 1), "7")
		all := []string{"1", "2", "3", "4", "5", "6", "7"}
		for n := 1; n <= len(all); n++ {
			r := open(t, c, consumer.WithUntilEnd())
			var checkpoint string
			i := 0
			for _, err := range r.Records(t.Context()) {
				if err != nil {
					t.Fatal(err)
				}
				if i++; i == n {
					checkpoint = r.Checkpoint() // from inside the loop
					break
				}
			}
			if again := r.Checkpoint(); again != checkpoint {
				t.Errorf("after %d messages the checkpoint is %s inside the loop and %s behind it", n, checkpoint, again)
			}
			got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), from(t, checkpoint)), 0)
			want(t, got, err, all[n:]...)
			got, err = read(t.Context(), r, 0) // the same consumer goes on
			want(t, got, err, all[n:]...)
		}
		// Before anything is read, a consumer from a checkpoint has just that.
		r := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 4); err != nil {
			t.Fatal(err)
		}
		if text := r.Checkpoint(); open(t, c, from(t, text)).Checkpoint() != text {
			t.Error("a checkpoint changed by being used")
		}
		// Shards that appear afterwards are read from their beginning.
		r = open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		c.add(shardID(5, 5), "8")
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), from(t, r.Checkpoint())), 0)
		want(t, got, err, "8")
	})
}

func TestCheckpointOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "1")
		r := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		text := r.Checkpoint()
		if _, err := consumer.Checkpoint(text[:len(text)-1]); !errors.Is(err, consumer.ErrCheckpoint) {
			t.Errorf("a cut checkpoint: %v", err)
		}
		if _, err := consumer.New("", "another", from(t, text)); !errors.Is(err, consumer.ErrCheckpoint) {
			t.Errorf("a checkpoint of another category: %v", err)
		}
		c.ids = 8
		if _, err := read(t.Context(), open(t, c, from(t, text)), 0); !errors.Is(err, consumer.ErrCheckpoint) {
			t.Errorf("a category that was made again: %v", err)
		}
	})
}

func TestUntilEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd()), 0) // no shard at all
		want(t, got, err)
		c.add(shardID(0, 1), "1")
		c.add(shardID(0, 2), "2")
		c.perMessage = 1
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if m.GetOpened() != nil { // after the ends are known, before anything is sent
				c.add(shardID(0, 1), "late")
				c.add(shardID(0, 3), "late, in a new shard")
				c.seal(shardID(0, 2))
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		r := open(t, c, consumer.WithUntilEnd())
		got, err = read(t.Context(), r, 0)
		want(t, got, err, "1", "2")
		c.onStream = nil
		got, err = read(t.Context(), r, 0)
		want(t, got, err, "late", "late, in a new shard")
	})
}

func TestLogicalShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		for i := range 4 {
			c.add(shardID(uint16(i), 1), fmt.Sprint(i))
		}
		all := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), all, 0); err != nil {
			t.Fatal(err)
		}
		r := open(t, c, consumer.WithUntilEnd(), consumer.WithLogicalShards(1, 3))
		got, err := read(t.Context(), r, 0)
		want(t, got, err, "1", "3")
		for i := range 4 {
			c.add(shardID(uint16(i), 1), fmt.Sprint(10+i))
		}
		got, err = read(t.Context(), open(t, c, consumer.WithUntilEnd(), consumer.WithLogicalShards(2), from(t, all.Checkpoint())), 0)
		want(t, got, err, "12")
		for _, start := range c.starts {
			for _, p := range start.GetResume() {
				if l := uint32(record.ShardID(p.GetShard()).Logical()); len(start.GetLogicalShards()) > 0 && !slices.Contains(start.GetLogicalShards(), l) {
					t.Errorf("resumes logical shard %d, which is not read", l)
				}
			}
		}
	})
}

// TestResumeSaysHowFarItCame: a stream that resumes says until when its reader knows the logs, by its checkpoint and by what it has received since: of
// logs that were written later, and that nobody lists any more, it missed messages.
func TestResumeSaysHowFarItCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "1", "2")
		first := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), first, 0); err != nil {
			t.Fatal(err)
		}
		cp, err := checkpoint.Parse(first.Checkpoint())
		if err != nil || cp.Watermark == 0 {
			t.Fatalf("%+v, %v", cp, err)
		}
		if got := c.starts[0].GetKnownUntil(); got != 0 {
			t.Errorf("a reader that begins says that it has reached %d", got)
		}
		got, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), from(t, first.Checkpoint())), 0)
		want(t, got, err)
		if got := c.starts[len(c.starts)-1].GetKnownUntil(); got != cp.Watermark {
			t.Errorf("a reader that resumes says that it has reached %d, its checkpoint says %d", got, cp.Watermark)
		}
	})
	// The stream's watermark is of the logs that it knows, and may be ahead of the time until which it knows them all. Its reader resumes from
	// that time, and so does who has its checkpoint.
	synctest.Test(t, func(t *testing.T) {
		const unknown = 700 // microseconds
		c := newCell()
		c.add(shardID(0, 1), "1", "2")
		c.onStream = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if e := m.GetEntries(); e.GetWatermark() > 0 {
				e.KnownUntil = e.GetWatermark() - unknown
			}
			if b := m.GetHeartbeat(); b.GetWatermark() > 0 {
				b.KnownUntil = b.GetWatermark() - unknown
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		r := open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		cp, err := checkpoint.Parse(r.Checkpoint())
		if err != nil || cp.Watermark != r.Watermark().UnixMicro()-unknown {
			t.Errorf("the checkpoint says %d, the watermark is %d: %v", cp.Watermark, r.Watermark().UnixMicro(), err)
		}
		if _, err := read(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		if got := c.starts[len(c.starts)-1].GetKnownUntil(); got != cp.Watermark {
			t.Errorf("a reader that goes on says that it has reached %d, its checkpoint says %d", got, cp.Watermark)
		}
	})
}

// TestRemovedLogBeginsAtItsEnd: a reader that meets a log which had been removed before is at the log's end of then. It does not resume at the first LSN,
// from where everything would be missing, and it hears of no gap.
func TestRemovedLogBeginsAtItsEnd(t *testing.T) {
	for name, breaks := range map[string]bool{"the stream goes on": false, "it breaks before the gap": true} {
		synctest.Test(t, func(t *testing.T) {
			c := newCell()
			shard := shardID(0, 1)
			for i := range 6 {
				c.add(shard, fmt.Sprint(i))
			}
			c.trim(shard, 5)
			c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
				all := []*scribev1.StreamResponse{m}
				if o := m.GetOpened(); o != nil && n == 1 { // as the server tells of it: the log is read from its first LSN, and goes on after a gap
					o.Shards[0].Lsn, o.Shards[0].Origin = 1, 5
					if breaks {
						return all, nil
					}
					all = append(all, &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{
						Shard: uint64(shard), From: 1, To: 5, Reason: scribev1.Reason_REASON_TRIMMED, BeforeOrigin: true,
					}}})
				} else if breaks && n == 1 {
					return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "broken")
				}
				return all, nil
			}
			r := open(t, c, consumer.WithUntilEnd())
			got, err := read(t.Context(), r, 0)
			want(t, got, err, "4", "5")
			if n := r.Stats().Gaps; n != 0 {
				t.Errorf("%s: %d gaps", name, n)
			}
			for _, s := range c.starts[1:] {
				if len(s.GetResume()) != 1 || s.GetResume()[0].GetLsn() != 5 {
					t.Errorf("%s: it resumes at %v", name, s.GetResume())
				}
			}
		})
	}
}

func TestEndsOfAnIteration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "1", "2")
		r := open(t, c)

		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		mine := errors.New("enough")
		texts, err := []string(nil), error(nil)
		for rec, rerr := range r.Records(ctx) {
			if rerr != nil {
				err = rerr
				break
			}
			texts = append(texts, string(rec.Payload))
			cancel(mine)
			for _, err := range r.Records(t.Context()) {
				if !errors.Is(err, consumer.ErrBusy) {
					t.Errorf("a second iteration: %v", err)
				}
			}
		}
		if !errors.Is(err, mine) || len(texts) < 1 {
			t.Errorf("cancelled: %q, %v", texts, err)
		}

		// A caller who waits is woken by Close, and one who closes inside the loop is not stuck.
		r = open(t, c)
		done := make(chan error)
		go func() {
			_, err := read(t.Context(), r, 0)
			done <- err
		}()
		synctest.Wait()
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; !errors.Is(err, consumer.ErrClosed) {
			t.Errorf("closed while waiting: %v", err)
		}
		if _, err := read(t.Context(), r, 0); !errors.Is(err, consumer.ErrClosed) {
			t.Errorf("reading after Close: %v", err)
		}
		r = open(t, c)
		for _, err := range r.Records(t.Context()) {
			if errors.Is(err, consumer.ErrClosed) {
				break
			}
			if err := errors.Join(err, r.Close()); err != nil {
				t.Error(err)
			}
		}

		_, err = consumer.New("", "-")
		if err == nil {
			t.Error("a wrong name was taken")
		}
		other, err := consumer.New("", "another", consumer.WithServices(c, c))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(t.Context(), other, 0); !errors.Is(err, consumer.ErrUnknownCategory) {
			t.Errorf("a category that does not exist: %v", err)
		}
	})
}

// The memory of the last record stays valid when the loop is left.
func TestLastRecordSurvivesTheLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "one", "two")
		for range 10 {
			c.add(shardID(0, 1), "xxx", "yyy")
		}
		r := open(t, c, consumer.WithUntilEnd())
		var kept consumer.Record
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			kept = rec
			break
		}
		if _, err := read(t.Context(), r, 0); err != nil {
			t.Fatal(err)
		}
		if string(kept.Payload) != "one" {
			t.Errorf("it became %q", kept.Payload)
		}
	})
}

func TestLagAndWatermark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		shard := shardID(0, 1)
		c.add(shard, "1", "2", "3")
		c.add(shard, "4")
		r := open(t, c, consumer.WithHeartbeat(100*time.Millisecond))
		n := 0
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n++
			synctest.Wait()
			if got := r.Buffered(); n <= 4 && got != 4-n {
				t.Errorf("%d messages are buffered after %d", got, n)
			}
			if n < 4 {
				continue
			}
			if string(rec.Payload) == "5" {
				break
			}
			go func() {
				<-time.After(10 * time.Second)
				c.mu.Lock()
				c.clock = time.Now().UnixMicro()
				c.mu.Unlock()
				<-time.After(time.Second)
				if w := time.Since(r.Watermark()); w > 1200*time.Millisecond || w < 900*time.Millisecond || r.Lag() != w {
					t.Errorf("the watermark is %v old, the lag %v", w, r.Lag())
				}
				c.add(shard, "5")
			}()
		}
	})
}

func TestOptionsReportEveryViolation(t *testing.T) {
	_, err := consumer.New("", "no name", consumer.WithStart(consumer.Start{}), consumer.WithWindow(-1), consumer.WithLogicalShards(70_000),
		consumer.WithPrefetchBytes(1), consumer.WithConcurrency(0), consumer.WithRequestTimeout(0), consumer.WithHeartbeat(0),
		consumer.WithRetryTimeout(-1), consumer.WithBackoff(2, 1), consumer.WithDamage(9), consumer.WithName(strings.Repeat("x", 256)),
		consumer.WithClock(nil), consumer.WithRandom(nil), consumer.WithLogger(nil), consumer.WithServices(newCell(), nil))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, option := range []string{
		"category", "WithStart", "WithWindow", "WithLogicalShards", "WithPrefetchBytes", "WithConcurrency", "WithRequestTimeout",
		"WithHeartbeat", "WithRetryTimeout", "WithBackoff", "WithDamage", "WithName", "WithClock", "WithRandom", "WithLogger", "WithServices",
	} {
		if !strings.Contains(err.Error(), option) {
			t.Errorf("%s is not reported", option)
		}
	}
}
