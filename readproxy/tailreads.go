package readproxy

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/base/entropy"
	scribev1 "scribe/proto/scribe/v1"
)

const (
	// tailReadAge is the age up to which the read of a payload counts as one at the tail.
	tailReadAge = time.Minute
	// pushesExpected is how long after a push of a category its reads expect more.
	pushesExpected = 30 * time.Second
	// maxTailCategories bounds the categories whose tail reads are remembered.
	maxTailCategories = 10_000
	// pruneTailsEvery is the least time between two searches for categories that are no longer read.
	pruneTailsEvery = time.Second
)

// tailReads remembers which categories are read at their tails, so that batchers push their blocks. It is safe for concurrent
// use.
type tailReads struct {
	// remembered is how long a read makes its category wanted.
	remembered time.Duration
	mu         struct {
		sync.Mutex
		// categories are those that are wanted, the one that was read last at the end.
		categories *simplelru.LRU[string, *tailCategory]
		// version changes with the list of wanted categories. It is never 0, and differs from server to server.
		version uint64
		pruned  time.Time
	}
}

// tailCategory has the times of the last events of a category; zero if there was none.
type tailCategory struct {
	read time.Time
	// sole is the last read of a client that knows no other read proxy.
	sole time.Time
	// stored is the last read of whole blocks as they are stored, by other regions; parts that of payloads.
	stored, parts time.Time
	// pushed is the last push that was accepted.
	pushed time.Time
	// all is what the list of wanted categories says.
	all bool
}

func newTailReads(remembered time.Duration, random *entropy.Source) (*tailReads, error) {
	t := &tailReads{remembered: remembered}
	t.mu.version = random.Uint64()>>1 + 1
	var err error
	t.mu.categories, err = simplelru.NewLRU(maxTailCategories, func(string, *tailCategory) { t.mu.version++ })
	return t, err
}

// noteRead records the read of a category at its tail.
func (t *tailReads) noteRead(category string, sole, stored bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.mu.categories.Get(category)
	if !known {
		c = &tailCategory{}
		t.mu.categories.Add(category, c)
		t.mu.version++
	}
	c.read = now
	if stored {
		c.stored = now
	} else {
		c.parts = now
	}
	if sole {
		c.sole = now
		if !c.all {
			c.all = true
			t.mu.version++
		}
	}
}

// wantedSince returns the version of the list of wanted categories, and the list unless it is the one of the version given.
func (t *tailReads) wantedSince(version uint64, now time.Time) (uint64, []*scribev1.WantedCategory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.prune(now)
	if version == t.mu.version {
		return version, nil
	}
	list := make([]*scribev1.WantedCategory, 0, t.mu.categories.Len())
	for _, name := range t.mu.categories.Keys() {
		c, _ := t.mu.categories.Peek(name)
		list = append(list, &scribev1.WantedCategory{Name: name, All: c.all})
	}
	return t.mu.version, list
}

// prune removes the categories that are no longer read. The mutex is held.
func (t *tailReads) prune(now time.Time) {
	if now.Sub(t.mu.pruned) < pruneTailsEvery {
		return
	}
	t.mu.pruned = now
	for {
		_, c, ok := t.mu.categories.GetOldest()
		if !ok || now.Sub(c.read) <= t.remembered {
			break
		}
		t.mu.categories.RemoveOldest()
	}
	for _, c := range t.mu.categories.Values() {
		if c.all && now.Sub(c.sole) > t.remembered {
			c.all = false
			t.mu.version++
		}
	}
}

// notePush records that a block of a category was accepted, and reports in which forms its readers need it: the stored block, and
// the one that payloads are cut from.
func (t *tailReads) notePush(category string, now time.Time) (stored, parts bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.mu.categories.Peek(category) // a push is not a read
	if !known {
		return false, true
	}
	c.pushed = now
	stored = now.Sub(c.stored) <= t.remembered
	return stored, !stored || now.Sub(c.parts) <= t.remembered
}

// expectsPush reports whether blocks of a category were pushed lately.
func (t *tailReads) expectsPush(category string, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	c, known := t.mu.categories.Peek(category)
	return known && now.Sub(c.pushed) <= pushesExpected
}

func (t *tailReads) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.categories.Len()
}

// noteTailRead records the read of an answer's payloads if one of them is at the tail and the category wants its blocks pushed.
func (a *fetchAnswer) noteTailRead(sole bool) {
	s := a.s
	if s.cfg.PushInterest == 0 || !s.keepsPushed(&a.rule) {
		return
	}
	now := s.deps.Now()
	for i := range a.items {
		if it := &a.items[i]; it.err == nil && s.localName(it.pointer.Region) == "" && blobAge(&it.pointer, now) <= tailReadAge {
			s.tails.noteRead(a.category, sole, a.encoding == blockEncoding, now)
			return
		}
	}
}

// keepsPushed reports whether any tier keeps pushed blocks under a rule.
func (s *Server) keepsPushed(r *Rule) bool {
	return r.Memory != KeepNever && s.cfg.CacheBytes > 0 || r.Shared == KeepAlways && s.shared != nil
}
