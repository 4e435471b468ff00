package pebblelog

import (
	"cmp"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
)

// Options of an engine. The zero value is usable: every zero field has a default.
type Options struct {
	// FS holds the folder; nil means the operating system's.
	FS vfs.FS
	// Logger gets what operators should know; nil drops it.
	Logger *slog.Logger
	// Metrics gets the engine's metrics, and loses them when the engine closes; nil keeps none.
	Metrics prometheus.Registerer
	// Clock returns Unix microseconds; nil means the system's clock. It may go back: the engine's times do not.
	Clock func() int64
	// CacheBytes is the size of the cache of blocks read from disk; 0 means 64 MiB.
	CacheBytes int64 `min:"0B"`
	// MemTableBytes is how much is written before it is moved from the write-ahead log into a table; up to four times as much is
	// held in memory. 0 means 16 MiB.
	MemTableBytes int64 `zero:"off" min:"64KiB" max:"1GiB"`
	// TailBytes bounds the memory for newest records of shards that are subscribed to; 0 means 16 MiB.
	TailBytes int64 `min:"0B"`
	// ClockLease is how far ahead of the clock the bound is that a restart begins at. After a crash the clock may stand still for
	// as long; an idle engine with subscribers writes twice in that time. 0 means 2 s.
	ClockLease time.Duration `zero:"off" min:"1ms" max:"1m"`
}

// Defaults and limits of Options.
const (
	defaultCache    = 64 << 20
	defaultMemTable = 16 << 20
	defaultTail     = 16 << 20
	defaultLease    = 2 * time.Second
)

// Validate reports every violation.
func (o *Options) Validate() error {
	return config.Check("metalog", o, nil).Err()
}

func (o Options) withDefaults() Options {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = func() int64 { return time.Now().UnixMicro() }
	}
	o.CacheBytes = cmp.Or(o.CacheBytes, defaultCache)
	o.MemTableBytes = cmp.Or(o.MemTableBytes, defaultMemTable)
	o.TailBytes = cmp.Or(o.TailBytes, defaultTail)
	o.ClockLease = cmp.Or(o.ClockLease, defaultLease)
	return o
}
