package faults

import (
	"context"
	"slices"
	"sync"
	"time"

	"scribe/test/follow"
	"scribe/test/history"
	"scribe/test/program"
)

// audience are consumers that follow the load while everything fails.
type audience struct {
	s *scenario
	// fast ones have everything soon; slow ones never do, and nobody waits for them.
	fast, slow []*follow.Follower
	cancel     context.CancelFunc
	running    sync.WaitGroup
}

// follow starts the audience: consumers of every ordering window, mortal ones, slow ones, and some that stand still with all that they
// may hold.
func (s *scenario) follow() {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	s.a = &audience{s: s, cancel: cancel}
	s.Cleanup(s.a.stop)
	start := func(c follow.Config) *follow.Follower {
		c.Servers = []string{s.c.url(reader1), s.c.url(reader2)}
		c.Rand = rngOf(s.seed, "follower "+c.Name)
		f := follow.New(s.w.h, c)
		s.v.answers += f.Prefetch
		s.a.running.Go(func() {
			if err := f.Run(ctx); err != nil {
				s.Error(err)
			}
		})
		return f
	}
	slowly := func(time.Time) time.Duration { return 200 * time.Millisecond }
	never := func(time.Time) time.Duration { return time.Hour }
	for _, c := range []follow.Config{
		{Name: "unbounded", Category: catLeast, Window: history.Unbounded, Lifetime: 300},
		{Name: "wide", Category: catLeast, Window: time.Second},
		{Name: "narrow", Category: catLeast, Window: 10 * time.Millisecond, Lifetime: 300},
		{Name: "sharp", Category: catLeast, Window: 0},
		{Name: "once", Category: catOnce, Window: 100 * time.Millisecond, Lifetime: 300},
		{Name: "strict", Category: catBound, Window: 0},
		{Name: "strict-mortal", Category: catBound, Window: 0, Lifetime: 300},
	} {
		s.a.fast = append(s.a.fast, start(c))
	}
	for _, c := range []follow.Config{
		{Name: "slow", Category: catLeast, Window: time.Second, Pace: slowly, Prefetch: 64 << 10},
		{Name: "slow-strict", Category: catBound, Window: 0, Pace: slowly, Prefetch: 64 << 10},
		{Name: "still", Category: catLeast, Window: time.Second, Pace: never, Prefetch: 8 << 20},
		{Name: "still-unbounded", Category: catLeast, Window: history.Unbounded, Pace: never, Prefetch: 8 << 20},
		{Name: "still-strict", Category: catBound, Window: 0, Pace: never, Prefetch: 8 << 20},
	} {
		s.a.slow = append(s.a.slow, start(c))
	}
}

func (a *audience) stop() {
	a.cancel()
	a.running.Wait()
}

// caughtUp waits until everybody who is not slow has what is committed now, and looks at all trails.
func (a *audience) caughtUp(what string) {
	a.s.Helper()
	now, began := a.s.w.h.Now(), time.Now()
	for _, f := range a.fast {
		a.await(f, what, func() bool { return a.s.w.h.CountMissing(f.Trail, now) == 0 })
		if took := time.Since(began); took > time.Second {
			a.s.Logf("%s: %s has what was committed after %v:\n%s", what, f.Name, took.Round(time.Millisecond), f.Log.Tail(3))
		}
	}
	a.s.Logf("%s: all have what was committed, after %v", what, time.Since(began).Round(time.Millisecond))
	for _, f := range slices.Concat(a.fast, a.slow) {
		if err := a.s.w.h.CheckTrail(f.Trail, nil).Err(); err != nil {
			a.s.Errorf("%s: %s:\n%v", what, f.Name, err)
		}
	}
	a.bounds(what)
}

// await waits until a follower has come somewhere.
func (a *audience) await(f *follow.Follower, what string, there func() bool) {
	a.s.Helper()
	deadline := time.After(program.WaitLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !there() {
		select {
		case <-tick.C:
		case <-deadline:
			a.s.Fatalf("%s: follower %s of %s does not come on, it has %d messages and lacks %d:\n%s\n%s", what, f.Name, f.Category, f.Trail.Len(),
				a.s.w.h.CountMissing(f.Trail, a.s.w.h.Now()), f.Log.Tail(20), a.s.c.accounts())
		}
	}
}

// Bounds of a stream and of a read proxy: what readstream.DefaultConfig and the cell's settings say.
const (
	streamBytes  = 4<<20 + 64<<10
	requestBytes = 512 << 20
)

// bounds: what readers hold is within what they may.
func (a *audience) bounds(what string) {
	a.s.Helper()
	for _, m := range a.s.c.with(partReader) {
		s := a.s.v.scrape(m)
		if held, streams := s.Sum("scribe_readstream_buffered_bytes"), s.Sum("scribe_readstream_streams"); held > streams*streamBytes {
			a.s.Errorf("%s: invariant 16: %.0f streams of %s hold %.0f bytes of pointers", what, streams, m.name, held)
		}
		if held, limit := s.Sum("scribe_readproxy_cache_bytes"), s.Sum("scribe_readproxy_cache_limit_bytes"); held > limit || limit != readCache {
			a.s.Errorf("%s: invariant 16: the cache of %s has %.0f bytes, the limit is %.0f", what, m.name, held, limit)
		}
		if held := s.Sum("scribe_readproxy_request_bytes"); held > requestBytes {
			a.s.Errorf("%s: invariant 16: requests to %s hold %.0f bytes", what, m.name, held)
		}
	}
}

// finish waits until everybody who is not slow has everything that there is, ends the audience, and compares.
func (a *audience) finish() {
	a.s.Helper()
	whole := map[string]*history.Reading{}
	for _, category := range a.s.w.categories {
		whole[category] = a.s.w.h.Read(category)
		if err := a.s.v.read(whole[category], category, a.s.c.url(reader1)); err != nil {
			a.s.Fatalf("read %s: %v", category, err)
		}
	}
	for _, f := range a.fast {
		a.await(f, "in the end", func() bool { return a.s.w.h.Reaches(f.Trail, whole[f.Category]) })
	}
	a.stop()
	var strict []*history.Trail
	deaths := int64(0)
	for _, f := range slices.Concat(a.fast, a.slow) {
		r := whole[f.Category]
		if slices.Contains(a.slow, f) {
			if a.s.w.h.Reaches(f.Trail, r) {
				a.s.Errorf("in the end: %s has everything: it was not slow", f.Name)
			}
			r = f.Trail.Until(r)
		}
		report := a.s.w.h.CheckTrail(f.Trail, r)
		if err := report.Err(); err != nil {
			a.s.Errorf("in the end: %s:\n%v", f.Name, err)
		}
		if f.Category == catBound {
			strict = append(strict, f.Trail)
		}
		deaths += f.Deaths()
		a.s.Logf("follower %s of %s: %d messages, %d deaths, %d reconnects, damage met %d times", f.Name, f.Category, report.Seen, f.Deaths(), f.Reconnects(), f.Damaged())
	}
	if err := a.s.w.h.Agree(strict...).Err(); err != nil {
		a.s.Errorf("in the end:\n%v", err)
	}
	if deaths == 0 {
		a.s.Error("no consumer has died")
	}
}

// damaged is how often consumers met damaged bytes.
func (a *audience) damaged() (n int64) {
	for _, f := range a.fast {
		n += f.Damaged()
	}
	return n
}
