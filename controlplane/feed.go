package controlplane

import (
	"cmp"
	"slices"
	"sort"
	"sync"

	"scribe/storage/kv"
)

// categoryFeed is the source of category watches, and in the same way of access watches, whose records stand for categories in what
// follows: the newest state of every category, in the order in which the states arrived. A
// change moves its category to the end of the order. So the only state of a watch is its position in the order: its backlog never
// exceeds the number of categories, and states that were overwritten before it read them are not sent.
//
// A deletion is a state too, but only the newest maxDeletions of them are kept. A watch that has sent a category and missed its
// deletion would be wrong: it starts over (see readStep).
//
// One goroutine changes a feed; any number read it. Plans of micro-shards have a feed of their own of the same kind, by their keys.
type categoryFeed struct {
	maxDeletions int

	mu struct {
		sync.RWMutex
		items map[string]feedItem
		// order has every item once with its sequence, ascending, and outdated entries of items that changed later. The sequence
		// of an outdated entry differs from the item's.
		order []feedEntry
		seq   uint64
		// deletions are the sequences of the remembered deletions, and of some that were overwritten; forgotten is the newest
		// sequence of a forgotten deletion.
		deletions []feedEntry
		forgotten uint64
		// live counts items that are not deletions.
		live int
		// revision is the store's revision up to which every change is in the feed.
		revision uint64
		// loaded says that the feed was complete at least once.
		loaded bool
		// grown is closed and replaced with every change.
		grown chan struct{}
	}
}

// feedItem is the newest state of a category.
type feedItem struct {
	seq      uint64
	revision uint64
	value    []byte // encoded; nil for a deletion
}

// feedEntry is a category in the order of changes.
type feedEntry struct {
	seq  uint64
	name string
}

func newFeed(maxDeletions int) *categoryFeed {
	f := &categoryFeed{maxDeletions: maxDeletions}
	f.mu.items = make(map[string]feedItem)
	f.mu.grown = make(chan struct{})
	return f
}

// applyEvents adds changes from the store, whose keys are names of categories. After it the feed is complete up to revision.
// Changes that are not newer than the feed's are skipped, since reading and watching a store overlap.
func (f *categoryFeed) applyEvents(events []kv.KeyEvent, revision uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, e := range events {
		if e.Revision > f.mu.items[e.Key].revision {
			f.appendChange(e)
		}
	}
	f.mu.revision = max(f.mu.revision, revision)
	f.wakeWatches()
}

// replaceAll takes the complete state of the store; categories that are not in it were deleted. The state was read in pages, the
// first one at revision.
func (f *categoryFeed) replaceAll(entries map[string]kv.Entry, revision uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if revision < f.mu.revision {
		// The store was restored to an earlier state, and counts from there. Nothing that watches sent can be compared.
		clear(f.mu.items)
		f.mu.order, f.mu.deletions, f.mu.live = nil, nil, 0
		f.mu.seq++
		f.mu.forgotten = f.mu.seq
	}
	var changes []kv.KeyEvent
	for name, it := range f.mu.items {
		if _, ok := entries[name]; !ok && it.value != nil {
			changes = append(changes, kv.KeyEvent{Key: name, Revision: max(it.revision+1, revision), Deleted: true})
		}
	}
	for name, e := range entries {
		if it := f.mu.items[name]; it.value == nil || it.revision != e.Revision {
			changes = append(changes, kv.KeyEvent{Key: name, Value: e.Value, Revision: e.Revision})
		}
	}
	slices.SortFunc(changes, func(a, b kv.KeyEvent) int {
		return cmp.Or(cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Key, b.Key))
	})
	for _, e := range changes {
		f.appendChange(e)
	}
	f.mu.revision = revision
	f.mu.loaded = true
	f.wakeWatches()
}

// wakeWatches wakes the watches. f.mu is held.
func (f *categoryFeed) wakeWatches() {
	close(f.mu.grown)
	f.mu.grown = make(chan struct{})
}

// appendChange moves a category to the end of the order. f.mu is held.
func (f *categoryFeed) appendChange(e kv.KeyEvent) {
	if f.mu.items[e.Key].value != nil {
		f.mu.live--
	}
	f.mu.seq++
	it := feedItem{seq: f.mu.seq, revision: e.Revision}
	p := feedEntry{seq: it.seq, name: e.Key}
	if e.Deleted {
		f.mu.deletions = append(f.mu.deletions, p)
	} else {
		it.value = e.Value
		f.mu.live++
	}
	f.mu.items[e.Key] = it
	f.mu.order = append(f.mu.order, p)
	if len(f.mu.deletions) > f.maxDeletions {
		f.forgetDeletions()
	}
	if len(f.mu.order) > 2*len(f.mu.items)+1024 {
		f.compactOrder()
	}
}

// forgetDeletions drops the older half of the deletions. f.mu is held.
func (f *categoryFeed) forgetDeletions() {
	n := (len(f.mu.deletions) + 1) / 2
	for _, p := range f.mu.deletions[:n] {
		if f.mu.items[p.name].seq == p.seq {
			delete(f.mu.items, p.name)
		}
	}
	f.mu.forgotten = f.mu.deletions[n-1].seq
	f.mu.deletions = slices.Clone(f.mu.deletions[n:])
}

// compactOrder removes the outdated entries. f.mu is held.
func (f *categoryFeed) compactOrder() {
	f.mu.order = slices.DeleteFunc(f.mu.order, func(p feedEntry) bool { return f.mu.items[p.name].seq != p.seq })
}

// feedCursor is a watch's position in a feed. The zero cursor has not started.
type feedCursor struct {
	started bool
	// seq is the sequence up to which everything was sent.
	seq uint64
	// began is the end of the order when the watch started over. Deletions up to it are skipped, since the watch had not sent the
	// categories.
	began uint64
	// synced says that the complete set was sent.
	synced bool
	// revision is the revision that the watch has reached.
	revision uint64
}

// feedStep is the next part that a watch sends.
type feedStep struct {
	// reset says that the watch starts over.
	reset   bool
	updated []kv.Entry
	deleted []string
	// syncs says that this step completes the set, for the first time since the reset.
	syncs bool
	// grown, when not nil, announces more: the watch has reached the end of the order, or the feed is not loaded.
	grown <-chan struct{}
}

// readStep returns the changes after a cursor, within the bounds, and advances the cursor. Until the feed is loaded it returns
// only the channel that announces it.
func (f *categoryFeed) readStep(c *feedCursor, maxItems, maxBytes int) feedStep {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if !f.mu.loaded {
		return feedStep{grown: f.mu.grown}
	}
	var s feedStep
	missed := c.began
	if c.synced {
		missed = c.seq
	}
	if !c.started || missed < f.mu.forgotten {
		*c = feedCursor{started: true, began: f.mu.seq}
		s.reset = true
	}
	i := sort.Search(len(f.mu.order), func(i int) bool { return f.mu.order[i].seq > c.seq })
	for bytes := 0; i < len(f.mu.order); i++ {
		p := f.mu.order[i]
		it, ok := f.mu.items[p.name]
		if !ok || it.seq != p.seq {
			continue
		}
		n := len(s.updated) + len(s.deleted)
		if n == maxItems || (n > 0 && bytes+len(it.value) > maxBytes) {
			return s
		}
		c.seq = p.seq
		bytes += len(p.name) + len(it.value)
		switch {
		case it.value != nil:
			s.updated = append(s.updated, kv.Entry{Key: p.name, Value: it.value, Revision: it.revision})
		case c.synced || p.seq > c.began:
			s.deleted = append(s.deleted, p.name)
		}
	}
	// Only at this point does the watch have the state of one revision.
	s.syncs, s.grown = !c.synced, f.mu.grown
	c.seq, c.synced, c.revision = f.mu.seq, true, f.mu.revision
	return s
}

// stateOf returns the encoded state of a category and its revision; nil if there is none.
func (f *categoryFeed) stateOf(name string) (value []byte, revision uint64) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	it := f.mu.items[name]
	return it.value, it.revision
}

// countLive returns the number of categories.
func (f *categoryFeed) countLive() int {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.mu.live
}

// eachName calls fn with the names of all categories, in no particular order. Names that change during the call may be repeated
// or missing. It does not hold the lock for long.
func (f *categoryFeed) eachName(fn func(name string)) {
	const chunk = 4096
	var buf [chunk]string
	for seq := uint64(0); ; {
		n := 0
		f.mu.RLock()
		i := sort.Search(len(f.mu.order), func(i int) bool { return f.mu.order[i].seq > seq })
		for ; i < len(f.mu.order) && n < chunk; i++ {
			p := f.mu.order[i]
			seq = p.seq
			if it := f.mu.items[p.name]; it.seq == p.seq && it.value != nil {
				buf[n] = p.name
				n++
			}
		}
		done := i == len(f.mu.order)
		f.mu.RUnlock()
		for _, name := range buf[:n] {
			fn(name)
		}
		if done {
			return
		}
	}
}
