package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/testkit/etcdtest"
	"scribe/internal/testkit/testsize"
)

// inEtcd makes a configuration that of a process of a cell of every role in an etcd that others run.
func inEtcd(c Config, cluster *etcdtest.Cluster, cell string) Config {
	c.Etcd.URLs, c.Cell = cluster.Endpoints(), cell
	return c
}

// TestMoveToEtcdAtEachStep cuts off the move into an etcd that others run, and the one back, before each of their steps. Before the mark of the move the folder starts
// as before, after it only with --etcd, which has everything; and the other way round.
func TestMoveToEtcdAtEachStep(t *testing.T) {
	own := cellConfig(t)
	a := startCell(t, own)
	fill(t, a)
	stopCell(t, a)
	cluster := etcdtest.Start(t, 1)
	there := []string{"export", "mark", "logs", "control", "journal", "ready"}
	back := []string{"journal", "logs", "end", "copy", "remove", "rename", "mark"}
	for i, back := range back[:testsize.Test(len(back), 2, 1)] {
		cut := there[i%len(there)]
		t.Run(cut+" and "+back, func(t *testing.T) {
			m := &movingCell{next: 10}
			c := own
			c.Data, c.Blobs.Path = filepath.Join(t.TempDir(), "data"), own.BlobPath()
			if err := os.CopyFS(c.Data, os.DirFS(own.Data)); err != nil {
				t.Fatal(err)
			}
			moved := inEtcd(c, cluster, "moved-"+back)
			mustRefuse(t, "without --adopt", moved, "add --adopt")
			moved.Adopt = true
			if _, err := Start(t.Context(), moved, cutAt(cut)); !errors.Is(err, errCut) {
				t.Fatalf("the move ended with %v", err)
			}
			other := cutAt("")
			if i%len(there) < 2 { // before the mark, or at it
				m.check(t, "it has not moved", c)
			} else {
				mustRefuse(t, "it has moved", c, "start it with --etcd "+cluster.Endpoints()[0]+" --cell moved-"+back)
				mustRefuse(t, "as a node", oneNode(t, c), "start it with --etcd")
				moved.Adopt = false // DATA/node remembers it
				if cut != "ready" {
					elsewhere := moved
					elsewhere.Data = t.TempDir()
					awaitOther(t, elsewhere, other)
				}
			}
			m.check(t, "it has moved", moved)
			mustRefuse(t, "it has moved", c, "scribe node detach")
			renamed := moved
			renamed.Cell = "another"
			mustRefuse(t, "under another name", renamed, "give the former --cell")

			if err := DetachNode(t.Context(), moved, cutAt(back)); !errors.Is(err, errCut) {
				t.Fatalf("the move back ended with %v", err)
			}
			mustRefuse(t, "it has not moved back", c, "start it with --etcd")
			if back == "journal" {
				m.check(t, "it has not moved back", moved)
			}
			if err := DetachNode(t.Context(), moved, cutAt("")); err != nil {
				t.Fatalf("the move back: %v", err)
			}
			moved.Adopt = false
			mustRefuse(t, "it has moved back", moved, "was detached from the etcd")
			m.check(t, "it has moved back", c)
			if names, err := os.ReadDir(c.Data); err != nil || hasName(names, nodeFileName, "metalog.export", "control.detaching") {
				t.Errorf("it leaves %v, %v", names, err)
			}
			moved.Data = t.TempDir()
			mustRefuse(t, "another process of the former cell", moved, "has taken the cell's metadata along")
			moved.Data, moved.Adopt = c.Data, true
			mustRefuse(t, "the former name again", moved, "has ended")
		})
	}
}

// awaitOther requires that a process with an empty folder waits until the cell in etcd has begun.
func awaitOther(t *testing.T, c Config, o Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*metadataPause)
	defer cancel()
	a, err := Start(ctx, c, o)
	if err == nil {
		stopCell(t, a)
	}
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waits for ") {
		t.Errorf("a process that began before what is adopted: %v", err)
	}
}

// TestAdoptIntoUsedEtcd: a cell that is there already adopts nothing, and the folder has not changed. A folder that neither is nor becomes that of the cell is
// refused.
func TestAdoptIntoUsedEtcd(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	stopNow(t, startShared(t, cluster.Endpoints(), 1)[0])
	own := cellConfig(t)
	a := startCell(t, own)
	fill(t, a)
	stopCell(t, a)
	moved := inEtcd(own, cluster, "shared")
	moved.Adopt = true
	mustRefuse(t, "a cell that is there", moved, "etcdctl del --prefix scribe/shared/")
	m := &movingCell{next: 10}
	m.check(t, "it has not moved", own)
	node := oneNode(t, own)
	node.Adopt = true
	mustRefuse(t, "as a node meanwhile", node, "to give that up, remove "+filepath.Join(own.Data, nodeFileName))
	moved.Cell = "free"
	m.check(t, "another cell", moved)

	moved.Data, moved.Cell = t.TempDir(), "shared"
	mustRefuse(t, "an empty folder", moved, "there is nothing to adopt")
	if err := DetachNode(t.Context(), inEtcd(own, cluster, "new"), cutAt("")); err == nil || !strings.Contains(err.Error(), "give the former --cell") {
		t.Errorf("another cell's folder is detached: %v", err)
	}
	moved.Adopt = false
	if err := DetachNode(t.Context(), moved, cutAt("")); err == nil || !strings.Contains(err.Error(), "there is nothing to detach") {
		t.Errorf("a folder of no process with --etcd is detached: %v", err)
	}
}

// TestDetachFromRunningCell: a cell in etcd is not ended while another process leads its logs, and goes on. Once that has stopped, any process of the cell can take
// everything along, also the one that came second.
func TestDetachFromRunningCell(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	apps := startShared(t, cluster.Endpoints(), 2)
	fill(t, apps[0])
	second := apps[1].cfg
	stopNow(t, apps[1])
	err := DetachNode(t.Context(), second, cutAt(""))
	if err == nil || !strings.Contains(err.Error(), apps[0].URL()+" leads the metadata logs") {
		t.Fatalf("a cell that runs is detached: %v", err)
	}
	m := &movingCell{next: 10}
	checkCellAt(t, apps[0], m.next)
	m.next++
	stopNow(t, apps[0])
	if err := DetachNode(t.Context(), second, Options{Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	second.Etcd, second.Metalog, second.Cell = EtcdConfig{}, "", DefaultConfig().Cell
	m.check(t, "alone", second)
	first := apps[0].cfg
	mustRefuse(t, "the one that was left", first, "has taken the cell's metadata along")
}

// TestEtcdName: the name of a process tells it from others, whatever its id, and fits into the journal's head.
func TestEtcdName(t *testing.T) {
	for id, want := range map[string]string{"": "", "a": "a", strings.Repeat("h", 200) + "-0123456789": strings.Repeat("h", 52) + "-0123456789", strings.Repeat("é", 40): strings.Repeat("é", 31)} {
		if got := etcdName(id); got != want {
			t.Errorf("the name of %q is %q, want %q", id, got, want)
		}
	}
}

// TestRecoverIntoEtcd: what a recovery made begins a cell in etcd. Its copy of the categories is never the control store that a folder has from before it moved.
func TestRecoverIntoEtcd(t *testing.T) {
	cluster := etcdtest.Start(t, 1)
	own := cellConfig(t)
	a := startCell(t, own)
	fill(t, a)
	stopCell(t, a)
	moved := inEtcd(own, cluster, "lost")
	moved.Adopt = true
	m := &movingCell{next: 10}
	m.check(t, "it has moved", moved)

	again := inEtcd(own, cluster, "found")
	again.Data, again.Adopt, again.Blobs.Path = filepath.Join(t.TempDir(), "to"), true, own.BlobPath()
	for _, stale := range []string{"control", "other"} {
		_, err := Recover(t.Context(), moved, RecoverOptions{To: again.Data, Catalog: filepath.Join(own.Data, stale)})
		if want := "give the newest file " + filepath.Join(own.Data, "catalog"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %s it does not say %q: %v", stale, want, err)
		}
	}
	if _, err := Recover(t.Context(), moved, RecoverOptions{To: again.Data, Catalog: filepath.Join(own.Data, "catalog")}); err != nil {
		t.Fatal(err)
	}
	m.revision = 0 // a new control store
	m.check(t, "recovered", again)
}
