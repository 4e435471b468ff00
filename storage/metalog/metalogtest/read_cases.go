package metalogtest

import (
	"fmt"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var readCases = []testCase{
	{name: "read keeps to its limits", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.appendAll(appendTo(shardA, epoch, "0123456789", "0123456789", "0123456789", "x", "0123456789"))
		for _, c := range []struct {
			from           record.LSN
			records, bytes int
			want           int
		}{
			{1, 0, 0, 5},
			{1, 2, 0, 2},
			{1, 0, 20, 2},
			{1, 0, 29, 2},
			{1, 0, 30, 3},
			{1, 0, 31, 4},
			{1, 0, 1, 1}, // the first record always
			{4, 0, 1, 1},
			{3, -1, -1, 3},
			{5, 1 << 30, 1 << 30, 1},
			{6, 0, 0, 0},
			{7, 0, 0, 0},
			{1 << 60, 0, 0, 0},
		} {
			entries, err := e.log.Read(e.ctx, shardA, c.from, c.records, c.bytes)
			if err != nil || len(entries) != c.want {
				e.Fatalf("Read from %d of %d records and %d bytes returned %d entries, %v; want %d", c.from, c.records, c.bytes, len(entries), err, c.want)
			}
			if c.want > 0 {
				wantEqual(e, "first LSN", entries[0].LSN, c.from)
			}
		}
		_, err := e.log.Read(e.ctx, shardA, 0, 0, 0)
		e.wantError(err, metalog.ErrInvalid)
	}},
	{name: "one answer is bounded", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		many := make([]string, metalog.MaxReadRecords+10)
		for i := range many {
			many[i] = fmt.Sprint(i)
		}
		e.appendAll(appendTo(shardA, epoch, many...))
		entries, err := e.log.Read(e.ctx, shardA, 1, metalog.MaxReadRecords+5, 0)
		e.mustSucceed(err)
		wantEqual(e, "records", len(entries), metalog.MaxReadRecords)
		wantEqual(e, "all records", len(e.readAll(shardA, 1)), len(many))
	}},
	{name: "a shard that does not exist is empty", test: func(e *caseEnv) {
		e.wantRecords(shardA, 1)
		e.openOne(shardB)
		e.wantRecords(shardB, 1)
	}},
	{name: "tail answers in the order of the question", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardC)
		e.fillShard(shardC, epochs[1], "c", 3)
		states, err := e.log.Tail(e.ctx, []record.ShardID{shardC, shardB, shardA, shardC})
		e.mustSucceed(err)
		for i, want := range []metalog.State{
			{Shard: shardC, FirstLSN: 1, NextLSN: 4, Epoch: epochs[1]},
			{Shard: shardB, FirstLSN: 1, NextLSN: 1},
			{Shard: shardA, FirstLSN: 1, NextLSN: 1, Epoch: epochs[0]},
			{Shard: shardC, FirstLSN: 1, NextLSN: 4, Epoch: epochs[1]},
		} {
			got := states[i]
			if got.Watermark == 0 {
				e.Fatalf("state %d has no watermark", i)
			}
			got.Watermark, got.LastTime = 0, 0
			wantEqual(e, fmt.Sprint("state ", i), got, want)
		}
	}},
	{name: "shards are those of the category", test: func(e *caseEnv) {
		top := record.MakeShardID(1<<32-1, 1<<16-1, 1<<16-1)
		all := []record.ShardID{
			record.MakeShardID(6, 65535, 65535), shardC, shardA, shardB, record.MakeShardID(8, 0, 0), top, record.MakeShardID(0, 0, 0),
		}
		epochs := e.openShards(all...)
		e.fillShard(shardA, epochs[2], "a", 2)
		for category, want := range map[uint32][]record.ShardID{
			7: {shardA, shardB, shardC}, 6: all[:1], 8: all[4:5], 9: nil, 1<<32 - 1: {top}, 0: all[6:],
		} {
			states, err := e.log.Shards(e.ctx, category)
			e.mustSucceed(err)
			var got []record.ShardID
			for _, st := range states {
				got = append(got, st.Shard)
			}
			wantEqual(e, fmt.Sprint("shards of category ", category), fmt.Sprint(got), fmt.Sprint(want))
			if category == 7 && (states[0].NextLSN != 3 || states[0].Epoch != epochs[2]) {
				e.Fatalf("the state of shard %v is %+v", shardA, states[0])
			}
		}
	}},
}

var seekCases = []testCase{
	{name: "seek finds the first record at or after a time", needs: hasClock, test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		var times []int64
		for i := range 40 {
			if i%4 != 0 { // runs of records with one time
				e.in.Clock.Advance(time.Duration(i) * time.Second)
			}
			done := e.appendAll(appendTo(shardA, epochs[0], "x", "y"))[0]
			times = append(times, done.Time, done.Time)
		}
		e.appendAll(appendTo(shardB, epochs[1], "only"))
		check := func(first record.LSN) {
			for _, at := range times {
				for _, t := range []int64{at - 1, at, at + 1} {
					want := first
					for want <= record.LSN(len(times)) && times[want-1] < t {
						want++
					}
					got, err := e.log.Seek(e.ctx, []record.ShardID{shardC, shardA}, t)
					e.mustSucceed(err)
					wantEqual(e, "position in a shard that does not exist", got[0], 1)
					wantEqual(e, fmt.Sprint("position of time ", t), got[1], want)
				}
			}
		}
		check(1)
		for _, t := range []int64{0, -5, 1} {
			got, err := e.log.Seek(e.ctx, []record.ShardID{shardA}, t)
			e.mustSucceed(err)
			wantEqual(e, "position of the earliest time", got[0], 1)
		}
		got, err := e.log.Seek(e.ctx, []record.ShardID{shardA, shardB}, 1<<62)
		e.mustSucceed(err)
		wantEqual(e, "position of the latest time", got[0], 81)
		wantEqual(e, "position of the latest time", got[1], 2)
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 33))
		check(33)
	}},
}

var trimCases = []testCase{
	{name: "trim removes the oldest", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		done := e.fillShard(shardA, epoch, "r", 10)
		for _, c := range []struct{ before, first record.LSN }{{4, 4}, {4, 4}, {2, 4}, {0, 4}, {1, 4}, {11, 11}, {5, 11}} {
			if err := e.log.Trim(e.ctx, shardA, c.before); err != nil {
				e.Fatalf("Trim below %d: %v", c.before, err)
			}
			st := e.tailOf(shardA)
			if st.FirstLSN != c.first || st.NextLSN != 11 || st.LastTime != done[9].Time {
				e.Fatalf("after a trim below %d the state is %+v", c.before, st)
			}
			_, err := e.log.Read(e.ctx, shardA, c.first-1, 0, 0)
			e.wantError(err, metalog.ErrTrimmed)
			wantEqual(e, "trimmed", *asError[*metalog.TrimmedError](e, err), metalog.TrimmedError{Shard: shardA, LSN: c.first - 1, First: c.first})
			wantEqual(e, "records left", len(e.readAll(shardA, c.first)), int(11-c.first))
		}
		// LSNs continue.
		wantEqual(e, "LSN", e.appendAll(appendTo(shardA, epoch, "next"))[0].FirstLSN, 11)
		e.wantRecords(shardA, 11, "next")
	}},
	{name: "trim stops at the tail", test: func(e *caseEnv) {
		epoch := e.openOne(shardA)
		e.fillShard(shardA, epoch, "r", 2)
		e.wantError(e.log.Trim(e.ctx, shardA, 4), metalog.ErrInvalid)
		e.wantError(e.log.Trim(e.ctx, shardB, 1), nil)
		e.wantError(e.log.Trim(e.ctx, shardB, 2), metalog.ErrInvalid)
		e.wantRecords(shardA, 1, "r0", "r1")
		wantEqual(e, "epoch of the other", e.tailOf(shardB).Epoch, 0)
	}},
	{name: "trim leaves the neighbours alone", test: func(e *caseEnv) {
		shards := []record.ShardID{shardA - 1, shardA, shardA + 1}
		epochs := e.openShards(shards...)
		for i, s := range shards {
			e.fillShard(s, epochs[i], "r", 3)
		}
		e.mustSucceed(e.log.Trim(e.ctx, shardA, 4))
		e.wantRecords(shards[0], 1, "r0", "r1", "r2")
		e.wantRecords(shards[2], 1, "r0", "r1", "r2")
	}},
	{name: "readers during trims get records or the first position", test: trimUnderReaders},
}

// trimUnderReaders trims the old records of a log while others append, read, seek, and follow it.
func trimUnderReaders(e *caseEnv) {
	epoch := e.openOne(shardA)
	e.fillShard(shardA, epoch, "r", 50)
	f := e.follow(0, metalog.Position{Shard: shardA, LSN: 1})
	stop := make(chan struct{})
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for from := record.LSN(1); ; {
			select {
			case <-stop:
				return
			default:
			}
			entries, err := e.log.Read(e.ctx, shardA, from, 7, 0)
			var trimmed *metalog.TrimmedError
			switch {
			case err == nil:
				for _, en := range entries {
					if en.LSN != from || string(en.Data) != fmt.Sprint("r", from-1) {
						e.Errorf("Read returned LSN %d, %q at %d", en.LSN, en.Data, from)
						return
					}
					from++
				}
			case asTrimmed(err, &trimmed) && trimmed.First > from:
				from = trimmed.First
			default:
				e.Errorf("Read from %d: %v", from, err)
				return
			}
			if _, err := e.log.Seek(e.ctx, []record.ShardID{shardA}, 1); err != nil {
				e.Errorf("Seek: %v", err)
				return
			}
			if len(entries) == 0 {
				from = max(from, 30) - 25
			}
		}
	}()
	for i := 50; i < 300; i++ {
		e.appendAll(appendTo(shardA, epoch, fmt.Sprint("r", i)))
		if err := e.log.Trim(e.ctx, shardA, record.LSN(i-15)); err != nil {
			e.Errorf("Trim: %v", err)
			break
		}
	}
	f.waitPosition(shardA, 301)
	close(stop)
	<-finished
	f.stopChecked()
}
