package memcached

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"scribe/internal/base/config"
	"scribe/internal/base/units"
)

// Config of a client.
type Config struct {
	// Servers are addresses, host:port, the same ones in every process that shares the cache, in any order.
	Servers []string
	// Timeout bounds a call, connecting included.
	Timeout time.Duration
	// Connections is how many connections there are to a server at most.
	Connections int
	// ItemBytes is how many bytes of a value are kept under one key. It must be below what the servers take: 1 MiB with its header,
	// unless they were started with -I.
	ItemBytes int
	// ValueBytes is the largest value.
	ValueBytes int
	// Prefix stands before every key; up to 64 letters, digits and any of . : _ -
	Prefix string
}

// DefaultConfig returns the configuration that is used unless told otherwise; it has no servers.
func DefaultConfig() Config {
	return Config{
		Timeout:     100 * time.Millisecond,
		Connections: 16,
		ItemBytes:   1_000_000,
		ValueBytes:  16 << 20,
		Prefix:      "scribe:",
	}
}

const (
	maxKey    = 250 // of the protocol
	maxPrefix = 64
	maxTTL    = 30 * 24 * time.Hour // more would be taken for a date
	maxItems  = 1000                // of a value
)

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	f := config.Of("memcached")
	if len(c.Servers) == 0 {
		f.Add("Servers", "none")
	}
	for i, s := range c.Servers {
		if host, port, err := net.SplitHostPort(s); err != nil || host == "" || port == "" {
			f.Add("Servers", "%q is not an address of the form host:port", s)
		}
		if slices.Contains(c.Servers[:i], s) {
			f.Add("Servers", "%q is there twice", s)
		}
	}
	f.Duration("Timeout", c.Timeout, time.Millisecond, time.Minute)
	f.Int("Connections", c.Connections, 1, 10_000)
	f.Bytes("ItemBytes", int64(c.ItemBytes), 1024, 1<<30)
	if c.ValueBytes < 1 || c.ItemBytes > 0 && c.ValueBytes/c.ItemBytes >= maxItems {
		f.Refuse("ValueBytes", units.Bytes(c.ValueBytes), fmt.Sprintf("1B to %d times the bytes of an item", maxItems))
	}
	if len(c.Prefix) > maxPrefix || strings.ContainsFunc(c.Prefix, func(r rune) bool { return !strings.ContainsRune(keyRunes, r) }) {
		f.Refuse("Prefix", strconv.Quote(c.Prefix), fmt.Sprintf("up to %d letters, digits and any of . : _ -", maxPrefix))
	}
	return f.Err()
}

// keyRunes are those of prefixes and keys: no spaces and no control characters, which end a key in the protocol, and no slash, which
// divides a value's key from its items' numbers.
const keyRunes = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.:_-"
