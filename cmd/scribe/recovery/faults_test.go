package recovery

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/base/config"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

// TestFullDisk: a recovery on a disk that is full ends with an error, whichever write fails first, and works when it is repeated with space.
func TestFullDisk(t *testing.T) {
	store := memory.New()
	for n := range 20 {
		put(t, store, n, history(uint64(n+1), uint64(n)), entry(web, 1, 1, record.LSN(n+1), false))
	}
	for after := range int32(40) {
		fs := vfs.NewMem()
		var writes atomic.Int32
		full := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if op.Kind.ReadOrWrite() == errorfs.OpIsRead || writes.Add(1) <= after {
				return nil
			}
			return syscall.ENOSPC
		}))
		_, _, _, err := tryRecover(t, store, "scratch", func(_ *Config, d *Deps) { d.FS = full })
		if err != nil && !errors.Is(err, syscall.ENOSPC) || err == nil && after < 10 {
			t.Errorf("after %d writes: %v", after, err)
		}
		_, report, _, err := tryRecover(t, store, "scratch", func(_ *Config, d *Deps) { d.FS = fs })
		if err != nil || report.Records != 20 {
			t.Errorf("after %d writes, with space: %+v, %v", after, report, err)
		}
	}
}

// flaky is a store some of whose calls fail.
type flaky struct {
	blob.Store
	read func(key string) error
	list func(key string) error
}

func (f *flaky) ReadAt(ctx context.Context, key string, dst []byte, off int64) error {
	if f.read != nil {
		if err := f.read(key); err != nil {
			return err
		}
	}
	return f.Store.ReadAt(ctx, key, dst, off)
}

func (f *flaky) List(ctx context.Context, prefix string) iter.Seq2[blob.Info, error] {
	return func(yield func(blob.Info, error) bool) {
		for info, err := range f.Store.List(ctx, prefix) {
			if err == nil && f.list != nil {
				err = f.list(info.Key)
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// TestDamage: what can't be read is told with what it holds, and leaves a gap; nothing else suffers.
func TestDamage(t *testing.T) {
	clean := memory.New()
	putAll(t, clean, at{web, 1, 1, 0}, at{web, 1, 2, 1}, at{web, 1, 3, 2}, at{web, 1, 4, 3}, at{web, 1, 5, 4}, at{web, 1, 6, 5})
	store := memory.New()
	for info, err := range clean.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		data := make([]byte, info.Size)
		if err := clean.ReadAt(t.Context(), info.Key, data, 0); err != nil {
			t.Fatal(err)
		}
		switch info.Key {
		case keyOf(1): // cut off within the footer
			data = data[:len(data)-60]
		case keyOf(2): // a flipped bit in the footer
			data[len(data)-layout.TrailerLen-3] ^= 4
		case keyOf(3): // not a blob at all
			data = []byte("what is this doing here?")
		case keyOf(4):
			continue // it is not there
		}
		if err := store.Put(t.Context(), info.Key, data); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"blobs/readme.txt", "blobs/72h/" + strings.ToUpper(blobID(0).String()), "other/thing"} {
		if err := store.Put(t.Context(), key, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	l, report, findings := recoverAll(t, store, nil)
	want := []at{{web, 0, 1, 0}, {web, 0, 2, -1}, {web, 0, 3, -1}, {web, 0, 4, -1}, {web, 0, 5, -1}, {web, 0, 6, 5}}
	if got := l.list(t); !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if report.Damaged != 3 || report.Foreign != 2 || report.Lost != 4 || report.Gaps != 1 || report.Blobs != 2 || report.Whole() {
		t.Errorf("%+v", report)
	}
	if got := kinds(findings); !slices.Equal(got, []FindingKind{FindingDamaged, FindingDamaged, FindingDamaged, FindingForeign, FindingForeign, FindingGap}) {
		t.Errorf("findings %v", got)
	}
	for _, f := range findings {
		if f.Kind == FindingDamaged && (f.Key == keyOf(1) || f.Key == keyOf(2)) && !slices.Equal(f.Contents, []Contents{{Category: "web", Frames: 1, Messages: 1}}) {
			t.Errorf("%s holds %+v", f.Key, f.Contents)
		}
	}
}

// TestGoOn: a recovery that is cut off at any footer reads only the others when it is run again, and tells the same of all.
func TestGoOn(t *testing.T) {
	const blobs = 40
	store := memory.New()
	for n := range blobs {
		if n == 7 {
			if err := store.Put(t.Context(), keyOf(n), []byte("damaged")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		put(t, store, n, layout.History{}, layout.Entry{Shard: web, Epoch: 1, LSN: record.LSN(n + 1)}, layout.Entry{Shard: orders, Epoch: 1, LSN: record.LSN(n + 1)})
	}
	whole, want, wantFindings := recoverAll(t, store, nil)
	for cut := 1; cut < blobs; cut += 6 {
		scratch := filepath.Join(t.TempDir(), "scratch")
		broken := errors.New("cut off")
		_, _, _, err := tryRecover(t, &flaky{Store: store, list: func(key string) error {
			if key == keyOf(cut) {
				return broken
			}
			return nil
		}}, scratch, nil)
		if !errors.Is(err, broken) {
			t.Fatalf("cut at %d: %v", cut, err)
		}
		l, report, findings, err := tryRecover(t, store, scratch, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(l.list(t), whole.list(t)) || !slices.Equal(kinds(findings), kinds(wantFindings)) {
			t.Errorf("cut at %d: %v, want %v", cut, l.list(t), whole.list(t))
		}
		// What was on its way when it was cut off is read again.
		if cut > 10 && report.Read >= blobs || report.Read < blobs-int64(cut)-1 || report.Blobs != want.Blobs || report.Damaged != 1 {
			t.Errorf("cut at %d: %+v", cut, report)
		}
	}
}

// TestGoneSince: a blob that was read by a run before and is gone does not count.
func TestGoneSince(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 1, 1, 0}, at{web, 1, 2, 1})
	scratch := filepath.Join(t.TempDir(), "scratch")
	if _, _, _, err := tryRecover(t, store, scratch, nil); err != nil {
		t.Fatal(err)
	}
	if err := store.Delete(t.Context(), keyOf(1)); err != nil {
		t.Fatal(err)
	}
	l, report, _, err := tryRecover(t, store, scratch, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := l.list(t); !slices.Equal(got, []at{{web, 0, 1, 0}}) || report.Gone != 1 || report.Read != 0 {
		t.Errorf("%+v, %+v", got, report)
	}
	// Deleted between the listing and the reading.
	_, report, _ = recoverAll(t, &flaky{Store: store, read: func(string) error { return blob.ErrNotFound }}, nil)
	if report.Gone != 1 || report.Blobs != 0 {
		t.Errorf("%+v", report)
	}
}

// TestStoreErrors: what is no damage ends the recovery.
func TestStoreErrors(t *testing.T) {
	store := memory.New()
	putAll(t, store, at{web, 1, 1, 0})
	_, _, _, err := tryRecover(t, &flaky{Store: store, read: func(string) error { return blob.ErrDenied }}, filepath.Join(t.TempDir(), "s"), nil)
	if !errors.Is(err, blob.ErrDenied) {
		t.Errorf("denied: %v", err)
	}
	// The listing that the failure of a reader ends has no error of its own.
	damaged, reads := memory.New(), map[string]int{}
	for n := range 3 {
		if err := damaged.Put(t.Context(), keyOf(n), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
	}
	denyAgain := func(key string) error {
		if reads[key]++; reads[key] > 1 { // what is in a damaged blob
			return blob.ErrDenied
		}
		return nil
	}
	_, _, _, err = tryRecover(t, &flaky{Store: damaged, read: denyAgain}, filepath.Join(t.TempDir(), "s"), func(c *Config, _ *Deps) { c.Workers = 1 })
	if text := fmt.Sprint(err); !errors.Is(err, blob.ErrDenied) || strings.Count(text, "denied") != 1 || strings.Contains(text, "list blobs") {
		t.Errorf("denied, with more blobs to list: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "s")
	if _, _, _, err := tryRecover(t, store, dir, func(c *Config, _ *Deps) { c.Source = "one" }); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := tryRecover(t, store, dir, func(c *Config, _ *Deps) { c.Source = "another" }); err == nil || !strings.Contains(err.Error(), "delete") {
		t.Errorf("the scratch database of another store: %v", err)
	}
	if _, err := Run(t.Context(), Config{}, Deps{Blobs: store}, nil); err == nil || !strings.Contains(err.Error(), "Workers") || !strings.Contains(err.Error(), "Scratch") {
		t.Errorf("an empty configuration: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	cfg := config.Defaults[Config]()
	cfg.Scratch = filepath.Join(t.TempDir(), "s")
	if _, err := Run(ctx, cfg, Deps{Blobs: store}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}
