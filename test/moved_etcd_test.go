package test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/testkit/etcdtest"
	"scribe/test/program"
)

// TestMoveToEtcdAndBack: a cell of one process becomes one of two processes over an etcd that others run, either of which can be lost, and one of one process again.
// Readers with checkpoints, groups and a producer that writes exactly once go on all the time, and the folder is refused where it would be behind.
func TestMoveToEtcdAndBack(t *testing.T) {
	c := &movedCell{nodeCell: &nodeCell{dir: t.TempDir()}}
	c.checkpoint = filepath.Join(c.dir, "checkpoint")
	for range 3 { // the third stays away
		c.address = append(c.address, program.NodeAddress(t))
	}
	blobs := filepath.Join(c.dir, "blobs")
	etcd := []string{"--etcd", etcdtest.Start(t, 1).Endpoints()[0], "--cell", "moved", "--blob-path", blobs}
	begin := func(i int, more ...string) *program.Process {
		p, out := launch(t, nil, append(append([]string{
			"serve", "--roles", "all", "--metalog", c.url(0) + "," + c.url(1), "--data", c.data(i), "--listen", c.address[i], "--id", "p" + c.address[i],
		}, etcd...), more...)...)
		p.AwaitReady(out)
		return p
	}
	alone := c.startAlone(t)
	ok(t, nil, "category", "create", "once", "--delivery", "exactly_once", "--server", c.url(0))
	c.goOn(t, "in one process", 0)
	before := c.revision(t, 0)
	stop := c.writeOnce(t)
	defer stop()
	ok(t, nil, "node", "export", "--data", c.data(0), "--blob-path", blobs)
	alone.Stop()

	first := begin(0, "--adopt")
	second := begin(1)
	for i := range 2 {
		sameBytes(t, "moved, at "+c.url(i), tail(t, c.at(i), "log"), c.written)
		if r := c.revision(t, i); r < before {
			t.Errorf("the category is at revision %d at %s, it was at %d", r, c.url(i), before)
		}
	}
	c.checkReplicas(t)
	c.goOn(t, "over etcd", 0)
	first.Kill()
	c.goOn(t, "at the one that is left", 1)
	old, out := c.launchAlone(t)
	refused(t, old, out, "has moved to the etcd of cell moved", "--etcd", "scribe node detach")

	detach := append([]string{"node", "detach", "--data", c.data(0), "--listen", c.address[0]}, etcd...)
	wantCode(t, program.RunWith(t, program.ServerEnvironment(detach), nil, detach...), 1, "leads the metadata logs of cell moved")
	c.goOn(t, "at the one that was not stopped", 1)
	second.Stop()
	wantCode(t, program.RunWith(t, program.ServerEnvironment(detach), nil, detach...), 0, "scribe up --data "+c.data(0))
	alone = c.startAlone(t)
	c.goOn(t, "in one process again", 0)
	c.checkOnce(t, 0, stop())
	alone.Stop()
}

// checkReplicas requires that the status of the cell has both replicas of its metadata logs, one of which leads, and the member of etcd.
func (c *movedCell) checkReplicas(t *testing.T) {
	t.Helper()
	program.Await(t, "the status has the replicas and the member of etcd", func() bool {
		var shown struct {
			Replicas []struct {
				URL   string
				Leads bool
				Term  uint64
			}
			Etcd []struct {
				Leads bool
				Bytes any
			}
		}
		if err := json.Unmarshal(ok(t, nil, "status", "-o", "json", "--server", c.url(1)), &shown); err != nil {
			t.Fatal(err)
		}
		r := shown.Replicas
		return len(r) == 2 && r[0].Leads != r[1].Leads && r[0].Term == r[1].Term && r[0].Term > 0 && len(shown.Etcd) == 1 && shown.Etcd[0].Leads
	})
	text := string(ok(t, nil, "status", "--server", c.url(0)))
	for _, want := range []string{"\nREPLICA ", c.url(0), c.url(1), " leads ", " follows ", "\nETCD "} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
