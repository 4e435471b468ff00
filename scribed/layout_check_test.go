package scribed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"scribe/internal/base/buffers"
	scribev1 "scribe/proto/scribe/v1"
)

// TestLayoutsInOrder: when a producer goes on with another layout, and another shard, its messages are stored in its order all the same:
// those that the agent sends as they come, those that wait in its memory or its spool, and those that its next run finds. The upstream keeps no
// order of several shards.
func TestLayoutsInOrder(t *testing.T) {
	const frames = 120
	for _, category := range []string{"again", "once"} {
		for _, where := range []string{"live", "memory", "backlog", "restart", "crash"} {
			t.Run(category+"/"+where, func(t *testing.T) {
				cfg := farConfig()
				if where == "live" || where == "memory" {
					cfg.keepInMemory()
				}
				cfg.RetryMax = cfg.RetryBase
				run(t, cfg, func(t *testing.T, c *cell) {
					c.goFar(true)
					if where != "live" {
						c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
					}
					writers := []*streamWriter{{c: c, category: category, producer: 1, size: 4000}, {c: c, category: category, producer: 2, size: 4000}}
					for i := range frames {
						for n, w := range writers {
							if i%40 == 20+5*n {
								w.addShard()
							}
							w.write(spooled)
						}
						<-time.After(time.Millisecond)
					}
					if where != "live" {
						<-time.After(10 * time.Second)
						if on := c.onDisk().Frames; (on == 0) != (where == "memory") {
							t.Errorf("%d frames are in the backlog", on)
						}
					}
					switch where {
					case "crash":
						c.crash(0, nil)
						c.start(cfg)
					case "restart":
						if err := c.Close(t.Context()); err != nil {
							t.Error(err)
						}
						c.start(cfg)
					}
					c.up.replies(nil)
					c.Drain(t.Context())
					for _, w := range writers {
						w.mustArrive(true, false)
					}
					if c.up.gaps > 0 || c.up.order.late > 0 || c.up.order.followed == 0 {
						t.Errorf("%d frames came with a gap, %d too early; %d followed others", c.up.gaps, c.up.order.late, c.up.order.followed)
					}
				})
			})
		}
	}
}

// placedFrame is a frame of a producer, whose layouts have a shard each.
type placedFrame struct {
	producer uint64
	layout   uint32
}

func (p placedFrame) String() string { return fmt.Sprintf("%d by %d", p.producer, p.layout) }

// placedEntry is an entry with a frame for each of those given.
func placedEntry(w *world, ends map[placedFrame]uint64, frames ...placedFrame) *queueEntry {
	e := &queueEntry{category: "stream", ack: ackNone, since: w.now}
	for i, p := range frames {
		first := ends[p]
		ends[p]++
		e.frames = append(e.frames, queuedFrame{
			bytes: makeStreamFrame(p.producer, p.layout, first), messages: 1, index: int32(i), sequenced: true, //nolint:gosec // a few
			sequences: frameSequences{stream: streamKey{p.producer, p.layout}, placement: p.layout, first: first, next: first + 1},
		})
	}
	e.bytes = e.countBytes()
	e.mem = &sharedBuffer{buf: &buffers.Buffer{}, refs: 1}
	e.charge = chargeOf(len(e.frames), e.bytes)
	return e
}

// placedTexts says which frames a request has.
func placedTexts(b *upstreamBatch) (texts []string) {
	for _, e := range b.entries {
		for i := range e.frames {
			texts = append(texts, placedFrame{e.frames[i].sequences.stream.producer, e.frames[i].sequences.placement}.String())
		}
	}
	return texts
}

// TestLayoutsShareNoRequest: a request has a producer's frames of one layout, and goes on up to the first one of another. Frames of other
// producers do not count. A call that has both by itself, as no library makes it, goes alone, and holds nobody up.
func TestLayoutsShareNoRequest(t *testing.T) {
	calls := [][]placedFrame{{{1, 7}}, {{2, 8}}, {{1, 7}}, {{3, 8}, {3, 8}}, {{1, 8}}, {{2, 8}}, {{2, 9}, {1, 8}}, {{4, 8}, {4, 9}, {4, 8}}, {{1, 8}}, {{1, 7}}}
	for _, backlog := range []bool{false, true} {
		want := [][]string{
			{"1 by 7", "2 by 8", "1 by 7", "3 by 8", "3 by 8"},
			{"1 by 8", "2 by 8"},
			{"2 by 9", "1 by 8"},
			{"4 by 8", "4 by 9", "4 by 8"},
			{"1 by 8"},
			{"1 by 7"},
		}
		if backlog { // there are no calls there
			want = [][]string{
				{"1 by 7", "2 by 8", "1 by 7", "3 by 8", "3 by 8"},
				{"1 by 8", "2 by 8"},
				{"2 by 9", "1 by 8", "4 by 8"},
				{"4 by 9"},
				{"4 by 8", "1 by 8"},
				{"1 by 7"},
			}
		}
		t.Run(fmt.Sprintf("backlog=%t", backlog), func(t *testing.T) {
			cfg := spooling(DefaultConfig())
			cfg.Linger = 0
			w := openWorld(t, cfg)
			defer func() { _ = w.s.spool.Close() }()
			q, ends := &w.s.mu.queue, map[placedFrame]uint64{}
			for _, frames := range calls {
				e := placedEntry(w, ends, frames...)
				l := q.queueOf("stream")
				if backlog {
					w.end(t, q.appendPassing(l, e))
					continue
				}
				q.reserveMemory(e)
				q.addEntry(e)
			}
			for _, texts := range want {
				w.now = w.now.Add(time.Second)
				var (
					b *upstreamBatch
					f *fillPlan
				)
				if backlog {
					if x := w.fill(t); x != nil {
						b, f = x.b, x.f
					}
				} else {
					b = q.nextLive(w.now)
				}
				if b == nil {
					t.Fatalf("nothing is sent, want %v", texts)
				}
				if got := placedTexts(b); !slices.Equal(got, texts) {
					t.Fatalf("%v are sent, want %v", got, texts)
				}
				w.endRequest(b, f, 0)
			}
		})
	}
}

// TestMixedCallInFlight: while a call that mixes a producer's layouts is in flight, nothing of that producer follows it, and others do.
func TestMixedCallInFlight(t *testing.T) {
	for i := range uint32(60) { // a producer's streams come in any order
		w, _ := openStream(t)
		q, ends := &w.s.mu.queue, map[placedFrame]uint64{}
		add := func(frames ...placedFrame) {
			e := placedEntry(w, ends, frames...)
			q.reserveMemory(e)
			q.addEntry(e)
		}
		add(placedFrame{1, 7})
		opening := q.nextLive(w.now)
		add(placedFrame{2, 7}, placedFrame{2, 8}, placedFrame{2, 9})
		if b := q.nextLive(w.now); b != nil {
			t.Fatalf("%v are sent beside others", placedTexts(b))
		}
		w.endRequest(opening, nil, 0)
		mixed := q.nextLive(w.now)
		add(placedFrame{3, 8})
		if other := q.nextLive(w.now); mixed.frames != 3 || other == nil || other.frames != 1 {
			t.Fatalf("%v are sent, and then %+v", placedTexts(mixed), other)
		}
		add(placedFrame{2, 7 + i%3})
		if b := q.nextLive(w.now); b != nil {
			t.Fatalf("%v are sent beside %v", placedTexts(b), placedTexts(mixed))
		}
		w.endRequest(mixed, nil, 0)
		if b := q.nextLive(w.now); b == nil {
			t.Fatal("nothing is sent afterwards")
		}
	}
}

// TestLayoutWaitsForFlights: a frame waits while others of its producer that another layout placed are in flight, and goes when the last of them
// has an outcome. Other producers go on.
func TestLayoutWaitsForFlights(t *testing.T) {
	w, l := openStream(t)
	q, ends := &w.s.mu.queue, map[placedFrame]uint64{}
	send := func(p placedFrame) *upstreamBatch {
		t.Helper()
		e := placedEntry(w, ends, p)
		q.reserveMemory(e)
		q.addEntry(e)
		return q.nextLive(w.now)
	}
	opening := send(placedFrame{1, 7})
	send(placedFrame{1, 7})
	w.endRequest(opening, nil, 0)
	first, second, other := q.nextLive(w.now), send(placedFrame{1, 7}), send(placedFrame{2, 8})
	if first == nil || second == nil || other == nil {
		t.Fatal("the window is closed")
	}
	if b := send(placedFrame{1, 8}); b != nil {
		t.Errorf("%v are sent beside %v", placedTexts(b), placedTexts(first))
	}
	w.endRequest(second, nil, 0)
	if b := q.nextLive(w.now); b != nil {
		t.Errorf("%v are sent beside %v", placedTexts(b), placedTexts(first))
	}
	w.endRequest(first, nil, scribev1.Reason_REASON_OVERLOADED) // it goes again, first
	w.endRequest(other, nil, 0)
	w.now = w.now.Add(time.Minute)
	for _, want := range []string{"1 by 7", "1 by 8"} {
		b := q.nextLive(w.now)
		if b == nil || !slices.Equal(placedTexts(b), []string{want}) {
			t.Fatalf("%+v is sent, want %s", b, want)
		}
		if next := q.nextLive(w.now); next != nil {
			t.Errorf("%v are sent beside %s", placedTexts(next), want)
		}
		w.endRequest(b, nil, 0)
	}
	if len(l.entries) > 0 {
		t.Errorf("%d entries are left", len(l.entries))
	}
}
