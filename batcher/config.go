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
	// is compressed (its bytes, and space for a compressed copy that turns out no smaller), the compressed length afterwards.
	MemoryBytes int64 `yaml:"/limits.batch_memory" default:"256MiB" min:"1MiB" max:"1TiB" flag:"batch-memory" help:"most bytes that a batcher holds before they are durable"`
	// Share is how much a category may hold, in multiples of what is free. Below the bound that this makes it is refused nothing, and
	// beyond it nobody else is. A category alone gets Share/(1+Share) of the memory.
	Share float64 `default:"4" min:"0.1" max:"1000"`
	// BodyBytes bounds the requests that [Batcher.Admit] admits, from before their bodies are read until they are answered; 0 = as
	// much as MemoryBytes, but enough for a request of 64 MiB.
	BodyBytes int64 `min:"0B" max:"1TiB"`
	// FlushBytes is the size at which a flush is written whoever waits: compressed bytes of what is compressed already, raw
	// bytes of the rest.
	FlushBytes int64 `default:"10MiB" min:"1B" max:"1GiB"`
	// MaxAge is how long frames that nobody waits for stay in memory before they are written.
	MaxAge time.Duration `default:"1s" min:"1ms" max:"1h"`
	// FlushFloor is the least time between two flushes of a retention class that are not full: it bounds what requests to the store
	// cost.
	FlushFloor time.Duration `yaml:"/flush_floor" min:"0s" max:"1h"`
	// MaxInFlight is how many flushes of a retention class are written at the same time. What comes meanwhile gathers in memory.
	MaxInFlight int `default:"4" min:"1" max:"1024"`
	// GroupCommit is the number of unfinished flushes of its retention class below which a writer that waits for its commit gets a
	// new flush at once; at or above it, writers gather behind the running ones. 2 lets one flush upload while another appends.
	GroupCommit int `default:"2" min:"1" max:"MaxInFlight"`
	// StallAfter is how long a flush waits for some of its logs before it is divided, so that the others go on: at least, since it is
	// twice the usual time of a flush where that is longer. A divided flush is a blob more.
	StallAfter time.Duration `default:"1s" min:"1ms" max:"1h"`
	// PayloadBytes is the largest payload, but for a single frame that is larger: the unit that readers fetch.
	PayloadBytes int `default:"2MiB" min:"1B" max:"8MiB"`
	// BlockBytes is what small payloads that share a compressed block are gathered to.
	BlockBytes int `default:"256KiB" min:"1B" max:"8MiB"`
	// Compressors is the number of workers; 0 = GOMAXPROCS.
	Compressors int `min:"0" max:"1024"`
	// Region names the store in pointers; empty = the readers' local one.
	Region string

	// PutAttempts is how often a blob is put, each time under a new key, before its frames fail.
	PutAttempts int `default:"4" min:"1" max:"100"`
	// PutTimeout bounds one attempt.
	PutTimeout time.Duration `default:"1m" min:"1ms" max:"1h"`
	// LogTimeout bounds one call of the metadata engine.
	LogTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// CommitPatience is how long an append whose outcome is unknown is repeated before its frames fail with an unknown outcome, and
	// how long a log that cannot be opened, or an engine that is closed, is tried before frames fail.
	CommitPatience time.Duration `default:"30s" min:"0s" max:"1h"`
	// CommitAttempts is how often a flush that the metadata engine refuses (repeated sequences, an old blob), or a log that another
	// writer takes, is tried again before its frames fail.
	CommitAttempts int `default:"8" min:"1" max:"100"`
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered.
	RetryBase time.Duration `default:"50ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"2s" min:"RetryBase" max:"1h"`
	// MaxLogs is for how many physical shards the writer's position is remembered; it costs about 100 bytes each.
	MaxLogs int `default:"200000" min:"1" max:"1073741824"`
}

// DefaultConfig suits a process with two cores or more and files or a nearby object store.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("batcher", c, nil)
	if err := pointer.ValidateRegion(c.Region); err != nil {
		v.Add("Region", "%v", err)
	}
	return v.Err()
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
