package readstream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// Limits of the protocol (proto/scribe/v1/readstream.proto).
const (
	maxResume       = 100_000
	maxConsumerName = 255
	maxCredits      = 1_000_000
	maxByteCredits  = 64 << 30
	minHeartbeat    = 50 * time.Millisecond
	maxHeartbeat    = time.Minute
)

// lateReads is how many late reads, in multiples of Config.Reads, a stream may have before it starts no more.
const lateReads = 8

// Config configures the role.
type Config struct {
	// MaxStreams bounds the open streams; more are refused with REASON_OVERLOADED.
	MaxStreams int `yaml:"max" default:"1000" min:"1" max:"1000000"`
	// MaxShards bounds the physical shards that one stream follows.
	MaxShards int `default:"100000" min:"1" max:"maxResume"`
	// StreamBytes bounds the queued records of one stream, TotalBytes those of all streams.
	StreamBytes int `default:"8MiB" min:"64KiB" max:"1GiB"`
	TotalBytes  int `yaml:"memory" default:"128MiB" min:"StreamBytes" max:"1TiB"`
	// TotalShards bounds the shards of all streams, counted once for each stream: about 300 bytes each.
	TotalShards int `default:"1000000" min:"MaxShards" max:"100000000"`
	// PointersPerSecond is the server's capacity; it makes the rate comparable with the other limits when loads are computed.
	PointersPerSecond int `default:"500000" min:"1" max:"1000000000"`
	// MaxStreamAge, if not 0, is how long a stream may run before it is evicted, so that it is placed anew when it comes back.
	MaxStreamAge time.Duration `yaml:"max_age" min:"0s" max:"365d"`
	// BalanceEvery is how often the server compares its load with that of others and evicts streams, but none younger than
	// MinStreamAge.
	BalanceEvery time.Duration `default:"15s" min:"1ms" max:"1h"`
	MinStreamAge time.Duration `default:"2m" min:"0s" max:"1d"`
	// BatchEntries and BatchBytes bound one StreamEntries message; one record may exceed BatchBytes.
	BatchEntries int `default:"512" min:"1" max:"100000"`
	BatchBytes   int `default:"256KiB" min:"1B" max:"16MiB"`
	// BatchLinger is how long a pointer may wait in the batch while reads are running, so that their pointers go out with it.
	BatchLinger time.Duration `default:"5ms" min:"0s" max:"1m"`
	// Reads bounds the concurrent reads of one stream, except late ones, of which there may be lateReads times as many.
	Reads int `default:"8" min:"1" max:"1000"`
	// ReadGrace is how long a stream waits for its reads before it continues without them as far as its window allows.
	// ReadTimeout bounds one read.
	ReadGrace   time.Duration `default:"250ms" min:"0s" max:"1m"`
	ReadTimeout time.Duration `default:"5s" min:"1ms" max:"1h"`
	// TailHeartbeat is how often the engine reports the watermarks of idle shards. LookPause is the minimum time between two
	// looks at the tails of one category, which waiting streams with a window request.
	TailHeartbeat time.Duration `default:"1s" min:"10ms" max:"1h"`
	LookPause     time.Duration `default:"5ms" min:"0s" max:"1m"`
	// LookEvery is the maximum time without a look for new shards in a category that is read, even if the engine's watch reports
	// none.
	LookEvery time.Duration `default:"15s" min:"1ms" max:"1h"`
	// OpeningMost bounds the streams that are being opened: that look for their shards and positions. Streams of categories with lower priority are refused
	// first. While it takes SlowOpening, on average, the bound is lowered down to OpeningLeast if that is less, so that the engine is asked less. With a
	// SlowOpening of 0 it stays.
	OpeningMost  int           `yaml:"opening_most" default:"16384" min:"1" max:"1000000"`
	OpeningLeast int           `yaml:"opening_least" default:"125" min:"1" max:"1000000"`
	SlowOpening  time.Duration `yaml:"slow_opening" default:"0s" min:"0s" max:"1h"`
	// OpeningsPerSecond bounds the rate of openings, 0 means no bound. OpeningBurst is the size of its token bucket.
	OpeningsPerSecond float64 `yaml:"openings_per_second" default:"0" min:"0" max:"1000000000000000"`
	OpeningBurst      int     `yaml:"opening_burst" default:"4000" min:"1" max:"1073741824"`
	// StartTimeout bounds the wait for a new stream's StreamStart.
	StartTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// SequencedWait bounds how long opening a stream of a sequenced category waits until previously acknowledged messages are
	// sequenced.
	SequencedWait time.Duration `default:"5s" min:"0s" max:"1m"`
	// FailAfter is how long the engine may fail a stream before the stream ends with REASON_NO_BACKEND, and how long a new stream
	// may take to find its category and its positions.
	FailAfter time.Duration `default:"30s" min:"1ms" max:"1d"`
	// RetryAfter is the retry hint of refusals.
	RetryAfter time.Duration `default:"1s" min:"0s" max:"1h"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("readstream", c, config.Bounds{"maxResume": maxResume}).Err() // an evicted stream can resume elsewhere
}

// Categories is the local view of categories.
type Categories interface {
	// Lookup returns a category from the local view. It must not be changed.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when the category does not exist.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are the role's dependencies. They outlive it.
type Deps struct {
	// Log is the metadata engine.
	Log        metalog.Log
	Categories Categories
	// Peers returns the loads, 0 to 1000, of the other live servers of the role. nil, or an empty result, means that no other
	// server can take streams.
	Peers func() []uint32
	// Logger may be nil: then nothing is logged.
	Logger *slog.Logger
	// Registerer registers the metrics; nil registers none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always use package time.
	Clock func() time.Time
	// Random draws jitter; nil means the machine's randomness.
	Random *entropy.Source
}

func (d *Deps) validate() error {
	var errs []error
	if d.Log == nil {
		errs = append(errs, errors.New("readstream: Deps.Log is missing"))
	}
	if d.Categories == nil {
		errs = append(errs, errors.New("readstream: Deps.Categories is missing"))
	}
	return errors.Join(errs...)
}
