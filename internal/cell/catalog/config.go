package catalog

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// Source is what a view needs of the control plane. rpc.ControlService has it.
type Source interface {
	WatchCategories(ctx context.Context, req *scribev1.WatchCategoriesRequest, send func(*scribev1.WatchCategoriesResponse) error) error
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
}

// Config is what a view is made with. Start from DefaultConfig.
type Config struct {
	// File keeps the last good state. Empty keeps none. Its folder must exist.
	File string
	// FileInterval is the shortest time between two writes of the file.
	FileInterval time.Duration
	// Heartbeat is the longest silence asked of the control plane. A watch that is silent for three times as long is taken for
	// dead and begun again.
	Heartbeat time.Duration
	// MinBackoff and MaxBackoff bound the pause before a watch that ended is begun again: doubling, with jitter.
	MinBackoff, MaxBackoff time.Duration
	// ResolveTimeout bounds one question of Resolve to the control plane.
	ResolveTimeout time.Duration
	// Within UnknownTTL the control plane is asked at most UnknownAsks times for one name that it does not know; UnknownNames
	// is for how many names that is remembered.
	UnknownTTL   time.Duration
	UnknownAsks  int
	UnknownNames int
	// ResolveRate is how many questions a second are asked in all.
	ResolveRate int
}

// DefaultConfig returns the defaults, without a file.
func DefaultConfig() Config {
	return Config{
		FileInterval:   30 * time.Second,
		Heartbeat:      5 * time.Second,
		MinBackoff:     50 * time.Millisecond,
		MaxBackoff:     5 * time.Second,
		ResolveTimeout: 2 * time.Second,
		UnknownTTL:     time.Second,
		UnknownAsks:    5,
		UnknownNames:   4096,
		ResolveRate:    500,
	}
}

// Validate reports every field that is out of its range.
func (c Config) Validate() error {
	f := config.Of("catalog")
	f.Duration("FileInterval", c.FileInterval, 1, config.Open)
	f.Duration("MinBackoff", c.MinBackoff, 1, config.Open)
	f.Duration("ResolveTimeout", c.ResolveTimeout, 1, config.Open)
	f.Duration("UnknownTTL", c.UnknownTTL, 1, config.Open)
	f.Int("UnknownAsks", c.UnknownAsks, 1, config.Open)
	f.Int("UnknownNames", c.UnknownNames, 1, config.Open)
	f.Int("ResolveRate", c.ResolveRate, 1, config.Open)
	f.Duration("MaxBackoff", c.MaxBackoff, c.MinBackoff, config.Open)
	f.Duration("Heartbeat", c.Heartbeat, 50*time.Millisecond, config.Open)
	return f.Err()
}

// Deps is what a view is given by the program.
type Deps struct {
	// Source is required.
	Source Source
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// metrics of a view.
type metrics struct {
	connected  prometheus.Gauge
	watches    prometheus.Counter
	resolves   *prometheus.CounterVec
	fileErrors *prometheus.CounterVec
	fileWrites prometheus.Counter
}

// Values of the labels "result" and "operation".
const (
	resultFound   = "found"
	resultUnknown = "unknown"
	resultLimited = "limited"
	resultFailed  = "failed"

	operationRead  = "read"
	operationWrite = "write"
)

func newMetrics(r prometheus.Registerer, categories func() float64) (*metrics, error) {
	const prefix = "scribe_catalog_"
	m := &metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: prefix + "in_sync", Help: "1 while the control plane's watch keeps the categories current, 0 while the last good state serves.",
		}),
		watches: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "watches_total", Help: "Watches begun."}),
		resolves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "resolves_total", Help: "Lookups of categories that were not here, by result.",
		}, []string{"result"}),
		fileErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: prefix + "file_errors_total", Help: "Files of the last good state that could not be read or written.",
		}, []string{"operation"}),
		fileWrites: prometheus.NewCounter(prometheus.CounterOpts{Name: prefix + "file_writes_total", Help: "Writes of the last good state."}),
	}
	for _, result := range []string{resultFound, resultUnknown, resultLimited, resultFailed} {
		m.resolves.WithLabelValues(result)
	}
	for _, op := range []string{operationRead, operationWrite} {
		m.fileErrors.WithLabelValues(op)
	}
	if r == nil {
		return m, nil
	}
	count := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + "categories", Help: "Categories known."}, categories)
	for _, c := range []prometheus.Collector{m.connected, m.watches, m.resolves, m.fileErrors, m.fileWrites, count} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("catalog: metrics: %w", err)
		}
	}
	return m, nil
}
