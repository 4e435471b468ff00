package faults

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// TestPartition puts a host with its agent, and a machine with a batcher and a write proxy, into network namespaces of their own, and
// pulls their cables for a while.
func TestPartition(t *testing.T) {
	program.OneProcess(t, "TestNodes pulls the cables of nodes")
	s := prepare(t, "partition")
	host, rack := newNamespace(t, 1), newNamespace(t, 2)
	s.load(startCell(t, s.seed, layout{host: host.outside, machines: map[string]machine{agent: host, batcher2: rack, writeProxy2: rack}}))
	for range rounds(t) {
		s.step("a cut of the host", outage(t), host.cut, host.join)
		s.step("a cut of a batcher and a write proxy", outage(t), rack.cut, rack.join)
		s.step("cuts of both, again and again", 0, func() {
			for range 5 {
				host.cut()
				s.moment(300 * time.Millisecond)
				rack.cut()
				s.moment(300 * time.Millisecond)
				host.join()
				s.moment(300 * time.Millisecond)
				rack.join()
			}
		}, func() {})
	}
	s.end()
}

// namespace is a machine of its own as far as the network is concerned: connected to the test's by one cable.
type namespace struct {
	t    *testing.T
	name string
	// link is the cable's end on the test's side; outside and inside are the addresses of its ends.
	link, outside, inside string
}

// newNamespace makes a namespace, the number-th of a test, that lasts until its end.
func newNamespace(t *testing.T, number int) *namespace {
	t.Helper()
	if os.Getuid() != 0 {
		missing(t, "root, to make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		missing(t, "the program ip (iproute2)")
	}
	// The process's id keeps tests that run at the same time apart.
	id := os.Getpid()%50_000*4 + number
	n := &namespace{
		t: t, name: fmt.Sprintf("scribe-%d-%d", os.Getpid(), number), link: fmt.Sprintf("sc%d", id),
		outside: fmt.Sprintf("10.%d.%d.%d", 200+id>>14, id>>6&255, id&63<<2|1), inside: fmt.Sprintf("10.%d.%d.%d", 200+id>>14, id>>6&255, id&63<<2|2),
	}
	n.ip("netns", "add", n.name)
	program.Undo(t, "ip", "netns", "del", n.name) // its end of the cable goes with it, and so does the other one
	n.ip("link", "add", n.link, "type", "veth", "peer", "name", "eth0", "netns", n.name)
	n.ip("addr", "add", n.outside+"/30", "dev", n.link)
	n.ip("link", "set", n.link, "up")
	n.ip("-n", n.name, "addr", "add", n.inside+"/30", "dev", "eth0")
	n.ip("-n", n.name, "link", "set", "eth0", "up")
	n.ip("-n", n.name, "link", "set", "lo", "up")
	n.ip("-n", n.name, "route", "add", "default", "via", n.outside)
	return n
}

func (n *namespace) ip(args ...string) {
	n.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		n.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// address implements machine.
func (n *namespace) address() string { return n.inside }

// under is the beginning of the command line of a process inside.
func (n *namespace) under() []string { return []string{"ip", "netns", "exec", n.name} }

// cut pulls the cable: what is sent inside goes nowhere, without an error.
func (n *namespace) cut() { n.ip("link", "set", n.link, "down") }

// join puts it back.
func (n *namespace) join() { n.ip("link", "set", n.link, "up") }
