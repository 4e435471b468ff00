package rpc

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"

	"scribe/internal/transport/principal"
	"scribe/internal/transport/tlsfiles"
)

// tlsListener accepts connections over TLS.
type tlsListener struct {
	net.Listener
	files *tlsfiles.Files
}

// filesKey is the key of the files with which a listener's connections are verified.
type filesKey struct{}

// listenerContext returns the context of a listener's connections.
func listenerContext(ctx context.Context, l net.Listener) context.Context {
	if l, ok := l.(tlsListener); ok && l.files.AsksClients() {
		return context.WithValue(ctx, filesKey{}, l.files)
	}
	return ctx
}

// connIdentity is what a connection proves of its client.
type connIdentity struct {
	// files verify the client's certificate; nil for a Unix socket.
	files    *tlsfiles.Files
	verified atomic.Pointer[tlsfiles.Verified]
	// user is the principal at the other end of a Unix socket.
	user principal.Principal
}

type connIdentityKey struct{}

// connContext returns the context of a connection's requests.
func connContext(ctx context.Context, c net.Conn) context.Context {
	switch c := c.(type) {
	case *tls.Conn:
		tuneLoopback(c.NetConn())
		if files, ok := ctx.Value(filesKey{}).(*tlsfiles.Files); ok {
			return context.WithValue(ctx, connIdentityKey{}, &connIdentity{files: files})
		}
	case *net.UnixConn:
		if user := peerUser(c); user != "" {
			return context.WithValue(ctx, connIdentityKey{}, &connIdentity{user: principal.Principal{Kind: principal.Client, Name: user}})
		}
	default:
		tuneLoopback(c)
	}
	return ctx
}

// certificateErrorKey is the key of why a connection's certificate proves nothing.
type certificateErrorKey struct{}

// CertificateError says why the connection of a request's context proves nothing of its client; nil if that was not asked for, or is proved.
func CertificateError(ctx context.Context) error {
	err, _ := ctx.Value(certificateErrorKey{}).(error)
	return err
}

// identifyClient returns the request with the principal that its connection proves.
func identifyClient(w http.ResponseWriter, r *http.Request) *http.Request {
	ctx := r.Context()
	id, ok := ctx.Value(connIdentityKey{}).(*connIdentity)
	switch {
	case !ok:
		return r
	case id.files == nil:
		return r.WithContext(principal.NewContext(ctx, id.user))
	case r.TLS == nil:
		return r
	}
	known := id.verified.Load()
	v, ended := id.files.VerifyClient(r.TLS, known)
	if v != known {
		id.verified.Store(v)
	}
	if ended { // HTTP/1.1 closes the connection after the answer, HTTP/2 takes no new requests
		w.Header().Set("Connection", "close")
	}
	return r.WithContext(WithVerified(WithRemoteAddress(ctx, r.RemoteAddr), v))
}

type remoteAddressKey struct{}

// WithRemoteAddress returns a context with the host:port from which its request came.
func WithRemoteAddress(ctx context.Context, address string) context.Context {
	return context.WithValue(ctx, remoteAddressKey{}, address)
}

// RemoteAddress returns the host:port from which the request of ctx came, "" where callers need not prove who they are.
func RemoteAddress(ctx context.Context) string {
	address, _ := ctx.Value(remoteAddressKey{}).(string)
	return address
}

// WithVerified returns a context with what a client's certificate is worth.
func WithVerified(ctx context.Context, v *tlsfiles.Verified) context.Context {
	if v.Err != nil {
		return context.WithValue(ctx, certificateErrorKey{}, v.Err)
	}
	return principal.NewContext(ctx, v.Principal)
}
