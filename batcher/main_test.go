package batcher

import (
	"testing"

	"go.uber.org/goleak"

	"scribe/internal/format/pointer"
	"scribe/storage/blob/layout"
)

func TestMain(m *testing.M) {
	// The decoder that readers share is made when it is first used. What is made within a synctest bubble belongs to that.
	_, _ = layout.Decompress(nil, pointer.CodecZstd, nil, 1)
	goleak.VerifyTestMain(m)
}
