// Package testclock is a wall clock that tests set. Only tests may import this package.
package testclock

import (
	"sync/atomic"
	"time"
)

// Clock is a wall clock that a test sets. Each reading is one microsecond after the one before. It is safe for concurrent use.
type Clock struct{ now atomic.Int64 }

// New returns a clock at a fixed time.
func New() *Clock {
	c := &Clock{}
	c.now.Store(1_750_000_000_000_000)
	return c
}

// Now returns the time in Unix microseconds.
func (c *Clock) Now() int64 { return c.now.Add(1) }

// Advance moves the clock, also backward.
func (c *Clock) Advance(d time.Duration) { c.now.Add(d.Microseconds()) }
