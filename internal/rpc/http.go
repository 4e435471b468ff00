package rpc

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// Server serves a handler over HTTP/1.1 and HTTP/2 without TLS on any number of listeners.
type Server struct {
	http    *http.Server
	ctx     context.Context //nolint:containedctx // the root of the requests' contexts
	cancel  context.CancelFunc
	stop    context.CancelFunc // ends streams
	serving sync.WaitGroup
	failed  chan error
}

// NewServer returns a server that logs connection errors to logger; nil logs nothing.
func NewServer(h http.Handler, logger *slog.Logger) *Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{failed: make(chan error, 1)}
	stopping, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.ctx, s.cancel = context.WithCancel(context.WithValue(context.Background(), stoppingKey{}, stopping))
	s.http = &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         protocols(true, true),
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.ctx },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			tuneLoopback(c)
			return ctx
		},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 10_000,
			SendPingTimeout:      15 * time.Second,
			PingTimeout:          10 * time.Second,
		},
	}
	return s
}

// Serve starts to accept on l, which it takes over, and returns at once.
func (s *Server) Serve(l net.Listener) {
	s.serving.Go(func() {
		if err := s.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			select {
			case s.failed <- err:
			default: // the first failure is the one that ends the process
			}
		}
	})
}

// Failed yields the error of a listener that stopped accepting by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Close stops accepting, ends the contexts of streams, whose clients are told to connect again, and waits until what runs has
// ended. When ctx ends first, the remaining calls' contexts and connections are ended, and ctx's error is returned. It can be
// called again.
func (s *Server) Close(ctx context.Context) error {
	s.stop()
	err := s.http.Shutdown(ctx)
	s.cancel()
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.serving.Wait()
	return err
}
