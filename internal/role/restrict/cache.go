package restrict

import (
	"errors"
	"fmt"
	"log/slog"

	lru "github.com/hashicorp/golang-lru/v2"

	"scribe/columnar/schema"
	scribev1 "scribe/proto/scribe/v1"
)

// Cache keeps restrictions that were applied to categories. It is safe for concurrent use.
type Cache struct {
	log    *slog.Logger
	tables *lru.Cache[tableKey, appliedTable]
}

type tableKey struct {
	schema string
	digest Digest
}

type appliedTable struct {
	table *Table
	err   error
}

// keptTables bounds what a cache keeps.
const keptTables = 256

// NewCache returns an empty cache. It tells the log of restrictions that can't be applied, each once.
func NewCache(log *slog.Logger) *Cache {
	tables, _ := lru.New[tableKey, appliedTable](keptTables) // fails only without a bound
	return &Cache{log, tables}
}

// Apply applies a restriction to the newest version of a category's schema. Errors are ErrInapplicable. Older versions can't be read: they may have a column that
// was renamed since, and that limits know by its new name.
func Apply(cat *scribev1.Category, r *Restriction) (*Table, error) {
	h, err := schema.ParseHistory(cat.GetSchema())
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrInapplicable, err)
	case h.Infer():
		return nil, fmt.Errorf("%w: %w", ErrInapplicable, errors.New("the category's schema is still to be inferred"))
	}
	return Compile(h.Current(), r)
}

// TableOf is Apply, once for each schema and restriction. The error names columns: it is not for the reader.
func (c *Cache) TableOf(cat *scribev1.Category, r *Restriction) (*Table, error) {
	key := tableKey{cat.GetSchema(), r.Digest()}
	if a, ok := c.tables.Get(key); ok {
		return a.table, a.err
	}
	var a appliedTable
	if a.table, a.err = Apply(cat, r); a.err != nil {
		c.log.Warn("a grant limited to rows and columns can't be applied to a category: who has it reads nothing of it", "category", cat.GetName(), "error", a.err)
	}
	c.tables.Add(key, a)
	return a.table, a.err
}
