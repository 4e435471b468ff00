package writeproxy

import (
	"time"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

// Config bounds the requests that a write proxy accepts, and sets how it routes and retries frames. Sizes are in bytes. Start
// from [config.Defaults], which refuse unknown categories.
type Config struct {
	// MemoryBytes bounds requests in flight: half of it is for bodies that [Proxy.Admit] admits before they are read, the other
	// half for requests in Write and Publish and for their copies.
	MemoryBytes int64 `yaml:"/limits.write_memory" default:"256MiB" min:"1MiB" max:"1TiB" flag:"write-memory,up,serve,agent" help:"most bytes of write requests in flight"`
	// MaxRequestBytes bounds the bytes of frames in one request.
	MaxRequestBytes int64 `default:"64MiB" min:"1B" max:"64MiB"`
	// Timeout bounds requests that arrive without a deadline.
	Timeout time.Duration `default:"30s" min:"1ms" max:"1h"`
	// HopMargin is reserved from a request's remaining time, so that the answer arrives before the caller's deadline. At most a
	// tenth of the remaining time is reserved.
	HopMargin time.Duration `default:"250ms" min:"0s" max:"1h"`

	// MinAttempt is the minimum timeout of one attempt. The timeout is half of the request's remaining time if that is longer, so
	// that frames can be sent to another batcher if one does not answer. With one batcher, an attempt gets all of the remaining
	// time.
	MinAttempt time.Duration `default:"5s" min:"1ms" max:"1h"`
	// StallAfter is the time without any answer after which a batcher with outstanding requests counts as unavailable. It is then
	// probed with empty requests until it answers.
	StallAfter time.Duration `default:"3s" min:"1ms" max:"1h"`

	// MicroShardBytes is the traffic of one logical shard in the whole cell, in bytes a second, that one batcher gets. A shard
	// with more traffic is divided among batchers, unless its category has one log for each logical shard.
	MicroShardBytes int64 `default:"16MiB" min:"1KiB" max:"1TiB"`
	// MicroShardMessages is the same in messages a second: what many small messages cost is not in their bytes.
	MicroShardMessages int64 `default:"400000" min:"1" max:"1000000000000"`
	// RequestsMost bounds the requests that wait for batchers; what is refused is told to come again. While batchers take SlowAnswer to answer, on average, it is
	// lowered down to RequestsLeast if that is less, so that their queues become shorter. With a SlowAnswer of 0 it stays.
	RequestsMost  int           `yaml:"/limits.write_requests" default:"65536" min:"1" max:"1048576"`
	RequestsLeast int           `yaml:"/limits.write_requests_least" default:"1024" min:"1" max:"1048576"`
	SlowAnswer    time.Duration `yaml:"/limits.slow_write" default:"0s" min:"0s" max:"1h"`
	// RequestsPerSecond bounds the rate of requests to batchers, 0 means no bound. RequestBurst is the size of its token bucket.
	RequestsPerSecond float64 `yaml:"/limits.write_rate" default:"0" min:"0" max:"1000000000000000"`
	RequestBurst      int     `yaml:"/limits.write_burst" default:"50000" min:"1" max:"1073741824"`
	// ThrottleShare is the share of the memory for requests that throttled requests may use while they wait. With 0, requests
	// never wait: throttle acts as block.
	ThrottleShare float64 `default:"0.25" min:"0" max:"0.9"`

	// Attempts bounds the attempts to send frames to their own batcher.
	Attempts int `default:"3" min:"1" max:"100"`
	// Fallbacks is the number of batchers among which a frame's fallback is chosen, by a salted hash.
	Fallbacks int `default:"3" min:"0" max:"1000"`
	// FallbackAttempts bounds the fallbacks that are tried, one after another.
	FallbackAttempts int `default:"2" min:"0" max:"100"`
	// RetryBase and RetryMax are the shortest and the longest mean pause between attempts. Pauses double and are jittered.
	RetryBase time.Duration `default:"25ms" min:"1ms" max:"1h"`
	RetryMax  time.Duration `default:"1s" min:"RetryBase" max:"1h"`
	// RetryRatio is the average number of retries that each request allows, so that a failing backend does not get a multiple of
	// the load.
	RetryRatio float64 `default:"0.5" min:"0" max:"100"`

	// AutoCreate creates a category on the first write to it, from Template.
	AutoCreate bool `yaml:"/auto_create" flag:"auto-create" help:"create a category on the first write to it"`
	// Template has the settings for created categories; its name is ignored. Nil means the control plane's defaults.
	Template *scribev1.Category
}

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("writeproxy", c, nil)
	if c.Template != nil && !c.AutoCreate {
		v.Add("Template", "set without AutoCreate")
	}
	return v.Err()
}
