package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/storage/etcd"
)

// A node uses those that were added, and no more those that were removed; a list that can't be had, or can't be used, changes nothing.
func TestFollowNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := nodePlace{"a", "a:1"}, nodePlace{"b", "b:1"}, nodePlace{"c", "c:1"}
		var world struct {
			sync.Mutex
			listed  []nodePlace
			failed  error
			refuses bool
			used    [][]nodePlace
		}
		change := func(listed []nodePlace, failed error, refuses bool) {
			world.Lock()
			defer world.Unlock()
			world.listed, world.failed, world.refuses = listed, failed, refuses
		}
		list := func(context.Context) ([]nodePlace, error) {
			world.Lock()
			defer world.Unlock()
			return world.listed, world.failed
		}
		use := func(nodes []nodePlace) error {
			world.Lock()
			defer world.Unlock()
			if world.refuses {
				return errors.New("refused")
			}
			world.used = append(world.used, nodes)
			return nil
		}
		step := func(what string, want ...[]nodePlace) {
			t.Helper()
			<-time.After(2 * followInterval)
			synctest.Wait()
			world.Lock()
			defer world.Unlock()
			if !slices.EqualFunc(world.used, want, slices.Equal) {
				t.Errorf("%s: it used %v, want %v", what, world.used, want)
			}
			world.used = nil
		}
		n := &node{app: &App{log: slog.New(slog.DiscardHandler)}, place: a, cluster: []nodePlace{a, b}}
		ctx, cancel := context.WithCancel(t.Context())
		change([]nodePlace{a, b}, nil, false)
		go n.watchNodes(ctx, list, use)
		step("as it began")
		change([]nodePlace{a, b, c}, nil, false)
		step("one more", []nodePlace{a, b, c})
		change([]nodePlace{c}, errors.New("no majority"), false)
		step("no answer")
		change(nil, nil, false)
		step("an empty answer")
		change([]nodePlace{a, c}, nil, true)
		step("refused")
		change([]nodePlace{a, c}, nil, false)
		step("one less", []nodePlace{a, c})
		cancel()
		synctest.Wait()
	})
}

// A node reaches its own etcd first.
func TestEtcdEndpoints(t *testing.T) {
	a, b := nodePlace{"a", "a:10"}, nodePlace{"b", "b:20"}
	n := &node{place: b}
	if got, want := n.etcdEndpoints([]nodePlace{a, b}), []string{"http://b:21", "http://a:11"}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// A node asks an etcd that refuses again after a pause, and gives up when its time is over.
func TestReadOncePauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := etcd.Connect(etcd.Config{Endpoints: []string{"http://127.0.0.1:1"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Close(); err != nil {
			t.Fatal(err)
		}
		n := &node{app: &App{failed: make(chan error, 1)}, place: nodePlace{"a", "a:1"}}
		n.app.parts.etcd = client
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := n.readOnce(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		n.app.failed <- errors.New("planted")
		if err := n.readOnce(t.Context()); err == nil || err.Error() != "planted" {
			t.Error(err)
		}
	})
}
