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
	Dir string
	// CacheBytes is the size of the block cache.
	CacheBytes int64
	// MemTableBytes is the size of the write buffer.
	MemTableBytes int64
	// HistoryEvents and HistoryBytes bound the changes kept in memory for watches.
	HistoryEvents int
	HistoryBytes  int
	// MaxWaiting is how many transactions may wait to be committed; more wait outside, each in its caller.
	MaxWaiting int
}

// DefaultConfig returns the defaults for a folder.
func DefaultConfig(dir string) Config {
	return Config{
		Dir:           dir,
		CacheBytes:    8 << 20,
		MemTableBytes: 4 << 20,
		HistoryEvents: 100_000,
		HistoryBytes:  32 << 20,
		MaxWaiting:    256,
	}
}

// Validate reports every field that is out of its range.
func (c Config) Validate() error {
	f := config.Of("pebblekv")
	if c.Dir == "" {
		f.Refuse("Dir", "empty", "a folder")
	}
	f.Bytes("CacheBytes", c.CacheBytes, 1, config.Open)
	f.Int("HistoryEvents", c.HistoryEvents, 1, config.Open)
	f.Bytes("HistoryBytes", int64(c.HistoryBytes), 1, config.Open)
	f.Int("MaxWaiting", c.MaxWaiting, 1, config.Open)
	f.Bytes("MemTableBytes", c.MemTableBytes, 64<<10, 1<<30)
	return f.Err()
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
