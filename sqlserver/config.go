package sqlserver

import (
	"iter"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// MaxText is the longest query, in bytes.
const MaxText = 64 << 10

// Config bounds what queries take. Start from [DefaultConfig].
type Config struct {
	// MaxQueries is how many queries run at a time, MaxFollows how many of them may be ones that follow: those last. What is over it is
	// refused, to be tried again.
	MaxQueries int
	MaxFollows int
	// QueryMemory is what a query may hold, in bytes: what it fetched and has not answered yet, groups, and windows.
	QueryMemory int64
	// MaxRows is the most rows of an answer; 0 = no bound. A query that follows has none.
	MaxRows int64
	// MaxTime is how long a query runs, MaxFollowTime how long one that follows, which then ends as if there were no more; 0 = no bound.
	// Clients can ask for less.
	MaxTime       time.Duration
	MaxFollowTime time.Duration
	// Heartbeat is the longest silence of an answer that follows, in formats that can say nothing: Arrow and JSON lines.
	Heartbeat time.Duration
	// StallTimeout is how long a client may take nothing of what is written to it.
	StallTimeout time.Duration
	// DrainTimeout is how long Close lets queries that do not follow go on.
	DrainTimeout time.Duration
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		MaxQueries:    32,
		MaxFollows:    24,
		QueryMemory:   128 << 20,
		MaxRows:       100_000_000,
		MaxTime:       10 * time.Minute,
		MaxFollowTime: 0,
		Heartbeat:     10 * time.Second,
		StallTimeout:  time.Minute,
		DrainTimeout:  5 * time.Second,
	}
}

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	const long = 365 * 24 * time.Hour
	f := config.Of("gateway")
	f.Int("MaxQueries", c.MaxQueries, 1, 100_000)
	f.Int("MaxFollows", c.MaxFollows, 0, c.MaxQueries)
	f.Bytes("QueryMemory", c.QueryMemory, 1<<20, 1<<40)
	f.Int("MaxRows", int(c.MaxRows), 0, 1<<60)
	f.Duration("MaxTime", c.MaxTime, 0, long)
	f.Duration("MaxFollowTime", c.MaxFollowTime, 0, long)
	f.Duration("Heartbeat", c.Heartbeat, 10*time.Millisecond, time.Hour)
	f.Duration("StallTimeout", c.StallTimeout, 10*time.Millisecond, time.Hour)
	f.Duration("DrainTimeout", c.DrainTimeout, 0, time.Hour)
	return f.Err()
}

// Deps are what a gateway works with. They outlive it.
type Deps struct {
	// Server is the address of the cell, see consumer.New.
	Server string
	// Categories are those of the cell.
	Categories interface {
		All() iter.Seq[*scribev1.Category]
	}
	// Version is the program's, for Flight SQL's GetSqlInfo.
	Version string
	// Logger may be nil.
	Logger *slog.Logger
	// Registerer may be nil. Close unregisters the metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
}
