package readproxy

import (
	"fmt"
	"path"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
)

// Keep says when blocks of a category are kept in a tier.
type Keep uint8

const (
	// KeepAlways keeps every fetched block. It is the default.
	KeepAlways Keep = 0
	// KeepNever keeps no block, and does not look up the tier.
	KeepNever Keep = 1
	// KeepReused keeps a block when it was asked for a second time: what one consumer reads once costs the tier nothing. It is for
	// memcached.
	KeepReused Keep = 2
)

var keepNames = [...]string{KeepAlways: "always", KeepNever: "never", KeepReused: "reused"}

// String returns the name in configurations.
func (k Keep) String() string {
	if int(k) < len(keepNames) {
		return keepNames[k]
	}
	return fmt.Sprintf("keep(%d)", uint8(k))
}

// MarshalText implements encoding.TextMarshaler.
func (k Keep) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler: always, never or reused.
func (k *Keep) UnmarshalText(text []byte) error {
	for i, name := range keepNames {
		if name == string(text) {
			*k = Keep(i) //nolint:gosec // three names
			return nil
		}
	}
	return fmt.Errorf("invalid cache mode %q: want always, never or reused", text)
}

// Rule sets the tiers for the categories that match it. A category's own settings (Category.cache) take precedence.
type Rule struct {
	// Pattern is a glob in the syntax of path.Match, over the whole name: "web.*", "audit". The first rule that matches holds;
	// without one, both tiers keep always, and memcached for Config.SharedAge.
	Pattern string `yaml:"match" required:"a pattern"`
	// Memory is the tier in this process: KeepAlways or KeepNever.
	Memory Keep `yaml:"memory" oneof:"always never"`
	// Shared is memcached.
	Shared Keep `yaml:"memcached" oneof:"always never reused"`
	// SharedAge is the age up to which blocks are kept in memcached and asked for there; 0 = Config.SharedAge.
	SharedAge time.Duration `yaml:"age" min:"0s"`
}

// Validate reports every violation.
func (r *Rule) Validate() error {
	v := config.Check("readproxy", r, nil)
	if _, err := path.Match(r.Pattern, ""); err != nil {
		v.Add("Pattern", "invalid value %q: want a pattern as in \"web.*\"", r.Pattern)
	}
	return v.Err()
}

// ruleFor returns the settings of a category: its own, else the first rule that matches its name, else the defaults. policy may
// be nil.
func (c *Config) ruleFor(category string, policy *scribev1.CachePolicy) Rule {
	r := Rule{}
	for i := range c.Rules {
		if ok, err := path.Match(c.Rules[i].Pattern, category); ok && err == nil {
			r = c.Rules[i]
			break
		}
	}
	if k, ok := keepOf[policy.GetMemory()]; ok && k != KeepReused {
		r.Memory = k
	}
	if k, ok := keepOf[policy.GetMemcached()]; ok {
		r.Shared = k
	}
	if age := policy.GetMemcachedAge().AsDuration(); age > 0 {
		r.SharedAge = age
	}
	if r.SharedAge == 0 {
		r.SharedAge = c.SharedAge
	}
	return r
}

// keepOf has the categories' cache modes. A mode that only a newer control plane knows is ignored.
var keepOf = map[scribev1.CacheMode]Keep{
	scribev1.CacheMode_CACHE_MODE_ALWAYS: KeepAlways,
	scribev1.CacheMode_CACHE_MODE_NEVER:  KeepNever,
	scribev1.CacheMode_CACHE_MODE_REUSED: KeepReused,
}

// timeLeft returns how long memcached keeps a block. After that time no reader looks it up there.
func (r *Rule) timeLeft(p *pointer.Pointer, now time.Time) time.Duration {
	return r.SharedAge - blobAge(p, now)
}

// isRecent reports whether a block is young enough for memcached. Blob ids contain the creation time.
func (r *Rule) isRecent(p *pointer.Pointer, now time.Time) bool {
	return blobAge(p, now) <= r.SharedAge
}

// blobAge returns the time since a blob was made, by the clock of its batcher.
func blobAge(p *pointer.Pointer, now time.Time) time.Duration {
	return time.Duration(now.UnixMicro()-p.Blob.Time()) * time.Microsecond
}
