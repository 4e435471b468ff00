package powerdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// fileNode is a file or a folder.
type fileNode struct {
	id   uint64
	mode uint32 // permissions
	// content is nil for a folder.
	content *fileContent
	// live are a folder's names as processes see them, disk the durable ones.
	live, disk map[string]*fileNode
	modified   int64 // Unix nanoseconds
}

func (n *fileNode) isDir() bool { return n.content == nil }

// nameChange is a change of one name, or of two for a rename: the node that each name refers to afterwards, nil for none.
type nameChange []nameEntry

type nameEntry struct {
	dir  *fileNode
	name string
	node *fileNode
}

// fileTree is the file system without its mount.
type fileTree struct {
	root   *fileNode
	nodes  map[uint64]*fileNode
	nextID uint64
	// journal has the changes of names that are not durable yet, in order.
	journal []nameChange
	now     func() int64
}

const rootID = 1

func newTree(now func() int64) *fileTree {
	t := &fileTree{nodes: map[uint64]*fileNode{}, nextID: rootID, now: now}
	t.root = t.newNode(true, 0o755)
	return t
}

func (t *fileTree) newNode(dir bool, mode uint32) *fileNode {
	n := &fileNode{id: t.nextID, mode: mode, modified: t.now()}
	if dir {
		n.live, n.disk = map[string]*fileNode{}, map[string]*fileNode{}
	} else {
		n.content = newContent()
	}
	t.nodes[n.id] = n
	t.nextID++
	return n
}

// applyChange makes a change visible to processes, and adds it to the journal.
func (t *fileTree) applyChange(c nameChange) {
	for _, e := range c {
		if e.node == nil {
			delete(e.dir.live, e.name)
		} else {
			e.dir.live[e.name] = e.node
		}
		e.dir.modified = t.now()
	}
	t.journal = append(t.journal, c)
}

// commitChanges makes the first n changes durable.
func (t *fileTree) commitChanges(n int) {
	for _, c := range t.journal[:n] {
		for _, e := range c {
			if e.node == nil {
				delete(e.dir.disk, e.name)
			} else {
				e.dir.disk[e.name] = e.node
			}
		}
	}
	t.journal = slices.Delete(t.journal, 0, n)
}

// syncDir makes every change of a folder durable, with all changes before them.
func (t *fileTree) syncDir(dir *fileNode) {
	for i, c := range slices.Backward(t.journal) {
		if slices.ContainsFunc(c, func(e nameEntry) bool { return e.dir == dir }) {
			t.commitChanges(i + 1)
			return
		}
	}
}

// powerLoss returns the tree that the disk holds after a power loss. The old tree must not be used afterwards.
func (t *fileTree) powerLoss(rng *rand.Rand) *fileTree {
	kept := rng.Float64()
	switch rng.IntN(4) {
	case 0:
		kept = 0
	case 1:
		kept = 1
	}
	changes := 0
	for changes < len(t.journal) && (kept == 1 || rng.Float64() < kept) {
		changes++
	}
	t.commitChanges(changes)
	out := newTree(t.now)
	out.root = t.copySurvivor(out, t.root, rng, kept, map[*fileNode]*fileNode{})
	return out
}

// copySurvivor copies a node and its descendants in their state on the disk.
func (t *fileTree) copySurvivor(out *fileTree, n *fileNode, rng *rand.Rand, kept float64, done map[*fileNode]*fileNode) *fileNode {
	if s := done[n]; s != nil {
		return s
	}
	s := out.root
	if n != t.root {
		s = out.newNode(n.isDir(), n.mode)
	}
	done[n] = s
	s.modified = n.modified
	if !n.isDir() {
		s.content.disk = n.content.losePower(rng, kept)
		s.content.live = s.content.disk.cloneImage()
		return s
	}
	for _, name := range slices.Sorted(maps.Keys(n.disk)) { // in order, so that draws are the same for the same tree
		s.live[name] = t.copySurvivor(out, n.disk[name], rng, kept, done)
	}
	s.disk = maps.Clone(s.live)
	return s
}

// usedBytes returns the size of the pages that processes see, in bytes.
func (t *fileTree) usedBytes() int64 {
	var pages int
	for _, n := range t.nodes {
		if !n.isDir() {
			pages += len(n.content.live.pages)
		}
	}
	return int64(pages) * pageSize
}
