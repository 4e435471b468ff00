package discovery

import (
	"context"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Metalog returns a client of the cell's served metadata logs, for tools that inspect them.
func (c *Cell) Metalog(ctx context.Context) (rpc.MetalogService, error) {
	ch, err := c.chooseInstances(ctx, nil, scribev1.Role_ROLE_METALOG)
	if err != nil {
		return nil, err
	}
	return clientOf(c, roleInstance{ch.role, ch.urls[0]}, rpc.NewMetalogClient), nil
}
