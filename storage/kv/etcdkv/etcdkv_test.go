package etcdkv_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

// patience bounds what takes a second or two, on a machine that is 20 times slower.
const patience = 2 * time.Minute

const testPrefix = "scribe/test/kv/"

// openStore returns a store that closes with the test, before its client.
func openStore(t *testing.T, c etcdkv.Config) *etcdkv.Store {
	t.Helper()
	c.Prefix = testPrefix
	s, err := etcdkv.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func mustPut(t *testing.T, s kv.Store, key, value string) uint64 {
	t.Helper()
	revision, err := s.Commit(t.Context(), kv.Put(key, []byte(value)))
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// receive waits for a value.
func receive[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-time.After(patience):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestValidate(t *testing.T) {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://127.0.0.1:1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for want, c := range map[string]etcdkv.Config{
		"no client":        {Prefix: "a/"},
		`prefix "a"`:       {Client: client, Prefix: "a"},
		`prefix ""`:        {Client: client},
		`up to 512 bytes`:  {Client: client, Prefix: strings.Repeat("a", 512) + "/"},
		"negative limit":   {Client: client, Prefix: "a/", HistoryEvents: -1},
		"a negative limit": {Client: client, Prefix: "a/", ProgressEvery: -1},
	} {
		if _, err := etcdkv.New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if err := (&etcdkv.Config{}).Validate(); !strings.Contains(err.Error(), "no client") || !strings.Contains(err.Error(), "prefix") {
		t.Errorf("%v, want both violations", err)
	}
}

// TestPrefixes: stores behind different prefixes of one cluster see nothing of each other but gaps of revisions.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	s := openStore(t, etcdkv.Config{Client: client})
	for _, key := range []string{"scribe/test/kv", "scribe/test/kw/a", "scribe/test/", "a", "zz"} {
		if _, err := client.Put(t.Context(), key, "of others"); err != nil {
			t.Fatal(err)
		}
	}
	revision := mustPut(t, s, "a", "own")
	p, err := s.Range(t.Context(), kv.KeyRange{})
	if err != nil || len(p.Entries) != 1 || p.Entries[0].Key != "a" || p.Entries[0].Revision != revision || p.More {
		t.Errorf("Range = %+v, %v", p, err)
	}
	if res, err := client.Get(t.Context(), testPrefix+"a"); err != nil || len(res.Kvs) != 1 || string(res.Kvs[0].Value) != "own" {
		t.Errorf("in etcd: %+v, %v", res, err)
	}
}

// rangeAll reads everything in pages, and checks each of them.
func rangeAll(t *testing.T, s kv.Store) (pages int, keys []string) {
	t.Helper()
	for r, more := (kv.KeyRange{}), true; more; pages++ {
		p, err := s.Range(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		size := 0
		for _, e := range p.Entries {
			size += len(e.Key) + len(e.Value)
			keys = append(keys, e.Key)
			if e.Revision > p.Revision {
				t.Errorf("%s has revision %d in a page of revision %d", e.Key, e.Revision, p.Revision)
			}
		}
		if len(p.Entries) == 0 || size > kv.MaxRangeBytes {
			t.Fatalf("a page of %d entries, %d bytes", len(p.Entries), size)
		}
		r.After, more = p.Entries[len(p.Entries)-1].Key, p.More
	}
	return pages, keys
}

// TestRangeBytes: pages are bounded by bytes. Many small entries are followed by large ones, of which so many are asked for that etcd's
// answer is more than the client takes: fewer are asked for then.
func TestRangeBytes(t *testing.T) {
	t.Parallel()
	s := openStore(t, etcdkv.Config{Client: etcdtest.Start(t, 1).Client(t), RequestTimeout: patience})
	const small, large = 16 + 32 + 64, 70
	for i := range small {
		mustPut(t, s, fmt.Sprintf("a/%04d", i), "small")
	}
	value := strings.Repeat("v", 1<<20)
	for i := range large {
		mustPut(t, s, fmt.Sprintf("b/%04d", i), value)
	}
	pages, keys := rangeAll(t, s)
	if len(keys) != small+large || keys[small] != "b/0000" || keys[small+large-1] != "b/0069" {
		t.Fatalf("%d entries: %q", len(keys), keys)
	}
	if most := large/7 + 1; pages > most { // seven of a MiB fit
		t.Errorf("%d pages, want up to %d", pages, most)
	}
}

// TestRangeWhileWritten: a page is of one revision, although it takes several requests to etcd: the first and the last key change together.
func TestRangeWhileWritten(t *testing.T) {
	t.Parallel()
	s := openStore(t, etcdkv.Config{Client: etcdtest.Start(t, 1).Client(t)})
	for i := range 100 {
		mustPut(t, s, fmt.Sprintf("%03d", 100+i), strings.Repeat("v", 64<<10))
	}
	if _, err := s.Commit(t.Context(), kv.Put("000", nil), kv.Put("999", nil)); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		for i := 1; ; i++ {
			value := fmt.Append(nil, i)
			if _, err := s.Commit(ctx, kv.Put("000", value), kv.Put("999", value)); err != nil {
				written <- err
				return
			}
		}
	}()
	last := uint64(0)
	for changed := 0; changed < 10; {
		p, err := s.Range(t.Context(), kv.KeyRange{})
		if err != nil {
			t.Fatal(err)
		}
		first, end := p.Entries[0], p.Entries[len(p.Entries)-1]
		if len(p.Entries) != 102 || first.Revision != end.Revision || string(first.Value) != string(end.Value) {
			t.Fatalf("%d entries; %s is %q, %s is %q", len(p.Entries), first.Key, first.Value, end.Key, end.Value)
		}
		if p.Revision < last || p.Revision < first.Revision {
			t.Fatalf("a page of revision %d after one of %d", p.Revision, last)
		}
		if p.Revision > last {
			changed++
		}
		last = p.Revision
	}
	stop()
	if err := receive(t, written); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
