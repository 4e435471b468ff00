package recovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/base/backoff"
	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// readBlob is a listed blob with the result of reading it.
type readBlob struct {
	info   blob.Info
	class  uint32
	id     pointer.BlobID
	footer *layout.Footer
	err    error
	// contents are the messages found in a damaged blob.
	contents []Contents
}

// readAttempts bounds the attempts to read a footer while the store is unavailable, in addition to the store's own retries.
const readAttempts = 5

// scanBlobs lists all blobs and reads the footers of those that are not in the scratch database. As many wait to be stored as are read
// at a time; a faster stage waits.
func (r *recoveryRun) scanBlobs(ctx context.Context) error {
	rows := newCategoryRows()
	if err := rows.loadRows(ctx, r.scratch); err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	done := make(chan readBlob, r.cfg.Workers)
	work.Go(func() error {
		defer close(done)
		return r.readBlobs(ctx, done)
	})
	work.Go(func() error { return r.storeResults(ctx, done, rows) })
	// After an error the rows that were stored remain for the next run.
	return errors.Join(work.Wait(), rows.saveRows(r.scratch), r.scratch.flushBatch())
}

// readBlobs lists every object under the blobs' prefix, and reads the footers of blobs that were not read before.
func (r *recoveryRun) readBlobs(ctx context.Context, done chan<- readBlob) error {
	readers, ctx := errgroup.WithContext(ctx)
	readers.SetLimit(r.cfg.Workers)
	for info, err := range r.deps.Blobs.List(ctx, pointer.KeyRoot) {
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			// A reader that failed has ended ctx, and with it the listing.
			return cmp.Or(readers.Wait(), fmt.Errorf("list blobs: %w", err))
		}
		readers.Go(func() error {
			f, err := r.readBlob(ctx, info)
			if err != nil {
				return err
			}
			select {
			case done <- f:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	return readers.Wait()
}

// errKnown means that an earlier run has read the blob.
var errKnown = errors.New("read before")

// errSettled means that the blob can't have been committed after the base, which therefore has its pointers, or nobody.
var errSettled = errors.New("older than the boundary of the base")

func (r *recoveryRun) readBlob(ctx context.Context, info blob.Info) (f readBlob, err error) {
	f.info = info
	if f.class, f.id, f.err = pointer.ParseKey(info.Key); f.err != nil {
		return f, nil //nolint:nilerr // it is found with the blob
	}
	old, err := r.scratch.getCopy(blobKey(f.class, f.id))
	if err != nil {
		return f, err
	}
	switch f.err = errKnown; {
	case old != nil:
	case r.deps.Base != nil && f.id.Time() < r.deps.Base.Boundary():
		f.err = errSettled
	default:
		f.footer, f.err = r.readFooter(ctx, info)
	}
	if f.err != nil && ctx.Err() != nil { // another reader has failed: this is no finding
		return f, context.Cause(ctx)
	}
	if errors.Is(f.err, layout.ErrDamaged) {
		f.contents, err = inspectDamaged(ctx, r.deps.Blobs, info)
	}
	return f, err
}

func (r *recoveryRun) readFooter(ctx context.Context, info blob.Info) (*layout.Footer, error) {
	for attempt := 1; ; attempt++ {
		f, err := layout.ReadFooterOf(ctx, r.deps.Blobs, info)
		if !errors.Is(err, blob.ErrUnavailable) || attempt == readAttempts {
			return f, err
		}
		if err := backoff.Sleep(ctx, time.Duration(attempt)*500*time.Millisecond); err != nil {
			return nil, err
		}
	}
}

// storeResults writes the results into the scratch database.
func (r *recoveryRun) storeResults(ctx context.Context, done <-chan readBlob, rows *categoryRows) error {
	reported := time.Now()
	seen := int64(0)
	for f := range done {
		if err := r.storeResult(f, rows); err != nil {
			return err
		}
		if seen++; time.Since(reported) > 200*time.Millisecond {
			reported = time.Now()
			r.deps.Progress("footers", seen)
		}
		if r.scratch.batch.Len() > 1<<20 {
			// In the same batch as the entries from which the rows are computed.
			if err := errors.Join(rows.saveRows(r.scratch), r.scratch.flushBatch()); err != nil {
				return err
			}
		}
	}
	r.deps.Progress("footers", seen)
	return context.Cause(ctx)
}

func (r *recoveryRun) storeResult(f readBlob, rows *categoryRows) error {
	row := blobRow{Generation: r.scratch.generation, Status: statusRead, Size: f.info.Size, Created: f.id.Time()}
	finding := Finding{Key: f.info.Key, Size: f.info.Size}
	switch {
	case errors.Is(f.err, pointer.ErrInvalid) && f.footer == nil && f.id == (pointer.BlobID{}):
		r.report.Foreign++
		finding.Kind, finding.Reason = FindingForeign, "its key is not a blob key"
		return r.deps.Found(finding)
	case errors.Is(f.err, errKnown):
		return r.markSeen(f)
	case errors.Is(f.err, errSettled):
		row.Status = statusSettled
		return r.putBlobRow(f, row, nil)
	case errors.Is(f.err, blob.ErrNotFound):
		r.report.Gone++
		return nil
	case errors.Is(f.err, layout.ErrDamaged):
		row.Status = statusDamaged
	case errors.Is(f.err, layout.ErrVersion):
		row.Status = statusNewer
	case f.err != nil:
		return fmt.Errorf("read footer: %w", f.err)
	}
	r.report.Read++
	if row.Status != statusRead {
		finding.Reason, finding.Contents = f.err.Error(), f.contents
		text, err := json.Marshal(finding)
		if err != nil {
			return err
		}
		return r.putBlobRow(f, row, text)
	}
	return r.storeFooter(f, row, rows)
}

// markSeen marks a blob that an earlier run has read as still present.
func (r *recoveryRun) markSeen(f readBlob) error {
	key := blobKey(f.class, f.id)
	value, err := r.scratch.getCopy(key)
	if err != nil {
		return err
	}
	if len(value) < blobRowLen {
		return errScratch
	}
	binary.BigEndian.PutUint32(value, r.scratch.generation)
	return r.scratch.putRow(key, value)
}

// storeFooter writes the rows of a footer.
func (r *recoveryRun) storeFooter(f readBlob, row blobRow, rows *categoryRows) error {
	footer := f.footer
	row.Created, row.Entries, row.Run, row.Build = footer.Created, uint32(len(footer.Entries)), footer.History.Run, footer.History.Build
	var key, value []byte
	for i := range footer.Entries {
		e := &footer.Entries[i]
		key, value = appendEntryKey(key[:0], e, f.id), encodeEntry(value[:0], e)
		if err := r.scratch.putRow(key, value); err != nil {
			return err
		}
		rows.addEntry(footer, e)
	}
	if h := &footer.History; h.Run != 0 {
		key = binary.BigEndian.AppendUint64(append(key[:0], keyRun), h.Run)
		key = append(binary.BigEndian.AppendUint64(key, h.Build), f.id[:]...)
		value = binary.BigEndian.AppendUint64(value[:0], h.Window)
		for _, e := range h.Exceptions {
			value = binary.BigEndian.AppendUint64(value, e.Build)
			value = append(value, boolByte(e.Void))
		}
		if err := r.scratch.putRow(key, value); err != nil {
			return err
		}
	}
	return r.putBlobRow(f, row, nil)
}

// putBlobRow writes the row of a blob, with the finding about one that can't be read.
func (r *recoveryRun) putBlobRow(f readBlob, row blobRow, finding []byte) error {
	value, err := binary.Append(nil, binary.BigEndian, row)
	if err != nil {
		return err
	}
	return r.scratch.putRow(blobKey(f.class, f.id), append(value, finding...))
}

func boolByte(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// decodeRun reads a row of keyRun.
func decodeRun(r scratchRow) (h layout.History, id pointer.BlobID, err error) {
	const exception = 8 + 1
	if len(r.key) != 1+8+8+16 || len(r.value) < 8 || (len(r.value)-8)%exception != 0 {
		return h, id, errScratch
	}
	h.Run, h.Build = binary.BigEndian.Uint64(r.key[1:]), binary.BigEndian.Uint64(r.key[9:])
	id = pointer.BlobID(bytes.Clone(r.key[17:]))
	h.Window = binary.BigEndian.Uint64(r.value)
	for v := r.value[8:]; len(v) > 0; v = v[exception:] {
		h.Exceptions = append(h.Exceptions, layout.Exception{Build: binary.BigEndian.Uint64(v), Void: v[8] != 0})
	}
	return h, id, nil
}
