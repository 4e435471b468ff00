package spool

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
)

// Config says where a spool is and how much it may hold. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// Dir is the folder; it is created, and locked against a second process.
	Dir string
	// MaxBytes bounds the files of the segments and the state, what is preallocated and what is done but not yet reclaimed
	// included. The ballast and the quarantine come on top. At least 4 segments, and 128 KiB.
	MaxBytes int64
	// SegmentBytes is the size at which a segment is sealed, 16 to 64 MiB outside tests. Segments are preallocated.
	SegmentBytes int64
	// BallastBytes is kept in a file of its own that is given up when the disk is full although the spool is not, so that
	// sealing, state and reclaiming still work; 0 = none.
	BallastBytes int64
	// SyncInterval is how long an append that nobody syncs may stay unsynced.
	SyncInterval time.Duration
	// StateInterval is how long it may take until a Done or a Drop is saved. What is not saved is given out again after a crash.
	StateInterval time.Duration
	// UnsyncedBytes bounds what is appended and not yet synced. It is kept in memory until then, so that a failed sync loses
	// nothing. Append waits for the disk when it is reached; a larger Append goes alone.
	UnsyncedBytes int64
	// IndexBytes bounds the memory of the indexes of sealed segments that are being read. The one that is read from is kept even
	// if it alone is larger.
	IndexBytes int64
	// QuarantineBytes bounds the folder of damaged ranges; the oldest are removed. 0 = damaged ranges are not kept.
	QuarantineBytes int64
}

// DefaultConfig suits a host's agent. Dir is the caller's to fill in.
func DefaultConfig() Config {
	return Config{
		MaxBytes:        10 << 30,
		SegmentBytes:    32 << 20,
		BallastBytes:    64 << 20,
		SyncInterval:    time.Second,
		StateInterval:   time.Second,
		UnsyncedBytes:   16 << 20,
		IndexBytes:      16 << 20,
		QuarantineBytes: 64 << 20,
	}
}

// Limits of a configuration, in bytes.
const (
	minSegmentBytes = 4 << 10 // small segments are for tests
	maxSegmentBytes = 1 << 30
	minSegments     = 4
	minMaxBytes     = 128 << 10 // the state takes a part of it
)

// Validate reports every fault.
func (c *Config) Validate() error {
	f := config.Of("spool")
	if c.Dir == "" {
		f.Refuse("Dir", "empty", "a folder")
	}
	f.Bytes("SegmentBytes", c.SegmentBytes, minSegmentBytes, maxSegmentBytes)
	f.Bytes("MaxBytes", c.MaxBytes, max(minMaxBytes, minSegments*min(c.SegmentBytes, maxSegmentBytes)), 1<<50)
	f.Bytes("BallastBytes", c.BallastBytes, 0, 1<<40)
	f.Bytes("UnsyncedBytes", c.UnsyncedBytes, 1, 1<<40)
	f.Bytes("IndexBytes", c.IndexBytes, 0, 1<<40)
	f.Bytes("QuarantineBytes", c.QuarantineBytes, 0, 1<<50)
	f.Duration("SyncInterval", c.SyncInterval, time.Millisecond, time.Hour)
	f.Duration("StateInterval", c.StateInterval, time.Millisecond, time.Hour)
	return f.Err()
}

// Deps are what a spool works with.
type Deps struct {
	// FS is the file system; nil = the real one. Tests drop what was not synced, tear writes and fill the disk.
	FS vfs.FS
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now.
	Clock func() time.Time
}
