package pebblekv

import (
	"fmt"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/metrics"
)

// Config configures a store. Start from DefaultConfig.
type Config struct {
	// Dir is the folder, which is created if it does not exist. One process at a time may have it open.
	Dir string `required:"a folder"`
	// CacheBytes is the size of the block cache.
	CacheBytes int64 `default:"32MiB" min:"1B"`
	// MemTableBytes is the size of the write buffer.
	MemTableBytes int64 `default:"4MiB" min:"64KiB" max:"1GiB"`
	// HistoryEvents and HistoryBytes bound the changes kept in memory for watches.
	HistoryEvents int `default:"100000" min:"1"`
	HistoryBytes  int `default:"32MiB" min:"1B"`
	// MaxWaiting bounds the queue of transactions; when it is full, callers wait.
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

// Deps are the dependencies of a store. Nil fields default to no-ops, and FS to the operating system's files.
type Deps struct {
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// FS is the file system; tests inject crashes and errors with it.
	FS vfs.FS
}

// storeMetrics are the metrics of a store.
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
