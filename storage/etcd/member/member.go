package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"go.etcd.io/etcd/server/v3/embed"

	"scribe/storage/etcd"
)

// Member is a running member. Its methods are safe for concurrent use.
type Member struct {
	server *embed.Etcd
	failed chan error
	ended  chan struct{}
	waits  sync.WaitGroup
	close  func()
}

// HasData reports whether a folder is that of a member that was started before.
func HasData(folder string) (bool, error) {
	// etcd makes the folder of its log whole under another name first.
	switch _, err := os.Stat(filepath.Join(folder, "member", "wal")); {
	case err == nil:
		return true, nil
	case os.IsNotExist(err):
		return false, nil
	default:
		return false, fmt.Errorf("etcd member: %w", err)
	}
}

// Start starts a member. It returns when the member runs, which may be before the cluster has a majority: see Ready.
func Start(c Config) (*Member, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := refuseLostData(c); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, err)
	}
	server, err := embed.StartEtcd(c.embedded())
	if err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, explainStart(c, err))
	}
	m := &Member{server: server, failed: make(chan error, 1), ended: make(chan struct{})}
	m.close = sync.OnceFunc(m.stopServer)
	m.waits.Go(func() { m.watchServer(c.Name) })
	return m, nil
}

// embedded is the configuration in etcd's terms. c is valid.
func (c *Config) embedded() *embed.Config {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Folder
	own := c.Members[slices.IndexFunc(c.Members, func(p Peer) bool { return p.Name == c.Name })]
	peer, _ := parseURL(own.URL)
	client, _ := parseURL(c.ClientURL)
	e.ListenPeerUrls = []url.URL{{Scheme: peer.Scheme, Host: c.PeerListen}}
	e.ListenClientUrls = []url.URL{{Scheme: client.Scheme, Host: c.ClientListen}}
	e.AdvertisePeerUrls, e.AdvertiseClientUrls = []url.URL{peer}, []url.URL{client}
	e.InitialCluster, e.InitialClusterToken = c.initialCluster(), c.Token
	e.ClusterState = embed.ClusterStateFlagNew
	if c.Join {
		e.ClusterState = embed.ClusterStateFlagExisting
	}
	e.SnapshotCount, e.SnapshotCatchUpEntries = snapshotEntries, snapshotEntries
	e.QuotaBackendBytes, e.MaxRequestBytes = quotaBytes, maxRequestBytes
	e.TickMs, e.ElectionMs = tickMillis, electionMillis
	e.EnableGRPCGateway, e.CorruptCheckTime = false, checkEvery
	log := etcd.NewZapLogger(cmp.Or(c.Logger, slog.New(slog.DiscardHandler)), slog.LevelWarn)
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log)
	return e
}

// watchServer reports a failure of the server until it is closed.
func (m *Member) watchServer(name string) {
	var err error
	select {
	case err = <-m.server.Err():
	case <-m.server.Server.StopNotify():
		err = errors.New("stopped by itself")
	case <-m.ended:
		return
	}
	select {
	case <-m.ended: // Close stops the server, too
	default:
		m.failed <- fmt.Errorf("etcd member %s: %w", name, err)
	}
}

// Ready is closed when the cluster has a majority and this member takes requests.
func (m *Member) Ready() <-chan struct{} { return m.server.Server.ReadyNotify() }

// Failed yields an error when the member ended by itself. The process should then end: etcd does not go on after a failed write.
func (m *Member) Failed() <-chan error { return m.failed }

// ID is the member's number in the cluster.
func (m *Member) ID() uint64 { return uint64(m.server.Server.MemberID()) }

// Leads reports whether the member leads the cluster as far as it knows.
func (m *Member) Leads() bool { return m.server.Server.Leader() == m.server.Server.MemberID() }

// AwaitReady waits for Ready, for a failure, or for the context's end.
func (m *Member) AwaitReady(ctx context.Context) error {
	select {
	case <-m.Ready():
		return nil
	case err := <-m.failed:
		m.failed <- err // there is room: it was just taken, and there is one at most
		return err
	case <-ctx.Done():
		return fmt.Errorf("etcd member: no majority of the members: %w", context.Cause(ctx))
	}
}

// Close stops the member, which hands over its leadership if it has it, and waits until its files are closed. Repeating it is harmless.
func (m *Member) Close() { m.close() }

func (m *Member) stopServer() {
	close(m.ended)
	m.server.Close()
	m.waits.Wait()
}
