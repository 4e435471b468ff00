package consumer_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/apache/arrow-go/v18/arrow/array"
	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// plan is a log and a way of reading it: in pieces, with new messages, new shards and faults in between.
type plan struct {
	pieces  []piece
	faults  []int // of each message of each stream
	fetches []int // of each fetch
	opts    []consumer.Option
	per     int
}

type piece struct {
	add  []addition
	read int // messages; 0 = until the end
	// fresh goes on with a new consumer from the checkpoint's text, batches reads batches.
	fresh, batches bool
}

type addition struct {
	shard  int
	frames []int // messages in each
	size   int
}

func drawPlan(t *rapid.T) plan {
	addition := rapid.Custom(func(t *rapid.T) addition {
		return addition{
			shard:  rapid.IntRange(0, 5).Draw(t, "shard"),
			frames: rapid.SliceOfN(rapid.IntRange(1, 5), 1, 3).Draw(t, "frames"),
			size:   rapid.SampledFrom([]int{0, 10, 5000, 40_000}).Draw(t, "size"),
		}
	})
	return plan{
		pieces: rapid.SliceOfN(rapid.Custom(func(t *rapid.T) piece {
			return piece{
				add:     rapid.SliceOfN(addition, 0, 8).Draw(t, "add"),
				read:    rapid.IntRange(0, 12).Draw(t, "read"),
				fresh:   rapid.Bool().Draw(t, "fresh"),
				batches: rapid.Bool().Draw(t, "batches"),
			}
		}), 1, 8).Draw(t, "pieces"),
		faults:  rapid.SliceOfN(rapid.IntRange(0, 9), 0, 30).Draw(t, "faults"),
		fetches: rapid.SliceOfN(rapid.IntRange(0, 8), 0, 30).Draw(t, "fetches"),
		per:     rapid.IntRange(1, 10).Draw(t, "per_message"),
		opts: []consumer.Option{
			consumer.WithPrefetchBytes(rapid.SampledFrom([]int64{64 << 10, 1 << 20}).Draw(t, "prefetch")),
			consumer.WithConcurrency(rapid.IntRange(1, 4).Draw(t, "concurrency")),
		},
	}
}

// cell builds the servers of a plan.
func (p *plan) cell() *cell {
	c := newCell()
	c.perMessage = p.per
	sent, lost := 0, 0
	c.onStream = func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error) {
		if n == lost {
			return nil, errBroken
		}
		if sent++; sent <= len(p.faults) {
			switch p.faults[sent-1] {
			case 0:
				return nil, errBroken
			case 1:
				return []*scribev1.StreamResponse{m, nil}, nil // breaks after it arrived
			case 2:
				lost = n // it never arrives, nor does anything behind it
				return nil, nil
			case 3:
				return []*scribev1.StreamResponse{m, {Step: &scribev1.StreamResponse_Evicted{Evicted: &scribev1.StreamEvicted{}}}, nil}, nil
			}
		}
		return []*scribev1.StreamResponse{m}, nil
	}
	corrupted := 0
	c.onFetch = func(n int, _ *scribev1.FetchRequest, res *scribev1.FetchResponse) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if n <= len(p.fetches) {
			last := len(res.GetPayloads()) - 1
			switch p.fetches[n-1] {
			case 0:
				return errBroken
			case 1:
				res.Payloads = res.Payloads[:last/2+1]
			case 2:
				if corrupted++; corrupted <= 2 { // the third time it is taken for good
					res.Payloads[last].Data[0] ^= 1
				}
			case 3:
				res.Payloads[last] = &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_OVERLOADED}}
			}
		}
		return nil
	}
	return c
}

// run reads the log by the plan, and says what did not hold.
func (p *plan) run(t *testing.T) error {
	c := p.cell()
	opts := append(p.opts, consumer.WithServices(breaking{c}, c), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	r, err := consumer.New("", categoryName, opts...)
	if err != nil {
		return err
	}
	var (
		written = map[int][]string{} // by shard
		seen    = map[int][]string{}
		n       = 0
	)
	saw := func(shard record.ShardID, text string) {
		seen[int(shard.Writer())] = append(seen[int(shard.Writer())], text)
	}
	pieces := append(slices.Clone(p.pieces), piece{})
	for i, pc := range pieces {
		for _, a := range pc.add {
			var frames [][]byte
			for _, count := range a.frames {
				var texts []string
				for range count {
					n++
					texts = append(texts, fmt.Sprintf("%d.%0*d", n, a.size, 0))
				}
				frames = append(frames, frame(uint32(a.shard%2), texts...))
				written[a.shard] = append(written[a.shard], texts...)
			}
			c.addFrames(shardID(uint16(a.shard%2), uint16(a.shard)), frames...)
		}
		if text := r.Checkpoint(); pc.fresh && text != "" {
			if r, err = consumer.New("", categoryName, append(opts, from(t, text))...); err != nil {
				return err
			}
		}
		read := 0
		if pc.batches && i < len(pieces)-1 {
			for batch, err := range columns.Batches(t.Context(), r) {
				if err != nil {
					return fmt.Errorf("piece %d: %w", i, err)
				}
				shards, payloads := batch.Column(3).(*array.Uint64), batch.Column(5).(*array.Binary)
				for row := range int(batch.NumRows()) {
					saw(record.ShardID(shards.Value(row)), string(payloads.Value(row)))
				}
				if read++; read == pc.read {
					break
				}
			}
			continue
		}
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				return fmt.Errorf("piece %d: %w", i, err)
			}
			saw(rec.Shard, string(rec.Payload))
			if read++; read == pc.read {
				break
			}
		}
	}
	for shard := range 6 {
		if !slices.Equal(seen[shard], written[shard]) {
			return fmt.Errorf("shard %d: read %.5q of %.5q", shard, seen[shard], written[shard])
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.wrong) > 0 {
		return fmt.Errorf("the servers complain: %q", c.wrong)
	}
	return r.Close()
}

// Whatever breaks, and wherever the reader stops and goes on: nothing is repeated and nothing skipped.
func TestNothingRepeatedNothingSkipped(t *testing.T) {
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

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows, err := columnar.FromFrames(frame(0, "x", "y", "z"), columnar.Meta{})
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Release()
		body, err := columnar.EncodeIPC(nil, rows)
		if err != nil {
			t.Fatal(err)
		}
		arrowFrame, err := record.AppendArrowFrame(nil, record.Envelope{Category: categoryName}, 3, body)
		if err != nil {
			t.Fatal(err)
		}
		c := newCell()
		c.addFrames(shardID(0, 1), frame(0, "1", "2"), frame(0, "3"), arrowFrame, frame(0, "4"))
		c.addFrames(shardID(0, 1), arrowFrame)
		c.addFrames(shardID(0, 1), frame(0, "5"), arrowFrame)

		r := open(t, c, consumer.WithUntilEnd())
		got, err := read(t.Context(), r, 0) // rows up to the Arrow batch
		want(t, got, nil, "1", "2", "3")
		if !errors.Is(err, consumer.ErrColumnar) {
			t.Errorf("records of an Arrow batch: %v", err)
		}
		if got, err := read(t.Context(), r, 0); got != nil || !errors.Is(err, consumer.ErrColumnar) {
			t.Errorf("again: %q, %v", got, err)
		}
		var sizes []int64
		for batch, err := range columns.Batches(t.Context(), r) { // from there on
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, batch.NumRows())
			if offsets := batch.Column(4).(*array.Uint64); len(sizes) == 2 {
				if lsn, index := columnar.SplitOffset(offsets.Value(0)); lsn != 1 || index != 6 {
					t.Errorf("the rows behind the batch begin at LSN %d, message %d", lsn, index)
				}
			}
		}
		if !slices.Equal(sizes, []int64{3, 1, 3, 1, 3}) {
			t.Errorf("batches of %v rows", sizes)
		}

		// A batch that was begun as records is cut; one that is kept stays valid.
		r = open(t, c, consumer.WithUntilEnd())
		if _, err := read(t.Context(), r, 1); err != nil {
			t.Fatal(err)
		}
		var kept []string
		sizes = nil
		for batch, err := range columns.Batches(t.Context(), r) {
			if err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, batch.NumRows())
			if len(sizes) == 2 {
				batch.Retain()
				defer func() {
					for i := range 3 {
						kept = append(kept, string(batch.Column(5).(*array.Binary).Value(i)))
					}
					batch.Release()
					want(t, kept, nil, "x", "y", "z")
				}()
			}
			if next := r.Checkpoint(); len(sizes) == 3 {
				again, err := read(t.Context(), open(t, c, consumer.WithUntilEnd(), from(t, next)), 0)
				if again != nil || !errors.Is(err, consumer.ErrColumnar) {
					t.Errorf("behind the third batch: %q, %v", again, err)
				}
			}
		}
		if !slices.Equal(sizes, []int64{2, 3, 1, 3, 1, 3}) {
			t.Errorf("batches of %v rows", sizes)
		}

		// What is in an Arrow frame is checked as all else.
		bad := slices.Clone(body)
		for i := range bad[8:] {
			bad[8+i] = 0xff
		}
		badFrame, err := record.AppendArrowFrame(nil, record.Envelope{Category: categoryName}, 3, bad)
		if err != nil {
			t.Fatal(err)
		}
		short, err := record.AppendArrowFrame(nil, record.Envelope{Category: categoryName}, 4, body)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range [][]byte{badFrame, short} {
			c := newCell()
			c.addFrames(shardID(0, 1), f)
			for _, err := range columns.Batches(t.Context(), open(t, c, consumer.WithUntilEnd())) {
				if !errors.Is(err, consumer.ErrDamaged) {
					t.Errorf("error is %v", err)
				}
			}
		}
	})
}
