package sqlserver

import (
	"context"
	"iter"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/internal/cell/access"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// MaxText bounds the text of a query, in bytes.
const MaxText = 64 << 10

// Config bounds the resources of queries. Start from [DefaultConfig].
type Config struct {
	// MaxQueries bounds the concurrent queries, MaxFollows those of them that follow. Excess queries are refused with a retry
	// hint.
	MaxQueries int `yaml:"max_queries" default:"32" min:"1" max:"100000" flag:"max-queries" help:"how many queries over the network run at a time"`
	MaxFollows int `yaml:"max_follows" default:"24" min:"0" max:"MaxQueries"`
	// MaxTails bounds the concurrent tails over HTTP; one caller gets a quarter of them. Each reads 8 MiB ahead of its client, with a condition
	// QueryMemory, or holds one larger payload, of up to 80 MiB; and the text of the message that is written.
	MaxTails int `yaml:"max_tails" default:"64" min:"0" max:"100000" flag:"max-tails" help:"how many tails over HTTP run at a time"`
	// QueryMemory bounds the memory of a query, in bytes: fetched data that is not answered yet, groups, and windows.
	QueryMemory int64 `yaml:"query_memory" default:"128MiB" min:"1MiB" max:"1TiB" flag:"query-memory" help:"most bytes that such a query holds"`
	// MaxRows bounds the rows of an answer; 0 = no bound. Following queries have no bound.
	MaxRows int64 `yaml:"max_rows" default:"100000000" min:"0" max:"1152921504606846976"`
	// MaxTime bounds the time of a query, MaxFollowTime that of a following one, whose answer then ends normally; 0 = no bound.
	// Clients can request less.
	MaxTime       time.Duration `yaml:"max_time" default:"10m" min:"0s" max:"365d" flag:"query-time" help:"how long such a query may run, if it does not follow; 0s = as long as it likes"`
	MaxFollowTime time.Duration `yaml:"max_follow_time" min:"0s" max:"365d"`
	// Heartbeat bounds the silence of a following answer, in the formats with heartbeats: Arrow and JSON lines.
	Heartbeat time.Duration `yaml:"heartbeat" default:"10s" min:"10ms" max:"1h"`
	// StallTimeout is how long a client may accept no data before its query ends.
	StallTimeout time.Duration `yaml:"stall_timeout" default:"1m" min:"10ms" max:"1h"`
	// DrainTimeout is how long Close lets queries run that do not follow.
	DrainTimeout time.Duration `default:"5s" min:"0s" max:"1h"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("sqlserver", c, nil).Err()
}

// Rights says what callers may do. Their principals are in the contexts of requests. *enforce.Enforcer has it.
type Rights interface {
	// Sees reports whether the caller may know of a category, SeenAs is what it may know of it.
	Sees(ctx context.Context, c *scribev1.Category) bool
	SeenAs(ctx context.Context, c *scribev1.Category) *scribev1.Category
	// AllowAny returns an error unless the caller may do something to some category.
	AllowAny(ctx context.Context, what access.Permission, act string) error
	// BeginRead returns an error unless the caller may read or query a category, and to which rows and columns it is limited, nil for none. The context ends when either
	// changes; cancel releases it.
	BeginRead(ctx context.Context, what access.Permission, category string) (watched context.Context, limited *restrict.Restriction, cancel context.CancelFunc, err error)
}

// Deps are a server's dependencies. They outlive it.
type Deps struct {
	// Server is the address of the cell, see consumer.New.
	Server string
	// Transport has the connections to the cell; nil = connections of each query's own.
	Transport *rpc.Transport
	// Categories lists the categories of the cell.
	Categories interface {
		All() iter.Seq[*scribev1.Category]
	}
	// Rights says what the callers of queries may query; nil = everything.
	Rights Rights
	// Version is the program's version, for Flight SQL's GetSqlInfo.
	Version string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters the metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Random draws jitter and ids; nil means the machine's randomness.
	Random *entropy.Source
}
