package pebblekv

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/metrics"
)

// Config is what a store is opened with. Start from DefaultConfig.
type Config struct {
	// Dir is the folder, which is created. One process at a time may have it open.
	Dir string `required:"a folder"`
	// CacheBytes is the size of the block cache.
	CacheBytes int64 `default:"8MiB" min:"1B"`
	// MemTableBytes is the size of the write buffer.
	MemTableBytes int64 `default:"4MiB" min:"64KiB" max:"1GiB"`
	// HistoryEvents and HistoryBytes bound the changes kept in memory for watches.
	HistoryEvents int `default:"100000" min:"1"`
	HistoryBytes  int `default:"32MiB" min:"1B"`
	// MaxWaiting is how many transactions may wait to be committed; more wait outside, each in its caller.
	MaxWaiting int `default:"256" min:"1"`
}

// DefaultConfig returns the defaults for a folder.
func DefaultConfig(dir string) Config {
	c := config.Defaults[Config]()
	c.Dir = dir
	return c
}

// Validate reports every violation.
func (c Config) Validate() error {
	return config.Check("pebblekv", &c, nil).Err()
}

// Deps is what a store is given by the program. Nil fields get a default that does nothing, and the operating system's files.
type Deps struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// FS is the file system; tests crash and break it.
	FS vfs.FS
}

// storeMetrics of a store.
type storeMetrics struct {
	commits   *prometheus.CounterVec
	groupSize prometheus.Histogram
	syncTime  prometheus.Histogram
}

// Results of a transaction, as metrics name them.
const (
	resultCommitted = "committed"
	resultConflict  = "conflict"
	resultFailed    = "failed"
)

func newMetrics(r prometheus.Registerer) (*storeMetrics, error) {
	set := metrics.NewSet("scribe_kv_")
	m := &storeMetrics{
		commits: set.CounterOf("transactions_total", "Transactions of the control store by result.", "result",
			resultCommitted, resultConflict, resultFailed),
		groupSize: set.Histogram("group_transactions", "Transactions committed with one sync.", prometheus.ExponentialBuckets(1, 2, 9)),
		syncTime:  set.Histogram("sync_seconds", "Time to write and sync a group of transactions.", prometheus.ExponentialBuckets(100e-6, 4, 9)),
	}
	if err := set.Register(r); err != nil {
		return nil, fmt.Errorf("pebblekv: %w", err)
	}
	return m, nil
}
