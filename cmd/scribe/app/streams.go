package app

import (
	"scribe/internal/base/units"
	"scribe/readstream"
	"scribe/storage/metalog"
)

// StreamsConfig is about the streams of pointers that consumers read; see readstream.Config.
type StreamsConfig struct {
	// Max is how many may be open at a time.
	Max int `yaml:"max"`
	// Memory is what they hold of pointers in all.
	Memory units.Bytes `yaml:"memory"`
	// MaxAge is how long one runs before it is placed anew; 0 = as long as it likes.
	MaxAge units.Duration `yaml:"max_age"`
}

func defaultStreams() StreamsConfig { return StreamsConfig{Max: 1000, Memory: 128 << 20} }

// role is what the role is made with.
func (c *StreamsConfig) role() readstream.Config {
	cfg := readstream.DefaultConfig()
	cfg.MaxStreams, cfg.MaxStreamAge = c.Max, c.MaxAge.Std()
	cfg.TotalBytes = int(c.Memory)
	cfg.StreamBytes = min(cfg.StreamBytes, max(cfg.TotalBytes, metalog.MaxRecord))
	return cfg
}
