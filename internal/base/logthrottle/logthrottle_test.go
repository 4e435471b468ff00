package logthrottle

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestThrottle: an hour of failures, each second, is sixty warnings, the first one at once; that it works again is logged once, and what
// fails then is news.
func TestThrottle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			throttle Throttle
			out      bytes.Buffer
		)
		log := slog.New(slog.NewTextHandler(&out, nil))
		lines := func() string {
			defer out.Reset()
			return out.String()
		}
		throttle.Recovered(t.Context(), log, "connected again")
		if got := lines(); got != "" {
			t.Errorf("logged without a failure: %s", got)
		}
		for i := range 3600 {
			throttle.Failed(t.Context(), log, "connect failed", "attempt", i)
			if i == 0 && !strings.Contains(out.String(), "level=WARN msg=\"connect failed\" attempt=0") {
				t.Errorf("the first failure is logged as %q", out.String())
			}
			<-time.After(time.Second)
		}
		if n := strings.Count(lines(), "level=WARN"); n != 60 {
			t.Errorf("%d warnings in an hour", n)
		}
		throttle.Recovered(t.Context(), log, "connected again", "server", "a")
		throttle.Recovered(t.Context(), log, "connected again", "server", "a")
		if got := lines(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=INFO msg="connected again" server=a failures=3600 failing_for=1h0m0s`) {
			t.Errorf("recovery is logged as %q", got)
		}
		throttle.Failed(t.Context(), log, "connect failed")
		if got := lines(); !strings.Contains(got, "level=WARN") {
			t.Errorf("the first failure after it worked is logged as %q", got)
		}
	})
}
