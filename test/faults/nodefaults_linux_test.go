package faults

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/netfault"
	"scribe/test/program"
)

// nodeFault is a kind of fault of a cell of nodes. It begins, waits and ends by itself.
type nodeFault struct {
	what   string
	befall func(*nodes)
}

var nodeFaults = []nodeFault{
	{"a cable that was pulled", (*nodes).pullCable},
	{"a line that was cut one way", (*nodes).cutOneWay},
	{"a line between two that was cut one way", func(n *nodes) { n.cutBetween(false) }},
	{"a line between two that was cut", func(n *nodes) { n.cutBetween(true) }},
	{"slow lines", (*nodes).slowLines},
	{"lines that lost packets", (*nodes).loseSome},
	{"the kill of the replica that led", func(n *nodes) { n.killLeaders(true, false) }},
	{"the kill of the etcd that led", func(n *nodes) { n.killLeaders(false, true) }},
	{"the kill of both that led", func(n *nodes) { n.killLeaders(true, true) }},
	{"a pause of the replica that led", func(n *nodes) { n.pauseLeaders(true, false) }},
	{"a pause of the etcd that led", func(n *nodes) { n.pauseLeaders(false, true) }},
	{"a pause of both that led", func(n *nodes) { n.pauseLeaders(true, true) }},
	{"an orderly stop of the replica that led", (*nodes).stopLeader},
	{"a node with an empty disk in another one's place", (*nodes).replaceNode},
	{"a node that was removed and added", (*nodes).removeAndAdd},
	{"a power loss of one node", func(n *nodes) { n.losePower(n.anyNode()) }},
	{"a power loss of all nodes", func(n *nodes) { n.losePower(n.list...) }},
	{"a full disk", (*nodes).fillDisk},
	{"a store that was away", (*nodes).loseStore},
	{"restarts of all nodes, one after another", (*nodes).rollNodes},
	{"a restart with a clock an hour ahead", func(n *nodes) { n.restartWithClock(time.Hour) }},
	{"a restart with a clock an hour behind", func(n *nodes) { n.restartWithClock(-time.Hour) }},
}

// roundOfFaults is after how many faults a cell comes to rest, is looked at, ends, and starts again.
const roundOfFaults = 3

// TestNodes runs cells of three nodes, each a machine with a network namespace and a disk of its own, through faults that a seed draws. After each, no acknowledged message may
// be missing, reordered or doubly visible, and all replicas tell the same; after every few, and in the end, one order explains all calls at the replicas, and their folders are equal.
func TestNodes(t *testing.T) {
	for i := range 2 * rounds(t) {
		t.Run(fmt.Sprint("cell ", i+1), func(t *testing.T) {
			n := startNodes(t, seedOf(t), program.Binary())
			for i, f := range drawSome(n.scenario, 4, nodeFaults) {
				if i > 0 && i%roundOfFaults == 0 {
					n.rest(fmt.Sprintf("after %d faults", i))
				}
				n.moment(300 * time.Millisecond)
				began := time.Now()
				f.befall(n)
				n.Logf("%s: it took %v", f.what, time.Since(began).Round(time.Millisecond))
				n.recovered(f.what)
			}
			n.Logf("%d packets were lost", n.network.Lost())
			n.end()
		})
	}
}

func (n *nodes) anyNode() *node { return n.list[n.rng.IntN(len(n.list))] }

// whileItLasts lets a fault last for a time that the seed draws.
func (n *nodes) whileItLasts() {
	most := outage(n.T)
	pause(n.T, most/4+time.Duration(n.rng.Int64N(int64(most))))
}

// withLines sets the lines of a node for a while.
func (n *nodes) withLines(x *node, in, out netfault.Line) {
	n.Helper()
	n.network.Isolate(x.host, in, out)
	n.whileItLasts()
	n.network.Isolate(x.host, netfault.Line{}, netfault.Line{})
}

func (n *nodes) pullCable() {
	n.Helper()
	n.withLines(n.anyNode(), netfault.Line{Cut: true}, netfault.Line{Cut: true})
}

// cutOneWay lets a node hear and not be heard, or the other way around.
func (n *nodes) cutOneWay() {
	n.Helper()
	heard := n.rng.IntN(2) == 0
	n.withLines(n.anyNode(), netfault.Line{Cut: heard}, netfault.Line{Cut: !heard})
}

// cutBetween cuts the line between two nodes, one way or both, while the third and all others see both. Meanwhile nothing is asked of writers: a batcher that does not reach the replica
// that leads is still one that others choose.
func (n *nodes) cutBetween(both bool) {
	n.Helper()
	between := n.rng.Perm(len(n.list))
	from, to := n.list[between[0]], n.list[between[1]]
	set := func(what netfault.Line) {
		n.network.Set(from.host, to.host, what)
		if both {
			n.network.Set(to.host, from.host, what)
		}
	}
	set(netfault.Line{Cut: true})
	n.whileItLasts()
	set(netfault.Line{})
}

func (n *nodes) slowLines() {
	n.Helper()
	slow := netfault.Line{Delay: time.Duration(n.rng.IntN(80)) * time.Millisecond, Jitter: 20 * time.Millisecond}
	n.withLines(n.anyNode(), slow, slow)
}

func (n *nodes) loseSome() {
	n.Helper()
	bad := netfault.Line{Loss: 0.01 + 0.09*n.rng.Float64()}
	n.withLines(n.anyNode(), bad, bad)
}

// chooseLeaders returns the node whose replica leads, the one whose etcd leads, or both.
func (n *nodes) chooseLeaders(replica, etcd bool) (chosen []*node) {
	n.Helper()
	leader, raft := n.leaders()
	if replica {
		chosen = append(chosen, leader)
	}
	if etcd && !slices.Contains(chosen, raft) {
		chosen = append(chosen, raft)
	}
	return chosen
}

func (n *nodes) killLeaders(replica, etcd bool) {
	n.Helper()
	chosen := n.chooseLeaders(replica, etcd)
	for _, x := range chosen {
		n.c.kill(x.member)
	}
	n.whileItLasts()
	n.startAgain(chosen...)
}

func (n *nodes) pauseLeaders(replica, etcd bool) {
	n.Helper()
	chosen := n.chooseLeaders(replica, etcd)
	for _, x := range chosen {
		x.proc.Pause()
	}
	n.whileItLasts()
	for _, x := range chosen {
		x.proc.Resume()
	}
}

func (n *nodes) stopLeader() {
	n.Helper()
	chosen := n.chooseLeaders(true, false)
	n.stopTogether(chosen...)
	n.whileItLasts()
	n.startAgain(chosen...)
}

// rollNodes ends and starts each node, as an upgrade does.
func (n *nodes) rollNodes() {
	n.Helper()
	for _, x := range n.list {
		n.stopTogether(x)
		n.startAgain(x)
		n.w.advance(1)
	}
}

// restartWithClock kills a node or ends it in an orderly way, and starts it with a clock that is ahead of the others', or behind them. The node keeps it. It gets the chance to lead
// with it: what it promised of time then binds who leads later.
func (n *nodes) restartWithClock(ahead time.Duration) {
	n.Helper()
	x := n.anyNode()
	if n.rng.IntN(2) == 0 {
		n.c.kill(x.member)
	} else {
		n.stopTogether(x)
	}
	x.build, x.env = program.Clocked(n.T), append(slices.Clone(n.c.env), program.SetClock(ahead))
	n.startAgain(x)
	health, err := rpc.NewProcessClient(n.transport, x.address).GetHealth(n.Context(), &scribev1.GetHealthRequest{})
	if err != nil {
		n.Fatalf("%s, which is to have another clock: %v", x.name, err)
	}
	if got := time.Until(time.UnixMicro(health.GetNow())); (got - ahead).Abs() > time.Minute {
		n.Fatalf("the clock of %s is %v ahead, want %v", x.name, got, ahead)
	}
	leader, _ := n.leaders()
	for range 2 {
		if leader == x {
			break
		}
		n.stopTogether(leader)
		n.startAgain(leader)
		leader, _ = n.leaders()
	}
	n.Logf("the clock of %s is %v ahead; %s leads", x.name, ahead, leader.name)
}

// replaceNode destroys a node's disk, and puts an empty one in its place as the operations guide says.
func (n *nodes) replaceNode() {
	n.Helper()
	x := n.anyNode()
	n.c.kill(x.member)
	n.newDisk(x)
	n.whileItLasts()
	n.c.ok("node", "replace", x.name, "--server", n.another(x).address)
	n.startAgain(x)
}

// removeAndAdd takes a node out of the cell, and with it its member of etcd, and adds one of its name.
func (n *nodes) removeAndAdd() {
	n.Helper()
	x := n.anyNode()
	n.c.remember(x.member)
	n.c.killed++ // its counters are gone
	n.c.ok("node", "remove", x.name, "--server", n.another(x).address)
	select {
	case <-x.proc.Done:
	case <-time.After(program.WaitLimit):
		n.Fatalf("%s was removed and goes on:\n%s", x.name, x.proc.Log)
	}
	n.newDisk(x)
	n.whileItLasts()
	n.c.ok("node", "add", fmt.Sprintf("%s=%s:%d", x.name, x.host.Address(), nodePort), "--server", n.another(x).address)
	n.startAgain(x)
}

// losePower takes the power away from machines, and starts them again on what their disks have kept.
func (n *nodes) losePower(some ...*node) {
	n.Helper()
	for _, x := range some {
		n.c.remember(x.member)
		x.disk.PowerOff()
	}
	for _, x := range some {
		n.c.kill(x.member)
	}
	n.whileItLasts()
	for _, x := range some {
		if err := x.disk.PowerOn(); err != nil {
			n.Fatal(err)
		}
	}
	n.startAgain(some...)
}

// fillDisk leaves no room on a node's disk. The node may end, with an error that says why, and starts again when there is room.
func (n *nodes) fillDisk() {
	n.Helper()
	x := n.anyNode()
	x.disk.Fill(true)
	select {
	case <-x.proc.Done:
	case <-time.After(outage(n.T)):
	}
	x.disk.Fill(false)
	// One that is about to end may still be at it.
	settled := time.After(outage(n.T) / 2)
	select {
	case <-x.proc.Done:
		if log := x.proc.Log.String(); !strings.Contains(log, syscall.ENOSPC.Error()) {
			n.Errorf("%s ended with %v on a full disk:\n%s", x.name, x.proc.Err, log)
		}
		n.c.remember(x.member)
		n.c.killed++
		n.startAgain(x)
	case <-settled:
	}
}

// loseStore takes away the store of payloads and snapshots, and ends the replica that leads meanwhile.
func (n *nodes) loseStore() {
	n.Helper()
	n.network.Isolate(n.payloads, netfault.Line{Cut: true}, netfault.Line{Cut: true})
	var killed []*node
	if n.rng.IntN(2) == 0 {
		killed = n.chooseLeaders(true, false)
		for _, x := range killed {
			n.c.kill(x.member)
		}
	}
	n.whileItLasts()
	n.network.Isolate(n.payloads, netfault.Line{}, netfault.Line{})
	n.startAgain(killed...)
}
