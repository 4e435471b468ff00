package test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	"scribe/storage/metalog/remote"
	"scribe/test/program"
)

// TestRecoverNodes: nodes are killed and lose their metadata, all of them. None of them begins a new cell by itself. What is recovered from the blobs and the newest copy of the
// categories begins one, whose readers go on from checkpoints of before.
func TestRecoverNodes(t *testing.T) {
	t.Parallel()
	c := &movedCell{nodeCell: startNodes(t)}
	c.checkpoint = filepath.Join(c.dir, "checkpoint")
	ok(t, nil, "category", "create", "once", "--delivery", "exactly_once", "--retention", "100h", "--server", c.url(0))
	stop := c.writeOnce(t)
	input := countedLines(0, 500)
	produce(t, c.at(1), "log", input)
	sameBytes(t, "before the loss", tail(t, c.at(2), "log", "--checkpoint", c.checkpoint, "-n", "200"), countedLines(0, 200))
	count := stop()
	for _, p := range c.nodes {
		p.Kill()
	}
	for i := range c.nodes {
		for _, lost := range []string{"etcd", "metalog"} {
			if err := os.RemoveAll(filepath.Join(c.data(i), lost)); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.refuseAll(t, "its metadata is lost", "scribe recover")

	recovered := filepath.Join(c.dir, "recovered")
	s, notes := recoverRun(t, 0, "--blob-path", filepath.Join(c.dir, "blobs"), "--catalog", c.newestCatalog(t), "--to", recovered)
	if s.Messages != 500+count || s.Lost != 0 || s.Categories != 2 {
		t.Errorf("recovered: %+v, want %d messages of 2 categories\n%s", s, 500+count, notes)
	}
	for i := range c.nodes {
		if err := os.Rename(c.data(i), c.data(i)+"-lost"); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(recovered, c.data(0)); err != nil {
		t.Fatal(err)
	}
	c.adopt(t)
	more := countedLines(500, 600)
	produce(t, c.at(2), "log", more)
	input = append(input, more...)
	for i := range c.nodes {
		sameBytes(t, fmt.Sprintf("recovered, at n%d", i+1), tail(t, c.at(i), "log"), input)
		c.checkOnce(t, i, count)
	}
	sameBytes(t, "from a checkpoint of before", tail(t, c.at(1), "log", "--checkpoint", c.checkpoint), countedLines(200, 600))
	if described := string(ok(t, nil, "category", "describe", "once", "--server", c.url(2))); !strings.Contains(described, "exactly_once") || !strings.Contains(described, "100h") && !strings.Contains(described, "4d4h") {
		t.Errorf("the category is not what it was:\n%s", described)
	}
}

// newestCatalog returns the copy of the categories that was written last.
func (c *nodeCell) newestCatalog(t *testing.T) (newest string) {
	t.Helper()
	var at time.Time
	for i := range c.nodes {
		file := filepath.Join(c.data(i), "catalog")
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.ModTime().After(at) {
			newest, at = file, info.ModTime()
		}
	}
	return newest
}

// TestNodesOverOldEtcd: while a cell is stopped, an older copy of etcd is put back at all nodes. They form a quorum on it, and none serves what it has.
func TestNodesOverOldEtcd(t *testing.T) {
	t.Parallel()
	c := startNodes(t)
	produce(t, c.at(0), "log", countedLines(0, 300))
	c.stopAll(t)
	for i := range c.nodes {
		if err := os.CopyFS(filepath.Join(c.dir, "backup", fmt.Sprint(i)), os.DirFS(filepath.Join(c.data(i), "etcd"))); err != nil {
			t.Fatal(err)
		}
	}
	c.startAll(t)
	ok(t, nil, "category", "create", "later", "--server", c.url(1))
	produce(t, c.at(2), "log", countedLines(300, 500))
	c.stopAll(t)
	for i := range c.nodes {
		etcd := filepath.Join(c.data(i), "etcd")
		if err := os.RemoveAll(etcd); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(etcd, os.DirFS(filepath.Join(c.dir, "backup", fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
	}
	c.refuseAll(t, "etcd was restored from a backup")
}

// stopAll ends all nodes at the same time.
func (c *nodeCell) stopAll(t *testing.T) {
	t.Helper()
	for _, p := range c.nodes {
		p.Terminate()
	}
	program.AwaitStops(c.nodes...)
}

// refuseAll starts all nodes at the same time, and again when one has ended, as a supervisor does, until each has said why it does not start. Until then none may be ready, or answer
// who asks for a log.
func (c *nodeCell) refuseAll(t *testing.T, says ...string) {
	t.Helper()
	ends := make(chan int)
	start := func(i int) {
		p, out := c.launch(t, i)
		c.nodes[i] = p
		go func() {
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if strings.HasPrefix(lines.Text(), "ready") {
					t.Errorf("n%d is ready, though something is lost", i+1)
				}
			}
			_, _ = io.Copy(io.Discard, out)
			<-p.Done
			select {
			case ends <- i:
			case <-t.Context().Done():
			}
		}()
	}
	asking := c.askInVain(t)
	for i := range c.nodes {
		start(i)
	}
	deadline := time.After(waitLimit)
	for said := map[int]bool{}; len(said) < len(c.nodes); {
		select {
		case i := <-ends:
			p := c.nodes[i]
			if p.Err != nil && !slices.ContainsFunc(says, func(w string) bool { return !strings.Contains(p.Log.String(), w) }) {
				said[i] = true
			}
			t.Logf("n%d ended with %v: %s", i+1, p.Err, p.Log.Tail(1))
			if len(said) < len(c.nodes) {
				start(i) // who has said it is needed for the majority that the others read etcd with
			}
		case <-deadline:
			t.Fatalf("not all nodes said %q within %v: %v did", says, waitLimit, said)
		}
	}
	asking()
	for _, p := range c.nodes { // those that were started again
		p.Kill()
		<-p.Done
	}
}

// askInVain asks each node again and again for a log until the returned function is called. None may answer.
func (c *nodeCell) askInVain(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	transport := rpc.NewTransport(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for i := range c.nodes {
				log := remote.NewClient(rpc.NewMetalogClient(transport, c.url(i)))
				asking, cancel := context.WithTimeout(ctx, time.Second)
				if states, err := log.Tail(asking, []record.ShardID{record.MakeShardID(1, 0, 1)}); err == nil {
					t.Errorf("n%d tells the old state %+v", i+1, states)
				}
				cancel()
				_ = log.Close() // a client holds nothing
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-ended
		transport.Close()
	}
}
