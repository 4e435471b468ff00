package scribed

import (
	"errors"
	"fmt"
	"time"

	"scribe/internal/record"
)

// Config says how much scribed holds and how it forwards. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds the frames in memory, from Write until the upstream has answered for them.
	MemoryBytes int64
	// Share is how many times the free memory one category may hold. With 4, one category alone gets four fifths of the memory,
	// and a second one finds room beside it.
	Share float64
	// MaxRequestBytes bounds the frames of one request to scribed.
	MaxRequestBytes int64
	// BatchBytes is the size of a request to the upstream, but for frames of one caller that are larger.
	BatchBytes int
	// MaxInFlight is the number of requests to the upstream at the same time. A category is in one of them at most, so that its
	// order is kept.
	MaxInFlight int
	// Linger is how long frames that nobody waits for may wait for others to share a request with.
	Linger time.Duration
	// Timeout is the deadline of a request to the upstream.
	Timeout time.Duration
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered. Attempts
	// go on as long as the upstream is away.
	RetryBase time.Duration
	RetryMax  time.Duration
	// SequenceAttempts is how often a frame is sent whose earlier messages the upstream misses. They may be on their way; if they
	// never come, no number of attempts helps, and those behind it must not wait forever.
	SequenceAttempts int
}

// DefaultConfig suits a host's agent.
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
	}
}

// Validate reports every fault.
func (c *Config) Validate() error {
	var faults []error
	within := func(name string, v, low, high int64) {
		if v < low || v > high {
			faults = append(faults, fmt.Errorf("scribed: %s is %d, want %d to %d", name, v, low, high))
		}
	}
	lasting := func(name string, v, low time.Duration) {
		if v < low || v > time.Hour {
			faults = append(faults, fmt.Errorf("scribed: %s is %v, want %v to 1h", name, v, low))
		}
	}
	within("MemoryBytes", c.MemoryBytes, 1<<20, 1<<40)
	if !(c.Share >= 0.01 && c.Share <= 1e6) {
		faults = append(faults, fmt.Errorf("scribed: Share is %v, want 0.01 to 1000000", c.Share))
	}
	within("MaxRequestBytes", c.MaxRequestBytes, 1, record.MaxFrameLen)
	within("BatchBytes", int64(c.BatchBytes), 1, record.MaxFrameLen)
	within("MaxInFlight", int64(c.MaxInFlight), 1, 1024)
	lasting("Linger", c.Linger, 0)
	lasting("Timeout", c.Timeout, time.Millisecond)
	lasting("RetryBase", c.RetryBase, time.Millisecond)
	lasting("RetryMax", c.RetryMax, c.RetryBase)
	within("SequenceAttempts", int64(c.SequenceAttempts), 1, 1000)
	return errors.Join(faults...)
}
