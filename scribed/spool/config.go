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
	Dir string `yaml:"dir" required:"a folder" flag:"spool,agent" help:"folder of the disk buffer; \"\" = memory only, and spooled waits for committed"`
	// MaxBytes bounds the files of the segments and the state, what is preallocated and what is done but not yet reclaimed
	// included. The ballast and the quarantine come on top. At least 4 segments, and 128 KiB.
	MaxBytes int64 `yaml:"max_bytes" default:"10GiB" min:"leastBytes" max:"1024TiB" flag:"spool-bytes,agent" help:"most bytes of the disk buffer"`
	// SegmentBytes is the size at which a segment is sealed, 16 to 64 MiB outside tests. Segments are preallocated.
	SegmentBytes int64 `yaml:"segment" default:"32MiB" min:"4KiB" max:"1GiB"`
	// BallastBytes is kept in a file of its own that is given up when the disk is full although the spool is not, so that
	// sealing, state and reclaiming still work; 0 = none.
	BallastBytes int64 `yaml:"ballast" default:"16MiB" min:"0B" max:"1TiB"`
	// SyncInterval is how long an append that nobody syncs may stay unsynced.
	SyncInterval time.Duration `default:"1s" min:"1ms" max:"1h"`
	// StateInterval is how long it may take until a Done or a Drop is saved. What is not saved is given out again after a crash.
	StateInterval time.Duration `default:"1s" min:"1ms" max:"1h"`
	// UnsyncedBytes bounds what is appended and not yet synced. It is kept in memory until then, so that a failed sync loses
	// nothing. Append waits for the disk when it is reached; a larger Append goes alone.
	UnsyncedBytes int64 `default:"16MiB" min:"1B" max:"1TiB"`
	// IndexBytes bounds the memory of the indexes of sealed segments that are being read. The one that is read from is kept even
	// if it alone is larger.
	IndexBytes int64 `default:"16MiB" min:"0B" max:"1TiB"`
	// QuarantineBytes bounds the folder of damaged ranges; the oldest are removed. 0 = damaged ranges are not kept.
	QuarantineBytes int64 `default:"64MiB" min:"0B" max:"1024TiB"`
}

// DefaultConfig suits a host's agent. Dir is the caller's to fill in.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Limits of a configuration, in bytes.
const (
	maxSegmentBytes = 1 << 30
	minSegments     = 4
	minMaxBytes     = 128 << 10 // the state takes a part of it
)

// Validate reports every violation.
func (c *Config) Validate() error {
	least := max(minMaxBytes, minSegments*min(c.SegmentBytes, maxSegmentBytes))
	return config.Check("spool", c, config.Bounds{"leastBytes": least}).Err()
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
