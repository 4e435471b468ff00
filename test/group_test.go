package test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/producer"
)

// reader is a member of a group in this process, which commits after every so many messages.
type reader struct {
	g    *consumer.Group
	stop context.CancelFunc
	done chan error
}

// ledger is what the members of a group were given.
type ledger struct {
	mu  sync.Mutex
	got map[string]int // deliveries by message
	of  map[string]map[string]bool
	all chan struct{}
	n   int // closes all when there are so many different messages
}

func newLedger(n int) *ledger {
	return &ledger{got: map[string]int{}, of: map[string]map[string]bool{}, all: make(chan struct{}), n: n}
}

func (l *ledger) add(member, message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.got[message]++
	if l.of[member] == nil {
		l.of[member] = map[string]bool{}
	}
	l.of[member][message] = true
	if len(l.got) == l.n && l.got[message] == 1 {
		close(l.all)
	}
}

func (l *ledger) await(t *testing.T) {
	t.Helper()
	select {
	case <-l.all:
	case <-time.After(waitLimit):
		l.mu.Lock()
		defer l.mu.Unlock()
		t.Fatalf("%d of %d messages came", len(l.got), l.n)
	}
}

// join starts a member that reads into a ledger, and commits every 10 messages and at its end. Nothing that holds it up makes it lose its
// buckets: what was lost comes again.
func join(t *testing.T, c *cell, l *ledger, name string, opts ...consumer.Option) *reader {
	t.Helper()
	logger := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	g, err := consumer.NewGroup(c.read, "log", "readers", append([]consumer.Option{
		consumer.WithMember(name), consumer.WithGroupTTL(time.Minute), consumer.WithStart(consumer.Earliest()), consumer.WithLogger(logger), consumer.WithAutoCommit(0),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	r := &reader{g: g, stop: cancel, done: make(chan error, 1)}
	go func() {
		n := 0
		for rec, err := range g.Records(ctx) {
			if err != nil {
				r.done <- err
				return
			}
			l.add(name, string(rec.Payload))
			if n++; n%10 == 0 || g.Buffered() == 0 {
				if err := g.Commit(ctx); err != nil && !errors.Is(err, consumer.ErrFenced) {
					r.done <- err
					return
				}
			}
		}
		r.done <- nil
	}()
	return r
}

// leave ends a member in an orderly way: everything that it was given is committed.
func (r *reader) leave(t *testing.T) {
	t.Helper()
	r.stop()
	if err := <-r.done; err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("member %s: %v", r.g.Member(), err)
	}
	if err := r.g.Commit(t.Context()); err != nil {
		t.Errorf("member %s: %v", r.g.Member(), err)
	}
	if err := r.g.Close(); err != nil {
		t.Errorf("member %s: %v", r.g.Member(), err)
	}
}

// write writes messages to the category "log", ten at a time, each ten in a payload of their own.
func write(t *testing.T, c *cell, from, to int) {
	t.Helper()
	p, err := producer.New(c.write)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	for i := from; i < to; i += 10 {
		var messages []producer.Message
		for j := i; j < min(i+10, to); j++ {
			messages = append(messages, producer.Message{Payload: fmt.Appendf(nil, "message %06d", j)})
		}
		if err := p.Write(t.Context(), "log", messages...); err != nil {
			t.Fatal(err)
		}
	}
}

// Members of a group share a category of one shard: everything comes, once, whoever comes and goes in an orderly way, and everybody gets some.
func TestGroup(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		write(t, c, 0, 1000)
		l := newLedger(4000)
		a := join(t, c, l, "a")
		b := join(t, c, l, "b")
		write(t, c, 1000, 2000)
		d := join(t, c, l, "d")
		write(t, c, 2000, 3000)
		b.leave(t)
		write(t, c, 3000, 4000)
		l.await(t)
		a.leave(t)
		d.leave(t)
		for message, n := range l.got {
			if n != 1 {
				t.Fatalf("%q came %d times", message, n)
			}
		}
		t.Log("shares:", slices.Collect(maps.Keys(l.of)), len(l.of["a"]), len(l.of["b"]), len(l.of["d"]))
	})
}
