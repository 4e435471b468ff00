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

func positionAt(shard record.ShardID, lsn record.LSN) metalog.Position {
	return metalog.Position{Shard: shard, LSN: lsn}
}

// long is a heartbeat longer than any case: updates have another cause.
const long = time.Hour

var subscribeCases = []testCase{
	{name: "a subscription gets the past, then what is new", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 5)
		all, late := e.follow(long, positionAt(shardA, 1)), e.follow(long, positionAt(shardA, 4))
		all.waitPosition(shardA, 6)
		late.waitPosition(shardA, 6)
		for i := range 20 {
			e.appendAll(appendTo(shardA, epoch, fmt.Sprint("s", i)))
			all.waitPosition(shardA, record.LSN(7+i))
		}
		s := late.waitPosition(shardA, 26)
		wantEqual(e, "first", string(s.entries[0].Data), "r3")
		wantEqual(e, "last", string(s.entries[len(s.entries)-1].Data), "s19")
		all.stopChecked()
		late.stopChecked()
	}},
	{name: "an idle shard has a watermark at once and at heartbeats", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 1)
		f := e.follow(long, positionAt(shardA, 2), positionAt(shardB, 1))
		f.waitFor(shardA, "the first watermark", func(s *followedShard) bool { return s.watermark > 0 && s.tail == 2 })
		f.waitFor(shardB, "the first watermark", func(s *followedShard) bool { return s.watermark > 0 && s.tail == 1 })
		f.stopChecked()
		f = e.follow(time.Nanosecond, positionAt(shardA, 2), positionAt(shardB, 1)) // means the shortest there is
		for range 3 {
			if e.in.Clock != nil {
				e.in.Clock.Advance(time.Second)
			}
			now := e.tailOf(shardA).Watermark
			f.waitWatermark(shardA, now)
			f.waitWatermark(shardB, now)
		}
		f.stopChecked()
	}},
	{name: "a shard is followed from when it appears", test: func(e *caseEnv) {
		f := e.follow(long, positionAt(shardA, 1), positionAt(shardB, 3))
		f.waitFor(shardA, "the first watermark", func(s *followedShard) bool { return s.updates > 0 })
		epochs := e.openShards(shardA, shardB)
		e.appendAll(appendTo(shardA, epochs[0], "a"), appendTo(shardB, epochs[1], "1", "2"))
		f.waitPosition(shardA, 2)
		e.appendAll(appendTo(shardB, epochs[1], "3", "4")) // a position beyond the tail waits for it
		s := f.waitPosition(shardB, 5)
		wantEqual(e, "records", len(s.entries), 2)
		wantEqual(e, "first", string(s.entries[0].Data), "3")
		f.stopChecked()
	}},
	{name: "a position that was trimmed goes on at the first record", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		e.fillShard(shardA, epochs[0], "r", 10)
		e.fillShard(shardB, epochs[1], "r", 10)
		for s, before := range map[record.ShardID]record.LSN{shardA: 6, shardB: 11} {
			e.mustSucceed(e.log.Trim(e.ctx, s, before))
		}
		f := e.follow(long, positionAt(shardA, 2), positionAt(shardB, 2))
		s := f.waitPosition(shardA, 11)
		wantEqual(e, "trimmed to", s.trimmedTo, 6)
		wantEqual(e, "records", len(s.entries), 5)
		s = f.waitPosition(shardB, 11)
		wantEqual(e, "trimmed to", s.trimmedTo, 11)
		e.appendAll(appendTo(shardB, epochs[1], "next"))
		wantEqual(e, "records", len(f.waitPosition(shardB, 12).entries), 1)
		f.stopChecked()
		f = e.follow(long, positionAt(shardA, 6))
		wantEqual(e, "trimmed to", f.waitPosition(shardA, 11).trimmedTo, 0)
		f.stopChecked()
	}},
	{name: "a sealed shard ends with its last record", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB, shardC)
		e.fillShard(shardA, epochs[0], "r", 3)
		e.fillShard(shardC, epochs[2], "r", 3)
		seal := func(s record.ShardID) {
			if _, err := e.log.Seal(e.ctx, s); err != nil {
				e.Fatal(err)
			}
		}
		seal(shardC)
		f := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1), positionAt(shardB, 1), positionAt(shardC, 2))
		sealed := func(s *followedShard) bool { return s.sealed }
		wantEqual(e, "records", len(f.waitFor(shardC, "the end", sealed).entries), 2)
		f.waitPosition(shardA, 4)
		e.appendAll(appendTo(shardA, epochs[0], "last"))
		seal(shardA)
		wantEqual(e, "records", len(f.waitFor(shardA, "the end", sealed).entries), 4)
		// The others continue, and the follower would find a second update of a sealed one.
		e.appendAll(appendTo(shardB, epochs[1], "b"))
		f.waitPosition(shardB, 2)
		beat := f.waitFor(shardB, "an update", func(s *followedShard) bool { return true }).updates
		f.waitFor(shardB, "two heartbeats", func(s *followedShard) bool { return s.updates >= beat+2 })
		f.stopChecked()
	}},
	{name: "a long past comes in bounded parts", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		big := bytes.Repeat([]byte("x"), metalog.MaxRecord)
		const n = 300 // 19 MiB
		for range n / 100 {
			e.appendAll(metalog.ShardAppend{Shard: shardA, Epoch: epochs[0], Records: repeatRecord(big, 100)})
		}
		small := make([]string, 12_000)
		for i := range small {
			small[i] = fmt.Sprint(i)
		}
		e.appendAll(appendTo(shardB, epochs[1], small...))
		var largest int
		f := e.followWith(long, func(updates []metalog.Update) {
			size := 0
			for _, u := range updates {
				for _, en := range u.Entries {
					size += len(en.Data)
				}
			}
			largest = max(largest, size)
		}, positionAt(shardA, 1), positionAt(shardB, 1))
		f.waitPosition(shardA, n+1)
		s := f.waitPosition(shardB, record.LSN(len(small)+1))
		wantEqual(e, "last", string(s.entries[len(small)-1].Data), small[len(small)-1])
		f.stopChecked()
		if largest > metalog.MaxReadBytes+metalog.MaxRecord {
			e.Fatalf("one call held %d bytes", largest)
		}
	}},
	{name: "a slow subscriber holds back only itself", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		release, reached := make(chan struct{}), make(chan struct{})
		var once sync.Once
		slow := e.followWith(metalog.MinHeartbeat, func([]metalog.Update) {
			once.Do(func() { close(reached) })
			select {
			case <-release:
			case <-e.ctx.Done():
			}
		}, positionAt(shardA, 1))
		<-reached
		fast := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1))
		for i := range 300 {
			e.appendAll(appendTo(shardA, epoch, fmt.Sprint(i)))
		}
		fast.waitPosition(shardA, 301)
		close(release)
		slow.waitPosition(shardA, 301)
		fast.stopChecked()
		slow.stopChecked()
	}},
	{name: "the callback's error ends the subscription", test: func(e *caseEnv) {
		e.openOne(shardA)
		mine := errors.New("mine")
		err := e.log.Subscribe(e.ctx, []metalog.Position{positionAt(shardA, 1)}, 0, func([]metalog.Update) error { return mine })
		if err != mine { //nolint:errorlint // as it is, not wrapped
			e.Fatalf("Subscribe returned %v", err)
		}
	}},
	{name: "a subscription over 10,000 shards", test: func(e *caseEnv) {
		var shards []record.ShardID
		var from []metalog.Position
		for i := range metalog.MaxShards {
			shards = append(shards, record.MakeShardID(5, uint16(i), 1))
			from = append(from, positionAt(shards[i], 1))
		}
		f := e.follow(time.Second, from...)
		epochs := e.openShards(shards...)
		e.appendAll(appendTo(shards[9_999], epochs[9_999], "last"))
		f.waitPosition(shards[9_999], 2)
		for i := 0; i < len(shards); i += 97 {
			e.appendAll(appendTo(shards[i], epochs[i], shards[i].String()))
		}
		for i := 0; i < len(shards); i += 97 {
			s := f.waitPosition(shards[i], 2)
			wantEqual(e, "record", string(s.entries[0].Data), shards[i].String())
		}
		for _, s := range shards {
			f.waitFor(s, "a watermark", func(s *followedShard) bool { return s.watermark > 0 })
		}
		f.stopChecked()
	}},
	{name: "many subscribers of a shard", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		var followers []*checkedFollower
		for range 200 {
			followers = append(followers, e.follow(long, positionAt(shardA, 1)))
		}
		for i := range 20 {
			e.appendAll(appendTo(shardA, epoch, fmt.Sprint(i)))
		}
		for _, f := range followers {
			f.waitPosition(shardA, 21)
			f.stopChecked()
		}
	}},
}

func repeatRecord(b []byte, n int) [][]byte {
	out := make([][]byte, n)
	for i := range out {
		out[i] = b
	}
	return out
}

var watermarkCases = []testCase{
	{name: "watermarks hold under concurrent appends", test: watermarksHold},
	{name: "the tail's watermark holds", test: func(e *caseEnv) {
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
					if err := e.tryAppend(appendTo(shardA, epoch, "x")); err != nil {
						e.Error(err)
						return
					}
				}
			})
		}
		var seen []metalog.State
		for range 300 {
			seen = append(seen, e.tailOf(shardA))
		}
		close(stop)
		wg.Wait()
		entries := e.readAll(shardA, 1)
		for _, st := range seen {
			if int(st.NextLSN) <= len(entries) && entries[st.NextLSN-1].Time < st.Watermark {
				e.Fatalf("LSN %d has time %d, but the watermark at the tail %d was %d", st.NextLSN, entries[st.NextLSN-1].Time, st.NextLSN, st.Watermark)
			}
		}
	}},
	{name: "the watermark follows the clock", needs: hasClock, test: func(e *caseEnv) {
		e.openOne(shardA)
		for _, d := range []time.Duration{0, time.Second, time.Hour, 24 * time.Hour} {
			e.in.Clock.Advance(d)
			now := e.in.Clock.Now()
			if w := e.tailOf(shardA).Watermark; w < now {
				e.Fatalf("the watermark of an idle shard is %d at time %d", w, now)
			}
		}
		f := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1))
		for range 3 {
			e.in.Clock.Advance(time.Hour)
			f.waitWatermark(shardA, e.in.Clock.Now())
		}
		f.stopChecked()
	}},
	{name: "a watermark holds when the clock goes back", needs: hasClock, test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		w := e.tailOf(shardA).Watermark
		e.in.Clock.Advance(-time.Hour)
		if done := e.appendAll(appendTo(shardA, epoch, "x"))[0]; done.Time < w {
			e.Fatalf("a record has time %d, but the watermark was %d", done.Time, w)
		}
		if again := e.tailOf(shardA).Watermark; again < w {
			e.Fatalf("the watermark went from %d to %d", w, again)
		}
	}},
}

// watermarksHold appends to all shards while followers with the shortest heartbeat check each update, some of them starting late:
// a watermark must not be taken from the clock while a batch with an earlier time is about to appear.
func watermarksHold(e *caseEnv) {
	var shards []record.ShardID
	var from []metalog.Position
	for i := range 8 {
		shards = append(shards, record.MakeShardID(7, uint16(i), 1))
		from = append(from, positionAt(shards[i], 1))
	}
	epochs := e.openShards(shards...)
	const writers, each = 8, 150
	var wg sync.WaitGroup
	var followers []*checkedFollower
	for range 3 {
		followers = append(followers, e.follow(metalog.MinHeartbeat, from...))
	}
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				a, b := (w+i)%len(shards), (w+i*3+1)%len(shards)
				appends := []metalog.ShardAppend{appendTo(shards[a], epochs[a], "x")}
				if a != b {
					appends = append(appends, appendTo(shards[b], epochs[b], "y"))
				}
				if err := e.tryAppend(appends...); err != nil {
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
	e.mustSucceed(err)
	for _, f := range followers {
		for _, st := range states {
			f.waitPosition(st.Shard, st.NextLSN)
		}
		f.stopChecked()
	}
}

var watchCases = []testCase{
	{name: "a watch has the shards there are, then each new one once", test: func(e *caseEnv) {
		var mu sync.Mutex
		seen := map[record.ShardID]int{}
		calls, news := 0, make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(e.ctx)
		e.openShards(shardB, record.MakeShardID(8, 0, 0))
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
		wantEqual(e, "shards at first", len(seen), 1)
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
		e.wantError(<-ended, context.Canceled)
		for s, n := range seen {
			if n != 1 || s.Category() != 7 {
				e.Fatalf("shard %v was told %d times", s, n)
			}
		}
	}},
	{name: "a watch of an empty category is told so", test: func(e *caseEnv) {
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
	{name: "watches that begin during opens miss none", test: func(e *caseEnv) {
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
