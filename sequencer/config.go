package sequencer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Config says how a sequencer works. Start from [DefaultConfig].
type Config struct {
	// Interval is the time between two looks at which categories are this process's.
	Interval time.Duration
	// MaxCategories is how many categories the process sequences at most. What is over it is left to others, or waits, and is counted.
	MaxCategories int
	// Starts is how many categories are taken over at the same time.
	Starts int
	// Pointers is how many pointers of a category may wait to be appended: the credits of its stream.
	Pointers int
	// AppendRecords bounds one append.
	AppendRecords int
	// ChangeBytes is how many bytes of changes are written at least between two records of all positions.
	ChangeBytes int
	// Heartbeat is the longest silence asked of a stream; one that is silent for ten times as long, and at least 10 s, is taken for
	// broken.
	Heartbeat time.Duration
	// OpenTimeout bounds taking a category over, AppendTimeout an append. After that its outcome is unknown, and the category is taken over
	// anew.
	OpenTimeout   time.Duration
	AppendTimeout time.Duration
	// MinBackoff and MaxBackoff bound the pause before a category is tried again: it doubles with each failure in a row, with jitter.
	MinBackoff, MaxBackoff time.Duration
	// Contest is how long a sequencer waits that was fenced by another one, while it still believes to be the one: two with different
	// views of the membership must not keep each other from working.
	Contest time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Interval:      500 * time.Millisecond,
		MaxCategories: 10_000,
		Starts:        16,
		Pointers:      8192,
		AppendRecords: 4096,
		ChangeBytes:   64 << 10,
		Heartbeat:     time.Second,
		OpenTimeout:   30 * time.Second,
		AppendTimeout: 30 * time.Second,
		MinBackoff:    50 * time.Millisecond,
		MaxBackoff:    5 * time.Second,
		Contest:       2 * time.Second,
	}
}

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	f := config.Of("sequencer")
	f.Duration("Interval", c.Interval, time.Millisecond, time.Minute)
	f.Int("MaxCategories", c.MaxCategories, 1, 1_000_000)
	f.Int("Starts", c.Starts, 1, 1000)
	f.Int("Pointers", c.Pointers, 1, 1_000_000)
	f.Int("AppendRecords", c.AppendRecords, 1, metalog.MaxAppend/metalog.MaxRecord*8)
	f.Bytes("ChangeBytes", int64(c.ChangeBytes), 1, 64<<20)
	f.Duration("Heartbeat", c.Heartbeat, 50*time.Millisecond, time.Minute)
	f.Duration("OpenTimeout", c.OpenTimeout, time.Millisecond, time.Hour)
	f.Duration("AppendTimeout", c.AppendTimeout, time.Millisecond, time.Hour)
	f.Duration("MinBackoff", c.MinBackoff, time.Millisecond, time.Hour)
	f.Duration("MaxBackoff", c.MaxBackoff, c.MinBackoff, time.Hour)
	f.Duration("Contest", c.Contest, 0, time.Hour)
	return f.Err()
}

// Log is what a sequencer needs of the metadata engine; see metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error
}

// Streams is what a sequencer needs of the read stream; see rpc.ReadStreamService.
type Streams interface {
	Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
}

// Categories is the view of categories.
type Categories interface {
	// All yields every category. They are not changed.
	All() iter.Seq[*scribev1.Category]
	// Revision changes when a category does.
	Revision() uint64
}

// Deps are what a sequencer works with. They outlive it.
type Deps struct {
	Log        Log
	Streams    Streams
	Categories Categories
	// Members returns the ids of the live members of the cell that have the role, in any order. Only who is among them has categories.
	Members func() []string
	// ID is this process's among them, and its name as the owner of logs. At most metalog.MaxOwner bytes.
	ID string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters the metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock, which lags are measured by; nil means time.Now.
	Now func() time.Time
}

func (d *Deps) validate() error {
	var errs []error
	missing := func(name string, is bool) {
		if is {
			errs = append(errs, fmt.Errorf("sequencer: Deps.%s is missing", name))
		}
	}
	missing("Log", d.Log == nil)
	missing("Streams", d.Streams == nil)
	missing("Categories", d.Categories == nil)
	missing("Members", d.Members == nil)
	missing("ID", d.ID == "")
	if len(d.ID) > metalog.MaxOwner {
		errs = append(errs, fmt.Errorf("sequencer: Deps.ID has %d bytes, the limit is %d", len(d.ID), metalog.MaxOwner))
	}
	return errors.Join(errs...)
}
