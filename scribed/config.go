package scribed

import (
	"time"

	"scribe/internal/base/config"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// Config bounds the frames that scribed buffers and says how it forwards them. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds the frames in memory, from Write until the upstream has answered for them.
	MemoryBytes int64 `yaml:"/limits.write_memory" default:"64MiB" min:"1MiB" max:"1TiB" flag:"write-memory,up,serve,agent"`
	// Share bounds one category to this multiple of the free memory, and of the free part of the spool. With 4, a category that
	// is alone gets four fifths, and a second one still finds capacity.
	Share float64 `default:"4" min:"0.01" max:"1000000"`
	// MaxRequestBytes bounds the frames of one request to scribed.
	MaxRequestBytes int64 `default:"64MiB" min:"1B" max:"64MiB"`
	// BatchBytes is the size of a request to the upstream. Frames of one caller that are larger exceed it.
	BatchBytes int `default:"4MiB" min:"1B" max:"64MiB"`
	// MaxInFlight is the number of concurrent requests to the upstream that do not follow others of their categories. Those that do
	// are bounded by the windows of their categories, and by half of MemoryBytes in flight.
	MaxInFlight int `default:"4" min:"1" max:"1024"`
	// Linger is how long frames without a waiting caller may wait for others to share a request with.
	Linger time.Duration `default:"5ms" min:"0s" max:"1h"`
	// Timeout is the deadline of a request to the upstream.
	Timeout time.Duration `default:"30s" min:"1ms" max:"1h"`
	// HopMargin is reserved from a request's remaining time, so that the answer arrives before the caller's deadline. At most a
	// tenth of the remaining time is reserved.
	HopMargin time.Duration `default:"250ms" min:"0s" max:"1h"`
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered. Attempts
	// continue as long as the upstream is unavailable. A retry hint of the upstream is honoured up to a minute, even above
	// RetryMax.
	RetryBase time.Duration `default:"50ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"5s" min:"RetryBase" max:"1h"`
	// SequenceAttempts is how often a frame is sent when the upstream misses its earlier messages. They may be on their way; if
	// they never come, no number of attempts helps, and the frames after it must not wait forever.
	SequenceAttempts int `default:"8" min:"1" max:"1000"`

	// Spool is the disk buffer; nil = memory only: ACK_LEVEL_SPOOLED then waits for the upstream, and frames that do not fit into
	// memory are refused.
	Spool *spool.Config `yaml:"/spool"`
	// SpillAfter is how long frames of ACK_LEVEL_NONE may be in memory only. Frames that could not be sent by then are written to
	// the spool, so this bounds the loss when the host crashes.
	SpillAfter time.Duration `default:"1s" min:"1ms" max:"1h"`
	// SpillAbove is the fraction of MemoryBytes above which frames without a waiting caller are spilled.
	SpillAbove float64 `default:"0.5" min:"0" max:"1"`
	// BackfillBytesPerSecond bounds the rate at which the backlog is forwarded; 0 = only by what live traffic leaves, see
	// backfillPacer.
	BackfillBytesPerSecond int64 `yaml:"/spool.backfill" min:"0B" max:"1TiB"`
	// MaxBlocked bounds the calls that wait for capacity (see [Block]). Their bytes are bounded by half of MemoryBytes, and those
	// of one category by a quarter.
	MaxBlocked int `default:"1024" min:"0" max:"1048576"`
	// Rules are matched by category; the first match applies.
	Rules []Rule `yaml:"/spool.categories"`
	// ReportLosses is how often the agent reports dropped messages to the readers of their category, by loss reports between its
	// messages (docs/format/loss.md); 0 = never.
	ReportLosses time.Duration `zero:"off" min:"1ms" max:"1h"`
	// CountDelivery counts what the agent takes and what becomes of it, by category, producer and minute, and reports it to the cell with the losses, as
	// rows of the category _delivery (docs/format/delivery.md).
	CountDelivery bool
	// DeadLetter is the folder of frames that the upstream refuses for good and that have no waiting caller; nil = such frames
	// are dropped and counted.
	DeadLetter *deadletter.Config `yaml:"/spool"`
}

// DefaultConfig returns a configuration for a host's agent, without a spool and dead letters, which both need a folder, and
// without loss reports.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("scribed", c, nil).Err()
}
