package test

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/transport/certificates/certtest"
	"scribe/test/program"
)

// TestEtcdUsers: processes over an etcd that others run, with TLS and users. One with rights on its cell's keys alone works, and says once that it may not compact; that
// takes nothing from the rest of its upkeep (TestEtcdUpkeepOfUsers). One with the role root compacts. Without rights, or with another password, it does not start.
func TestEtcdUsers(t *testing.T) {
	t.Parallel()
	ca := certtest.New(t, "etcd", time.Now())
	cert, key := ca.Server("etcd")
	begin := func(t *testing.T, foreign *etcdtest.Foreign, user, cell, password string) (*program.Process, io.Reader) {
		t.Helper()
		dir := t.TempDir()
		return launch(t, []string{"SCRIBE_ETCD_PASSWORD=" + password}, "serve", "--roles", "all", "--etcd", foreign.URL, "--etcd-ca", ca.File, "--etcd-user", user,
			"--cell", cell, "--data", filepath.Join(dir, "data"), "--blob-path", filepath.Join(dir, "blobs"), "--listen", "127.0.0.1:0")
	}
	for _, user := range []string{etcdtest.Root, etcdtest.Limited} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			foreign := etcdtest.StartForeign(t, ca.File, cert, key, "eu")
			root := foreign.Client(etcdtest.Root)
			res, err := root.Get(t.Context(), "scribe/eu/")
			if err != nil {
				t.Fatal(err)
			}
			before := res.Header.GetRevision()
			p, out := begin(t, foreign, user, "eu", etcdtest.Password)
			p.AwaitReady(out)
			c := &cell{write: p.URL, read: p.URL}
			ok(t, nil, "category", "create", "log", "--server", p.URL)
			produce(t, c, "log", []byte("one\n"))
			compacted := func() bool {
				_, err := root.Get(t.Context(), "scribe/eu/", clientv3.WithRev(before+1))
				return err != nil && strings.Contains(err.Error(), "compacted")
			}
			const denied = "does not let this process compact"
			if user == etcdtest.Root {
				program.Await(t, "etcd's history is compacted", compacted)
			} else {
				program.Await(t, "the process says that it may not compact", func() bool { return strings.Contains(p.Log.String(), denied) })
			}
			produce(t, c, "log", []byte("two\n"))
			sameBytes(t, "what was written", tail(t, c, "log"), []byte("one\ntwo\n"))
			p.Stop()
			want := 0
			if user == etcdtest.Limited {
				want = 1
				if compacted() {
					t.Error("a user with rights on keys alone has compacted")
				}
				if _, err := foreign.Client(user).Put(t.Context(), "scribe/us/kv/a", "1"); err == nil {
					t.Error("it may write the keys of another cell")
				}
			}
			if n := strings.Count(p.Log.String(), denied); n != want {
				t.Errorf("%d lines say that it may not compact, want %d:\n%s", n, want, p.Log)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		t.Parallel()
		foreign := etcdtest.StartForeign(t, ca.File, cert, key, "eu")
		for says, as := range map[string]struct{ cell, password string }{
			`refuses keys below scribe/us/ to user "scribe"`: {"us", etcdtest.Password},
			"authentication failed":                          {"eu", "guessed"},
		} {
			p, out := begin(t, foreign, etcdtest.Limited, as.cell, as.password)
			refused(t, p, out, says)
		}
	})
}
