package logthrottle

import (
	"log/slog"
	"time"
)

// Every is the time between two lines about a failure that goes on.
const Every = time.Minute

// Complaint is about one thing that is tried again and again. The zero value is ready. One goroutine at a time uses it.
type Complaint struct {
	said time.Time // when the last failure was worth a line; zero: none was since it worked
}

// Level is called for each failure, and is at which level it is logged: a warning if it is the first one, or the last warning is old enough,
// and else for those who debug.
func (c *Complaint) Level(now time.Time) slog.Level {
	if !c.said.IsZero() && now.Sub(c.said) < Every {
		return slog.LevelDebug
	}
	c.said = now
	return slog.LevelWarn
}

// Over says that it has worked: the next failure is news.
func (c *Complaint) Over() { c.said = time.Time{} }
