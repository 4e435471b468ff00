package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/producer"
)

// farCategory names a category of a run.
func farCategory(i int) string { return fmt.Sprintf("far-%d", i) }

// measureWrites measures committed writes of producers to categories in turn, as fast as they can.
func (f *farRun) measureWrites(ctx context.Context, producers, categories int) error {
	if err := f.measurePutLimit(ctx); err != nil {
		return err
	}
	if err := f.openCategories(ctx, categories); err != nil {
		return err
	}
	return f.measureRequests(ctx, func() (err error) {
		_, f.r.Bytes, err = f.fillCategories(ctx, producers, categories)
		return err
	})
}

// openCategories creates categories and opens their logs, which is not the traffic's.
func (f *farRun) openCategories(ctx context.Context, categories int) (err error) {
	p, err := producer.New(f.Server, producer.WithLinger(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	group, groupCtx := errgroup.WithContext(ctx)
	for i := range categories {
		group.Go(func() error { return p.Write(groupCtx, farCategory(i), producer.Message{Payload: []byte("first")}) })
	}
	return group.Wait()
}

// fillCategories writes Bytes, an equal part by each producer.
func (f *farRun) fillCategories(ctx context.Context, producers, categories int) (messages, bytes int64, err error) {
	var allMessages, allBytes atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for i := range producers {
		group.Go(func() error {
			m, b, err := fillCategory(ctx, Options{
				Server: f.Server, Category: farCategory(i % categories), Workload: f.Workload, Bytes: f.Bytes / int64(producers),
			})
			allMessages.Add(m)
			allBytes.Add(b)
			return err
		})
	}
	err = group.Wait()
	return allMessages.Load(), allBytes.Load(), err
}

// farWriters are producers that share a load.
type farWriters struct {
	producers []*loadProducer
	loads     []*trafficLoad
}

// newWriters makes n producers that share BytesPerSecond; 0 = as much as goes. Each has a memory of so many bytes, and a picker of categories
// of its own.
func (f *farRun) newWriters(n int, memory int64, newPick func() func() string) (*farWriters, error) {
	w := &farWriters{}
	for range n {
		p, err := newLoadProducer(f.Server, producer.WithMaxBufferedBytes(memory), producer.WithDeliveryTimeout(producer.DefaultDeliveryTimeout+2*f.Linger.Std()))
		if err != nil {
			return nil, errors.Join(err, w.close(context.Background()))
		}
		w.producers = append(w.producers, p)
		w.loads = append(w.loads, &trafficLoad{
			producer: p.Producer, workload: f.Workload, pick: newPick(), wait: true, bytesPerSecond: float64(f.BytesPerSecond) / float64(n),
		})
	}
	return w, nil
}

// writeTraffic writes until ctx ends.
func (w *farWriters) writeTraffic(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range w.loads {
		group.Go(func() error { return l.writeTraffic(ctx) })
	}
	return group.Wait()
}

// flushAll returns when everything that was written has its outcome.
func (w *farWriters) flushAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, p := range w.producers {
		group.Go(func() error { return errors.Join(p.Flush(ctx), p.firstLoss()) })
	}
	return group.Wait()
}

// countAcked returns the bytes of payload that were acknowledged.
func (w *farWriters) countAcked() (n int64) {
	for _, p := range w.producers {
		n += int64(p.Stats().AckedBytes) //nolint:gosec // below 2^63
	}
	return n
}

func (w *farWriters) close(ctx context.Context) error {
	var errs []error
	for _, p := range w.producers {
		errs = append(errs, p.Close(ctx), p.firstLoss())
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // there was no time for what was written
	}
	return errors.Join(errs...)
}

// farProbeCategory gets the committed writes that are measured beside other traffic.
const farProbeCategory = "far-probe"

// writeToMany measures producers that write to many categories by Zipf's law, at a rate or as much as goes, without waiting for acknowledgements. Beside
// them a program of its own writes messages whose acknowledgement is measured.
func (f *farRun) writeToMany(ctx context.Context) (err error) {
	if err := f.measurePutLimit(ctx); err != nil {
		return err
	}
	names := make([]string, f.Categories)
	for i := range names {
		names[i] = farCategory(i)
	}
	if err := createAll(ctx, f.Server, names, f.Linger); err != nil {
		return err
	}
	f.r.OfferedMBPerSecond = float64(f.BytesPerSecond) / 1e6
	writers, err := f.newWriters(farProducers, int64(f.WriterMemory), func() func() string { return pickByZipf(names[:f.Active]) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, writers.close(ctx)) }()
	quiet, err := producer.New(f.Server)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, quiet.Close(ctx)) }()
	probe := &writeProbe{producer: quiet, categories: []string{farProbeCategory}, every: farProbeEvery, overlapping: true}
	write := func(d time.Duration) error { return runFor(ctx, d, writers.writeTraffic, probe.probeWrites) }
	// What opening the logs takes is not the traffic's, nor what it takes until the categories' linger is known and frames are due.
	if err := write(max(f.Duration.Std()/4, f.Linger.Std())); err != nil {
		return err
	}
	probe.takeLatency()
	before := writers.countAcked()
	err = f.measureRequests(ctx, func() error {
		err := write(f.Duration.Std())
		f.r.Bytes, f.r.Commit = writers.countAcked()-before, probe.takeLatency()
		return err
	})
	return errors.Join(err, writers.flushAll(ctx)) // what lingers at the end is not part of a steady state
}

const (
	// limitInFlight is how many requests of a limit run at the same time.
	limitInFlight = 8
	// limitObjects are put for the limit of writes, of limitObjectBytes each, or of less where fewer Bytes are measured.
	limitObjects     = 2 * limitInFlight
	limitObjectBytes = 8_000_000
	// limitSample of payload is compressed for it, once. Objects are made of that.
	limitSample = 64 << 20
)

// measurePutLimit measures the limit of writes: objects of payload that was compressed before, as batchers compress it, are put with
// nothing around it.
func (f *farRun) measurePutLimit(ctx context.Context) error {
	blocks := f.Workload.makeStream(int(min(f.Bytes, limitSample)))
	lengths := make([]int, len(blocks))
	for i, b := range blocks {
		lengths[i] = len(b)
	}
	packed, err := packBlocks(blocks)
	if err != nil {
		return err
	}
	size := min(limitObjectBytes, f.Bytes/limitObjects)
	raw, next := int64(0), 0
	objects := make([][][]byte, limitObjects)
	for i := range objects {
		for stored := int64(0); stored == 0 || stored < size; next++ {
			block := packed[next%len(packed)]
			objects[i] = append(objects[i], block)
			stored += int64(len(block))
			raw += int64(lengths[next%len(packed)])
		}
	}
	debug.FreeOSMemory() // the memory of blocks would let the path run without garbage collection
	begin := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(limitInFlight)
	for i, object := range objects {
		group.Go(func() error { return f.Store.Put(ctx, fmt.Sprintf("limit/%d", i), object...) })
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("put objects alone: %w", err)
	}
	f.r.Limit, f.r.LimitMBPerSecond = "put", float64(raw)/1e6/time.Since(begin).Seconds()
	return nil
}
