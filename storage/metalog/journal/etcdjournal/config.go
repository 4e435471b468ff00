package etcdjournal

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Config configures a handle. The zero value of every field but Client and Prefix means its default.
type Config struct {
	// Client reaches the cluster. It belongs to the caller, who closes it after the journal.
	Client *clientv3.Client
	// Prefix is in front of all keys, "scribe/CELL/m/ENGINE/".
	Prefix string
	// RequestTimeout bounds each request to etcd; 0 means 3 s.
	RequestTimeout time.Duration
	// FullBytes is the size of etcd's database in use from which on entries are refused; 0 means 6 GiB. It should be at most three
	// quarters of etcd's quota.
	FullBytes int64
	// UpkeepEvery is the time between looks at the database's size, and between compactions; 0 means 3 s.
	UpkeepEvery time.Duration
	// KeepHistory is how long etcd's history of keys is kept at least, for watches that fell behind; 0 means 15 s.
	KeepHistory time.Duration
	// OthersCompact is, where etcd lets this user compact nothing, how long history may stay that others should have compacted; 0 means 30 min.
	OthersCompact time.Duration
	// Logger gets messages for operators; nil discards them.
	Logger *slog.Logger
}

// Validate reports every violation.
func (c *Config) Validate() error {
	var errs []error
	if c.Client == nil {
		errs = append(errs, errors.New("no client"))
	}
	if !strings.HasSuffix(c.Prefix, "/") || len(c.Prefix) > 512 {
		errs = append(errs, fmt.Errorf("prefix %q: want up to 512 bytes that end with a slash", c.Prefix))
	}
	if c.RequestTimeout < 0 || c.FullBytes < 0 || c.UpkeepEvery < 0 || c.KeepHistory < 0 || c.OthersCompact < 0 {
		errs = append(errs, errors.New("a negative limit"))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("etcd journal: invalid configuration: %w", err)
	}
	return nil
}

func (c Config) withDefaults() Config {
	c.RequestTimeout = cmp.Or(c.RequestTimeout, 3*time.Second)
	c.FullBytes = cmp.Or(c.FullBytes, 6<<30)
	c.UpkeepEvery = cmp.Or(c.UpkeepEvery, 3*time.Second)
	c.KeepHistory = cmp.Or(c.KeepHistory, 15*time.Second)
	c.OthersCompact = cmp.Or(c.OthersCompact, 30*time.Minute)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c
}
