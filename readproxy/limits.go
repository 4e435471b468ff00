package readproxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"scribe/internal/base/units"
	"scribe/internal/role/quota"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// longestHint bounds retry hints: the quota or the proxy's share of it may grow meanwhile.
const longestHint = 10 * time.Second

// readLimit returns a category's quota for reading. limited is false if it has none, or is unknown here.
func readLimit(cat *scribev1.Category) (l quota.Limit, limited bool) {
	l = quota.Limit{Category: cat.GetId(), Bytes: cat.GetReadQuotaBytesPerSecond(), Requests: cat.GetReadQuotaRequestsPerSecond()}
	return l, l.Bytes > 0 || l.Requests > 0
}

// limitAnswer applies the category's quota for reading to an answer, before anything is loaded for it: it cuts it after the payloads that
// pass, marks payloads that are left out, waits, or refuses the request. The reads of another region are charged there.
func (s *Server) limitAnswer(ctx context.Context, cat *scribev1.Category, a *fetchAnswer, samples bool) error {
	l, limited := readLimit(cat)
	if !limited || a.peer {
		return nil
	}
	switch mode := quota.ModeOf(cat, cat.GetReadQuotaMode()); {
	case mode == scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
		return s.throttleAnswer(ctx, cat, l, a)
	case mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && samples && a.asked == nil:
		return s.sampleAnswer(cat, l, a)
	default:
		n, after := s.quotas.PassLeading(l, len(a.items), a.sizeOf)
		s.countOverQuota("refused", a.countBytes(n, len(a.items)))
		if n == 0 {
			return overReadQuota(cat, after)
		}
		if n < len(a.items) {
			a.cutItems(n)
		}
		return nil
	}
}

// throttleAnswer waits until the quota lets the request pass.
func (s *Server) throttleAnswer(ctx context.Context, cat *scribev1.Category, l quota.Limit, a *fetchAnswer) error {
	bytes := a.countBytes(0, len(a.items))
	waiting, cancel := quota.WaitContext(ctx)
	defer cancel()
	w, after, ok := s.quotas.EnterLine(waiting, l, bytes, 0)
	if ok && w != nil {
		begin := time.Now()
		ok, after = s.quotas.AwaitTurn(waiting, l, w, s.calls.Draining())
		s.metrics.quotaWaits.Observe(time.Since(begin).Seconds())
		if ok {
			s.countOverQuota("delayed", bytes)
		}
	}
	switch {
	case ok:
		return nil
	case after > 0:
		s.countOverQuota("refused", bytes)
		return overReadQuota(cat, after)
	default:
		return s.shutdownError()
	}
}

// sampleAnswer leaves payloads out, and says of the others how many they stand for.
func (s *Server) sampleAnswer(cat *scribev1.Category, l quota.Limit, a *fetchAnswer) error {
	leftOut := int64(0)
	after, ok := s.quotas.SampleParts(l, len(a.items), a.sizeOf, func(i int, rate uint32) {
		it := &a.items[i]
		switch {
		case it.err != nil:
		case rate == 0:
			it.leftOut = true
			leftOut += int64(it.pointer.Length)
		case rate > 1:
			it.sampleRate = rate
		}
	})
	if !ok {
		s.countOverQuota("refused", a.countBytes(0, len(a.items)))
		return overReadQuota(cat, after)
	}
	if leftOut > 0 {
		s.countOverQuota("left_out", leftOut)
		a.skipUnneeded()
	}
	return nil
}

func (s *Server) countOverQuota(outcome string, bytes int64) {
	if bytes > 0 {
		s.metrics.overQuota.WithLabelValues(outcome).Add(float64(bytes))
	}
}

// sizeOf returns what an item counts in a quota: the bytes of its payload, uncompressed.
func (a *fetchAnswer) sizeOf(i int) int64 {
	if a.items[i].err != nil {
		return 0
	}
	return int64(a.items[i].pointer.Length)
}

// countBytes returns what the items from one to another count in a quota.
func (a *fetchAnswer) countBytes(from, to int) (sum int64) {
	for i := from; i < to; i++ {
		sum += a.sizeOf(i)
	}
	return sum
}

// cutItems keeps the first n items. The caller asks again for the rest.
func (a *fetchAnswer) cutItems(n int) {
	a.items = a.items[:n]
	a.skipUnneeded()
}

// skipUnneeded marks the blocks that no item needs.
func (a *fetchAnswer) skipUnneeded() {
	for i := range a.jobs {
		a.jobs[i].idle = true
	}
	for i := range a.items {
		if it := &a.items[i]; it.err == nil && it.made == nil && !it.leftOut {
			a.jobs[it.job].idle = false
		}
	}
}

// overReadQuota returns the error for a request over a quota, with a retry hint.
func overReadQuota(cat *scribev1.Category, after time.Duration) error {
	var limits []string
	if n := cat.GetReadQuotaBytesPerSecond(); n > 0 {
		limits = append(limits, fmt.Sprintf("%v/s", units.Bytes(n))) //nolint:gosec // a quota beyond int64 is none
	}
	if n := cat.GetReadQuotaRequestsPerSecond(); n > 0 {
		limits = append(limits, fmt.Sprintf("%d requests a second", n))
	}
	after = min(after, longestHint)
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after, "readers of category %s are over its quota of %s: try again in %v",
		cat.GetName(), strings.Join(limits, " and "), after.Round(time.Millisecond))
}
