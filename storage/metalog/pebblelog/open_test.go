package pebblelog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

func TestOptionsReportEveryViolation(t *testing.T) {
	o := Options{CacheBytes: -1, MemTableBytes: 1, TailBytes: -1, ClockLease: time.Hour}
	err := o.Validate()
	for _, field := range []string{"CacheBytes", "MemTableBytes", "TailBytes", "ClockLease"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	if _, err := Open(t.TempDir(), o); err == nil {
		t.Error("Open took the options")
	}
	if err := (&Options{}).Validate(); err != nil {
		t.Errorf("the zero options: %v", err)
	}
}

func TestFolderInUse(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b") // Open creates it
	e, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("the second Open: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, err = Open(dir, Options{})
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestFolderNotUsable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(file, "log"), Options{}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("a folder below a file: %v", err)
	}
	// The tests may run as a user who may do everything, so the refusal is made up.
	denied := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLock {
			return &os.PathError{Op: "open", Path: op.Path, Err: syscall.EACCES}
		}
		return nil
	}))
	if _, err := Open(testDir, Options{FS: denied}); err == nil || errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "no permission to write") {
		t.Errorf("a folder that is not writable: %v", err)
	}
	for _, kind := range []errorfs.OpKind{errorfs.OpCreate, errorfs.OpFileWrite, errorfs.OpFileSyncData, errorfs.OpOpenDir, errorfs.OpFileSync} {
		var full atomic.Bool // what Pebble does in the background may go on after an Open that failed
		full.Store(true)
		broken := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
			if full.Load() && op.Kind == kind {
				return syscall.ENOSPC
			}
			return nil
		}))
		if e, err := Open(testDir, Options{FS: broken}); err == nil {
			t.Errorf("Open on a full disk (operation %d) succeeded", kind)
			_ = e.Close()
		} else if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("Open on a full disk (operation %d): %v", kind, err)
		}
		full.Store(false)
		e, err := Open(testDir, Options{FS: broken})
		if err != nil {
			t.Errorf("Open once there was room (operation %d): %v", kind, err)
			continue
		}
		if err := e.Close(); err != nil {
			t.Errorf("Close (operation %d): %v", kind, err)
		}
	}
}

// raw opens the folder's database without the engine.
func raw(t *testing.T, fs vfs.FS) *pebble.DB {
	t.Helper()
	db, err := pebble.Open(testDir, &pebble.Options{FS: fs, FormatMajorVersion: pebbleFormat, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func TestOtherFormatsAreRefused(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	key := schema.MetaKey(schema.MetaFormat)
	put := func(value []byte) {
		t.Helper()
		db := raw(t, fs)
		if err := errors.Join(db.Set(key, value, pebble.Sync), db.Close()); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[int64]error{schema.StubReplicaVersion + 1: ErrVersion, schema.ReplicaVersion: ErrReplica, schema.StubReplicaVersion: ErrReplica, 0: nil} {
		put(schema.AppendNumber(nil, key, version))
		if _, err := Open(testDir, Options{FS: fs}); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("version %d: %v", version, err)
		}
	}
	put([]byte("garbage"))
	if _, err := Open(testDir, Options{FS: fs}); !errors.Is(err, metalog.ErrCorrupt) {
		t.Errorf("a damaged version: %v", err)
	}
	// A folder of the oldest version is taken over: what it holds is written in the same way.
	put(schema.AppendNumber(nil, key, schema.OldestVersion))
	e = start(t, Options{FS: fs})
	if version, found, err := e.readNumber(schema.MetaFormat); err != nil || !found || version != schema.Version {
		t.Errorf("the format version after opening is %d, %v, %v", version, found, err)
	}

	other := vfs.NewMem()
	db := raw(t, other)
	if err := errors.Join(db.Set([]byte("something"), []byte("else"), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(testDir, Options{FS: other}); err == nil || !strings.Contains(err.Error(), "another Pebble database") {
		t.Errorf("a database of something else: %v", err)
	}
}

// TestDamagedState checks that a shard whose state is damaged says so, and leaves the others alone.
func TestDamagedState(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	mustOpen(t, e, shardA, shardB)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	db, key := raw(t, fs), schema.AppendStateKey(nil, shardA)
	value, closer, err := db.Get(key)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(value)
	damaged[len(damaged)-1] ^= 0x10
	if err := errors.Join(closer.Close(), db.Set(key, damaged, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	e = start(t, Options{FS: fs})
	_, tailErr := e.Tail(t.Context(), []record.ShardID{shardA})
	_, readErr := e.Read(t.Context(), shardA, 1, 0, 0)
	_, openErr := e.Open(t.Context(), "test", []record.ShardID{shardA})
	_, appendErr := e.Append(t.Context(), one(shardA, 1, "x"))
	for _, err := range []error{tailErr, readErr, openErr, appendErr} {
		var damage *metalog.CorruptError
		if !errors.As(err, &damage) || damage.Shard != shardA || damage.LSN != 0 {
			t.Errorf("a damaged state: %v", err)
		}
	}
	if _, err := e.Append(t.Context(), one(shardB, 1, "x")); err != nil {
		t.Errorf("the other shard: %v", err)
	}
}

// TestTrimLeftovers checks that what a crash left of a trim is not seen, and goes with the next trim.
func TestTrimLeftovers(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	epoch := mustOpen(t, e, shardA)[0].Epoch
	for range 9 {
		if _, err := e.Append(t.Context(), one(shardA, epoch, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(e.Trim(t.Context(), shardA, 5), e.Close()); err != nil {
		t.Fatal(err)
	}
	db := raw(t, fs)
	key := schema.AppendRecordKey(nil, shardA, 2) // as if its removal had not been synced
	value := make([]byte, schema.RecordOverhead+1)
	schema.PutRecord(value, key, 1, []byte("x"))
	if err := errors.Join(db.Set(key, value, pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	e, err = Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Read(t.Context(), shardA, 2, 0, 0); !errors.Is(err, metalog.ErrTrimmed) {
		t.Errorf("Read of a leftover: %v", err)
	}
	if err := errors.Join(e.Trim(t.Context(), shardA, 6), e.Close()); err != nil {
		t.Fatal(err)
	}
	db = raw(t, fs)
	if _, _, err := db.Get(key); !errors.Is(err, pebble.ErrNotFound) {
		t.Errorf("the leftover after the next trim: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestMetricsComeAndGo(t *testing.T) {
	reg := prometheus.NewRegistry()
	for range 2 {
		fs := vfs.NewMem()
		// A clock that stands: else the bound ahead of it may have to move, in a commit that nobody asked for.
		e, err := Open(testDir, Options{FS: fs, Metrics: reg, Clock: func() int64 { return 1_000_000 }})
		if err != nil {
			t.Fatal(err)
		}
		epoch := mustOpen(t, e, shardA)[0].Epoch
		if _, err := e.Append(t.Context(), one(shardA, epoch, "x")); err != nil {
			t.Fatal(err)
		}
		_, _ = e.Append(t.Context(), one(shardA, epoch+1, "x"))
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				name := f.GetName()
				for _, l := range m.GetLabel() {
					name += " " + l.GetValue()
				}
				got[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		for name, want := range map[string]float64{
			"scribe_metalog_appends_total ok": 1, "scribe_metalog_appends_total fenced": 1, "scribe_metalog_appended_records_total": 1,
			"scribe_metalog_cached_shards": 1, "scribe_metalog_failed": 0, "scribe_metalog_commit_seconds": 2,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v, want %v", name, v, want)
			}
		}
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if families, err := reg.Gather(); err != nil || len(families) != 0 {
			t.Errorf("after Close there are %d metrics, %v", len(families), err)
		}
	}
}

// TestShardIsSmall guards the memory of an idle shard: the struct, and as much again for its place in the map.
func TestShardIsSmall(t *testing.T) {
	if size := unsafe.Sizeof(shardEntry{}); size > 112 {
		t.Errorf("a shard takes %d bytes", size)
	}
}

// TestLostRecord checks that a record that is not there is damage with its place, for each who looks.
func TestLostRecord(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	epoch := mustOpen(t, e, shardA)[0].Epoch
	for range 5 {
		if _, err := e.Append(t.Context(), one(shardA, epoch, "x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	db := raw(t, fs)
	if err := errors.Join(db.Delete(schema.AppendRecordKey(nil, shardA, 3), pebble.Sync), db.Close()); err != nil {
		t.Fatal(err)
	}
	e = start(t, Options{FS: fs})
	_, readErr := e.Read(t.Context(), shardA, 3, 0, 0)
	_, seekErr := e.Seek(t.Context(), []record.ShardID{shardA}, 1)
	subscribeErr := e.Subscribe(t.Context(), []metalog.Position{{Shard: shardA, LSN: 1}}, 0, func([]metalog.Update) error { return nil })
	for _, err := range []error{readErr, seekErr, subscribeErr} {
		var damage *metalog.CorruptError
		if !errors.As(err, &damage) || damage.Shard != shardA || damage.LSN != 3 {
			t.Errorf("a record that is not there: %v", err)
		}
	}
	if entries, err := e.Read(t.Context(), shardA, 1, 0, 0); err != nil || len(entries) != 2 {
		t.Errorf("before it there are %d records, %v", len(entries), err)
	}
}

// TestPebbleFormatIsPinned keeps an upgrade of Pebble from raising the version of its files unnoticed: docs/format/metalog.md names it.
func TestPebbleFormatIsPinned(t *testing.T) {
	if pebbleFormat != 21 {
		t.Errorf("Pebble's format is version %d", pebbleFormat)
	}
}
