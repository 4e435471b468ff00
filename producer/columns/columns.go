// Package columns writes Arrow record batches with a [producer.Producer]. It is a separate package, so that programs that only
// produce messages do not link Arrow.
//
//	err := columns.Write(ctx, p, "web.access", 0, batch)
package columns

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/producer"
)

// Write writes an Arrow record batch to a logical shard as one frame, whose rows are its messages, and waits for its
// acknowledgement. The batch is encoded before the call waits; Write neither keeps nor releases it. An empty batch writes
// nothing. A batch that does not fit a frame or the producer's memory fails with [producer.ErrTooLarge], one with types that
// frames do not support with [producer.ErrInvalid].
func Write(ctx context.Context, p *producer.Producer, category string, shard uint32, batch arrow.RecordBatch) error {
	return p.WriteArrow(ctx, category, shard, int(batch.NumRows()), func() ([]byte, error) {
		body, err := columnar.EncodeIPC(nil, batch)
		switch {
		case errors.Is(err, columnar.ErrTooLarge):
			err = fmt.Errorf("%w: %w", producer.ErrTooLarge, err)
		case errors.Is(err, columnar.ErrUnsupported):
			err = fmt.Errorf("%w: %w", producer.ErrInvalid, err)
		}
		return body, err
	})
}
