package readproxy

import (
	"context"
	"time"

	"scribe/internal/role/quota"
	scribev1 "scribe/proto/scribe/v1"
)

// longestHint bounds retry hints: the quota or the proxy's share of it may grow meanwhile.
const longestHint = 10 * time.Second

// limitAnswer applies the quotas for reading that the category is under to an answer, before anything is loaded for it: it cuts it after the payloads
// that pass, marks payloads that are left out, waits, or refuses the request. The reads of another region are charged there.
func (s *Server) limitAnswer(ctx context.Context, cat *scribev1.Category, a *fetchAnswer, samples bool) error {
	if a.peer {
		return nil
	}
	var under [quota.MaxLimits]quota.Limit
	limits := quota.AppendReadLimits(under[:0], cat, s.deps.Tenants())
	for i := range limits {
		before := a.countBytes(0, len(a.items))
		if err := s.passLimit(ctx, cat, &limits[i], a, samples); err != nil {
			s.quotas.Refund(limits[:i], before, true)
			return err
		}
		if left := a.countBytes(0, len(a.items)); left < before {
			s.quotas.Refund(limits[:i], before-left, false)
		}
	}
	return nil
}

// passLimit applies one quota to an answer.
func (s *Server) passLimit(ctx context.Context, cat *scribev1.Category, l *quota.Limit, a *fetchAnswer, samples bool) error {
	switch {
	case l.Mode == scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
		return s.throttleAnswer(ctx, cat, l, a)
	case l.Mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && samples && a.asked == nil:
		return s.sampleAnswer(cat, l, a)
	default:
		if l.Mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE {
			blocking := l.Blocking()
			l = &blocking
		}
		n, after := s.quotas.PassLeading(*l, len(a.items), a.sizeOf)
		s.countOverQuota("refused", l, a.countBytes(n, len(a.items)))
		if n == 0 {
			return overReadQuota(cat, l, after)
		}
		if n < len(a.items) {
			a.cutItems(n)
		}
		return nil
	}
}

// throttleAnswer waits until a quota lets the request pass.
func (s *Server) throttleAnswer(ctx context.Context, cat *scribev1.Category, l *quota.Limit, a *fetchAnswer) error {
	bytes := a.countBytes(0, len(a.items))
	waiting, cancel := quota.WaitContext(ctx)
	defer cancel()
	// What waits keeps its request in memory, which is a bounded part of what there is for requests: so the waiting readers of one category
	// leave room for those of others.
	w, after, ok := s.quotas.EnterLine(waiting, *l, bytes, a.held)
	if ok && w != nil {
		begin := time.Now()
		ok, after = s.quotas.AwaitTurn(waiting, *l, w, s.calls.Draining())
		s.metrics.quotaWaits.Observe(time.Since(begin).Seconds())
		if ok {
			s.countOverQuota("delayed", l, bytes)
		}
	}
	switch {
	case ok:
		return nil
	case after > 0:
		s.countOverQuota("refused", l, bytes)
		return overReadQuota(cat, l, after)
	default:
		return s.shutdownError()
	}
}

// sampleAnswer leaves payloads out, and says of the others how many they stand for.
func (s *Server) sampleAnswer(cat *scribev1.Category, l *quota.Limit, a *fetchAnswer) error {
	// A sampler must not see what one before it has left out: both step alike, and would keep the same ones.
	there := make([]int, 0, len(a.items))
	for i := range a.items {
		if !a.items[i].leftOut {
			there = append(there, i)
		}
	}
	leftOut := int64(0)
	after, ok := s.quotas.SampleParts(*l, len(there), func(i int) int64 { return a.sizeOf(there[i]) }, func(i int, rate uint32) {
		it := &a.items[there[i]]
		switch {
		case it.err != nil:
		case rate == 0:
			it.leftOut = true
			leftOut += int64(it.pointer.Length)
		case rate > 1:
			it.sampleRate = quota.ScaleRate(it.sampleRate, rate)
		}
	})
	if !ok {
		s.countOverQuota("refused", l, a.countBytes(0, len(a.items)))
		return overReadQuota(cat, l, after)
	}
	if leftOut > 0 {
		s.countOverQuota("left_out", l, leftOut)
		a.skipUnneeded()
	}
	return nil
}

func (s *Server) countOverQuota(outcome string, l *quota.Limit, bytes int64) {
	if bytes > 0 {
		s.metrics.overQuota.WithLabelValues(outcome, string(l.Kind)).Add(float64(bytes))
	}
}

// sizeOf returns what an item counts in a quota: the bytes of its payload, uncompressed. What is left out already counts nothing.
func (a *fetchAnswer) sizeOf(i int) int64 {
	if a.items[i].err != nil || a.items[i].leftOut {
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
func overReadQuota(cat *scribev1.Category, l *quota.Limit, after time.Duration) error {
	return l.RefusalError("readers of category "+cat.GetName()+" are", min(after, longestHint))
}
