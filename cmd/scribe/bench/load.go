package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/base/backoff"
	"scribe/internal/testkit/sample"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// Workload is a set of messages that is written over and over.
type Workload struct {
	Name string
	// Messages are written in order, and again from the first.
	Messages [][]byte
	// Bytes of all Messages.
	Bytes int
}

// workloads are the ones that can be measured, by name.
var workloads = map[string]func() Workload{
	"100b":       func() Workload { return cutMessages("100b", sample.AccessLog(), 100) },
	"access-log": func() Workload { return splitLines("access-log", sample.AccessLog()) },
	"10kb":       func() Workload { return cutMessages("10kb", sample.NginxStatus(), 10_000) },
}

// WorkloadNames lists the names in order of message size.
func WorkloadNames() []string { return []string{"100b", "access-log", "10kb"} }

// NewWorkload returns a workload by name.
func NewWorkload(name string) (Workload, error) {
	build, ok := workloads[name]
	if !ok {
		return Workload{}, fmt.Errorf("unknown workload %q: the workloads are %s", name, strings.Join(WorkloadNames(), ", "))
	}
	return build(), nil
}

// splitLines is a workload of lines of text.
func splitLines(name string, text []byte) Workload {
	return newWorkload(name, bytes.Split(bytes.TrimSuffix(text, []byte{'\n'}), []byte{'\n'}))
}

// cutMessages slices real text into messages of n bytes, in a fixed random order so that neighbours are not continuations of each other.
func cutMessages(name string, text []byte, n int) Workload {
	messages := slices.Collect(slices.Chunk(text, n))
	if len(messages[len(messages)-1]) < n {
		messages = messages[:len(messages)-1]
	}
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // reproducible on purpose
	rng.Shuffle(len(messages), func(i, j int) { messages[i], messages[j] = messages[j], messages[i] })
	return newWorkload(name, messages)
}

func newWorkload(name string, messages [][]byte) Workload {
	w := Workload{Name: name, Messages: messages}
	for _, m := range messages {
		w.Bytes += len(m)
	}
	return w
}

// trafficLoad writes messages of a workload to categories at a rate, until its context ends.
type trafficLoad struct {
	producer *producer.Producer
	workload Workload
	// pick chooses the category of the next message.
	pick func() string
	// bytesPerSecond of payload; 0 = as fast as the producer takes them.
	bytesPerSecond float64
	// wait blocks while the producer's buffer is full. Without it, such messages are dropped, as for an application's logs.
	wait bool
	// numbered prepends the number of each message to its payload, in 8 bytes, so that a reader knows which are missing.
	numbered bool

	messages, bytes atomic.Int64 // offered
}

// tick is how often a paced load writes what has become due.
const tick = 5 * time.Millisecond

// writeTraffic writes until ctx ends, and returns nil then.
func (l *trafficLoad) writeTraffic(ctx context.Context) error {
	var (
		begin   = time.Now()
		sent    float64
		m       producer.Message
		stamped []byte
	)
	pace := time.NewTicker(tick)
	defer pace.Stop()
	for next := 0; ; {
		due := math.Inf(1)
		if l.bytesPerSecond > 0 {
			select {
			case <-pace.C:
			case <-ctx.Done():
				return nil
			}
			due = l.bytesPerSecond * time.Since(begin).Seconds()
		}
		for sent < due {
			if ctx.Err() != nil {
				return nil
			}
			m.Payload = l.workload.Messages[next%len(l.workload.Messages)]
			if l.numbered {
				stamped = append(binary.LittleEndian.AppendUint64(stamped[:0], uint64(next)), m.Payload...) //nolint:gosec // not negative
				m.Payload = stamped
			}
			next++
			if l.wait {
				// Failures go to the producer's hook. A counted message is also written, whatever ends the run.
				l.producer.WriteAsyncContext(context.WithoutCancel(ctx), l.pick(), &m)
			} else {
				l.producer.LogMessage(l.pick(), &m)
			}
			sent += float64(len(m.Payload))
			l.messages.Add(1)
			l.bytes.Add(int64(len(m.Payload)))
		}
	}
}

// pickByZipf picks among categories as real traffic does: a few get most of it, and nearly all get little (Zipf's law, exponent 1.1).
func pickByZipf(categories []string) func() string {
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // reproducible on purpose
	z := rand.NewZipf(rng, 1.1, 1, uint64(len(categories)-1))
	return func() string { return categories[z.Uint64()] }
}

// latencySamples are collected by some goroutines and taken by another.
type latencySamples struct {
	mu struct {
		sync.Mutex
		samples []time.Duration
	}
}

func (s *latencySamples) addSample(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.samples = append(s.mu.samples, d)
}

// takeLatency returns the distribution of all samples since it was last called.
func (s *latencySamples) takeLatency() *Latency {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := newLatency(s.mu.samples)
	s.mu.samples = nil
	return l
}

// writeProbe writes small messages at a fixed rate, and measures the latency of each acknowledgement.
type writeProbe struct {
	latencySamples

	producer   *producer.Producer
	categories []string
	every      time.Duration
	// overlapping writes don't wait for each other: with one at a time, there would be few samples where an acknowledgement takes long.
	overlapping bool
}

// maxProbes bounds the overlapping writes of a probe. Beyond it, the next one waits.
const maxProbes = 4096

// probeWrites probes until ctx ends. A write that fails is an error.
func (p *writeProbe) probeWrites(ctx context.Context) error {
	m := producer.Message{Payload: make([]byte, 100)}
	pace := time.NewTicker(p.every)
	defer pace.Stop()
	// A started write completes, whatever ends the run: an interrupted one would look fast.
	calls, failed := errgroup.WithContext(context.WithoutCancel(ctx))
	calls.SetLimit(maxProbes)
	for i := 0; ; i++ {
		select {
		case <-pace.C:
		case <-ctx.Done():
			return calls.Wait()
		case <-failed.Done():
			return calls.Wait()
		}
		category := p.categories[i%len(p.categories)]
		begin := time.Now()
		if p.overlapping {
			result := p.producer.WriteAsyncContext(context.WithoutCancel(ctx), category, &m)
			calls.Go(func() error {
				err := result.Wait(context.WithoutCancel(ctx))
				p.addSample(time.Since(begin))
				return err
			})
			continue
		}
		if err := p.producer.Write(context.WithoutCancel(ctx), category, m); err != nil {
			return err
		}
		p.addSample(time.Since(begin))
	}
}

// runFor runs all functions for d or until one fails, and waits for them.
func runFor(ctx context.Context, d time.Duration, runs ...func(context.Context) error) error {
	return runDuring(ctx, func(ctx context.Context) error { return backoff.Sleep(ctx, d) }, runs...)
}

// runDuring runs fn, and all runs until fn returns, and waits for them. If one of them fails, fn is cancelled.
func runDuring(ctx context.Context, fn func(context.Context) error, runs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(runs))
	var group sync.WaitGroup
	for i, run := range runs {
		group.Go(func() {
			if errs[i] = run(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	ended := fn(ctx)
	cancel()
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return err // and fn was ended by it
	}
	return ended
}

// loadProducer writes a load. It keeps the first loss of a message, which makes a measurement worthless.
type loadProducer struct {
	*producer.Producer

	lost atomic.Pointer[producer.Drop] // the first
}

func newLoadProducer(server string, opts ...producer.Option) (p *loadProducer, err error) {
	p = new(loadProducer)
	opts = append(opts, producer.WithOnDrop(func(d producer.Drop) { p.lost.CompareAndSwap(nil, &d) }))
	p.Producer, err = producer.New(server, opts...)
	return p, err
}

// firstLoss is why a message was lost; nil if none was.
func (p *loadProducer) firstLoss() error {
	if d := p.lost.Load(); d != nil {
		return d.Err
	}
	return nil
}

// createCategory creates a category in a cell.
func createCategory(ctx context.Context, control rpc.ControlService, c *scribev1.Category) error {
	_, err := control.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: c})
	return err
}
