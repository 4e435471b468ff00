package restrict

import (
	"context"
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

// tableKey names a restriction of a category. The text of the schema, which may be long, is not in it: it is compared where a table is found.
type tableKey struct {
	category string
	digest   Digest
}

type appliedTable struct {
	schema string
	table  *Table
	err    error
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
	key := tableKey{cat.GetName(), r.Digest()}
	if a, ok := c.tables.Get(key); ok && a.schema == cat.GetSchema() { // mostly the same string
		return a.table, a.err
	}
	a := appliedTable{schema: cat.GetSchema()}
	if a.table, a.err = Apply(cat, r); a.err != nil {
		c.log.Warn("a grant limited to rows and columns can't be applied to a category: who has it reads nothing of it", "category", cat.GetName(), "error", a.err)
	}
	c.tables.Add(key, a)
	return a.table, a.err
}

// Latest is TableOf for who has a copy of the category that may be old: if the restriction can't be applied to it, or its schema is older than the restriction's, resolve is asked once
// for the newest. It returns the category that the table is of. An error is of resolve, ErrOld, or ErrInapplicable.
func (c *Cache) Latest(ctx context.Context, cat *scribev1.Category, r *Restriction, resolve func(context.Context, string) (*scribev1.Category, error)) (*Table, *scribev1.Category, error) {
	isOld := func(t *Table) bool { return t.Schema().Version < r.Least() }
	t, err := c.TableOf(cat, r)
	if err == nil && !isOld(t) {
		return t, cat, nil
	}
	if cat, err = resolve(ctx, cat.GetName()); err != nil {
		return nil, nil, err
	}
	switch t, err = c.TableOf(cat, r); {
	case err != nil:
		return nil, nil, err
	case isOld(t):
		return nil, nil, fmt.Errorf("%w: version %d, want %d", ErrOld, t.Schema().Version, r.Least())
	}
	return t, cat, nil
}

// ErrOld means that this process does not know a version of a schema yet that another one knows.
var ErrOld = errors.New("the copy of the category's schema is old")
