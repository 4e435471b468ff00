package controlplane

import (
	"cmp"
	"context"
	"slices"

	"scribe/controlplane/request"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// maxDropped bounds the deleted categories that one call lists or forgets.
const maxDropped = 1000

// ListDropped implements rpc.ControlService: it returns deleted categories whose logs and blobs retention still has to remove.
func (c *ControlPlane) ListDropped(ctx context.Context, req *scribev1.ListDroppedRequest) (*scribev1.ListDroppedResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "list deleted categories"
	limit := int(cmp.Or(min(req.GetLimit(), maxDropped), maxDropped))
	page, err := c.deps.Store.Range(ctx, kv.KeyRange{Prefix: droppedPrefix, After: droppedKey(req.GetAfter()), Limit: limit})
	if err != nil {
		return nil, request.ReadError(what, err)
	}
	res := &scribev1.ListDroppedResponse{More: page.More}
	for _, e := range page.Entries {
		cat, err := decodeDeleted(e.Key, e.Value)
		if err != nil {
			c.metrics.damaged.Inc()
			return nil, request.ReadError(what, err)
		}
		res.Categories = append(res.Categories, cat)
	}
	return res, nil
}

// ForgetDropped implements rpc.ControlService.
func (c *ControlPlane) ForgetDropped(ctx context.Context, req *scribev1.ForgetDroppedRequest) (*scribev1.ForgetDroppedResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	ids := req.GetIds()
	if len(ids) > maxDropped {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "forget deleted categories: %d ids, the limit is %d", len(ids), maxDropped)
	}
	var ops []kv.Op
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		ops = append(ops, kv.Delete(droppedKey(id)))
	}
	for _, part := range kv.SplitOps(ops, 0) {
		if _, err := c.deps.Store.Commit(ctx, part...); err != nil {
			_, err = commitError("forget deleted categories", err)
			return nil, err
		}
	}
	return &scribev1.ForgetDroppedResponse{}, nil
}
