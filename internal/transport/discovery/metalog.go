package discovery

import (
	"context"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Metalog returns the served metadata logs of the cell, for tools that look into them.
func (c *Cell) Metalog(ctx context.Context) (rpc.MetalogService, error) {
	ch, err := c.chooseInstances(ctx, nil, scribev1.Role_ROLE_METALOG)
	if err != nil {
		return nil, err
	}
	return clientOf(c, roleInstance{ch.role, ch.urls[0]}, rpc.NewMetalogClient), nil
}
