package journal_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
)

var etcdPrefixes atomic.Int64

// openEtcd returns an empty journal in a cluster.
func openEtcd(t *testing.T, client *clientv3.Client) journalStore {
	t.Helper()
	prefix := fmt.Sprintf("scribe/test/m/%d/", etcdPrefixes.Add(1))
	var handles []*etcdjournal.Journal
	return journalStore{
		Open: func() journal.Journal {
			j, err := etcdjournal.Open(etcdjournal.Config{Client: client, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			handles = append(handles, j)
			return j
		},
		Drop: func(seq uint64) error {
			_, err := client.Delete(t.Context(), fmt.Sprintf("%se/%016x", prefix, seq))
			return err
		},
		SetFull: func(full bool) {
			for _, j := range handles {
				j.SetInUse(full)
			}
		},
		GoBack: func() error {
			_, err := client.Delete(t.Context(), prefix+"head")
			return err
		},
		Rounds: 4,
	}
}

func TestEtcdjournal(t *testing.T) {
	t.Parallel()
	client := etcdtest.Start(t, 1).Client(t)
	runSuite(t, func(t *testing.T) journalStore { return openEtcd(t, client) })
}
