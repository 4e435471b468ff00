package file_test

import (
	"testing"

	"go.uber.org/goleak"

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
