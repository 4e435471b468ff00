package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
)

// WithoutPath removes the file name from an error of the file system, for callers that name the file themselves.
func WithoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// lockData creates the data folder if it does not exist, and locks it. A second process on the same folder would write to the same logs and
// blobs. Nobody else may look into a new folder: it has payloads, hashes of tokens and keys of tickets.
func lockData(fsys vfs.FS, dir string) (release func() error, err error) {
	if err := durable.CreateFolder(fsys, dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder %s can't be created: %w", dir, WithoutPath(err))
	}
	lock, err := fsys.Lock(filepath.Join(dir, "LOCK"))
	_, isPath := errors.AsType[*fs.PathError](err)
	switch {
	case errors.Is(err, fs.ErrPermission) && isPath:
		return nil, fmt.Errorf("data folder %s is not writable for this user: %w", dir, WithoutPath(err))
	case isPath:
		return nil, fmt.Errorf("lock data folder %s: %w", dir, WithoutPath(err))
	case err != nil: // the file is there, and somebody has it
		return nil, fmt.Errorf("data folder %s is in use by another scribe process: stop that one, or give another --data", dir)
	}
	// The lock file may be writable where the folder is not.
	const probe = ".probe"
	if err := durable.ReplaceFile(fsys, filepath.Join(dir, probe), func(io.Writer) error { return nil }); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s is not writable: %w", dir, WithoutPath(err)), lock.Close())
	}
	if err := fsys.Remove(filepath.Join(dir, probe)); err != nil {
		return nil, errors.Join(fmt.Errorf("data folder %s: %w", dir, err), lock.Close())
	}
	return lock.Close, nil
}

// maxID bounds a member's id in bytes (proto/scribe/v1/control.proto).
const maxID = 255

// memberID is the name of the process in the membership: the configured one, or one that is made once and kept in the data folder,
// so that a process that comes back after a crash gets its writer slot back, and with it its logs.
func memberID(host Host, c *Config) (string, error) {
	fsys, random := host.FS, host.Random.Named("member")
	if c.ID != "" || !c.needsData() {
		return cmp.Or(c.ID, newID(random)), nil
	}
	path := filepath.Join(c.Data, "id")
	text, err := readFile(fsys, path)
	switch id := strings.TrimSpace(string(text)); {
	case err == nil && id != "" && len(id) <= maxID:
		return id, nil
	case err == nil && len(text) == 0: // a loss of power cut it
	case err == nil:
		return "", fmt.Errorf("%s holds no member id: remove it to get a new one", path)
	case !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	id := newID(random)
	// A process that loses its id takes another writer slot, of which there are not many.
	return id, durable.ReplaceFile(fsys, path, func(w io.Writer) error {
		_, err := io.WriteString(w, id+"\n")
		return err
	})
}

// readFile returns the content of a small file.
func readFile(fsys vfs.FS, path string) ([]byte, error) {
	f, err := fsys.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.LimitReader(f, 4<<10))
}

func newID(random *entropy.Source) string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	return host[:min(len(host), 200)] + "-" + random.Text()[:10]
}
