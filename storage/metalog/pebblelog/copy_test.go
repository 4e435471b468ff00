package pebblelog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/blob/memory"
	"scribe/storage/metalog"
)

// TestCopyWhileItRuns: a copy of a folder has everything that was acknowledged before, without a hole, and tells from which time on everything else is. Writers go on meanwhile.
func TestCopyWhileItRuns(t *testing.T) {
	fs := vfs.NewMem()
	e, err := Open(testDir, Options{FS: fs, MemTableBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	epoch := mustOpen(t, e, shardA, shardB)[0].Epoch
	var acked atomic.Uint64
	var writing sync.WaitGroup
	stop := make(chan struct{})
	enough := make(chan struct{})
	writing.Go(func() {
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			a := one(shardA, epoch, fmt.Sprint("record ", i))
			a.Shards[0].Sequences = []metalog.Sequence{{Producer: 7, Epoch: 3, First: i, Last: i}}
			if _, err := e.Append(t.Context(), a); err != nil {
				t.Error(err)
				return
			}
			if acked.Store(i + 1); i == 2000 {
				close(enough)
			}
		}
	})
	<-enough
	if err := errors.Join(e.Retire(t.Context(), 99), e.Retire(t.Context(), 100)); err != nil {
		t.Fatal(err)
	}
	if _, err := e.AdvanceBoundary(t.Context(), 12345); err != nil {
		t.Fatal(err)
	}
	before := acked.Load()
	var next record.LSN
	var watermark int64
	err = e.WithCopy(t.Context(), func(dir string, w int64) error {
		if err := e.WithCopy(t.Context(), func(string, int64) error { return nil }); !errors.Is(err, ErrCopying) {
			t.Errorf("a copy while there is one: %v", err)
		}
		watermark = w
		next = readCopy(t, fs, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	close(stop)
	writing.Wait()
	if uint64(next) <= before || uint64(next) > acked.Load()+1 {
		t.Errorf("the copy ends before LSN %d; %d records were acknowledged before it, %d in the end", next, before, acked.Load())
	}
	if _, err := fs.Stat(testDir + "/" + copyName); err == nil {
		t.Error("the copy is still there")
	}
	last := record.LSN(acked.Load())
	if next <= last {
		entries, err := e.Read(t.Context(), shardA, next, 1, 0)
		if err != nil || len(entries) != 1 || entries[0].Time < watermark {
			t.Errorf("the first record after the copy: %+v, %v; the watermark was %d", entries, err, watermark)
		}
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}

// readCopy looks at everything in a copy, and returns the next LSN of shardA.
func readCopy(t *testing.T, fs vfs.FS, dir string) record.LSN {
	t.Helper()
	c, err := OpenCopy(dir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	st, found, err := c.State(shardA)
	if err != nil || !found {
		t.Fatalf("%+v, %v, %v", st, found, err)
	}
	if _, found, err := c.State(shardB + 1); found || err != nil {
		t.Errorf("a shard that was never opened: %v, %v", found, err)
	}
	var shards []record.ShardID
	if err := c.States(t.Context(), func(st metalog.State) error { shards = append(shards, st.Shard); return nil }); err != nil || len(shards) != 2 || shards[0] != shardA || shards[1] != shardB {
		t.Errorf("shards %v, %v", shards, err)
	}
	n, last := uint64(0), int64(0)
	err = c.Records(t.Context(), shardA, st.FirstLSN, st.NextLSN, func(lsn record.LSN, time int64, data []byte) error {
		if string(data) != fmt.Sprint("record ", n) || uint64(lsn) != n+1 || time < last {
			return fmt.Errorf("LSN %d at %d: %s", lsn, time, data)
		}
		n, last = n+1, time
		return nil
	})
	if err != nil || n != uint64(st.NextLSN-1) || last != st.LastTime || c.Clock() < last {
		t.Errorf("%d records, the last one at %d; state %+v, clock %d, %v", n, last, st, c.Clock(), err)
	}
	one, err := c.Record(shardA, 5)
	none, nerr := c.Record(shardA, st.NextLSN)
	if err != nil || nerr != nil || string(one) != "record 4" || none != nil {
		t.Errorf("%s, %v, %s, %v", one, err, none, nerr)
	}
	count := 0
	err = c.Producers(t.Context(), shardA, func(p metalog.ProducerState, lsn record.LSN, time int64) error {
		if count++; p != (metalog.ProducerState{Producer: 7, Epoch: 3, Next: n}) || uint64(lsn) != n || time != last {
			t.Errorf("%+v at LSN %d, %d", p, lsn, time)
		}
		return nil
	})
	known, kerr := c.Producer(shardA, 7)
	unknown, uerr := c.Producer(shardA, 8)
	if err := errors.Join(err, kerr, uerr); err != nil || count != 1 || known.Next != n || unknown.Known() {
		t.Errorf("%d producers, %+v, %+v, %v", count, known, unknown, err)
	}
	runs := ""
	c.Retired(func(first, last uint32) { runs += fmt.Sprint(first, "-", last, " ") })
	if runs != "99-100 " || !c.IsRetired(100) || c.IsRetired(101) || c.Boundary() != 12345 {
		t.Errorf("retired %s, boundary %d", runs, c.Boundary())
	}
	return st.NextLSN
}

// TestCopyOfReplica: each replica makes a copy that has what was acknowledged elsewhere.
func TestCopyOfReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 3, snapshotOptions(memory.New()))
		c.fill(t)
		want, err := c.Tail(t.Context(), []record.ShardID{shardA})
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range c.nodes {
			err := n.engine.WithCopy(t.Context(), func(dir string, watermark int64) error {
				copied, err := OpenCopy(dir, Options{FS: n.folder})
				if err != nil {
					return err
				}
				st, found, err := copied.State(shardA)
				if err != nil || !found || st.NextLSN < want[0].NextLSN || st.FirstLSN != want[0].FirstLSN || watermark < want[0].LastTime {
					t.Errorf("%s: %+v, watermark %d, %v; want %+v", n.name, st, watermark, err, want[0])
				}
				return copied.Close()
			})
			if err != nil {
				t.Errorf("%s: %v", n.name, err)
			}
		}
		c.closeAll(t)
	})
}

// What a process left of a copy when it was killed is removed by the next one.
func TestCopyIsRemoved(t *testing.T) {
	fs := vfs.NewMem()
	if err := errors.Join(fs.MkdirAll(testDir+"/"+copyName, 0o755), writeFile(fs, testDir+"/"+copyName+"/000007.sst", []byte("old"))); err != nil {
		t.Fatal(err)
	}
	e, err := Open(testDir, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(testDir + "/" + copyName); err == nil {
		t.Error("it is still there")
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
