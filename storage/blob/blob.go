package blob

import (
	"context"
	"errors"
	"iter"
	"time"
)

// Errors that callers branch on, wrapped with the key and a remedy. The error of a context that ended matches with errors.Is as
// well.
var (
	// ErrNotFound means that no blob exists under the key.
	ErrNotFound = errors.New("blob: not found")
	// ErrExists means that the key was used before; each key is used once.
	ErrExists = errors.New("blob: the key was used before")
	// ErrRange means that the requested range exceeds the blob.
	ErrRange = errors.New("blob: range outside the blob")
	// ErrInvalidKey means that CheckKey refuses the key.
	ErrInvalidKey = errors.New("blob: invalid key")
	// ErrNoSpace means that the store is full.
	ErrNoSpace = errors.New("blob: no space left")
	// ErrDenied means that the store refuses the credentials or their permissions; retries do not help.
	ErrDenied = errors.New("blob: access denied")
	// ErrUnavailable means that the store did not answer, or asked for a pause: try again later.
	ErrUnavailable = errors.New("blob: store unavailable")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("blob: store closed")
)

// Store keeps immutable blobs under keys that are used once. All methods are safe for concurrent use. Every method fails with
// ErrInvalidKey for a key (or prefix) that CheckKey (or CheckPrefix) refuses, with the context's error after it ended, and with
// ErrClosed after Close.
type Store interface {
	// Put stores the concatenation of parts and returns when it is durable: synced with its folder, or acknowledged by the store.
	// A reader sees the whole blob or nothing. A key that was used before fails with ErrExists. After any other error the outcome
	// is unknown: retry under a new key. Put neither changes parts nor keeps them after it returns.
	Put(ctx context.Context, key string, parts ...[]byte) error
	// ReadAt fills dst with the bytes from off on. It fails with ErrRange if fewer than len(dst) bytes follow off, or off is
	// negative. After an error the content of dst is undefined.
	ReadAt(ctx context.Context, key string, dst []byte, off int64) error
	// Stat describes a blob.
	Stat(ctx context.Context, key string) (Info, error)
	// List yields the blobs whose keys begin with prefix, ordered by the bytes of the key. It stops at the first error. Blobs
	// that are put or deleted during the listing may or may not be yielded. The loop's body may use the store.
	List(ctx context.Context, prefix string) iter.Seq2[Info, error]
	// Delete removes a blob; a missing blob is not an error. A crash of the machine may bring a deleted blob back: delete it
	// again.
	Delete(ctx context.Context, key string) error
	// Close refuses further calls, waits for running ones, and releases the store's resources. Repeating it is harmless.
	Close() error
}

// Info describes a blob.
type Info struct {
	Key string
	// Size is in bytes.
	Size int64
	// Modified is when the blob was stored, by the store's clock, with a resolution of one second or better.
	Modified time.Time
}
