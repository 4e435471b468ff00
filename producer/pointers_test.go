package producer_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/proto/scribe/v1/scribev1connect"
)

// flushModel models an agent, a batcher and a store that is far away, as far as lingers depend on them: what arrives within the batcher's
// gather time shares a flush, up to its size, and a category has a pointer in each flush that has frames of it.
type flushModel struct {
	scribev1connect.UnimplementedWriteServiceHandler

	mu         sync.Mutex
	open       *modelFlush
	running    int
	last       time.Time // when a flush was cut
	tick       *time.Timer
	rng        *rand.Rand
	pointers   int
	bytes      int
	categories map[string]struct{} // of the open flush
}

type modelFlush struct {
	done  chan struct{}
	begun time.Time
	bytes int
}

// The batcher's settings, of which it counts half of what lingered.
const (
	modelGather   = 60 * time.Millisecond
	modelFloor    = 80 * time.Millisecond
	modelBytes    = 20 << 20
	modelInFlight = 4
	modelGroup    = 2 // flushes in flight from which only full ones are cut
)

// between returns a random duration.
func (m *flushModel) between(least, most time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return least + time.Duration(m.rng.Int64N(int64(most-least)))
}

// Write implements rpc.WriteService.
func (m *flushModel) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	<-time.After(m.between(time.Millisecond, 30*time.Millisecond)) // the way there
	m.mu.Lock()
	if m.open == nil {
		m.open = &modelFlush{done: make(chan struct{}), begun: time.Now()}
		m.categories = map[string]struct{}{}
	}
	flush := m.open
	res := &scribev1.WriteResponse{Ordered: true}
	for h, err := range record.Split(req.GetFrames()) {
		if err != nil {
			continue
		}
		m.categories[string(h.Category)] = struct{}{}
		res.Results = append(res.Results, &scribev1.FrameResult{Shard: 1, Lsn: 1})
	}
	flush.bytes += len(req.GetFrames())
	m.cutDue()
	m.mu.Unlock()
	<-flush.done
	return res, nil
}

// cutDue cuts the open flush if it is due, or looks again when it is. The caller holds mu.
func (m *flushModel) cutDue() {
	flush, now := m.open, time.Now()
	if flush == nil || m.running == modelInFlight || m.running >= modelGroup && flush.bytes < modelBytes {
		return
	}
	if wait := max(modelGather-now.Sub(flush.begun), modelFloor-now.Sub(m.last)); wait > 0 && flush.bytes < modelBytes {
		if m.tick != nil {
			m.tick.Stop()
		}
		m.tick = time.AfterFunc(wait, func() {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.cutDue()
		})
		return
	}
	m.open, m.last = nil, now
	m.running++
	m.pointers += len(m.categories)
	m.bytes += flush.bytes
	took := 60*time.Millisecond + time.Duration(m.rng.Int64N(int64(60*time.Millisecond))) +
		5*time.Duration(flush.bytes) + time.Duration(len(m.categories))*20*time.Microsecond
	time.AfterFunc(took, func() {
		close(flush.done)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.running--
		m.cutDue()
	})
}

// counts returns the pointers and bytes of all flushes.
func (m *flushModel) counts() (pointers, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pointers, m.bytes
}

// TestPointersPerGigabyte: four programs that write to 10,000 categories by Zipf's law at 100 MB/s, without waiting, make less than 40,000
// pointers a gigabyte, since their frames meet. Those that are due do not wait for requests of full ones.
//
//	go test ./producer -run PointersPerGigabyte -v
func TestPointersPerGigabyte(t *testing.T) {
	const (
		programs, rate, line = 4, 100_000_000, 237
		pause                = 10 * time.Millisecond
	)
	synctest.Test(t, func(t *testing.T) {
		m := &flushModel{rng: rand.New(rand.NewPCG(1, 2))} //nolint:gosec // reproducible on purpose
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		for i := range programs {
			p := startOn(t, m)
			group.Go(func() {
				zipf := rand.NewZipf(rand.New(rand.NewPCG(3, uint64(i))), 1.1, 1, 9999) //nolint:gosec // reproducible on purpose
				for next := time.Now(); ctx.Err() == nil; <-time.After(time.Until(next)) {
					for range rate / programs / line * pause / time.Second {
						p.WriteAsyncContext(ctx, fmt.Sprintf("c%d", zipf.Uint64()), &producer.Message{Payload: make([]byte, line)})
					}
					next = next.Add(pause)
				}
			})
		}
		<-time.After(producer.DefaultMaxLinger + 2*time.Second)
		pointers, bytes := m.counts()
		<-time.After(producer.DefaultMaxLinger)
		morePointers, moreBytes := m.counts()
		perGB := int(float64(morePointers-pointers) / float64(moreBytes-bytes) * 1e9)
		t.Logf("%d pointers a gigabyte", perGB)
		if wanted := int(rate * producer.DefaultMaxLinger / time.Second); perGB > 40_000 || moreBytes-bytes < wanted*9/10 {
			t.Errorf("%d pointers a gigabyte, and %d bytes instead of about %d", perGB, moreBytes-bytes, wanted)
		}
		cancel()
		group.Wait()
	})
}

// startOn starts a producer of a service.
func startOn(t *testing.T, service *flushModel) *producer.Producer {
	t.Helper()
	p, err := producer.New("", producer.WithService(service))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}
