package retention

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
	"scribe/storage/blob"
	"scribe/storage/metalog"
)

// Config sets when data is removed, and how fast. Start from [DefaultConfig].
type Config struct {
	// Grace is the least age of a blob before it is examined: a writer has that long from making a blob's id to appending its pointers.
	// It also bounds how far a batcher's clock may lag behind the metadata engine's: appends of a batcher that lags more are refused.
	Grace time.Duration `yaml:"grace" default:"1h" min:"0s" max:"30d" flag:"retention-grace" help:"least age of a blob before retention examines it: the time that a batcher has to commit it"`
	// Linger is how long a blob stays after it was found dead, for readers that still have a pointer to it.
	Linger time.Duration `yaml:"linger" default:"10m" min:"0s" max:"30d" flag:"retention-linger" help:"how long a blob stays after it was found to have no references"`
	// PinLimit bounds how long readers may delay trimming beyond a category's retention; the retention itself is a second bound.
	PinLimit time.Duration `yaml:"pin_limit" default:"1h" min:"0s" max:"3650d" flag:"retention-pin-limit" help:"how long readers may delay the trimming of a category beyond its retention"`
	// LogGrace is how long an empty log stays beyond the retention of its last record. Streams must have heard of that record by then, however slow
	// their subscriptions are. It is also how long a member that is missing counts as being there, and how long all members must have known
	// removed logs before the first one is removed.
	LogGrace time.Duration `yaml:"log_grace" default:"1h" min:"1s" max:"3650d" help:"how long an empty log stays beyond the retention of its last record"`
	// Interval is the least time between two checks of a category and of other due work. Waits are jittered by a fifth.
	Interval time.Duration `yaml:"interval" default:"10s" min:"10ms" max:"1h" flag:"retention-interval" help:"least time between two checks of what is due for removal"`
	// BoundaryStep is the least advance of the boundary. Each advance costs a small object in the blob store.
	BoundaryStep time.Duration `default:"5m" min:"1ms" max:"1d"`
	// SweepInterval is the time between two listings of all blobs.
	SweepInterval time.Duration `yaml:"sweep_interval" default:"1d" min:"1s" max:"3650d"`
	// LeaseTTL is how long the other keepers wait for a silent leader before they take over.
	LeaseTTL time.Duration `default:"15s" min:"100ms" max:"10m"`

	// StoreRequests and LogRequests bound the requests a second to the blob store and to the metadata engine.
	StoreRequests float64 `yaml:"store_requests" default:"100" min:">0"`
	LogRequests   float64 `yaml:"log_requests" default:"500" min:">0"`
	// LogRemovals bounds the empty logs removed a second; 0 = none are removed.
	LogRemovals float64 `yaml:"log_removals" default:"50" min:"0" max:"1000000"`
	// DeleteBytes bounds the bytes of blobs deleted a second; 0 = no bound. Stores reclaim space in the background.
	DeleteBytes int64 `yaml:"delete_bytes" default:"512MiB" min:"0B"`
	// Workers bounds the blobs that are examined, or deleted, at a time. Each worker holds a footer: up to some 30 MiB for the largest blobs.
	Workers int `default:"8" min:"1" max:"1000"`
	// MaxDoomed bounds the dead blobs that wait for their Linger, some 150 bytes each. Further ones are examined again later.
	MaxDoomed int `default:"100000" min:"1" max:"10000000"`

	// Adopt has the keys of claims that halt this keeper, and that it may replace, with commas between. See [HaltedError].
	Adopt string `yaml:"adopt" flag:"retention-adopt" help:"keys of claims in the blob store that retention may replace, with commas between; the error that halts retention names them"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("retention", c, nil).Err()
}

// Log is the part of the metadata engine that a keeper uses; see metalog.Log.
type Log interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error)
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error
	Retire(ctx context.Context, category uint32) error
	Erase(ctx context.Context, category uint32) error
	Shards(ctx context.Context, category uint32) ([]metalog.State, error)
	Remove(ctx context.Context, shards []metalog.Unused) (int, error)
	AdvanceBoundary(ctx context.Context, t int64) (int64, error)
}

// Control is the part of the control plane that a keeper uses; see rpc.ControlService.
type Control interface {
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
	ListDropped(ctx context.Context, req *scribev1.ListDroppedRequest) (*scribev1.ListDroppedResponse, error)
	ForgetDropped(ctx context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error)
	ListPins(ctx context.Context, req *scribev1.ListPinsRequest) (*scribev1.ListPinsResponse, error)
	ListMembers(ctx context.Context, req *scribev1.ListMembersRequest) (*scribev1.ListMembersResponse, error)
}

// Categories is the local view of categories. It says which categories exist; a trim reads the retention from the control plane.
type Categories interface {
	// All yields every category. The keeper does not modify them.
	All() iter.Seq[*scribev1.Category]
	// ByID returns a category.
	ByID(id uint32) (*scribev1.Category, bool)
}

// Deps are the components that a keeper uses. They outlive it.
type Deps struct {
	Log        Log
	Blobs      blob.Store
	Control    Control
	Categories Categories
	// Plans returns the plans for how many batchers the logs of shards are open ahead of need: such a log is not removed. Nil means that there are
	// none. The keeper does not modify them.
	Plans func() (plans map[uint32]*scribev1.CategoryPlan, changed <-chan struct{})
	// Owner names the process in the lease: a restarted process with the same name need not wait until its own lease expires. At most
	// metalog.MaxOwner bytes.
	Owner string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters the metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Random draws jitter and the name of the cell; nil means the machine's randomness.
	Random *entropy.Source
}

func (d *Deps) validate() error {
	var errs []error
	for name, missing := range map[string]bool{
		"Log": d.Log == nil, "Blobs": d.Blobs == nil, "Control": d.Control == nil, "Categories": d.Categories == nil,
		"Owner": d.Owner == "" || len(d.Owner) > metalog.MaxOwner,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("retention: Deps.%s is missing or too long", name))
		}
	}
	return errors.Join(errs...)
}
