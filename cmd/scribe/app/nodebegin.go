package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// beginInterval is how often a node that waits for others asks them.
	beginInterval = 500 * time.Millisecond
	// waitingInterval is how often it says what it waits for.
	waitingInterval = 10 * time.Second
	// askTimeout bounds a question to another node.
	askTimeout = 2 * time.Second
	// lostLinger is how long a node that has nothing of its cell goes on answering, after it found out that nobody has: each of the others must hear it to find out as well.
	lostLinger = 10 * time.Second
)

// nodeBeginner finds out how a node begins: decideBegin and decideJoin decide, it asks the other nodes and writes down the decision.
type nodeBeginner struct {
	facts nodeFacts
	cell  string
	fsys  vfs.FS
	log   *slog.Logger
	// connect returns a client for another node.
	connect func(nodePlace) rpc.NodeService
	// report is told what the node waits for; "" when it goes on.
	report func(waiting string)

	saidAt time.Time // when it was last logged what it waits for
}

// etcdStart is how a node starts its etcd.
type etcdStart struct {
	file nodeFile
	// members are the members that a new member begins with. A member that the folder has knows them itself.
	members []nodePlace
	// join means that the cell is there.
	join bool
}

// awaitBegin returns how the node's etcd starts, once that is known: what it decides on is in DATA/node then. It waits for other nodes
// until ctx ends.
func (b *nodeBeginner) awaitBegin(ctx context.Context) (etcdStart, error) {
	ticker := time.NewTicker(beginInterval)
	defer ticker.Stop()
	for {
		start, waiting, err := b.tryBegin(ctx)
		if errors.Is(err, errMetadataLost) && len(b.facts.cluster) > 1 {
			b.log.ErrorContext(ctx, "the cell's metadata is lost: ending in a while, when the other nodes know", "node", b.facts.place.name, "in", lostLinger, "error", err)
			select {
			case <-time.After(lostLinger):
			case <-ctx.Done():
			}
		}
		if err != nil || waiting == "" {
			b.report("")
			return start, err
		}
		b.sayWaiting(ctx, waiting)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return start, fmt.Errorf("node %s waits for %s: %w", b.facts.place.name, waiting, context.Cause(ctx))
		}
	}
}

// sayWaiting logs what the node waits for, now and then.
func (b *nodeBeginner) sayWaiting(ctx context.Context, waiting string) {
	b.report(waiting)
	if now := time.Now(); b.saidAt.IsZero() || now.Sub(b.saidAt) >= waitingInterval {
		b.saidAt = now
		b.log.InfoContext(ctx, "waiting", "node", b.facts.place.name, "for", waiting)
	}
}

// tryBegin is one attempt. waiting says what has to happen before the next one.
func (b *nodeBeginner) tryBegin(ctx context.Context) (start etcdStart, waiting string, err error) {
	if f := b.facts.file; f != nil && f.Cell != b.cell {
		return start, "", fmt.Errorf("the data folder %s is that of a node of cell %s, and --cell says %s: under that name etcd has other metadata, or none; give the former --cell",
			b.facts.data, f.Cell, b.cell)
	}
	if f := b.facts.file; f != nil && f.TLS != b.facts.secure {
		return start, "", fmt.Errorf("the nodes of this cell began %s, and this node starts %s: their etcd knows all nodes by URLs that say so. Start it as before, or take the cell to one process "+
			"and back to nodes (scribe node detach, then --adopt; docs/security.md)", withTLS(f.TLS), withTLS(!f.TLS))
	}
	d, err := decideBegin(b.facts, b.askOthers(ctx))
	if err != nil {
		return start, "", err
	}
	switch d.do {
	case startMember:
		return etcdStart{file: *b.facts.file}, "", nil
	case askMembers:
		members, waiting, err := b.askPlace(ctx, d.ask)
		if err != nil || waiting != "" {
			return start, waiting, err
		}
		return b.writeStart(etcdStart{members: members, join: true}, "")
	case beginCell:
		return b.writeStart(etcdStart{members: b.facts.cluster}, d.adopts)
	case awaitNodes:
	}
	return start, d.waiting, nil
}

// writeStart makes the decision durable before anything follows from it.
func (b *nodeBeginner) writeStart(start etcdStart, adopts string) (etcdStart, string, error) {
	own := b.facts.place
	start.file = nodeFile{
		Name: own.name, Address: own.address, Cell: b.cell, Token: clusterToken(b.cell, b.facts.cluster), TLS: b.facts.secure, Joined: start.join,
		// A node that joins is in a cell that was ready.
		Ready: start.join, Adopts: adopts,
	}
	for _, p := range b.facts.cluster {
		start.file.Cluster = append(start.file.Cluster, p.String())
	}
	return start, "", writeNodeFile(b.fsys, b.facts.data, start.file)
}

// withTLS says whether nodes serve with TLS.
func withTLS(on bool) string {
	if on {
		return "with TLS"
	}
	return "without TLS"
}

// askOthers asks all other nodes at the same time, if it matters.
func (b *nodeBeginner) askOthers(ctx context.Context) []nodeAnswer {
	if b.facts.hasMember {
		return nil
	}
	var answers []nodeAnswer
	for _, p := range b.facts.cluster {
		if p != b.facts.place {
			answers = append(answers, nodeAnswer{place: p})
		}
	}
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { answers[i].node, answers[i].err = describeNode(ctx, b.connect(answers[i].place)) })
	}
	asking.Wait()
	return answers
}

// describeNode asks a node about itself.
func describeNode(ctx context.Context, node rpc.NodeService) (*scribev1.NodeDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	res, err := node.DescribeNode(ctx, &scribev1.DescribeNodeRequest{})
	switch {
	case connect.CodeOf(err) == connect.CodeUnimplemented:
		return nil, errors.New("the process there is not a node")
	case err != nil:
		return nil, errors.New(rpc.Message(err))
	case res.GetNode() == nil:
		return nil, errors.New("the answer is empty")
	}
	return res.GetNode(), nil
}

// askPlace asks nodes of a cell that was ready for its members, and returns them if this node has a place among them. The cell answers
// when it has a majority.
func (b *nodeBeginner) askPlace(ctx context.Context, ready []nodePlace) (members []nodePlace, waiting string, err error) {
	for _, p := range ready {
		asking, cancel := context.WithTimeout(ctx, 2*askTimeout)
		res, err := b.connect(p).ListNodes(asking, &scribev1.ListNodesRequest{})
		cancel()
		if err != nil {
			waiting = fmt.Sprintf("a majority of the cell's nodes, who say whether this one may join: %s says: %s", p, rpc.Message(err))
			continue
		}
		if err := decideJoin(b.facts, p, res.GetNodes()); err != nil {
			return nil, "", err
		}
		return b.membersOf(res.GetNodes()), "", nil
	}
	return nil, waiting, nil
}

// membersOf are the members that this node joins. Those that never started have no name in etcd: it goes by addresses.
func (b *nodeBeginner) membersOf(nodes []*scribev1.Node) []nodePlace {
	members := make([]nodePlace, len(nodes))
	for i, n := range nodes {
		members[i] = nodePlace{n.GetPlace().GetName(), n.GetPlace().GetAddress()}
		switch {
		case members[i].address == b.facts.place.address:
			members[i].name = b.facts.place.name
		case members[i].name == "":
			members[i].name = fmt.Sprintf("member-%x", n.GetMember())
		}
	}
	return members
}
