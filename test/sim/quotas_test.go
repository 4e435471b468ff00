package sim

import (
	"context"
	"math/rand/v2"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// quotaPlan is the quotas of a category: bytes a second that all write, and bytes and fetches a second that all read. What is beyond them
// waits or is refused, but never left out: the history would have to know what.
type quotaPlan struct {
	Write, Read, Requests uint64
	Mode                  scribev1.QuotaMode
}

// drawQuotas gives some categories of every third seed quotas that their traffic exceeds at times. They slow down what may take five
// minutes after the healing, so they are lifted then.
func (p *plan) drawQuotas(rng *rand.Rand) {
	if rng.IntN(3) > 0 {
		return
	}
	modes := []scribev1.QuotaMode{scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE}
	for i := range p.Categories {
		if rng.IntN(2) == 0 {
			p.Categories[i].Quotas = &quotaPlan{
				Write: pick(rng, []uint64{0, 16 << 10, 64 << 10}), Read: pick(rng, []uint64{0, 64 << 10, 256 << 10}),
				Requests: pick(rng, []uint64{0, 10, 40}), Mode: pick(rng, modes),
			}
		}
	}
}

// apply sets the quotas of a new category.
func (q *quotaPlan) apply(c *scribev1.Category) {
	if q == nil {
		return
	}
	c.QuotaBytesPerSecond, c.QuotaMode = q.Write, q.Mode
	c.ReadQuotaBytesPerSecond, c.ReadQuotaRequestsPerSecond, c.ReadQuotaMode = q.Read, q.Requests, q.Mode
}

// liftQuotas removes the quotas that the seed has drawn.
func (w *world) liftQuotas() {
	c := w.newClient()
	defer c.transport.Close()
	control := rpc.NewControlClient(c.transport, w.first(app.ControlPlane).url())
	for _, x := range w.plan.Categories {
		if x.Quotas == nil {
			continue
		}
		none := uint64(0)
		req := &scribev1.UpdateCategoryRequest{Name: x.Name, QuotaBytesPerSecond: &none, ReadQuotaBytesPerSecond: &none, ReadQuotaRequestsPerSecond: &none}
		err := patiently(func(ctx context.Context) error {
			_, err := control.UpdateCategory(ctx, req)
			if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
				return nil // it was lost with the control plane's disk, before anything was written to it
			}
			return err
		})
		if err != nil {
			w.violation("the quotas of %s can't be lifted: %v", x.Name, err)
		}
	}
}
