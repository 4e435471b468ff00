package app

import (
	"context"
	"slices"
	"time"
)

// followInterval is the pause between looks at the cell's list of nodes.
const followInterval = 5 * time.Second

// followNodes keeps the process's view of the cell's nodes current until it stops: --cluster is what the node began with, and others are added
// and removed while it runs.
func (n *node) followNodes(use func([]nodePlace) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	n.app.onStop("list of nodes", func(context.Context) error { cancel(); <-done; return nil })
	go func() {
		defer close(done)
		n.watchNodes(ctx, n.startedNodes, use)
	}()
}

// watchNodes calls use with the nodes when they are not those of --cluster any more, and whenever they change, until ctx ends.
func (n *node) watchNodes(ctx context.Context, list func(context.Context) ([]nodePlace, error), use func([]nodePlace) error) {
	known := n.cluster
	ticks := time.NewTicker(followInterval)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		nodes, err := list(ctx)
		if err != nil || len(nodes) == 0 || slices.Equal(nodes, known) {
			continue // without a majority the list does not change
		}
		if err := use(nodes); err != nil {
			n.app.log.WarnContext(ctx, "the cell's list of nodes can't be used", "nodes", listNodes(nodes), "error", err)
			continue
		}
		n.app.log.InfoContext(ctx, "the cell's list of nodes has changed", "nodes", listNodes(nodes), "before", listNodes(known))
		known = nodes
	}
}

// startedNodes are the nodes of the cell, but those that never ran, in the order of their names.
func (n *node) startedNodes(ctx context.Context) ([]nodePlace, error) {
	members, err := n.listMembers(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []nodePlace
	for _, m := range members {
		if isStarted(m) {
			nodes = append(nodes, n.placeOf(m))
		}
	}
	slices.SortFunc(nodes, compareNodes)
	return nodes, nil
}
