package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"scribe/cmd/scribe/app"
)

// drawRemoval lets logs be empty for so long that they are removed.
const drawRemoval = "removal"

// burst is how long a writer that rests writes before it does.
const burst = 10 * time.Second

// drawForgetful adds, in a third of the seeds or always, a category that forgets soon, and whose writers rest for longer than it remembers: its logs
// are removed, and come back. Some of its readers rest as well, so that logs are written, trimmed and removed while they are away.
func (p *plan) drawForgetful(rng *rand.Rand, always bool) {
	if rng.IntN(3) > 0 && !always {
		return
	}
	c := categoryPlan{
		Name: "forgetful", Shards: 2 + rng.Uint32N(2), Delivery: pick(rng, []string{"best_effort", "at_least_once", "at_least_once"}), Order: "none", Retention: time.Minute,
	}
	p.Categories = append(slices.Clone(p.Categories), c)
	proxies := p.with(app.WriteProxy)
	for shard := range c.Shards {
		p.Writers = append(p.Writers, writerPlan{
			Name: fmt.Sprintf("forgotten%d", shard), Category: c.Name, Shard: shard, Level: "committed", Kind: pick(rng, []string{"single", "batch", "async"}),
			Via: pick(rng, proxies), Patient: rng.IntN(2) == 0, Pace: pick(rng, []time.Duration{500 * time.Millisecond, 2 * time.Second}), Size: pick(rng, []int{50, 300}),
			Rest: pick(rng, []time.Duration{90 * time.Second, 150 * time.Second}),
		})
	}
	for i, rest := range []time.Duration{0, 30 * time.Second, 150 * time.Second} {
		p.Readers = append(p.Readers, readerPlan{
			Name: fmt.Sprintf("forgetful reader%d", i), Category: c.Name, Window: pick(rng, []time.Duration{-1, 0, time.Second}),
			Lifetime: pick(rng, []int{5, 30}), Rest: rest, Via: p.with(app.ReadStream),
		})
	}
}

// restOf returns how long a reader is away between two lives; nil if it is not. Nobody is away once the faults have ended.
func (w *world) restOf(r readerPlan) func() time.Duration {
	if r.Rest == 0 {
		return nil
	}
	rng, until := rngOf(w.plan.Seed, "rest of "+r.Name), time.Now().Add(w.plan.Length)
	return func() time.Duration {
		return min(time.Duration(rng.Int64N(int64(2*r.Rest))), max(time.Until(until), 0))
	}
}
