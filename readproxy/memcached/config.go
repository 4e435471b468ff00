package memcached

import (
	"net"
	"slices"
	"strings"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/base/units"
)

// Config configures a client.
type Config struct {
	// Servers are the addresses, host:port, in any order. All processes that share the cache must have the same ones.
	Servers []string `yaml:"servers" flag:"memcached" help:"memcached servers that the read proxies of a region share, HOST:PORT,..."`
	// Timeout bounds a call, including connecting.
	Timeout time.Duration `yaml:"timeout" default:"100ms" min:"1ms" max:"1m"`
	// Connections bounds the connections to a server.
	Connections int `yaml:"connections" default:"16" min:"1" max:"10000"`
	// ItemBytes is the size of the items into which a value is divided. It must be below the limit of the servers: 1 MiB
	// including the header, unless they were started with -I.
	ItemBytes int `yaml:"item_bytes" default:"1MB" min:"1KiB" max:"1GiB"`
	// ValueBytes bounds the size of a value.
	ValueBytes int `yaml:"value_bytes" default:"16MiB" min:"1B"`
	// Prefix stands before every key; up to 64 letters, digits and any of . : _ -
	Prefix string `yaml:"prefix" default:"scribe:"`
}

const (
	maxKey    = 250 // of the protocol
	maxPrefix = 64
	maxTTL    = 30 * 24 * time.Hour // the protocol takes a greater number for a date
	maxItems  = 1000                // of a value
)

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("memcached", c, nil)
	if len(c.Servers) == 0 {
		v.Add("Servers", "missing: want addresses of the form host:port")
	}
	for i, s := range c.Servers {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
			v.Add("Servers", "invalid value %q: want host:port", s)
		}
		if slices.Contains(c.Servers[:i], s) {
			v.Add("Servers", "%q is given twice", s)
		}
	}
	if c.ItemBytes > 0 && c.ValueBytes/c.ItemBytes >= maxItems {
		v.Add("ValueBytes", "invalid value %v: want less than %d times the bytes of an item", units.Bytes(c.ValueBytes), maxItems)
	}
	if len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, func(r rune) bool { return !strings.ContainsRune(keyRunes, r) }) {
		v.Add("Prefix", "invalid value %q: want up to %d letters, digits and any of . : _ -", c.Prefix, maxPrefix)
	}
	return v.Err()
}

// keyRunes are the characters of prefixes and keys: no spaces and control characters, which end a key in the protocol, and no
// slash, which separates a value's key from its items' numbers.
const keyRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_-"
