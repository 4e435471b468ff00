package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/consumer"
	"scribe/internal/base/backoff"
	"scribe/internal/base/units"
	"scribe/internal/format/pointer"
	"scribe/storage/blob"
)

const (
	// latencyRate is the traffic of the scenario latency, in bytes of payload a second.
	latencyRate units.Bytes = 1_000_000
	// farProbeEvery is the pause between two writes whose acknowledgement is measured.
	farProbeEvery = 10 * time.Millisecond
	// tailWarmUp passes between the first delivery and what is measured.
	tailWarmUp = 2 * time.Second
)

// readBacklog measures a consumer that reads Bytes of payload which were written before. The cell has restarted, so that it has nothing of
// them in memory.
func (f *farRun) readBacklog(ctx context.Context) error {
	if err := f.openCategories(ctx, 1); err != nil {
		return err
	}
	messages, bytes, err := f.fillCategories(ctx, farProducers, 1)
	if err != nil {
		return err
	}
	if f.Server, err = f.Restart(ctx); err != nil {
		return fmt.Errorf("restart the cell: %w", err)
	}
	if err := f.measureGetLimit(ctx, bytes); err != nil {
		return err
	}
	debug.FreeOSMemory() // the memory of producers and the limit would let the path run without garbage collection
	return f.measureRequests(ctx, func() error {
		var read Report
		err := read.measureReading(ctx, Options{Server: f.Server, Category: farCategory(0)}, messages+1) // and the one that opened it
		f.r.Bytes = read.Bytes
		return err
	})
}

// measureGetLimit measures the limit of reads: all blobs of so many bytes of payload are got, each as a whole, and nothing else is done.
func (f *farRun) measureGetLimit(ctx context.Context, payload int64) error {
	var blobs []blob.Info
	for info, err := range f.Store.List(ctx, pointer.KeyRoot) {
		if err != nil {
			return err
		}
		blobs = append(blobs, info)
	}
	var stored atomic.Int64
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(limitInFlight)
	for _, info := range blobs {
		group.Go(func() error {
			stored.Add(info.Size)
			return f.Store.ReadAt(ctx, info.Key, make([]byte, info.Size), 0)
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("get the blobs alone: %w", err)
	}
	f.r.Limit, f.r.LimitMBPerSecond = "get", float64(payload)/1e6/time.Since(begin).Seconds()
	f.r.StoredBytes, f.r.BlobBytes = float64(stored.Load())*1e9/float64(payload), float64(stored.Load())/float64(max(len(blobs), 1))
	return nil
}

// followTail measures a consumer that follows traffic of BytesPerSecond from some producers, and the acknowledgements of the first of them.
func (f *farRun) followTail(ctx context.Context, producers int) (err error) {
	if err := f.openCategories(ctx, 1); err != nil {
		return err
	}
	f.r.OfferedMBPerSecond = float64(f.BytesPerSecond) / 1e6
	tail := &tailFollower{server: f.Server, category: farCategory(0), begun: make(chan struct{})}
	writers, err := f.newWriters(producers, buffered, func() func() string { return func() string { return tail.category } })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, writers.close(ctx)) }()
	probe := &writeProbe{producer: writers.producers[0].Producer, categories: []string{tail.category}, every: farProbeEvery, overlapping: true}
	return runDuring(ctx, func(ctx context.Context) error {
		select {
		case <-tail.begun:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if err := backoff.Sleep(ctx, tailWarmUp); err != nil {
			return err
		}
		probe.takeLatency()
		tail.takeLatency()
		before := tail.bytes.Load()
		return f.measureRequests(ctx, func() error {
			err := backoff.Sleep(ctx, f.Duration.Std())
			f.r.Bytes = tail.bytes.Load() - before
			f.r.Commit, f.r.Delivery = probe.takeLatency(), tail.takeLatency()
			return err
		})
	}, tail.followRecords, writers.writeTraffic, probe.probeWrites)
}

// tailFollower is a consumer that follows a category, and measures how long after their commit it has messages.
type tailFollower struct {
	latencySamples

	server, category string
	begun            chan struct{} // closed when the first message has arrived
	bytes            atomic.Int64
}

// followRecords follows until ctx ends.
func (t *tailFollower) followRecords(ctx context.Context) (err error) {
	c, err := consumer.New(t.server, t.category, consumer.WithStart(consumer.Earliest()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	first := true
	for rec, err := range c.Records(ctx) {
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		case first:
			first = false
			close(t.begun)
		}
		t.addSample(time.Since(rec.Persisted))
		t.bytes.Add(int64(len(rec.Payload)))
	}
	return nil
}
