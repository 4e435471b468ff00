package pebblelog

import (
	"crypto/sha256"
	"errors"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/format/record"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog/schema"
)

// told is what callers of an engine know of its logs.
type told struct {
	states    []metalog.State
	entries   []metalog.Entry
	producers []metalog.ProducerState
	boundary  int64
}

// adoptedShards are the shards of the folders of these tests; shardA is trimmed, shardB sealed, the third was never opened, and the last one was
// removed.
var adoptedShards = []record.ShardID{shardA, shardB, shardB + 1, shardB + 2}

// lookAround asks an engine for everything. Watermarks, which go on, are left out.
func lookAround(t testing.TB, log metalog.Log) (k told) {
	t.Helper()
	var err error
	if k.states, err = log.Tail(t.Context(), adoptedShards); err != nil {
		t.Fatal(err)
	}
	for i := range k.states {
		k.states[i].Watermark = 0
	}
	if k.entries, err = log.Read(t.Context(), shardA, k.states[0].FirstLSN, 1000, 1<<20); err != nil {
		t.Fatal(err)
	}
	if k.producers, err = log.Sequences(t.Context(), shardA, []uint64{7, 8}); err != nil {
		t.Fatal(err)
	}
	if k.boundary, err = log.AdvanceBoundary(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	return k
}

// ownFolder writes the folder of an engine without a journal, a part of which is in its write-ahead log only, and returns it as a crash leaves it.
func ownFolder(t testing.TB) (*vfs.MemFS, told) {
	t.Helper()
	fs := vfs.NewCrashableMem()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	states, err := e.Open(t.Context(), "test", []record.ShardID{shardA, shardB})
	if err != nil {
		t.Fatal(err)
	}
	removeShard(t, e, shardB+2)
	for i := range 20 {
		a := one(shardA, states[0].Epoch, strings.Repeat("x", 1+i*100))
		a.Shards[0].Sequences = []metalog.Sequence{{Producer: 7, Epoch: 3, First: uint64(i), Last: uint64(i)}}
		if _, err := e.Append(t.Context(), a); err != nil {
			t.Fatal(err)
		}
		if i == 9 {
			if err := errors.Join(e.db.Flush(), e.Trim(t.Context(), shardA, 5)); err != nil {
				t.Fatal(err)
			}
		}
	}
	_, err = e.Seal(t.Context(), shardB)
	_, berr := e.AdvanceBoundary(t.Context(), 12345)
	if err := errors.Join(err, berr, e.Retire(t.Context(), 99)); err != nil {
		t.Fatal(err)
	}
	k := lookAround(t, e)
	crashed := fs.CrashClone(vfs.CrashCloneCfg{})
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	return crashed, k
}

// checkTold requires that an engine says what another one said.
func checkTold(t testing.TB, what string, log metalog.Log, want told) {
	t.Helper()
	if got := lookAround(t, log); !reflect.DeepEqual(got, want) {
		t.Errorf("%s the logs are\n%+v, want\n%+v", what, got, want)
	}
	if _, err := log.Open(t.Context(), "test", []record.ShardID{99 << 32}); !errors.Is(err, metalog.ErrSealed) {
		t.Errorf("%s a retired category is opened: %v", what, err)
	}
}

// TestAdoptAndDetach: the folder of an engine becomes that of one replica, from whose export the others are seeded. They are alike, go on where it was, and
// one of them becomes an engine without a journal again, which does.
func TestAdoptAndDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		folder, known := ownFolder(t)
		store, entries := memory.New(), memjournal.New()
		o := snapshotOptions(store)
		o.FS = folder
		at, err := ExportFolder(t.Context(), testDir, o)
		if err != nil || at.Seq != 1 || at.Time == 0 {
			t.Fatalf("exported at %+v, %v", at, err)
		}
		if again, err := ExportFolder(t.Context(), testDir, o); err != nil || again.Seq != 2 || again.Chain == at.Chain {
			t.Fatalf("exported again at %+v, %v", again, err)
		} else {
			at = again
		}
		if names, err := folder.List(""); err != nil || len(names) != 1 {
			t.Errorf("an export leaves %v, %v", names, err)
		}
		j := entries.Open()
		for range 2 {
			if err := errors.Join(AdoptFolder(testDir, o, at), at.BeginJournal(t.Context(), j)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(testDir, Options{FS: folder}); !errors.Is(err, ErrReplica) {
			t.Errorf("an adopted folder is opened without a journal: %v", err)
		}
		if err := AdoptFolder(testDir, o, Adoption{Position: journal.Position{Seq: 7}}); !errors.Is(err, ErrReplica) {
			t.Errorf("an adopted folder is adopted elsewhere: %v", err)
		}
		o.FS = nil
		c := &testCell{}
		for i := range 3 {
			n := newNode(i, entries, o)
			if i == 0 {
				n.folder = folder
			}
			n.engine = n.open(t)
			c.nodes = append(c.nodes, n)
		}
		c.compare(t)
		checkTold(t, "adopted,", c.leader(t).engine, known)
		if head := c.head(t); head.Time < at.Time || head.Bound < at.Time {
			t.Errorf("the head %+v is before the clock of the folder, %d", head, at.Time)
		}
		goOn(t, c.leader(t).engine, known)
		known = lookAround(t, c.leader(t).engine)
		if err := at.BeginJournal(t.Context(), j); err != nil {
			t.Errorf("beginning again a journal that goes on: %v", err)
		}
		other := at
		other.Seq += 1000
		if err := other.BeginJournal(t.Context(), j); !errors.Is(err, journal.ErrWentBack) {
			t.Errorf("another beginning: %v", err)
		}
		detachNode(t, c, known)
	})
}

// goOn requires that the writer of before goes on: with its epoch and its sequences.
func goOn(t testing.TB, log metalog.Log, known told) {
	t.Helper()
	next := known.producers[0].Next
	a := one(shardA, known.states[0].Epoch, "more")
	a.Shards[0].ExpectLSN = known.states[0].NextLSN
	a.Shards[0].Sequences = []metalog.Sequence{{Producer: 7, Epoch: 3, First: next, Last: next}}
	if _, err := log.Append(t.Context(), a); err != nil {
		t.Errorf("the writer can't go on: %v", err)
	}
	a.Shards[0].ExpectLSN = 0
	if _, err := log.Append(t.Context(), a); err == nil {
		t.Error("a repetition is taken")
	}
}

// detachNode ends a cell, and goes on with the folder of its last node.
func detachNode(t *testing.T, c *testCell, known told) {
	t.Helper()
	n, leader := c.nodes[2], c.leader(t)
	if err := n.engine.DetachTo(t.Context(), ""); !errors.Is(err, metalog.ErrInvalid) {
		t.Errorf("detached to nobody: %v", err)
	}
	if err := leader.engine.DetachTo(t.Context(), n.name); err != nil {
		t.Fatal(err)
	}
	for _, n := range c.nodes {
		<-n.engine.Failed()
		if _, err := n.engine.Tail(t.Context(), adoptedShards); !errors.Is(err, journal.ErrDetached) {
			t.Errorf("%s answers with %v", n.name, err)
		}
	}
	head := c.head(t)
	o := Options{FS: n.folder}
	early := head
	early.Seq++
	c.closeAll(t)
	if err := DetachFolder(testDir, o, early); err == nil {
		t.Error("a folder that is behind is detached")
	}
	for range 2 {
		if err := DetachFolder(testDir, o, head); err != nil {
			t.Fatal(err)
		}
	}
	e, err := Open(testDir, o)
	if err != nil {
		t.Fatal(err)
	}
	checkTold(t, "detached,", e, known)
	if w, _, _ := e.clock.watermark(); w < head.Bound {
		t.Errorf("its clock is at %d, and the cell of nodes told up to %d", w, head.Bound)
	}
	goOn(t, e, known)
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	late, err := Open("late", Options{FS: vfs.NewMem(), Journal: c.nodes[0].store.Open(), Snapshots: n.options.Snapshots})
	if err != nil {
		t.Fatal(err)
	}
	<-late.Failed()
	if err := late.Err(); !errors.Is(err, journal.ErrDetached) {
		t.Errorf("a replica that starts afterwards: %v", err)
	}
	_ = late.Close()
}

// TestAdoptCrashes crashes an export, an adoption, and a detaching before each of their writes: until the adoption the folder opens as before; from then on
// repeating the call completes it.
func TestAdoptCrashes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before, known := ownFolder(t)
		store := memory.New()
		at, err := ExportFolder(t.Context(), testDir, Options{FS: before, Snapshots: store})
		if err != nil {
			t.Fatal(err)
		}
		head := journal.Head{Seq: at.Seq, Chain: at.Chain, Bound: at.Time + 5}
		points := crashEach(t, before, func(fs vfs.FS) error {
			_, err := ExportFolder(t.Context(), testDir, Options{FS: fs, Snapshots: memory.New()})
			return err
		}, func(fs *vfs.MemFS) { checkOwn(t, fs, "crashed in an export,", known) })
		points += crashEach(t, before, func(fs vfs.FS) error { return AdoptFolder(testDir, Options{FS: fs}, at) }, func(fs *vfs.MemFS) {
			if err := AdoptFolder(testDir, Options{FS: fs}, at); err != nil {
				t.Errorf("adopted again: %v", err)
			}
			if _, err := Open(testDir, Options{FS: fs}); !errors.Is(err, ErrReplica) {
				t.Errorf("the folder opens without a journal: %v", err)
			}
			if err := DetachFolder(testDir, Options{FS: fs}, head); err != nil {
				t.Error(err)
			}
			checkOwn(t, fs, "crashed in an adoption, then detached,", known)
		})
		if err := AdoptFolder(testDir, Options{FS: before}, at); err != nil {
			t.Fatal(err)
		}
		points += crashEach(t, before, func(fs vfs.FS) error { return DetachFolder(testDir, Options{FS: fs}, head) }, func(fs *vfs.MemFS) {
			if err := DetachFolder(testDir, Options{FS: fs}, head); err != nil {
				t.Errorf("detached again: %v", err)
			}
			checkOwn(t, fs, "crashed in a detaching,", known)
		})
		t.Logf("crashed %d times", points)
	})
}

// checkOwn requires that a folder opens without a journal, with what was known of it.
func checkOwn(t *testing.T, fs vfs.FS, what string, known told) {
	t.Helper()
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Errorf("%s the folder does not open: %v", what, err)
		return
	}
	checkTold(t, what, e, known)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// crashEach runs a function on copies of a folder, once for each of its writes, and checks what a crash before that leaves.
func crashEach(t *testing.T, folder *vfs.MemFS, run func(vfs.FS) error, check func(*vfs.MemFS)) (points int) {
	t.Helper()
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for point := 0; ; point++ {
		mem := folder.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
		var mu sync.Mutex
		var crashed *vfs.MemFS
		operations := 0
		err := run(errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() != errorfs.OpIsWrite || op.Kind == errorfs.OpFileClose {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			if operations == point {
				// All that is not synced is lost, or nothing: Pebble, when it opens a folder, relies on names of files not being lost in another order.
				crashed = mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(2) * 100, RNG: rng})
			}
			operations++
			return nil
		})))
		if err != nil {
			t.Fatal(err)
		}
		if crashed == nil {
			return point
		}
		check(crashed)
		if t.Failed() {
			t.Fatalf("crashed before operation %d of %d", point, operations)
		}
	}
}

// TestExportTables: tables are stored while the engine runs, once, under the names that an export of the folder looks for.
func TestExportTables(t *testing.T) {
	fs, store := vfs.NewCrashableMem(), memory.New()
	o := Options{FS: fs, Snapshots: store}
	if _, _, err := ExportTables(t.Context(), "missing", o); err == nil {
		t.Error("tables of a folder that is not there are exported")
	}
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	states, err := e.Open(t.Context(), "test", []record.ShardID{shardA})
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 50_000) // which does not compress: small tables are in lists
	seededOptions(1).Random.Read(data)
	if _, err := e.Append(t.Context(), one(shardA, states[0].Epoch, string(data))); err != nil {
		t.Fatal(err)
	}
	if err := e.db.Flush(); err != nil {
		t.Fatal(err)
	}
	var stored []string
	for range 2 {
		if tables, bytes, err := ExportTables(t.Context(), testDir, o); err != nil || tables != 1 || bytes < int64(len(data)) {
			t.Fatalf("exported %d tables of %d bytes, %v", tables, bytes, err)
		}
		stored = listTables(t, store)
	}
	name := mustList(t, fs, testDir)
	name = slices.DeleteFunc(name, func(n string) bool { return !strings.HasSuffix(n, ".sst") })
	info, err := fs.Stat(fs.PathJoin(testDir, name[0]))
	if err != nil {
		t.Fatal(err)
	}
	table, err := readFile(fs, fs.PathJoin(testDir, name[0]), info.Size())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(table)
	if len(name) != 1 || len(stored) != 1 || stored[0] != tableKey("main", [16]byte(sum[:16])) {
		t.Errorf("stored %v of %v, with the hash %x", stored, name, sum)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// listTables returns the keys of the tables in a store.
func listTables(t *testing.T, store *memory.Store) (keys []string) {
	t.Helper()
	for info, err := range store.List(t.Context(), "meta/main/sst/") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

// TestForeignSnapshot: a list that another journal left under the number of a snapshot is replaced, and so is a damaged one; that of another leader stays.
func TestForeignSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New()
		c, _ := newCell(t, 1, snapshotOptions(store))
		c.fill(t)
		e := c.nodes[0].engine
		s := newSnapshotter(e)
		mine, err := s.uploadCheckpoint(t.Context(), "work")
		if err != nil {
			t.Fatal(err)
		}
		key := snapshotKey("main", mine.Seq)
		foreign := mine
		foreign.Chain[0]++
		for what, planted := range map[string][]byte{"foreign": schema.AppendSnapshot(nil, foreign), "damaged": []byte("damaged"), "mine": schema.AppendSnapshot(nil, mine)} {
			if err := errors.Join(store.Delete(t.Context(), key), store.Put(t.Context(), key, planted)); err != nil {
				t.Fatal(err)
			}
			if again, err := s.uploadCheckpoint(t.Context(), "work"); err != nil || again.Applied != mine.Applied {
				t.Fatalf("%s: %+v, %v", what, again.Applied, err)
			}
			info, err := store.Stat(t.Context(), key)
			if err != nil {
				t.Fatal(err)
			}
			info.Key = key
			if got, err := readList(t.Context(), store, info); err != nil || got.Applied != mine.Applied {
				t.Errorf("%s: the list is of %+v, %v", what, got.Applied, err)
			}
		}
		c.closeAll(t)
	})
}

// TestAdoptRefused: what is not a folder of logs, or has changed since its export, is not adopted.
func TestAdoptRefused(t *testing.T) {
	fs, _ := ownFolder(t)
	o := Options{FS: fs, Snapshots: memory.New()}
	if _, err := ExportFolder(t.Context(), "missing", o); err == nil {
		t.Error("a folder that is not there is exported")
	}
	at, err := ExportFolder(t.Context(), testDir, o)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := AdoptFolder(testDir, o, at); err == nil || !strings.Contains(err.Error(), "used since") {
		t.Errorf("a folder that was used since its export: %v", err)
	}
}
