package remote_test

import (
	"context"
	"net"
	"net/http"
	"testing"

	"go.uber.org/goleak"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
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
