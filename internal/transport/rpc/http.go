package rpc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/transport/tlsfiles"
)

// Server serves a handler over HTTP/1.1 and HTTP/2, with or without TLS, on any number of listeners. Requests carry whom their connection names
// ([principal.FromContext]): the client's certificate, or on a Unix socket the user.
type Server struct {
	http    *http.Server
	ctx     context.Context //nolint:containedctx // the root of the requests' contexts
	cancel  context.CancelFunc
	stop    context.CancelFunc // ends the streams
	serving sync.WaitGroup
	failed  chan error
	active  atomic.Int64 // calls in service
	mu      struct {
		sync.Mutex
		closing bool // nothing is added to serving any more
	}
}

// NewServer returns a server that logs connection errors to logger; nil logs nothing.
func NewServer(h http.Handler, logger *slog.Logger) *Server {
	logger = cmp.Or(logger, slog.New(slog.DiscardHandler))
	s := &Server{failed: make(chan error, 1)}
	counted := func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Add(-1)
		h.ServeHTTP(w, identifyClient(w, r))
	}
	stopping, stop := context.WithCancel(context.Background())
	s.stop = stop
	s.ctx, s.cancel = context.WithCancel(context.WithValue(context.Background(), stoppingKey{}, stopping))
	s.http = &http.Server{
		Handler:           http.HandlerFunc(counted),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		Protocols:         newProtocols(true, true),
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		BaseContext:       func(l net.Listener) context.Context { return listenerContext(s.ctx, l) },
		ConnContext:       connContext,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: 10_000,
			SendPingTimeout:      15 * time.Second,
			PingTimeout:          10 * time.Second,
		},
	}
	return s
}

// Serve starts to accept on l, which it owns from then on, and returns at once. After Close has begun, it closes l instead.
func (s *Server) Serve(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.closing {
		_ = l.Close() // no connection was accepted
		return
	}
	s.serving.Go(func() {
		if err := s.http.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
			select {
			case s.failed <- err:
			default: // the first failure already ends the process
			}
		}
	})
}

// ServeTLS is Serve over TLS, with the certificate of files.
func (s *Server) ServeTLS(l net.Listener, files *tlsfiles.Files) {
	s.Serve(tlsListener{tls.NewListener(l, files.ServerConfig()), files})
}

// Failed returns a channel with the error of a listener that stopped accepting by itself.
func (s *Server) Failed() <-chan error { return s.failed }

// Close stops accepting, ends the contexts of streams, whose clients are told to connect again, and waits for the running calls.
// If ctx ends first, Close ends the contexts and connections of the remaining calls, and returns ctx's error. It can be called
// again.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.mu.closing = true
	s.mu.Unlock()
	s.stop()
	shut := make(chan error, 1)
	go func() { shut <- s.http.Shutdown(ctx) }()
	err := s.awaitShutdown(shut)
	s.cancel()
	if err != nil {
		err = errors.Join(err, s.http.Close())
	}
	s.serving.Wait()
	return err
}

// closeLook is the interval at which Close checks for calls in service. After closeGrace without any, it closes the remaining
// connections; the grace lets answers leave.
const (
	closeLook  = 100 * time.Millisecond
	closeGrace = time.Second
)

// awaitShutdown waits for a shutdown to finish. The library waits for connections rather than for calls, and may miss an HTTP/2
// connection that was opened at the wrong moment. Without a call on it, such a connection would last until its client closes it,
// a minute or two later.
func (s *Server) awaitShutdown(shut <-chan error) error {
	look := time.NewTicker(closeLook)
	defer look.Stop()
	for quiet := time.Duration(0); ; {
		select {
		case err := <-shut:
			return err
		case <-look.C:
		}
		if quiet += closeLook; s.active.Load() > 0 {
			quiet = 0
		}
		if quiet >= closeGrace {
			err := s.http.Close() // this also ends the shutdown
			return errors.Join(err, <-shut)
		}
	}
}
