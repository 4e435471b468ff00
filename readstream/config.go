package readstream

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
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

// lateReads is how many times Config.Reads of reads may be late before a stream begins no other.
const lateReads = 8

// Config of the role.
type Config struct {
	// MaxStreams is how many streams may be open; more are refused with REASON_OVERLOADED.
	MaxStreams int `yaml:"max" default:"1000" min:"1" max:"1000000"`
	// MaxShards is how many physical shards one stream may follow.
	MaxShards int `default:"100000" min:"1" max:"maxResume"`
	// StreamBytes bounds the records that one stream holds, TotalBytes those of all streams.
	StreamBytes int `default:"8MiB" min:"64KiB" max:"1GiB"`
	TotalBytes  int `yaml:"memory" default:"128MiB" min:"StreamBytes" max:"1TiB"`
	// TotalShards is how many shards all streams together may follow, a shard counting for each stream: about 300 bytes each.
	TotalShards int `default:"1000000" min:"MaxShards" max:"100000000"`
	// PointersPerSecond is what the server can send; it makes a rate comparable with the other limits when loads are compared.
	PointersPerSecond int `default:"500000" min:"1" max:"1000000000"`
	// MaxStreamAge, if not 0, is how long a stream may run before it is sent away: what comes back is placed anew.
	MaxStreamAge time.Duration `yaml:"max_age" min:"0s" max:"365d"`
	// BalanceEvery is how often the server compares its load with that of others and sends streams away, none that is younger than
	// MinStreamAge.
	BalanceEvery time.Duration `default:"15s" min:"1ms" max:"1h"`
	MinStreamAge time.Duration `default:"2m" min:"0s" max:"1d"`
	// BatchEntries and BatchBytes bound one StreamEntries message; BatchBytes may be overrun by one record.
	BatchEntries int `default:"512" min:"1" max:"100000"`
	BatchBytes   int `default:"256KiB" min:"1B" max:"16MiB"`
	// BatchLinger is how long a pointer that was taken may wait for others that are being read, so that they go out together.
	BatchLinger time.Duration `default:"5ms" min:"0s" max:"1m"`
	// Reads is how many reads of the engine one stream makes at a time, those that are late not counted, of which there may be lateReads
	// times as many.
	Reads int `default:"8" min:"1" max:"1000"`
	// ReadGrace is how long a stream waits for its reads before it goes on with what its window allows without them; ReadTimeout how
	// long a read may take.
	ReadGrace   time.Duration `default:"250ms" min:"0s" max:"1m"`
	ReadTimeout time.Duration `default:"5s" min:"1ms" max:"1h"`
	// TailHeartbeat is how often the engine tells the watermarks of idle shards. LookPause is the least time between two looks at the
	// tails of one category, which streams with a window ask for while they wait.
	TailHeartbeat time.Duration `default:"1s" min:"10ms" max:"1h"`
	LookPause     time.Duration `default:"5ms" min:"0s" max:"1m"`
	// LookEvery is the longest time that a category which is read goes without a look for new shards, whatever the engine's watch says.
	LookEvery time.Duration `default:"15s" min:"1ms" max:"1h"`
	// StartTimeout is how long a new stream may take to send its StreamStart.
	StartTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// SequencedWait is how long the opening of a stream of a sequenced category waits at most for what was acknowledged before to be
	// sequenced.
	SequencedWait time.Duration `default:"5s" min:"0s" max:"1m"`
	// FailAfter is for how long the engine may fail a stream before the stream ends with REASON_NO_BACKEND, and how long a new one may
	// take to find its category and its positions.
	FailAfter time.Duration `default:"30s" min:"1ms" max:"1d"`
	// RetryAfter is the hint given with refusals.
	RetryAfter time.Duration `default:"1s" min:"0s" max:"1h"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("readstream", c, config.Bounds{"maxResume": maxResume}).Err() // a stream that is sent away can go on elsewhere
}

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. It is not changed.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are what the role works with. They outlive it.
type Deps struct {
	// Log is the metadata engine.
	Log metalog.Log
	// Categories is the view of categories.
	Categories Categories
	// Peers returns the loads, 0 to 1000, of the other live servers of the role. Nil, like none, means that there is nowhere to send
	// streams to.
	Peers func() []uint32
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
	// Clock defaults to time.Now. Timers always run by package time.
	Clock func() time.Time
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
