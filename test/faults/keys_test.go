package faults

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/placement"
	"scribe/producer"
	"scribe/test/history"
	"scribe/test/program"
)

// Categories that place messages by key.
const (
	catKeys     = "keys"      // at_least_once
	catOnceKeys = "keys-once" // exactly_once
)

// keyOf returns the n-th key.
func keyOf(n int) string { return fmt.Sprintf("key %d", n) }

// keyShards are the numbers of shards that categories by key had.
type keyShards struct {
	sync.Mutex
	had []uint32
}

// places reports whether messages of a key may be in a shard.
func (k *keyShards) places(key string, shard uint32) bool {
	k.Lock()
	defer k.Unlock()
	return slices.ContainsFunc(k.had, func(n uint32) bool { return placement.Shard(placement.Hash([]byte(key)), n) == shard })
}

// grow adds shards to both categories.
func (k *keyShards) grow(s *scenario, shards uint32) {
	s.Helper()
	k.Lock()
	k.had = append(k.had, shards)
	k.Unlock()
	for _, category := range []string{catKeys, catOnceKeys} {
		program.OK(s.T, nil, "category", "update", category, "--shards", fmt.Sprint(shards), "--server", s.c.url(controlPlane))
	}
}

// TestKeyOrder ends batchers with kill -9 while messages with keys are written, and adds shards while they are gone: each writer's messages
// of a key stay in its order, where readers of the key look.
func TestKeyOrder(t *testing.T) {
	t.Parallel()
	const keys = 6
	s := prepare(t, "key order")
	c := startCell(t, s.seed, layout{})
	s.c, s.w = c, emptyWorkload(c, s.seed)
	shards := &keyShards{had: []uint32{2}}
	s.w.create(catKeys, history.Guarantees{ByKey: shards.places}, "--delivery", "at_least_once", "--shards", "2", "--shard-by", "key")
	s.w.create(catOnceKeys, history.Guarantees{ExactlyOnce: true, NoGivingUp: true, ByKey: shards.places}, "--delivery", "exactly_once", "--shards", "2", "--shard-by", "key")
	direct := func(name string) func() string { return func() string { return c.url(name) } }
	options := append(patient(), producer.WithCategoryRefresh(100*time.Millisecond), producer.WithBatchBytes(4<<10), producer.WithFramesPerRequest(2)) // several requests are in flight
	for i, category := range []string{catKeys, catKeys, catOnceKeys, catOnceKeys} {
		via := direct([]string{writeProxy1, writeProxy2}[i%2])
		s.w.add(&writer{name: fmt.Sprint("flowing-", i), category: category, options: options, server: via, write: (*writer).flowing, keys: keys, pace: 10 * time.Millisecond, size: 300})
	}
	s.w.add(&writer{name: "batches", category: catKeys, options: options, server: direct(writeProxy1), write: (*writer).batch, keys: keys})
	s.v = newVerifier(c, s.w)
	strict := []consumer.Option{consumer.WithWindow(0)}
	s.v.options = map[string][]consumer.Option{catKeys: strict, catOnceKeys: strict}
	s.w.start()
	s.w.advance(10)
	for range rounds(t) {
		for _, victim := range []string{batcher1, batcher2} {
			more := shards.had[len(shards.had)-1] + 1 + s.rng.Uint32N(4)
			s.step(fmt.Sprintf("the kill of %s and %d shards", victim, more), time.Duration(s.rng.IntN(500))*time.Millisecond, func() {
				s.c.kill(s.c.member(victim))
				shards.grow(s, more)
			}, func() { s.c.start(s.c.member(victim)) })
		}
	}
	s.w.finish()
	for _, category := range []string{catKeys, catOnceKeys} {
		s.keysAlone(category, keys)
	}
	s.end()
}

// keysAlone reads each key by itself, and finds what a reader of everything finds, in the same order.
func (s *scenario) keysAlone(category string, keys int) {
	s.Helper()
	read := func(options ...consumer.Option) (got map[string][]string) {
		ctx, cancel := context.WithTimeout(s.Context(), program.WaitLimit)
		defer cancel()
		reader, err := consumer.New(s.c.url(reader1), category, append(options, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithWindow(0))...)
		if err != nil {
			s.Fatal(err)
		}
		defer func() { _ = reader.Close() }()
		got = map[string][]string{}
		for m, err := range reader.Records(ctx) {
			if err != nil {
				s.Fatal(err)
			}
			got[string(m.Key)] = append(got[string(m.Key)], fmt.Sprint(m.Shard, m.LSN, m.Index))
		}
		return got
	}
	whole := read()
	for n := range keys {
		alone := read(columns.Keys(keyOf(n)))
		if len(alone) != 1 || !slices.Equal(alone[keyOf(n)], whole[keyOf(n)]) || len(whole[keyOf(n)]) == 0 {
			s.Errorf("%s: who reads %s alone gets %d messages, lost or reordered are some of %d", category, keyOf(n), len(alone[keyOf(n)]), len(whole[keyOf(n)]))
		}
	}
}
