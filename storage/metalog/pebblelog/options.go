package pebblelog

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/storage/blob"
	"scribe/storage/metalog/journal"
)

// Options configure an engine. The zero value is usable: every zero field has a default.
type Options struct {
	// FS holds the folder; nil means the operating system's.
	FS vfs.FS
	// Logger gets messages for operators; nil discards them.
	Logger *slog.Logger
	// Metrics gets the engine's metrics until the engine closes; nil keeps none.
	Metrics prometheus.Registerer
	// Clock returns Unix microseconds; nil means the system's clock. It may go back; the engine's times do not.
	Clock func() int64
	// CacheBytes is the size of the cache of disk blocks; 0 means 64 MiB.
	CacheBytes int64 `min:"0B"`
	// MemTableBytes is the size at which written data moves from the write-ahead log into a table. Memory holds up to four times
	// as much. 0 means 16 MiB; for a replica 64 MiB, since each table is merged with all logs, and a restart reads the journal's
	// entries again instead of a log of its own.
	MemTableBytes int64 `zero:"off" min:"64KiB" max:"1GiB"`
	// TailBytes bounds the memory for the newest records of subscribed shards; 0 means 16 MiB.
	TailBytes int64 `min:"0B"`
	// ClockLease is how far the persisted bound, at which a restart begins, is ahead of the clock. After a crash the clock may
	// stand still for as long. An idle engine with subscribers writes twice in that time. 0 means 2 s.
	ClockLease time.Duration `zero:"off" min:"1ms" max:"1m"`

	// Journal makes the engine a replica: what it writes is durable in the journal, in which the replicas of an engine find each
	// other's changes. The caller closes it after the engine. nil means an engine of its own, durable in its folder.
	Journal journal.Journal
	// URL is where this replica serves writes, for clients of the other replicas.
	URL string
	// TakeoverAfter is how long a leader is silent before another replica takes over; 0 means 1 s.
	TakeoverAfter time.Duration `zero:"off" min:"10ms" max:"1m"`
	// BeatEvery is how often an idle leader shows that it leads; 0 means a quarter of TakeoverAfter.
	BeatEvery time.Duration `zero:"off" min:"1ms" max:"1m"`
	// Snapshots is where replicas keep snapshots of their folders, under "meta/NAME/": they seed new and damaged replicas, and let the
	// journal be trimmed. nil keeps none, and the journal grows.
	Snapshots blob.Store
	// Name is that of the engine in the keys of snapshots; empty means "main".
	Name string
	// SnapshotEvery and SnapshotBytes are after how long, and after how many bytes of entries, a snapshot is made; 0 means 15 min and 1 GiB.
	SnapshotEvery time.Duration `zero:"off" min:"100ms" max:"24h"`
	SnapshotBytes int64         `min:"0B"`
	// Random draws ids and jitter; nil is the machine's randomness.
	Random *entropy.Source
}

// Validate reports every violation.
func (o *Options) Validate() error {
	violations := config.Check("metalog", o, nil).Err()
	if d := o.withDefaults(); d.BeatEvery > d.TakeoverAfter/2 {
		violations = errors.Join(violations, fmt.Errorf("metalog: invalid BeatEvery %v: want at most half of TakeoverAfter, which is %v", d.BeatEvery, d.TakeoverAfter))
	}
	return violations
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
	o.CacheBytes = cmp.Or(o.CacheBytes, 64<<20)
	if o.Journal != nil {
		o.MemTableBytes = cmp.Or(o.MemTableBytes, 64<<20)
	}
	o.MemTableBytes = cmp.Or(o.MemTableBytes, 16<<20)
	o.TailBytes = cmp.Or(o.TailBytes, 16<<20)
	o.ClockLease = cmp.Or(o.ClockLease, 2*time.Second)
	o.TakeoverAfter = cmp.Or(o.TakeoverAfter, time.Second)
	o.BeatEvery = cmp.Or(o.BeatEvery, o.TakeoverAfter/4)
	o.Name = cmp.Or(o.Name, "main")
	o.SnapshotEvery = cmp.Or(o.SnapshotEvery, 15*time.Minute)
	o.SnapshotBytes = cmp.Or(o.SnapshotBytes, 1<<30)
	return o
}
