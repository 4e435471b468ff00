package metalog_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/testclock"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/remote"
)

func TestMain(m *testing.M) { etcdtest.VerifyMain(m) }

func TestPebblelog(t *testing.T) { runSuite(t, onMemory) }

// onMemory makes engines in memory, with a file system that can crash.
func onMemory(tb testing.TB) *logInstance {
	tb.Helper()
	fs := vfs.NewCrashableMem()
	clock := testclock.New()
	rng := rand.New(rand.NewPCG(rand.Uint64(), 0))
	open := func(tb testing.TB) *pebblelog.Engine {
		tb.Helper()
		e, err := pebblelog.Open("log", pebblelog.Options{FS: fs, Clock: clock.Now, MemTableBytes: 1 << 20})
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
	return &logInstance{
		log:   e,
		clock: clock,
		restart: func(tb testing.TB) metalog.Log {
			tb.Helper()
			end(tb)
			e = open(tb)
			return e
		},
		crash: func(tb testing.TB) metalog.Log {
			tb.Helper()
			// What was not synced is lost, or not, block by block.
			crashed := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
			end(tb)
			fs = crashed
			e = open(tb)
			return e
		},
		damage: func(tb testing.TB, shard record.ShardID, lsn record.LSN) metalog.Log {
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
	// The version of Pebble's files stays what the engine made it.
	db, err := pebble.Open("log", &pebble.Options{FS: fs, Logger: quiet{pebble.DefaultLogger}})
	if err != nil {
		tb.Fatal(err)
	}
	value, closer, err := db.Get(key)
	if err != nil {
		tb.Fatal(err)
	}
	damaged := bytes.Clone(value)
	damaged[len(damaged)-1] ^= 0x10
	if err := errors.Join(closer.Close(), db.Set(key, damaged, pebble.Sync), db.Close()); err != nil {
		tb.Fatal(err)
	}
}

// quiet drops what Pebble tells about its work.
type quiet struct{ pebble.Logger }

func (quiet) Infof(string, ...any) {}

func TestRemote(t *testing.T) {
	for name, c := range map[string]connect{"direct": direct, "memory": inMemory, "tcp": overTCP} {
		if testing.Short() && name != "tcp" {
			continue
		}
		t.Run(name, func(t *testing.T) { runSuite(t, connected(c)) })
	}
}

// connect returns the service of an engine as its clients see it.
type connect func(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService

func direct(_ testing.TB, svc rpc.MetalogService) rpc.MetalogService { return svc }

func inMemory(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService {
	l := memhttp.Listen()
	return serveLog(tb, svc, l, l.Dial)
}

func overTCP(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return serveLog(tb, svc, l, nil)
}

func serveLog(tb testing.TB, svc rpc.MetalogService, l net.Listener, dial rpc.Dial) rpc.MetalogService {
	tb.Helper()
	mux := http.NewServeMux()
	(&rpc.Services{Metalog: svc}).Register(mux)
	srv := rpc.NewServer(mux, nil)
	srv.Serve(l)
	t := rpc.NewTransport(dial)
	tb.Cleanup(func() {
		t.Close()
		if err := srv.Close(context.WithoutCancel(tb.Context())); err != nil {
			tb.Errorf("close the server: %v", err)
		}
	})
	return rpc.NewMetalogClient(t, "http://"+l.Addr().String())
}

// connected makes engines that are used through a client.
func connected(c connect) logFactory {
	return func(tb testing.TB) *logInstance {
		tb.Helper()
		fs := vfs.NewMem()
		clock := testclock.New()
		var engine *pebblelog.Engine
		open := func(tb testing.TB) metalog.Log {
			tb.Helper()
			e, err := pebblelog.Open("log", pebblelog.Options{FS: fs, Clock: clock.Now})
			if err != nil {
				tb.Fatal(err)
			}
			engine = e
			return remote.NewClient(c(tb, remote.NewServer(e)))
		}
		log := open(tb)
		end := func(tb testing.TB) {
			tb.Helper()
			if err := engine.Close(); err != nil {
				tb.Errorf("close the engine: %v", err)
			}
		}
		tb.Cleanup(func() { end(tb) }) // runs before the server of the last engine is closed
		return &logInstance{
			log:   log,
			clock: clock,
			restart: func(tb testing.TB) metalog.Log {
				tb.Helper()
				if err := log.Close(); err != nil {
					tb.Errorf("close the client: %v", err)
				}
				end(tb)
				log = open(tb)
				return log
			},
		}
	}
}
