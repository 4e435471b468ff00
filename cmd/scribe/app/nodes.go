package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/etcd"
	"scribe/storage/etcd/member"
	"scribe/storage/metalog/pebblelog"
)

// node is this process among the nodes of its cell. It serves NodeService (nodeservice.go) from the begin on, and has the cell's etcd once
// that has a majority.
type node struct {
	app     *App
	place   nodePlace
	cluster []nodePlace
	// secure means that the nodes, and their etcd, serve with TLS.
	secure  bool
	version string
	// connect returns a client for another node.
	connect func(nodePlace) rpc.NodeService
	// etcd is a client, once the member serves; changing serializes changes of the members through this node.
	etcd     atomic.Pointer[clientv3.Client]
	member   atomic.Uint64 // id; 0 until it runs
	changing sync.Mutex
	// replica says how this node's replica of the metadata logs is; nil until that runs.
	replica atomic.Pointer[func() *scribev1.ReplicaStatus]
	// engine is this node's replica; nil until it runs.
	engine atomic.Pointer[pebblelog.Engine]
	// leadsControl says whether this node's control plane leads; nil until that runs.
	leadsControl atomic.Pointer[func() bool]

	mu struct {
		sync.Mutex
		file    *nodeFile
		waiting string
		// lost: see nodeFacts.isLost. It ends when the node has begun.
		lost bool
	}
}

// startNode makes the process a node: it serves NodeService, finds out how it begins, starts its member of etcd, and waits until that
// has a majority. It stops last.
func (a *App) startNode(ctx context.Context) error {
	n := &node{app: a, place: a.cfg.nodePlace(), cluster: a.cfg.nodes(), secure: a.cfg.servesTLS(), version: a.opts.Version}
	n.connect = func(p nodePlace) rpc.NodeService { return rpc.NewNodeClient(a.transport, p.url(n.secure)) }
	fsys := a.opts.Host.FS
	if a.cfg.listensElsewhere() {
		a.log.WarnContext(ctx, "the port of --listen is not the one of --cluster, which others call: something has to forward it", "listen", a.cfg.Listen, "cluster", n.place.address)
	}
	file, err := readNodeFile(fsys, a.cfg.Data)
	if err != nil {
		return err
	}
	n.mu.file = file
	has, err := hasMember(fsys, a.cfg.Data)
	if err != nil {
		return err
	}
	metadata, err := hasMetadata(fsys, a.cfg.Data)
	if err != nil {
		return err
	}
	a.parts.node = n
	begin := &nodeBeginner{
		facts: nodeFacts{place: n.place, secure: n.secure, cluster: n.cluster, data: a.cfg.Data, file: file, hasMember: has, hasMetadata: metadata, adopt: a.cfg.Adopt},
		cell:  a.cfg.Cell, fsys: fsys, log: a.log, connect: n.connect, report: n.setWaiting,
	}
	n.mu.lost = begin.facts.isLost()
	a.provideServices(rpc.Services{Node: n})
	start, err := begin.awaitBegin(ctx)
	if err != nil {
		return err
	}
	n.setFile(start.file)
	if err := n.startMember(ctx, start); err != nil {
		return err
	}
	file, err = n.awaitMetadata(ctx, start.file)
	if err != nil {
		return err
	}
	return n.rememberReady(*file)
}

// setWaiting notes what the node waits for; "" when it goes on.
func (n *node) setWaiting(waiting string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.waiting = waiting
}

func (n *node) setFile(f nodeFile) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.file, n.mu.lost = &f, false
}

// startMember starts the member of etcd, and waits for a majority.
func (n *node) startMember(ctx context.Context, start etcdStart) error {
	a := n.app
	cfg, err := n.memberConfig(ctx, start)
	if err != nil {
		return err
	}
	m, err := member.Start(cfg)
	if err != nil {
		return err
	}
	a.onStop("etcd member", func(context.Context) error { m.Close(); return nil })
	a.onStandAside("etcd member", scribev1.Role_ROLE_METALOG, m.HandOver)
	watchFailure(a, m.Failed(), func(err error) error {
		return fmt.Errorf("%w; scribe node list, at another node, tells whether node %s was removed or replaced", err, n.place.name)
	})
	n.member.Store(m.ID())
	if err := a.connectEtcd(etcd.Config{Endpoints: n.etcdEndpoints(n.cluster), TLS: a.etcdTLS()}); err != nil {
		return err
	}
	return n.awaitMajority(ctx, m)
}

// etcdEndpoints are where the etcd of nodes serves clients, this one's first.
func (n *node) etcdEndpoints(nodes []nodePlace) []string {
	scheme := schemeOf(n.secure)
	endpoints := []string{scheme + n.place.etcdClient()}
	for _, p := range nodes {
		if p.address != n.place.address {
			endpoints = append(endpoints, scheme+p.etcdClient())
		}
	}
	return endpoints
}

// memberConfig is that of the node's member of etcd. It listens on the interface that the node does.
func (n *node) memberConfig(ctx context.Context, start etcdStart) (cfg member.Config, err error) {
	own, data, scheme := n.place, n.app.cfg.Data, schemeOf(n.secure)
	cfg = member.Config{
		Name: own.name, Folder: etcdFolder(data), ClientURL: scheme + own.etcdClient(), TLS: n.app.memberTLS(), Join: start.join, Token: start.file.Token, Logger: n.app.log,
	}
	if cfg.ClientListen, err = listenAddress(ctx, n.app.cfg.Listen, own.etcdClient()); err != nil {
		return cfg, err
	}
	if cfg.PeerListen, err = listenAddress(ctx, n.app.cfg.Listen, own.etcdPeer()); err != nil {
		return cfg, err
	}
	members := start.members
	if len(members) == 0 {
		members = []nodePlace{own} // the folder knows the others
	}
	for _, p := range members {
		cfg.Members = append(cfg.Members, member.Peer{Name: p.name, URL: scheme + p.etcdPeer()})
	}
	return cfg, nil
}

// listenAddress returns the port of an address on the interface of another one. Etcd takes no names of hosts.
func listenAddress(ctx context.Context, listen, address string) (string, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return "", err
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	if host == "" {
		return net.JoinHostPort("0.0.0.0", port), nil
	}
	ips, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return "", fmt.Errorf("address to listen on: %w", err)
	}
	return net.JoinHostPort(ips[0].String(), port), nil
}

// connectEtcd makes the client for the process's parts, which stop before it does.
func (a *App) connectEtcd(cfg etcd.Config) error {
	client, err := etcd.Connect(cfg)
	if err != nil {
		return err
	}
	a.parts.etcd = client
	a.onStop("etcd client", func(context.Context) error {
		if err := client.Close(); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	})
	return nil
}

// awaitMajority returns when etcd answers a linearizable read: a majority of its members is up.
func (n *node) awaitMajority(ctx context.Context, m *member.Member) error {
	n.setWaiting("a majority of the cell's nodes")
	defer n.setWaiting("")
	ticker := time.NewTicker(waitingInterval)
	defer ticker.Stop()
	for ready := m.Ready(); ; {
		select {
		case <-ready:
			return n.readOnce(ctx)
		case err := <-n.app.failed:
			return err
		case <-ticker.C:
			n.app.log.WarnContext(ctx, "waiting", "node", n.place.name, "for", "a majority of the cell's nodes", "nodes", listNodes(n.cluster))
		case <-ctx.Done():
			return fmt.Errorf("node %s waits for a majority of %s: %w", n.place.name, listNodes(n.cluster), context.Cause(ctx))
		}
	}
}

// readPause is the pause before etcd is asked again.
const readPause = 200 * time.Millisecond

// readOnce reads from etcd until that succeeds.
func (n *node) readOnce(ctx context.Context) error {
	client := n.app.parts.etcd
	err := n.app.repeatRead(ctx, func(ctx context.Context) error {
		_, err := client.Get(ctx, n.app.etcdPrefix())
		return err
	})
	if err == nil {
		n.etcd.Store(client)
	}
	return err
}

// repeatRead reads from etcd until that succeeds.
func (a *App) repeatRead(ctx context.Context, read func(context.Context) error) error {
	for {
		reading, cancel := context.WithTimeout(ctx, askTimeout)
		err := read(reading)
		cancel()
		if err == nil {
			return nil
		}
		select {
		case failed := <-a.failed:
			return failed
		case <-ctx.Done():
			return fmt.Errorf("process %s waits for etcd (%w): %w", a.id, err, context.Cause(ctx))
		case <-time.After(readPause):
		}
	}
}

// rememberReady writes down that the cell is ready, before the node acknowledges anything: from then on it can't begin anew.
func (n *node) rememberReady(f nodeFile) error {
	if f.Ready {
		return nil
	}
	f.Ready = true
	if err := n.app.takeStep("ready", func() error { return writeNodeFile(n.app.opts.Host.FS, n.app.cfg.Data, f) }); err != nil {
		return err
	}
	n.setFile(f)
	return nil
}
