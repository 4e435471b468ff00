package file_test

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/storage/blob"
	"scribe/storage/blob/blobtest"
	"scribe/storage/blob/file"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func open(tb testing.TB, dir string, opts file.Options) *file.Store {
	tb.Helper()
	s, err := file.New(dir, opts)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func TestStore(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, t.TempDir(), file.Options{}) })
}

func TestStoreInMemoryFileSystem(t *testing.T) {
	blobtest.Run(t, func(t *testing.T) blob.Store { return open(t, "/data/blobs", file.Options{FS: vfs.NewMem()}) })
}
