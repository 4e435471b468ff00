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
	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Config configures a sequencer. Start from [DefaultConfig].
type Config struct {
	// Interval is the time between two checks of which categories this process sequences.
	Interval time.Duration `default:"500ms" min:"1ms" max:"1m"`
	// MaxCategories bounds the categories that the process sequences. Excess categories are not sequenced here; they are counted.
	MaxCategories int `default:"10000" min:"1" max:"1000000"`
	// Starts bounds the concurrent takeovers of categories.
	Starts int `default:"16" min:"1" max:"1000"`
	// Pointers bounds the pointers of a category that wait to be appended: the credits of its stream.
	Pointers int `default:"8192" min:"1" max:"1000000"`
	// AppendRecords bounds the records of one append.
	AppendRecords int `default:"4096" min:"1" max:"4096"`
	// ChangeBytes is the minimum size of changes written between two records of all positions.
	ChangeBytes int `default:"64KiB" min:"1B" max:"64MiB"`
	// Heartbeat is the heartbeat interval requested from a stream. A stream that is silent for ten times as long, and at least 10
	// s, is treated as broken.
	Heartbeat time.Duration `default:"1s" min:"50ms" max:"1m"`
	// OpenTimeout bounds the takeover of a category, AppendTimeout an append. After that its outcome is unknown, and the category
	// is taken over again.
	OpenTimeout   time.Duration `default:"30s" min:"1ms" max:"1h"`
	AppendTimeout time.Duration `default:"30s" min:"1ms" max:"1h"`
	// MinBackoff and MaxBackoff bound the pause before a category is retried. It doubles with each consecutive failure, and is
	// jittered.
	MinBackoff time.Duration `default:"50ms" min:"1ms" max:"1h"`
	MaxBackoff time.Duration `default:"5s" min:"MinBackoff" max:"1h"`
	// Contest is how long a sequencer waits after another one fenced it, while the membership still assigns the category to it:
	// two sequencers with different views of the membership must not keep each other from working.
	Contest time.Duration `default:"2s" min:"0s" max:"1h"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("sequencer", c, nil).Err()
}

// Log is the part of the metadata engine that a sequencer uses; see metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error
}

// ReadStreams is the part of the read stream service that a sequencer uses; see rpc.ReadStreamService.
type ReadStreams interface {
	Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
}

// CategoryView is the local view of categories.
type CategoryView interface {
	// All yields every category. Categories must not be changed.
	All() iter.Seq[*scribev1.Category]
	// Revision changes when a category does.
	Revision() uint64
}

// Deps are a sequencer's dependencies. They outlive it.
type Deps struct {
	Log        Log
	Streams    ReadStreams
	Categories CategoryView
	// Members returns the ids of the cell's live members with this role, in any order. Only these members are assigned
	// categories.
	Members func() []string
	// ID is this process's id among Members, and its name as the owner of logs: at most metalog.MaxOwner bytes.
	ID string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters the metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock for measuring lags; nil means time.Now.
	Now func() time.Time
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
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
