package member

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"

	"scribe/storage/etcd"
)

// Errors of Start that callers branch on. Those who start nodes tell operators what to do about them.
var (
	// ErrAddressInUse means that another process listens at an address of the member.
	ErrAddressInUse = errors.New("the address is in use")
	// ErrDataLost means that the cluster knows this member as started, and its folder is empty: it must be removed and added again.
	ErrDataLost = errors.New("the cluster knows this member, but its folder has no data")
	// ErrNotMember means that the cluster to join does not have the members that were given, or not this one.
	ErrNotMember = errors.New("the cluster has other members than those given")
)

// Bounds of the steps of Close.
const (
	handOverTimeout = 2 * time.Second
	drainTimeout    = time.Second
)

// Member is a running member. Its methods are safe for concurrent use.
type Member struct {
	name     string
	server   *embed.Etcd
	failed   chan error
	closed   chan struct{}
	watching sync.WaitGroup
	// handOvers are attempts to let another member lead.
	handOvers sync.WaitGroup
	shutdown  func()

	mu struct {
		sync.Mutex
		// services are what clients are served by.
		services []*grpc.Server
	}
}

// HasData reports whether a folder is that of a member that was started before.
func HasData(folder string) (bool, error) {
	switch _, err := os.Stat(filepath.Join(folder, "member", "wal")); {
	case err == nil:
		return true, nil
	case errors.Is(err, os.ErrNotExist):
		return false, nil
	default:
		return false, fmt.Errorf("etcd member: %w", err)
	}
}

// Start starts a member. It returns when the member runs, which may be long before its cluster has a majority: see Ready. Errors:
// ErrAddressInUse, ErrDataLost, ErrNotMember, and others of etcd.
func Start(c Config) (*Member, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if err := c.refuseForgotten(); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, err)
	}
	m := &Member{name: c.Name, failed: make(chan error, 1), closed: make(chan struct{})}
	cfg, err := c.embedded(etcd.NewZapLogger(c.Logger, m.levelOf))
	if err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, err)
	}
	cfg.ServiceRegister = m.addService
	if m.server, err = embed.StartEtcd(cfg); err != nil {
		return nil, fmt.Errorf("etcd member %s: %w", c.Name, explainStart(&c, err))
	}
	m.shutdown = sync.OnceFunc(m.stopServer)
	m.watching.Go(m.watchServer)
	return m, nil
}

// levelOf is one level below etcd's, for which an election is an error and a slow disk a warning. Only what ends the process stays an
// error. That addresses are closed is an error for etcd also when it closes them itself.
func (m *Member) levelOf(l zapcore.Level) slog.Level {
	switch {
	case l > zapcore.ErrorLevel:
		return slog.LevelError
	case l <= zapcore.InfoLevel || m.isClosed():
		return slog.LevelDebug
	case l == zapcore.WarnLevel:
		return slog.LevelInfo
	}
	return slog.LevelWarn
}

func (m *Member) isClosed() bool {
	select {
	case <-m.closed:
		return true
	default:
		return false
	}
}

func (m *Member) addService(s *grpc.Server) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.services = append(m.mu.services, s)
}

// explainStart adds what an error of etcd means. etcd has only texts.
func explainStart(c *Config, err error) error {
	switch text := err.Error(); {
	case strings.Contains(text, "address already in use"):
		return fmt.Errorf("%w: another process listens at %s or %s: %w", ErrAddressInUse, c.ClientListen, c.PeerListen, err)
	case strings.Contains(text, "has already been bootstrapped"):
		return fmt.Errorf("%w: folder %s: bring the data back, or remove the member from the cluster and add it again: %w", ErrDataLost, c.Folder, err)
	case strings.Contains(text, "member count is unequal"), strings.Contains(text, "no match found for existing member"),
		strings.Contains(text, "couldn't find local name"), strings.Contains(text, "cannot fetch cluster info"):
		return fmt.Errorf("%w: given were %s: %w", ErrNotMember, c.initialCluster(), err)
	}
	return err
}

// watchServer reports the end of the server, unless it is closed.
func (m *Member) watchServer() {
	var err error
	select {
	case err = <-m.server.Err():
	case <-m.server.Server.StopNotify():
		err = errors.New("it stopped: it was removed from the cluster, or its data is damaged")
	case <-m.closed:
		return
	}
	m.failed <- fmt.Errorf("etcd member %s: %w", m.name, err)
}

// ID returns the number of the member in the cluster.
func (m *Member) ID() uint64 { return uint64(m.server.Server.MemberID()) }

// Leads reports whether this member takes itself for the leader of the cluster.
func (m *Member) Leads() bool { return m.server.Server.Leader() == m.server.Server.MemberID() }

// Ready is closed when the member serves: its cluster has a majority.
func (m *Member) Ready() <-chan struct{} { return m.server.Server.ReadyNotify() }

// Failed yields one error when the member has ended by itself. The process should end then.
func (m *Member) Failed() <-chan error { return m.failed }

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

// HandOver lets another member lead the cluster, if this one does and there is another: clients do not wait for an election then. It returns
// when another one leads, or ctx ends. Nobody may call it once Close was called.
func (m *Member) HandOver(ctx context.Context) error {
	if !m.Leads() {
		return nil
	}
	server, done := m.server.Server, make(chan error, 1)
	changed := server.LeaderChangedNotify() // etcd looks only every tick
	m.handOvers.Go(func() { done <- server.TryTransferLeadershipOnShutdown() })
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("etcd member %s: hand over: %w", m.name, err)
		}
		return nil
	case <-changed:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("etcd member %s: no other member took over: %w", m.name, context.Cause(ctx))
	}
}

// Close hands over what the member leads, ends requests and watches of clients, and stops the member, with or without a majority, within
// seconds. It returns when its files and addresses are free. Repeating it is harmless.
func (m *Member) Close() { m.shutdown() }

// stopServer stops what etcd's own Close would wait for: without a majority it waits for one, and with a watch for seven seconds.
func (m *Member) stopServer() {
	close(m.closed)
	m.watching.Wait()
	waitBounded(&m.handOvers, handOverTimeout, func() { _ = m.server.Server.TryTransferLeadershipOnShutdown() })
	m.stopServices()
	m.server.Server.HardStop()
	m.server.Close()
	m.handOvers.Wait() // they end with the server
}

// stopServices lets running requests end for a moment.
func (m *Member) stopServices() {
	m.mu.Lock()
	services := m.mu.services
	m.mu.Unlock()
	for _, s := range services {
		var drain sync.WaitGroup
		waitBounded(&drain, drainTimeout, s.GracefulStop)
		s.Stop()
		drain.Wait()
	}
}

// waitBounded runs f within a group, and waits for it until a timeout.
func waitBounded(group *sync.WaitGroup, timeout time.Duration, f func()) {
	done := make(chan struct{})
	group.Go(func() {
		defer close(done)
		f()
	})
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
