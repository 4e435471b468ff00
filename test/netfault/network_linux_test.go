package netfault_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"scribe/test/netfault"
)

// pair is a connection between two hosts.
type pair struct {
	network *netfault.Network
	a, b    *netfault.Host
	// client is a's end, server is b's.
	client, server net.Conn
}

func connectPair(t *testing.T) *pair {
	t.Helper()
	if err := netfault.NetworkSupport(); err != nil {
		if os.Getenv("SCRIBE_CI") != "" {
			t.Fatalf("this machine lacks %v", err)
		}
		t.Skipf("this machine lacks %v", err)
	}
	p := &pair{network: netfault.NewNetwork(t, 1)}
	p.a, p.b = p.network.AddHost(), p.network.AddHost()
	l, err := p.b.Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	if p.client, err = p.a.Dial(t.Context(), "tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.client.Close() })
	if p.server = <-accepted; p.server == nil {
		t.Fatal("nobody was accepted")
	}
	t.Cleanup(func() { _ = p.server.Close() })
	return p
}

// passes writes into one end and reads at the other, within a time.
func passes(t *testing.T, from, to net.Conn, text string, within time.Duration) bool {
	t.Helper()
	if _, err := io.WriteString(from, text); err != nil {
		t.Fatal(err)
	}
	if err := to.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(text))
	_, err := io.ReadFull(to, got)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false
	}
	if err != nil || string(got) != text {
		t.Fatalf("%d bytes arrive as others, %v", len(text), err)
	}
	return true
}

const (
	// soon is when something has arrived that is not lost; late bounds what a cut must hold back.
	soon = time.Minute
	late = 300 * time.Millisecond
)

// TestNetworkCut: nothing passes a line that is cut, the other direction does not notice, and what was sent arrives when the line is back.
func TestNetworkCut(t *testing.T) {
	p := connectPair(t)
	large := strings.Repeat("0123456789", 100_000)
	if !passes(t, p.client, p.server, large, soon) || !passes(t, p.server, p.client, large, soon) {
		t.Fatal("nothing passes")
	}
	// What b has sent is acknowledged with this: it would otherwise be sent again before anything new.
	if !passes(t, p.client, p.server, "all of it", soon) {
		t.Fatal("nothing passes")
	}
	p.network.Set(p.a, p.b, netfault.Line{Cut: true})
	if passes(t, p.client, p.server, "x", late) {
		t.Error("a line that is cut lets something pass")
	}
	if !passes(t, p.server, p.client, "y", soon) { // which b can't know, since a's answers do not arrive
		t.Error("the other direction is cut, too")
	}
	if p.network.Lost() == 0 {
		t.Error("nothing was lost")
	}
	p.network.Set(p.a, p.b, netfault.Line{})
	if err := p.server.SetReadDeadline(time.Now().Add(soon)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(p.server, make([]byte, 1)); err != nil {
		t.Errorf("what was sent to a line that was cut: %v", err)
	}
	p.network.Isolate(p.b, netfault.Line{Cut: true}, netfault.Line{Cut: true})
	ctx, cancel := context.WithTimeout(t.Context(), late)
	defer cancel()
	if c, err := p.a.Dial(ctx, "tcp", p.server.LocalAddr().String()); err == nil {
		_ = c.Close()
		t.Error("a host without a cable is reached")
	}
}

// TestNetworkTrouble: bytes arrive late over a slow line, and all of them over one that loses packets.
func TestNetworkTrouble(t *testing.T) {
	p := connectPair(t)
	const delay = 200 * time.Millisecond
	p.network.Set(p.a, p.b, netfault.Line{Delay: delay, Jitter: delay / 4})
	began := time.Now()
	if !passes(t, p.client, p.server, "x", soon) {
		t.Fatal("nothing passes")
	}
	if took := time.Since(began); took < delay {
		t.Errorf("it took %v over a line that takes %v", took, delay)
	}
	p.network.Isolate(p.a, netfault.Line{Loss: 0.05}, netfault.Line{Loss: 0.05})
	before := p.network.Lost()
	for range 20 {
		if !passes(t, p.client, p.server, strings.Repeat("z", 100_000), soon) {
			t.Fatal("nothing passes a line that loses packets")
		}
	}
	if p.network.Lost() == before {
		t.Error("nothing was lost")
	}
}
