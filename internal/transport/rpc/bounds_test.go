package rpc_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
)

// farConn is a connection from any address.
type farConn struct {
	net.Conn
	from net.Addr
}

func (c farConn) RemoteAddr() net.Addr { return c.from }

// farListener accepts what it is given.
type farListener chan net.Conn

func (l farListener) Accept() (net.Conn, error) {
	c, ok := <-l
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l farListener) Close() error   { return nil }
func (l farListener) Addr() net.Addr { return &net.TCPAddr{} }

// TestBoundListener: connections beyond a bound are closed, and counted by the bound; a place that was given back is taken again.
func TestBoundListener(t *testing.T) {
	from := make(farListener, 10)
	b := rpc.NewBounds(rpc.BoundsConfig{Connections: 4, AddressConnections: 2})
	l := b.BoundListener(from)
	dial := func(address string) (client net.Conn) {
		client, server := net.Pipe()
		t.Cleanup(func() { _ = client.Close() })
		from <- farConn{server, net.TCPAddrFromAddrPort(mustAddrPort(t, address))}
		return client
	}
	accept := func(address string) net.Conn {
		t.Helper()
		dial(address)
		c, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if got := c.RemoteAddr().String(); got != address {
			t.Fatalf("accepted a connection from %s, want one from %s", got, address)
		}
		return c
	}
	checkRefused := func(c net.Conn) {
		t.Helper()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("a connection beyond a bound: %v, want that it is closed", err)
		}
	}
	first := accept("[2001:db8::1]:1000")
	accept("[2001:db8::2]:1000")
	third := dial("[2001:db8::ffff:3]:1000") // the same network
	accept("192.0.2.1:1000")
	checkRefused(third)
	accept("192.0.2.1:1001")
	fifth := dial("192.0.2.2:1000")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Connections() != 3 {
		t.Errorf("%d connections are counted after one of four was closed", b.Connections())
	}
	_ = first.Close() // gives nothing back twice
	if b.Connections() != 3 {
		t.Errorf("%d connections are counted after one of four was closed twice", b.Connections())
	}
	// The fifth waits in the listener: it is accepted now that there is a place.
	if c, err := l.Accept(); err != nil || c.RemoteAddr().String() != "192.0.2.2:1000" {
		t.Fatal(c, err)
	}
	sixth := dial("192.0.2.3:1000")
	close(from)
	if _, err := l.Accept(); err == nil {
		t.Error("accepted a connection beyond the bound for all")
	}
	checkRefused(sixth)
	_ = fifth
	if got := b.Refused(); got["address"] != 1 || got["connections"] != 1 || got["caller"] != 0 {
		t.Errorf("refused are counted as %v", got)
	}
}

// TestBoundRequests: a caller's requests beyond its bound are refused before they reach a handler; those of others, and of members, are served.
func TestBoundRequests(t *testing.T) {
	b := rpc.NewBounds(rpc.BoundsConfig{CallerRequests: 2})
	inside, leave := make(chan struct{}), make(chan struct{})
	h := b.BoundRequests(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			inside <- struct{}{}
			<-leave
		}
	}))
	serve := func(who principal.Principal, remote, path string) int {
		r := httptest.NewRequestWithContext(principal.NewContext(context.Background(), who), http.MethodPost, path, strings.NewReader("body"))
		r.RemoteAddr = remote
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	ada, bob := principal.Principal{Kind: principal.Client, Name: "ada"}, principal.Principal{Kind: principal.Client, Name: "bob"}
	member := principal.Principal{Kind: principal.Member, Name: "n1"}
	ended := make(chan int)
	hold := func(who principal.Principal, remote string) {
		go func() { ended <- serve(who, remote, "/wait") }()
		<-inside
	}
	hold(ada, "192.0.2.1:1")
	hold(ada, "192.0.2.2:1")
	hold(principal.Principal{}, "192.0.2.1:1")
	hold(principal.Principal{}, "192.0.2.1:2")
	for range 3 {
		hold(member, "192.0.2.9:1")
	}
	for _, c := range []struct {
		who    principal.Principal
		remote string
		want   int
	}{
		{ada, "192.0.2.3:1", http.StatusTooManyRequests},
		{bob, "192.0.2.1:1", http.StatusOK},
		{principal.Principal{}, "192.0.2.1:3", http.StatusTooManyRequests},
		{principal.Principal{}, "192.0.2.2:3", http.StatusOK},
		{member, "192.0.2.9:1", http.StatusOK},
	} {
		if got := serve(c.who, c.remote, "/now"); got != c.want {
			t.Errorf("%v %q from %s gets %d, want %d", c.who.Kind, c.who.Name, c.remote, got, c.want)
		}
	}
	if got := b.Refused()["caller"]; got != 2 {
		t.Errorf("%d refused requests are counted, want 2", got)
	}
	for range 7 {
		leave <- struct{}{}
		if code := <-ended; code != http.StatusOK {
			t.Error(code)
		}
	}
	if got := serve(ada, "192.0.2.3:1", "/now"); got != http.StatusOK {
		t.Errorf("a caller whose requests have all ended gets %d", got)
	}
}

func mustAddrPort(t *testing.T, text string) netip.AddrPort {
	t.Helper()
	at, err := netip.ParseAddrPort(text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}
