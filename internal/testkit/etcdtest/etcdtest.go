// Package etcdtest runs etcd clusters inside tests, on ports that nothing else is given.
package etcdtest

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"scribe/internal/testkit/loopback"
	"scribe/storage/etcd"
	"scribe/storage/etcd/member"
)

// VerifyMain runs a package's tests, and looks for goroutines that are left. Connections between members end a while after the members.
func VerifyMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"), goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// Cluster is a running cluster. Its methods are for the test's goroutine.
type Cluster struct {
	tb      testing.TB
	configs []member.Config
	members []*member.Member // nil where it is stopped
}

// Start starts a cluster of n members and waits until each takes requests. It ends with the test.
func Start(tb testing.TB, n int) *Cluster {
	tb.Helper()
	c := &Cluster{tb: tb, members: make([]*member.Member, n)}
	folder := tb.TempDir()
	peers := make([]member.Peer, n)
	for i := range n {
		cfg, own := Reserve(tb, fmt.Sprintf("m%d", i), folder)
		peers[i] = own
		c.configs = append(c.configs, cfg)
	}
	tb.Cleanup(c.close)
	for i := range n {
		c.configs[i].Members = peers
		c.begin(i)
	}
	for i := range n {
		c.await(i)
	}
	return c
}

// Reserve returns the configuration of a member, and the member as others see it. Its addresses are reserved until the test ends, and its
// folder is one of its name within folder. It has no members yet.
func Reserve(tb testing.TB, name, folder string) (member.Config, member.Peer) {
	tb.Helper()
	client, peer := reserve(tb), reserve(tb)
	return member.Config{
		Name: name, Folder: filepath.Join(folder, name), ClientListen: client, PeerListen: peer, ClientURL: "http://" + client, Token: folder,
	}, member.Peer{Name: name, URL: "http://" + peer}
}

func reserve(tb testing.TB) string {
	tb.Helper()
	addr, release, err := loopback.Reserve()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(release)
	return addr
}

// Endpoints are the client URLs of all members.
func (c *Cluster) Endpoints() []string {
	urls := make([]string, len(c.configs))
	for i := range c.configs {
		urls[i] = c.configs[i].ClientURL
	}
	return urls
}

// Client returns a new client of all members, which is closed with the test.
func (c *Cluster) Client(tb testing.TB) *clientv3.Client {
	tb.Helper()
	return c.client(tb, c.Endpoints())
}

// MemberClient returns a client of one member.
func (c *Cluster) MemberClient(tb testing.TB, i int) *clientv3.Client {
	tb.Helper()
	return c.client(tb, c.Endpoints()[i:i+1])
}

func (c *Cluster) client(tb testing.TB, endpoints []string) *clientv3.Client {
	tb.Helper()
	client, err := etcd.Connect(etcd.Config{Endpoints: endpoints})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// Config returns the configuration of a member.
func (c *Cluster) Config(i int) member.Config { return c.configs[i] }

// Member returns a running member.
func (c *Cluster) Member(i int) *member.Member { return c.members[i] }

// Leader returns the number of a member that leads; it waits while there is none, as for a while after one stopped.
func (c *Cluster) Leader() int {
	c.tb.Helper()
	ticks := time.NewTicker(50 * time.Millisecond)
	defer ticks.Stop()
	for {
		for i, m := range c.members {
			if m != nil && m.Leads() {
				return i
			}
		}
		select {
		case <-ticks.C:
		case <-c.tb.Context().Done():
			c.tb.Fatal("etcdtest: no member leads")
		}
	}
}

// Stop stops a member. Repeating it is harmless.
func (c *Cluster) Stop(i int) {
	if c.members[i] != nil {
		c.members[i].Close()
	}
	c.members[i] = nil
}

// Restart starts a stopped member with its data. It does not wait for a majority.
func (c *Cluster) Restart(i int) {
	c.tb.Helper()
	c.begin(i)
}

// Await waits until a member takes requests.
func (c *Cluster) Await(i int) {
	c.tb.Helper()
	c.await(i)
}

func (c *Cluster) begin(i int) {
	c.tb.Helper()
	m, err := member.Start(c.configs[i])
	if err != nil {
		c.tb.Fatal(err)
	}
	c.members[i] = m
}

func (c *Cluster) await(i int) {
	c.tb.Helper()
	if err := c.members[i].AwaitReady(c.tb.Context()); err != nil {
		c.tb.Fatal(err)
	}
}

func (c *Cluster) close() {
	for i := range c.members {
		c.Stop(i)
	}
}
