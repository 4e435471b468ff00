package blob_test

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/testkit/s3test"
	"scribe/storage/blob"
	"scribe/storage/blob/file"
	"scribe/storage/blob/memory"
	"scribe/storage/blob/s3"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	runSuite(t, func(*testing.T) blob.Store { return memory.New() })
}

func TestFile(t *testing.T) {
	runSuite(t, func(t *testing.T) blob.Store { return openFile(t, t.TempDir(), file.Options{}) })
}

func TestFileInMemory(t *testing.T) {
	runSuite(t, func(t *testing.T) blob.Store { return openFile(t, "/data/blobs", file.Options{FS: vfs.NewMem()}) })
}

func openFile(t *testing.T, dir string, opts file.Options) blob.Store {
	s, err := file.New(dir, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestS3(t *testing.T) {
	server := s3test.Start(t)
	n := 0
	runSuite(t, func(t *testing.T) blob.Store {
		n++
		cfg := s3.DefaultConfig()
		cfg.Endpoint, cfg.Secure, cfg.Region, cfg.Bucket = server.Endpoint, false, server.Region, server.Bucket
		cfg.AccessKey, cfg.SecretKey = server.AccessKey, server.SecretKey
		cfg.Prefix = fmt.Sprintf("cells/%d", n)
		s, err := s3.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
