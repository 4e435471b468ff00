package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/internal/format/record"
)

// WriteColumns writes an Arrow record batch as one frame, whose rows are its messages, and waits for its acknowledgement. The
// batch is encoded before the call waits for anything; it is not kept, and not released. A batch without rows writes nothing;
// one that does not fit a frame or this producer's memory fails with [ErrTooLarge], one with types that frames do not carry with
// [ErrInvalid].
func (p *Producer) WriteColumns(ctx context.Context, category string, shard uint32, batch arrow.RecordBatch) error {
	c, rows := p.core, int(batch.NumRows())
	if rows == 0 {
		return nil
	}
	body, err := columnar.EncodeIPC(nil, batch)
	switch {
	case errors.Is(err, columnar.ErrTooLarge):
		err = fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, columnar.ErrUnsupported):
		err = fmt.Errorf("%w: %w", ErrInvalid, err)
	case err == nil && rows > record.MaxMessagesPerFrame:
		err = fmt.Errorf("%w: %d rows, the limit is %d", ErrTooLarge, rows, record.MaxMessagesPerFrame)
	}
	if err != nil {
		c.countRefused(rows)
		return err
	}
	return c.writeWhole(ctx, whole{
		category: category, shard: shard, ack: p.ack, bound: len(body), messages: rows, size: int64(len(body)),
		fill: func(f *frame, env record.Envelope) error {
			data, err := record.AppendArrowFrame((*f.buf)[:0], env, rows, body)
			if err != nil {
				return fromRecord(err)
			}
			f.builder = record.Builder{} // has begun a frame in the same buffer
			f.data, f.length = data, len(data)
			return nil
		},
	})
}
