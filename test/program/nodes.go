package program

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// nodesVariable has each cell that a test starts with `scribe up`, as one process with the embedded engine, be a cell of that many nodes.
const nodesVariable = "SCRIBE_TEST_NODES"

// CountNodes returns of how many nodes cells are; 0 if they are of processes with the embedded engine.
func CountNodes(t testing.TB) int {
	t.Helper()
	text := os.Getenv(nodesVariable)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n != 1 && n != 3 && n != 5 {
		t.Fatalf("%s: %q: want 1, 3 or 5 nodes", nodesVariable, text)
	}
	return n
}

// OneProcess skips a test that is about a cell of one process where cells are of nodes, and says why.
func OneProcess(t testing.TB, why string) {
	t.Helper()
	if CountNodes(t) > 0 {
		t.Skipf("not with %s: %s", nodesVariable, why)
	}
}

// ServeNodes is Serve for a command line of a cell of one process that n nodes stand for. The process that it returns is the first one.
func ServeNodes(t testing.TB, n int, env []string, args ...string) *Process {
	t.Helper()
	p, stdout := launchNodes(t, n, binary, nil, env, args)
	p.AwaitReady(stdout)
	return p
}

// launchNodes starts the nodes that stand for a command line, the first of which is returned, or only that command line if it starts no cell of one process.
func launchNodes(t testing.TB, n int, build string, wrapper, env, args []string) (first *Process, stdout io.Reader) {
	t.Helper()
	for i, line := range nodeLines(t, n, env, args) {
		p, out := launchOne(t, build, wrapper, env, line)
		if i == 0 {
			first, stdout = p, out
			continue
		}
		p.stdout = out
		first.others = append(first.others, p)
	}
	return first, stdout
}

// Nodes are the nodes of the cell that a process stands for: only itself in a cell of one process.
func (p *Process) Nodes() []*Process { return append([]*Process{p}, p.others...) }

// nodeCells are the cells of nodes by the data folder that the test gave: a cell that is started again has its addresses.
var nodeCells sync.Map // string to *nodeCell

// nodeCell is a cell of nodes that stands for one process. The first node has the data folder and the addresses that the test gave,
// the others have folders beside it.
type nodeCell struct {
	data    string
	cluster []string // NAME=HOST:PORT of each
}

// nodeLines returns the command lines of the nodes that stand for a command line, which is the only one if it starts no cell of one process.
func nodeLines(t testing.TB, n int, env, args []string) [][]string {
	t.Helper()
	u, flags := parseUp(args)
	if n == 0 || !flags || slices.ContainsFunc(env, func(v string) bool { return strings.HasPrefix(v, "SCRIBE_ETCD=") }) {
		return [][]string{args}
	}
	c := findNodeCell(t, &u, n)
	if u.secure {
		c.giveFiles(t)
	}
	lines := make([][]string, n)
	for i := range lines {
		lines[i] = append([]string{
			"up", "--node", nodeName(i), "--cluster", strings.Join(c.cluster, ","), "--data", c.folder(i),
		}, u.rest...)
		if !u.blobs {
			lines[i] = append(lines[i], "--blob-path", filepath.Join(u.data, "blobs"))
		}
		if i > 0 {
			continue
		}
		lines[i] = append(lines[i], u.alone...)
	}
	return lines
}

// upLine is a command line of `scribe up`.
type upLine struct {
	data, listen  string
	secure, blobs bool
	// rest are the flags that all nodes have as well, alone those that only one can have.
	rest, alone []string
}

// parseUp takes the command line of a cell of one process apart; false for any other.
func parseUp(args []string) (u upLine, ok bool) {
	if len(args) == 0 || args[0] != "up" {
		return u, false
	}
	for i := 1; i < len(args); i++ {
		name, value, joined := strings.Cut(args[i], "=")
		next := func() []string {
			if joined || i+1 == len(args) || strings.HasPrefix(args[i+1], "--") {
				return args[i : i+1]
			}
			i++
			value = args[i]
			return args[i-1 : i+1]
		}
		switch name {
		case "--node", "--cluster", "--etcd", "--adopt", "--help":
			return u, false
		case "--data":
			_ = next()
			u.data = value
		case "--listen":
			_ = next()
			u.listen = value
		case "--id": // a node's is its name
			_ = next()
		case "--flight", "--socket", "--advertise":
			u.alone = append(u.alone, next()...)
		default:
			u.secure = u.secure || name == "--secure" && value != "false"
			u.blobs = u.blobs || name == "--blobs" || name == "--blob-path"
			u.rest = append(u.rest, next()...)
		}
	}
	return u, u.data != ""
}

func findNodeCell(t testing.TB, u *upLine, n int) *nodeCell {
	t.Helper()
	if c, ok := nodeCells.Load(u.data); ok {
		return c.(*nodeCell) //nolint:forcetypeassert // nothing else is there
	}
	c := &nodeCell{data: u.data}
	for i := range n {
		address := u.listen
		if _, port, _ := net.SplitHostPort(address); i > 0 || port == "0" || port == "" {
			address = NodeAddress(t)
		}
		c.cluster = append(c.cluster, nodeName(i)+"="+address)
	}
	nodeCells.Store(u.data, c)
	t.Cleanup(func() { nodeCells.Delete(u.data) })
	return c
}

func nodeName(i int) string { return fmt.Sprint("n", i+1) }

func (c *nodeCell) folder(i int) string {
	if i == 0 {
		return c.data
	}
	return c.data + "-" + nodeName(i)
}

// giveFiles makes the certificates of nodes and puts them into their folders, unless they are there.
func (c *nodeCell) giveFiles(t testing.TB) {
	t.Helper()
	certs := c.data + "-certs"
	if _, err := os.Stat(certs); err == nil {
		return
	}
	OK(t, nil, "cert", "nodes", "--cluster", strings.Join(c.cluster, ","), "--dir", certs)
	for i := range c.cluster {
		if err := os.CopyFS(filepath.Join(c.folder(i), "secure"), os.DirFS(filepath.Join(certs, nodeName(i), "secure"))); err != nil {
			t.Fatal(err)
		}
	}
}
