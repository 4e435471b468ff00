package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"scribe/storage/etcd"
)

// A node uses those that were added, and no more those that were removed; a list that can't be had, or can't be used, changes nothing.
func TestFollowNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, c := nodePlace{"a", "a:1"}, nodePlace{"b", "b:1"}, nodePlace{"c", "c:1"}
		listed, failed := []nodePlace{a, b}, error(nil)
		refuses := false
		var used [][]nodePlace
		n := &node{app: &App{log: slog.New(slog.DiscardHandler)}, place: a, cluster: []nodePlace{a, b}}
		ctx, cancel := context.WithCancel(t.Context())
		go n.watchNodes(ctx, func(context.Context) ([]nodePlace, error) { return listed, failed }, func(nodes []nodePlace) error {
			if refuses {
				return errors.New("refused")
			}
			used = append(used, nodes)
			return nil
		})
		step := func(what string, want ...[]nodePlace) {
			t.Helper()
			<-time.After(2 * followInterval)
			synctest.Wait()
			if !slices.EqualFunc(used, want, slices.Equal) {
				t.Errorf("%s: it used %v, want %v", what, used, want)
			}
			used = nil
		}
		step("as it began")
		listed = []nodePlace{a, b, c}
		step("one more", listed)
		listed, failed = []nodePlace{c}, errors.New("no majority")
		step("no answer")
		listed, failed = nil, nil
		step("an empty answer")
		listed, refuses = []nodePlace{a, c}, true
		step("refused")
		refuses = false
		step("one less", listed)
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
