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
	MaxStreams int
	// MaxShards is how many physical shards one stream may follow.
	MaxShards int
	// StreamBytes bounds the records that one stream holds, TotalBytes those of all streams.
	StreamBytes int
	TotalBytes  int
	// TotalShards is how many shards all streams together may follow, a shard counting for each stream: about 300 bytes each.
	TotalShards int
	// PointersPerSecond is what the server can send; it makes a rate comparable with the other limits when loads are compared.
	PointersPerSecond int
	// MaxStreamAge, if not 0, is how long a stream may run before it is sent away: what comes back is placed anew.
	MaxStreamAge time.Duration
	// BalanceEvery is how often the server compares its load with that of others and sends streams away, none that is younger than
	// MinStreamAge.
	BalanceEvery time.Duration
	MinStreamAge time.Duration
	// BatchEntries and BatchBytes bound one StreamEntries message; BatchBytes may be overrun by one record.
	BatchEntries int
	BatchBytes   int
	// BatchLinger is how long a pointer that was taken may wait for others that are being read, so that they go out together.
	BatchLinger time.Duration
	// Reads is how many reads of the engine one stream makes at a time, those that are late not counted, of which there may be lateReads
	// times as many.
	Reads int
	// ReadGrace is how long a stream waits for its reads before it goes on with what its window allows without them; ReadTimeout how
	// long a read may take.
	ReadGrace   time.Duration
	ReadTimeout time.Duration
	// TailHeartbeat is how often the engine tells the watermarks of idle shards. LookPause is the least time between two looks at the
	// tails of one category, which streams with a window ask for while they wait.
	TailHeartbeat time.Duration
	LookPause     time.Duration
	// LookEvery is the longest time that a category which is read goes without a look for new shards, whatever the engine's watch says.
	LookEvery time.Duration
	// StartTimeout is how long a new stream may take to send its StreamStart.
	StartTimeout time.Duration
	// SequencedWait is how long the opening of a stream of a sequenced category waits at most for what was acknowledged before to be
	// sequenced.
	SequencedWait time.Duration
	// FailAfter is for how long the engine may fail a stream before the stream ends with REASON_NO_BACKEND, and how long a new one may
	// take to find its category and its positions.
	FailAfter time.Duration
	// RetryAfter is the hint given with refusals.
	RetryAfter time.Duration
}

// DefaultConfig returns the configuration that is used unless told otherwise.
func DefaultConfig() Config {
	return Config{
		MaxStreams:        1000,
		MaxShards:         100_000,
		StreamBytes:       8 << 20,
		TotalBytes:        256 << 20,
		TotalShards:       1_000_000,
		PointersPerSecond: 500_000,
		BalanceEvery:      15 * time.Second,
		MinStreamAge:      2 * time.Minute,
		BatchEntries:      512,
		BatchBytes:        256 << 10,
		BatchLinger:       5 * time.Millisecond,
		Reads:             8,
		ReadGrace:         250 * time.Millisecond,
		ReadTimeout:       5 * time.Second,
		TailHeartbeat:     time.Second,
		LookPause:         5 * time.Millisecond,
		LookEvery:         15 * time.Second,
		StartTimeout:      10 * time.Second,
		SequencedWait:     5 * time.Second,
		FailAfter:         30 * time.Second,
		RetryAfter:        time.Second,
	}
}

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	f := config.Of("readstream")
	f.Int("MaxStreams", c.MaxStreams, 1, 1_000_000)
	f.Int("MaxShards", c.MaxShards, 1, maxResume) // a stream that is sent away can go on elsewhere
	f.Bytes("StreamBytes", int64(c.StreamBytes), metalog.MaxRecord, 1<<30)
	f.Bytes("TotalBytes", int64(c.TotalBytes), int64(c.StreamBytes), 1<<40)
	f.Int("TotalShards", c.TotalShards, c.MaxShards, 100_000_000)
	f.Int("PointersPerSecond", c.PointersPerSecond, 1, 1_000_000_000)
	f.Int("BatchEntries", c.BatchEntries, 1, 100_000)
	f.Bytes("BatchBytes", int64(c.BatchBytes), 1, 16<<20)
	f.Int("Reads", c.Reads, 1, 1000)
	f.Duration("BatchLinger", c.BatchLinger, 0, time.Minute)
	f.Duration("ReadGrace", c.ReadGrace, 0, time.Minute)
	f.Duration("ReadTimeout", c.ReadTimeout, time.Millisecond, time.Hour)
	f.Duration("TailHeartbeat", c.TailHeartbeat, metalog.MinHeartbeat, time.Hour)
	f.Duration("LookPause", c.LookPause, 0, time.Minute)
	f.Duration("LookEvery", c.LookEvery, time.Millisecond, time.Hour)
	f.Duration("StartTimeout", c.StartTimeout, time.Millisecond, time.Hour)
	f.Duration("SequencedWait", c.SequencedWait, 0, time.Minute)
	f.Duration("FailAfter", c.FailAfter, time.Millisecond, 24*time.Hour)
	f.Duration("MaxStreamAge", c.MaxStreamAge, 0, 365*24*time.Hour)
	f.Duration("BalanceEvery", c.BalanceEvery, time.Millisecond, time.Hour)
	f.Duration("MinStreamAge", c.MinStreamAge, 0, 24*time.Hour)
	f.Duration("RetryAfter", c.RetryAfter, 0, time.Hour)
	return f.Err()
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
