package metalogtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

func asTrimmed(err error, target **metalog.TrimmedError) bool { return errors.As(err, target) }

func at(shard record.ShardID, lsn record.LSN) metalog.Position {
	return metalog.Position{Shard: shard, LSN: lsn}
}

// long is a heartbeat that does not come during a case: what arrives, arrives for another reason.
const long = time.Hour

var subscribeCases = []testCase{
	{name: "a subscription gets the past, then what is new", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 5)
		all, late := e.follow(long, at(shardA, 1)), e.follow(long, at(shardA, 4))
		all.reaches(shardA, 6)
		late.reaches(shardA, 6)
		for i := range 20 {
			e.append(to(shardA, epoch, fmt.Sprint("s", i)))
			all.reaches(shardA, record.LSN(7+i))
		}
		s := late.reaches(shardA, 26)
		equal(e, "first", string(s.entries[0].Data), "r3")
		equal(e, "last", string(s.entries[len(s.entries)-1].Data), "s19")
		all.stop()
		late.stop()
	}},
	{name: "an idle shard has a watermark at once and at heartbeats", test: func(e *env) {
		epoch := e.openOne(shardA)
		e.fill(shardA, epoch, "r", 1)
		f := e.follow(long, at(shardA, 2), at(shardB, 1))
		f.until(shardA, "the first watermark", func(s *followed) bool { return s.watermark > 0 && s.tail == 2 })
		f.until(shardB, "the first watermark", func(s *followed) bool { return s.watermark > 0 && s.tail == 1 })
		f.stop()
		f = e.follow(time.Nanosecond, at(shardA, 2), at(shardB, 1)) // means the shortest there is
		for range 3 {
			if e.in.Clock != nil {
				e.in.Clock.Advance(time.Second)
			}
			now := e.tail(shardA).Watermark
			f.beats(shardA, now)
			f.beats(shardB, now)
		}
		f.stop()
	}},
	{name: "a shard is followed from when it appears", test: func(e *env) {
		f := e.follow(long, at(shardA, 1), at(shardB, 3))
		f.until(shardA, "the first watermark", func(s *followed) bool { return s.updates > 0 })
		epochs := e.open(shardA, shardB)
		e.append(to(shardA, epochs[0], "a"), to(shardB, epochs[1], "1", "2"))
		f.reaches(shardA, 2)
		e.append(to(shardB, epochs[1], "3", "4")) // a position beyond the tail waits for it
		s := f.reaches(shardB, 5)
		equal(e, "records", len(s.entries), 2)
		equal(e, "first", string(s.entries[0].Data), "3")
		f.stop()
	}},
	{name: "a position that was trimmed goes on at the first record", test: func(e *env) {
		epochs := e.open(shardA, shardB)
		e.fill(shardA, epochs[0], "r", 10)
		e.fill(shardB, epochs[1], "r", 10)
		for s, before := range map[record.ShardID]record.LSN{shardA: 6, shardB: 11} {
			if err := e.log.Trim(e.ctx, s, before); err != nil {
				e.Fatal(err)
			}
		}
		f := e.follow(long, at(shardA, 2), at(shardB, 2))
		s := f.reaches(shardA, 11)
		equal(e, "trimmed to", s.trimmedTo, 6)
		equal(e, "records", len(s.entries), 5)
		s = f.reaches(shardB, 11)
		equal(e, "trimmed to", s.trimmedTo, 11)
		e.append(to(shardB, epochs[1], "next"))
		equal(e, "records", len(f.reaches(shardB, 12).entries), 1)
		f.stop()
		f = e.follow(long, at(shardA, 6))
		equal(e, "trimmed to", f.reaches(shardA, 11).trimmedTo, 0)
		f.stop()
	}},
	{name: "a sealed shard ends with its last record", test: func(e *env) {
		epochs := e.open(shardA, shardB, shardC)
		e.fill(shardA, epochs[0], "r", 3)
		e.fill(shardC, epochs[2], "r", 3)
		seal := func(s record.ShardID) {
			if _, err := e.log.Seal(e.ctx, s); err != nil {
				e.Fatal(err)
			}
		}
		seal(shardC)
		f := e.follow(metalog.MinHeartbeat, at(shardA, 1), at(shardB, 1), at(shardC, 2))
		sealed := func(s *followed) bool { return s.sealed }
		equal(e, "records", len(f.until(shardC, "the end", sealed).entries), 2)
		f.reaches(shardA, 4)
		e.append(to(shardA, epochs[0], "last"))
		seal(shardA)
		equal(e, "records", len(f.until(shardA, "the end", sealed).entries), 4)
		// The others go on, and a second update of a sealed one would be found by the follower.
		e.append(to(shardB, epochs[1], "b"))
		f.reaches(shardB, 2)
		beat := f.until(shardB, "an update", func(s *followed) bool { return true }).updates
		f.until(shardB, "two heartbeats", func(s *followed) bool { return s.updates >= beat+2 })
		f.stop()
	}},
	{name: "a long past comes in bounded parts", test: func(e *env) {
		epochs := e.open(shardA, shardB)
		big := bytes.Repeat([]byte("x"), metalog.MaxRecord)
		const n = 300 // 19 MiB
		for range n / 100 {
			e.append(metalog.ShardAppend{Shard: shardA, Epoch: epochs[0], Records: repeat(big, 100)})
		}
		small := make([]string, 12_000)
		for i := range small {
			small[i] = fmt.Sprint(i)
		}
		e.append(to(shardB, epochs[1], small...))
		var largest int
		f := e.followWith(long, func(updates []metalog.Update) {
			size := 0
			for _, u := range updates {
				for _, en := range u.Entries {
					size += len(en.Data)
				}
			}
			largest = max(largest, size)
		}, at(shardA, 1), at(shardB, 1))
		f.reaches(shardA, n+1)
		s := f.reaches(shardB, record.LSN(len(small)+1))
		equal(e, "last", string(s.entries[len(small)-1].Data), small[len(small)-1])
		f.stop()
		if largest > metalog.MaxReadBytes+metalog.MaxRecord {
			e.Fatalf("one call held %d bytes", largest)
		}
	}},
	{name: "a slow subscriber holds back only itself", test: func(e *env) {
		epoch := e.openOne(shardA)
		release, reached := make(chan struct{}), make(chan struct{})
		var once sync.Once
		slow := e.followWith(metalog.MinHeartbeat, func([]metalog.Update) {
			once.Do(func() { close(reached) })
			select {
			case <-release:
			case <-e.ctx.Done():
			}
		}, at(shardA, 1))
		<-reached
		fast := e.follow(metalog.MinHeartbeat, at(shardA, 1))
		for i := range 300 {
			e.append(to(shardA, epoch, fmt.Sprint(i)))
		}
		fast.reaches(shardA, 301)
		close(release)
		slow.reaches(shardA, 301)
		fast.stop()
		slow.stop()
	}},
	{name: "the callback's error ends the subscription", test: func(e *env) {
		e.openOne(shardA)
		mine := errors.New("mine")
		err := e.log.Subscribe(e.ctx, []metalog.Position{at(shardA, 1)}, 0, func([]metalog.Update) error { return mine })
		if err != mine { //nolint:errorlint // as it is, not wrapped
			e.Fatalf("Subscribe returned %v", err)
		}
	}},
	{name: "a subscription over 10,000 shards", test: func(e *env) {
		var shards []record.ShardID
		var from []metalog.Position
		for i := range metalog.MaxShards {
			shards = append(shards, record.MakeShardID(5, uint16(i), 1))
			from = append(from, at(shards[i], 1))
		}
		f := e.follow(time.Second, from...)
		epochs := e.open(shards...)
		e.append(to(shards[9_999], epochs[9_999], "last"))
		f.reaches(shards[9_999], 2)
		for i := 0; i < len(shards); i += 97 {
			e.append(to(shards[i], epochs[i], shards[i].String()))
		}
		for i := 0; i < len(shards); i += 97 {
			s := f.reaches(shards[i], 2)
			equal(e, "record", string(s.entries[0].Data), shards[i].String())
		}
		for _, s := range shards {
			f.until(s, "a watermark", func(s *followed) bool { return s.watermark > 0 })
		}
		f.stop()
	}},
	{name: "many subscribers of a shard", test: func(e *env) {
		epoch := e.openOne(shardA)
		var followers []*follower
		for range 200 {
			followers = append(followers, e.follow(long, at(shardA, 1)))
		}
		for i := range 20 {
			e.append(to(shardA, epoch, fmt.Sprint(i)))
		}
		for _, f := range followers {
			f.reaches(shardA, 21)
			f.stop()
		}
	}},
}

func repeat(b []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

var watermarkCases = []testCase{
	{name: "watermarks hold under concurrent appends", test: watermarksHold},
	{name: "the tail's watermark holds", test: func(e *env) {
		epoch := e.openOne(shardA)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					if err := e.try(to(shardA, epoch, "x")); err != nil {
						e.Error(err)
						return
					}
				}
			})
		}
		var seen []metalog.State
		for range 300 {
			seen = append(seen, e.tail(shardA))
		}
		close(stop)
		wg.Wait()
		entries := e.read(shardA, 1)
		for _, st := range seen {
			if int(st.NextLSN) <= len(entries) && entries[st.NextLSN-1].Time < st.Watermark {
				e.Fatalf("LSN %d has time %d, but the watermark at the tail %d was %d", st.NextLSN, entries[st.NextLSN-1].Time, st.NextLSN, st.Watermark)
			}
		}
	}},
	{name: "the watermark follows the clock", needs: hasClock, test: func(e *env) {
		e.openOne(shardA)
		for _, d := range []time.Duration{0, time.Second, time.Hour, 24 * time.Hour} {
			e.in.Clock.Advance(d)
			now := e.in.Clock.Now()
			if w := e.tail(shardA).Watermark; w < now {
				e.Fatalf("the watermark of an idle shard is %d at time %d", w, now)
			}
		}
		f := e.follow(metalog.MinHeartbeat, at(shardA, 1))
		for range 3 {
			e.in.Clock.Advance(time.Hour)
			f.beats(shardA, e.in.Clock.Now())
		}
		f.stop()
	}},
	{name: "a watermark holds when the clock goes back", needs: hasClock, test: func(e *env) {
		epoch := e.openOne(shardA)
		w := e.tail(shardA).Watermark
		e.in.Clock.Advance(-time.Hour)
		if done := e.append(to(shardA, epoch, "x"))[0]; done.Time < w {
			e.Fatalf("a record has time %d, but the watermark was %d", done.Time, w)
		}
		if again := e.tail(shardA).Watermark; again < w {
			e.Fatalf("the watermark went from %d to %d", w, again)
		}
	}},
}

// watermarksHold has writers in all shards while followers with the shortest heartbeat check each update, some of them arriving
// late: a watermark must not be taken from the clock while a batch with an earlier time is about to appear.
func watermarksHold(e *env) {
	var shards []record.ShardID
	var from []metalog.Position
	for i := range 8 {
		shards = append(shards, record.MakeShardID(7, uint16(i), 1))
		from = append(from, at(shards[i], 1))
	}
	epochs := e.open(shards...)
	const writers, each = 8, 150
	var wg sync.WaitGroup
	var followers []*follower
	for range 3 {
		followers = append(followers, e.follow(metalog.MinHeartbeat, from...))
	}
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				a, b := (w+i)%len(shards), (w+i*3+1)%len(shards)
				appends := []metalog.ShardAppend{to(shards[a], epochs[a], "x")}
				if a != b {
					appends = append(appends, to(shards[b], epochs[b], "y"))
				}
				if err := e.try(appends...); err != nil {
					e.Error(err)
					return
				}
				if w == 0 && i%40 == 0 && e.in.Clock != nil {
					e.in.Clock.Advance(time.Millisecond)
				}
			}
		})
	}
	for range 3 {
		followers = append(followers, e.follow(metalog.MinHeartbeat, from...))
	}
	wg.Wait()
	states, err := e.log.Tail(e.ctx, shards)
	if err != nil {
		e.Fatal(err)
	}
	for _, f := range followers {
		for _, st := range states {
			f.reaches(st.Shard, st.NextLSN)
		}
		f.stop()
	}
}

var watchCases = []testCase{
	{name: "a watch has the shards there are, then each new one once", test: func(e *env) {
		var mu sync.Mutex
		seen := map[record.ShardID]int{}
		calls, news := 0, make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(e.ctx)
		e.open(shardB, record.MakeShardID(8, 0, 0))
		ended := make(chan error, 1)
		log := e.log
		go func() {
			ended <- log.WatchShards(ctx, 7, func(shards []record.ShardID) error {
				mu.Lock()
				defer mu.Unlock()
				calls++
				for _, s := range shards {
					seen[s]++
				}
				select {
				case news <- struct{}{}:
				default:
				}
				return nil
			})
		}()
		<-news
		mu.Lock()
		equal(e, "shards at first", len(seen), 1)
		mu.Unlock()
		var wg sync.WaitGroup
		for w := range 4 { // several open the same ones
			wg.Go(func() {
				for i := range 30 {
					if _, err := e.log.Open(e.ctx, "w", []record.ShardID{record.MakeShardID(7, uint16(i), 9), record.MakeShardID(9, uint16(i), uint16(w))}); err != nil {
						e.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for {
			mu.Lock()
			n := len(seen)
			mu.Unlock()
			if n == 31 {
				break
			}
			select {
			case <-news:
			case <-e.ctx.Done():
				e.Fatalf("saw %d of 31 shards", n)
			}
		}
		cancel()
		e.is(<-ended, context.Canceled)
		for s, n := range seen {
			if n != 1 || s.Category() != 7 {
				e.Fatalf("shard %v was told %d times", s, n)
			}
		}
	}},
	{name: "a watch of an empty category is told so", test: func(e *env) {
		mine := errors.New("mine")
		err := e.log.WatchShards(e.ctx, 7, func(shards []record.ShardID) error {
			if len(shards) != 0 {
				return fmt.Errorf("the category has shards %v", shards)
			}
			return mine
		})
		if err != mine { //nolint:errorlint // as it is, not wrapped
			e.Fatalf("WatchShards returned %v", err)
		}
	}},
	{name: "watches that begin during opens miss none", test: func(e *env) {
		const n = 100
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				seen := map[record.ShardID]bool{}
				done := errors.New("done")
				err := e.log.WatchShards(e.ctx, 7, func(shards []record.ShardID) error {
					for _, s := range shards {
						if seen[s] {
							return fmt.Errorf("shard %v came twice", s)
						}
						seen[s] = true
					}
					if len(seen) == n {
						return done
					}
					return nil
				})
				if !errors.Is(err, done) {
					e.Errorf("saw %d of %d shards: %v", len(seen), n, err)
				}
			})
		}
		for i := range n {
			e.openOne(record.MakeShardID(7, uint16(n-i), 0))
		}
		wg.Wait()
	}},
}
