package rpc_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"scribe/internal/transport/certificates/certtest"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/tlsfiles"
	scribev1 "scribe/proto/scribe/v1"
)

// naming is a control service that tells who calls.
type naming struct{ rpc.ControlService }

func (naming) GetStatus(ctx context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	p := principal.FromContext(ctx)
	text := p.Kind.String() + " " + p.Name
	if err := rpc.CertificateError(ctx); err != nil {
		text += ": " + err.Error()
	}
	return &scribev1.GetStatusResponse{Version: text}, nil
}

func (naming) WatchMembers(ctx context.Context, _ *scribev1.WatchMembersRequest, send func(*scribev1.WatchMembersResponse) error) error {
	return send(&scribev1.WatchMembersResponse{Members: []*scribev1.Member{{Id: principal.FromContext(ctx).Name}}})
}

// listenAny returns a listener, and what connects to it for any address. Its connections have buffers, as the alerts of a failed handshake need.
func listenAny(t *testing.T) (net.Listener, rpc.Dial) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l, func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, l.Addr().String())
	}
}

// tlsCell is a server over TLS.
type tlsCell struct {
	t    *testing.T
	ca   *certtest.Authority
	dial rpc.Dial
}

func newTLSCell(t *testing.T, askClients bool) *tlsCell {
	t.Helper()
	c := &tlsCell{t: t, ca: certtest.New(t, "cell", time.Now())}
	var listen net.Listener
	listen, c.dial = listenAny(t)
	cert, key := c.ca.Server("n1", "n1.example.net")
	cfg := tlsfiles.Config{Cert: cert, Key: key}
	if askClients {
		cfg.ClientCA = c.ca.File
	}
	mux := http.NewServeMux()
	(&rpc.Services{Control: naming{}, Logger: slog.New(slog.DiscardHandler)}).Register(mux)
	server := rpc.NewServer(mux, nil)
	server.ServeTLS(listen, c.open(cfg))
	t.Cleanup(func() { _ = server.Close(context.Background()) })
	return c
}

func (c *tlsCell) open(cfg tlsfiles.Config) *tlsfiles.Files {
	c.t.Helper()
	files, err := tlsfiles.Open(cfg, tlsfiles.Deps{})
	if err != nil {
		c.t.Fatal(err)
	}
	return files
}

// client returns a client with a certificate; empty files are none.
func (c *tlsCell) client(cert, key, url string) rpc.ControlService {
	c.t.Helper()
	transport := rpc.NewTransport(c.dial, rpc.WithTLS(c.open(tlsfiles.Config{Cert: cert, Key: key, CA: c.ca.File})))
	c.t.Cleanup(transport.Close)
	return rpc.NewControlClient(transport, url)
}

// TestTLSNamesClients: calls over both versions of HTTP carry whom the client's certificate names.
func TestTLSNamesClients(t *testing.T) {
	c := newTLSCell(t, true)
	cert, key := c.ca.Client("ada", principal.Operator)
	ada := c.client(cert, key, "https://n1.example.net")
	res, err := ada.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil || res.GetVersion() != "operator ada" {
		t.Errorf("%v, %v", res, err)
	}
	var streamed string
	err = ada.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(m *scribev1.WatchMembersResponse) error {
		streamed = m.GetMembers()[0].GetId()
		return nil
	})
	if err != nil || streamed != "ada" {
		t.Errorf("over a stream: %q, %v", streamed, err)
	}
	res, err = c.client("", "", "https://n1.example.net").GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil || res.GetVersion() != "anonymous : the connection has no client certificate" {
		t.Errorf("without a certificate: %v, %v", res, err)
	}
	strange, strangeKey := certtest.New(t, "another cell", time.Now()).Client("ada", principal.Operator)
	res, err = c.client(strange, strangeKey, "https://n1.example.net").GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil || !strings.HasPrefix(res.GetVersion(), "anonymous : ") || !strings.Contains(res.GetVersion(), "does not know") {
		t.Errorf("of another authority: %v, %v", res, err)
	}
}

// TestTLSWithoutClients: a server that asks for no certificates names nobody.
func TestTLSWithoutClients(t *testing.T) {
	c := newTLSCell(t, false)
	cert, key := c.ca.Client("ada", principal.Operator)
	res, err := c.client(cert, key, "https://n1.example.net").GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if err != nil || res.GetVersion() != "anonymous " {
		t.Errorf("%v, %v", res, err)
	}
}

// TestTLSWrongScheme: http where the server speaks TLS, and https where it does not, are told at the first call, which nobody has seen.
func TestTLSWrongScheme(t *testing.T) {
	c := newTLSCell(t, true)
	_, err := c.client("", "", "http://n1.example.net").GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(rpc.Message(err), "n1.example.net speaks TLS: use https://") {
		t.Errorf("http to a port of TLS: %v", err)
	}
	plain, dial := listenAny(t)
	server := rpc.NewServer(http.NotFoundHandler(), nil)
	server.Serve(plain)
	defer func() { _ = server.Close(context.Background()) }()
	transport := rpc.NewTransport(dial)
	defer transport.Close()
	client := rpc.NewControlClient(transport, "https://n1.example.net")
	_, err = client.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !strings.Contains(rpc.Message(err), "does not speak TLS: use http://") {
		t.Errorf("https to a port without TLS: %v", err)
	}
	err = client.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error { return nil })
	if !strings.Contains(rpc.Message(err), "does not speak TLS: use http://") {
		t.Errorf("a stream to a port without TLS: %v", err)
	}
}

// TestTLSPlainRequest: a program of others that forgets TLS gets an answer that it can show.
func TestTLSPlainRequest(t *testing.T) {
	c := newTLSCell(t, true)
	conn, err := c.dial(t.Context(), "tcp", "n1:443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = io.WriteString(conn, "GET /livez HTTP/1.1\r\nHost: n1\r\n\r\n") }()
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "HTTPS") {
		t.Errorf("%d %q, %v", res.StatusCode, body, err)
	}
}

// TestTLSOldVersion: nothing older than TLS 1.3 is spoken.
func TestTLSOldVersion(t *testing.T) {
	c := newTLSCell(t, false)
	conn, err := c.dial(t.Context(), "tcp", "n1:443")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	err = tls.Client(conn, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}).HandshakeContext(t.Context()) //nolint:gosec // the version is what is tried
	if err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("got %v", err)
	}
}

// TestRefuseRequest: a refusal is an error of the request's own protocol, and reaches a client that sends all of a large body before it reads.
func TestRefuseRequest(t *testing.T) {
	refusal := connect.NewError(connect.CodePermissionDenied, context.Canceled)
	server := rpc.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rpc.RefuseRequest(w, r, refusal) }), nil)
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server.Serve(l)
	defer func() { _ = server.Close(context.Background()) }()
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	url := "http://" + l.Addr().String()
	_, err = rpc.NewWriteClient(transport, url).Write(t.Context(), &scribev1.WriteRequest{Frames: make([]byte, 8<<20)})
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a large write: %v", err)
	}
	err = rpc.NewControlClient(transport, url).WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error { return nil })
	if connect.CodeOf(err) != connect.CodePermissionDenied {
		t.Errorf("a stream: %v", err)
	}
	res, err := transport.HTTPClient().Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusForbidden {
		t.Errorf("a path without a protocol: %s", res.Status)
	}
}
