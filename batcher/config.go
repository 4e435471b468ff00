package batcher

import (
	"runtime"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/rpc"
)

// Config bounds a batcher's memory and sets when it flushes. Sizes are in bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds the memory of frames from Submit to the end of their flush. Until a frame is compressed, it is charged
	// twice its length: for its bytes, and for a compressed copy that may be as large. Afterwards it is charged its compressed
	// length.
	MemoryBytes int64 `yaml:"/limits.batch_memory" default:"256MiB" min:"1MiB" max:"1TiB" flag:"batch-memory" help:"most bytes that a batcher holds before they are durable"`
	// Share bounds the memory of one category, as a multiple of the free memory. Frames of a category below its bound are not
	// refused for other categories' sake. A category that is alone gets at most Share/(1+Share) of the memory.
	Share float64 `default:"4" min:"0.1" max:"1000"`
	// BodyBytes bounds the request bodies admitted by [Batcher.Admit] and not yet answered. 0 means MemoryBytes, but at least
	// enough for a request of 64 MiB.
	BodyBytes int64 `min:"0B" max:"1TiB"`
	// FlushBytes is the size at which a flush is cut in any case. It counts compressed bytes of payloads that are compressed
	// already, raw bytes of the others, and half of these if they lingered.
	FlushBytes int64 `default:"10MiB" min:"1B" max:"1GiB"`
	// MaxAge is the longest time that frames without a waiting writer stay in memory before a flush.
	MaxAge time.Duration `default:"1s" min:"1ms" max:"1h"`
	// GatherTime is how long frames that lingered wait for those that left other programs at the same moment, so that they share a payload.
	GatherTime time.Duration `default:"60ms" min:"0s" max:"1h"`
	// FlushFloor is the minimum time between two flushes of a retention class with less than FloorBytes, before compression. It
	// bounds the cost of requests to the store, which matters only for small blobs.
	FlushFloor time.Duration `yaml:"/flush_floor" min:"0s" max:"1h"`
	FloorBytes int64         `default:"8MiB" min:"1B" max:"1GiB"`
	// MaxInFlight bounds the concurrent flushes of a retention class. Further frames accumulate in memory.
	MaxInFlight int `default:"4" min:"1" max:"1024"`
	// GroupCommit is the number of unfinished flushes of its retention class below which a writer that waits for its commit gets
	// a new flush at once; at or above it, writers wait until a running flush ends. 2 lets one flush upload while another
	// appends.
	GroupCommit int `default:"2" min:"1" max:"MaxInFlight"`
	// StallAfter is the minimum time that a flush waits for some of its logs before it is divided, so that the others can commit.
	// The actual time is twice the average duration of a flush if that is longer. Dividing a flush costs an additional blob.
	StallAfter time.Duration `default:"1s" min:"1ms" max:"1h"`
	// PayloadBytes bounds a payload, the unit that readers fetch. A single larger frame is a payload of its own.
	PayloadBytes int `default:"2MiB" min:"1B" max:"8MiB"`
	// BlockBytes is the target size of a block that small payloads share, before compression.
	BlockBytes int `default:"256KiB" min:"1B" max:"8MiB"`
	// Compressors is the number of compression workers; 0 means GOMAXPROCS.
	Compressors int `min:"0" max:"1024"`
	// Region names the store in pointers; empty means the readers' local store.
	Region string

	// PutAttempts bounds the attempts to put a blob, each under a new key, before its frames fail.
	PutAttempts int `default:"4" min:"1" max:"100"`
	// PutTimeout bounds one attempt to put a blob.
	PutTimeout time.Duration `default:"1m" min:"1ms" max:"1h"`
	// LogTimeout bounds one call of the metadata engine.
	LogTimeout time.Duration `default:"10s" min:"1ms" max:"1h"`
	// FollowWait bounds how long a frame is held that follows one of another request, which has not arrived yet.
	FollowWait time.Duration `default:"1s" min:"0s" max:"1m"`
	// CommitPatience bounds how long an append with an unknown outcome is repeated before its frames fail with an unknown
	// outcome. It also bounds the retries for a log that cannot be opened, and for an engine that is closed.
	CommitPatience time.Duration `default:"30s" min:"0s" max:"1h"`
	// CommitAttempts bounds the retries of a flush that the metadata engine refuses (repeated sequences, an old blob), and of a
	// log that another writer takes over, before the frames fail.
	CommitAttempts int `default:"8" min:"1" max:"100"`
	// RetryBase and RetryMax are the shortest and the longest mean pause between attempts. Pauses double and are jittered.
	RetryBase time.Duration `default:"50ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"2s" min:"RetryBase" max:"1h"`
	// PushBytes bounds the blocks that are queued for read proxies, or being sent to them; 0 means that none are pushed.
	PushBytes int64 `yaml:"/limits.push_memory" default:"64MiB" min:"0B" max:"1TiB" flag:"push-memory" help:"most bytes of fresh payloads on their way from a batcher to read proxies; 0B pushes none"`
	// PushBytesPerSecond bounds the rate at which blocks are pushed; 0 means no bound.
	PushBytesPerSecond int64 `yaml:"/push_rate" default:"0B" min:"0B" max:"1TiB" flag:"push-rate" help:"most bytes a second of fresh payloads that a batcher pushes to read proxies; 0B for no bound"`
	// MaxLogs bounds the physical shards whose write position is cached, at about 100 bytes each.
	MaxLogs int `default:"200000" min:"1" max:"1073741824"`
}

// DefaultConfig returns the defaults. They suit a process with at least two cores, and files or a nearby object store.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("batcher", c, nil)
	if err := pointer.ValidateRegion(c.Region); err != nil {
		v.Add("Region", "%v", err)
	}
	return v.Err()
}

// bodyLimit returns the bound on request bodies, in bytes.
func (c *Config) bodyLimit() int64 {
	if c.BodyBytes > 0 {
		return c.BodyBytes
	}
	return max(c.MemoryBytes, rpc.MaxMessageBytes)
}

// workerCount returns the number of compression workers.
func (c *Config) workerCount() int {
	if c.Compressors > 0 {
		return c.Compressors
	}
	return runtime.GOMAXPROCS(0)
}
