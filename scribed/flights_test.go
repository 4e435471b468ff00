package scribed

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/deadletter"
)

// farConfig has requests of 64 KiB, and memory and a spool for many of them.
func farConfig() Config {
	cfg := spooling(DefaultConfig())
	cfg.BatchBytes, cfg.MemoryBytes, cfg.Spool.MaxBytes, cfg.Spool.SegmentBytes = 64<<10, 4<<20, 64<<20, 1<<20
	cfg.Rules = []Rule{{Pattern: "*", WhenFull: Block}}
	return cfg
}

// keepInMemory makes the agent spill nothing: live traffic would overtake it in a category that is not ordered.
func (c *Config) keepInMemory() { c.MemoryBytes, c.SpillAfter, c.SpillAbove = 16<<20, time.Hour, 1 }

// goFar puts the upstream 100 ms away, there and back. Requests overtake one another on the way.
func (c *cell) goFar(ordered bool) {
	rng := rand.New(rand.NewPCG(1, 2))
	var mu sync.Mutex
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	c.up.far = func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return 45*time.Millisecond + time.Duration(rng.IntN(10))*time.Millisecond
	}
	if c.up.ordered = ordered; ordered {
		c.up.order = newStreamOrder()
	}
	c.up.again, c.up.once = map[string]bool{"again": true}, map[string]bool{"once": true}
}

// streamWriter writes frames of a producer, with one message of a size each.
type streamWriter struct {
	c        *cell
	category string
	producer uint64
	next     uint64
	size     int
	// layout places the next frame: into a shard of its own, which begins with the message that is first there.
	layout uint32
	first  uint64
}

// addShard makes the next frames go to another shard, by another layout.
func (w *streamWriter) addShard() {
	w.layout++
	w.first = w.next
}

func (w *streamWriter) write(ack scribev1.AckLevel) {
	w.c.t.Helper()
	text := fmt.Sprintf("%d:%06d:%s", w.producer, w.next, strings.Repeat("x", w.size))
	frame := buildFrame(w.c.t, record.Envelope{
		Category: w.category, Sequenced: true, Producer: w.producer, FirstSequence: w.next - w.first, Shard: w.layout, Placement: w.layout,
	}, text)
	w.next++
	resp, err := w.c.Write(w.c.t.Context(), &scribev1.WriteRequest{Frames: frame, Ack: ack})
	if err == nil {
		err = rpc.FromInfo(resp.GetResults()[0].GetError())
	}
	if err != nil {
		w.c.t.Error(err)
	}
}

// arrived counts the frames of the producer that have arrived.
func (w *streamWriter) arrived() (n int) {
	w.c.up.mu.Lock()
	defer w.c.up.mu.Unlock()
	for _, text := range w.c.up.stored[w.category] {
		if strings.HasPrefix(text, fmt.Sprintf("%d:", w.producer)) {
			n++
		}
	}
	return n
}

// mustArrive checks that all frames of a producer have arrived, in order if that is wanted, and once unless copies are allowed.
func (w *streamWriter) mustArrive(inOrder, copies bool) {
	w.c.t.Helper()
	w.c.up.mu.Lock()
	defer w.c.up.mu.Unlock()
	seen := map[string]bool{}
	last := ""
	for _, text := range w.c.up.stored[w.category] {
		switch of := fmt.Sprintf("%d:", w.producer); {
		case !strings.HasPrefix(text, of):
			continue
		case seen[text]:
			if !copies {
				w.c.t.Errorf("%.12s is stored twice", text)
			}
			continue
		case inOrder && text < last:
			w.c.t.Errorf("%.12s comes after %.12s", text, last)
		}
		seen[text], last = true, text
	}
	if len(seen) != int(w.next) { //nolint:gosec // a few
		w.c.t.Errorf("%d of %d frames of producer %d have arrived", len(seen), w.next, w.producer)
	}
}

// flightCategories returns categories of every kind that the upstream of goFar knows.
func flightCategories() []string {
	all := []string{"once", "again", "plain"}
	return all[:testsize.Test(3, 3, 1)]
}

// TestRequestsOverlap: what the agent has taken over goes out with several requests in flight, if the upstream keeps their order: many times
// as fast as with one, where a round trip takes 100 ms. Frames of a shard arrive once, in order.
func TestRequestsOverlap(t *testing.T) {
	for _, level := range []scribev1.AckLevel{none, spooled} {
		for _, category := range flightCategories() {
			t.Run(fmt.Sprintf("%s/%v", category, level), func(t *testing.T) {
				forward := func(ordered bool) (took time.Duration) {
					cfg := farConfig()
					cfg.keepInMemory()
					run(t, cfg, func(t *testing.T, c *cell) {
						c.goFar(ordered)
						writers := []*streamWriter{{c: c, category: category, producer: 1, size: 4000}, {c: c, category: category, producer: 2, size: 4000}}
						start := time.Now()
						for range 1000 {
							for _, w := range writers {
								w.write(level)
							}
						}
						c.Drain(t.Context())
						took = time.Since(start)
						for _, w := range writers {
							w.mustArrive(true, false)
						}
						if ordered && (c.up.order.late > 0 || c.up.most < 8) {
							t.Errorf("%d frames came too early, %d requests were in flight", c.up.order.late, c.up.most)
						}
						if !ordered && c.up.order != nil {
							t.Errorf("frames followed others: %+v", c.up.order)
						}
						c.mustBalance()
					})
					return took
				}
				if one, many := forward(false), forward(true); one < 8*many {
					t.Errorf("%v instead of %v", many, one)
				}
			})
		}
	}
}

// TestBacklogOverlaps: so does the backlog after an outage, alone and beside live traffic, whose requests do not take longer.
func TestBacklogOverlaps(t *testing.T) {
	for _, category := range flightCategories() {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/live=%t", category, busy), func(t *testing.T) {
				forward := func(ordered bool) (took time.Duration) {
					cfg := farConfig()
					cfg.RetryMax = cfg.RetryBase
					run(t, cfg, func(t *testing.T, c *cell) {
						c.goFar(ordered)
						c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
						old := &streamWriter{c: c, category: category, producer: 1, size: 4000}
						for range 2000 {
							old.write(spooled)
							<-time.After(time.Millisecond)
						}
						<-time.After(10 * time.Second)
						before := c.onDisk().Frames
						c.up.replies(nil)
						start := time.Now()
						live := &streamWriter{c: c, category: category + "2", producer: 1, size: 1000}
						own := &streamWriter{c: c, category: category, producer: 3, size: 1000}
						for old.arrived() < 2000 && time.Since(start) < 10*time.Minute {
							<-time.After(10 * time.Millisecond)
							if busy {
								live.write(none)
								own.write(none)
							}
						}
						took = time.Since(start)
						c.Drain(t.Context())
						old.mustArrive(true, false)
						live.mustArrive(false, false)
						own.mustArrive(category != "plain", false)
						if ordered && c.up.order.late > 0 {
							t.Errorf("%d frames came too early", c.up.order.late)
						}
						if before < 1900 {
							t.Errorf("%d frames were in the backlog", before)
						}
					})
					return took
				}
				if one, many := forward(false), forward(true); one < 5*many {
					t.Errorf("%v instead of %v", many, one)
				}
			})
		}
	}
}

// TestFailureInWindow: when a request in the middle of many fails, in whatever way, what follows it is not stored before it; everything is
// stored in the end, in order.
func TestFailureInWindow(t *testing.T) {
	const middle = "1:000500" // begins a message
	isMiddle := func(m string) bool { return strings.Contains(m, middle) }
	refuse := func(reason scribev1.Reason) reply {
		return reply{each: func(m string) error {
			if isMiddle(m) {
				return rpc.Errorf(reason, "injected")
			}
			return nil
		}}
	}
	cases := []struct {
		name   string
		reply  reply
		times  int
		copies bool // some frames may be stored twice, where sequences are not checked
		lost   int  // messages that are refused for good
	}{
		{name: "quota", reply: refuse(scribev1.Reason_REASON_OVERLOADED), times: 3},
		{name: "refused for good", reply: refuse(scribev1.Reason_REASON_TOO_LARGE), times: 1, lost: 1},
		{name: "refused as a whole", reply: reply{whole: rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "injected")}, times: 2},
		{name: "lost answer", reply: reply{lost: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "injected")}, times: 2, copies: true},
		{name: "lost request", reply: reply{whole: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "injected")}, times: 2, copies: true},
		{name: "no answer", reply: reply{silent: true}, times: 1, copies: true},
		{name: "something in between", reply: reply{whole: fmt.Errorf("injected")}, times: 2, copies: true},
		{name: "write proxy gone", reply: reply{whole: rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "injected")}, times: 3},
		{name: "another write proxy", reply: reply{whole: rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "injected")}, times: 1},
		{name: "out of order", reply: refuse(scribev1.Reason_REASON_OUT_OF_ORDER), times: 1},
	}
	for _, backlog := range []bool{false, true} {
		for _, category := range flightCategories() {
			for _, x := range cases {
				t.Run(fmt.Sprintf("backlog=%t/%s/%s", backlog, category, x.name), func(t *testing.T) {
					cfg := farConfig()
					cfg.Timeout = 3 * time.Second
					if category == "plain" && !backlog {
						cfg.keepInMemory()
					}
					dead := deadletter.DefaultConfig()
					dead.Dir = "dead"
					cfg.DeadLetter = &dead
					run(t, cfg, func(t *testing.T, c *cell) {
						c.goFar(true)
						if backlog {
							c.up.replies(failing(1<<30, scribev1.Reason_REASON_NO_BACKEND))
						}
						w := &streamWriter{c: c, category: category, producer: 1, size: 4000}
						failed, running := 0, 0
						fail := func(_ int, call *call) reply {
							if failed < x.times && slices.ContainsFunc(call.messages, isMiddle) {
								failed++
								running = max(running, c.up.running)
								return x.reply
							}
							return reply{}
						}
						if !backlog {
							c.up.replies(fail)
						}
						for range 1000 {
							w.write(none)
						}
						if backlog {
							<-time.After(10 * time.Second)
							c.up.replies(fail)
						}
						c.Drain(t.Context())
						if failed != x.times {
							t.Errorf("%d requests failed", failed)
						}
						if !backlog && category == "plain" && running < 3 { // the others begin to use their disk
							t.Errorf("%d requests were in flight", running)
						}
						if x.lost > 0 && category == "once" { // what comes after the gap is given up, too
							return
						}
						w.next -= uint64(x.lost) //nolint:gosec // one
						w.mustArrive(true, x.copies && category != "once")
						if c.up.gaps > 0 {
							t.Errorf("%d frames came out of sequence", c.up.gaps)
						}
						c.mustBalance()
					})
				})
			}
		}
	}
}

// TestMemoryBoundsFlights: the frames in flight of requests that follow others have a part of the memory.
func TestMemoryBoundsFlights(t *testing.T) {
	cfg := farConfig()
	cfg.MemoryBytes, cfg.Spool = 1<<20, nil
	run(t, cfg, func(t *testing.T, c *cell) {
		c.goFar(true)
		most := int64(0)
		w := &streamWriter{c: c, category: "plain", producer: 1, size: 4000}
		for range 2000 {
			w.write(none)
			<-time.After(100 * time.Microsecond)
			c.mu.Lock()
			most = max(most, c.mu.queue.sending)
			c.mu.Unlock()
		}
		c.Drain(t.Context())
		if limit := int64(followingShare*float64(cfg.MemoryBytes)) + int64(cfg.MaxInFlight*cfg.BatchBytes); most > limit || most < 4*int64(cfg.BatchBytes) {
			t.Errorf("%d bytes were in flight, the limit is %d", most, limit)
		}
		w.mustArrive(true, false)
	})
}

// TestRestartInWindow: an agent that ends with many requests in flight forwards what they had in its next run, in order.
func TestRestartInWindow(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(fmt.Sprintf("crash=%t", crash), func(t *testing.T) {
			cfg := farConfig()
			cfg.keepInMemory()
			run(t, cfg, func(t *testing.T, c *cell) {
				c.goFar(true)
				w := &streamWriter{c: c, category: "once", producer: 1, size: 4000}
				for range 2000 {
					w.write(spooled)
					<-time.After(500 * time.Microsecond)
				}
				if n := c.runningAt(); n < 3 {
					t.Errorf("%d requests are in flight", n)
				}
				if crash {
					c.crash(0, nil)
				} else if err := c.Close(t.Context()); err != nil {
					t.Error(err)
				}
				c.start(cfg)
				for range 1000 {
					w.write(spooled)
				}
				c.Drain(t.Context())
				w.mustArrive(true, false)
				if c.up.gaps > 0 {
					t.Errorf("%d frames came out of sequence", c.up.gaps)
				}
			})
		})
	}
}

// TestUnnumberedFramesWait: frames without sequences can't say what they follow, so one request with such frames is in flight.
func TestUnnumberedFramesWait(t *testing.T) {
	cfg := farConfig()
	cfg.keepInMemory()
	run(t, cfg, func(t *testing.T, c *cell) {
		c.goFar(true)
		var want []string
		for i := range 500 {
			text := fmt.Sprintf("%06d%s", i, strings.Repeat("x", 4000))
			c.mustWrite(none, "plain/"+text)
			want = append(want, text)
		}
		c.Drain(t.Context())
		c.mustHold("plain", want...)
		if c.up.most != 1 {
			t.Errorf("%d requests were in flight", c.up.most)
		}
	})
}

// TestStrictOneByOne: no upstream keeps the order across producers that strict categories have.
func TestStrictOneByOne(t *testing.T) {
	cfg := farConfig()
	cfg.Rules = []Rule{{Pattern: "*", WhenFull: Block, Strict: true}}
	run(t, cfg, func(t *testing.T, c *cell) {
		c.goFar(true)
		w := &streamWriter{c: c, category: "plain", producer: 1, size: 4000}
		for range 200 {
			w.write(none)
		}
		c.Drain(t.Context())
		w.mustArrive(true, false)
		if c.up.most != 1 {
			t.Errorf("%d requests were in flight", c.up.most)
		}
	})
}

// TestRepeatedFrameWaits: a frame that a producer repeats does not continue the one in flight. It is sent when that is answered, and what
// comes after it can follow again.
func TestRepeatedFrameWaits(t *testing.T) {
	run(t, farConfig(), func(t *testing.T, c *cell) {
		c.goFar(true)
		w := &streamWriter{c: c, category: "once", producer: 1, size: 4000}
		for i := range 1000 {
			if i%100 == 99 {
				w.next--
			}
			w.write(none)
		}
		c.Drain(t.Context())
		synctest.Wait()
		w.mustArrive(true, false)
		if c.up.order.late > 0 || c.up.gaps > 0 || c.up.order.followed == 0 {
			t.Errorf("%d frames came too early, %d with a gap; %d followed others", c.up.order.late, c.up.gaps, c.up.order.followed)
		}
	})
}
