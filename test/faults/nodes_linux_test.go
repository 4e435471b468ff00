package faults

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/s3test"
	"scribe/internal/transport/rpc"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
	"scribe/test/history"
	"scribe/test/netfault"
	"scribe/test/powerdisk"
	"scribe/test/program"
)

// node is one of three machines that are a cell: a process of every role, with a member of etcd inside, a host of its own in the network, and a disk that can lose its power.
type node struct {
	*member
	host *netfault.Host
	disk *powerdisk.Disk
	dir  string // where the disk is mounted
	// disks counts the disks that the machine had.
	disks int
	// log is the node's replica of the metadata logs.
	log metalog.Log
}

// nodes is a cell of three nodes under load.
type nodes struct {
	*scenario
	network *netfault.Network
	list    []*node
	// payloads is the host of the store of payloads and snapshots.
	payloads *netfault.Host
	// transport is that of the host outside.
	transport *rpc.Transport
	calls     *nodeCalls
	// ids are those of the categories.
	ids []uint32
	// rounds counts how often clients were set to call the replicas.
	rounds int
}

const nodePort = 7420

// startNodes starts a cell of three nodes of a build, and load on it.
func startNodes(t *testing.T, seed uint64, build string) *nodes {
	t.Helper()
	for _, lacks := range []error{netfault.NetworkSupport(), powerdisk.Supported()} {
		if lacks != nil {
			missing(t, lacks.Error())
		}
	}
	n := &nodes{scenario: &scenario{T: t, seed: seed, rng: rngOf(seed, "nodes")}, network: netfault.NewNetwork(t, seed)}
	n.c = &cell{t: t, dir: t.TempDir()}
	client := n.network.AddHost()
	n.payloads = n.network.AddHost()
	n.startStore()
	hosts, addresses := make([]*netfault.Host, 3), make([]string, 3)
	for i := range hosts {
		hosts[i] = n.network.AddHost()
		addresses[i] = hosts[i].Address()
	}
	n.c.env = append(n.c.env, program.MemberEnvironment(t, addresses...)...)
	cluster := []string{}
	for i, host := range hosts {
		x := &node{host: host, member: &member{name: fmt.Sprintf("n%d", i+1), build: build, parts: []string{partWriteProxy, partBatcher}, env: n.c.env}}
		n.list, cluster = append(n.list, x), append(cluster, fmt.Sprintf("%s=%s:%d", x.name, x.host.Address(), nodePort))
	}
	for _, x := range n.list {
		x.under, x.address = x.host.Under(), program.URL(fmt.Sprintf("%s:%d", x.host.Address(), nodePort))
		n.newDisk(x)
		x.args = []string{
			"up", "--node", x.name, "--cluster", strings.Join(cluster, ","), "--data", x.data(), "--write-memory", "32MiB", "--batch-memory", "32MiB",
			"--read-cache", "16MiB", "--metadata-cache", "16MiB",
		}
		n.c.members = append(n.c.members, x.member)
	}
	n.transport = rpc.NewTransport(client.Dial, rpc.WithTLS(program.ClientFiles(t)))
	asMember := rpc.NewTransport(client.Dial, rpc.WithTLS(program.MemberFiles(t))) // only members append
	t.Cleanup(n.transport.Close)
	t.Cleanup(asMember.Close)
	n.c.outside = &outsideHost{client: n.transport.HTTPClient(), under: client.Under()}
	for _, x := range n.list {
		x.log = remote.NewClient(rpc.NewMetalogClient(asMember, x.address))
		t.Cleanup(func() { _ = x.log.Close() }) // a client holds nothing
	}
	n.c.start(n.c.members...)
	program.CloseCell(t, n.transport, n.c.url(""))
	n.loadNodes()
	n.callReplicas()
	return n
}

// startStore starts the store of payloads on a host of its own.
func (n *nodes) startStore() {
	n.Helper()
	n.c.s3 = s3test.Start(n.T)
	l, err := n.payloads.Listen(n.Context(), 9000)
	if err != nil {
		n.Fatal(err)
	}
	n.c.store = netfault.ServeStore(n.T, l, n.c.s3.Endpoint, n.seed)
	n.c.env = []string{
		"SCRIBE_BLOBS=s3", "SCRIBE_S3_ENDPOINT=http://" + n.c.store.Endpoint(), "SCRIBE_S3_BUCKET=" + n.c.s3.Bucket, "SCRIBE_S3_REGION=" + n.c.s3.Region,
		"SCRIBE_S3_ACCESS_KEY=" + n.c.s3.AccessKey, "SCRIBE_S3_SECRET_KEY=" + n.c.s3.SecretKey, "SCRIBE_FLUSH_FLOOR=30ms", "SCRIBE_SHUTDOWN_TIMEOUT=20s",
		"SCRIBE_SNAPSHOT_EVERY=5s", "SCRIBE_INSECURE=true", // no flags: older builds may not have them
		"SCRIBE_RETENTION_GRACE=3h", // longer than any two clocks are apart
	}
}

// newDisk puts an empty disk into a node's machine. The one before is gone.
func (n *nodes) newDisk(x *node) {
	n.Helper()
	if x.disk != nil {
		if err := x.disk.Close(); err != nil {
			n.Fatal(err)
		}
	}
	x.dir = n.TempDir()
	program.Unmount(n.T, x.dir)
	disk, err := powerdisk.New(powerdisk.Config{Dir: x.dir, Rand: rngOf(n.seed, fmt.Sprint("disk ", x.disks, " of ", x.name))})
	if err != nil {
		n.Fatal(err)
	}
	n.Cleanup(func() {
		if err := disk.Close(); err != nil {
			n.Error(err)
		}
	})
	x.disk = disk
	x.disks++
	for i, arg := range x.args {
		if arg == "--data" {
			x.args[i+1] = x.data()
		}
	}
}

func (x *node) data() string { return filepath.Join(x.dir, "data") }

// loadNodes begins a load of every delivery.
func (n *nodes) loadNodes() {
	n.Helper()
	w := emptyWorkload(n.c, n.seed)
	w.create(catLeast, history.Guarantees{}, "--delivery", "at_least_once")
	w.create(catOnce, history.Guarantees{ExactlyOnce: true, NoGivingUp: true}, "--delivery", "exactly_once")
	for _, category := range w.categories {
		var described struct{ ID uint32 }
		if err := json.Unmarshal(n.c.ok("category", "describe", category, "--server", n.c.url("")), &described); err != nil || described.ID == 0 {
			n.Fatalf("the id of %s: %d, %v", category, described.ID, err)
		}
		n.ids = append(n.ids, described.ID)
	}
	all := func() string { return n.c.nodeURL("") }
	for i, wr := range []*writer{
		{name: "single", category: catLeast, options: patient(), write: (*writer).single},
		{name: "atomic", category: catLeast, options: patient(), write: (*writer).atomic},
		{name: "impatient", category: catLeast, options: impatient(), write: (*writer).batch},
		{name: "once-async", category: catOnce, options: patient(), write: (*writer).async},
		{name: "once-restarts", category: catOnce, options: patient(), write: (*writer).restarting},
	} {
		wr.shard, wr.server, wr.pace = uint32(i%4), all, 60*time.Millisecond //nolint:gosec // a few
		w.add(wr)
	}
	n.w, n.v = w, newVerifier(n.c, w)
	w.start()
	w.advance(5)
}

// nodeURL is where a node is reached, or, for any other name, all of them.
func (c *cell) nodeURL(name string) string {
	var all []string
	for _, m := range c.members {
		if m.name == name {
			return m.address
		}
		all = append(all, m.address)
	}
	return strings.Join(all, ",")
}

// recovered proves that everybody goes on, that nothing is lost, at one node, and that all replicas tell the same.
func (n *nodes) recovered(what string) {
	n.Helper()
	began := time.Now()
	n.w.advance(3)
	n.Logf("%s: everybody goes on after %v", what, time.Since(began).Round(time.Millisecond))
	n.v.readFrom("after "+what, n.list[n.rng.IntN(len(n.list))].name, history.Committed)
	n.askReplicas("after " + what)
}

// rest lets the writers wait, looks at everything, and has all nodes end and start again.
func (n *nodes) rest(what string) {
	n.Helper()
	began := time.Now()
	n.w.hold()
	n.stopAtRest(what)
	n.startAgain(n.list...)
	n.callReplicas()
	n.w.release()
	n.Logf("%s: all nodes were looked at, ended and started in %v", what, time.Since(began).Round(time.Millisecond))
}

// end waits for the outcome of every write, and looks at everything.
func (n *nodes) end() {
	n.Helper()
	n.w.finish()
	n.stopAtRest("in the end")
}

// stopAtRest looks at everything while nobody writes: what each node reads, pointers and blobs, the calls at the replicas, and, when the nodes have
// ended in an orderly way, their folders.
func (n *nodes) stopAtRest(what string) {
	n.Helper()
	n.calls.verify(n.T)
	n.v.allEmptied(what)
	for _, x := range n.list {
		n.v.readFrom(what, x.name, history.Committed)
	}
	n.askReplicas(what)
	var all []line
	for _, category := range slices.Concat(n.w.categories, n.v.others) {
		pointers := n.v.inspect("log", category, "--verify", "--server", n.c.url(""))
		n.v.unchanged(what, category, pointers)
		all = append(all, pointers...)
	}
	stored := n.v.blobs()
	n.v.epochs(what, all, stored)
	n.v.orphans(what, all, stored)
	n.stopTogether(n.list...)
	n.compareReplicas()
}

// stopTogether ends nodes in an orderly way, at the same time. What they counted goes with them.
func (n *nodes) stopTogether(some ...*node) {
	n.Helper()
	var stopping []*program.Process
	for _, x := range some {
		n.c.remember(x.member)
		x.proc.Terminate()
		stopping = append(stopping, x.proc)
	}
	program.AwaitStops(stopping...)
}

func (n *nodes) startAgain(some ...*node) {
	n.Helper()
	members := make([]*member, len(some))
	for i, x := range some {
		members[i] = x.member
	}
	n.c.start(members...)
}

// listedNode is what of a node's line in the output of scribe node list -o json says who leads.
type listedNode struct {
	Name      string
	EtcdLeads bool `json:"etcd_leads"`
	Metalog   struct{ Leads bool }
}

// leaders returns the nodes whose replica and whose etcd lead: two, or one that is both.
func (n *nodes) leaders() (replica, etcd *node) {
	n.Helper()
	eventually(n.T, "nodes lead", func() bool {
		replica, etcd = nil, nil
		for text := range bytes.Lines(n.c.ok("node", "list", "-o", "json", "--server", n.c.url(""))) {
			var l listedNode
			if err := json.Unmarshal(text, &l); err != nil {
				n.Fatalf("%s: %v", text, err)
			}
			x := n.node(l.Name)
			if x != nil && l.Metalog.Leads {
				replica = x
			}
			if x != nil && l.EtcdLeads {
				etcd = x
			}
		}
		return replica != nil && etcd != nil
	})
	return replica, etcd
}

func (n *nodes) node(name string) *node {
	i := slices.IndexFunc(n.list, func(x *node) bool { return x.name == name })
	if i < 0 {
		return nil
	}
	return n.list[i]
}

// another returns a node that runs beside x.
func (n *nodes) another(x *node) *node {
	return n.list[(slices.Index(n.list, x)+1)%len(n.list)]
}
