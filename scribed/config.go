package scribed

import (
	"time"

	"scribe/internal/base/config"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// Config says how much scribed holds and how it forwards. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds the frames in memory, from Write until the upstream has answered for them.
	MemoryBytes int64 `yaml:"/limits.write_memory" default:"64MiB" min:"1MiB" max:"1TiB" flag:"write-memory,up,serve,agent"`
	// Share is how many times the free memory one category may hold, and how many times the free part of the spool. With 4, one
	// category alone gets four fifths, and a second one finds room beside it.
	Share float64 `default:"4" min:"0.01" max:"1000000"`
	// MaxRequestBytes bounds the frames of one request to scribed.
	MaxRequestBytes int64 `default:"64MiB" min:"1B" max:"64MiB"`
	// BatchBytes is the size of a request to the upstream, but for frames of one caller that are larger.
	BatchBytes int `default:"4MiB" min:"1B" max:"64MiB"`
	// MaxInFlight is the number of requests to the upstream at the same time. A category's live traffic is in one of them at most,
	// so that its order is kept.
	MaxInFlight int `default:"4" min:"1" max:"1024"`
	// Linger is how long frames that nobody waits for may wait for others to share a request with.
	Linger time.Duration `default:"5ms" min:"0s" max:"1h"`
	// Timeout is the deadline of a request to the upstream.
	Timeout time.Duration `default:"30s" min:"1ms" max:"1h"`
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered. Attempts
	// go on as long as the upstream is unavailable. A hint of the upstream is honoured up to a minute, also above RetryMax.
	RetryBase time.Duration `default:"50ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"5s" min:"RetryBase" max:"1h"`
	// SequenceAttempts is how often a frame is sent whose earlier messages the upstream misses. They may be on their way; if they
	// never come, no number of attempts helps, and those behind it must not wait forever.
	SequenceAttempts int `default:"8" min:"1" max:"1000"`

	// Spool is the disk buffer; nil = memory only: ACK_LEVEL_SPOOLED waits for the upstream, and what does not fit into memory is
	// refused.
	Spool *spool.Config `yaml:"/spool"`
	// SpillAfter is how long frames of ACK_LEVEL_NONE may be in memory only. Those that could not be sent by then are written to
	// the spool, so this bounds what a crash of the host loses.
	SpillAfter time.Duration `default:"1s" min:"1ms" max:"1h"`
	// SpillAbove is the part of MemoryBytes above which frames that nobody waits for leave the memory for the spool.
	SpillAbove float64 `default:"0.5" min:"0" max:"1"`
	// BackfillBytesPerSecond bounds how fast the backlog of the spool is forwarded; 0 = only by what live traffic leaves, see the
	// package comment.
	BackfillBytesPerSecond int64 `yaml:"/spool.backfill" min:"0B" max:"1TiB"`
	// MaxBlocked bounds the calls that wait for capacity (see [Block]). Their bytes are bounded by half of MemoryBytes, and those of
	// one category by a quarter.
	MaxBlocked int `default:"1024" min:"0" max:"1048576"`
	// Rules are looked up by category; the first that matches holds.
	Rules []Rule `yaml:"/spool.categories"`
	// ReportLosses is how often what was dropped is told to the readers of the category, by reports that stand between its messages
	// (docs/format/loss.md); 0 = never.
	ReportLosses time.Duration `zero:"off" min:"1ms" max:"1h"`
	// DeadLetter is the folder of frames that the upstream refuses for good and nobody waits for; nil = they are dropped and
	// counted.
	DeadLetter *deadletter.Config `yaml:"/spool"`
}

// DefaultConfig suits a host's agent. It has no spool and no dead letters: both need a folder. Losses are not
// reported.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("scribed", c, nil).Err()
}
