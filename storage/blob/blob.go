package blob

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors that callers branch on, wrapped with the key and what to do. Beside them, the error of a context that ended is found
// with errors.Is.
var (
	// ErrNotFound means that there is no blob under the key.
	ErrNotFound = errors.New("blob: not found")
	// ErrExists means that a blob is there already; keys are used once.
	ErrExists = errors.New("blob: the key was used before")
	// ErrRange means that the blob is shorter than the range asked for.
	ErrRange = errors.New("blob: range outside the blob")
	// ErrInvalidKey means that the key is not one of CheckKey's.
	ErrInvalidKey = errors.New("blob: invalid key")
	// ErrNoSpace means that the store is full.
	ErrNoSpace = errors.New("blob: no space left")
	// ErrDenied means that the store refuses the credentials, or what they may do: trying again does not help.
	ErrDenied = errors.New("blob: access denied")
	// ErrUnavailable means that the store did not answer, or asked to be left alone for a while: try again later.
	ErrUnavailable = errors.New("blob: store unavailable")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("blob: store closed")
)

// Store keeps immutable blobs under keys that are used once. All methods are safe for concurrent use. Every method fails with
// ErrInvalidKey for a key (or prefix) that CheckKey (or CheckPrefix) refuses, with the context's error when it has ended, and
// with ErrClosed after Close.
type Store interface {
	// Put stores the concatenation of parts and returns when it is durable: synced with its folder, or acknowledged by the
	// store. A reader sees the whole blob or none. A key that was used before fails with ErrExists. After any other error the
	// outcome is unknown: retry under a new key. Parts are neither changed nor kept after it returns.
	Put(ctx context.Context, key string, parts ...[]byte) error
	// ReadAt fills dst with the bytes from off on. Fewer than len(dst) bytes there fail with ErrRange, as does a negative off.
	// After an error the content of dst is undefined.
	ReadAt(ctx context.Context, key string, dst []byte, off int64) error
	// Stat describes a blob.
	Stat(ctx context.Context, key string) (Info, error)
	// List yields the blobs whose key begins with prefix, ordered by the bytes of the key. It stops at the first error. Blobs that
	// are put or deleted while it runs may or may not be among them. The loop's body may use the store.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes a blob; one that is not there is no error. A blob may be back after a crash of the machine: delete it again.
	Delete(ctx context.Context, key string) error
	// Close refuses further calls, waits for those that run, and releases what the store holds. Repeating it is harmless.
	Close() error
}

// Info describes a blob.
type Info struct {
	Key string
	// Size is in bytes.
	Size int64
	// Modified is when the blob was stored, by the clock of the store, with the resolution that it has: a second or better.
	Modified time.Time
}
