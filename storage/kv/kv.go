package kv

import "context"

// Limits of every engine. They are within etcd's default limits (requests of 1.5 MiB, 128 operations a transaction), so that
// another engine never refuses what one engine accepted.
const (
	// MaxKey is the largest key in bytes. Keys are not empty.
	MaxKey = 512
	// MaxValue is the largest value in bytes.
	MaxValue = 1536<<10 - 128<<10
	// MaxOps is how many operations a transaction may have. One more condition is the engine's.
	MaxOps = 127
	// MaxCommit is the largest transaction in bytes of keys and values. The rest of 1.5 MiB is for the envelope and for the
	// conditions, which repeat the keys.
	MaxCommit = MaxValue + 32<<10
	// MaxRange and MaxRangeBytes bound an answer of Range. The first entry may exceed the bound in bytes.
	MaxRange      = 10_000
	MaxRangeBytes = 8 << 20
)

// Store is a strongly consistent key-value store. All methods are safe for concurrent use, and Get, Range and Commit are
// linearizable: every later call sees what an earlier call returned, also after a crash.
//
// Errors that callers branch on: ErrNotFound, ErrConflict (as *ConflictError), ErrCompacted (as *CompactedError), ErrInvalid,
// ErrCorrupt, ErrClosed. They are definite. A Commit that fails with any other error has an unknown outcome: it may have been
// applied.
type Store interface {
	// Get returns the entry of a key, or ErrNotFound. The value belongs to the caller.
	Get(ctx context.Context, key string) (Entry, error)

	// Range returns entries by key, all of one revision. The values belong to the caller.
	Range(ctx context.Context, r KeyRange) (RangePage, error)

	// Commit applies operations in one transaction, all or none, and returns its revision when it is durable. Every condition is
	// checked against the state before the transaction; if one does not hold, nothing changes and the error is a *ConflictError.
	// A key may occur only once. A transaction that changes nothing, because it only checks keys or deletes missing ones, returns
	// the store's revision. The engine does not keep the values' memory after it returns.
	Commit(ctx context.Context, ops ...Op) (revision uint64, err error)

	// Watch calls fn, never concurrently, with the changes of keys that begin with prefix and have a revision above after, in
	// order: first past changes, then new ones as they are committed. A slow fn delays only its own watch. Watch returns when ctx
	// ends (with ctx's error), when fn returns an error (which is returned as it is), when the store closes (ErrClosed), or when
	// changes that it has not delivered are no longer kept (ErrCompacted). An after above the store's revision fails with
	// ErrCompacted too: it comes from another store.
	Watch(ctx context.Context, prefix string, after uint64, fn func(EventBatch) error) error

	// Close ends watches, waits for running calls, and releases the store's resources. It must not be called from a Watch's fn.
	Close() error
}

// Entry is a key with its value.
type Entry struct {
	Key   string
	Value []byte
	// Revision is the revision of the transaction that last wrote the entry.
	Revision uint64
}

// KeyRange selects keys.
type KeyRange struct {
	// Prefix selects keys that begin with it.
	Prefix string
	// After selects keys that sort after it, byte by byte.
	After string
	// Limit is the largest number of entries; 0 and anything above MaxRange mean MaxRange.
	Limit int
}

// RangePage is an answer of Range.
type RangePage struct {
	Entries []Entry
	// Revision is the store's revision when the page was read.
	Revision uint64
	// More says that entries follow the last one: ask again with its key as After. A page with More is never empty.
	More bool
}

// OpKind is the kind of an operation. Engines may send the numbers over a wire.
type OpKind uint8

// Kinds of operations.
const (
	// OpPut stores a value.
	OpPut OpKind = 1
	// OpDelete removes a key. A key that does not exist is not an error.
	OpDelete OpKind = 2
	// OpCheck changes nothing; it carries a condition.
	OpCheck OpKind = 3
)

// Op is an operation of a transaction: see Put, Delete and Check, and Op.If.
type Op struct {
	Kind  OpKind
	Key   string
	Value []byte
	// Conditional says that the key must have Revision, where 0 means that the key must not exist.
	Conditional bool
	Revision    uint64
}

// Put stores value under key.
func Put(key string, value []byte) Op { return Op{Kind: OpPut, Key: key, Value: value} }

// Delete removes key.
func Delete(key string) Op { return Op{Kind: OpDelete, Key: key} }

// Check makes a transaction depend on a key that it does not change. The key must have this revision; 0 means that it must not
// exist.
func Check(key string, revision uint64) Op { return Op{Kind: OpCheck, Key: key}.If(revision) }

// If makes the operation, and with it the transaction, conditional: the key must have this revision; 0 means that it must not
// exist.
func (o Op) If(revision uint64) Op {
	o.Conditional, o.Revision = true, revision
	return o
}

// EventBatch is the next events of a watch.
type EventBatch struct {
	// Events are changes in the order of their revisions, at least one. The events of one transaction are never split over
	// batches. Watches share them: fn may keep them, and must not change them.
	Events []KeyEvent
	// Revision is the position of the watch: every change up to it was delivered. A new Watch after it continues here.
	Revision uint64
}

// KeyEvent is a change of a key.
type KeyEvent struct {
	Key string
	// Value is nil for a deletion.
	Value []byte
	// Revision is the revision of the transaction.
	Revision uint64
	// Deleted says that the key was removed.
	Deleted bool
}
