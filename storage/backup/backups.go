package backup

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
	"scribe/storage/blob"
	"scribe/storage/kv"
)

// Keys in the store.
const (
	root     = "backup/"
	listRoot = root + "list/"
	fileRoot = root + "file/"
	useRoot  = root + "use/"
)

const (
	// pieceBytes is how much of a file is read at a time.
	pieceBytes = 4 << 20
	// maxFileBytes bounds a file: it is in memory while it is stored.
	maxFileBytes = 1 << 30
	// fileAge is how old a file must be before it is removed because no list names it: an interrupted backup goes on with it.
	fileAge = 24 * time.Hour
)

// Options are the options of [New].
type Options struct {
	// FS has the folders; nil is the operating system's.
	FS vfs.FS
	// Now is the wall clock; nil is the machine's.
	Now func() time.Time
	// Random draws names; nil is the machine's randomness.
	Random *entropy.Source
	// Progress, if set, is called after each file with the bytes that are done.
	Progress func(bytes uint64)
}

// Backups are the backups in a store. Its methods may be called concurrently.
type Backups struct {
	store blob.Store
	o     Options
}

// New returns the backups in a store, which stays the caller's.
func New(store blob.Store, o Options) *Backups {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Progress == nil {
		o.Progress = func(uint64) {}
	}
	return &Backups{store: store, o: o}
}

// Info describes a backup.
type Info struct {
	Name string
	// Manifest is its list; nil if that can't be read, and then Err says why.
	Manifest *Manifest
	Err      error
	// Stored is how many bytes Create has put into the store: files that were there already are not among them.
	Stored uint64
}

// Create stores the files of two folders, that of the logs and that of the control store, and then their list. m has everything else; a Created of 0 is
// the present. After an error the call may be repeated: it stores what is missing. It fails with ErrBusy while backups are deleted.
func (b *Backups) Create(ctx context.Context, m Manifest, logs, control string) (info Info, err error) {
	if m.Created == 0 {
		m.Created = b.o.Now().UnixMicro()
	}
	if len(m.Store) > maxText || len(m.Program) > maxText {
		return info, fmt.Errorf("backup: the identity %q or the version %q has more than %d bytes", m.Store, m.Program, maxText)
	}
	info.Name = time.UnixMicro(m.Created).UTC().Format("20060102-150405") + "-" + strings.ToLower(b.o.Random.Text()[:6])
	ctx, leave, err := b.enterUse(ctx, useCreate, info.Name)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, leave()) }()
	done := uint64(0)
	store := func(dir string) (files []File, err error) {
		names, err := b.o.FS.List(dir)
		if err != nil {
			return nil, fmt.Errorf("backup: %w", err)
		}
		slices.Sort(names)
		for _, name := range names {
			f, stored, err := b.storeFile(ctx, dir, name)
			if err != nil {
				return nil, fmt.Errorf("backup: store %s: %w", name, err)
			}
			if stored {
				info.Stored += f.Size
			}
			done += f.Size
			b.o.Progress(done)
			files = append(files, f)
		}
		return files, nil
	}
	if m.Logs, err = store(logs); err != nil {
		return info, err
	}
	if m.Control, err = store(control); err != nil {
		return info, err
	}
	if n := len(m.Logs) + len(m.Control); n > maxFiles {
		return info, fmt.Errorf("backup: it has %d files, the limit is %d", n, maxFiles)
	}
	if err := b.store.Put(ctx, listRoot+info.Name, AppendManifest(nil, &m)); err != nil {
		return info, fmt.Errorf("backup: store its list: %w", err)
	}
	info.Manifest = &m
	return info, nil
}

// storeFile stores a file under the name of its content, unless that is there.
func (b *Backups) storeFile(ctx context.Context, dir, name string) (f File, stored bool, err error) {
	path := b.o.FS.PathJoin(dir, name)
	stat, err := b.o.FS.Stat(path)
	if err != nil {
		return f, false, err
	}
	if stat.Size() > maxFileBytes || !isFileName(name) {
		return f, false, fmt.Errorf("%q has %d bytes: want the file of a database, of up to %d", name, stat.Size(), maxFileBytes)
	}
	data := make([]byte, stat.Size())
	file, err := b.o.FS.Open(path)
	if err != nil {
		return f, false, err
	}
	if len(data) > 0 {
		_, err = file.ReadAt(data, 0)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return f, false, err
	}
	f = File{Name: name, Size: uint64(len(data)), CRC: crc32.Checksum(data, castagnoli)}
	sum := sha256.Sum256(data)
	copy(f.ID[:], sum[:])
	if err = b.findFile(ctx, f); errors.Is(err, blob.ErrNotFound) {
		stored = true
		if err = b.store.Put(ctx, fileKey(f), data); errors.Is(err, blob.ErrExists) {
			err = b.findFile(ctx, f)
		}
	}
	return f, stored, err
}

// fileKey returns the key of a file's content.
func fileKey(f File) string { return fmt.Sprintf("%s%x", fileRoot, f.ID) }

// findFile returns nil if a file is in the store.
func (b *Backups) findFile(ctx context.Context, f File) error {
	info, err := b.store.Stat(ctx, fileKey(f))
	if err == nil && uint64(info.Size) != f.Size { //nolint:gosec // not negative
		err = damagedError("%s has %d bytes, not %d", fileKey(f), info.Size, f.Size)
	}
	return err
}

// List returns all backups, the oldest first. A list that can't be read is told in its Info.
func (b *Backups) List(ctx context.Context) (all []Info, err error) {
	for object, err := range b.store.List(ctx, listRoot) {
		if err != nil {
			return nil, fmt.Errorf("list backups: %w", err)
		}
		info := Info{Name: strings.TrimPrefix(object.Key, listRoot)}
		info.Manifest, info.Err = b.readList(ctx, object)
		switch {
		case errors.Is(info.Err, blob.ErrNotFound): // deleted meanwhile
			continue
		case info.Err != nil && !errors.Is(info.Err, ErrDamaged) && !errors.Is(info.Err, ErrVersion):
			return nil, fmt.Errorf("read backup %s: %w", info.Name, info.Err)
		}
		all = append(all, info)
	}
	slices.SortStableFunc(all, func(a, b Info) int { return cmp.Compare(a.created(), b.created()) })
	return all, nil
}

// created returns when a backup was made; 0 if that is not known.
func (i *Info) created() int64 {
	if i.Manifest == nil {
		return 0
	}
	return i.Manifest.Created
}

func (b *Backups) readList(ctx context.Context, object blob.Info) (*Manifest, error) {
	if object.Size > maxList {
		return nil, damagedError("its list has %d bytes", object.Size)
	}
	data := make([]byte, object.Size)
	if err := b.store.ReadAt(ctx, object.Key, data, 0); err != nil {
		return nil, err
	}
	return DecodeManifest(data)
}

// Read returns the list of a backup. The error wraps blob.ErrNotFound if there is no such backup.
func (b *Backups) Read(ctx context.Context, name string) (*Manifest, error) {
	object, err := b.store.Stat(ctx, listRoot+name)
	if err == nil {
		object.Key = listRoot + name
		var m *Manifest
		if m, err = b.readList(ctx, object); err == nil {
			return m, nil
		}
	}
	return nil, fmt.Errorf("backup %s: %w", name, err)
}

// Latest returns the newest backup that can be read of those that were made until a time, Unix microseconds (0 = any), of a store of payloads ("" =
// any). The error wraps blob.ErrNotFound if there is none. skipped are newer ones that can't be read.
func (b *Backups) Latest(ctx context.Context, store string, until int64) (found Info, skipped []Info, err error) {
	all, err := b.List(ctx)
	if err != nil {
		return found, nil, err
	}
	for _, info := range slices.Backward(all) {
		switch {
		case info.Err != nil:
			skipped = append(skipped, info)
		case until != 0 && info.Manifest.Created > until, store != "" && info.Manifest.Store != "" && info.Manifest.Store != store:
		case found.Manifest == nil:
			found = info
		}
	}
	if found.Manifest == nil {
		return found, skipped, fmt.Errorf("there is no such backup among %d: %w", len(all), blob.ErrNotFound)
	}
	return found, skipped, nil
}

// Fetch writes files into a folder, which it makes. Files that are there and right are kept, so an interrupted Fetch goes on.
func (b *Backups) Fetch(ctx context.Context, files []File, dir string) error {
	if err := b.o.FS.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("fetch a backup: %w", err)
	}
	done := uint64(0)
	for _, f := range files {
		if err := b.fetchFile(ctx, f, b.o.FS.PathJoin(dir, f.Name)); err != nil {
			return fmt.Errorf("fetch file %s of the backup: %w", f.Name, err)
		}
		done += f.Size
		b.o.Progress(done)
	}
	if err := durable.SyncFolder(b.o.FS, dir); err != nil {
		return fmt.Errorf("fetch a backup: %w", err)
	}
	return nil
}

func (b *Backups) fetchFile(ctx context.Context, f File, path string) (err error) {
	if b.hasCopy(f, path) {
		return nil
	}
	file, err := b.o.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if err = b.readFile(ctx, f, file); err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// hasCopy reports whether a file is in a folder as it should be.
func (b *Backups) hasCopy(f File, path string) bool {
	file, err := b.o.FS.Open(path)
	if err != nil {
		return false
	}
	sum := crc32.New(castagnoli)
	n, err := io.Copy(sum, file)
	return errors.Join(err, file.Close()) == nil && uint64(n) == f.Size && sum.Sum32() == f.CRC //nolint:gosec // not negative
}

// readFile writes the content of a file to w, and fails if it is not the content that was stored.
func (b *Backups) readFile(ctx context.Context, f File, w io.Writer) error {
	if err := b.findFile(ctx, f); err != nil {
		if errors.Is(err, blob.ErrNotFound) {
			err = damagedError("%s is not there", fileKey(f)) // the backup is, so this is not its absence
		}
		return err
	}
	crc, sum := crc32.New(castagnoli), sha256.New()
	to := io.MultiWriter(crc, sum, w)
	piece := make([]byte, min(f.Size, pieceBytes))
	for at := uint64(0); at < f.Size; {
		p := piece[:min(f.Size-at, pieceBytes)]
		if err := b.store.ReadAt(ctx, fileKey(f), p, int64(at)); err != nil { //nolint:gosec // below the size of an object
			return err
		}
		if _, err := to.Write(p); err != nil {
			return err
		}
		at += uint64(len(p))
	}
	if crc.Sum32() != f.CRC || string(sum.Sum(nil)[:len(f.ID)]) != string(f.ID[:]) {
		return damagedError("%s does not match its checksum", fileKey(f))
	}
	return nil
}

// Verify reads every file of a backup, and returns its list. Errors wrap ErrDamaged for what is missing or not what was written.
func (b *Backups) Verify(ctx context.Context, name string) (*Manifest, error) {
	m, err := b.Read(ctx, name)
	if err != nil {
		return nil, err
	}
	done := uint64(0)
	for _, f := range m.Logs {
		if err := b.readFile(ctx, f, io.Discard); err != nil {
			return m, fmt.Errorf("backup %s: file %s: %w", name, f.Name, err)
		}
		done += f.Size
		b.o.Progress(done)
	}
	if err := b.ReadEntries(ctx, m, func(kv.Entry) error { return nil }); err != nil {
		return m, fmt.Errorf("backup %s: %w", name, err)
	}
	return m, nil
}

// maxEntriesBytes bounds a file with entries.
const maxEntriesBytes = entriesBytes + kv.MaxKey + kv.MaxValue + 64

// ReadEntries calls fn with the entries of a backup's control store, by key. The values are valid during the call.
func (b *Backups) ReadEntries(ctx context.Context, m *Manifest, fn func(kv.Entry) error) error {
	last := ""
	for _, f := range m.Control {
		if f.Size > maxEntriesBytes {
			return damagedError("%s has %d bytes of entries, the limit is %d", f.Name, f.Size, maxEntriesBytes)
		}
		var content bytes.Buffer
		err := b.readFile(ctx, f, &content)
		if err == nil {
			err = DecodeEntries(content.Bytes(), func(e kv.Entry) error {
				if e.Key <= last {
					return damagedError("the entry %q is after %q", e.Key, last)
				}
				last = e.Key
				return fn(e)
			})
		}
		if err != nil {
			return fmt.Errorf("file %s: %w", f.Name, err)
		}
	}
	return nil
}
