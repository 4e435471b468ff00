package metalog_test

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
	{name: "an idle shard has a watermark at once and at heartbeats", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, 1)
		f := e.follow(long, positionAt(shardA, 2), positionAt(shardB, 1))
		f.waitFor(shardA, "the first watermark", func(s *followedShard) bool { return s.Watermark > 0 && s.Tail == 2 })
		f.waitFor(shardB, "the first watermark", func(s *followedShard) bool { return s.Watermark > 0 && s.Tail == 1 })
		f.stopChecked()
		f = e.follow(time.Nanosecond, positionAt(shardA, 2), positionAt(shardB, 1)) // means the shortest there is
		for range 3 {
			e.in.clock.Advance(time.Second)
			now := e.tailOf(shardA).Watermark
			f.waitWatermark(shardA, now)
			f.waitWatermark(shardB, now)
		}
		f.stopChecked()
	}},
	{name: "a long past comes in bounded parts", needs: isNotRaced, test: func(e *caseEnv) {
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
			f.waitFor(s, "a watermark", func(s *followedShard) bool { return s.Watermark > 0 })
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
		ctx, stop := context.WithCancel(e.ctx)
		defer stop()
		wait := e.startAll(4, func(int) error {
			for ctx.Err() == nil {
				if err := e.tryAppend(appendTo(shardA, epoch, "x")); err != nil {
					return err
				}
			}
			return nil
		})
		var seen []metalog.State
		for range 300 {
			seen = append(seen, e.tailOf(shardA))
		}
		stop()
		wait()
		entries := e.readAll(shardA, 1)
		for _, st := range seen {
			if int(st.NextLSN) <= len(entries) && entries[st.NextLSN-1].Time < st.Watermark {
				e.Fatalf("LSN %d has time %d, but the watermark at the tail %d was %d", st.NextLSN, entries[st.NextLSN-1].Time, st.NextLSN, st.Watermark)
			}
		}
	}},
	{name: "the watermark follows the clock", test: func(e *caseEnv) {
		e.openOne(shardA)
		for _, d := range []time.Duration{0, time.Second, time.Hour, 24 * time.Hour} {
			e.in.clock.Advance(d)
			now := e.in.clock.Now()
			w := e.tailOf(shardA).Watermark
			for w < now && e.in.lags && e.ctx.Err() == nil {
				w = e.tailOf(shardA).Watermark
			}
			if w < now {
				e.Fatalf("the watermark of an idle shard is %d at time %d", w, now)
			}
		}
		f := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1))
		for range 3 {
			e.in.clock.Advance(time.Hour)
			f.waitWatermark(shardA, e.in.clock.Now())
		}
		f.stopChecked()
	}},
	{name: "a watermark holds when the clock goes back", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		w := e.tailOf(shardA).Watermark
		e.in.clock.Advance(-time.Hour)
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
	var followers []*checkedFollower
	for range 3 {
		followers = append(followers, e.follow(metalog.MinHeartbeat, from...))
	}
	wait := e.startAll(writers, func(w int) error {
		for i := range each {
			a, b := (w+i)%len(shards), (w+i*3+1)%len(shards)
			appends := []metalog.ShardAppend{appendTo(shards[a], epochs[a], "x")}
			if a != b {
				appends = append(appends, appendTo(shards[b], epochs[b], "y"))
			}
			if err := e.tryAppend(appends...); err != nil {
				return err
			}
			if w == 0 && i%40 == 0 {
				e.in.clock.Advance(time.Millisecond)
			}
		}
		return nil
	})
	for range 3 {
		followers = append(followers, e.follow(metalog.MinHeartbeat, from...))
	}
	wait()
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
		e.startAll(4, func(w int) error { // several open the same ones
			for i := range uint16(30) {
				if _, err := e.log.Open(e.ctx, "w", []record.ShardID{record.MakeShardID(7, i, 9), record.MakeShardID(9, i, uint16(w))}); err != nil {
					return err
				}
			}
			return nil
		})()
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
		wait := e.startAll(6, func(int) error {
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
				return fmt.Errorf("saw %d of %d shards: %w", len(seen), n, err)
			}
			return nil
		})
		for i := range n {
			e.openOne(record.MakeShardID(7, uint16(n-i), 0))
		}
		wait()
	}},
}
