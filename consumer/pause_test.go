package consumer_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
)

// TestOnPause: it is called when a stream is open, and when there is nothing left to yield; the checkpoint is then behind all that was.
func TestOnPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.create(shardID(0, 1))
		var (
			r      *consumer.Consumer
			seen   []string
			places = map[string][]string{} // what was seen at each
		)
		r = open(t, c, consumer.WithOnPause(func() {
			if text := r.Checkpoint(); text != "" {
				places[text] = slices.Clone(seen)
			}
		}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for range 5 {
				<-time.After(3 * time.Second)
				c.add(shardID(0, 1), "a", "b")
			}
			<-time.After(3 * time.Second)
			cancel()
		}()
		for rec, err := range r.Records(ctx) {
			if err != nil {
				break
			}
			seen = append(seen, string(rec.Payload))
		}
		if len(seen) != 10 {
			t.Fatalf("%d messages were read", len(seen))
		}
		counts := map[int]bool{}
		for text, before := range places {
			counts[len(before)] = true
			again := open(t, c, from(t, text), consumer.WithUntilEnd())
			got, err := read(t.Context(), again, 0)
			want(t, got, err, seen[len(before):]...)
		}
		for _, n := range []int{0, 2, 4, 6, 8, 10} {
			if !counts[n] {
				t.Errorf("no pause after %d messages", n)
			}
		}
	})
}

// TestWindowIsAskedFor: none is the category's, 0 is the strict order, and Unbounded is longer than any clock has run.
func TestWindowIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), "a")
		for _, opts := range [][]consumer.Option{nil, {consumer.WithWindow(0)}, {consumer.WithWindow(time.Minute)}, {consumer.WithWindow(consumer.Unbounded)}} {
			got, err := read(t.Context(), open(t, c, append(opts, consumer.WithUntilEnd())...), 0)
			want(t, got, err, "a")
		}
		var asked []time.Duration
		for _, s := range c.starts[1:] {
			if s.GetWindow() == nil {
				t.Fatal("no window is asked for")
			}
			asked = append(asked, s.GetWindow().AsDuration())
		}
		if c.starts[0].GetWindow() != nil || !slices.Equal(asked, []time.Duration{0, time.Minute, consumer.Unbounded}) {
			t.Errorf("asked for %v, then %v", c.starts[0].GetWindow(), asked)
		}
	})
}
