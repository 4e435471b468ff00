package netfault

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"scribe/test/program"
)

// Network is hosts that are connected by a switch in this process: each is a network namespace, whose only device is a TUN device. What a host sends to another one
// is a packet that the switch moves, late, or not at all. Nothing outside of the namespaces has an address in it. Make it with NewNetwork.
type Network struct {
	tb   testing.TB
	seed uint64

	mu struct {
		sync.Mutex
		hosts map[netip.Addr]*Host
		lines []*line
	}
	running sync.WaitGroup
}

// Host is a host of a Network.
type Host struct {
	network   *Network
	namespace string
	address   netip.Addr
	device    *os.File
	// lines go to the other hosts, by their addresses.
	lines sync.Map
}

// Line is what happens to packets on the way from one host to another.
type Line struct {
	// Cut loses all of them, without an error.
	Cut bool
	// Loss is the chance of a packet to be lost, from 0 to 1.
	Loss float64
	// Delay is how much longer a packet takes, Jitter how much more at most. Packets do not overtake each other.
	Delay, Jitter time.Duration
}

// line is the way from one host to another.
type line struct {
	to      *Host
	packets chan timedPacket
	lost    atomic.Int64

	mu struct {
		sync.Mutex
		Line
		rng *rand.Rand
		// last is when the packet before arrives.
		last time.Time
	}
}

type timedPacket struct {
	due  time.Time
	data []byte
}

const (
	deviceName = "net0"
	packetSize = 9000
	// lineRoom is how many packets are on their way at most: further ones are lost, as in a switch.
	lineRoom = 2048
	// subnet is the network of the hosts' addresses. It is reserved for benchmarks of networks (RFC 2544).
	subnet = "198.18.0.0/24"
)

// namespaces is the folder where ip has those that it made.
const namespaces = "/run/netns/"

var networks atomic.Int64

// NetworkSupport returns nil if this machine can have a Network, else an error with what it lacks.
func NetworkSupport() error {
	if os.Getuid() != 0 {
		return errors.New("root, to make network namespaces")
	}
	for name, of := range map[string]string{"ip": "iproute2", "nsenter": "util-linux"} {
		if _, err := exec.LookPath(name); err != nil {
			return fmt.Errorf("the program %s (%s)", name, of)
		}
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("TUN devices: %w", err)
	}
	return nil
}

// NewNetwork returns a network without hosts, which lasts until the end of the test. A seed determines losses and jitter.
func NewNetwork(tb testing.TB, seed uint64) *Network {
	n := &Network{tb: tb, seed: seed}
	n.mu.hosts = map[netip.Addr]*Host{}
	return n
}

// AddHost adds a host.
func (n *Network) AddHost() *Host {
	n.tb.Helper()
	h := &Host{network: n, namespace: fmt.Sprintf("scribe-net-%d-%d", os.Getpid(), networks.Add(1))}
	n.mu.Lock()
	h.address = netip.MustParsePrefix(subnet).Addr()
	for range len(n.mu.hosts) + 1 {
		h.address = h.address.Next()
	}
	n.mu.Unlock()
	n.runIP("netns", "add", h.namespace)
	program.Undo(n.tb, "ip", "netns", "del", h.namespace)
	n.runIP("-n", h.namespace, "link", "set", "lo", "up")
	if err := h.inside(h.openDevice); err != nil {
		n.tb.Fatalf("netfault: make a TUN device: %v", err)
	}
	n.runIP("-n", h.namespace, "addr", "add", h.address.String()+"/24", "dev", deviceName)
	n.runIP("-n", h.namespace, "link", "set", deviceName, "mtu", fmt.Sprint(packetSize), "up")
	n.connectHost(h)
	n.running.Go(h.readPackets)
	n.tb.Cleanup(func() {
		_ = h.device.Close()
		n.closeLines()
		n.running.Wait()
	})
	return h
}

func (n *Network) runIP(args ...string) {
	n.tb.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.tb.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// connectHost makes the lines between a host and all others.
func (n *Network) connectHost(h *Host) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, other := range n.mu.hosts {
		for _, ends := range [][2]*Host{{h, other}, {other, h}} {
			l := &line{to: ends[1], packets: make(chan timedPacket, lineRoom)}
			l.mu.rng = rand.New(rand.NewPCG(n.seed, uint64(len(n.mu.lines)))) //nolint:gosec // reproducible on purpose
			n.mu.lines = append(n.mu.lines, l)
			ends[0].lines.Store(ends[1].address, l)
			packets := l.packets
			n.running.Go(func() { l.deliverPackets(packets) })
		}
	}
	n.mu.hosts[h.address] = h
}

// closeLines ends the lines when the first host goes; nobody sends any more.
func (n *Network) closeLines() {
	n.mu.Lock()
	hosts, lines := n.mu.hosts, n.mu.lines
	n.mu.hosts, n.mu.lines = map[netip.Addr]*Host{}, nil
	n.mu.Unlock()
	for _, h := range hosts {
		h.lines.Clear()
		_ = h.device.Close()
	}
	for _, l := range lines {
		l.mu.Lock()
		close(l.packets)
		l.packets = nil
		l.mu.Unlock()
	}
}

// Set says what happens from now on to packets from one host to another.
func (n *Network) Set(from, to *Host, what Line) {
	n.tb.Helper()
	found, ok := from.lines.Load(to.address)
	if !ok {
		n.tb.Fatalf("netfault: no line from %v to %v", from.address, to.address)
	}
	l := found.(*line)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.Line = what
}

// Isolate sets every line to a host and from it.
func (n *Network) Isolate(h *Host, in, out Line) {
	n.tb.Helper()
	n.mu.Lock()
	var others []*Host
	for _, other := range n.mu.hosts {
		if other != h {
			others = append(others, other)
		}
	}
	n.mu.Unlock()
	for _, other := range others {
		n.Set(other, h, in)
		n.Set(h, other, out)
	}
}

// Lost returns how many packets were lost.
func (n *Network) Lost() (packets int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.mu.lines {
		packets += l.lost.Load()
	}
	return packets
}

// Address returns the host's address.
func (h *Host) Address() string { return h.address.String() }

// Under is what stands before the command line of a process on the host. Not ip netns exec: it makes a mount namespace as well, which would keep disks that a test wants to unmount.
func (h *Host) Under() []string { return []string{"nsenter", "--net=" + namespaces + h.namespace} }

// Dial connects from the host.
func (h *Host) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	inside := h.inside(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return nil
	})
	if inside != nil {
		return nil, inside
	}
	return conn, err
}

// Listen takes a port of the host.
func (h *Host) Listen(ctx context.Context, port int) (l net.Listener, err error) {
	inside := h.inside(func() error {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", netip.AddrPortFrom(h.address, uint16(port)).String()) //nolint:gosec // a port
		return nil
	})
	if inside != nil {
		return nil, inside
	}
	return l, err
}

// inside runs fn in the host's namespace. Sockets and devices that it makes stay there.
func (h *Host) inside(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		// It stays locked: the thread can't be used for anything else, and ends with the goroutine.
		runtime.LockOSThread()
		result <- func() error {
			ns, err := os.Open(namespaces + h.namespace)
			if err != nil {
				return err
			}
			defer func() { _ = ns.Close() }()
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil { //nolint:gosec // a descriptor
				return fmt.Errorf("enter the network namespace %s: %w", h.namespace, err)
			}
			return fn()
		}()
	}()
	return <-result
}

// openDevice makes the host's TUN device, in its namespace.
func (h *Host) openDevice() error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	request, err := unix.NewIfreq(deviceName)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return err
	}
	h.device = os.NewFile(uintptr(fd), "/dev/net/tun") //nolint:gosec // a descriptor
	return nil
}

// readPackets takes what the host sends.
func (h *Host) readPackets() {
	buf := make([]byte, packetSize)
	for {
		n, err := h.device.Read(buf)
		if err != nil {
			return // it was closed
		}
		to, ok := destination(buf[:n])
		if !ok {
			continue
		}
		if l, ok := h.lines.Load(to); ok {
			l.(*line).sendPacket(buf[:n])
		}
	}
}

// destination returns where an IPv4 packet goes.
func destination(packet []byte) (netip.Addr, bool) {
	const headerSize, at = 20, 16
	if len(packet) < headerSize || packet[0]>>4 != 4 || int(binary.BigEndian.Uint16(packet[2:])) > len(packet) {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(packet[at : at+4])), true
}

// sendPacket puts a copy of a packet on the line.
func (l *line) sendPacket(data []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.packets == nil {
		return
	}
	due := time.Now().Add(l.mu.Delay)
	if l.mu.Jitter > 0 {
		due = due.Add(time.Duration(l.mu.rng.Int64N(int64(l.mu.Jitter))))
	}
	if due.Before(l.mu.last) {
		due = l.mu.last
	}
	lost := l.mu.Cut || l.mu.Loss > 0 && l.mu.rng.Float64() < l.mu.Loss
	if !lost {
		select {
		case l.packets <- timedPacket{due, append([]byte(nil), data...)}:
			l.mu.last = due
			return
		default: // no room
		}
	}
	l.lost.Add(1)
}

// deliverPackets hands packets to the host at the end of the line when they are due.
func (l *line) deliverPackets(packets <-chan timedPacket) {
	for p := range packets {
		if early := time.Until(p.due); early > 0 {
			<-time.After(early)
		}
		l.mu.Lock()
		cut := l.mu.Cut // what was on its way when the cable was pulled does not arrive
		l.mu.Unlock()
		if cut {
			l.lost.Add(1)
			continue
		}
		_, _ = l.to.device.Write(p.data) // a host that goes takes nothing
	}
}
