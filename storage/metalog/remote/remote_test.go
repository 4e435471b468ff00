package remote_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	"scribe/storage/metalog"
	"scribe/storage/metalog/metalogtest"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/remote"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// connect returns the service of an engine as its clients see it.
type connect func(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService

func direct(_ testing.TB, svc rpc.MetalogService) rpc.MetalogService { return svc }

func inMemory(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService {
	l := memhttp.Listen()
	return serve(tb, svc, l, l.Dial, "http://memory")
}

func overTCP(tb testing.TB, svc rpc.MetalogService) rpc.MetalogService {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	return serve(tb, svc, l, nil, "http://"+l.Addr().String())
}

func serve(tb testing.TB, svc rpc.MetalogService, l net.Listener, dial rpc.Dial, url string) rpc.MetalogService {
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
	return rpc.NewMetalogClient(t, url)
}

// factory makes engines that are used through a client.
func factory(c connect) metalogtest.Factory {
	return func(tb testing.TB) *metalogtest.Instance {
		tb.Helper()
		fs := vfs.NewMem()
		clock := metalogtest.NewClock()
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
		return &metalogtest.Instance{
			Log:   log,
			Clock: clock,
			Restart: func(tb testing.TB) metalog.Log {
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

func TestAcceptance(t *testing.T) {
	for name, c := range map[string]connect{"direct": direct, "memory": inMemory, "tcp": overTCP} {
		t.Run(name, func(t *testing.T) { metalogtest.Run(t, factory(c)) })
	}
}
