package pebblelog

import (
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// restore writes two logs, one of them with leftovers below its first record, and a retired category.
func restore(t *testing.T, fs vfs.FS, finish bool) {
	t.Helper()
	r, err := NewRestorer("restored", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	a, b := record.MakeShardID(1, 0, 1), record.MakeShardID(2, 3, 0)
	for lsn := record.LSN(3); lsn < 3000; lsn++ {
		if err := r.Record(a, lsn, 100+int64(lsn), fmt.Appendf(nil, "a %d", lsn)); err != nil {
			t.Fatal(err)
		}
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	must(r.Shard(metalog.State{Shard: a, FirstLSN: 5, NextLSN: 3000, Epoch: 9, LastTime: 3099}))
	must(r.Record(b, 1, 50, []byte("b")))
	must(r.Producer(b, metalog.ProducerState{Producer: 7, Epoch: 1, Next: 3}, 1, 50))
	must(r.Producer(b, metalog.ProducerState{Producer: 7, Epoch: 2, Next: 8}, 1, 50))
	must(r.Shard(metalog.State{Shard: b, FirstLSN: 1, NextLSN: 2, Epoch: 1, LastTime: 50, Sealed: true}))
	r.Retire(5)
	r.Retire(4)
	r.Retire(5)
	if finish {
		must(r.Finish(77, 5000, Origin{LSN: 1 << 50, End: 6}))
	}
	must(r.Close())
}

func TestRestore(t *testing.T) {
	fs := vfs.NewMem()
	restore(t, fs, true)
	e, err := Open("restored", Options{FS: fs, Clock: func() int64 { return 1 }})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}()
	a, b := record.MakeShardID(1, 0, 1), record.MakeShardID(2, 3, 0)
	states, err := e.Tail(t.Context(), []record.ShardID{a, b, record.MakeShardID(5, 0, 1), record.MakeShardID(6, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if s := states[0]; s.FirstLSN != 5 || s.NextLSN != 3000 || s.Epoch != 9 || s.LastTime != 3099 || s.Sealed || s.Watermark < 5000 {
		t.Errorf("%+v", s)
	}
	if !states[1].Sealed || !states[2].Sealed || states[2].Epoch != 0 || states[3].Sealed {
		t.Errorf("%+v", states[1:])
	}
	entries, err := e.Read(t.Context(), a, 5, 2, 0)
	if err != nil || len(entries) != 2 || string(entries[0].Data) != "a 5" || entries[0].Time != 105 {
		t.Errorf("%+v, %v", entries, err)
	}
	if _, err := e.Read(t.Context(), a, 4, 1, 0); !errors.Is(err, metalog.ErrTrimmed) {
		t.Errorf("below the first record: %v", err)
	}
	known, err := e.Sequences(t.Context(), b, []uint64{7})
	if err != nil || known[0] != (metalog.ProducerState{Producer: 7, Epoch: 2, Next: 8}) {
		t.Errorf("%+v, %v", known, err)
	}
	if boundary, err := e.AdvanceBoundary(t.Context(), 0); err != nil || boundary != 77 {
		t.Errorf("boundary %d, %v", boundary, err)
	}
	opened, err := e.Open(t.Context(), "me", []record.ShardID{a})
	if err != nil || opened[0].Epoch <= 9 {
		t.Fatalf("%+v, %v", opened, err)
	}
	done, err := e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: a, Epoch: opened[0].Epoch, ExpectLSN: 3000, Records: [][]byte{{1}}}}})
	if err != nil || done[0].Time < 5000 {
		t.Errorf("%+v, %v", done, err)
	}
}

// A shard that was not restored begins at the origin, above all that it may have had before: who resumes at an old position is told
// of a trim. Shards of later categories begin at LSN 1.
func TestRestoreOrigin(t *testing.T) {
	const origin = 1 << 50
	fs := vfs.NewMem()
	restore(t, fs, true)
	lost, later := record.MakeShardID(1, 0, 2), record.MakeShardID(6, 0, 1)
	open := func() *Engine {
		e, err := Open("restored", Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	check := func(e *Engine, lostNext record.LSN) {
		t.Helper()
		states, err := e.Tail(t.Context(), []record.ShardID{lost, later})
		if err != nil {
			t.Fatal(err)
		}
		if s := states[0]; s.FirstLSN != origin || s.NextLSN != lostNext || s.Origin != origin {
			t.Errorf("the lost shard: %+v", s)
		}
		if s := states[1]; s.FirstLSN != record.FirstLSN || s.NextLSN != record.FirstLSN || s.Origin != 0 {
			t.Errorf("the later shard: %+v", s)
		}
		var trimmed *metalog.TrimmedError
		if _, err := e.Read(t.Context(), lost, 14, 1, 0); !errors.As(err, &trimmed) || trimmed.First != origin {
			t.Errorf("an old position of the lost shard: %v", err)
		}
	}
	e := open()
	check(e, origin)
	states, err := e.Open(t.Context(), "me", []record.ShardID{lost, later})
	if err != nil {
		t.Fatal(err)
	}
	if states[0].Epoch <= origin || states[1].Epoch != 1 {
		t.Errorf("epochs %d and %d", states[0].Epoch, states[1].Epoch)
	}
	done, err := e.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: lost, Epoch: states[0].Epoch, Records: [][]byte{{1}}}}})
	if err != nil || done[0].FirstLSN != origin {
		t.Fatalf("%+v, %v", done, err)
	}
	check(e, origin+1)
	// The origin outlives the engine that opened the folder first.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open()
	check(e, origin+1)
	other, err := e.Open(t.Context(), "me", []record.ShardID{record.MakeShardID(1, 7, 1)})
	if err != nil || other[0].NextLSN != origin {
		t.Errorf("%+v, %v", other, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// A folder that was not finished is none, and one that holds something is not restored into.
func TestRestoreCutOff(t *testing.T) {
	fs := vfs.NewMem()
	restore(t, fs, false)
	if e, err := Open("restored", Options{FS: fs}); err == nil {
		states, err := e.Tail(t.Context(), []record.ShardID{record.MakeShardID(1, 0, 1)})
		if err != nil || states[0].Epoch != 0 {
			t.Errorf("a half of a folder was opened: %+v, %v", states, err)
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewRestorer("restored", Options{FS: fs}); err == nil {
		t.Error("a folder that is not empty was restored into")
	}
	r, err := NewRestorer("other", Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	s := record.MakeShardID(1, 0, 1)
	for what, err := range map[string]error{
		"LSN 0":        r.Record(s, 0, 1, []byte{1}),
		"empty":        r.Record(s, 1, 1, nil),
		"epoch 0":      r.Shard(metalog.State{Shard: s, FirstLSN: 1, NextLSN: 1}),
		"next < first": r.Shard(metalog.State{Shard: s, FirstLSN: 2, NextLSN: 1, Epoch: 1}),
		"unknown":      r.Producer(s, metalog.ProducerState{Producer: 1}, 1, 1),
	} {
		if !errors.Is(err, metalog.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// On a full disk a restore ends with an error, whichever write fails first, and leaves no folder that could be opened.
func TestRestoreOnFullDisk(t *testing.T) {
	for after := range int32(40) {
		fs := vfs.NewMem()
		var writes atomic.Int32
		full := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead || writes.Add(1) <= after {
				return nil
			}
			return syscall.ENOSPC
		}))
		if err := restoreOne(full); err == nil {
			if after < 10 {
				t.Errorf("%d writes were enough", after)
			}
			continue
		} else if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("after %d writes: %v", after, err)
		}
		if e, err := Open("restored", Options{FS: fs}); err == nil {
			states, err := e.Tail(t.Context(), []record.ShardID{record.MakeShardID(1, 0, 1)})
			if err != nil || states[0].Epoch != 0 {
				t.Errorf("after %d writes: %+v, %v", after, states, err)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// restoreOne restores a shard with a record.
func restoreOne(fs vfs.FS) error {
	r, err := NewRestorer("restored", Options{FS: fs})
	if err != nil {
		return err
	}
	s := record.MakeShardID(1, 0, 1)
	return errors.Join(
		r.Record(s, 1, 1, []byte("a")),
		r.Shard(metalog.State{Shard: s, FirstLSN: 1, NextLSN: 2, Epoch: 1, LastTime: 1}),
		r.Finish(1, 1, Origin{}),
	)
}
