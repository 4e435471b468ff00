package member_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/etcd/member"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

func wantValue(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	res, err := client.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Kvs) != 1 || string(res.Kvs[0].Value) != value {
		t.Fatalf("%q is %v, want %q", key, res.Kvs, value)
	}
}

func mustPut(t *testing.T, client *clientv3.Client, key, value string) {
	t.Helper()
	if _, err := client.Put(t.Context(), key, value); err != nil {
		t.Fatal(err)
	}
}

// TestRestart stops one member alone with its data, and starts it again.
func TestRestart(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	if has, err := member.HasData(c.Config(0).Folder); err != nil || !has {
		t.Fatalf("HasData = %v, %v after a start", has, err)
	}
	mustPut(t, client, "a", "1")
	id := c.Member(0).ID()
	c.Stop(0)
	c.Restart(0)
	c.Await(0)
	wantValue(t, client, "a", "1")
	if c.Member(0).ID() != id {
		t.Fatalf("member %x is %x after a restart", id, c.Member(0).ID())
	}
}

// TestHandOver lets another member lead before this one stops; where there is no other it does nothing.
func TestHandOver(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	former := c.Leader()
	if err := c.Member(former).HandOver(t.Context()); err != nil {
		t.Fatal(err)
	}
	if next := c.Leader(); next == former || c.Member(former).Leads() {
		t.Errorf("member %d leads after %d has handed over", next, former)
	}
	if err := c.Member(former).HandOver(t.Context()); err != nil {
		t.Errorf("one that does not lead: %v", err)
	}
	mustPut(t, c.Client(t), "a", "1")
	if err := etcdtest.Start(t, 1).Member(0).HandOver(t.Context()); err != nil {
		t.Errorf("the only one: %v", err)
	}
}

// TestReplaceMember stops the leader of three, removes its folder, and then replaces the member.
func TestReplaceMember(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	client := c.Client(t)
	mustPut(t, client, "a", "1")
	lost := c.Leader()
	cfg, id := c.Config(lost), c.Member(lost).ID()
	c.Stop(lost)
	if err := os.RemoveAll(cfg.Folder); err != nil {
		t.Fatal(err)
	}
	mustPut(t, client, "a", "2")

	for _, join := range []bool{false, true} {
		cfg.Join = join
		if m, err := member.Start(cfg); !errors.Is(err, member.ErrDataLost) || !strings.Contains(err.Error(), cfg.Folder) {
			t.Fatalf("a member whose folder was lost starts with Join %v: %v, %v", join, m, err)
		}
	}
	untilHealthy(t, func() error {
		_, err := client.MemberRemove(t.Context(), id)
		return err
	})
	fresh, own := etcdtest.Reserve(t, "fresh", t.TempDir())
	fresh.Join = true
	fresh.Members = append(slices.DeleteFunc(slices.Clone(cfg.Members), func(p member.Peer) bool { return p.Name == cfg.Name }), own)
	if m, err := member.Start(fresh); !errors.Is(err, member.ErrNotMember) {
		t.Fatalf("a member that was not added joins: %v, %v", m, err)
	}
	untilHealthy(t, func() error {
		_, err := client.MemberAdd(t.Context(), []string{own.URL})
		return err
	})
	m, err := member.Start(fresh)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	<-m.Ready()
	mustPut(t, client, "b", "3")
	behind := connectTo(t, fresh)
	wantValue(t, behind, "a", "2")
	wantValue(t, behind, "b", "3")
}

// TestJoinAsked: a member with an empty folder joins if the others say that it never ran, which its client addresses tell, not its name: those
// that a cluster begins with have names before they run.
func TestJoinAsked(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		clients string
		want    error
	}{
		{`["http://127.0.0.1:1"]`, member.ErrDataLost},
		{`[]`, member.ErrNotMember}, // what answers here is no etcd to join
	} {
		fresh, own := etcdtest.Reserve(t, "fresh", t.TempDir())
		others := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = fmt.Fprintf(w, `[{"id":1,"name":"fresh","peerURLs":[%q],"clientURLs":%s}]`, own.URL, c.clients)
		}))
		fresh.Join, fresh.Members = true, []member.Peer{own, {Name: "other", URL: others.URL}}
		if m, err := member.Start(fresh); !errors.Is(err, c.want) {
			t.Errorf("with client addresses %s: %v, %v", c.clients, m, err)
		}
		others.Close()
	}
}

// TestRemoveMember removes a member that runs: it ends by itself.
func TestRemoveMember(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 3)
	leader := c.Leader()
	client, removed := c.MemberClient(t, leader), (leader+1)%3
	untilHealthy(t, func() error {
		_, err := client.MemberRemove(t.Context(), c.Member(removed).ID())
		return err
	})
	if err := <-c.Member(removed).Failed(); err == nil || !strings.Contains(err.Error(), c.Config(removed).Name) {
		t.Fatalf("a removed member ends with %v", err)
	}
	mustPut(t, client, "a", "1")
}

// untilHealthy repeats a change of the membership. etcd refuses it for some seconds after another one, until all members are connected.
func untilHealthy(t *testing.T, change func() error) {
	t.Helper()
	ticks := time.NewTicker(200 * time.Millisecond)
	defer ticks.Stop()
	for {
		err := change()
		if err == nil {
			return
		}
		if !errors.Is(err, rpctypes.ErrUnhealthy) {
			t.Fatal(err)
		}
		select {
		case <-ticks.C:
		case <-t.Context().Done():
			t.Fatal(err)
		}
	}
}

func connectTo(t *testing.T, cfg member.Config) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{cfg.ClientURL}, DialTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestCloseWithoutMajority closes the one of two members that runs alone: etcd's own Close would wait for the other.
func TestCloseWithoutMajority(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	one, own := etcdtest.Reserve(t, "one", folder)
	_, other := etcdtest.Reserve(t, "other", folder)
	one.Members = []member.Peer{own, other}
	m, err := member.Start(one)
	if err != nil {
		t.Fatal(err)
	}
	if m.Leads() {
		t.Error("a member alone of two leads")
	}
	m.Close()
	m.Close()
	select {
	case <-m.Ready():
		t.Error("a member alone of two was ready")
	case err := <-m.Failed():
		t.Errorf("closing is a failure: %v", err)
	default:
	}
	again, err := member.Start(one)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	again.Close()
}

// TestCloseWithWatch closes a member while a client watches, which ends neither the watch nor, for long, the closing.
func TestCloseWithWatch(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := client.Watch(ctx, "a")
	mustPut(t, client, "a", "1")
	<-changes
	c.Stop(0)
	cancel()
	for range changes { // it ends with the client's side
	}
}

// TestAddressInUse starts a member where something else listens.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	cfg, own := etcdtest.Reserve(t, "one", t.TempDir())
	cfg.Members = []member.Peer{own}
	for _, address := range []string{cfg.ClientListen, cfg.PeerListen} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := member.Start(cfg); !errors.Is(err, member.ErrAddressInUse) || !strings.Contains(err.Error(), address) {
			t.Errorf("%v, %v where something listens at %s", m, err, address)
		}
		l.Close()
	}
	m, err := member.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m.Close()
}

func TestValidate(t *testing.T) {
	err := (&member.Config{
		Name: "x", ClientListen: "1", PeerListen: "h:0", ClientURL: "u",
		Members: []member.Peer{{Name: "a", URL: "h:2"}, {Name: "a", URL: "http://h:2"}},
	}).Validate()
	for _, want := range []string{"no folder", `address "1"`, `URL "h:2"`, `URL "u"`, "twice", `"x" is not among`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	}
}

// TestLogs: what etcd has to say goes to the program's logger, and nothing of an orderly start and stop is a warning.
func TestLogs(t *testing.T) {
	t.Parallel()
	var lines struct {
		sync.Mutex
		strings.Builder
	}
	cfg, own := etcdtest.Reserve(t, "one", t.TempDir())
	cfg.Members = []member.Peer{own}
	cfg.Logger = slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		lines.Lock()
		defer lines.Unlock()
		return lines.Write(p)
	}), &slog.HandlerOptions{Level: slog.LevelDebug}))
	m, err := member.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	<-m.Ready()
	m.Close()
	lines.Lock()
	defer lines.Unlock()
	text := lines.String()
	if !strings.Contains(text, filepath.Base(cfg.Folder)) || !strings.Contains(text, "level=DEBUG msg=\"etcd: ") {
		t.Errorf("the log does not tell of the start:\n%s", text)
	}
	if strings.Contains(text, "level=WARN") || strings.Contains(text, "level=ERROR") {
		t.Errorf("an orderly start and stop warn:\n%s", text)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
