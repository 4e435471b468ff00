package journal_test

import (
	"testing"

	"scribe/internal/testkit/etcdtest"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

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
