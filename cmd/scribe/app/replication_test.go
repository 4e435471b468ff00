package app

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/loopback"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
)

// startShared starts processes of every role that share an etcd which others run.
func startShared(t *testing.T, endpoints []string, n int) []*App {
	t.Helper()
	var addresses, urls []string
	for range n {
		addr, release, err := loopback.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		addresses, urls = append(addresses, addr), append(urls, "http://"+addr)
	}
	dir := t.TempDir()
	apps := make([]*App, n)
	for i := range apps {
		a, err := start(t, Direct, func(c *Config) {
			c.Listen, c.Data, c.Blobs.Path = addresses[i], filepath.Join(dir, fmt.Sprint(i)), filepath.Join(dir, "blobs")
			c.Etcd.URLs, c.Metalog, c.Cell = endpoints, strings.Join(urls, ","), "shared"
		})
		if err != nil {
			t.Fatal(err)
		}
		apps[i] = a
	}
	return apps
}

// TestSharedEtcdWentBack: a process whose copy of the categories is newer than etcd does not serve what etcd has.
func TestSharedEtcdWentBack(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	apps := startShared(t, cluster.Endpoints(), 1)
	created, err := apps[0].parts.control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}})
	if err != nil {
		t.Fatal(err)
	}
	for apps[0].parts.catalog.Revision() < created.GetCategory().GetRevision() { // until its copy has it, and says so
		<-time.After(time.Millisecond)
	}
	c := apps[0].cfg
	stopNow(t, apps[0])
	restored := etcdtest.Start(t, 1)
	c.Etcd.URLs = restored.Endpoints()
	mustRefuse(t, "another etcd", c, "etcd was restored from a backup")
	c.Etcd.URLs = cluster.Endpoints()
	a, err := Start(t.Context(), c, cutAt(""))
	if err != nil {
		t.Fatal(err)
	}
	stopNow(t, a)
}

// TestSharedEtcd: processes with --etcd are one cell: what is created and written at one is read at the other, also when the first, which
// leads, has ended; and all of the cell's keys are below its name.
func TestSharedEtcd(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	apps := startShared(t, cluster.Endpoints(), 2)
	stopped := false
	defer func() {
		if !stopped {
			stopNow(t, apps[0])
		}
		stopNow(t, apps[1])
	}()
	if _, err := apps[0].parts.control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}}); err != nil {
		t.Fatal(err)
	}
	write := func(a *App) {
		t.Helper()
		p, err := producer.New(a.URL())
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Write(t.Context(), "a", producer.Message{Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if err := p.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	write(apps[0])
	if n := countMessages(t, apps[1], "a"); n != 1 {
		t.Errorf("the other process has %d messages, want 1", n)
	}
	stopNow(t, apps[0])
	stopped = true
	write(apps[1])
	if n := countMessages(t, apps[1], "a"); n != 2 {
		t.Errorf("when the first had ended there were %d messages, want 2", n)
	}
	res, err := cluster.Client(t).Get(t.Context(), "\x00", clientv3.WithFromKey(), clientv3.WithKeysOnly())
	if err != nil || res.Count == 0 {
		t.Fatal(res, err)
	}
	for _, e := range res.Kvs {
		if !strings.HasPrefix(string(e.Key), "scribe/shared/") {
			t.Errorf("key %q is not below the cell's name", e.Key)
		}
	}
}
