package scribed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

var histories = flag.Uint64("histories", 25, "number of random histories")

// writer is a producer of a history: it writes one frame at a time and repeats it until it knows its fate.
type writer struct {
	c        *cell
	rng      *rand.Rand
	id       uint64
	category string
	ack      []scribev1.AckLevel
	next     uint64
	pending  string // what was not settled when the agent ended; the next one gets it
	// texts by what their writer knows: acknowledged as durably as level says, refused for certain, unknown.
	acked   map[string]scribev1.AckLevel
	refused map[string]bool
	unknown map[string]bool
}

// noteUnknown notes that a message may be stored, whatever was known of an earlier attempt.
func (w *writer) noteUnknown(text string) {
	w.unknown[text] = true
	delete(w.refused, text)
}

func (w *writer) write(size int) {
	text := fmt.Sprintf("%d:%06d:%s", w.id, w.next, strings.Repeat("x", w.rng.IntN(size)))
	if w.rng.IntN(50) == 0 && !strings.HasPrefix(w.category, "once") {
		text += "poison"
	}
	if w.pending != "" {
		text = w.pending
	}
	w.pending = text
	frame := buildFrame(w.c.t, record.Envelope{Category: w.category, Sequenced: true, Producer: w.id, FirstSequence: w.next}, text)
	ack := w.ack[w.rng.IntN(len(w.ack))]
	for {
		ctx, cancel := context.WithTimeout(w.c.t.Context(), time.Duration(1+w.rng.IntN(5000))*time.Millisecond)
		resp, err := w.c.Write(ctx, &scribev1.WriteRequest{Frames: slices.Clone(frame), Ack: ack})
		cancel()
		if err == nil {
			err = rpc.FromInfo(resp.GetResults()[0].GetError())
		}
		switch reason := rpc.ReasonOf(err); {
		case w.c.down.Load():
			w.noteUnknown(text)
			return
		case err == nil:
			w.acked[text] = ack
			delete(w.refused, text)
			w.next++
			w.pending = ""
			return
		case reason == scribev1.Reason_REASON_SHUTTING_DOWN:
			if !w.unknown[text] {
				w.refused[text] = true
			}
			return
		case reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME, reason == scribev1.Reason_REASON_UNSPECIFIED:
			w.noteUnknown(text)
			if w.c.isClosed() {
				return
			}
		case !retry.Retryable(err):
			if !w.unknown[text] {
				w.refused[text] = true
			}
			w.next++
			w.pending = ""
			return
		}
		<-time.After(time.Duration(w.rng.IntN(100)) * time.Millisecond)
	}
}

func (c *cell) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.queue.closing
}

// weather is an upstream whose moods change.
func (c *cell) weather(rng *rand.Rand, until time.Time) {
	var mu sync.Mutex
	mood := 0
	rng = rand.New(rand.NewPCG(rng.Uint64(), 0)) // of the weather alone, under mu
	go func() {
		for time.Now().Before(until) {
			mu.Lock()
			mood = rng.IntN(6)
			pause := time.Duration(rng.IntN(8000)) * time.Millisecond
			mu.Unlock()
			<-time.After(pause)
		}
	}()
	c.up.replies(func(_ int, x *call) reply {
		mu.Lock()
		defer mu.Unlock()
		poison := func(m string) bool { return strings.HasSuffix(m, "poison") }
		if slices.ContainsFunc(x.messages, poison) && mood%2 == 0 {
			return reply{whole: rpc.Errorf(scribev1.Reason_REASON_INVALID, "poison")}
		}
		each := func(m string) error { // called later
			mu.Lock()
			defer mu.Unlock()
			switch {
			case poison(m):
				return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "poison")
			case mood == 3 && rng.IntN(3) == 0:
				return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Duration(rng.IntN(2000))*time.Millisecond, "quota")
			case mood == 4 && strings.HasPrefix(m, "plain"):
				return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "quota")
			}
			return nil
		}
		if time.Now().After(until) {
			return reply{each: func(m string) error {
				if poison(m) {
					return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "poison")
				}
				return nil
			}}
		}
		switch mood {
		case 1:
			return reply{whole: rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "away")}
		case 2:
			switch rng.IntN(4) {
			case 0:
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "not applied, but who knows")}
			case 1:
				return reply{whole: errors.New("something else")}
			case 2:
				return reply{each: each, lost: rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "applied, but who knows")}
			}
		case 5:
			switch rng.IntN(10) {
			case 0:
				return reply{silent: true}
			case 1:
				return reply{whole: rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "another server")}
			}
		}
		return reply{each: each}
	})
}

// Random writers of all levels against an upstream of changing moods, with stops, losses of power and a small memory: what was
// acknowledged arrives, what was refused does not, strict and exactly_once categories are in order, and the account balances.
//
//	go test ./scribed -run TestSpoolHistories -histories 500
func TestSpoolHistories(t *testing.T) {
	n := min(*histories, testsize.Test[uint64](*histories, 8, 4))
	for seed := range n {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { spoolHistory(t, seed) })
	}
}

func spoolHistory(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 0))
	cfg := spooling(DefaultConfig())
	cfg.BatchBytes, cfg.MaxInFlight, cfg.MemoryBytes = 1+rng.IntN(20_000), 1+rng.IntN(4), 1<<20
	cfg.SpillAfter = time.Duration(1+rng.IntN(2000)) * time.Millisecond
	cfg.SpillAbove = []float64{0.01, 0.05, 0.5}[rng.IntN(3)]
	cfg.Rules = []Rule{{Pattern: "strict*", Strict: true}, {Pattern: "*", WhenFull: Block}}
	crashes := seed%3 == 2
	pause := 200
	if seed%4 > 0 { // many requests are in flight
		pause, cfg.Timeout = 1+rng.IntN(30), 2*time.Second
	}
	run(t, cfg, func(t *testing.T, c *cell) {
		c.up.once, c.up.again = map[string]bool{"once": true, "once2": true}, map[string]bool{"again": true}
		if pause < 200 {
			c.goFar(true)
			c.up.once["once2"] = true
		}
		var writers []*writer
		for i := range 9 {
			w := &writer{
				c: c, id: uint64(i + 1), rng: rand.New(rand.NewPCG(seed, uint64(i+1))),
				category: []string{"plain", "strict", "once", "once2", "again"}[i%5],
				acked:    map[string]scribev1.AckLevel{}, refused: map[string]bool{}, unknown: map[string]bool{},
			}
			w.ack = [][]scribev1.AckLevel{{none}, {spooled}, {none, spooled, committed}, {committed, none}, {none, spooled}}[rng.IntN(5)]
			writers = append(writers, w)
		}
		size := []int{10, 1000, 20_000}[rng.IntN(3)]
		for range 3 {
			until := time.Now().Add(20 * time.Second)
			c.weather(rng, until)
			var group sync.WaitGroup
			for _, w := range writers {
				group.Go(func() {
					for !c.isClosed() {
						w.write(size)
						<-time.After(time.Duration(w.rng.IntN(pause)) * time.Millisecond)
					}
				})
			}
			<-time.After(time.Until(until) - time.Duration(rng.IntN(15_000))*time.Millisecond)
			old := c.Scribed
			if crashes {
				c.crash(rng.IntN(3)*50, rng)
			} else {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(3000))*time.Millisecond)
				if err := c.Close(ctx); err != nil {
					t.Error(err)
				}
				cancel()
			}
			group.Wait()
			if a := old.unaccounted(); a != (request.Amount{}) {
				t.Errorf("%+v are not accounted for", a)
			}
			c.start(cfg)
			c.mustBalance()
		}
		<-time.After(time.Hour)
		c.mustBalance()
		// Who got nothing in so far, for the weather and the backlog, does now.
		for _, w := range writers {
			for tries := 0; len(w.acked) == 0 && tries < 10; tries++ {
				w.write(size)
			}
		}
		if left := c.Drain(t.Context()); len(left) > 0 {
			t.Errorf("left: %+v", left)
		}
		c.checkHistory(writers, crashes)
	})
}

func (c *cell) checkHistory(writers []*writer, crashes bool) {
	t := c.t
	t.Helper()
	if c.up.gaps > 0 && !crashes {
		t.Errorf("%d frames came out of sequence", c.up.gaps)
	}
	for _, w := range writers {
		stored := map[string]int{}
		last := ""
		for _, text := range c.up.stored[w.category] {
			if !strings.HasPrefix(text, fmt.Sprintf("%d:", w.id)) {
				continue
			}
			if stored[text]++; stored[text] == 1 && !strings.HasPrefix(w.category, "plain") {
				if text < last {
					t.Errorf("%s: %.20s comes after %.20s", w.category, text, last)
				}
				last = text
			}
			if stored[text] > 1 && c.up.once[w.category] {
				t.Errorf("%s: %.20s is stored %d times", w.category, text, stored[text])
			}
		}
		for text, ack := range w.acked {
			if strings.HasSuffix(text, "poison") || stored[text] > 0 || crashes && (ack == none || c.up.once[w.category]) {
				continue
			}
			t.Errorf("%s: %.20s was acknowledged with %v and is not there", w.category, text, ack)
		}
		for text := range w.refused {
			if stored[text] > 0 {
				t.Errorf("%s: %.20s was refused and is there", w.category, text)
			}
		}
		if len(w.acked) == 0 {
			t.Errorf("writer %d of %s got nothing in", w.id, w.category)
		}
	}
}
