package metalog_test

import (
	"context"
	"fmt"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

var readCases = []testCase{
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
}

var seekCases = []testCase{
	{name: "seek finds the first record at or after a time", test: func(e *caseEnv) {
		epochs := e.openShards(shardA, shardB)
		var times []int64
		for i := range 40 {
			if i%4 != 0 { // runs of records with one time
				e.in.clock.Advance(time.Duration(i) * time.Second)
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
	{name: "readers during trims get records or the first position", test: trimUnderReaders},
}

// trimUnderReaders trims the old records of a log while others append, read, seek, and follow it.
func trimUnderReaders(e *caseEnv) {
	epoch := e.openOne(shardA)
	e.fillShard(shardA, epoch, 50)
	f := e.follow(0, metalog.Position{Shard: shardA, LSN: 1})
	ctx, stop := context.WithCancel(e.ctx)
	defer stop()
	wait := e.startAll(1, func(int) error {
		for from := record.LSN(1); ctx.Err() == nil; {
			entries, err := e.log.Read(e.ctx, shardA, from, 7, 0)
			var trimmed *metalog.TrimmedError
			switch {
			case err == nil:
				for _, en := range entries {
					if en.LSN != from || string(en.Data) != fmt.Sprint("r", from-1) {
						return fmt.Errorf("call of Read returned LSN %d, %q at %d", en.LSN, en.Data, from)
					}
					from++
				}
			case asTrimmed(err, &trimmed) && trimmed.First > from:
				from = trimmed.First
			default:
				return fmt.Errorf("read from %d: %w", from, err)
			}
			if _, err := e.log.Seek(e.ctx, []record.ShardID{shardA}, 1); err != nil {
				return fmt.Errorf("seek: %w", err)
			}
			if len(entries) == 0 {
				from = max(from, 30) - 25
			}
		}
		return nil
	})
	for i := 50; i < 300; i++ {
		e.appendAll(appendTo(shardA, epoch, fmt.Sprint("r", i)))
		e.mustSucceed(e.log.Trim(e.ctx, shardA, record.LSN(i-15)))
	}
	f.waitPosition(shardA, 301)
	stop()
	wait()
	f.stopChecked()
}
