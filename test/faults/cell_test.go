package faults

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/s3test"
	"scribe/test/netfault"
	"scribe/test/program"
)

// Names of the processes of a cell.
const (
	controlPlane = "controlplane"
	metaLog      = "metalog"
	writeProxy1  = "writeproxy-1"
	writeProxy2  = "writeproxy-2"
	batcher1     = "batcher-1"
	batcher2     = "batcher-2"
	reader1      = "reader-1"
	reader2      = "reader-2"
	agent        = "agent"
)

// Parts of processes that account for what they take in.
const (
	partWriteProxy = "writeproxy"
	partBatcher    = "batcher"
	partReader     = "readstream,readproxy"
	partAgent      = "agent"
)

// Memory bounds of the processes: small, so that they are reached.
const (
	writeMemory    = 32 << 20
	batchMemory    = 32 << 20
	readCache      = 16 << 20
	readAhead      = 4 << 20 // of each consumer with which a category is verified
	metadataCache  = 16 << 20
	leaseTTL       = time.Second
	fixedMemory    = 40 << 20 // of a process that holds nothing: runtime, stacks, collected garbage; not its code
	memoryOverhead = 3        // times the configured bounds: what is collected, and not yet returned to the system
)

// cell is a system of processes. Each is reached through a proxy of its own, so that it keeps its address over restarts, and so that
// its connections can be made to fail.
type cell struct {
	t       *testing.T
	dir     string
	env     []string // of all but the agent
	members []*member

	// s3 holds the payloads, store is in front of it.
	s3    *s3test.Server
	store *netfault.Store
	// single has all roles, in a cell of one process.
	single *member
	// standIns are the nodes that stand for processes of single roles, by the names of these; nil in cells without nodes.
	standIns map[string]*member
	// outside is where clients are that can't reach the cell from here; nil in cells whose clients can.
	outside *outsideHost
	// killed counts processes that ended without a word: their counters are gone.
	killed int
	// orphans is an upper bound of the blobs that batchers which have ended may have left.
	orphans float64
}

// member is a process of a cell.
type member struct {
	name string
	// build is the path of its program; "" for the one under test.
	build string
	// parts are the roles that account for what they take in: see hops.
	parts []string
	args  []string
	env   []string
	under []string // a command line in front of the program's
	front *netfault.Proxy
	proc  *program.Process
	// socket is where it is reached if it has a network of its own.
	socket string
	// address is the URL at which clients outside of this machine reach a node; "" for others.
	address string
	// listens is where a node listens behind its front; "" for others. Nodes reach each other through their fronts before they are ready.
	listens string
	// peak is the most memory that it had before it was restarted.
	peak int64
}

// url is where the process is reached through its front.
func (m *member) url() string { return program.URL(m.front.Addr()) }

// outsideHost is a host that is not of the cell.
type outsideHost struct {
	// client makes requests from there, under runs commands there.
	client *http.Client
	under  []string
}

// layout is what differs between cells.
type layout struct {
	// host is the address that the cell listens on; "" = 127.0.0.1.
	host string
	// data names the folder of a process, the agent's disk buffer; without, it is one below the test's.
	data map[string]string
	// machines are where processes run that have a network of their own.
	machines map[string]machine
	// files keeps payloads in a folder instead of S3.
	files string
	// unpushed has batchers push nothing, so that readers at the tail read from the store.
	unpushed bool
}

// machine is a network of its own: what stands before the command lines of its processes, and the address that they listen on.
type machine interface {
	under() []string
	address() string
}

// startCell starts a cell on an S3 server.
func startCell(t *testing.T, seed uint64, l layout) *cell {
	t.Helper()
	c := &cell{t: t, dir: t.TempDir()}
	if l.host == "" {
		l.host = "127.0.0.1"
	}
	c.env = []string{
		"SCRIBE_LEASE_TTL=" + leaseTTL.String(), "SCRIBE_WRITE_MEMORY=32MiB", "SCRIBE_BATCH_MEMORY=32MiB",
		"SCRIBE_READ_CACHE=16MiB", "SCRIBE_METADATA_CACHE=16MiB", "SCRIBE_FLUSH_FLOOR=30ms", "SCRIBE_SHUTDOWN_TIMEOUT=20s",
		"SCRIBE_INSECURE=true", // a partition puts processes on other hosts
	}
	if l.host != "127.0.0.1" {
		c.env = append(c.env, program.MemberEnvironment(t, l.host)...)
	}
	if l.files != "" {
		c.env = append(c.env, "SCRIBE_BLOBS=file", "SCRIBE_BLOB_PATH="+l.files)
	} else {
		c.s3 = s3test.Start(t)
		c.store = netfault.NewStore(t, l.host+":0", c.s3.Endpoint, seed)
		c.env = append(
			c.env, "SCRIBE_BLOBS=s3", "SCRIBE_S3_ENDPOINT=http://"+c.store.Endpoint(), "SCRIBE_S3_BUCKET="+c.s3.Bucket, "SCRIBE_S3_REGION="+c.s3.Region,
			"SCRIBE_S3_ACCESS_KEY="+c.s3.AccessKey, "SCRIBE_S3_SECRET_KEY="+c.s3.SecretKey,
		)
	}
	if n := program.CountNodes(t); n > 0 {
		c.addNodes(n, l)
	} else {
		for _, name := range []string{controlPlane, metaLog, batcher1, batcher2, writeProxy1, writeProxy2, reader1, reader2} {
			c.addServer(name, l)
		}
	}
	c.addAgent(l)
	c.start(c.members...)
	return c
}

// addNodes adds nodes with every role, which stand for the processes of single roles: what befalls one of these befalls all roles of its node.
func (c *cell) addNodes(n int, l layout) {
	var addresses, cluster []string
	for i := range n {
		addresses = append(addresses, program.NodeAddress(c.t))
		cluster = append(cluster, fmt.Sprintf("n%d=%s", i+1, addresses[i]))
	}
	for i := range n {
		m := &member{
			name: fmt.Sprintf("n%d", i+1), listens: addresses[i], parts: []string{partWriteProxy, partBatcher, partReader, partAgent, metaLog}, env: c.env,
			front: netfault.Listen(c.t, l.host+":0"),
		}
		m.args = []string{"up", "--node", m.name, "--cluster", strings.Join(cluster, ","), "--data", c.folder(m.name, l), "--advertise", m.url()}
		if l.unpushed {
			m.args = append(m.args, "--push-memory", "0B")
		}
		c.members = append(c.members, m)
	}
	c.standIns = map[string]*member{}
	for i, name := range []string{controlPlane, writeProxy1, reader2, metaLog, batcher1, batcher2, reader1, writeProxy2} {
		m := c.members[i%n]
		c.standIns[name] = m
		if l.data[name] != "" {
			m.args[slices.Index(m.args, "--data")+1] = l.data[name]
		}
	}
}

// startSingle starts every role in one process on a data folder.
func startSingle(t *testing.T, data string) *cell {
	t.Helper()
	program.OneProcess(t, "TestNodes does this to nodes")
	c := &cell{t: t, dir: t.TempDir(), env: []string{"SCRIBE_BLOBS=file", "SCRIBE_BLOB_PATH=" + filepath.Join(data, "blobs"), "SCRIBE_LEASE_TTL=" + leaseTTL.String()}}
	c.single = &member{name: "up", parts: []string{partWriteProxy, partBatcher, partAgent}, env: c.env, front: netfault.Listen(t, "127.0.0.1:0")}
	c.single.args = []string{
		"up", "--data", data, "--listen", "127.0.0.1:0", "--advertise", c.single.url(),
		"--write-memory", "32MiB", "--batch-memory", "32MiB", "--read-cache", "16MiB", "--metadata-cache", "16MiB",
	}
	c.members = []*member{c.single}
	c.start(c.single)
	return c
}

// addServer adds a process of the cell.
func (c *cell) addServer(name string, l layout) {
	roles, _, _ := strings.Cut(name, "-")
	if roles == "reader" {
		roles = partReader
	}
	m := &member{name: name, parts: []string{roles}, env: c.env, front: netfault.Listen(c.t, l.host+":0")}
	listen := l.host
	if machine := l.machines[name]; machine != nil {
		m.under, listen = machine.under(), machine.address()
	}
	m.args = []string{"serve", "--roles", roles, "--id", name, "--data", c.folder(name, l), "--listen", listen + ":0", "--advertise", m.url()}
	if name != controlPlane {
		m.args = append(m.args, "--control", c.url(controlPlane))
	}
	if roles == partBatcher && l.unpushed {
		m.args = append(m.args, "--push-memory", "0B")
	}
	if name != controlPlane && name != metaLog {
		m.args = append(m.args, "--metalog", c.url(metaLog))
	}
	c.members = append(c.members, m)
}

// addAgent adds the agent of a host.
func (c *cell) addAgent(l layout) {
	m := &member{name: agent, parts: []string{partAgent}, front: netfault.Listen(c.t, "127.0.0.1:0")}
	m.args = []string{
		"agent", "--upstream", c.url(writeProxy1), "--listen", "127.0.0.1:0", "--write-memory", "32MiB",
		"--spool", c.folder(agent, l), "--spool-bytes", "256MiB",
	}
	if machine := l.machines[agent]; machine != nil {
		m.under, m.socket = machine.under(), filepath.Join(c.dir, "agent.sock")
		m.args = append(m.args, "--socket", m.socket)
	}
	c.members = append(c.members, m)
}

func (c *cell) folder(name string, l layout) string {
	if l.data[name] != "" {
		return l.data[name]
	}
	return filepath.Join(c.dir, name)
}

// start starts processes at the same time and waits until all are ready.
func (c *cell) start(members ...*member) {
	c.t.Helper()
	outputs := make([]io.Reader, len(members))
	for i, m := range members {
		if m.listens != "" {
			m.front.Target(m.listens)
		}
		m.proc, outputs[i] = program.LaunchBuild(c.t, cmp.Or(m.build, program.Binary()), m.under, m.env, m.args...)
		// The control plane and the metalog serve before the others ask for them.
		if m.name == controlPlane || m.name == metaLog {
			c.ready(m, outputs[i])
		}
	}
	for i, m := range members {
		if m.name != controlPlane && m.name != metaLog {
			c.ready(m, outputs[i])
		}
	}
}

func (c *cell) ready(m *member, stdout io.Reader) {
	c.t.Helper()
	m.proc.AwaitReady(stdout)
	if m.front == nil {
		return
	}
	u, err := url.Parse(m.proc.URL)
	if err != nil {
		c.t.Fatal(err)
	}
	m.front.Target(u.Host)
}

// member returns a process by its name.
func (c *cell) member(name string) *member {
	if c.single != nil {
		return c.single
	}
	if m := c.standIns[name]; m != nil {
		return m
	}
	i := slices.IndexFunc(c.members, func(m *member) bool { return m.name == name })
	return c.members[i]
}

// url is where a process is reached. In a cell of nodes, roles are at all of them.
func (c *cell) url(name string) string {
	if c.outside != nil {
		return c.nodeURL(name)
	}
	if m := c.member(name); m.socket == "" {
		return m.url()
	}
	return "unix:" + c.member(name).socket
}

// with are the processes with a part.
func (c *cell) with(part string) []*member {
	var some []*member
	for _, m := range c.members {
		if slices.Contains(m.parts, part) {
			some = append(some, m)
		}
	}
	return some
}

// kill ends a process with kill -9.
func (c *cell) kill(m *member) {
	c.t.Helper()
	c.remember(m)
	m.proc.Kill()
	if m.front != nil {
		m.front.Target("") // its port may soon be another process's
		m.front.Cut()
	}
	c.killed++
}

// stop ends a process in an orderly way.
func (m *member) stop() {
	m.proc.Stop()
	if m.front != nil {
		m.front.Target("")
	}
}

// remember keeps what a process that is about to end knows.
func (c *cell) remember(m *member) {
	m.peak = max(m.peak, m.proc.PeakData())
	if !slices.Contains(m.parts, partBatcher) {
		return
	}
	if s, err := c.scrape(m); err == nil {
		c.orphans += s.Sum("scribe_batcher_orphan_blobs_total")
	}
	// What it had begun to put and did not point to any more: 4 flushes at a time, and what was cut in between.
	c.orphans += 8
}

// accounts is what the processes say of what they hold, and of what has failed, for a test that goes no further.
func (c *cell) accounts() string {
	var b strings.Builder
	for _, m := range c.members {
		s, err := c.scrape(m)
		fmt.Fprintf(&b, "%s: %v\n", m.name, err)
		for _, sample := range slices.Sorted(maps.Keys(s)) {
			if s[sample] != 0 && strings.HasPrefix(sample, "scribe_") && !strings.Contains(sample, "seconds") {
				fmt.Fprintf(&b, "  %s %v\n", sample, s[sample])
			}
		}
	}
	return b.String()
}

// scrape reads the metrics of a process.
func (c *cell) scrape(m *member) (program.Metrics, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), 5*time.Second)
	defer cancel()
	if c.outside != nil {
		return program.ScrapeWith(ctx, c.outside.client, m.at())
	}
	return program.Scrape(ctx, m.at())
}

// run runs a command of the program with the cell's environment, where its clients are.
func (c *cell) run(args ...string) program.Result {
	line := append([]string{program.Binary()}, args...)
	if c.outside != nil {
		line = append(slices.Clone(c.outside.under), line...)
	}
	cmd := program.Command(c.t.Context(), line[0], line[1:]...)
	cmd.Env = append(cmd.Environ(), c.env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); cmd.ProcessState == nil {
		c.t.Errorf("scribe %s: %v", strings.Join(args, " "), err)
		return program.Result{Code: -1}
	}
	return program.Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: cmd.ProcessState.ExitCode()}
}

// ok runs a command that must succeed, and returns what it printed. A cell that is not available for a moment is asked again.
func (c *cell) ok(args ...string) []byte {
	c.t.Helper()
	r := c.run(args...)
	for begun := time.Now(); r.Code == program.ExitUnavailable && time.Since(begun) < program.WaitLimit; {
		r = c.run(args...)
	}
	if r.Code != 0 {
		c.t.Fatalf("scribe %s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	return r.Stdout
}

// at is where the process's metrics are read.
func (m *member) at() string {
	if m.socket != "" {
		return "unix:" + m.socket
	}
	return m.proc.URL
}

// stopAll ends every process in an orderly way, from the front of the write path to its back.
func (c *cell) stopAll() {
	c.t.Helper()
	var nodes []*program.Process
	for _, m := range slices.Backward(c.members) {
		if m.listens != "" {
			m.proc.Terminate()
			nodes = append(nodes, m.proc)
			continue
		}
		m.stop()
	}
	program.AwaitStops(nodes...)
}
