package rpc_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

// Close ends streams at once, with an error that sends their clients elsewhere, and lets unary calls finish.
func TestClose(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			began, finish := make(chan struct{}, 5), make(chan struct{})
			f := waiting(func(ctx context.Context) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			})
			f.unary = func(ctx context.Context, _ proto.Message) (proto.Message, error) {
				began <- struct{}{}
				select {
				case <-finish:
					return nil, nil
				case <-ctx.Done():
					return nil, ctx.Err()
				}
			}
			e := start(t, network, f.services())
			results := make(map[string]chan error)
			for _, kind := range kinds {
				c := make(chan error, 1)
				results[kind.name] = c
				go func() { c <- kind.call(t.Context(), e) }()
			}
			for range kinds {
				<-began
			}
			closed := make(chan error, 1)
			go func() { closed <- e.server.Close(context.Background()) }()
			for _, kind := range kinds[3:] {
				err := <-results[kind.name]
				if rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN || errors.Is(err, context.Canceled) ||
					connect.CodeOf(err) != connect.CodeUnavailable || rpc.Info(err).GetRetryAfter().AsDuration() != time.Second {
					t.Errorf("%s ended with %v", kind.name, err)
				}
			}
			select {
			case err := <-closed:
				t.Fatalf("closed while calls ran: %v", err)
			default:
			}
			close(finish)
			for _, kind := range kinds[:3] {
				if err := <-results[kind.name]; err != nil {
					t.Errorf("%s ended with %v", kind.name, err)
				}
			}
			if err := <-closed; err != nil {
				t.Errorf("close: %v", err)
			}
			if err := e.server.Close(context.Background()); err != nil {
				t.Errorf("close again: %v", err)
			}
			if err := kinds[0].call(t.Context(), e); rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
				t.Errorf("a call after it: %v", err)
			}
		})
	}
}

// A role that ends its streams itself, with a notice, is not interfered with.
func TestCloseAfterNotice(t *testing.T) {
	began := make(chan struct{})
	f := &fake{bidi: func(ctx context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
		close(began)
		<-ctx.Done()
		return send(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Evicted{Evicted: &scribev1.StreamEvicted{Reason: scribev1.Reason_REASON_SHUTTING_DOWN}}})
	}}
	e := start(t, "tcp", f.services())
	go func() {
		<-began
		_ = e.server.Close(context.Background())
	}()
	evicted := false
	err := e.readStream().Stream(t.Context(), noSteps, func(res *scribev1.StreamResponse) error {
		evicted = res.GetEvicted().GetReason() == scribev1.Reason_REASON_SHUTTING_DOWN
		return nil
	})
	if err != nil || !evicted {
		t.Errorf("evicted %t, %v", evicted, err)
	}
}

// What does not end by itself is ended when Close may wait no longer.
func TestCloseTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, 1)
		f := waiting(func(ctx context.Context) error {
			<-ctx.Done()
			ended <- ctx.Err()
			return ctx.Err()
		})
		e := start(t, "memory", f.services())
		called := make(chan error, 1)
		go func() { called <- kinds[0].call(t.Context(), e) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
		defer cancel()
		began := time.Now()
		if err := e.server.Close(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != 7*time.Second {
			t.Errorf("close after %s: %v", time.Since(began), err)
		}
		if err := <-called; rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("the call: %v", err)
		}
		if err := <-ended; err == nil {
			t.Error("the handler ended without an error")
		}
	})
}

// A server that nobody uses closes at once, with connections that are kept for later calls, of both kinds.
func TestCloseIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, "memory", new(fake).services())
		for _, kind := range kinds {
			if err := kind.call(t.Context(), e); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		if err := e.server.Close(t.Context()); err != nil || time.Since(began) > 2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// A listener that is given to a server while it closes, or later, is closed.
func TestServeDuringClose(t *testing.T) {
	for range 200 {
		s, l := rpc.NewServer(http.NotFoundHandler(), nil), memhttp.Listen()
		var both sync.WaitGroup
		both.Go(func() { s.Serve(l) })
		both.Go(func() {
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
		both.Wait()
		if c, err := l.Dial(t.Context(), "tcp", "x"); err == nil {
			_ = c.Close()
			t.Fatal("it still listens")
		}
	}
}

func TestListenerFails(t *testing.T) {
	s := rpc.NewServer(http.NotFoundHandler(), nil)
	l := listen(t, "tcp", "127.0.0.1:0")
	s.Serve(l)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-s.Failed(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("failed with %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
