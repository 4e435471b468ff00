package rpc

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"

	"scribe/internal/transport/principal"
	scribev1 "scribe/proto/scribe/v1"
)

// BoundsConfig is how much of a process's connections and requests its callers may hold at once. 0 of any of them is no bound.
type BoundsConfig struct {
	// Connections are those of all callers together.
	Connections int
	// AddressConnections are those from one IPv4 address, or from one IPv6 network of 64 bits, which a host has for itself.
	AddressConnections int
	// CallerRequests are the requests in service, streams among them, of one principal, or from one address where nobody proved who calls. Members
	// of the cell have no bound: they ask for all others.
	CallerRequests int
}

// Bounds keep one caller, or many, from holding all descriptors and all memory of a process. The zero BoundsConfig lets everything pass.
type Bounds struct {
	cfg     BoundsConfig
	refused [len(boundNames)]atomic.Uint64

	mu        sync.Mutex
	all       int                // connections
	addresses map[netip.Addr]int // connections; those without any are not kept
	callers   map[string]int     // requests in service, likewise
}

// What the indexes of Bounds.refused stand for.
const (
	boundConnections = iota
	boundAddress
	boundCaller
)

var boundNames = [...]string{boundConnections: "connections", boundAddress: "address", boundCaller: "caller"}

// NewBounds returns bounds with every place free.
func NewBounds(cfg BoundsConfig) *Bounds {
	return &Bounds{cfg: cfg, addresses: map[netip.Addr]int{}, callers: map[string]int{}}
}

// Connections returns how many connections are open.
func (b *Bounds) Connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all
}

// Refused returns how many connections or requests were refused, by the name of the bound: connections, address or caller.
func (b *Bounds) Refused() map[string]uint64 {
	counts := make(map[string]uint64, len(boundNames))
	for i, name := range boundNames {
		counts[name] = b.refused[i].Load()
	}
	return counts
}

// BoundListener returns l without the connections that are beyond a bound: they are closed as soon as they were accepted.
func (b *Bounds) BoundListener(l net.Listener) net.Listener { return boundListener{l, b} }

type boundListener struct {
	net.Listener
	bounds *Bounds
}

// Accept implements net.Listener.
func (l boundListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(c.RemoteAddr().String())
		if l.bounds.takeConnection(from) {
			return &boundConn{Conn: c, release: sync.OnceFunc(func() { l.bounds.releaseConnection(from) })}, nil
		}
		_ = c.Close() // nothing was read or written
	}
}

// boundConn gives its place back when it is closed.
type boundConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}

// NetConn returns the connection below.
func (c *boundConn) NetConn() net.Conn { return c.Conn }

func (b *Bounds) takeConnection(from netip.Addr) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.cfg.Connections > 0 && b.all >= b.cfg.Connections:
		b.refused[boundConnections].Add(1)
		return false
	case b.cfg.AddressConnections > 0 && b.addresses[from] >= b.cfg.AddressConnections:
		b.refused[boundAddress].Add(1)
		return false
	}
	b.all++
	b.addresses[from]++
	return true
}

func (b *Bounds) releaseConnection(from netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all--
	decrementCount(b.addresses, from)
}

// decrementCount takes one off a count, and the count away with the last.
func decrementCount[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// BoundRequests returns h without the requests that are beyond a caller's bound: they are refused with REASON_OVERLOADED.
func (b *Bounds) BoundRequests(h http.Handler) http.Handler {
	if b.cfg.CallerRequests <= 0 {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		caller, bound := CallerOf(r.Context(), r.RemoteAddr)
		if !bound {
			h.ServeHTTP(w, r)
			return
		}
		if !b.takeRequest(caller) {
			RefuseRequest(w, r, Errorf(scribev1.Reason_REASON_OVERLOADED, "%d requests of %s are in service, which is the limit for one caller (limits.caller_requests)", b.cfg.CallerRequests, caller))
			return
		}
		defer b.releaseRequest(caller)
		h.ServeHTTP(w, r)
	})
}

// CallerOf names who is at the other end, and reports whether a bound applies.
func CallerOf(ctx context.Context, remote string) (name string, bound bool) {
	switch p := principal.FromContext(ctx); p.Kind {
	case principal.Member:
		return "", false
	case principal.Anonymous:
		if from := addressOf(remote); from.IsValid() {
			return from.String(), true
		}
		return "nobody", true
	default:
		return p.Kind.String() + " " + p.Name, true
	}
}

func (b *Bounds) takeRequest(caller string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.callers[caller] >= b.cfg.CallerRequests {
		b.refused[boundCaller].Add(1)
		return false
	}
	b.callers[caller]++
	return true
}

func (b *Bounds) releaseRequest(caller string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	decrementCount(b.callers, caller)
}

// ipv6Network is how many bits of an IPv6 address name a network. A host takes any address in its own.
const ipv6Network = 64

// addressOf returns the address, or the network, of a remote host:port; the zero Addr of what is none, as a Unix socket.
func addressOf(remote string) netip.Addr {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Addr{}
	}
	address := at.Addr().Unmap().WithZone("")
	if address.Is4() {
		return address
	}
	network, _ := address.Prefix(ipv6Network) // an IPv6 address has that many bits
	return network.Addr()
}
