package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"scribe/consumer"
	"scribe/internal/format/pointer"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// Consume measures reading a category from its beginning to its end; it is filled first, which is not measured.
func Consume(ctx context.Context, o Options) (r Report, err error) {
	limit, err := decompressStream(o.Workload)
	if err != nil {
		return r, err
	}
	warm, err := decompressAlone(o.Workload)
	if err != nil {
		return r, err
	}
	written, _, err := fillCategory(ctx, o)
	if err != nil {
		return r, fmt.Errorf("fill %s: %w", o.Category, err)
	}
	debug.FreeOSMemory() // the stream's memory, and the producer's, would let the path run without garbage collection
	r = Report{
		What: "consume", Workload: o.Workload.Name, InProcess: o.InProcess,
		Limit: "unzstd", LimitNsPerByte: limit.nsPerByte, WarmNsPerByte: warm.nsPerByte, CompressionRate: limit.ratio,
	}
	err = r.measureReading(ctx, o, written)
	return r, err
}

// measureReading measures reading the whole category, which has so many messages.
func (r *Report) measureReading(ctx context.Context, o Options, written int64) error {
	c, err := consumer.New(o.Server, o.Category, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd())
	if err != nil {
		return err
	}
	if err := o.beginMeasured(); err != nil {
		return errors.Join(err, c.Close())
	}
	begin, cpu := time.Now(), cpuTime()
	for rec, err := range c.Records(ctx) {
		if err != nil {
			return errors.Join(err, c.Close())
		}
		r.Messages++
		r.Bytes += int64(len(rec.Payload))
	}
	r.fillRates(time.Since(begin), cpuTime()-cpu)
	if r.Messages != written {
		return errors.Join(fmt.Errorf("%d messages were read, %d written", r.Messages, written), c.Close())
	}
	return c.Close()
}

// CatchUp measures reading a backlog that nobody has in memory, of a cell on files in this process. It is filled first, which is not
// measured; then its blobs are read and decompressed with nothing around it, which is the limit; then the consumer reads it. Before
// both the system is told to forget the files.
func CatchUp(ctx context.Context, o Options) (r Report, err error) {
	before, err := blobsIn(o.Blobs)
	if err != nil {
		return r, err
	}
	written, _, err := fillCategory(ctx, o)
	if err != nil {
		return r, fmt.Errorf("fill %s: %w", o.Category, err)
	}
	r = Report{What: "catchup", Workload: o.Workload.Name, InProcess: o.InProcess, Limit: "read+unzstd"}
	all, err := blobsIn(o.Blobs)
	if err != nil {
		return r, err
	}
	var backlog []string
	for name := range all {
		if !before[name] {
			backlog = append(backlog, name)
		}
	}
	debug.FreeOSMemory()
	if err := errors.Join(dropCaches(o.Blobs, backlog), r.readFiles(ctx, o.Blobs, backlog), dropCaches(o.Blobs, backlog)); err != nil {
		return r, err
	}
	debug.FreeOSMemory()
	err = r.measureReading(ctx, o, written)
	return r, err
}

// blobsIn are the keys of the blobs in a folder of the file store.
func blobsIn(dir string) (map[string]bool, error) {
	keys := make(map[string]bool)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // a file under construction that is done
			return nil
		case err != nil:
			return err
		}
		key, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if _, _, err := pointer.ParseKey(key); err == nil && d.Type().IsRegular() { // retention keeps files of its own there
			keys[key] = true
		}
		return nil
	})
	return keys, err
}

// blobFolder reads the blobs of a file store that is in use: it has what reading takes, and leaves unfinished ones alone.
type blobFolder struct {
	blob.Store // nil: nothing else is called

	dir string
}

// ReadAt implements blob.Store.
func (f blobFolder) ReadAt(_ context.Context, key string, dst []byte, off int64) error {
	in, err := os.Open(filepath.Join(f.dir, key))
	if err != nil {
		return err
	}
	_, err = in.ReadAt(dst, off)
	return errors.Join(err, in.Close())
}

// Stat implements blob.Store.
func (f blobFolder) Stat(_ context.Context, key string) (blob.Info, error) {
	info, err := os.Stat(filepath.Join(f.dir, key))
	if err != nil {
		return blob.Info{}, err
	}
	return blob.Info{Key: key, Size: info.Size(), Modified: info.ModTime()}, nil
}

// readFiles measures the limit of a catch-up: each blob is read, and its blocks are decompressed, on all cores.
func (r *Report) readFiles(ctx context.Context, dir string, keys []string) error {
	store := blobFolder{dir: dir}
	// What the footers say is not part of the limit; they stand at the end.
	footers := make([]*layout.Footer, len(keys))
	for i, key := range keys {
		var err error
		if footers[i], err = layout.ReadFooter(ctx, store, key); err != nil {
			return err
		}
	}
	begin := time.Now()
	raw, used, err := unpackAll(len(keys), func(i int, u *blockUnpacker) error {
		return u.unpackBlob(ctx, store, keys[i], footers[i].Blocks)
	})
	wall := time.Since(begin)
	if err != nil {
		return err
	}
	for _, f := range footers {
		for _, b := range f.Blocks {
			r.StoredBytes += int64(b.Len)
		}
	}
	if raw == 0 || r.StoredBytes == 0 {
		return fmt.Errorf("%s: the backlog is not there", dir)
	}
	c := newBaselineCost(used, raw, r.StoredBytes)
	r.LimitNsPerByte, r.CompressionRate = c.nsPerByte, c.ratio
	r.LimitMBPerSecond = float64(raw) / 1e6 / wall.Seconds()
	return nil
}

// unpackBlob reads and decompresses one blob.
func (u *blockUnpacker) unpackBlob(ctx context.Context, store blob.Store, key string, blocks []layout.Block) error {
	if len(blocks) == 0 {
		return nil
	}
	first, last := blocks[0], blocks[len(blocks)-1]
	length := int(last.Offset - first.Offset + uint64(last.Len)) //nolint:gosec // of a file
	if cap(u.src) < length {
		u.src = make([]byte, length)
	}
	stored := u.src[:length]
	if err := store.ReadAt(ctx, key, stored, int64(first.Offset)); err != nil { //nolint:gosec // of a file
		return err
	}
	for _, b := range blocks {
		if b.Codec == pointer.CodecNone {
			u.raw += int(b.RawLen)
			continue
		}
		at := b.Offset - first.Offset
		if err := u.decodeBlock(stored[at : at+uint64(b.Len)]); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	return nil
}

// dropCaches drops files from the system's cache, where it can be asked to.
func dropCaches(dir string, keys []string) error {
	for _, key := range keys {
		f, err := os.Open(filepath.Join(dir, key))
		if err != nil {
			return err
		}
		if err := errors.Join(dropCache(f), f.Close()); err != nil {
			return fmt.Errorf("drop %s from the cache: %w", key, err)
		}
	}
	return nil
}
