package inputs

import (
	"bytes"
	"context"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"scribe/internal/base/config"
)

// ListenConfig says where an input over TCP or HTTP listens, and who may write to it.
type ListenConfig struct {
	// Address is host:port; port 0 picks a free one. Anyone who can reach it can write: use loopback unless there is a token or
	// TLS.
	Address string `yaml:"address"`
	// TLSCert and TLSKey are PEM files; with them the input accepts only TLS.
	TLSCert string `yaml:"tls_cert"`
	TLSKey  string `yaml:"tls_key"`
	// TokenFile holds a token that HTTP requests must carry as "Authorization: Bearer TOKEN"; empty = no token needed.
	TokenFile string `yaml:"token_file"`
}

// Validate reports every violation.
func (l *ListenConfig) Validate() error {
	v := config.Check("listen", l, nil)
	if _, port, err := net.SplitHostPort(l.Address); err != nil || port == "" {
		v.Add("Address", "invalid value %q: want host:port", l.Address)
	}
	if l.TLSCert != "" && l.TLSKey == "" {
		v.Add("TLSKey", "missing: want the file of the key of tls_cert")
	}
	if l.TLSCert == "" && l.TLSKey != "" {
		v.Add("TLSCert", "missing: want the file of the certificate of tls_key")
	}
	return v.Err()
}

// Open listens on Address, with TLS if it is configured.
func (l *ListenConfig) Open(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	nl, err := lc.Listen(ctx, "tcp", l.Address)
	if err != nil || l.TLSCert == "" {
		return nl, err
	}
	pair, err := tls.LoadX509KeyPair(l.TLSCert, l.TLSKey)
	if err != nil {
		return nil, errors.Join(err, nl.Close())
	}
	return tls.NewListener(nl, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}

// NewPatientBody wraps a request body so that a read without progress for patience fails. So a slow or silent client frees its
// request slot.
func NewPatientBody(w http.ResponseWriter, body io.ReadCloser, patience time.Duration) io.ReadCloser {
	return &patientBody{ReadCloser: body, control: http.NewResponseController(w), patience: patience}
}

type patientBody struct {
	io.ReadCloser
	control  *http.ResponseController
	patience time.Duration
}

// Read implements io.Reader. The deadline is set only during a read: one that passes while the request is being answered would
// end it. A ResponseWriter without deadlines, as in a test, waits forever.
func (p *patientBody) Read(b []byte) (int, error) {
	_ = p.control.SetReadDeadline(time.Now().Add(p.patience))
	n, err := p.ReadCloser.Read(b)
	if err == nil || errors.Is(err, io.EOF) {
		_ = p.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// maxToken bounds a token file in bytes.
const maxToken = 4096

// RequireToken returns a handler that refuses requests without the token. It fails if the token file cannot be read.
func (l *ListenConfig) RequireToken(next http.Handler) (http.Handler, error) {
	if l.TokenFile == "" {
		return next, nil
	}
	token, err := os.ReadFile(l.TokenFile)
	if err != nil {
		return nil, err
	}
	if token = bytes.TrimSpace(token); len(token) == 0 || len(token) > maxToken {
		return nil, fmt.Errorf("token file %s: a token of 1 to %d bytes is needed", l.TokenFile, maxToken)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || subtle.ConstantTimeCompare([]byte(given), token) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a bearer token is needed", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	}), nil
}

// Timeouts of HTTP inputs: for the head of a request, for the rest of a body that is not read, and at shutdown for requests that
// are being answered.
const (
	headTimeout = 10 * time.Second
	restTimeout = time.Second
	idleTimeout = 2 * time.Minute
	drainTime   = 10 * time.Second
)

// boundRest bounds how long the server waits for the rest of a body that a handler did not read.
func boundRest(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restTimeout)) // until the next request sets its own
	})
}

// ServeHTTP serves until ctx ends, then lets running requests finish. It calls open once it is ready to serve.
func (l *ListenConfig) ServeHTTP(ctx context.Context, nl net.Listener, h http.Handler, open func()) error {
	guarded, err := l.RequireToken(h)
	if err != nil {
		return errors.Join(err, nl.Close())
	}
	open()
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{
		Handler: boundRest(guarded), Protocols: &protocols, ReadHeaderTimeout: headTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(nl) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	err = server.Shutdown(drain)
	if err != nil {
		err = errors.Join(err, server.Close())
	}
	if ended := <-failed; !errors.Is(ended, http.ErrServerClosed) {
		err = errors.Join(err, ended)
	}
	return err
}
