package scribed

import (
	"fmt"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/scribed/deadletter"
	"scribe/scribed/spool"
)

// Config says how much scribed holds and how it forwards. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds the frames in memory, from Write until the upstream has answered for them.
	MemoryBytes int64
	// Share is how many times the free memory one category may hold, and how many times the free part of the spool. With 4, one
	// category alone gets four fifths, and a second one finds room beside it.
	Share float64
	// MaxRequestBytes bounds the frames of one request to scribed.
	MaxRequestBytes int64
	// BatchBytes is the size of a request to the upstream, but for frames of one caller that are larger.
	BatchBytes int
	// MaxInFlight is the number of requests to the upstream at the same time. A category's live traffic is in one of them at most,
	// so that its order is kept.
	MaxInFlight int
	// Linger is how long frames that nobody waits for may wait for others to share a request with.
	Linger time.Duration
	// Timeout is the deadline of a request to the upstream.
	Timeout time.Duration
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered. Attempts
	// go on as long as the upstream is away. A hint of the upstream is honoured up to a minute, also above RetryMax.
	RetryBase time.Duration
	RetryMax  time.Duration
	// SequenceAttempts is how often a frame is sent whose earlier messages the upstream misses. They may be on their way; if they
	// never come, no number of attempts helps, and those behind it must not wait forever.
	SequenceAttempts int

	// Spool is the disk buffer; nil = memory only: ACK_LEVEL_SPOOLED waits for the upstream, and what does not fit into memory is
	// refused.
	Spool *spool.Config
	// SpillAfter is how long frames of ACK_LEVEL_NONE may be in memory only. Those that could not be sent by then are written to
	// the spool, so this bounds what a crash of the host loses.
	SpillAfter time.Duration
	// SpillAbove is the part of MemoryBytes above which frames that nobody waits for leave the memory for the spool.
	SpillAbove float64
	// BackfillBytesPerSecond bounds how fast the backlog of the spool is forwarded; 0 = only by what live traffic leaves, see the
	// package comment.
	BackfillBytesPerSecond int64
	// MaxBlocked bounds the calls that wait for room (see [Block]). Their bytes are bounded by half of MemoryBytes, and those of
	// one category by a quarter.
	MaxBlocked int
	// Rules are looked up by category; the first that matches holds.
	Rules []Rule
	// ReportLosses is how often what was dropped is told to the readers of the category, by reports that stand between its messages
	// (docs/format/loss.md); 0 = never.
	ReportLosses time.Duration
	// DeadLetter is the folder of frames that the upstream refuses for good and nobody waits for; nil = they are dropped and
	// counted.
	DeadLetter *deadletter.Config
}

// DefaultConfig suits a host's agent. It has no spool and no dead letters: both need a folder. Losses are not
// reported.
func DefaultConfig() Config {
	return Config{
		MemoryBytes:      64 << 20,
		Share:            4,
		MaxRequestBytes:  record.MaxFrameLen,
		BatchBytes:       4 << 20,
		MaxInFlight:      4,
		Linger:           5 * time.Millisecond,
		Timeout:          30 * time.Second,
		RetryBase:        50 * time.Millisecond,
		RetryMax:         5 * time.Second,
		SequenceAttempts: 8,
		SpillAfter:       time.Second,
		SpillAbove:       0.5,
		MaxBlocked:       1024,
	}
}

// Validate reports every fault.
func (c *Config) Validate() error {
	f := config.Of("scribed")
	f.Bytes("MemoryBytes", c.MemoryBytes, 1<<20, 1<<40)
	f.Float("Share", c.Share, 0.01, 1e6)
	f.Bytes("MaxRequestBytes", c.MaxRequestBytes, 1, record.MaxFrameLen)
	f.Bytes("BatchBytes", int64(c.BatchBytes), 1, record.MaxFrameLen)
	f.Int("MaxInFlight", c.MaxInFlight, 1, 1024)
	f.Duration("Linger", c.Linger, 0, time.Hour)
	f.Duration("Timeout", c.Timeout, time.Millisecond, time.Hour)
	f.Duration("RetryBase", c.RetryBase, time.Millisecond, time.Hour)
	f.Duration("RetryMax", c.RetryMax, c.RetryBase, time.Hour)
	f.Int("SequenceAttempts", c.SequenceAttempts, 1, 1000)
	f.Duration("SpillAfter", c.SpillAfter, time.Millisecond, time.Hour)
	f.Float("SpillAbove", c.SpillAbove, 0, 1)
	f.Bytes("BackfillBytesPerSecond", c.BackfillBytesPerSecond, 0, 1<<40)
	if c.ReportLosses != 0 {
		f.Duration("ReportLosses", c.ReportLosses, time.Millisecond, time.Hour)
	}
	f.Int("MaxBlocked", c.MaxBlocked, 0, 1<<20)
	for i := range c.Rules {
		c.Rules[i].validate(f, fmt.Sprintf("Rules[%d]", i))
	}
	if c.Spool != nil {
		f.Join(c.Spool.Validate())
	}
	if c.DeadLetter != nil {
		f.Join(c.DeadLetter.Validate())
	}
	return f.Err()
}
