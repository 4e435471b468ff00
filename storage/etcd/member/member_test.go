package member_test

import (
	"context"
	"errors"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/backoff"
	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/loopback"
	"scribe/storage/etcd/member"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

// patience bounds what takes a second or two, on a machine that is 20 times slower.
const patience = 2 * time.Minute

func mustPut(t *testing.T, client *clientv3.Client, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := client.Put(ctx, "a", value) // the same value again is harmless
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("put: %v", err)
		}
	}
}

func wantValue(t *testing.T, client *clientv3.Client, want string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		res, err := client.Get(ctx, "a")
		switch {
		case err != nil && ctx.Err() == nil:
			continue
		case err != nil:
			t.Fatalf("get: %v", err)
		case len(res.Kvs) != 1 || string(res.Kvs[0].Value) != want:
			t.Fatalf("a is %v, want %q", res.Kvs, want)
		}
		return
	}
}

// freeAddr returns an address that nobody listens on.
func freeAddr(t *testing.T) string {
	t.Helper()
	addr, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return addr
}

// configOf is the configuration of a cluster of one, which was not started.
func configOf(t *testing.T) member.Config {
	t.Helper()
	client, peer := freeAddr(t), freeAddr(t)
	return member.Config{
		Name: "one", Folder: t.TempDir(), ClientListen: client, PeerListen: peer, ClientURL: "http://" + client, Token: t.Name(),
		Members: []member.Peer{{Name: "one", URL: "http://" + peer}},
	}
}

// awaitFailure returns with which error a member ended.
func awaitFailure(t *testing.T, m *member.Member) error {
	t.Helper()
	select {
	case err := <-m.Failed():
		return err
	case <-time.After(patience):
		t.Fatal("the member did not end")
		return nil
	}
}

func TestValidate(t *testing.T) {
	good := configOf(t)
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*member.Config){
		"no folder":                       func(c *member.Config) { c.Folder = "" },
		`"two" is not among`:              func(c *member.Config) { c.Name = "two" },
		`invalid address "here"`:          func(c *member.Config) { c.ClientListen = "here" },
		`invalid address ""`:              func(c *member.Config) { c.PeerListen = "" },
		`member "one": invalid URL "one"`: func(c *member.Config) { c.Members = []member.Peer{{Name: "one", URL: "one"}} },
		`invalid URL "http://one"`:        func(c *member.Config) { c.ClientURL = "http://one" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
		if m, err := member.Start(c); err == nil {
			m.Close()
			t.Errorf("started in spite of %q", want)
		}
	}
	if err := (&member.Config{}).Validate(); strings.Count(err.Error(), "\n") < 4 {
		t.Errorf("%v, want every violation", err)
	}
}

// TestRestart: what was acknowledged is there after the only member has stopped and started.
func TestRestart(t *testing.T) {
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	mustPut(t, client, "1")
	m := c.Member(0)
	c.Stop(0)
	m.Close()
	if has, err := member.HasData(c.Config(0).Folder); err != nil || !has {
		t.Errorf("HasData = %v, %v after it ran", has, err)
	}
	c.Restart(0)
	c.Await(0)
	wantValue(t, client, "1")
	select {
	case err := <-m.Failed():
		t.Errorf("a member that was closed tells of a failure: %v", err)
	default:
	}
}

// TestCloseWithWatches: clients that watch do not keep a member from closing. etcd would wait seven seconds for calls that go on.
func TestCloseWithWatches(t *testing.T) {
	c := etcdtest.Start(t, 1)
	changes := c.Client(t).Watch(t.Context(), "a", clientv3.WithCreatedNotify())
	if res := <-changes; !res.Created {
		t.Fatalf("%+v", res)
	}
	closed := make(chan struct{})
	m := c.Member(0)
	go func() { defer close(closed); m.Close() }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatal("a member with a watch does not close")
	}
	c.Stop(0) // again
}

// TestOneStops: of three members one may stop, also the one that leads; it finds what it missed when it is back.
func TestOneStops(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	c := etcdtest.Start(t, 3)
	client := c.Client(t)
	mustPut(t, client, "1")
	for _, i := range []int{c.Leader(), (c.Leader() + 1) % 3} {
		c.Stop(i)
		mustPut(t, client, c.Config(i).Name)
		c.Restart(i)
		c.Await(i)
		wantValue(t, c.MemberClient(t, i), c.Config(i).Name)
	}
}

// TestNoMajority: one member of three runs, and is not ready.
func TestNoMajority(t *testing.T) {
	c := etcdtest.Start(t, 3)
	for i := range 3 {
		c.Stop(i)
	}
	c.Restart(0)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := c.Member(0).AwaitReady(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "no majority") {
		t.Errorf("AwaitReady without a majority: %v", err)
	}
	c.Restart(1)
	c.Await(0)
	c.Await(1)
}

func TestAddressInUse(t *testing.T) {
	c := configOf(t)
	for _, addr := range []string{c.ClientListen, c.PeerListen} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		m, err := member.Start(c)
		if err == nil {
			m.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "another process listens on") || !strings.Contains(err.Error(), addr) {
			t.Errorf("with a listener on %s: %v", addr, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	m, err := member.Start(c)
	if err != nil {
		t.Fatalf("with free addresses: %v", err)
	}
	defer m.Close()
	if err := m.AwaitReady(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDataLost: a member whose folder is empty is refused, whether it is started as at first or to join: it has forgotten its votes. The
// others go on.
func TestDataLost(t *testing.T) {
	c := etcdtest.Start(t, 3)
	client := c.Client(t)
	mustPut(t, client, "1")
	lost := c.Config(2)
	c.Stop(2)
	if err := os.RemoveAll(lost.Folder); err != nil {
		t.Fatal(err)
	}
	for _, join := range []bool{false, true} {
		lost.Join = join
		m, err := member.Start(lost)
		if err == nil {
			m.Close()
		}
		if !errors.Is(err, member.ErrDataLost) || !strings.Contains(err.Error(), lost.Folder) || !strings.Contains(err.Error(), "m2") {
			t.Errorf("join %v: %v, want ErrDataLost", join, err)
		}
	}
	mustPut(t, client, "2")
}

// TestReplace does what ErrDataLost asks for: the member is removed, whereupon it ends by itself, is added, and joins with an empty folder.
func TestReplace(t *testing.T) {
	if testing.Short() {
		t.Skip("etcd changes its members only when they have been connected for seconds")
	}
	c := etcdtest.Start(t, 3)
	client := c.Client(t)
	mustPut(t, client, "1")
	lost, id := c.Config(2), c.Member(2).ID()
	removed := c.Member(2)
	changeMembers(t, func(ctx context.Context) error { _, err := client.MemberRemove(ctx, id); return err })
	if err := awaitFailure(t, removed); !strings.Contains(err.Error(), "etcd member m2") {
		t.Errorf("a member that was removed ended with %v", err)
	}
	c.Stop(2)
	if err := os.RemoveAll(lost.Folder); err != nil {
		t.Fatal(err)
	}
	lost.Join = true
	if m, err := member.Start(lost); err == nil || !strings.Contains(err.Error(), "members are not those given") {
		if err == nil {
			m.Close()
		}
		t.Errorf("before it was added: %v", err)
	}
	changeMembers(t, func(ctx context.Context) error {
		_, err := client.MemberAdd(ctx, []string{lost.Members[2].URL})
		return err
	})
	m, err := member.Start(lost)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { m.Close() }()
	if err := m.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	if m.ID() == id {
		t.Error("it has its old number")
	}
	wantValue(t, c.MemberClient(t, 2), "1")
	m.Close()
	if m, err = member.Start(lost); err != nil { // with its data, Join tells nothing new
		t.Fatal(err)
	}
	if err := m.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// changeMembers adds or removes a member. etcd refuses that until all members have been connected for five seconds.
func changeMembers(t *testing.T, change func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		err := change(ctx)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "unhealthy cluster") || backoff.Sleep(ctx, 50*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
}

// TestJoinGrows: a cluster of one becomes one of two.
func TestJoinGrows(t *testing.T) {
	if testing.Short() {
		t.Skip("etcd changes its members only when they have been connected for seconds")
	}
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	mustPut(t, client, "1")
	second := configOf(t)
	second.Name, second.Join, second.Token = "second", true, c.Config(0).Token
	second.Members = append(slices.Clone(c.Config(0).Members), member.Peer{Name: "second", URL: second.Members[0].URL})
	changeMembers(t, func(ctx context.Context) error {
		_, err := client.MemberAdd(ctx, []string{second.Members[1].URL})
		return err
	})
	m, err := member.Start(second)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.AwaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantValue(t, client, "1")
	m.Close()
}

// TestJoinNobody: a member that joins finds no other.
func TestJoinNobody(t *testing.T) {
	c := configOf(t)
	c.Join = true
	c.Members = append(c.Members, member.Peer{Name: "other", URL: "http://" + freeAddr(t)})
	m, err := member.Start(c)
	if err == nil {
		m.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "no member of the cluster to join answers at "+c.Members[1].URL) {
		t.Errorf("%v", err)
	}
}
