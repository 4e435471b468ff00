package journal_test

import (
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
)

// etcdCluster is a cluster of members in this process.
type etcdCluster struct {
	configs []*embed.Config
	members []*embed.Etcd
	client  *clientv3.Client
}

func freeURL(tb testing.TB) url.URL {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	return url.URL{Scheme: "http", Host: l.Addr().String()}
}

// startEtcd starts a cluster that ends with the test.
func startEtcd(tb testing.TB, count int) *etcdCluster {
	tb.Helper()
	c := &etcdCluster{members: make([]*embed.Etcd, count)}
	var initial, endpoints []string
	for i := range count {
		cfg := embed.NewConfig()
		cfg.Name, cfg.Dir = fmt.Sprintf("m%d", i), tb.TempDir()
		client, peer := freeURL(tb), freeURL(tb)
		cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		cfg.TickMs, cfg.ElectionMs = 100, 1000
		cfg.MaxRequestBytes = 2 << 20
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
		initial = append(initial, cfg.Name+"="+peer.String())
		endpoints = append(endpoints, client.Host)
		c.configs = append(c.configs, cfg)
	}
	for i, cfg := range c.configs {
		cfg.InitialCluster = strings.Join(initial, ",")
		c.startMember(tb, i)
	}
	for _, m := range c.members {
		<-m.Server.ReadyNotify()
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: endpoints, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		DialKeepAliveTime: time.Second, DialKeepAliveTimeout: time.Second,
	})
	if err != nil {
		tb.Fatal(err)
	}
	c.client = client
	tb.Cleanup(func() {
		_ = client.Close()
		for _, m := range c.members {
			if m != nil {
				m.Close()
			}
		}
	})
	return c
}

func (c *etcdCluster) startMember(tb testing.TB, i int) {
	tb.Helper()
	m, err := embed.StartEtcd(c.configs[i])
	if err != nil {
		tb.Fatal(err)
	}
	c.members[i] = m
}

// leader returns the index of the member that leads; -1 if none does.
func (c *etcdCluster) leader() int {
	for i, m := range c.members {
		if m != nil && m.Server.Leader() == m.Server.MemberID() {
			return i
		}
	}
	return -1
}

var etcdPrefixes atomic.Int64

// openEtcd returns an empty journal in a cluster.
func openEtcd(t *testing.T, c *etcdCluster) journalStore {
	t.Helper()
	prefix := fmt.Sprintf("scribe/test/m/%d/", etcdPrefixes.Add(1))
	var handles []*etcdjournal.Journal
	return journalStore{
		Open: func() journal.Journal {
			j, err := etcdjournal.Open(etcdjournal.Config{Client: c.client, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, j)
			return j
		},
		Drop: func(seq uint64) error {
			_, err := c.client.Delete(t.Context(), fmt.Sprintf("%se/%016x", prefix, seq))
			return err
		},
		SetFull: func(full bool) {
			for _, j := range handles {
				j.SetInUse(full)
			}
		},
		GoBack: func() error {
			_, err := c.client.Delete(t.Context(), prefix+"head")
			return err
		},
		Rounds: 4,
	}
}

func TestEtcdjournal(t *testing.T) {
	c := startEtcd(t, 1)
	runSuite(t, func(t *testing.T) journalStore { return openEtcd(t, c) })
}
