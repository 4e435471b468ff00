package group

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/metalog"
)

// Bounds and defaults of requests, as the protocol describes them.
const (
	minTTL         = time.Second
	maxTTL         = 5 * time.Minute
	defaultTTL     = 10 * time.Second
	minRevoke      = time.Second
	maxRevoke      = time.Hour
	defaultRevoke  = time.Minute
	defaultBuckets = 256
	maxList        = 1000
	maxPositions   = 20_000  // shards in a commit
	maxAhead       = 200_000 // buckets ahead in a commit
)

// Config configures a coordinator. Start from [config.Defaults].
type Config struct {
	// MaxGroups bounds the number of groups; a create above it is refused.
	MaxGroups int `default:"10000" min:"1" max:"1000000"`
	// MaxShards bounds the physical shards of a category when a group begins to read it.
	MaxShards int `default:"100000" min:"1" max:"100000"`
	// PinInterval is the interval at which the coordinator pins the records that active groups need and retention is about to
	// remove.
	PinInterval time.Duration `default:"10s" min:"1ms" max:"20s"`
	// StoreTimeout bounds store operations that no request waits for.
	StoreTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// LogTimeout bounds a request to the metadata engine.
	LogTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// TrafficWindow is the period, up to now, over which the traffic of a category is measured.
	TrafficWindow time.Duration `default:"5m" min:"1s" max:"1d"`
	// Shared says that other coordinators may use the same store. Then groups are looked for whose coordinator may have ended, so
	// that their members expire.
	Shared bool
}

// Validate reports every violation.
func (c Config) Validate() error {
	return config.Check("group", &c, nil).Err()
}

// CategoryControl is the part of the control plane that a coordinator uses.
type CategoryControl interface {
	GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error)
	HoldPins(ctx context.Context, req *scribev1.HoldPinsRequest) (*scribev1.HoldPinsResponse, error)
}

// ShardLog is the part of the metadata engine that a coordinator uses: it finds start positions and measures the lag.
type ShardLog interface {
	Shards(ctx context.Context, category uint32) ([]metalog.State, error)
	RemovedShards(ctx context.Context, category uint32, since int64) ([]metalog.State, error)
	Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error)
	Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error)
}

// Deps are the dependencies of a coordinator. They outlive it.
type Deps struct {
	// Store keeps the state.
	Store kv.Store
	// Control is the control plane.
	Control CategoryControl
	// Log is the metadata engine.
	Log ShardLog
	// Holder is the name under which pins are held; no other process uses it.
	Holder string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters.
	Registerer prometheus.Registerer
	// Now gives the times that are stored and compared with those of messages; nil means time.Now. Leases run by the monotonic
	// clock.
	Now func() time.Time
	// Random draws jitter and the names of stored positions; nil means the machine's randomness.
	Random *entropy.Source
}

func (d *Deps) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("group: missing %s", what))
		}
	}
	need(d.Store != nil, "store")
	need(d.Control != nil, "control plane")
	need(d.Log != nil, "metadata engine")
	need(d.Holder != "", "name for pins")
	return errors.Join(errs...)
}
