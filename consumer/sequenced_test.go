package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"scribe/consumer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
)

// sequencedCell is a cell whose category is sequenced.
type sequencedCell struct {
	*cell
	// sources and offsets are of the records of the sequenced log.
	sources []record.ShardID
	offsets []uint64
	next    uint64
	also    func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error)
}

func newSequencedCell(c *cell) *sequencedCell {
	s := &sequencedCell{cell: c, also: c.onStream}
	c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
		c.mu.Lock()
		for _, e := range m.GetEntries().GetEntries() {
			i := e.GetLsn() - 1
			e.SourceShard, e.SourceLsn, e.Offset = uint64(s.sources[i]), 100+i, s.offsets[i]
		}
		c.mu.Unlock()
		if s.also != nil {
			return s.also(n, m)
		}
		return []*scribev1.StreamResponse{m}, nil
	}
	return s
}

// sequence stores a payload of frames, of a logical shard.
func (s *sequencedCell) sequence(logical uint16, frames ...[]byte) {
	s.mu.Lock()
	s.sources = append(s.sources, shardID(logical, 1))
	s.offsets = append(s.offsets, s.next)
	for _, b := range frames {
		for f, err := range record.Split(b) {
			if err != nil {
				panic(err)
			}
			s.next += uint64(f.Count)
		}
	}
	s.mu.Unlock()
	s.addFrames(sequenced.Log(categoryID), frames...)
}

// atomicFrame makes a frame of texts that belong together.
func atomicFrame(logical uint32, texts ...string) []byte {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: categoryName, Shard: logical, BaseTime: 1000, Atomic: true}); err != nil {
		panic(err)
	}
	for _, t := range texts {
		if err := b.AppendPayload([]byte(t)); err != nil {
			panic(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return out
}

// show is a batch as a text: its identifier and its messages.
func show(b *consumer.SequencedBatch) string {
	text := fmt.Sprint(b.ID, ":")
	for i := range b.Records {
		text += " " + string(b.Records[i].Payload)
	}
	return text
}

// readBatches reads n batches, or all.
func readBatches(t *testing.T, r *consumer.Consumer, size consumer.BatchSize, n int) (out []string, err error) {
	t.Helper()
	for b, err := range r.SequencedBatches(t.Context(), size) {
		if err != nil {
			return out, err
		}
		for i := 1; i < len(b.Records); i++ {
			if b.Records[i].Offset <= b.Records[i-1].Offset {
				t.Errorf("message %d follows %d", b.Records[i].Offset, b.Records[i-1].Offset)
			}
		}
		if out = append(out, show(b)); len(out) == n {
			break
		}
	}
	return out, nil
}

func TestSequencedBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		c.sequence(0, frame(0, "a", "b", "c"), atomicFrame(0, "d", "e", "f"))
		c.sequence(3, frame(3, "g"))
		c.sequence(1, frame(1, "h", "i"), frame(1, "j", "k"))
		for _, test := range []struct {
			size consumer.BatchSize
			want []string
		}{
			{consumer.BatchSize{Messages: 1}, []string{"0: a", "1: b", "2: c", "3: d e f", "6: g", "7: h", "8: i", "9: j", "10: k"}},
			{consumer.BatchSize{Messages: 2}, []string{"0: a b", "2: c d e f", "6: g h", "8: i j"}},
			{consumer.BatchSize{Messages: 5}, []string{"0: a b c d e f", "6: g h i j k"}},
			{consumer.BatchSize{Messages: 11}, []string{"0: a b c d e f g h i j k"}},
			{consumer.BatchSize{Messages: 12}, nil},
			{consumer.BatchSize{Pointers: 1}, []string{"0: a b c d e f", "6: g", "7: h i j k"}},
			{consumer.BatchSize{Pointers: 2}, []string{"0: a b c d e f g"}},
			{consumer.BatchSize{Pointers: 2, Messages: 4}, []string{"0: a b c d e f", "6: g h i j"}},
			{consumer.BatchSize{Messages: 100, Bytes: 4}, []string{"0: a b c d e f", "6: g h i j"}},
		} {
			got, err := readBatches(t, open(t, c.cell, consumer.WithUntilEnd()), test.size, 0)
			if err != nil || !slices.Equal(got, test.want) {
				t.Errorf("%+v: %q, %v\nwant %q", test.size, got, err, test.want)
			}
		}
		// What did not fill a batch stays, with the place.
		r := open(t, c.cell, consumer.WithUntilEnd())
		if got, err := readBatches(t, r, consumer.BatchSize{Messages: 4}, 0); err != nil || len(got) != 2 {
			t.Fatalf("%q, %v", got, err)
		}
		got, err := read(t.Context(), open(t, c.cell, consumer.WithUntilEnd(), from(t, r.Checkpoint())), 0)
		want(t, got, err, "k")
		got, err = read(t.Context(), r, 0)
		want(t, got, err, "k")
	})
}

// TestSequencedSpan: a batch that is not full is yielded when nothing more of its span will come, and it is the same when all of it is
// there at once.
func TestSequencedSpan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		size := consumer.BatchSize{Messages: 100, Span: 10 * time.Millisecond}
		var live []string
		done := make(chan struct{})
		r := open(t, c.cell, consumer.WithHeartbeat(50*time.Millisecond))
		go func() {
			defer close(done)
			live, _ = readBatches(t, r, size, 3)
		}()
		c.sequence(0, frame(0, "a")) // each is a millisecond later
		c.sequence(0, frame(0, "b"))
		synctest.Wait()
		pass := func(ms int64) {
			c.mu.Lock()
			c.clock += 1000 * ms
			c.mu.Unlock()
			<-time.After(60 * time.Millisecond) // until it is told in a heartbeat
		}
		pass(4)
		c.sequence(0, frame(0, "c"))
		pass(2) // the tenth is not over
		c.sequence(0, frame(0, "d"))
		pass(20)
		c.sequence(0, frame(0, "e"))
		pass(9)
		c.sequence(0, frame(0, "f"))
		pass(10)
		<-done
		if want := []string{"0: a b c d", "4: e", "5: f"}; !slices.Equal(live, want) {
			t.Errorf("as it comes: %q, want %q", live, want)
		}
		again, err := readBatches(t, open(t, c.cell, consumer.WithHeartbeat(50*time.Millisecond)), size, 3)
		if err != nil || !slices.Equal(again, live) {
			t.Errorf("again: %q, %v, want %q", again, err, live)
		}
	})
}

// TestSequencedGaps: a gap ends the batch before it, and goes on behind it; so does damage that is passed over. Damage that is not keeps what
// would be in a batch with it.
func TestSequencedGaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		for _, text := range []string{"a", "b", "c", "d"} {
			c.sequence(0, frame(0, text))
		}
		c.also = func(_ int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
			if e := m.GetEntries().GetEntries(); len(e) > 0 && e[0].GetLsn() == 2 {
				return []*scribev1.StreamResponse{{Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{
					Shard: e[0].GetShard(), From: 2, To: 3, Reason: scribev1.Reason_REASON_TRIMMED,
				}}}}, nil
			}
			return []*scribev1.StreamResponse{m}, nil
		}
		c.perMessage = 1
		r := open(t, c.cell, consumer.WithUntilEnd())
		size := consumer.BatchSize{Messages: 2}
		got, err := readBatches(t, r, size, 0)
		if !errors.Is(err, consumer.ErrGap) || !slices.Equal(got, []string{"0: a"}) {
			t.Fatalf("%q, %v", got, err)
		}
		got, err = readBatches(t, r, size, 0)
		if err != nil || !slices.Equal(got, []string{"2: c d"}) {
			t.Fatalf("%q, %v", got, err)
		}

		c = newSequencedCell(newCell())
		for _, text := range []string{"a", "b", "c"} {
			c.sequence(0, frame(0, text))
		}
		c.onFetch = func(_ int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
			for i, raw := range req.GetPointers() {
				c.mu.Lock()
				lost := slices.Equal(raw, c.logs[sequenced.Log(categoryID)].entries[1].pointer)
				c.mu.Unlock()
				if lost {
					res.Payloads[i] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING}}
				}
			}
			return nil
		}
		r = open(t, c.cell, consumer.WithUntilEnd())
		got, err = readBatches(t, r, size, 0)
		damage := new(consumer.DamageError)
		if !errors.As(err, &damage) || got != nil || damage.Shard != shardID(0, 1) || damage.LSN != 101 {
			t.Fatalf("%q, %v", got, err)
		}
		if text, err := read(t.Context(), r, 1); err != nil || !slices.Equal(text, []string{"a"}) {
			t.Errorf("behind the damage: %q, %v", text, err)
		}
		r = open(t, c.cell, consumer.WithUntilEnd(), consumer.WithDamage(consumer.DamageSkip))
		got, err = readBatches(t, r, size, 0)
		if !errors.Is(err, consumer.ErrGap) || !slices.Equal(got, []string{"0: a"}) {
			t.Fatalf("%q, %v", got, err)
		}
	})
}

// TestSequencedReports: what an upstream says of messages that it dropped is a gap between batches, and counts as a message, so that it comes
// once.
func TestSequencedReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		dropped, _ := report(2, 1)
		c.sequence(2, frame(2, "a", "b"), dropped, atomicFrame(2, "c", "d", "e"))
		c.sequence(0, frame(0, "f"))
		r := open(t, c.cell, consumer.WithUntilEnd())
		size := consumer.BatchSize{Messages: 3}
		got, err := readBatches(t, r, size, 0)
		gap := new(consumer.GapError)
		if !errors.As(err, &gap) || gap.Reason != consumer.GapDropped || !slices.Equal(got, []string{"0: a b"}) {
			t.Fatalf("%q, %v", got, err)
		}
		var left []int
		for b, err := range open(t, c.cell, consumer.WithUntilEnd(), from(t, r.Checkpoint())).SequencedBatches(t.Context(), size) {
			if err != nil || show(b) != "3: c d e" {
				t.Fatalf("%v, %v", b, err)
			}
			for i := range b.Records {
				if !b.Records[i].Atomic || b.Records[i].SampleRate != 1 {
					t.Errorf("%+v", b.Records[i])
				}
				left = append(left, b.Records[i].BatchLeft)
			}
		}
		if !slices.Equal(left, []int{2, 1, 0}) {
			t.Errorf("of the atomic batch there are left %v", left)
		}
	})
}

// TestSequencedRecords: messages have their number and the logical shard that they were written to; those of others are passed over, also by
// the checkpoint.
func TestSequencedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		c.sequence(2, frame(2, "a", "b"))
		c.sequence(1, frame(1, "c"))
		c.sequence(2, frame(2, "d"))
		c.sequence(1, frame(1, "e"))
		var got []string
		for rec, err := range open(t, c.cell, consumer.WithUntilEnd()).Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprintf("%d %d %s", rec.Offset, rec.LogicalShard, rec.Payload))
		}
		if want := []string{"0 2 a", "1 2 b", "2 1 c", "3 2 d", "4 1 e"}; !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
		r := open(t, c.cell, consumer.WithUntilEnd(), consumer.WithLogicalShards(2))
		texts, err := read(t.Context(), r, 0)
		want(t, texts, err, "a", "b", "d")
		c.sequence(1, frame(1, "f"))
		c.sequence(2, frame(2, "g"))
		texts, err = read(t.Context(), open(t, c.cell, consumer.WithUntilEnd(), consumer.WithLogicalShards(2), from(t, r.Checkpoint())), 0)
		want(t, texts, err, "g")
		if n := c.fetched; n != 4+2+1 {
			t.Errorf("%d payloads were fetched", n)
		}
		batches, err := readBatches(t, open(t, c.cell, consumer.WithUntilEnd(), consumer.WithLogicalShards(2)), consumer.BatchSize{Messages: 2}, 0)
		if want := []string{"0: a b", "3: d g"}; err != nil || !slices.Equal(batches, want) {
			t.Errorf("%q, %v, want %q", batches, err, want)
		}
	})
}

// TestPassedIsBounded: what is passed over costs credits until the one who iterates has passed it, so a slow one is not flooded.
func TestPassedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSequencedCell(newCell())
		c.sequence(1, frame(1, "first"))
		for range 3000 {
			c.sequence(2, frame(2, "x"))
		}
		c.sequence(1, frame(1, "last"))
		r := open(t, c.cell, consumer.WithUntilEnd(), consumer.WithLogicalShards(1))
		var got []string
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			got = append(got, string(rec.Payload))
		}
		want(t, got, nil, "first", "last")
	})
}

func TestSequencedRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "a")
		if _, err := readBatches(t, open(t, c), consumer.BatchSize{Messages: 1}, 0); !errors.Is(err, consumer.ErrNotSequenced) {
			t.Errorf("a category that is not sequenced: %v", err)
		}
		for _, size := range []consumer.BatchSize{{}, {Bytes: 5}, {Messages: -1}, {Pointers: 1, Span: -1}} {
			if _, err := readBatches(t, open(t, c), size, 0); err == nil || errors.Is(err, consumer.ErrNotSequenced) {
				t.Errorf("%+v: %v", size, err)
			}
		}
	})
}

// Whatever breaks, wherever the reader stops and goes on from its checkpoint, and however the payloads come: the batches of a size are the
// ones that reading everything at once gives, with the same identifiers.
func TestBatchesAreRepeatable(t *testing.T) {
	type payload struct {
		logical uint16
		frames  []int // messages; below 0: atomic
	}
	rapid.Check(t, func(rt *rapid.T) {
		payloads := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) payload {
			return payload{
				logical: rapid.Uint16Range(0, 3).Draw(t, "logical"),
				frames:  rapid.SliceOfN(rapid.SampledFrom([]int{1, 2, 3, 5, -1, -2, -4}), 1, 3).Draw(t, "frames"),
			}
		}), 0, 25).Draw(rt, "payloads")
		size := consumer.BatchSize{
			Messages: rapid.IntRange(0, 7).Draw(rt, "messages"), Pointers: rapid.IntRange(0, 3).Draw(rt, "pointers"),
			Bytes: int64(rapid.SampledFrom([]int{0, 5, 20}).Draw(rt, "bytes")),
		}
		if size.Messages == 0 && size.Pointers == 0 {
			size.Messages = 1
		}
		p, pieces := drawPlan(rt), rapid.SliceOfN(rapid.IntRange(1, 4), 1, 20).Draw(rt, "pieces")
		synctest.Test(t, func(t *testing.T) {
			fill := func(c *sequencedCell) {
				n := 0
				for _, pl := range payloads {
					var frames [][]byte
					for _, count := range pl.frames {
						texts := make([]string, max(count, -count))
						for i := range texts {
							n++
							texts[i] = fmt.Sprint(n)
						}
						if count < 0 {
							frames = append(frames, atomicFrame(uint32(pl.logical), texts...))
						} else {
							frames = append(frames, frame(uint32(pl.logical), texts...))
						}
					}
					c.sequence(pl.logical, frames...)
				}
			}
			whole := newSequencedCell(newCell())
			fill(whole)
			want, err := readBatches(t, open(t, whole.cell, consumer.WithUntilEnd()), size, 0)
			if err != nil {
				t.Fatal(err)
			}
			broken := newSequencedCell(p.cell())
			fill(broken)
			opts := append(slices.Clone(p.opts), consumer.WithServices(breaking{broken.cell}, broken.cell), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
			var got []string
			for i := 0; ; i++ {
				r, err := consumer.New("", categoryName, opts...)
				if err != nil {
					t.Fatal(err)
				}
				n := pieces[i%len(pieces)]
				part, err := readBatches(t, r, size, n)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, part...)
				text := r.Checkpoint()
				if err := r.Close(); err != nil {
					t.Error(err)
				}
				if len(part) < n {
					break
				}
				opts = append(opts, from(t, text))
			}
			if !slices.Equal(got, want) {
				rt.Fatalf("in pieces: %q\nat once: %q", got, want)
			}
		})
	})
}
