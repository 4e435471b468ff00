package test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/test/program"
)

// nodeCell is a cell of three nodes on this machine.
type nodeCell struct {
	dir     string
	address []string // of n1, n2, n3
	nodes   []*program.Process
	// env are variables of a node; nil for none. secure means that they have the nodes speak TLS.
	env    func(i int) []string
	secure bool
}

// startNodes starts three nodes with empty folders, and waits until all are ready.
func startNodes(t *testing.T) *nodeCell {
	c := &nodeCell{dir: t.TempDir(), nodes: make([]*program.Process, 3)}
	for range c.nodes {
		c.address = append(c.address, program.NodeAddress(t))
	}
	c.startAll(t)
	return c
}

// startAll starts all nodes, and waits until they are ready.
func (c *nodeCell) startAll(t *testing.T) {
	t.Helper()
	outputs := make([]io.Reader, len(c.nodes))
	for i := range c.nodes {
		c.nodes[i], outputs[i] = c.launch(t, i)
	}
	for i, p := range c.nodes {
		p.AwaitReady(outputs[i])
	}
}

// launch starts a node, and does not wait for it.
func (c *nodeCell) launch(t *testing.T, i int, more ...string) (*program.Process, io.Reader) {
	var env []string
	if c.env != nil {
		env = c.env(i)
	}
	return launch(t, env, append(append([]string{"up"}, c.flags(i)...), more...)...)
}

// flags say which node it is, and where its data is.
func (c *nodeCell) flags(i int) []string {
	list := make([]string, len(c.address))
	for j, a := range c.address {
		list[j] = fmt.Sprintf("n%d=%s", j+1, a)
	}
	return []string{"--node", fmt.Sprintf("n%d", i+1), "--cluster", strings.Join(list, ","), "--data", c.data(i), "--blob-path", filepath.Join(c.dir, "blobs")}
}

// start starts a node, and waits until it is ready.
func (c *nodeCell) start(t *testing.T, i int) {
	p, out := c.launch(t, i)
	p.AwaitReady(out)
	c.nodes[i] = p
}

func (c *nodeCell) data(i int) string { return filepath.Join(c.dir, fmt.Sprintf("n%d", i+1)) }

func (c *nodeCell) url(i int) string {
	if c.secure {
		return "https://" + c.address[i]
	}
	return program.URL(c.address[i])
}

// at is the cell as clients of a node see it.
func (c *nodeCell) at(i int) *cell { return &cell{write: c.url(i), read: c.url(i)} }

// others are the nodes but one.
func (c *nodeCell) others(i int) []int {
	return slices.DeleteFunc([]int{0, 1, 2}, func(j int) bool { return j == i })
}

// listedNode is a node in the output of scribe node list -o json.
type listedNode struct {
	Name, State  string
	Started      bool
	EtcdLeads    bool `json:"etcd_leads"`
	ControlLeads bool `json:"control_leads"`
	Metalog      struct {
		Leads        bool
		Applied, Lag uint64
	}
}

// list asks a node for all nodes.
func (c *nodeCell) list(t *testing.T, at int) []listedNode {
	t.Helper()
	var nodes []listedNode
	for line := range bytes.Lines(ok(t, nil, "node", "list", "-o", "json", "--server", c.url(at))) {
		var n listedNode
		if err := json.Unmarshal(line, &n); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// leader waits until a node leads the metadata logs, and returns which.
func (c *nodeCell) leader(t *testing.T, at int) int {
	t.Helper()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(waitLimit)
	for {
		nodes := c.list(t, at)
		if i := slices.IndexFunc(nodes, func(n listedNode) bool { return n.Metalog.Leads }); i >= 0 {
			return i
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no node leads: %+v", nodes)
		}
	}
}

// TestNodes: three nodes are one cell. Each serves everything; the one that leads is killed, its data is lost, and it is replaced, and nothing
// that was acknowledged is missing at any of them.
func TestNodes(t *testing.T) {
	t.Parallel()
	c := startNodes(t)
	input := countedLines(0, 500)
	produce(t, c.at(0), "log", input)
	for i := range c.nodes {
		sameBytes(t, fmt.Sprintf("at n%d", i+1), tail(t, c.at(i), "log"), input)
	}
	checkDifferentNodes(t, c)
	var status struct{ Nodes []listedNode }
	if err := json.Unmarshal(ok(t, nil, "status", "-o", "json", "--server", c.url(1)), &status); err != nil || len(status.Nodes) != len(c.nodes) {
		t.Errorf("the status has the nodes %+v, %v", status.Nodes, err)
	}

	lost := c.leader(t, 0)
	rest := c.others(lost)
	c.nodes[lost].Kill()
	more := countedLines(500, 1000)
	produce(t, c.at(rest[0]), "log", more)
	input = append(input, more...)
	for _, i := range rest {
		sameBytes(t, fmt.Sprintf("without the leader, at n%d", i+1), tail(t, c.at(i), "log"), input)
	}

	checkReplace(t, c, lost)
	for i := range c.nodes {
		sameBytes(t, fmt.Sprintf("after the replacement, at n%d", i+1), tail(t, c.at(i), "log"), input)
	}

	leader := c.leader(t, rest[0])
	c.nodes[leader].Stop()
	other := c.others(leader)[0]
	more = countedLines(1000, 1100)
	produce(t, c.at(other), "log", more)
	c.start(t, leader)
	input = append(input, more...)
	sameBytes(t, "after a restart", tail(t, c.at(leader), "log"), input)
	checkGrowth(t, c, input)
}

// checkGrowth adds a fourth node, which has everything and takes part, and removes it again.
func checkGrowth(t *testing.T, c *nodeCell, input []byte) {
	t.Helper()
	grown := &nodeCell{dir: c.dir, address: append(slices.Clone(c.address), program.NodeAddress(t), program.NodeAddress(t))}
	grown.nodes = append(slices.Clone(c.nodes), nil, nil)
	refused, out := grown.launch(t, 3)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	<-refused.Done
	if command := "scribe node add n4=" + grown.address[3]; !strings.Contains(refused.Log.String(), command) {
		t.Errorf("a node without a place does not name %q:\n%s", command, refused.Log)
	}
	ok(t, nil, "node", "add", "n4="+grown.address[3], "--server", c.url(0))
	grown.start(t, 3)
	sameBytes(t, "at the node that was added", tail(t, grown.at(3), "log"), input)
	if nodes := grown.list(t, 0); len(nodes) != 4 || nodes[3].Name != "n4" || nodes[3].State != "up" {
		t.Errorf("with a fourth node the list is %+v", nodes)
	}
	ok(t, nil, "node", "remove", "n4", "--server", c.url(0))
	select {
	case <-grown.nodes[3].Done:
	case <-time.After(waitLimit):
		t.Fatal("a node that was removed goes on")
	}
	if nodes := c.list(t, 0); len(nodes) != 3 {
		t.Errorf("without the fourth node the list is %+v", nodes)
	}
}

// checkDifferentNodes uses different nodes for the parts of one task: a schema at one, its messages through another, the query at a third,
// and a group whose members are at all of them.
func checkDifferentNodes(t *testing.T, c *nodeCell) {
	t.Helper()
	schema := filepath.Join(c.dir, "schema.yaml")
	if err := os.WriteFile(schema, []byte("format: json\nfields:\n  - {name: n, type: int64}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, nil, "category", "create", "numbers", "--schema", schema, "--server", c.url(0))
	produce(t, c.at(1), "numbers", []byte("{\"n\":1}\n{\"n\":2}\n{\"n\":39}\n"))
	rows := ok(t, nil, "query", "SELECT sum(n) AS s FROM numbers", "-o", "jsonl", "--server", c.url(2))
	if got := strings.TrimSpace(string(rows)); !strings.Contains(got, "42") {
		t.Errorf("the sum at n3 is %s, want 42", got)
	}
	var got []byte
	for i, n := range []string{"100", "100", "300"} {
		got = append(got, ok(t, nil, "tail", "log", "--group", "g", "--member", "m", "--from", "earliest", "-n", n, "-o", "raw", "--server", c.url(i))...)
	}
	sameBytes(t, "by a group whose member goes from node to node", got, countedLines(0, 500))
}

// checkReplace takes away the data of a node that was killed: it refuses to start, names the command that replaces it, and starts after that.
func checkReplace(t *testing.T, c *nodeCell, lost int) {
	t.Helper()
	if err := os.RemoveAll(c.data(lost)); err != nil {
		t.Fatal(err)
	}
	name, rest := fmt.Sprintf("n%d", lost+1), c.others(lost)
	refused, out := c.launch(t, lost)
	go func() { _, _ = io.Copy(io.Discard, out) }()
	select {
	case <-refused.Done:
	case <-time.After(waitLimit):
		t.Fatalf("%s did not end:\n%s", name, refused.Log)
	}
	if refused.Err == nil || !strings.Contains(refused.Log.String(), "scribe node replace "+name+" --server "+program.URL("")) {
		t.Fatalf("%s ended with %v, and does not name the command:\n%s", name, refused.Err, refused.Log)
	}
	if r := cli(t, nil, "node", "replace", fmt.Sprintf("n%d", rest[0]+1), "--server", c.url(rest[1])); r.Code != 2 || !strings.Contains(string(r.Stderr), "stop it first") {
		t.Errorf("replacing a node that runs: exit code %d\n%s", r.Code, r.Stderr)
	}
	if r := cli(t, nil, "node", "remove", fmt.Sprintf("n%d", rest[0]+1), "--server", c.url(rest[1])); r.Code != program.ExitUnavailable || !strings.Contains(string(r.Stderr), "only 1 would be up") {
		t.Errorf("removing one of two that are up: exit code %d\n%s", r.Code, r.Stderr)
	}
	ok(t, nil, "node", "replace", name, "--server", c.url(rest[0]))
	if n := c.list(t, rest[0])[lost]; n.Name != name || n.State != "new" || n.Started {
		t.Errorf("after its replacement %s is listed as %+v", name, n)
	}
	c.start(t, lost)
	if n := c.list(t, lost)[lost]; n.State != "up" || !n.Started {
		t.Errorf("after its start %s is listed as %+v", name, n)
	}
}

// TestNodeMistakes: what is wrong with the settings of nodes is said before anything is created.
func TestNodeMistakes(t *testing.T) {
	dir := t.TempDir()
	three := "n1=127.0.0.1:20001,n2=127.0.0.1:20011,n3=127.0.0.1:20021"
	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"two nodes", []string{"--node", "n1", "--cluster", "n1=127.0.0.1:20001,n2=127.0.0.1:20011", "--blob-path", dir}, []string{"cluster (--cluster):", "one, three or five"}},
		{"a stranger", []string{"--node", "n4", "--cluster", three, "--blob-path", dir}, []string{"node (--node):", `"n4"`, "n1=127.0.0.1:20001"}},
		{"no shared blobs", []string{"--node", "n1", "--cluster", three}, []string{"blobs.path (--blob-path):", "all nodes share"}},
		{"no node", []string{"--cluster", three, "--blob-path", dir}, []string{"node (--node): missing"}},
		{"no cluster", []string{"--node", "n1"}, []string{"cluster (--cluster): missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			data := filepath.Join(dir, "data")
			r := cli(t, nil, append([]string{"up", "--data", data}, c.args...)...)
			if r.Code != 2 {
				t.Errorf("exit code %d\n%s", r.Code, r.Stderr)
			}
			for _, w := range c.want {
				if !strings.Contains(string(r.Stderr), w) {
					t.Errorf("the error does not name %q:\n%s", w, r.Stderr)
				}
			}
			if _, err := os.Stat(data); err == nil {
				t.Error("the data folder was created")
			}
		})
	}
}
