package rpc

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/transport/tlsfiles"
)

// Transport holds a process's connections to other processes. Unary calls, whose bodies are large, use HTTP/1.1, which costs Go
// about half as much per byte as HTTP/2. Streams use HTTP/2, with TLS if the URL says so. It is safe for concurrent use.
type Transport struct {
	unary, stream namedClient
	borrowed      bool
	tokens        *tokenHolder

	sets struct {
		sync.Mutex
		byText map[string]*AddressSet // by the text of the list
	}
}

// Dial opens a connection to an address of the form host:port.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// TransportOption changes what NewTransport makes.
type TransportOption func(*transportOptions)

type transportOptions struct{ files *tlsfiles.Files }

// WithTLS proves with a process's files who it is, and trusts the authorities in them, where URLs say https. Nil is the default: no certificate,
// and the machine's authorities.
func WithTLS(files *tlsfiles.Files) TransportOption {
	return func(o *transportOptions) { o.files = files }
}

// programFiles are the files of a program that is one client.
var programFiles atomic.Pointer[tlsfiles.Files]

// SetProgramTLS is WithTLS for every transport over the network that the process makes later and that has no files of its own. It is for the main
// package of a command, which is one client: libraries take files as options.
func SetProgramTLS(files *tlsfiles.Files) { programFiles.Store(files) }

// NewTransport returns a transport over dial; nil means TCP, and Unix sockets for URLs of the form unix:/path.
func NewTransport(dial Dial, options ...TransportOption) *Transport {
	var with transportOptions
	if dial == nil {
		dial, with.files = dialNet, programFiles.Load()
	}
	for _, option := range options {
		option(&with)
	}
	connected := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dialPatiently(ctx, dial, network, addr)
		if err != nil {
			return nil, &dialError{err}
		}
		return c, nil
	}
	secured := func(ctx context.Context, network, addr, protocol string) (net.Conn, error) {
		c, err := connected(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		tuneLoopback(c)
		return dialTLS(ctx, with.files, c, addr, protocol)
	}
	unary := &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := connected(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			tuneLoopback(c)
			return bulkConn{c}, nil
		},
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := secured(ctx, network, addr, "http/1.1")
			if err != nil {
				return nil, err
			}
			return bulkConn{c}, nil
		},
		MaxIdleConnsPerHost: 64,
		IdleConnTimeout:     90 * time.Second, // less than a server's, which would otherwise close a connection that is about to be used
		DisableCompression:  true,
		WriteBufferSize:     4 << 10, // large bodies are not buffered
		ReadBufferSize:      16 << 10,
		Protocols:           newProtocols(true, false),
	}
	stream := &http.Transport{
		DialContext: connected,
		DialTLSContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return secured(ctx, network, addr, "h2")
		},
		IdleConnTimeout:    90 * time.Second,
		DisableCompression: true,
		Protocols:          newProtocols(false, true),
		HTTP2: &http.HTTP2Config{
			// A peer that vanished without closing is detected after SendPingTimeout + PingTimeout without any frame.
			SendPingTimeout: 15 * time.Second,
			PingTimeout:     10 * time.Second,
		},
	}
	tokens := new(tokenHolder)
	return &Transport{
		unary: namedClient{&http.Client{Transport: unary}, tokens}, stream: namedClient{&http.Client{Transport: stream}, tokens}, tokens: tokens,
	}
}

// dialTLS makes a new connection one over TLS. No request was sent if it fails.
func dialTLS(ctx context.Context, files *tlsfiles.Files, c net.Conn, addr, protocol string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	secure, err := files.Handshake(ctx, c, host, protocol)
	if err != nil {
		return nil, &dialError{err}
	}
	if got := secure.ConnectionState().NegotiatedProtocol; protocol == "h2" && got != protocol {
		_ = secure.Close() // nothing was sent
		return nil, &dialError{fmt.Errorf("the server at %s does not speak HTTP/2, which streams need", addr)}
	}
	return secure, nil
}

// OverClient returns a transport over the caller's HTTP client, which may add TLS, authentication or tracing. It must use HTTP/2
// with servers whose streams are bidirectional. The caller remains responsible for closing it.
func OverClient(hc *http.Client) *Transport {
	tokens := new(tokenHolder)
	return &Transport{unary: namedClient{hc, tokens}, stream: namedClient{hc, tokens}, borrowed: true, tokens: tokens}
}

// HTTPClient returns a client over the transport's connections, for libraries that take a client: calls use HTTP/1.1, streams HTTP/2.
func (t *Transport) HTTPClient() *http.Client { return &http.Client{Transport: byProtocol{t}} }

// byProtocol sends each request over the connections that its kind uses.
type byProtocol struct{ *Transport }

// RoundTrip implements http.RoundTripper.
func (p byProtocol) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context()) // it is the caller's
	p.tokens.authorize(r)
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+") {
		return p.stream.Transport.RoundTrip(r)
	}
	return p.unary.Transport.RoundTrip(r)
}

// Default returns a transport that the process shares.
var Default = sync.OnceValue(func() *Transport { return NewTransport(nil) })

// Close closes idle connections. The transport remains usable.
func (t *Transport) Close() {
	if t.borrowed {
		return
	}
	t.unary.CloseIdleConnections()
	t.stream.CloseIdleConnections()
}

func newProtocols(http1, http2 bool) *http.Protocols {
	p := new(http.Protocols)
	p.SetHTTP1(http1)
	p.SetHTTP2(http2)
	p.SetUnencryptedHTTP2(http2)
	return p
}

// defaultPort is the default port of servers.
const defaultPort = "7420"

// baseURL converts the addresses that users write into base URLs: host, host:port and unix:/path in addition to real URLs.
func baseURL(addr string) string {
	addr = strings.TrimSpace(addr)
	isURL := strings.Contains(addr, "://")
	addr = strings.TrimRight(addr, "/")
	if path, ok := strings.CutPrefix(addr, "unix:"); ok {
		return "http://" + hexPath(strings.TrimPrefix(path, "//")) + unixSuffix
	}
	if isURL {
		return addr
	}
	host, path, _ := strings.Cut(addr, "/")
	if host == "" {
		return "http://" + addr // the call reports that there is no host
	}
	if path != "" {
		path = "/" + path
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
	}
	return "http://" + host + path
}

func dialNet(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{
		Timeout: 5 * time.Second,
		// A peer that vanished while an answer is awaited is detected after half a minute.
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
	host, _, err := net.SplitHostPort(addr)
	if err == nil && strings.HasSuffix(host, unixSuffix) {
		path, perr := pathFromHex(strings.TrimSuffix(host, unixSuffix))
		if perr != nil {
			return nil, perr
		}
		return d.DialContext(ctx, "unix", path)
	}
	return d.DialContext(ctx, network, addr)
}

// loopbackBuffer bounds the system's buffer of written bytes for a connection within the host. By default several megabytes may
// accumulate, which have left the processor's caches when they are read, so that a byte costs twice as much. Over a network the
// buffer compensates the delay, and the system chooses its size.
const loopbackBuffer = 256 << 10

// tuneLoopback bounds the system's write buffer of a TCP connection within the host.
func tuneLoopback(c net.Conn) {
	if bound, ok := c.(*boundConn); ok {
		c = bound.NetConn()
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if at, ok := tcp.RemoteAddr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
		_ = tcp.SetWriteBuffer(loopbackBuffer) // a failure costs only speed
	}
}
