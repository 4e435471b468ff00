package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// lastMessages finds the last messages of a category. Logs can only be read forwards, and how many messages a pointer stands for is known when
// it is read. So it reads the last pointer of each log, and while that is too little four times as many.
type lastMessages struct {
	server, category string
	opts             []consumer.Option // of the consumer, but for where it begins and ends
	want             int
	format           func([]byte, *consumer.Record) ([]byte, error)
}

// Bounds of --last.
const (
	maxLast      = 100_000
	maxLastBytes = 256 << 20
	// boundsAtOnce is the number of shards whose bounds may be asked for at once.
	boundsAtOnce = 1000
)

// foundLast are the last messages that a round has read, the oldest first, as they are printed.
type foundLast struct {
	lines [][]byte
	times []time.Time // persisted, of each line
	bytes int
	// oldest is the persisted time of the first message that was read of each log.
	oldest map[record.ShardID]time.Time
}

// findLast returns the last messages as they are printed, and the position after them.
func (l *lastMessages) findLast(ctx context.Context) (lines [][]byte, after string, err error) {
	end, err := l.readFrom(ctx, consumer.Latest(), nil)
	if err != nil {
		return nil, "", err
	}
	tails, err := checkpoint.Parse(end)
	if err != nil {
		return nil, "", err
	}
	first, err := l.firstPositions(ctx, tails)
	if err != nil {
		return nil, "", err
	}
	for pointers := record.LSN(1); ; pointers *= 4 {
		begin, cut := tails, make(map[record.ShardID]bool)
		begin.Positions = nil
		for _, p := range tails.Positions {
			// A checkpoint in the middle of a payload does not occur here: nothing was read of the logs.
			lsn := first[p.Shard]
			if p.LSN > pointers && p.LSN-pointers > lsn {
				lsn, cut[p.Shard] = p.LSN-pointers, true
			}
			begin.Positions = append(begin.Positions, checkpoint.Position{Shard: p.Shard, LSN: lsn})
		}
		begin.Watermark = 0
		start, err := consumer.Checkpoint(begin.String())
		if err != nil {
			return nil, "", err
		}
		found := &foundLast{oldest: make(map[record.ShardID]time.Time)}
		if after, err = l.readFrom(ctx, start, found); err != nil {
			return nil, "", err
		}
		if l.isEnough(found, cut) {
			return found.lines, after, nil
		}
	}
}

// isEnough reports whether nothing that was not read of the logs that were cut belongs to the last messages.
func (l *lastMessages) isEnough(found *foundLast, cut map[record.ShardID]bool) bool {
	if len(cut) == 0 {
		return true
	}
	if len(found.lines) < l.want {
		return false
	}
	for shard := range cut {
		if oldest, ok := found.oldest[shard]; !ok || oldest.After(found.times[0]) {
			return false
		}
	}
	return true
}

// readFrom reads up to the present end and returns the position there. found gets the last messages; nil reads none.
func (l *lastMessages) readFrom(ctx context.Context, start consumer.Start, found *foundLast) (after string, err error) {
	opts := append(slices.Clip(l.opts), consumer.WithStart(start), consumer.WithUntilEnd())
	c, err := consumer.New(l.server, l.category, opts...)
	if err != nil {
		return "", usageError(err)
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for rec, err := range c.Records(ctx) {
		switch {
		case errors.Is(err, consumer.ErrGap):
			continue // retention was there first
		case err != nil:
			return "", err
		case found == nil:
			return c.Checkpoint(), nil
		}
		if err := l.keepLast(found, &rec); err != nil {
			return "", err
		}
	}
	return c.Checkpoint(), nil
}

// keepLast takes a message, and lets go of the oldest one that is not among the last any more.
func (l *lastMessages) keepLast(found *foundLast, rec *consumer.Record) error {
	if _, known := found.oldest[rec.Shard]; !known {
		found.oldest[rec.Shard] = rec.Persisted
	}
	line, err := l.format(nil, rec)
	if err != nil {
		return err
	}
	found.lines, found.times = append(found.lines, line), append(found.times, rec.Persisted)
	if found.bytes += len(line); len(found.lines) > l.want {
		found.bytes -= len(found.lines[0])
		found.lines[0] = nil
		found.lines, found.times = found.lines[1:], found.times[1:]
	}
	if found.bytes > maxLastBytes {
		return fmt.Errorf("the last %d messages have more than %v: ask for fewer with --last", l.want, units.Bytes(maxLastBytes))
	}
	return nil
}

// firstPositions returns the oldest readable LSN of each log.
func (l *lastMessages) firstPositions(ctx context.Context, tails checkpoint.Checkpoint) (map[record.ShardID]record.LSN, error) {
	streams := discovery.New(rpc.Default(), l.server, nil).ReadStream()
	first := make(map[record.ShardID]record.LSN, len(tails.Positions))
	for rest := tails.Positions; len(rest) > 0; {
		part := rest[:min(len(rest), boundsAtOnce)]
		rest = rest[len(part):]
		req := &scribev1.BoundsRequest{Category: l.category}
		for _, p := range part {
			req.Shards = append(req.Shards, uint64(p.Shard))
		}
		res, err := callCell(ctx, l.server, "tail "+l.category, streams.Bounds, req)
		if err != nil {
			return nil, err
		}
		for _, b := range res.GetShards() {
			first[record.ShardID(b.GetShard())] = record.LSN(b.GetFirstLsn())
		}
	}
	return first, nil
}

// printLast prints the last messages. It returns where the tail goes on; done says that it does not.
func (f *tailFlags) printLast(ctx context.Context, server, category string, out *stdoutWriter, format func([]byte, *consumer.Record) ([]byte, error),
	opts []consumer.Option,
) (start consumer.Start, done bool, err error) {
	if !f.window.given { // the last ones are those that were persisted last
		opts = append(opts, consumer.WithWindow(0))
	}
	find := &lastMessages{server: server, category: category, opts: opts, want: int(f.last), format: format} //nolint:gosec // bounded
	lines, after, err := find.findLast(ctx)
	if err != nil {
		return start, false, err
	}
	for _, line := range lines {
		if _, err := out.writeBytes(ctx, line); err != nil {
			return start, false, err
		}
	}
	if !f.follow {
		return start, true, nil
	}
	start, err = consumer.Checkpoint(after)
	return start, false, err
}

// checkLast finds flags that do not go with --last.
func (f *tailFlags) checkLast() error {
	if f.last == 0 {
		return nil
	}
	if f.last > maxLast {
		return fmt.Errorf("invalid value %d for --last: want at most %d", f.last, maxLast)
	}
	for _, other := range []struct {
		flag  string
		given bool
	}{
		{"--checkpoint", f.checkpoint != ""},
		{"--group", f.group.name != ""},
		{"--key", len(f.keys) > 0},
		{"-n", f.limited},
		{"--from", f.fromGiven},
		{"--fail-on-gap", f.failOnGap},
	} {
		if other.given {
			return fmt.Errorf("--last can't be combined with %s: it prints the last messages, and then stops or follows (-f)", other.flag)
		}
	}
	return nil
}
