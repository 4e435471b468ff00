package writeproxy

import (
	"time"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// Config says what a write proxy takes and how it sends it on. Sizes are bytes. Start from [DefaultConfig].
type Config struct {
	// MemoryBytes bounds requests in flight: half of it the bodies that [Proxy.Admit] admits before they are read, half of it the
	// requests in Write and Publish with the copies made of them.
	MemoryBytes int64 `yaml:"/limits.write_memory" default:"256MiB" min:"1MiB" max:"1TiB" flag:"write-memory,up,serve,agent" help:"most bytes of write requests in flight"`
	// MaxRequestBytes bounds the frames of one request.
	MaxRequestBytes int64 `default:"64MiB" min:"1B" max:"64MiB"`
	// Timeout is the deadline of requests that come without one.
	Timeout time.Duration `default:"30s" min:"1ms" max:"1h"`
	// HopMargin is what is kept back, at most, of a request's remaining time, so that the answer arrives before the caller gives
	// up; a tenth of the remaining time if that is less.
	HopMargin time.Duration `default:"250ms" min:"0s" max:"1h"`

	// MinAttempt is the least that one attempt gets of a request's remaining time; it gets half of it otherwise, so that what a
	// batcher does not answer can be sent to another. With one batcher an attempt gets all of it.
	MinAttempt time.Duration `default:"5s" min:"1ms" max:"1h"`
	// StallAfter is for how long a batcher that is asked may answer nothing before it is left alone, and probed with requests of no
	// consequence until it answers.
	StallAfter time.Duration `default:"3s" min:"1ms" max:"1h"`

	// MicroShardBytes is how many bytes a second of one logical shard, in the whole cell, go to one batcher; of more, another
	// batcher gets a part. Not in categories whose logical shards have one log each.
	MicroShardBytes int64 `default:"16MiB" min:"1KiB" max:"1TiB"`
	// ThrottleShare is the share of the memory for requests in which those may wait that are over a quota; with 0 nobody
	// waits, and throttle is block.
	ThrottleShare float64 `default:"0.25" min:"0" max:"0.9"`

	// Attempts is how often frames are sent to the batcher that they belong to.
	Attempts int `default:"3" min:"1" max:"100"`
	// Fallbacks is the number of batchers among which a frame's fallback is chosen, by a salted hash.
	Fallbacks int `default:"3" min:"0" max:"1000"`
	// FallbackAttempts is how many fallbacks are tried, one after another.
	FallbackAttempts int `default:"2" min:"0" max:"100"`
	// RetryBase and RetryMax are the least and the largest mean pause between attempts; pauses double and are jittered.
	RetryBase time.Duration `default:"25ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"1s" min:"RetryBase" max:"1h"`
	// RetryRatio is how many attempts beyond the first ones there may be for each request, on average: a failing backend must not
	// be met with a multiple of the load.
	RetryRatio float64 `default:"0.5" min:"0" max:"100"`

	// AutoCreate creates a category on the first write to it, from Template.
	AutoCreate bool `yaml:"/auto_create" flag:"auto-create" help:"create a category on the first write to it"`
	// Template holds the settings of categories that are created; its name is not used. Nil = the control plane's defaults.
	Template *scribev1.Category
}

// DefaultConfig refuses unknown categories.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("writeproxy", c, nil)
	if c.Template != nil && !c.AutoCreate {
		v.Add("Template", "set without AutoCreate")
	}
	return v.Err()
}
