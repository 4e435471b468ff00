package scribed

import (
	"fmt"
	"path"
	"time"

	"scribe/internal/base/config"
)

// WhenFull says what happens to a write of a category for which there is no capacity.
type WhenFull uint8

const (
	// Reject refuses the write with REASON_OVERLOADED and a hint when to try again. It is the default.
	Reject WhenFull = 0
	// Block lets the call wait until there is capacity or its context ends. Calls that wait are bounded in number and bytes; beyond
	// that they are refused as with Reject.
	Block WhenFull = 1
	// DropOldest gives up the oldest frames of the category that nobody waits for, acknowledged ones included. They are counted,
	// and logged at a bounded rate.
	DropOldest WhenFull = 2
	// DropNewest drops the write: with ACK_LEVEL_NONE it is answered as if it were taken, and counted as dropped; with other
	// levels it is refused, since what was dropped is never acknowledged.
	DropNewest WhenFull = 3
)

var whenFullNames = [...]string{Reject: "reject", Block: "block", DropOldest: "drop_oldest", DropNewest: "drop_newest"}

// String is the name in configurations.
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

// Rule is what holds for the categories that match it. The zero Rule rejects what does not fit, and bounds a category by its share
// only.
type Rule struct {
	// Pattern is a glob in the syntax of path.Match, over the whole name: "web.*", "audit". The first rule that matches holds.
	Pattern string `yaml:"match" required:"a pattern"`
	// WhenFull is what happens to writes for which there is no capacity.
	WhenFull WhenFull `yaml:"when_full" oneof:"reject block drop_oldest drop_newest"`
	// MaxBytes bounds what the spool holds of each category that matches, without a spool the memory; 0 = only by its share.
	MaxBytes int64 `yaml:"max_bytes" min:"0B"`
	// MaxAge is how long a frame that nobody waits for may wait to be forwarded; then it is dropped, and counted. 0 = any time.
	MaxAge time.Duration `yaml:"max_age" zero:"off" min:"1s"`
	// Strict keeps the order of a category also across the spool: its backlog is forwarded before its live traffic.
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
