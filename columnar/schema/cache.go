package schema

import lru "github.com/hashicorp/golang-lru/v2"

// Cache keeps the parsed histories of categories, which all callers share. Cache is safe for concurrent use.
type Cache struct {
	entries *lru.Cache[uint32, cachedHistory]
}

type cachedHistory struct {
	text    string
	history *History
	err     error
}

// NewCache returns a cache of at most limit histories.
func NewCache(limit int) *Cache {
	entries, _ := lru.New[uint32, cachedHistory](max(1, limit)) // fails only without a limit
	return &Cache{entries}
}

// History returns the history of the category id with the schema text text. The history is shared and must not be changed.
func (c *Cache) History(id uint32, text string) (*History, error) {
	if e, ok := c.entries.Get(id); ok && e.text == text {
		return e.history, e.err
	}
	h, err := ParseHistory(text)
	e := cachedHistory{text, h, err}
	if first, ok, _ := c.entries.PeekOrAdd(id, e); ok {
		if first.text == text {
			return first.history, first.err // another caller parsed it first
		}
		c.entries.Add(id, e)
	}
	return h, err
}
