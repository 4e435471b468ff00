package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/producer"
)

// FanoutOptions say how many follow one tail.
type FanoutOptions struct {
	Workload Workload
	// Consumers of the category, each of which reads all of it; 0 measures what writing alone takes.
	Consumers int
	// BytesPerSecond of payload are written for Duration.
	BytesPerSecond units.Bytes
	Duration       units.Duration
}

// FanoutReport is what it takes to give everything to everybody. CPU figures are of the whole process: producer, every role, and all
// consumers.
type FanoutReport struct {
	Workload  string `json:"workload"`
	Consumers int    `json:"consumers"`
	// Written is payload, Delivered that of all consumers together.
	Written   int64   `json:"written_bytes"`
	Delivered int64   `json:"delivered_bytes"`
	Messages  int64   `json:"delivered_messages"`
	Seconds   float64 `json:"seconds"`
	// MBPerSecond were delivered, in 10^6 bytes.
	MBPerSecond float64 `json:"mb_per_second"`
	// StoreBytes were fetched from the store in StoreReads requests, ServedBytes sent by the read proxy, both compressed.
	StoreBytes  int64 `json:"store_bytes"`
	StoreReads  int64 `json:"store_reads"`
	ServedBytes int64 `json:"served_bytes"`
	// ServedPerFetched is how many bytes were served for each that was fetched from the store.
	ServedPerFetched float64 `json:"served_per_fetched"`
	// DeliveredPerFetched is the same of payload: it has the compression in it.
	DeliveredPerFetched float64 `json:"delivered_per_fetched"`
	// Fetches are the calls of consumers, Payloads what they brought; Repeats were made again because the read proxy was busy.
	Fetches  int64 `json:"fetches"`
	Payloads int64 `json:"payloads"`
	Repeats  int64 `json:"repeats"`
	// CPUNsPerByte is of all, for a byte delivered.
	CPUSeconds   float64 `json:"cpu_seconds"`
	CPUNsPerByte float64 `json:"cpu_ns_per_byte"`
	// ReadNsPerByte is without what writing takes as WriteSeconds says, which is measured with the same traffic and nobody who reads.
	WriteSeconds  float64 `json:"write_cpu_seconds"`
	ReadNsPerByte float64 `json:"read_ns_per_byte"`
	// LimitNsPerByte is what the decoder alone takes for a byte, on the same bytes.
	LimitNsPerByte float64 `json:"limit_ns_per_byte"`
	Ratio          float64 `json:"ratio"` // ReadNsPerByte to LimitNsPerByte
}

const (
	fanoutCategory = "fanout"
	// fanoutPrefetch is what each consumer has ahead of its loop at most.
	fanoutPrefetch = 4 << 20
)

// The first message and the last one: everybody follows when all have the first, and is done with the last.
var fanoutFirst, fanoutLast = []byte("the first of the tail"), []byte("the last of the tail")

// Fanout writes for a while, while all consumers follow. Without consumers it measures the writing. The cell must be new, and run in this
// process.
func Fanout(ctx context.Context, server string, o FanoutOptions) (r FanoutReport, err error) {
	r.Workload, r.Consumers = o.Workload.Name, o.Consumers
	p, err := newLoadProducer(server, producer.WithMaxBufferedBytes(buffered))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx), p.firstLoss()) }()
	if err := p.Write(ctx, fanoutCategory, producer.Message{Payload: fanoutFirst}); err != nil {
		return r, err
	}
	crowd, err := newFollowers(server, o)
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, crowd.close()) }()
	l := &trafficLoad{producer: p.Producer, workload: o.Workload, bytesPerSecond: float64(o.BytesPerSecond), wait: true, pick: func() string { return fanoutCategory }}
	group, groupCtx := errgroup.WithContext(ctx)
	for _, c := range crowd.all {
		group.Go(func() error { return crowd.followOne(groupCtx, c) })
	}
	var span measuredSpan
	group.Go(func() error {
		if err := crowd.awaitTokens(groupCtx, crowd.begun); err != nil {
			return err
		}
		var err error
		span, err = measureSpan(groupCtx, server, func() error {
			if err := errors.Join(runFor(groupCtx, o.Duration.Std(), l.writeTraffic), p.Flush(groupCtx)); err != nil {
				return err
			}
			if err := p.Write(groupCtx, fanoutCategory, producer.Message{Payload: fanoutLast}); err != nil {
				return err
			}
			return crowd.awaitTokens(groupCtx, crowd.done)
		})
		return err
	})
	if err := group.Wait(); err != nil {
		return r, err
	}
	r.Written, r.Messages, r.Delivered, r.Repeats = l.bytes.Load(), crowd.messages.Load(), crowd.bytes.Load(), crowd.countRetries()
	r.fillRates(span.grown, span.wall, span.cpu)
	return r, crowd.checkDelivered(l.messages.Load(), r.Written)
}

func (r *FanoutReport) fillRates(grown metricValues, wall, cpu time.Duration) {
	r.Seconds, r.CPUSeconds = wall.Seconds(), cpu.Seconds()
	r.StoreBytes, r.StoreReads = int64(grown["scribe_readproxy_store_bytes_total"]), int64(grown["scribe_readproxy_store_reads_total"])
	r.ServedBytes = int64(grown["scribe_readproxy_payload_bytes_total"])
	r.Fetches, r.Payloads = int64(grown["scribe_readproxy_requests_total"]), int64(grown["scribe_readproxy_payloads_total"])
	if r.Delivered == 0 {
		return
	}
	r.MBPerSecond = float64(r.Delivered) / 1e6 / r.Seconds
	r.ServedPerFetched = float64(r.ServedBytes) / float64(max(r.StoreBytes, 1))
	r.DeliveredPerFetched = float64(r.Delivered) / float64(max(r.StoreBytes, 1))
	r.CPUNsPerByte = float64(cpu) / float64(r.Delivered)
}

// Beside puts a report beside what writing alone took, and what the decoder alone takes for a byte.
func (r *FanoutReport) Beside(writing FanoutReport, limitNsPerByte float64) {
	if writing.Written == 0 || r.Delivered == 0 {
		return
	}
	// For as much as was written here.
	r.WriteSeconds = writing.CPUSeconds * float64(r.Written) / float64(writing.Written)
	r.ReadNsPerByte = (r.CPUSeconds - r.WriteSeconds) * 1e9 / float64(r.Delivered)
	r.LimitNsPerByte = limitNsPerByte
	r.Ratio = r.ReadNsPerByte / limitNsPerByte
}

// DecoderNsPerByte measures the decoder alone on a workload.
func DecoderNsPerByte(w Workload) (float64, error) {
	c, err := decompressAlone(w)
	return c.nsPerByte, err
}

// fanoutFollowers are consumers that all read the same.
type fanoutFollowers struct {
	all             []*consumer.Consumer
	begun, done     chan struct{} // a token each
	messages, bytes atomic.Int64
}

func newFollowers(server string, o FanoutOptions) (*fanoutFollowers, error) {
	f := &fanoutFollowers{begun: make(chan struct{}, o.Consumers), done: make(chan struct{}, o.Consumers)}
	for range o.Consumers {
		c, err := consumer.New(server, fanoutCategory, consumer.WithStart(consumer.Earliest()), consumer.WithPrefetchBytes(fanoutPrefetch))
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.all = append(f.all, c)
	}
	return f, nil
}

// followOne reads until the last message.
func (f *fanoutFollowers) followOne(ctx context.Context, c *consumer.Consumer) error {
	var messages, bytes int64
	for rec, err := range c.Records(ctx) {
		switch {
		case ctx.Err() != nil:
			return nil // the measurement is over, one way or the other
		case err != nil:
			return err
		case messages == 0 && string(rec.Payload) == string(fanoutFirst):
			f.begun <- struct{}{}
			continue
		case len(rec.Payload) == len(fanoutLast) && string(rec.Payload) == string(fanoutLast):
			f.messages.Add(messages)
			f.bytes.Add(bytes)
			f.done <- struct{}{}
			return nil
		}
		messages++
		bytes += int64(len(rec.Payload))
	}
	return nil
}

// awaitTokens waits for one from each follower.
func (f *fanoutFollowers) awaitTokens(ctx context.Context, tokens <-chan struct{}) error {
	for range f.all {
		select {
		case <-tokens:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// checkDelivered compares what was delivered with what was written.
func (f *fanoutFollowers) checkDelivered(messages, bytes int64) error {
	n := int64(len(f.all))
	if got, gotBytes := f.messages.Load(), f.bytes.Load(); got != n*messages || gotBytes != n*bytes {
		return fmt.Errorf("%d consumers got %d messages of %d bytes, written were %d of %d", n, got, gotBytes, messages, bytes)
	}
	return nil
}

func (f *fanoutFollowers) countRetries() (n int64) {
	for _, c := range f.all {
		n += int64(c.Stats().Retries) //nolint:gosec // a count
	}
	return n
}

func (f *fanoutFollowers) close() error {
	var errs []error
	for _, c := range f.all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// FanoutTable prints reports for people.
func FanoutTable(w io.Writer, reports []FanoutReport) error {
	const header = "consumers\twritten MB\tdelivered MB\tMB/s\tstore reads\tfetched MB\tserved MB\tserved/fetched\tdelivered/fetched\tCPU ns/B\treading ns/B\tunzstd ns/B\tratio\t"
	return printTable(w, header, reports, func(w io.Writer, r *FanoutReport) {
		fmt.Fprintf(w, "%d\t%.0f\t%.0f\t%.0f\t%d\t%.1f\t%.1f\t%.1f\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t\n", r.Consumers, float64(r.Written)/1e6, float64(r.Delivered)/1e6,
			r.MBPerSecond, r.StoreReads, float64(r.StoreBytes)/1e6, float64(r.ServedBytes)/1e6, r.ServedPerFetched, r.DeliveredPerFetched,
			r.CPUNsPerByte, r.ReadNsPerByte, r.LimitNsPerByte, r.Ratio)
	})
}
