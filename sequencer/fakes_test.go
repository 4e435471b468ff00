package sequencer

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

type (
	ctxType  = context.Context
	recvType = func(context.Context) (*scribev1.StreamRequest, error)
	sendType = func(*scribev1.StreamResponse) error
)

type streamsFunc func(ctxType, recvType, sendType) error

func (f streamsFunc) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	return f(ctx, recv, send)
}

var errEnd = errors.New("the stream ends")

// moody is an engine whose calls fail now and then, some after they were carried out.
type moody struct {
	Log
	calm   atomic.Bool
	mu     sync.Mutex
	random *rand.Rand
}

func (m *moody) chance(one int) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.random.IntN(one) == 0 && !m.calm.Load()
}

func (m *moody) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	if m.chance(4) {
		return nil, errCrash
	}
	st, err := m.Log.Open(ctx, owner, shards)
	if m.chance(4) {
		return nil, errCrash
	}
	return st, err
}

func (m *moody) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	if m.chance(6) {
		return nil, errCrash
	}
	done, err := m.Log.Append(ctx, a)
	if m.chance(6) {
		return nil, errCrash
	}
	return done, err
}

// pausing is an engine whose first append waits.
type pausing struct {
	Log
	once          sync.Once
	reached, goOn chan struct{}
}

func (p *pausing) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	p.once.Do(func() {
		close(p.reached)
		<-p.goOn
	})
	return p.Log.Append(context.WithoutCancel(ctx), a)
}

// value is that of one counter or gauge.
func value(c prometheus.Collector) (sum float64) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(c)
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return sum
}
