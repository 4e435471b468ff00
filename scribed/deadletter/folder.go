package deadletter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/config"
	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
	"scribe/scribed/boundedfolder"
	"scribe/scribed/keyring"
	"scribe/storage/blob/encryption"
)

// Config says where letters are kept, and bounds them. Start from [DefaultConfig].
type Config struct {
	// Dir is the folder; it is created if needed.
	Dir string `required:"a folder"`
	// MaxBytes bounds the total size of the files.
	MaxBytes int64 `yaml:"dead_letters" default:"256MiB" min:"1B" max:"1024TiB"`
	// MaxFiles bounds the number of files.
	MaxFiles int `default:"10000" min:"1" max:"1048576"`
}

// DefaultConfig returns a configuration for a host's agent. The caller sets Dir.
func DefaultConfig() Config { return config.Defaults[Config]() }

// Validate reports every violation.
func (c *Config) Validate() error {
	return config.Check("deadletter", c, nil).Err()
}

// Totals are the contents of a folder and its activity since it was opened.
type Totals struct {
	// Files and Bytes count the files in the folder.
	Files int
	Bytes int64
	// Letters counts the letters put into it.
	Letters int64
	// RemovedFiles and RemovedBytes count the files removed to free capacity.
	RemovedFiles, RemovedBytes int64
}

// Deps are the dependencies of a folder.
type Deps struct {
	// FS is the file system; nil = the real one.
	FS vfs.FS
	// Wrapper wraps the keys with which messages and frames are encrypted; nil = they are written as they are.
	Wrapper encryption.Wrapper
	// Random draws keys and nonces; nil is the machine's randomness.
	Random *entropy.Source
}

// Folder stores letters. It is safe for concurrent use, by one process.
type Folder struct {
	cfg  Config
	fs   vfs.FS
	keys *keyring.Keyring

	// writer is held while the folder changes, also during I/O. mu is taken under it.
	writer struct {
		sync.Mutex
		boundedfolder.Folder
		last uint64 // number of the newest file
	}
	mu struct {
		sync.Mutex
		totals Totals
	}
}

const (
	// Suffix ends the name of a file of letters.
	Suffix    = ".dead"
	temporary = ".tmp"
	digits    = 20
)

// Open opens a folder, and creates it if needed. Incomplete files left by a crash are removed, and keys of files that are gone.
func Open(cfg Config, deps Deps) (*Folder, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	fs := deps.FS
	if fs == nil {
		fs = vfs.Default
	}
	if err := durable.CreateFolder(fs, cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("deadletter: create the folder: %w", err)
	}
	f := &Folder{cfg: cfg, fs: fs}
	f.writer.Folder = boundedfolder.Folder{FS: fs, Dir: cfg.Dir, MaxBytes: cfg.MaxBytes, MaxFiles: cfg.MaxFiles}
	var incomplete []string
	var numbers []uint64
	err := f.writer.FindFiles(func(name string) bool {
		if strings.HasSuffix(name, Suffix+temporary) {
			incomplete = append(incomplete, name)
		}
		number, ok := numberOf(name)
		if ok {
			f.writer.last = max(f.writer.last, number)
			numbers = append(numbers, number)
		}
		return ok
	})
	for _, name := range incomplete {
		err = errors.Join(err, fs.Remove(fs.PathJoin(cfg.Dir, name)))
	}
	if err == nil {
		err = f.openKeys(deps, numbers)
	}
	if err != nil {
		return nil, fmt.Errorf("deadletter: %w", err)
	}
	f.addTotals(Totals{})
	return f, nil
}

// openKeys opens the keys, and removes those of files that are gone. Letters whose keys can't be used are not in the way: nobody here reads them.
func (f *Folder) openKeys(deps Deps, numbers []uint64) (err error) {
	f.keys, err = keyring.Open(keyring.Config{Dir: f.fs.PathJoin(f.cfg.Dir, keyring.FolderName), FS: f.fs, Wrapper: deps.Wrapper, Random: deps.Random})
	if err != nil {
		return err
	}
	f.keys.BeginRun(f.writer.last + 1)
	return f.keys.Prune(func(from, to uint64) bool {
		return slices.ContainsFunc(numbers, func(n uint64) bool { return from <= n && n < to })
	})
}

// nameOf returns the name of a file: its number, so that names in order are files in order of writing.
func nameOf(number uint64) string { return fmt.Sprintf("%0*d%s", digits, number, Suffix) }

func numberOf(name string) (uint64, bool) {
	text, ok := strings.CutSuffix(name, Suffix)
	if !ok || len(text) != digits {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// ErrTooLarge says that letters need more bytes than the folder may hold.
var ErrTooLarge = errors.New("deadletter: larger than the folder's bound")

// maxFile bounds the bytes of a file, unless one letter is larger.
const maxFile = 256 << 20

// Put writes letters to one file, and returns when they are on disk. The oldest files are removed to free capacity. Frames are
// not used after it returns. Without letters it writes no file.
func (f *Folder) Put(letters []Letter) error {
	if len(letters) == 0 {
		return nil
	}
	b, err := Encode(letters, f.keys)
	if err != nil {
		return err
	}
	if limit := min(f.cfg.MaxBytes, maxFile); int64(len(b)) > limit {
		if len(letters) == 1 {
			return fmt.Errorf("%w: %d bytes, it is %d", ErrTooLarge, len(b), limit)
		}
		half := len(letters) / 2
		return errors.Join(f.Put(letters[:half]), f.Put(letters[half:]))
	}
	f.writer.Lock()
	defer f.writer.Unlock()
	removed, freed, err := f.writer.MakeSpace(int64(len(b)))
	f.addTotals(Totals{RemovedFiles: int64(removed), RemovedBytes: freed})
	if err != nil {
		return fmt.Errorf("deadletter: remove the oldest: %w", err)
	}
	f.writer.last = max(f.writer.last+1, uint64(max(time.Now().UnixMicro(), 0)))
	name := nameOf(f.writer.last)
	if err := f.writeFile(name, b); err != nil {
		return fmt.Errorf("deadletter: write %s: %w", name, err)
	}
	f.writer.AddFile(name, int64(len(b)))
	f.addTotals(Totals{Letters: int64(len(letters))})
	return nil
}

// addTotals adds to the totals. The caller holds writer, or no other goroutine uses the folder yet.
func (f *Folder) addTotals(t Totals) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.totals.Files, f.mu.totals.Bytes = f.writer.CountFiles()
	f.mu.totals.Letters += t.Letters
	f.mu.totals.RemovedFiles += t.RemovedFiles
	f.mu.totals.RemovedBytes += t.RemovedBytes
}

// writeFile writes a file atomically and durably.
func (f *Folder) writeFile(name string, b []byte) (err error) {
	path := f.fs.PathJoin(f.cfg.Dir, name)
	out, err := f.fs.Create(path+temporary, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = f.fs.Remove(path + temporary) // the first error is the cause
		}
	}()
	_, err = out.Write(b)
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	if err := f.fs.Rename(path+temporary, path); err != nil {
		return err
	}
	return durable.SyncFolder(f.fs, f.cfg.Dir)
}

// Totals returns the folder's contents and activity.
func (f *Folder) Totals() Totals {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.totals
}
