package producer

import (
	"context"
	"fmt"

	"scribe/internal/format/record"
)

// WriteArrow writes the Arrow frame whose body encode returns (docs/format/frame.md), and waits for its acknowledgement. It
// writes nothing if rows is 0. Package producer/columns uses it to write record batches, so that this package does not link
// Arrow.
func (p *Producer) WriteArrow(ctx context.Context, category string, shard uint32, rows int, encode func() ([]byte, error)) error {
	if rows == 0 {
		return nil
	}
	body, err := encode()
	if err == nil && rows > record.MaxMessagesPerFrame {
		err = fmt.Errorf("%w: %d rows, the limit is %d", ErrTooLarge, rows, record.MaxMessagesPerFrame)
	}
	if err != nil {
		p.countRefused(rows)
		return err
	}
	return p.writeFrame(ctx, frameContent{
		category: category, shard: shard, ack: p.ack, bound: len(body), messages: rows, size: int64(len(body)),
		fill: func(f *outFrame, env record.Envelope) error {
			data, err := record.AppendArrowFrame(f.buf.B[:0], env, rows, body)
			if err != nil {
				return fromRecord(err)
			}
			f.builder = record.Builder{} // newFrame began a frame of rows in the same buffer
			f.data, f.length = data, len(data)
			return nil
		},
	})
}
