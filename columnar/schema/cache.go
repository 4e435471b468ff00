package schema

import "sync"

// Cache keeps the parsed histories of categories. Each is parsed once, and all callers share it. Cache is safe for concurrent
// use.
type Cache struct {
	limit int
	mu    struct {
		sync.Mutex
		entries map[uint32]cachedHistory
	}
}

type cachedHistory struct {
	text    string
	history *History
	err     error
}

// NewCache returns a cache of at most limit histories.
func NewCache(limit int) *Cache {
	c := &Cache{limit: max(1, limit)}
	c.mu.entries = map[uint32]cachedHistory{}
	return c
}

// History returns the history of the category id with the schema text text. The history is shared and must not be changed.
func (c *Cache) History(id uint32, text string) (*History, error) {
	c.mu.Lock()
	e, ok := c.mu.entries[id]
	c.mu.Unlock()
	if ok && e.text == text {
		return e.history, e.err
	}
	h, err := ParseHistory(text)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := c.mu.entries[id]; ok && e.text == text {
		return e.history, e.err // another caller parsed it first
	}
	if _, ok := c.mu.entries[id]; !ok && len(c.mu.entries) >= c.limit {
		for other := range c.mu.entries { // evict any entry: histories are cheap to parse again
			delete(c.mu.entries, other)
			break
		}
	}
	c.mu.entries[id] = cachedHistory{text, h, err}
	return h, err
}
