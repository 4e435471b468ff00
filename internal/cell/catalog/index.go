package catalog

import (
	"hash/maphash"
	"sync/atomic"
	"unsafe"

	scribev1 "scribe/proto/scribe/v1"
)

// categoryIndex finds categories by name and by id. Any number of goroutines may read it while one changes it.
type categoryIndex struct {
	seed   maphash.Seed
	byName probeTable
	byID   probeTable
	count  atomic.Int64
}

// probeTable is a hash table with linear probing. A reader walks from a key's slot to the first nil. Entries therefore never
// become nil again: a removed entry is replaced by removedEntry, which matches no key. When a table gets too full, a new one is
// filled and replaces it; readers of the old one find the entries of when they began.
type probeTable struct {
	slots atomic.Pointer[[]tableSlot]
	// used counts slots that are not nil. Only the writer uses it.
	used int
}

type tableSlot = atomic.Pointer[scribev1.Category]

// removedEntry replaces the entry of a removed category. No category has its empty name and id 0.
var removedEntry = new(scribev1.Category)

const minSlots = 16

func newIndex() *categoryIndex {
	x := &categoryIndex{seed: maphash.MakeSeed()} //nolint:forbidigo // a category is found by its name, wherever it is
	for _, t := range []*probeTable{&x.byName, &x.byID} {
		slots := make([]tableSlot, minSlots)
		t.slots.Store(&slots)
	}
	return x
}

// lookup returns the category of a name, or nil if there is none.
func (x *categoryIndex) lookup(name string) *scribev1.Category {
	slots := *x.byName.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := maphash.String(x.seed, name) & mask; ; i = (i + 1) & mask {
		c := slots[i].Load()
		if c == nil {
			return nil
		}
		if c.Name == name && c != removedEntry {
			return c
		}
	}
}

// lookupBytes is lookup for a name inside a buffer, which it does not copy.
func (x *categoryIndex) lookupBytes(name []byte) *scribev1.Category {
	return x.lookup(unsafe.String(unsafe.SliceData(name), len(name))) //nolint:gosec // the string does not outlive the call
}

func (x *categoryIndex) hashName(c *scribev1.Category) uint64 {
	return maphash.String(x.seed, c.GetName())
}

// lookupID returns the category of an id, or nil if there is none.
func (x *categoryIndex) lookupID(id uint32) *scribev1.Category {
	slots := *x.byID.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := hashID(id) & mask; ; i = (i + 1) & mask {
		c := slots[i].Load()
		if c == nil {
			return nil
		}
		if c.Id == id && c != removedEntry {
			return c
		}
	}
}

// hashID spreads ids, which come from a counter, with the multiplier of Fibonacci hashing.
func hashID(id uint32) uint64 { return uint64(id) * 0x9e3779b97f4a7c15 >> 32 }

func hashIDOf(c *scribev1.Category) uint64 { return hashID(c.GetId()) }

// putCategory adds a category. It replaces the category of its name, which may have another id, and the category of its id. Only
// one goroutine may change an index at a time.
func (x *categoryIndex) putCategory(c *scribev1.Category) {
	if other := x.lookupID(c.GetId()); other != nil && other.GetName() != c.GetName() {
		x.removeName(other.GetName())
	}
	old := x.lookup(c.GetName())
	if old == nil {
		x.byName.addEntry(c, x.hashName)
		x.byID.addEntry(c, hashIDOf)
		x.count.Add(1)
		return
	}
	if old.GetId() == c.GetId() {
		x.byID.replaceEntry(hashIDOf(old), old, c)
	} else {
		x.byID.replaceEntry(hashIDOf(old), old, removedEntry)
		x.byID.addEntry(c, hashIDOf)
	}
	x.byName.replaceEntry(x.hashName(old), old, c)
}

// removeName removes the category of a name, and reports whether it existed.
func (x *categoryIndex) removeName(name string) bool {
	c := x.lookup(name)
	if c == nil {
		return false
	}
	x.byName.replaceEntry(x.hashName(c), c, removedEntry)
	x.byID.replaceEntry(hashIDOf(c), c, removedEntry)
	x.count.Add(-1)
	return true
}

// replaceEntry replaces an entry of the table by another category, or by removedEntry.
func (t *probeTable) replaceEntry(hash uint64, old, c *scribev1.Category) {
	slots := *t.slots.Load()
	mask := uint64(len(slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		if slots[i].Load() == old {
			slots[i].Store(c)
			return
		}
	}
}

// addEntry adds a category whose key is not in the table. hash gives the hashes of the table's keys.
func (t *probeTable) addEntry(c *scribev1.Category, hash func(*scribev1.Category) uint64) {
	slots := *t.slots.Load()
	if 2*(t.used+1) > len(slots) {
		slots = t.rebuildSlots(slots, hash)
	}
	if storeFirstFree(slots, hash(c), c) {
		t.used++
	}
}

// rebuildSlots replaces the table by one that is at most a quarter full.
func (t *probeTable) rebuildSlots(old []tableSlot, hash func(*scribev1.Category) uint64) []tableSlot {
	live := make([]*scribev1.Category, 0, len(old)/2)
	eachEntry(old, func(c *scribev1.Category) bool { live = append(live, c); return true })
	n := minSlots
	for n < 4*(len(live)+1) {
		n *= 2
	}
	slots := make([]tableSlot, n)
	for _, c := range live {
		storeFirstFree(slots, hash(c), c)
	}
	t.slots.Store(&slots)
	t.used = len(live)
	return slots
}

// storeFirstFree stores a category that is not in the table in its first free slot, and reports whether that was nil before.
func storeFirstFree(slots []tableSlot, hash uint64, c *scribev1.Category) bool {
	mask := uint64(len(slots) - 1)
	for i := hash & mask; ; i = (i + 1) & mask {
		switch slots[i].Load() {
		case nil:
			slots[i].Store(c)
			return true
		case removedEntry:
			slots[i].Store(c)
			return false
		}
	}
}

// eachCategory calls fn with every category until it returns false. Concurrent changes may or may not be seen.
func (x *categoryIndex) eachCategory(fn func(*scribev1.Category) bool) {
	eachEntry(*x.byName.slots.Load(), fn)
}

func eachEntry(slots []tableSlot, fn func(*scribev1.Category) bool) {
	for i := range slots {
		if c := slots[i].Load(); c != nil && c != removedEntry && !fn(c) {
			return
		}
	}
}
