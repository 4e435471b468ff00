package etcd_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/loopback"
	"scribe/storage/etcd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestValidate(t *testing.T) {
	good := etcd.Config{Endpoints: []string{"http://a:1", "https://b:2"}, User: "u", Password: "p"}
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]etcd.Config{
		"no endpoint":                            {},
		`invalid endpoint "a:1"`:                 {Endpoints: []string{"a:1"}},
		`invalid endpoint "ftp://a:1"`:           {Endpoints: []string{"ftp://a:1"}},
		`invalid endpoint "http://"`:             {Endpoints: []string{"http://"}},
		`endpoint "http://a:1" is given twice`:   {Endpoints: []string{"http://a:1", "http://b:1", "http://a:1"}},
		"a user and a password go together":      {Endpoints: []string{"http://a:1"}, Password: "p"},
		"no endpoint: want http://HOST:PORT of ": {Password: "and every violation"},
	} {
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", c, err, want)
		}
		if client, err := etcd.Connect(c); err == nil {
			_ = client.Close()
			t.Errorf("%+v: connected", c)
		}
	}
	if err := (&etcd.Config{Password: "p"}).Validate(); !strings.Contains(err.Error(), "no endpoint") || !strings.Contains(err.Error(), "go together") {
		t.Errorf("%v, want both violations", err)
	}
}

// TestConnectAway: members that are away are no error of Connect, and a call ends with its context.
func TestConnectAway(t *testing.T) {
	addr, release, err := loopback.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	client, err := etcd.Connect(etcd.Config{Endpoints: []string{"http://" + addr}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := client.Get(ctx, "a"); err == nil || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("a call without members: %v", err)
	}
}

// TestLogin: where the cluster has authentication, a wrong password is an error of Connect.
func TestLogin(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	admin := c.Client(t)
	ctx := t.Context()
	_, err := admin.UserAdd(ctx, "root", "secret")
	if err == nil {
		_, err = admin.UserGrantRole(ctx, "root", "root")
	}
	if err == nil {
		_, err = admin.AuthEnable(ctx)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, login := range []etcd.Config{{User: "root", Password: "guessed"}, {User: "nobody", Password: "secret"}} {
		login.Endpoints = c.Endpoints()
		client, err := etcd.Connect(login)
		if err == nil {
			_ = client.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.Endpoints()[0]) || !strings.Contains(err.Error(), "authentication failed") {
			t.Errorf("as %s with %s: %v", login.User, login.Password, err)
		}
	}
	client, err := etcd.Connect(etcd.Config{Endpoints: c.Endpoints(), User: "root", Password: "secret"})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(ctx, "a", "1"); err != nil {
		t.Error(err)
	}
	if _, err := admin.Put(ctx, "a", "2"); err == nil {
		t.Error("a client without a login writes")
	}
}

// TestLargeMessages: requests and answers of the sizes that package kv and journals use get through.
func TestLargeMessages(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	value := strings.Repeat("v", 2<<20-4<<10)
	for _, key := range []string{"a/1", "a/2", "a/3", "a/4"} {
		if _, err := client.Put(t.Context(), key, value); err != nil {
			t.Fatalf("put %d bytes: %v", len(value), err)
		}
	}
	res, err := client.Get(t.Context(), "a/", clientv3.WithPrefix())
	if err != nil || len(res.Kvs) != 4 || len(res.Kvs[3].Value) != len(value) {
		t.Fatalf("get 8 MiB: %v", err)
	}
}
