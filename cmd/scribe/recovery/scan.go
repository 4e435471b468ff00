package recovery

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// found is a blob that was listed, and what came of reading it.
type found struct {
	info   blob.Info
	class  uint32
	id     pointer.BlobID
	footer *layout.Footer
	err    error
	// contents is what a damaged blob holds.
	contents []Contents
}

// readAttempts is how often a footer is read while the store is away, beside what the store does itself.
const readAttempts = 5

// scan lists all blobs and reads the footers of those that the scratch database does not have. Both channels hold as much as there are
// workers; who is ahead waits.
func (r *run) scan(ctx context.Context) error {
	rows := newCategoryRows()
	if err := rows.load(r.scratch); err != nil {
		return err
	}
	work, ctx := errgroup.WithContext(ctx)
	todo, done := make(chan found, r.cfg.Workers), make(chan found, r.cfg.Workers)
	work.Go(func() error {
		defer close(todo)
		return r.list(ctx, todo)
	})
	var readers sync.WaitGroup
	for range r.cfg.Workers {
		readers.Add(1)
		work.Go(func() error {
			defer readers.Done()
			return r.read(ctx, todo, done)
		})
	}
	work.Go(func() error {
		readers.Wait()
		close(done)
		return nil
	})
	work.Go(func() error { return r.keep(ctx, done, rows) })
	if err := work.Wait(); err != nil {
		// What was read stays for the next run.
		return errors.Join(err, rows.save(r.scratch), r.scratch.flush(true))
	}
	return errors.Join(rows.save(r.scratch), r.scratch.flush(true))
}

// list hands out every object among the blobs. Those that were read before need not be read again.
func (r *run) list(ctx context.Context, todo chan<- found) error {
	for info, err := range r.deps.Blobs.List(ctx, pointer.KeyRoot) {
		if err != nil {
			return fmt.Errorf("list blobs: %w", err)
		}
		class, id, err := pointer.ParseKey(info.Key)
		select {
		case todo <- found{info: info, class: class, id: id, err: err}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// errKnown says that a blob was read by a run before.
var errKnown = errors.New("read before")

func (r *run) read(ctx context.Context, todo <-chan found, done chan<- found) error {
	for f := range todo {
		if f.err == nil {
			old, err := r.scratch.get(blobKey(f.class, f.id))
			if err != nil {
				return err
			}
			if f.err = errKnown; old == nil {
				f.footer, f.err = r.footer(ctx, f.info)
			}
			if errors.Is(f.err, layout.ErrDamaged) {
				if f.contents, err = contents(ctx, r.deps.Blobs, f.info); err != nil {
					return err
				}
			}
		}
		select {
		case done <- f:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *run) footer(ctx context.Context, info blob.Info) (*layout.Footer, error) {
	for attempt := 1; ; attempt++ {
		f, err := layout.ReadFooterOf(ctx, r.deps.Blobs, info)
		if !errors.Is(err, blob.ErrUnavailable) || attempt == readAttempts {
			return f, err
		}
		select {
		case <-time.After(time.Duration(attempt) * 500 * time.Millisecond):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// keep writes what was read into the scratch database.
func (r *run) keep(ctx context.Context, done <-chan found, rows *categoryRows) error {
	told := time.Now()
	seen := int64(0)
	for f := range done {
		if err := r.keepOne(f, rows); err != nil {
			return err
		}
		if seen++; time.Since(told) > 200*time.Millisecond {
			told = time.Now()
			r.deps.Progress("footers", seen)
		}
		if r.scratch.batch.Len() > 1<<20 {
			// In the same batch as the entries that they are made of.
			if err := errors.Join(rows.save(r.scratch), r.scratch.flush(true)); err != nil {
				return err
			}
		}
	}
	r.deps.Progress("footers", seen)
	return context.Cause(ctx)
}

func (r *run) keepOne(f found, rows *categoryRows) error {
	row := blobRow{generation: r.scratch.generation, status: statusRead, size: f.info.Size, created: f.id.Time()}
	finding := Finding{Key: f.info.Key, Size: f.info.Size}
	switch {
	case errors.As(f.err, new(*pointer.InvalidError)) && f.footer == nil && f.id == (pointer.BlobID{}):
		r.report.Foreign++
		finding.Kind, finding.Reason = FindingForeign, "its key is none of a blob"
		return r.deps.Found(finding)
	case errors.Is(f.err, errKnown):
		return r.seenBefore(f)
	case errors.Is(f.err, blob.ErrNotFound):
		r.report.Gone++
		return nil
	case errors.Is(f.err, layout.ErrDamaged):
		row.status = statusDamaged
	case errors.Is(f.err, layout.ErrVersion):
		row.status = statusNewer
	case f.err != nil:
		return fmt.Errorf("read footer: %w", f.err)
	}
	r.report.Read++
	if row.status != statusRead {
		finding.Reason, finding.Contents = f.err.Error(), f.contents
		text, err := json.Marshal(finding)
		if err != nil {
			return err
		}
		return r.scratch.put(blobKey(f.class, f.id), append(row.encode(), text...))
	}
	return r.keepFooter(f, row, rows)
}

// seenBefore marks a blob of a run before as one that is still there.
func (r *run) seenBefore(f found) error {
	key := blobKey(f.class, f.id)
	value, err := r.scratch.get(key)
	if err != nil {
		return err
	}
	if len(value) < blobRowLen {
		return errScratch
	}
	binary.BigEndian.PutUint32(value, r.scratch.generation)
	return r.scratch.put(key, value)
}

// keepFooter writes the rows of a footer.
func (r *run) keepFooter(f found, row blobRow, rows *categoryRows) error {
	footer := f.footer
	row.created, row.entries, row.run, row.build = footer.Created, uint32(len(footer.Entries)), footer.History.Run, footer.History.Build
	var key, value []byte
	for i := range footer.Entries {
		e := &footer.Entries[i]
		key, value = appendEntryKey(key[:0], e, f.id), appendEntry(value[:0], e)
		if err := r.scratch.put(key, value); err != nil {
			return err
		}
		rows.add(footer, e)
	}
	if h := &footer.History; h.Run != 0 {
		key = binary.BigEndian.AppendUint64(append(key[:0], keyRun), h.Run)
		key = append(binary.BigEndian.AppendUint64(key, h.Build), f.id[:]...)
		value = binary.BigEndian.AppendUint64(value[:0], h.Window)
		for _, e := range h.Exceptions {
			value = binary.BigEndian.AppendUint64(value, e.Build)
			value = append(value, flag(e.Void))
		}
		if err := r.scratch.put(key, value); err != nil {
			return err
		}
	}
	return r.scratch.put(blobKey(f.class, f.id), row.encode())
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// decodeRun reads a row of keyRun.
func decodeRun(r row) (h layout.History, id pointer.BlobID, err error) {
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
