package scribed

import (
	"fmt"
	"path"
	"time"

	"scribe/internal/base/config"
)

// WhenFull says what happens to a write when its category has no capacity.
type WhenFull uint8

const (
	// Reject refuses the write with REASON_OVERLOADED and a retry hint. It is the default.
	Reject WhenFull = 0
	// Block makes the call wait until there is capacity or its context ends. Waiting calls are bounded in number and bytes;
	// further calls are refused as with Reject.
	Block WhenFull = 1
	// DropOldest drops the oldest frames of the category that have no waiting caller, including acknowledged ones. They are
	// counted, and logged at a bounded rate.
	DropOldest WhenFull = 2
	// DropNewest drops the write. With ACK_LEVEL_NONE it is answered as accepted, and counted as dropped; with other levels it is
	// refused, since a dropped frame is never acknowledged.
	DropNewest WhenFull = 3
)

var whenFullNames = [...]string{Reject: "reject", Block: "block", DropOldest: "drop_oldest", DropNewest: "drop_newest"}

// String returns the name in configurations.
func (w WhenFull) String() string {
	if int(w) < len(whenFullNames) {
		return whenFullNames[w]
	}
	return fmt.Sprintf("when_full(%d)", uint8(w))
}

// MarshalText implements encoding.TextMarshaler.
func (w WhenFull) MarshalText() ([]byte, error) { return []byte(w.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: block, reject, drop_oldest or drop_newest.
func (w *WhenFull) UnmarshalText(text []byte) error {
	for i, name := range whenFullNames {
		if name == string(text) {
			*w = WhenFull(i) //nolint:gosec // four names
			return nil
		}
	}
	return fmt.Errorf("invalid when_full %q: want block, reject, drop_oldest or drop_newest", text)
}

// Rule applies to the categories that match it. The zero Rule rejects writes without capacity, and bounds a category by its share
// only.
type Rule struct {
	// Pattern is a glob in the syntax of path.Match over the whole category name: "web.*", "audit". The first matching rule
	// applies.
	Pattern string `yaml:"match" required:"a pattern"`
	// WhenFull is what happens to writes without capacity.
	WhenFull WhenFull `yaml:"when_full" oneof:"reject block drop_oldest drop_newest"`
	// MaxBytes bounds the bytes of each matching category in the spool, or in memory without a spool; 0 = only by its share.
	MaxBytes int64 `yaml:"max_bytes" min:"0B"`
	// MaxAge is how long a frame without a waiting caller may wait to be forwarded; then it is dropped and counted. 0 = no limit.
	MaxAge time.Duration `yaml:"max_age" zero:"off" min:"1s"`
	// Strict keeps the category's order across the spool: its backlog is forwarded before its live traffic.
	Strict bool `yaml:"strict"`
}

// Validate reports every violation.
func (r *Rule) Validate() error {
	v := config.Check("scribed", r, nil)
	if _, err := path.Match(r.Pattern, ""); err != nil {
		v.Add("Pattern", "invalid value %q: want a pattern as in \"web.*\"", r.Pattern)
	}
	return v.Err()
}

var noRule Rule

// ruleOf returns the rule of a category.
func (c *Config) ruleOf(category string) *Rule {
	for i := range c.Rules {
		if ok, err := path.Match(c.Rules[i].Pattern, category); ok && err == nil {
			return &c.Rules[i]
		}
	}
	return &noRule
}
