package app

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"scribe/internal/testkit/loopback"
	"scribe/internal/testkit/testsize"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// oneNode makes a configuration that of the only node of a cell, at an address of its own, with the two ports after it.
func oneNode(t *testing.T, c Config) Config {
	t.Helper()
	address, release, err := loopback.ReserveRow(3)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	c.Node, c.Cluster, c.Listen = "n1", []string{"n1=" + address}, DefaultConfig().Listen
	return c
}

// cutAt fails before a step.
func cutAt(cut string) Options {
	return Options{Logger: slog.New(slog.DiscardHandler), Step: func(name string) error {
		if name == cut {
			return errCut
		}
		return nil
	}}
}

// movingCell is a cell that fill wrote to.
type movingCell struct {
	// next is the next message of the category once, revision the newest one of a category.
	next, revision uint64
}

// check starts a process, and requires that it has what fill wrote, goes on with it, and that revisions do.
func (m *movingCell) check(t *testing.T, what string, c Config) {
	t.Helper()
	a, err := Start(t.Context(), c, cutAt(""))
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	defer stopCell(t, a)
	checkCellAt(t, a, m.next)
	m.next++
	control := rpc.NewControlClient(rpc.Default(), a.URL())
	got, err := control.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "plain"})
	if err != nil || got.GetCategory().GetRevision() < m.revision {
		t.Fatalf("%s: the category is %v, %v, and was at revision %d", what, got, err, m.revision)
	}
	updated, err := control.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "plain", Owner: new(what)})
	if err != nil || updated.GetCategory().GetRevision() <= got.GetCategory().GetRevision() {
		t.Fatalf("%s: the category is updated to %v, %v", what, updated, err)
	}
	m.revision = updated.GetCategory().GetRevision()
}

// mustRefuse requires that a process does not start, and says why.
func mustRefuse(t *testing.T, what string, c Config, says string) {
	t.Helper()
	a, err := Start(t.Context(), c, cutAt(""))
	if err == nil {
		stopCell(t, a)
	}
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("%s: the process starts, or does not say %q: %v", what, says, err)
	}
}

// TestMoveAtEachStep cuts off the move to a node, and the one back, before each of their steps. Before the mark of the move the folder starts as before, after it only
// as the node's, which has everything; and the other way round.
func TestMoveAtEachStep(t *testing.T) {
	own := cellConfig(t)
	a := startCell(t, own)
	fill(t, a)
	stopCell(t, a)
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
			node := oneNode(t, c)
			mustRefuse(t, "without --adopt", node, "add --adopt")
			node.Adopt = true
			if _, err := Start(t.Context(), node, cutAt(cut)); !errors.Is(err, errCut) {
				t.Fatalf("the move ended with %v", err)
			}
			if i%len(there) < 2 { // before the mark, or at it
				m.check(t, "it has not moved", c)
			} else {
				mustRefuse(t, "it has moved", c, "start it with --node n1")
				node.Adopt = false // DATA/node remembers it
			}
			m.check(t, "it has moved", node)
			mustRefuse(t, "it has moved", c, "scribe node detach")

			if err := DetachNode(t.Context(), node, cutAt(back)); !errors.Is(err, errCut) {
				t.Fatalf("the move back ended with %v", err)
			}
			mustRefuse(t, "it has not moved back", c, "start it with --node n1")
			if back == "journal" {
				m.check(t, "it has not moved back", node)
			}
			if err := DetachNode(t.Context(), node, cutAt("")); err != nil {
				t.Fatalf("the move back: %v", err)
			}
			node.Adopt = false
			mustRefuse(t, "it has moved back", node, "was detached")
			m.check(t, "it has moved back", c)
			if names, err := os.ReadDir(c.Data); err != nil || len(names) != 0 && hasName(names, "etcd", nodeFileName, "metalog.export", "control.detaching") {
				t.Errorf("it leaves %v, %v", names, err)
			}
		})
	}
}

// TestAdoptRecovered: what a recovery made is adopted, as any folder; with the payloads of another cell it is not, and has not changed.
func TestAdoptRecovered(t *testing.T) {
	own := cellConfig(t)
	a := startCell(t, own)
	fill(t, a)
	stopCell(t, a)
	node := oneNode(t, own)
	node.Data, node.Adopt, node.Blobs.Path = filepath.Join(t.TempDir(), "to"), true, t.TempDir()
	mustRefuse(t, "without a folder", node, "there is nothing to adopt")
	if err := DetachNode(t.Context(), node, cutAt("")); err == nil || !strings.Contains(err.Error(), "there is nothing to detach") {
		t.Errorf("a folder of no node is detached: %v", err)
	}
	node.Data = filepath.Join(t.TempDir(), "to")
	if _, err := Recover(t.Context(), own, RecoverOptions{To: node.Data, Catalog: filepath.Join(own.Data, "control")}); err != nil {
		t.Fatal(err)
	}
	mustRefuse(t, "with other payloads", node, "none of the newest payloads is in")
	node.Blobs.Path = own.BlobPath()
	m := &movingCell{next: 10}
	m.check(t, "recovered", node)
	node.Adopt = false
	m.check(t, "started again", node)
}

func hasName(entries []os.DirEntry, names ...string) bool {
	for _, e := range entries {
		for _, name := range names {
			if e.Name() == name {
				return true
			}
		}
	}
	return false
}
