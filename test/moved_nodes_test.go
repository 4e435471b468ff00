package test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"scribe/producer"
	"scribe/test/program"
)

// movedCell is a cell that is one process, then three nodes, then one process again.
type movedCell struct {
	*nodeCell

	written    []byte // in the category log
	checkpoint string
	read       []byte // from the checkpoint
	grouped    []byte // by the group
}

// launchAlone starts the process of a cell of one with the folder of n1.
func (c *movedCell) launchAlone(t *testing.T) (*program.Process, io.Reader) {
	return launch(t, nil, "up", "--data", c.data(0), "--listen", c.address[0], "--blob-path", filepath.Join(c.dir, "blobs"))
}

func (c *movedCell) startAlone(t *testing.T) *program.Process {
	p, out := c.launchAlone(t)
	p.AwaitReady(out)
	return p
}

// goOn writes and reads as far as a reader with a checkpoint, and a group, have to go on where they were.
func (c *movedCell) goOn(t *testing.T, what string, i int) {
	t.Helper()
	lines := bytes.Count(c.written, []byte("\n"))
	more := countedLines(lines, lines+200)
	produce(t, c.at(i), "log", more)
	c.written = append(c.written, more...)
	sameBytes(t, what, tail(t, c.at(i), "log"), c.written)
	c.read = append(c.read, ok(t, nil, "tail", "log", "--server", c.url(i), "--checkpoint", c.checkpoint, "--from", "earliest", "-n", "100", "-o", "raw")...)
	sameBytes(t, what+", from a checkpoint", c.read, c.written[:len(c.read)])
	c.grouped = append(c.grouped, ok(t, nil, "tail", "log", "--server", c.url(i), "--group", "g", "--member", "m", "--from", "earliest", "-n", "100", "-o", "raw")...)
	sameBytes(t, what+", by a group", c.grouped, c.written[:len(c.grouped)])
}

// revision returns the revision of the category once.
func (c *movedCell) revision(t *testing.T, i int) uint64 {
	t.Helper()
	var category struct{ Revision uint64 }
	if err := json.Unmarshal(ok(t, nil, "category", "describe", "once", "--server", c.url(i)), &category); err != nil {
		t.Fatal(err)
	}
	if category.Revision == 0 {
		t.Fatal("the category has no revision")
	}
	return category.Revision
}

// refused waits for the end of a process that must not start, and requires what it says.
func refused(t *testing.T, p *program.Process, out io.Reader, says ...string) {
	t.Helper()
	go func() { _, _ = io.Copy(io.Discard, out) }()
	select {
	case <-p.Done:
	case <-time.After(waitLimit):
		t.Fatalf("%s did not end:\n%s", p.Name, p.Log)
	}
	for _, w := range says {
		if p.Err == nil || !strings.Contains(p.Log.String(), w) {
			t.Errorf("%s ended with %v, and does not name %q:\n%s", p.Name, p.Err, w, p.Log)
		}
	}
}

// writeOnce writes to the category once, one message after another, until the returned function is called: it waits for the last one, and returns how many there are.
func (c *nodeCell) writeOnce(t *testing.T, more ...producer.Option) (stop func() int) {
	t.Helper()
	p, err := producer.New(strings.Join([]string{c.url(0), c.url(1), c.url(2)}, ","), append(more, producer.WithDeliveryTimeout(10*time.Minute))...)
	if err != nil {
		t.Fatal(err)
	}
	var ends atomic.Bool
	count, longest, done := 0, time.Duration(0), make(chan error, 1)
	go func() {
		for ; !ends.Load(); count++ {
			begin := time.Now()
			if err := p.Write(context.WithoutCancel(t.Context()), "once", producer.Message{Payload: fmt.Appendf(nil, "%d", count)}); err != nil {
				done <- fmt.Errorf("message %d: %w", count, err)
				return
			}
			longest = max(longest, time.Since(begin))
		}
		done <- p.Close(context.WithoutCancel(t.Context()))
	}()
	return sync.OnceValue(func() int {
		ends.Store(true)
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(waitLimit):
			t.Fatal("a writer stands still")
		}
		t.Logf("%d messages were written, the longest pause was %v", count, longest)
		return count
	})
}

// TestMoveToNodesAndBack: a cell of one process becomes one of three nodes, any of which can be lost, and one of one process again. Readers with checkpoints, groups
// and a producer that writes exactly once go on all the time, and each folder is refused where it would be behind.
func TestMoveToNodesAndBack(t *testing.T) {
	c := &movedCell{nodeCell: &nodeCell{dir: t.TempDir(), nodes: make([]*program.Process, 3)}}
	c.checkpoint = filepath.Join(c.dir, "checkpoint")
	for range c.nodes {
		c.address = append(c.address, program.NodeAddress(t))
	}
	alone := c.startAlone(t)
	ok(t, nil, "category", "create", "once", "--delivery", "exactly_once", "--server", c.url(0))
	c.goOn(t, "in one process", 0)
	before := c.revision(t, 0)
	stop := c.writeOnce(t)
	defer stop()

	if told := string(ok(t, nil, "node", "export", "--data", c.data(0), "--blob-path", filepath.Join(c.dir, "blobs"))); !strings.Contains(told, "are stored") {
		t.Errorf("the export of a running cell says %q", told)
	}
	alone.Stop()
	plain, out := c.launch(t, 0)
	refused(t, plain, out, "has the metadata of a cell of one process", "--adopt")
	c.adopt(t)
	for i := range c.nodes {
		sameBytes(t, fmt.Sprintf("moved, at n%d", i+1), tail(t, c.at(i), "log"), c.written)
		if r := c.revision(t, i); r < before {
			t.Errorf("the category is at revision %d at n%d, it was at %d", r, i+1, before)
		}
	}
	c.goOn(t, "at the nodes", 1)
	lost := c.leader(t, 0)
	rest := c.others(lost)
	c.nodes[lost].Kill()
	c.goOn(t, "without the leader", rest[0])
	c.start(t, lost)

	c.nodes[0].Stop()
	old, out := c.launchAlone(t)
	refused(t, old, out, "has moved to the nodes of cell scribe", "--node n1", "scribe node detach")
	c.detach(t)
	alone = c.startAlone(t)
	c.goOn(t, "in one process again", 0)
	c.checkEnded(t)
	if r := c.revision(t, 0); r < before {
		t.Errorf("the category is at revision %d at last, it was at %d", r, before)
	}
	c.checkOnce(t, 0, stop())
	alone.Stop()
}

// checkOnce requires that a node has as many messages of the category once as were written.
func (c *nodeCell) checkOnce(t *testing.T, i, count int) {
	t.Helper()
	var want bytes.Buffer
	for i := range count {
		fmt.Fprintln(&want, i)
	}
	sameBytes(t, fmt.Sprintf("%d messages written exactly once, at n%d", count, i+1), tail(t, c.at(i), "once"), want.Bytes())
}

// adopt starts the nodes, of which the first has what the cell begins with.
func (c *movedCell) adopt(t *testing.T) {
	t.Helper()
	outputs := make([]io.Reader, len(c.nodes))
	begin := time.Now()
	for i := range c.nodes {
		var more []string
		if i == 0 {
			more = []string{"--adopt"}
		}
		c.nodes[i], outputs[i] = c.launch(t, i, more...)
	}
	for i, p := range c.nodes {
		p.AwaitReady(outputs[i])
	}
	t.Logf("three nodes were ready after %v", time.Since(begin))
}

// detach gives the folder of n1, which is stopped, all that the nodes have. The others end.
func (c *movedCell) detach(t *testing.T) {
	t.Helper()
	begin := time.Now()
	args := append([]string{"node", "detach"}, c.flags(0)...)
	r := program.RunWith(t, program.ServerEnvironment(args), nil, args...)
	wantCode(t, r, 0)
	told := r.Stdout
	t.Logf("detached after %v", time.Since(begin))
	if !strings.Contains(string(told), "scribe up --data "+c.data(0)) {
		t.Errorf("it does not say how to go on: %s", told)
	}
	for _, i := range c.others(0) {
		select {
		case <-c.nodes[i].Done:
		case <-time.After(waitLimit):
			t.Fatalf("n%d goes on without the cell:\n%s", i+1, c.nodes[i].Log)
		}
	}
	if _, err := os.Stat(filepath.Join(c.data(0), "control")); err != nil {
		t.Error(err)
	}
}

// checkEnded requires that the nodes that were left do not start again.
func (c *movedCell) checkEnded(t *testing.T) {
	t.Helper()
	processes, outputs := make([]*program.Process, 3), make([]io.Reader, 3)
	for _, i := range c.others(0) {
		processes[i], outputs[i] = c.launch(t, i)
	}
	for _, i := range c.others(0) {
		refused(t, processes[i], outputs[i], "node n1 has taken the cell's metadata along")
	}
}
