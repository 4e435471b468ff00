package spool

import (
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/storage/blob/encryption"
)

// Config says where a spool is and how much it may hold. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// Dir is the folder. It is created if needed, and locked against a second process.
	Dir string `yaml:"dir" required:"a folder" flag:"spool,agent" help:"folder of the disk buffer; \"\" = memory only, and spooled waits for committed"`
	// MaxBytes bounds the files of the segments and the state, including preallocated space and records that are done but not yet
	// reclaimed. The ballast and the quarantine come on top. It is at least 4 segments, and 128 KiB.
	MaxBytes int64 `yaml:"max_bytes" default:"10GiB" min:"leastBytes" max:"1024TiB" flag:"spool-bytes,agent" help:"most bytes of the disk buffer"`
	// SegmentBytes is the size at which a segment is sealed; 16 to 64 MiB outside tests. Segments are preallocated.
	SegmentBytes int64 `yaml:"segment" default:"32MiB" min:"4KiB" max:"1GiB"`
	// BallastBytes is the size of a file that is removed when the disk is full although the spool is not, so that sealing, saving
	// the state and reclaiming still work; 0 = none.
	BallastBytes int64 `yaml:"ballast" default:"16MiB" min:"0B" max:"1TiB"`
	// SyncInterval is how long an append may stay unsynced when no caller syncs it.
	SyncInterval time.Duration `default:"1s" min:"1ms" max:"1h"`
	// StateInterval is how long a Done or a Drop may stay unsaved. Unsaved ones are given out again after a crash.
	StateInterval time.Duration `default:"1s" min:"1ms" max:"1h"`
	// UnsyncedBytes bounds the appended bytes that are not yet synced. They are kept in memory until then, so that a failed sync
	// loses nothing. At the limit, Append waits for the disk; an Append larger than the limit goes alone.
	UnsyncedBytes int64 `default:"16MiB" min:"1B" max:"1TiB"`
	// IndexBytes bounds the memory of the indexes of sealed segments that are being read. The most recently used one is kept even
	// if it alone is larger.
	IndexBytes int64 `default:"16MiB" min:"0B" max:"1TiB"`
	// QuarantineBytes bounds the folder of damaged ranges; the oldest are removed. 0 = damaged ranges are not kept.
	QuarantineBytes int64 `default:"64MiB" min:"0B" max:"1024TiB"`
}

// DefaultConfig returns a configuration for a host's agent. The caller sets Dir.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Limits of a configuration, in bytes.
const (
	maxSegmentBytes = 1 << 30
	minSegments     = 4
	minMaxBytes     = 128 << 10 // the state takes part of it
)

// Validate reports every violation.
func (c *Config) Validate() error {
	least := max(minMaxBytes, minSegments*min(c.SegmentBytes, maxSegmentBytes))
	return config.Check("spool", c, config.Bounds{"leastBytes": least}).Err()
}

// Deps are the dependencies of a spool.
type Deps struct {
	// FS is the file system; nil = the real one. Tests use it to drop unsynced data, tear writes and fill the disk.
	FS vfs.FS
	// Logger receives the log; nil discards it.
	Logger *slog.Logger
	// Registerer receives the metrics; nil = none.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now.
	Clock func() time.Time
	// Wrapper wraps the keys with which records are encrypted; nil = records are written as they are. A folder whose records are encrypted
	// is opened only with the wrapper that their keys need.
	Wrapper encryption.Wrapper
	// Random draws keys and nonces; nil is the machine's randomness.
	Random *entropy.Source
}
