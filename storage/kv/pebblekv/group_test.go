package pebblekv

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/storage/kv"
)

// TestGroup commits transactions that depend on each other as one group: each is decided on what the ones before it leave, each
// has its own revision, and a watch is told all of them in order.
func TestGroup(t *testing.T) {
	s, err := Open(DefaultConfig("kv"), Deps{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	put := func(value string) kv.Op { return kv.Put("a", []byte(value)) }
	group := make([]*pendingCommit, 0, 8)
	for _, ops := range [][]kv.Op{
		{put("1").If(0)},                       // revision 1
		{put("2").If(0)},                       // conflicts with it
		{put("3").If(1), kv.Put("b", nil)},     // revision 2
		{kv.Delete("a").If(2)},                 // revision 3
		{kv.Delete("a")},                       // nothing to do
		{kv.Check("a", 0), kv.Check("b", 2)},   // nothing to do
		{put("4").If(0)},                       // revision 4
		{kv.Check("a", 0), kv.Put("c", nil)},   // conflicts with it
		{kv.Delete("b").If(2), kv.Delete("a")}, // revision 5
	} {
		group = append(group, &pendingCommit{ctx: t.Context(), ops: ops, done: make(chan commitOutcome, 1)})
	}
	if revision := s.commitGroup(group, 0); revision != 5 {
		t.Errorf("the store is at revision %d, want 5", revision)
	}
	for i, want := range []string{"1", "conflict", "2", "3", "3", "3", "4", "conflict", "5"} {
		o := <-group[i].done
		got := fmt.Sprint(o.revision)
		if errors.Is(o.err, kv.ErrConflict) {
			got = "conflict"
		} else if o.err != nil {
			got = o.err.Error()
		}
		if got != want {
			t.Errorf("transaction %d: %s, want %s", i, got, want)
		}
	}
	if p, err := s.Range(t.Context(), kv.KeyRange{}); err != nil || len(p.Entries) != 0 || p.Revision != 5 {
		t.Errorf("%+v, %v", p, err)
	}
	told := ""
	errEnough := errors.New("enough")
	err = s.Watch(t.Context(), "", 0, func(b kv.EventBatch) error {
		for _, e := range b.Events {
			told += fmt.Sprintf("%d%s=%s%v ", e.Revision, e.Key, e.Value, e.Deleted)
		}
		return errEnough
	})
	const want = "1a=1false 2a=3false 2b=false 3a=true 4a=4false 5b=true 5a=true "
	if !errors.Is(err, errEnough) || told != want {
		t.Errorf("a watch is told %q (%v), want %q", told, err, want)
	}
}
