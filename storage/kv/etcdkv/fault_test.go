package etcdkv_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"scribe/internal/base/backoff"
	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
)

// startWatch watches everything under a prefix, and sends the values in the order in which they are told. ended gets why it ended.
func startWatch(t *testing.T, s kv.Store, prefix string, after uint64) (values <-chan string, ended <-chan error) {
	t.Helper()
	told, end := make(chan string, 1000), make(chan error, 1)
	go func() {
		end <- s.Watch(t.Context(), prefix, after, func(b kv.EventBatch) error {
			for _, e := range b.Events {
				told <- string(e.Value)
			}
			return nil
		})
	}()
	return told, end
}

// repeatPut puts until that is acknowledged: while members stop, outcomes may be unknown.
func repeatPut(t *testing.T, s kv.Store, key, value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		_, err := s.Commit(ctx, kv.Put(key, []byte(value)))
		if err == nil {
			return
		}
		if backoff.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatal(err)
		}
	}
}

// wantNext waits for the next value of a watch that is not that before, which may have been put repeatedly.
func wantNext(t *testing.T, values <-chan string, ended <-chan error, before, want string) {
	t.Helper()
	for {
		select {
		case v := <-values:
			if v == before {
				continue
			}
			if v != want {
				t.Fatalf("the watch tells %q, want %q", v, want)
			}
			return
		case err := <-ended:
			t.Fatalf("the watch ended before %q: %v", want, err)
		case <-time.After(patience):
			t.Fatalf("the watch does not tell %q", want)
		}
	}
}

// TestQuorumAway: with one member of three, calls end with an error within their time limit, whose outcome is unknown; watches wait, and
// go on when there is a majority again.
func TestQuorumAway(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	t.Parallel()
	c := etcdtest.Start(t, 3)
	s := openStore(t, etcdkv.Config{Client: c.Client(t), RequestTimeout: 200 * time.Millisecond})
	patient := openStore(t, etcdkv.Config{Client: c.Client(t), RequestTimeout: patience})
	revision := mustPut(t, patient, "a", "before")
	values, ended := startWatch(t, s, "a", revision-1)
	wantNext(t, values, ended, "", "before")
	c.Stop(0)
	c.Stop(1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for what, call := range map[string]func() error{
		"Commit": func() error { _, err := s.Commit(ctx, kv.Put("b", []byte("x")).If(0)); return err },
		"Get":    func() error { _, err := s.Get(ctx, "a"); return err },
		"Range":  func() error { _, err := s.Range(ctx, kv.KeyRange{}); return err },
	} {
		err := call()
		if err == nil || ctx.Err() != nil {
			t.Errorf("%s without a majority: %v", what, err)
		}
		for _, definite := range []error{kv.ErrNotFound, kv.ErrConflict, kv.ErrCompacted, kv.ErrInvalid, kv.ErrCorrupt, kv.ErrClosed, etcdkv.ErrWentBack} {
			if errors.Is(err, definite) {
				t.Errorf("%s without a majority: %v", what, err)
			}
		}
	}
	c.Restart(0)
	c.Restart(1)
	c.Await(0)
	repeatPut(t, patient, "a", "after")
	wantNext(t, values, ended, "before", "after")
}

// progressStream tells of messages that say how far a watch is.
type progressStream struct {
	grpc.ClientStream

	told chan<- int64
}

// RecvMsg implements grpc.ClientStream.
func (s progressStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if res, ok := m.(*etcdserverpb.WatchResponse); ok && err == nil && !res.Created && !res.Canceled && len(res.Events) == 0 {
		select {
		case s.told <- res.Header.Revision:
		default: // what nobody waits for
		}
	}
	return err
}

// progressClient is a client that sends to told how far its watches are.
func progressClient(t *testing.T, c *etcdtest.Cluster, told chan<- int64) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{
		Endpoints: c.Endpoints(), Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(
			func(ctx context.Context, d *grpc.StreamDesc, conn *grpc.ClientConn, method string, open grpc.Streamer, o ...grpc.CallOption) (grpc.ClientStream, error) {
				s, err := open(ctx, d, conn, method, o...)
				return progressStream{s, told}, err
			})},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// TestQuietWatch: a watch whose keys don't change survives that etcd compacts everything since its last change, and that its member stops.
func TestQuietWatch(t *testing.T) {
	if testing.Short() {
		t.Skip("elections take seconds")
	}
	t.Parallel()
	c := etcdtest.Start(t, 3)
	progress := make(chan int64)
	quiet := openStore(t, etcdkv.Config{Client: progressClient(t, c, progress), ProgressEvery: 5 * time.Millisecond})
	client := c.Client(t)
	s := openStore(t, etcdkv.Config{Client: client, RequestTimeout: patience})
	values, ended := startWatch(t, quiet, "quiet/", mustPut(t, s, "quiet/a", "known"))
	last := ""
	for i := range 3 { // the watch is at one of them
		for j := range 10 {
			repeatPut(t, s, "other", fmt.Sprint(j))
		}
		newest := revisionOf(t, s, "other")
		// What an answer says has reached the watch when the one after the next comes.
		for told := 0; told < 3; {
			if receive(t, progress) >= int64(newest) { //nolint:gosec // small
				told++
			}
		}
		if _, err := client.Compact(t.Context(), int64(newest)); err != nil { //nolint:gosec // small
			t.Fatal(err)
		}
		c.Stop(i)
		want := fmt.Sprint(i)
		repeatPut(t, s, "quiet/b", want)
		c.Restart(i)
		c.Await(i)
		wantNext(t, values, ended, last, want)
		last = want
	}
}

func revisionOf(t *testing.T, s kv.Store, key string) uint64 {
	t.Helper()
	e, err := s.Get(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return e.Revision
}

// TestWatchCompactedAway: a watch whose position is compacted while its member is away says so, instead of leaving out changes.
func TestWatchCompactedAway(t *testing.T) {
	t.Parallel()
	c := etcdtest.Start(t, 1)
	client := c.Client(t)
	s := openStore(t, etcdkv.Config{Client: client, ProgressEvery: time.Hour})
	first := mustPut(t, s, "a", "0")
	newest := mustPut(t, s, "a", "1")
	if _, err := client.Compact(t.Context(), int64(newest)); err != nil { //nolint:gosec // small
		t.Fatal(err)
	}
	values, ended := startWatch(t, s, "a", first-1)
	var compacted *kv.CompactedError
	if err := receive(t, ended); !errors.As(err, &compacted) || compacted.After != first-1 || compacted.Oldest < first || compacted.Newest < compacted.Oldest {
		t.Errorf("%v, want a *CompactedError", err)
	}
	if len(values) > 0 {
		t.Errorf("it told %q first", <-values)
	}
}

// TestWentBack: calls and watches notice that etcd is another cluster, or was restored to an earlier state.
func TestWentBack(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, c *etcdtest.Cluster, client *clientv3.Client) (goBack func()){
		"AnotherCluster": func(t *testing.T, c *etcdtest.Cluster, client *clientv3.Client) func() {
			young := etcdtest.Start(t, 1)
			return func() {
				client.SetEndpoints(young.Endpoints()...)
				c.Stop(0)
			}
		},
		"Backup": func(t *testing.T, c *etcdtest.Cluster, _ *clientv3.Client) func() {
			folder, backup := c.Config(0).Folder, t.TempDir()
			c.Stop(0)
			err := os.CopyFS(backup, os.DirFS(folder))
			c.Restart(0)
			return func() {
				c.Stop(0)
				if err := errors.Join(err, os.RemoveAll(folder), os.CopyFS(folder, os.DirFS(backup))); err != nil {
					t.Fatal(err)
				}
				c.Restart(0)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := etcdtest.Start(t, 1)
			client := c.Client(t)
			testWentBack(t, client, prepare(t, c, client))
		})
	}
}

func testWentBack(t *testing.T, client *clientv3.Client, goBack func()) {
	config := etcdkv.Config{Client: client, RequestTimeout: patience, ProgressEvery: 5 * time.Millisecond}
	s, watching := openStore(t, config), openStore(t, config)
	for i := range 20 {
		mustPut(t, s, "a", fmt.Sprint(i))
	}
	values, ended := startWatch(t, watching, "a", mustPut(t, s, "b", "begin"))
	last := mustPut(t, s, "a", "end")
	wantNext(t, values, ended, "", "end")
	goBack()
	for what, call := range map[string]func() error{
		"Get":    func() error { _, err := s.Get(t.Context(), "a"); return err },
		"Range":  func() error { _, err := s.Range(t.Context(), kv.KeyRange{}); return err },
		"Commit": func() error { _, err := s.Commit(t.Context(), kv.Check("a", 0)); return err },
	} {
		err := call()
		for err != nil && !errors.Is(err, etcdkv.ErrWentBack) { // a connection that ends
			t.Log(what, err)
			err = call()
		}
		if err == nil {
			t.Errorf("%s believes an etcd that went back", what)
		}
	}
	if err := receive(t, ended); !errors.Is(err, etcdkv.ErrWentBack) {
		t.Errorf("the watch ended with %v", err)
	}
	again := openStore(t, config)
	if err := again.Watch(t.Context(), "", last, func(kv.EventBatch) error { return nil }); !errors.Is(err, kv.ErrCompacted) {
		t.Errorf("a watch of another process from what is lost: %v", err)
	}
}
