package discovery

import (
	"context"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Metalog returns the served metadata logs of the cell, for tools that look into them.
func (c *Cell) Metalog(ctx context.Context) (rpc.MetalogService, error) {
	urls, err := c.pick(ctx, scribev1.Role_ROLE_METALOG, 0)
	if err != nil {
		return nil, err
	}
	return rpc.NewMetalogClient(c.transport, urls[0]), nil
}
