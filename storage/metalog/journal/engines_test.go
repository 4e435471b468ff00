package journal_test

import (
	"testing"

	"go.uber.org/goleak"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

// TestMain looks for goroutines that are left. Connections between members of etcd end a while after the members.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("net/http.(*connReader).backgroundRead"), goleak.IgnoreAnyFunction("net/http.(*conn).serve"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"), goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"))
}

// openMemory returns a journal in memory whose handles are changed by wrap.
func openMemory(wrap func(s *memjournal.Store, j *memjournal.Journal) journal.Journal) journalStore {
	store := memjournal.New()
	return journalStore{
		Open: func() journal.Journal { return wrap(store, store.Open()) },
		Drop: func(seq uint64) error {
			store.Damage(seq, func([]byte) []byte { return nil })
			return nil
		},
		SetFull: func(full bool) {
			store.SetCapacity(0)
			if full {
				store.SetCapacity(1)
			}
		},
		GoBack: func() error { store.Restore(memjournal.New()); return nil },
		Rounds: 30,
	}
}

func TestMemjournal(t *testing.T) {
	runSuite(t, func(*testing.T) journalStore {
		return openMemory(func(_ *memjournal.Store, j *memjournal.Journal) journal.Journal { return j })
	})
}
