package pebblekv_test

import (
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"scribe/storage/kv"
	"scribe/storage/kv/pebblekv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(t *testing.T, fs vfs.FS) *pebblekv.Store {
	t.Helper()
	s, err := pebblekv.Open(pebblekv.DefaultConfig("kv"), pebblekv.Deps{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestFolder uses the operating system's files, and refuses a second opening.
func TestFolder(t *testing.T) {
	cfg := pebblekv.DefaultConfig(t.TempDir() + "/new/kv")
	registry := prometheus.NewRegistry()
	s, err := pebblekv.Open(cfg, pebblekv.Deps{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pebblekv.Open(cfg, pebblekv.Deps{}); err == nil {
		t.Error("a folder was opened twice")
	}
	r, err := s.Commit(t.Context(), kv.Put("a", []byte("1")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), kv.Check("a", 0)); !errors.Is(err, kv.ErrConflict) {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			result := m.GetLabel()
			if f.GetName() != "scribe_kv_transactions_total" || result[0].GetValue() == "failed" {
				continue
			}
			if n := m.GetCounter().GetValue(); n != 1 {
				t.Errorf("%v transactions %v, want 1", n, result)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = pebblekv.Open(cfg, pebblekv.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if e, err := s.Get(t.Context(), "a"); err != nil || e.Revision != r || string(e.Value) != "1" {
		t.Errorf("after opening again: %+v, %v", e, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestConfig(t *testing.T) {
	if err := pebblekv.DefaultConfig("x").Validate(); err != nil {
		t.Error(err)
	}
	err := pebblekv.Config{}.Validate()
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 6 {
		t.Errorf("%v does not report every field", err)
	}
	if _, err := pebblekv.Open(pebblekv.Config{}, pebblekv.Deps{}); err == nil {
		t.Error("Open takes an invalid configuration")
	}
}
