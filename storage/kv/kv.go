package kv

import "context"

// Limits of every engine. They are within what etcd accepts as it is configured by default (requests of 1.5 MiB, 128 operations
// a transaction), so that nothing written to one engine is refused by another.
const (
	// MaxKey is the largest key in bytes. Keys are not empty.
	MaxKey = 512
	// MaxValue is the largest value in bytes.
	MaxValue = 1536<<10 - 128<<10
	// MaxOps is how many operations a transaction may have.
	MaxOps = 128
	// MaxCommit is the largest transaction in bytes of keys and values. What is left to 1.5 MiB is for the envelope and for the
	// conditions, which repeat the keys.
	MaxCommit = MaxValue + 32<<10
	// MaxRange and MaxRangeBytes bound an answer of Range. The bound in bytes does not count for the first entry.
	MaxRange      = 10_000
	MaxRangeBytes = 8 << 20
)

// Store is a strongly consistent key-value store. All methods are safe for concurrent use, and Get, Range and Commit are
// linearizable: what one call has returned, every later call sees, and a crash does not take it back.
//
// Errors that callers branch on: ErrNotFound, ErrConflict (as *ConflictError), ErrCompacted (as *CompactedError), ErrInvalid,
// ErrCorrupt, ErrClosed. They are definite. A Commit that fails with any other error has an unknown outcome: it may have been
// applied.
type Store interface {
	// Get returns the entry of a key, or ErrNotFound. The value belongs to the caller.
	Get(ctx context.Context, key string) (Entry, error)

	// Range returns entries by key, all of one revision. The values belong to the caller.
	Range(ctx context.Context, r KeyRange) (RangePage, error)

	// Commit applies operations in one transaction, all or none, and returns its revision when it is durable. Every condition
	// is checked against the state before the transaction; when one does not hold, nothing changes and the error is a
	// *ConflictError. No key may occur twice. A transaction that changes nothing, because it only checks or deletes what is not
	// there, returns the store's revision. The engine does not keep the values' memory after it returns.
	Commit(ctx context.Context, ops ...Op) (revision uint64, err error)

	// Watch calls fn, never concurrently, with the changes of keys that begin with prefix and have a revision above after, in
	// order, first those that have happened, then new ones as they are committed. A slow fn holds back only its own watch. It
	// ends when ctx does (with ctx's error), when fn returns an error (which is returned as it is), when the store closes
	// (ErrClosed), or when changes that it still has to tell are no longer kept (ErrCompacted). Revisions above the store's
	// own fail with ErrCompacted too: they are another store's.
	Watch(ctx context.Context, prefix string, after uint64, fn func(EventBatch) error) error

	// Close ends watches, waits for running calls, and releases what the engine holds. It must not be called from a Watch's fn.
	Close() error
}

// Entry is a key with its value.
type Entry struct {
	Key   string
	Value []byte
	// Revision is the one of the transaction that wrote the entry last.
	Revision uint64
}

// KeyRange selects keys.
type KeyRange struct {
	// Prefix: only keys that begin so.
	Prefix string
	// After: only keys that sort after it, byte by byte.
	After string
	// Limit is the largest number of entries; 0 and anything above MaxRange mean MaxRange.
	Limit int
}

// RangePage is an answer of Range.
type RangePage struct {
	Entries []Entry
	// Revision is the store's when the page was read.
	Revision uint64
	// More says that there are entries after the last one: ask again with its key as After. A page with More is never empty.
	More bool
}

// OpKind is what an operation does. Engines may send the numbers over a wire.
type OpKind uint8

// Kinds of operations.
const (
	// OpPut stores a value.
	OpPut OpKind = 1
	// OpDelete removes a key. It is no error if the key does not exist.
	OpDelete OpKind = 2
	// OpCheck changes nothing: it is there for its condition.
	OpCheck OpKind = 3
)

// Op is an operation of a transaction: see Put, Delete and Check, and Op.If.
type Op struct {
	Kind  OpKind
	Key   string
	Value []byte
	// Conditional says that the key's revision must be Revision, where 0 means that the key must not exist.
	Conditional bool
	Revision    uint64
}

// Put stores value under key.
func Put(key string, value []byte) Op { return Op{Kind: OpPut, Key: key, Value: value} }

// Delete removes key.
func Delete(key string) Op { return Op{Kind: OpDelete, Key: key} }

// Check makes a transaction depend on a key that it does not change: revision is the one that the key must have, 0 when it must
// not exist.
func Check(key string, revision uint64) Op { return Op{Kind: OpCheck, Key: key}.If(revision) }

// If makes the operation, and with it the transaction, conditional: the key must have this revision, and must not exist for 0.
func (o Op) If(revision uint64) Op {
	o.Conditional, o.Revision = true, revision
	return o
}

// EventBatch brings a watch forward.
type EventBatch struct {
	// Events are changes in the order of their revisions, never none. Those of one transaction are never split over batches.
	// They are shared between watches: fn may keep them, and must not change them.
	Events []KeyEvent
	// Revision is how far the watch has come: every change up to it has been told. Watching again after it goes on here.
	Revision uint64
}

// KeyEvent is a change of a key.
type KeyEvent struct {
	Key string
	// Value is nil for a deletion.
	Value []byte
	// Revision is the transaction's.
	Revision uint64
	// Deleted says that the key was removed.
	Deleted bool
}
