package powerdisk

import (
	"maps"
	"math/rand/v2"
	"slices"
)

// node is a file or a folder.
type node struct {
	id   uint64
	mode uint32 // permissions
	// content is a file's; nil for a folder.
	content *content
	// live are a folder's names as processes see them, disk those that are certain to be on the disk.
	live, disk map[string]*node
	modified   int64 // Unix nanoseconds
}

func (n *node) isDir() bool { return n.content == nil }

// change is one of a name, or of two for a rename: which node stands at each afterwards, nil for none.
type change []entry

type entry struct {
	dir  *node
	name string
	node *node
}

// tree is the file system without its mount.
type tree struct {
	root   *node
	nodes  map[uint64]*node
	nextID uint64
	// journal are the changes of names that are not certain to be on the disk, in order.
	journal []change
	now     func() int64
}

const rootID = 1

func newTree(now func() int64) *tree {
	t := &tree{nodes: map[uint64]*node{}, nextID: rootID, now: now}
	t.root = t.newNode(true, 0o755)
	return t
}

func (t *tree) newNode(dir bool, mode uint32) *node {
	n := &node{id: t.nextID, mode: mode, modified: t.now()}
	if dir {
		n.live, n.disk = map[string]*node{}, map[string]*node{}
	} else {
		n.content = newContent()
	}
	t.nodes[n.id] = n
	t.nextID++
	return n
}

// apply makes a change visible, and notes it for the disk.
func (t *tree) apply(c change) {
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

// commit makes the first n changes certain.
func (t *tree) commit(n int) {
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

// syncDir makes every change of a folder certain, and those before them.
func (t *tree) syncDir(dir *node) {
	for i, c := range slices.Backward(t.journal) {
		if slices.ContainsFunc(c, func(e entry) bool { return e.dir == dir }) {
			t.commit(i + 1)
			return
		}
	}
}

// powerLoss returns the tree that the disk holds when the power goes. The tree itself is not used any more.
func (t *tree) powerLoss(rng *rand.Rand) *tree {
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
	t.commit(changes)
	out := newTree(t.now)
	out.root = t.survivor(out, t.root, rng, kept, map[*node]*node{})
	return out
}

// survivor copies a node, with what is below it, as the disk has it.
func (t *tree) survivor(out *tree, n *node, rng *rand.Rand, kept float64, done map[*node]*node) *node {
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
		s.content.disk = n.content.lose(rng, kept)
		s.content.live = s.content.disk.clone()
		return s
	}
	for _, name := range slices.Sorted(maps.Keys(n.disk)) { // in order, so that draws are the same for the same tree
		s.live[name] = t.survivor(out, n.disk[name], rng, kept, done)
	}
	s.disk = maps.Clone(s.live)
	return s
}

// used is how many bytes the pages take that processes see.
func (t *tree) used() int64 {
	var pages int
	for _, n := range t.nodes {
		if !n.isDir() {
			pages += len(n.content.live.pages)
		}
	}
	return int64(pages) * pageSize
}
