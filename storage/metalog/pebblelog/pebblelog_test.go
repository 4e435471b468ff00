package pebblelog

import (
	"math/rand/v2"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/metalogtest"
	"scribe/storage/metalog/pebblelog/schema"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testDir = "log"

// onMemory makes engines in memory, with a file system that can crash.
func onMemory(tb testing.TB) *metalogtest.Instance {
	tb.Helper()
	fs := vfs.NewCrashableMem()
	clock := metalogtest.NewClock()
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	open := func(tb testing.TB) *Engine {
		tb.Helper()
		e, err := Open(testDir, Options{FS: fs, Clock: clock.Now, MemTableBytes: 1 << 20})
		if err != nil {
			tb.Fatal(err)
		}
		return e
	}
	e := open(tb)
	end := func(tb testing.TB) {
		tb.Helper()
		if err := e.Close(); err != nil {
			tb.Errorf("Close: %v", err)
		}
	}
	return &metalogtest.Instance{
		Log:   e,
		Clock: clock,
		Restart: func(tb testing.TB) metalog.Log {
			tb.Helper()
			end(tb)
			e = open(tb)
			return e
		},
		Crash: func(tb testing.TB) metalog.Log {
			tb.Helper()
			// What was not synced is lost, or not, block by block.
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
			end(tb)
			fs = crashed
			e = open(tb)
			return e
		},
		Damage: func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log {
			tb.Helper()
			end(tb)
			flipByte(tb, fs, schema.AppendRecordKey(nil, shard, lsn))
			e = open(tb)
			return e
		},
	}
}

// flipByte changes one byte of a value behind the engine's back.
func flipByte(tb testing.TB, fs vfs.FS, key []byte) {
	tb.Helper()
	db, err := pebble.Open(testDir, &pebble.Options{FS: fs, FormatMajorVersion: pebbleFormat, Logger: quiet{}})
	if err != nil {
		tb.Fatal(err)
	}
	value, closer, err := db.Get(key)
	if err != nil {
		tb.Fatal(err)
	}
	damaged := append([]byte(nil), value...)
	if err := closer.Close(); err != nil {
		tb.Fatal(err)
	}
	damaged[len(damaged)-1] ^= 0x10
	if err := db.Set(key, damaged, pebble.Sync); err != nil {
		tb.Fatal(err)
	}
	if err := db.Close(); err != nil {
		tb.Fatal(err)
	}
}

// quiet drops what Pebble logs.
type quiet struct{}

func (quiet) Infof(string, ...any)      {}
func (quiet) Errorf(string, ...any)     {}
func (quiet) Fatalf(f string, a ...any) { panic(f) }

func TestAcceptance(t *testing.T) {
	metalogtest.Run(t, onMemory)
}
