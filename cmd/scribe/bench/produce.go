package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"time"

	"scribe/consumer"
	"scribe/producer"
)

// Options say what is measured.
type Options struct {
	// Server is the cell's address.
	Server string
	// InProcess says that the cell runs in this process.
	InProcess bool
	// Category is written to and read from; it must be new, and is not deleted.
	Category string
	Workload Workload
	// Bytes of payload to write, at least; a run also takes at least one round of the workload.
	Bytes int64
	// Messages and Rate, a second, of the light load of e2e.
	Messages, Rate int
	// Blobs is the folder of the cell's blobs; for a catch-up only.
	Blobs string
	// Measured, if not nil, is called when what is measured begins: after what was filled, and after the limits.
	Measured func() error
}

// beginMeasured announces that the measured part begins.
func (o *Options) beginMeasured() error {
	if o.Measured == nil {
		return nil
	}
	return o.Measured()
}

const (
	// perCall is how many messages a call of the producer gets: what an application or an input that reads blocks has at hand.
	perCall = 64
	// buffered bounds the producer's memory.
	buffered = 64 << 20
)

// Produce measures committed writes, as fast as one producer with four requests in flight can.
func Produce(ctx context.Context, o Options) (r Report, err error) {
	limit, err := compressStream(o.Workload)
	if err != nil {
		return r, err
	}
	debug.FreeOSMemory() // the stream's memory would let the path run without garbage collection
	warm, err := compressAlone(o.Workload)
	if err != nil {
		return r, err
	}
	r = Report{
		What: "produce", Workload: o.Workload.Name, InProcess: o.InProcess,
		Limit: "zstd", LimitNsPerByte: limit.nsPerByte, WarmNsPerByte: warm.nsPerByte, CompressionRate: limit.ratio,
	}
	if err := o.beginMeasured(); err != nil {
		return r, err
	}
	begin, cpu := time.Now(), cpuTime()
	r.Messages, r.Bytes, err = fillCategory(ctx, o)
	r.fillRates(time.Since(begin), cpuTime()-cpu)
	return r, err
}

// fillCategory writes the workload until Bytes are acknowledged as committed.
func fillCategory(ctx context.Context, o Options) (messages, bytes int64, err error) {
	p, err := newLoadProducer(o.Server, producer.WithAck(producer.AckCommitted), producer.WithMaxBufferedBytes(buffered))
	if err != nil {
		return 0, 0, err
	}
	msgs := make([]producer.Message, len(o.Workload.Messages))
	for i, payload := range o.Workload.Messages {
		msgs[i].Payload = payload
	}
	for bytes < o.Bytes {
		for some := range slices.Chunk(msgs, perCall) {
			p.WriteBatchAsync(ctx, o.Category, some...) // what fails is told to the hook
		}
		messages += int64(len(msgs))
		bytes += int64(o.Workload.Bytes)
		if ctx.Err() != nil {
			_ = p.Close(ctx) // there is no time for what was written
			return messages, bytes, context.Cause(ctx)
		}
		if err := p.firstLoss(); err != nil {
			return messages, bytes, errors.Join(err, p.Close(ctx))
		}
	}
	if err := errors.Join(p.Flush(ctx), p.Close(ctx)); err != nil {
		return messages, bytes, err
	}
	if err := p.firstLoss(); err != nil {
		return messages, bytes, err
	}
	if s := p.Stats(); s.Acked != uint64(messages) { //nolint:gosec // a count
		return messages, bytes, fmt.Errorf("%d of %d messages were acknowledged", s.Acked, messages)
	}
	return messages, bytes, nil
}

// EndToEnd measures latency at light load: messages at a fixed rate, one at a time, each committed, while a consumer follows.
func EndToEnd(ctx context.Context, o Options) (r Report, err error) {
	r = Report{What: "e2e", Workload: o.Workload.Name, InProcess: o.InProcess}
	p, err := producer.New(o.Server, producer.WithAck(producer.AckCommitted), producer.WithLinger(0))
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, p.Close(ctx)) }()
	// The category exists, and the consumer follows, before the first message is measured.
	if err := p.Write(ctx, o.Category, producer.Message{Payload: make([]byte, stampLen)}); err != nil {
		return r, err
	}
	f := &stampFollower{started: make(chan struct{}), done: make(chan error, 1), want: o.Messages + 1}
	following, cancel := context.WithCancel(ctx)
	defer cancel()
	go f.followStamps(following, o)
	select {
	case <-f.started:
	case err := <-f.done:
		return r, err
	}
	if err := o.beginMeasured(); err != nil {
		return r, err
	}
	begin, cpu := time.Now(), cpuTime()
	commits := make([]time.Duration, 0, o.Messages)
	tick := time.NewTicker(time.Second / time.Duration(o.Rate))
	defer tick.Stop()
	for i := range o.Messages {
		<-tick.C
		payload := o.Workload.Messages[i%len(o.Workload.Messages)]
		sent := time.Now()
		stamped := append(binary.LittleEndian.AppendUint64(nil, uint64(sent.Sub(epoch))), payload...) //nolint:gosec // after the epoch
		if err := p.Write(ctx, o.Category, producer.Message{Payload: stamped}); err != nil {
			return r, err
		}
		commits = append(commits, time.Since(sent))
		r.Messages++
		r.Bytes += int64(len(payload))
	}
	if err := <-f.done; err != nil {
		return r, err
	}
	r.fillRates(time.Since(begin), cpuTime()-cpu)
	r.Commit, r.Delivery = newLatency(commits), newLatency(f.delays)
	return r, nil
}

// stampLen is the length of the sending time in front of a payload: nanoseconds since epoch.
const stampLen = 8

// epoch makes stamps monotonic: the wall clock may be set during a run.
var epoch = time.Now()

// stampFollower reads what EndToEnd writes.
type stampFollower struct {
	started chan struct{} // closed when the first message has arrived
	done    chan error
	want    int
	delays  []time.Duration // read after done
}

func (f *stampFollower) followStamps(ctx context.Context, o Options) {
	c, err := consumer.New(o.Server, o.Category, consumer.WithStart(consumer.Earliest()))
	if err != nil {
		f.done <- err
		return
	}
	n := 0
	for rec, err := range c.Records(ctx) {
		if err != nil {
			f.done <- errors.Join(err, c.Close())
			return
		}
		if n++; n == 1 {
			close(f.started)
			continue
		}
		stamp := time.Duration(binary.LittleEndian.Uint64(rec.Payload)) //nolint:gosec // written by EndToEnd
		f.delays = append(f.delays, time.Since(epoch)-stamp)
		if n == f.want {
			break
		}
	}
	f.done <- c.Close()
}
