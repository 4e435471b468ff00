package readstream

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

func shards(n int) []record.ShardID {
	out := make([]record.ShardID, n)
	for i := range out {
		out[i] = shardID(i%100, i/100+1)
	}
	return out
}

func TestHistoryComesInOrder(t *testing.T) {
	h := newHarness(t)
	all := shards(5)
	for i := range 200 {
		h.write(100, all[i%5])
		if i%10 == 0 {
			h.write(100, all...)
		}
	}
	c, opened := h.open(earliest, plenty)
	if len(opened.GetShards()) != 5 || opened.GetCategory().GetName() != testCategory {
		t.Fatalf("opened %v", opened)
	}
	for _, s := range opened.GetShards() {
		if s.GetLsn() != 1 || s.GetNextLsn() != uint64(h.next[record.ShardID(s.GetShard())]) {
			t.Fatalf("opened %v", s)
		}
	}
	c.entries(300)
	if !slices.IsSortedFunc(c.got, inTotalOrder) {
		t.Fatal("not in order of persisted time")
	}
	// Live records follow.
	h.write(100, all...)
	c.entries(305)
	c.heartbeat() // what was sent before it is counted
	if got := h.metric("pointers_total"); got != 305 {
		t.Fatalf("%v pointers counted, want 305", got)
	}
	if got := h.metric("payload_bytes_total"); got != 30500 {
		t.Fatalf("%v bytes counted, want 30500", got)
	}
}

func TestCredits(t *testing.T) {
	h := newHarness(t)
	shard := shardID(0, 1)
	for range 20 {
		h.write(1000, shard)
	}
	c, _ := h.open(earliest)
	if b := c.heartbeat(); b.GetPending() != 20 || len(c.got) != 0 {
		t.Fatalf("without credits: %d entries, %v", len(c.got), b)
	}
	c.credit(3, 0)
	c.heartbeat()
	c.heartbeat()
	if len(c.got) != 0 {
		t.Fatalf("%d entries without credits of bytes", len(c.got))
	}
	c.credit(0, 1_000_000)
	c.entries(3)
	if b := c.heartbeat(); b.GetPending() != 17 || len(c.got) != 3 {
		t.Fatalf("with 3 credits: %d entries, %v", len(c.got), b)
	}
	// Any byte of credit lets a pointer go, which may overdraw it; what is overdrawn is owed.
	c.credit(100, 1)
	c.entries(20)
	h.write(1000, shard)
	h.write(1000, shard)
	c2, _ := h.open(earliest, withCredits(100, 1500))
	c2.entries(2)
	c2.credit(0, 500)
	if c2.heartbeat(); len(c2.got) != 2 {
		t.Fatalf("%d entries, want 2: the credits only pay what was overdrawn", len(c2.got))
	}
	c2.credit(0, 1)
	c2.entries(3)
	if got := h.metric("credit_stalls_total"); got < 2 {
		t.Fatalf("%v stalls counted", got)
	}
}

func TestCreditsAreCapped(t *testing.T) {
	var c creditBalance
	for range 3 {
		c.addCredits(&scribev1.StreamCredits{Pointers: 1<<32 - 1, Bytes: 1<<64 - 1})
	}
	if c.pointers != maxCredits || c.bytes != maxByteCredits {
		t.Fatalf("got %+v", c)
	}
}

func TestStartAt(t *testing.T) {
	h := newHarness(t)
	a, b := shardID(0, 1), shardID(1, 1)
	h.write(1, a, b)
	h.write(1, a)
	h.write(1, a, b)
	states, err := h.engine.Read(t.Context(), a, 1, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	position := func(shard record.ShardID, lsn uint64) *scribev1.ShardPosition {
		return &scribev1.ShardPosition{Shard: uint64(shard), Lsn: lsn}
	}
	begin := func(want map[record.ShardID]uint64, opts ...option) *client {
		t.Helper()
		c, opened := h.open(append(opts, plenty)...)
		if len(opened.GetShards()) != len(want) {
			t.Fatalf("opened %v, want %v", opened.GetShards(), want)
		}
		for _, s := range opened.GetShards() {
			if s.GetLsn() != want[record.ShardID(s.GetShard())] {
				t.Fatalf("opened %v, want %v", opened.GetShards(), want)
			}
		}
		return c
	}
	begin(map[record.ShardID]uint64{a: 1, b: 1}, earliest)
	begin(map[record.ShardID]uint64{a: 4, b: 3}, latest)
	begin(map[record.ShardID]uint64{a: 4, b: 3}) // what is not set is latest
	begin(map[record.ShardID]uint64{a: 2, b: 2}, startAt(scribev1.StartAt_START_AT_TIME), func(s *scribev1.StreamStart) {
		s.StartTime = states[0].Time + 1
	})
	begin(map[record.ShardID]uint64{a: 2, b: 3}, latest, resumeAt([]*scribev1.ShardPosition{position(a, 2)}))
	begin(map[record.ShardID]uint64{a: 2, b: 1}, resumeAt([]*scribev1.ShardPosition{position(a, 2)}))
	begin(map[record.ShardID]uint64{b: 2}, resumeAt([]*scribev1.ShardPosition{position(a, 2), position(b, 2)}), func(s *scribev1.StreamStart) {
		s.LogicalShards = []uint32{1}
	})
	// A shard that is not there yet is followed.
	c := begin(map[record.ShardID]uint64{a: 4, b: 3, shardID(2, 1): 1}, latest, resumeAt([]*scribev1.ShardPosition{position(shardID(2, 1), 1)}))
	h.write(1, shardID(2, 1))
	c.entries(1)
	// One beyond the tail is not of this engine.
	err = h.dial(resumeAt([]*scribev1.ShardPosition{position(a, 5), position(b, 4)})).end()
	wantReason(t, err, scribev1.Reason_REASON_INVALID)
}

func TestShardsThatAppear(t *testing.T) {
	for name, opts := range map[string][]option{"unbounded": nil, "window": {withWindow(time.Minute)}, "strict": {withWindow(0)}} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			h.create(shardID(99, 1))
			c, _ := h.open(append(opts, latest, plenty)...)
			other, opened := h.open(latest, plenty, func(s *scribev1.StreamStart) { s.LogicalShards = []uint32{3} })
			if len(opened.GetShards()) != 0 {
				t.Fatalf("opened %v", opened)
			}
			all := shards(40)
			for _, shard := range all {
				h.write(1, shard)
			}
			h.write(1, all...)
			c.entries(80)
			for _, shard := range all {
				if c.at[uint64(shard)] != 3 {
					t.Fatalf("shard %v is at %d", shard, c.at[uint64(shard)])
				}
			}
			other.entries(2)
			if len(other.at) != 1 {
				t.Fatalf("a stream of one logical shard has %v", other.at)
			}
		})
	}
}

func TestSealedShardsEnd(t *testing.T) {
	h := newHarness(t)
	a, b := shardID(0, 1), shardID(1, 1)
	h.write(1, a, b)
	if _, err := h.engine.Seal(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	c, _ := h.open(earliest, plenty)
	c.until(func(r *scribev1.StreamResponse) bool { return r.GetShardEnded() != nil })
	if !c.ended[uint64(a)] || c.at[uint64(a)] != 2 {
		t.Fatalf("ended %v at %v", c.ended, c.at)
	}
	c.entries(2)
	if _, err := h.engine.Seal(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	c.until(func(r *scribev1.StreamResponse) bool { return r.GetShardEnded() != nil })
	// Ended shards are in the positions, or a stream that resumes would begin them again.
	h.restartWhile()
	h.write(1, shardID(2, 1))
	c2, _ := h.open(plenty, resumeAt(c.evicted()))
	for !c2.ended[uint64(a)] || !c2.ended[uint64(b)] || len(c2.got) < 1 {
		c2.next()
	}
	if len(c2.got) != 1 {
		t.Fatalf("got %v", c2.got)
	}
}

// restartWhile closes the server and makes another one, while the test goes on and takes what the old one still sends.
func (h *harness) restartWhile() {
	h.t.Helper()
	old := h.server
	closed := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		closed <- old.Close(ctx)
	}()
	h.t.Cleanup(func() {
		if err := <-closed; err != nil {
			h.t.Error(err)
		}
	})
	var err error
	// The metrics of the old one stand until it is closed.
	h.server, err = New(h.cfg, Deps{Log: h.log, Categories: h.categories})
	if err != nil {
		h.t.Fatal(err)
	}
}

func TestEvictionAndResume(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.StreamBytes, c.TotalBytes, c.BatchEntries = metalog.MaxRecord, 1<<20, 7 })
	all := shards(12)
	rng := rand.New(rand.NewPCG(1, 2))
	total := 0
	write := func(n int) {
		for range n {
			some := slices.Clone(all)
			rng.Shuffle(len(some), func(i, j int) { some[i], some[j] = some[j], some[i] })
			some = some[:1+rng.IntN(4)]
			h.write(10, some...)
			total += len(some)
		}
	}
	write(50)
	type place struct{ shard, lsn uint64 }
	seen := map[place]bool{}
	var resume []*scribev1.ShardPosition
	for round := range 12 {
		opts := []option{withCredits(uint32(10+rng.IntN(30)), 1<<30)}
		if round%2 == 0 {
			opts = append(opts, withWindow(time.Hour))
		}
		if resume == nil {
			opts = append(opts, earliest)
		} else {
			opts = append(opts, resumeAt(resume))
		}
		if round == 11 {
			opts = append(opts, plenty)
		}
		c, _ := h.open(opts...)
		write(5)
		stop := rng.IntN(30)
		if round == 11 {
			stop = total - len(seen)
		}
		for len(c.got) < stop && (round == 11 || len(c.got) < 10) {
			c.next()
		}
		h.restartWhile()
		resume = c.evicted()
		for _, e := range c.got {
			p := place{e.GetShard(), e.GetLsn()}
			if seen[p] {
				t.Fatalf("%v came twice", p)
			}
			seen[p] = true
		}
		if err := c.end(); err != nil {
			t.Fatalf("an evicted stream ended with %v", err)
		}
	}
	if len(seen) != total {
		t.Fatalf("%d entries came of %d", len(seen), total)
	}
}

// A consumer that takes nothing holds a bounded part of a long history, and gets all of it in the end.
func TestSlowConsumerIsBounded(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.StreamBytes, c.TotalBytes = metalog.MaxRecord, metalog.MaxRecord })
	all := shards(4)
	const rounds = 1500 // of about 200 bytes each with what is counted beside the records: several times the bound
	c, _ := h.open(latest, withWindow(time.Hour))
	for range rounds {
		h.write(5, all...)
	}
	// The window lets a pointer go before older ones of which the stream was not told yet. So nothing may go before it was told of all.
	for c.heartbeat().GetPending() < uint64(rounds*len(all)) {
	}
	for len(c.got) < rounds*len(all) {
		if used := h.metric("buffered_bytes"); used > 2*metalog.MaxRecord {
			t.Fatalf("%v bytes are buffered", used)
		}
		c.credit(500, 1<<30)
		want := min(len(c.got)+500, rounds*len(all))
		for len(c.got) < want {
			c.next()
		}
	}
	if got := h.metric("log_reads_total"); got == 0 {
		t.Fatal("nothing had to be read again: the test does not test")
	}
	if !slices.IsSortedFunc(c.got, func(a, b *scribev1.StreamEntry) int { return int(a.GetTime() - b.GetTime()) }) {
		t.Error("what is known to the end comes in order")
	}
}

// All strict streams see one order, whatever they are told when.
func TestStrictOrderIsTotal(t *testing.T) {
	h := newHarness(t)
	all := shards(6)
	h.write(1, all[:3]...)
	live, _ := h.open(earliest, plenty, withWindow(0))
	rng := rand.New(rand.NewPCG(3, 4))
	total := 3
	for range 60 {
		some := all[rng.IntN(3):][:1+rng.IntN(3)]
		h.write(1, some...)
		total += len(some)
	}
	live.entries(total)
	late, _ := h.open(earliest, withCredits(7, 1<<30), withWindow(0))
	for len(late.got) < total {
		late.next()
		late.credit(1, 0)
	}
	for i, e := range live.got {
		if l := late.got[i]; l.GetShard() != e.GetShard() || l.GetLsn() != e.GetLsn() {
			t.Fatalf("entry %d is %v in one stream and %v in the other", i, e, l)
		}
	}
	if !slices.IsSortedFunc(live.got, inTotalOrder) {
		t.Fatal("not in the total order")
	}
}

// A record must not overtake older ones of a shard that appears while the server looks for shards:
//
//	stream                        writer
//	Shards: there is A
//	                              B appears, with a record of time 10
//	                              A gets a record of time 11
//	A's record arrives: B, which the listing does not have, may be older
func TestStrictOrderWithShardsThatAppear(t *testing.T) {
	h := newHarness(t)
	known := shardID(0, 1)
	h.write(1, known)
	const rounds = 20
	appeared := 0
	h.log.mu.listed = func() {
		if appeared < rounds {
			appeared++
			h.write(1, shardID(appeared%7, 100-appeared)) // not in order of ids, either
			h.write(1, known)
		}
	}
	c, _ := h.open(earliest, plenty, withWindow(0))
	c.entries(1 + 2*rounds)
	if !slices.IsSortedFunc(c.got, inTotalOrder) {
		t.Fatal("not in the total order")
	}
}

// What was taken from the merge when the eviction comes is sent before it.
func TestEvictionSendsWhatWasTaken(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.StreamBytes, c.TotalBytes = metalog.MaxRecord, metalog.MaxRecord })
	shard := shardID(0, 1)
	for range 2000 {
		h.write(1, shard)
	}
	h.log.failReads(func(_ record.ShardID, from record.LSN, _ int) error {
		if from > 1 {
			h.server.evict()
		}
		return nil
	})
	c, _ := h.open(earliest, plenty)
	if c.evicted(); len(c.got) == 0 || len(c.got) >= 2000 {
		t.Fatalf("%d entries came before the eviction", len(c.got))
	}
}

func TestThousandShards(t *testing.T) {
	for name, opts := range map[string][]option{"unbounded": nil, "window": {withWindow(time.Minute)}, "strict": {withWindow(0)}} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t)
			all := shards(1000)
			h.create(all...)
			for range 3 {
				h.write(1, all...)
			}
			c, _ := h.open(append(opts, earliest, plenty)...)
			c.entries(3000)
			if !slices.IsSortedFunc(c.got, inTotalOrder) {
				t.Fatal("history is not in order")
			}
			h.write(1, all...)
			c.entries(4000)
		})
	}
}

func TestWatermark(t *testing.T) {
	h := newHarness(t)
	all := shards(3)
	h.write(1, all...)
	c, _ := h.open(earliest, plenty, withWindow(time.Second))
	c.entries(3)
	last := c.got[2].GetTime()
	// An idle stream's watermark goes on with the engine's clock.
	c.until(func(r *scribev1.StreamResponse) bool { return r.GetHeartbeat().GetWatermark() > last })
	if b := c.heartbeat(); b.GetPending() != 0 {
		t.Fatalf("pending %d", b.GetPending())
	}
}

func TestEngineTrouble(t *testing.T) {
	boom := errors.New("boom")
	t.Run("passes", func(t *testing.T) {
		h := newHarness(t)
		shard := shardID(0, 1)
		h.write(1, shard)
		c, _ := h.open(earliest, plenty)
		c.entries(1)
		h.log.failReads(func(record.ShardID, record.LSN, int) error { return boom })
		c2, _ := h.open(earliest, plenty)
		c2.heartbeat()
		h.log.failReads(nil)
		c2.entries(1)
	})
	short := func(c *Config) { c.FailAfter = 10 * time.Millisecond }
	t.Run("lasts", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *harness) {
			h.write(1, shardID(0, 1))
			h.log.failReads(func(record.ShardID, record.LSN, int) error { return boom })
			c, _ := h.open(earliest, plenty)
			wantReason(t, c.end(), scribev1.Reason_REASON_NO_BACKEND)
		}, short)
	})
	t.Run("lasts for subscriptions", func(t *testing.T) {
		bubble(t, func(t *testing.T, h *harness) {
			h.write(1, shardID(0, 1))
			c, _ := h.open(latest, plenty)
			h.log.failAll(boom)
			h.create(shardID(1, 1)) // makes the stream ask for the new shard's tail
			wantReason(t, c.end(), scribev1.Reason_REASON_NO_BACKEND)
			wantReason(t, h.dial(latest).end(), scribev1.Reason_REASON_NO_BACKEND)
		}, short)
	})
	t.Run("closed", func(t *testing.T) {
		h := newHarness(t)
		h.write(1, shardID(0, 1))
		c, _ := h.open(earliest, plenty)
		c.entries(1)
		if err := h.engine.Close(); err != nil {
			t.Fatal(err)
		}
		if r := c.evicted(); len(r) != 1 || r[0].GetLsn() != 2 {
			t.Fatalf("evicted with %v", r)
		}
	})
}

// TestCategoryRecreatedUnnoticed: a stream that opens where the view is behind does not begin with a category that was deleted.
func TestCategoryRecreatedUnnoticed(t *testing.T) {
	h := newHarness(t)
	h.write(1, shardID(0, 1))
	if err := h.engine.Retire(t.Context(), testCategoryID); err != nil {
		t.Fatal(err)
	}
	h.categories.behind(testCategory, nil)
	wantReason(t, h.dial(earliest, plenty).end(), scribev1.Reason_REASON_UNKNOWN_CATEGORY)

	h.categories.behind(testCategory, &scribev1.Category{Name: testCategory, Id: testCategoryID + 1, Shards: 1})
	fresh := record.MakeShardID(testCategoryID+1, 0, 1)
	h.write(1, fresh)
	c, _ := h.open(earliest, plenty)
	c.entries(1)
	// It goes on while the view is behind: a new shard makes the stream look whether its category is still there.
	other := record.MakeShardID(testCategoryID+1, 0, 2)
	h.write(1, other)
	c.entries(2)
	if len(c.at) != 2 || c.at[uint64(fresh)] != 2 || c.at[uint64(other)] != 2 {
		t.Errorf("the stream is at %v", c.at)
	}
	wantReason(t, h.dial(resumeAt([]*scribev1.ShardPosition{{Shard: uint64(shardID(0, 1)), Lsn: 1}}), plenty).end(), scribev1.Reason_REASON_INVALID)
}

func TestCategoryDeleted(t *testing.T) {
	h := newHarness(t)
	h.write(1, shardID(0, 1))
	c, _ := h.open(earliest, plenty)
	again, _ := h.open(earliest, plenty)
	h.categories.set(nil)
	wantReason(t, c.end(), scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	h.categories.set(&scribev1.Category{Name: testCategory, Id: testCategoryID + 1, Shards: 1})
	wantReason(t, again.end(), scribev1.Reason_REASON_UNKNOWN_CATEGORY)
}

func TestHeartbeatOption(t *testing.T) {
	h := newHarness(t)
	c, _ := h.open(func(s *scribev1.StreamStart) { s.Heartbeat = durationpb.New(maxHeartbeat) })
	h.categories.set(nil) // would end a stream that ticks
	h.create(shardID(0, 1))
	if c.next().GetShardAdded() == nil {
		t.Fatal("a heartbeat came early")
	}
}
