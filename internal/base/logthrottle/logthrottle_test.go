package logthrottle

import (
	"log/slog"
	"testing"
	"time"
)

// TestComplaint: an hour of failures, each second, is sixty warnings, the first one at once; what comes after it worked is news.
func TestComplaint(t *testing.T) {
	var c Complaint
	now := time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)
	warnings := 0
	for i := range 3600 {
		if level := c.Level(now); level == slog.LevelWarn {
			warnings++
		} else if i == 0 || level != slog.LevelDebug {
			t.Fatalf("failure %d is logged as %v", i, level)
		}
		now = now.Add(time.Second)
	}
	if warnings != 60 {
		t.Errorf("%d warnings in an hour", warnings)
	}
	c.Over()
	if got := c.Level(now); got != slog.LevelWarn {
		t.Errorf("after it worked: %v", got)
	}
}
