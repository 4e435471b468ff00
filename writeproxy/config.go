package writeproxy

import (
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Config says what a write proxy takes and how it sends it on. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds requests in flight: half of it the bodies that [Proxy.Admit] admits before they are read, half of it the
	// requests in Write and Publish with the copies made of them.
	MemoryBytes int64
	// MaxRequestBytes bounds the frames of one request.
	MaxRequestBytes int64
	// Timeout is the deadline of requests that come without one.
	Timeout time.Duration
	// HopMargin is what is kept back, at most, of a request's remaining time, so that the answer arrives before the caller gives
	// up; a tenth of the remaining time if that is less.
	HopMargin time.Duration

	// MinAttempt is the least that one attempt gets of a request's remaining time; it gets half of it otherwise, so that what a
	// batcher does not answer can be sent to another. With one batcher an attempt gets all of it.
	MinAttempt time.Duration
	// StallAfter is for how long a batcher that is asked may answer nothing before it is left alone, and probed with requests of no
	// consequence until it answers.
	StallAfter time.Duration

	// MicroShardBytes is how many bytes a second of one logical shard, in the whole cell, go to one batcher; of more, another
	// batcher gets a part. Not in categories whose logical shards have one log each.
	MicroShardBytes int64
	// ThrottleShare is the share of the memory for requests in which those may wait that are over a quota; with 0 nobody
	// waits, and throttle is block.
	ThrottleShare float64

	// Attempts is how often frames are sent to the batcher that they belong to.
	Attempts int
	// Fallbacks is the number of batchers among which a frame's fallback is chosen, by a salted hash.
	Fallbacks int
	// FallbackAttempts is how many fallbacks are tried, one after another.
	FallbackAttempts int
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered.
	RetryBase time.Duration
	RetryMax  time.Duration
	// RetryRatio is how many attempts beyond the first ones there may be for each request, on average: a failing backend must not
	// be met with a multiple of the load.
	RetryRatio float64

	// AutoCreate creates a category on the first write to it, from Template.
	AutoCreate bool
	// Template holds the settings of categories that are created; its name is not used. Nil = the control plane's defaults.
	Template *scribev1.Category
}

// DefaultConfig refuses unknown categories.
func DefaultConfig() Config {
	return Config{
		MemoryBytes:      256 << 20,
		MaxRequestBytes:  64 << 20,
		Timeout:          30 * time.Second,
		HopMargin:        250 * time.Millisecond,
		MinAttempt:       5 * time.Second,
		StallAfter:       3 * time.Second,
		MicroShardBytes:  16 << 20,
		ThrottleShare:    0.25,
		Attempts:         3,
		Fallbacks:        3,
		FallbackAttempts: 2,
		RetryBase:        25 * time.Millisecond,
		RetryMax:         time.Second,
		RetryRatio:       0.5,
	}
}

// Validate reports every fault.
func (c *Config) Validate() error {
	f := config.Of("writeproxy")
	f.Bytes("MemoryBytes", c.MemoryBytes, 1<<20, 1<<40)
	f.Bytes("MaxRequestBytes", c.MaxRequestBytes, 1, record.MaxFrameLen)
	f.Duration("Timeout", c.Timeout, time.Millisecond, time.Hour)
	f.Duration("HopMargin", c.HopMargin, 0, time.Hour)
	f.Duration("MinAttempt", c.MinAttempt, time.Millisecond, time.Hour)
	f.Duration("StallAfter", c.StallAfter, time.Millisecond, time.Hour)
	f.Bytes("MicroShardBytes", c.MicroShardBytes, 1<<10, 1<<40)
	f.Float("ThrottleShare", c.ThrottleShare, 0, 0.9)
	f.Int("Attempts", c.Attempts, 1, 100)
	f.Int("Fallbacks", c.Fallbacks, 0, 1000)
	f.Int("FallbackAttempts", c.FallbackAttempts, 0, 100)
	f.Duration("RetryBase", c.RetryBase, time.Millisecond, time.Hour)
	f.Duration("RetryMax", c.RetryMax, c.RetryBase, time.Hour)
	f.Float("RetryRatio", c.RetryRatio, 0, 100)
	if c.Template != nil && !c.AutoCreate {
		f.Add("Template", "it is set without AutoCreate")
	}
	return f.Err()
}
