package batcher

import (
	"runtime"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
)

// Config says how much a batcher holds and when it flushes. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds what frames take from Submit to the end of their flush. A frame is charged twice its length until it
	// is compressed (its bytes, and room for a compressed copy that turns out no smaller), the compressed length afterwards.
	MemoryBytes int64
	// Share is how much a category may hold, in multiples of what is free. Below the bound that this makes it is refused nothing, and
	// beyond it nobody else is. A category alone gets Share/(1+Share) of the memory.
	Share float64
	// BodyBytes bounds the requests that [Batcher.Admit] admits, from before their bodies are read until they are answered; 0 = as
	// much as MemoryBytes, but enough for a request of 64 MiB.
	BodyBytes int64
	// FlushBytes is the size at which a flush is written whoever waits: compressed bytes of what is compressed already, raw
	// bytes of the rest.
	FlushBytes int64
	// MaxAge is how long frames that nobody waits for stay in memory before they are written.
	MaxAge time.Duration
	// FlushFloor is the least time between two flushes of a retention class that are not full: it bounds what requests to the store cost.
	FlushFloor time.Duration
	// MaxInFlight is how many flushes of a retention class are written at the same time. What comes meanwhile gathers in memory.
	MaxInFlight int
	// GroupCommit is the number of unfinished flushes of its retention class below which a writer that waits for its commit gets a
	// new flush at once; at or above it, writers gather behind the running ones. 2 lets one flush upload while another appends.
	GroupCommit int
	// StallAfter is how long a flush waits for some of its logs before it is divided, so that the others go on: at least, since it is
	// twice the usual time of a flush where that is longer. A divided flush is a blob more.
	StallAfter time.Duration
	// PayloadBytes is the largest payload, but for a single frame that is larger: the unit that readers fetch.
	PayloadBytes int
	// BlockBytes is what small payloads that share a compressed block are gathered to.
	BlockBytes int
	// Compressors is the number of workers; 0 = GOMAXPROCS.
	Compressors int
	// Region names the store in pointers; empty = the readers' local one.
	Region string

	// PutAttempts is how often a blob is put, each time under a new key, before its frames fail.
	PutAttempts int
	// PutTimeout bounds one attempt.
	PutTimeout time.Duration
	// LogTimeout bounds one call of the metadata engine.
	LogTimeout time.Duration
	// CommitPatience is how long an append whose outcome is unknown is repeated before its frames fail with an unknown outcome, and
	// how long a log that cannot be opened, or an engine that is closed, is tried before frames fail.
	CommitPatience time.Duration
	// CommitAttempts is how often a flush that the metadata engine refuses (repeated sequences, an old blob), or a log that another
	// writer takes, is tried again before its frames fail.
	CommitAttempts int
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered.
	RetryBase time.Duration
	RetryMax  time.Duration
	// MaxLogs is for how many physical shards the writer's place is remembered; it costs about 100 bytes each.
	MaxLogs int
}

// DefaultConfig suits a process with two cores or more and files or a nearby object store.
func DefaultConfig() Config {
	return Config{
		MemoryBytes:    256 << 20,
		Share:          4,
		FlushBytes:     10 << 20,
		MaxAge:         time.Second,
		MaxInFlight:    4,
		GroupCommit:    2,
		StallAfter:     time.Second,
		PayloadBytes:   2 << 20,
		BlockBytes:     256 << 10,
		PutAttempts:    4,
		PutTimeout:     time.Minute,
		LogTimeout:     10 * time.Second,
		CommitPatience: 30 * time.Second,
		CommitAttempts: 8,
		RetryBase:      50 * time.Millisecond,
		RetryMax:       2 * time.Second,
		MaxLogs:        200_000,
	}
}

// Validate reports every fault.
func (c *Config) Validate() error {
	f := config.Of("batcher")
	f.Bytes("MemoryBytes", c.MemoryBytes, 1<<20, 1<<40)
	f.Float("Share", c.Share, 0.1, 1000)
	f.Bytes("BodyBytes", c.BodyBytes, 0, 1<<40)
	f.Bytes("FlushBytes", c.FlushBytes, 1, 1<<30)
	f.Duration("MaxAge", c.MaxAge, time.Millisecond, time.Hour)
	f.Duration("FlushFloor", c.FlushFloor, 0, time.Hour)
	f.Int("MaxInFlight", c.MaxInFlight, 1, 1024)
	f.Int("GroupCommit", c.GroupCommit, 1, max(c.MaxInFlight, 1))
	f.Duration("StallAfter", c.StallAfter, time.Millisecond, time.Hour)
	f.Bytes("PayloadBytes", int64(c.PayloadBytes), 1, 8<<20)
	f.Bytes("BlockBytes", int64(c.BlockBytes), 1, 8<<20)
	f.Int("Compressors", c.Compressors, 0, 1024)
	f.Int("PutAttempts", c.PutAttempts, 1, 100)
	f.Duration("PutTimeout", c.PutTimeout, time.Millisecond, time.Hour)
	f.Duration("LogTimeout", c.LogTimeout, time.Millisecond, time.Hour)
	f.Duration("CommitPatience", c.CommitPatience, 0, time.Hour)
	f.Int("CommitAttempts", c.CommitAttempts, 1, 100)
	f.Duration("RetryBase", c.RetryBase, time.Millisecond, time.Hour)
	f.Duration("RetryMax", c.RetryMax, c.RetryBase, time.Hour)
	f.Int("MaxLogs", c.MaxLogs, 1, 1<<30)
	if err := pointer.ValidateRegion(c.Region); err != nil {
		f.Add("Region", "%v", err)
	}
	return f.Err()
}

// bodyLimit is the bound of the requests that are being read.
func (c *Config) bodyLimit() int64 {
	if c.BodyBytes > 0 {
		return c.BodyBytes
	}
	return max(c.MemoryBytes, rpc.MaxMessageBytes)
}

// workerCount is the number of workers.
func (c *Config) workerCount() int {
	if c.Compressors > 0 {
		return c.Compressors
	}
	return runtime.GOMAXPROCS(0)
}
