package doctor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/base/entropy"
	"scribe/internal/base/units"
	"scribe/storage/blob"
)

// probeRoot is the prefix of the blobs that are put to try the store. No other blobs have it, and retention does not look there.
const probeRoot = "doctor/"

// machine draws keys that no other check draws.
var machine *entropy.Source

const (
	probeBytes = 1 << 20
	probeBlobs = 4
	// slowPut is a time for a blob of a megabyte that makes everything wait.
	slowPut = 2 * time.Second
	// removeTimeout bounds the removal of what was put.
	removeTimeout = 10 * time.Second
)

// checkBlobs tries everything that roles ask of the store: to put, to refuse a second blob of a key, to read, to list and to delete.
func (e *examination) checkBlobs(ctx context.Context) {
	const name = "blob store"
	ctx, cancel := context.WithTimeout(ctx, blobTimeout)
	defer cancel()
	where := e.config.BlobPath()
	if e.config.Blobs.Kind == "s3" {
		where = fmt.Sprintf("bucket %s at %s", e.config.Blobs.S3.Bucket, e.config.Blobs.S3.Endpoint)
	}
	store, err := e.openBlobs(ctx)
	if err != nil {
		e.addCheck(Failed, name, adviseStore(err), "%s can't be opened: %v", where, err)
		return
	}
	probe := &storeProbe{store: store, root: probeRoot + machine.Text() + "/"}
	took, err := probe.tryStore(ctx)
	err = errors.Join(err, probe.removeBlobs(context.WithoutCancel(ctx)), store.Close())
	switch speed := float64(probeBytes) / took.Seconds(); {
	case err != nil:
		e.addCheck(Failed, name, adviseStore(err), "%s: %v", where, err)
	case took > slowPut:
		e.addCheck(Warning, name, "look at the network and the store: each flush of a batcher takes that long", "%s works; %s take %v (%s/s)", where, units.About(probeBytes), took.Round(time.Millisecond), units.About(speed))
	default:
		e.addCheck(OK, name, "", "%s works: puts once, reads, lists, deletes; %s take %v (%s/s)", where, units.About(probeBytes), took.Round(10*time.Microsecond), units.About(speed))
	}
}

// adviseStore says what to do about an error of the store.
func adviseStore(err error) string {
	switch {
	case errors.Is(err, errOverwrites):
		return "use a store with conditional puts (If-None-Match): without them two writers may replace each other's blobs"
	case errors.Is(err, blob.ErrDenied):
		return "give the keys, or the user, the rights to put, read, list and delete"
	case errors.Is(err, blob.ErrNoSpace):
		return "free the store"
	case errors.Is(err, blob.ErrUnavailable), errors.Is(err, context.DeadlineExceeded):
		return "start the store, or correct its address; look at firewalls"
	}
	return "correct what the error names (--blobs, --blob-path, --s3-...)"
}

// storeProbe tries a store with blobs of its own.
type storeProbe struct {
	store blob.Store
	root  string
	keys  []string
}

var (
	errOverwrites = errors.New("a second put of a key replaced the blob")
	errNotListed  = errors.New("a blob that was put is not listed")
	errOtherBytes = errors.New("a blob has other bytes than those that were put")
	errRemains    = errors.New("a blob that was deleted is still there")
)

// tryStore returns the mean time of a put.
func (p *storeProbe) tryStore(ctx context.Context) (took time.Duration, err error) {
	content := make([]byte, probeBytes)
	machine.Read(content)
	begin := time.Now()
	for i := range probeBlobs {
		key := fmt.Sprintf("%s%d", p.root, i)
		p.keys = append(p.keys, key)
		if err := p.store.Put(ctx, key, content); err != nil {
			return 0, fmt.Errorf("put: %w", err)
		}
	}
	took = time.Since(begin) / probeBlobs
	switch err := p.store.Put(ctx, p.keys[0], []byte("another")); {
	case err == nil:
		return 0, errOverwrites
	case !errors.Is(err, blob.ErrExists):
		return 0, fmt.Errorf("put a key again: %w", err)
	}
	part := make([]byte, 1000)
	if err := p.store.ReadAt(ctx, p.keys[1], part, 5000); err != nil {
		return 0, fmt.Errorf("read: %w", err)
	}
	if !bytes.Equal(part, content[5000:6000]) {
		return 0, errOtherBytes
	}
	listed := 0
	for info, err := range p.store.List(ctx, p.root) {
		if err != nil {
			return 0, fmt.Errorf("list: %w", err)
		}
		if info.Size == probeBytes {
			listed++
		}
	}
	if listed != probeBlobs {
		return 0, errNotListed
	}
	return took, nil
}

// removeBlobs removes what was put, as far as it can within a time of its own: nobody else looks there.
func (p *storeProbe) removeBlobs(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	var errs []error
	for _, key := range p.keys {
		if err := p.store.Delete(ctx, key); err != nil {
			errs = append(errs, fmt.Errorf("delete: %w", err))
			continue
		}
		if _, err := p.store.Stat(ctx, key); err == nil {
			errs = append(errs, errRemains)
		} else if !errors.Is(err, blob.ErrNotFound) {
			errs = append(errs, fmt.Errorf("look at a deleted blob: %w", err))
		}
	}
	return errors.Join(errs...)
}
