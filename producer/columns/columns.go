// Package columns writes Arrow record batches with a [producer.Producer]. It is a separate package, so that programs that only
// produce messages do not link Arrow.
//
//	err := columns.Write(ctx, p, "web.access", 0, batch)
package columns

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar"
	"scribe/columnar/divide"
	"scribe/internal/format/placement"
	"scribe/producer"
)

// Write writes an Arrow record batch to a logical shard as one frame, whose rows are its messages, and waits for its
// acknowledgement. The batch is encoded before the call waits; Write neither keeps nor releases it. An empty batch writes
// nothing. A batch that does not fit a frame or the producer's memory fails with [producer.ErrTooLarge], one with types that
// frames do not support with [producer.ErrInvalid].
//
// The shard is as [producer.Message.Shard]. If the category places messages by a field, the rows are divided by the column of that
// name (or the field of structs), which must be of strings, bytes, integers, floats or booleans; there is a frame for each shard,
// and the call waits for all. An error then says how many rows were not stored; the others are.
func Write(ctx context.Context, p *producer.Producer, category string, shard uint32, batch arrow.RecordBatch) error {
	for {
		layout := p.Layout(ctx, category)
		var err error
		if layout == nil || batch.NumRows() == 0 {
			err = writePart(ctx, p, category, batch, producer.ArrowRows{Shard: shard})
		} else {
			err = writeDivided(ctx, p, category, shard, batch, layout)
		}
		if !producer.IsMoved(err) {
			return err
		}
	}
}

// writePart writes rows as one frame.
func writePart(ctx context.Context, p *producer.Producer, category string, batch arrow.RecordBatch, rows producer.ArrowRows) error {
	rows.Rows = int(batch.NumRows())
	return p.WriteArrowRows(ctx, category, rows, func() ([]byte, error) {
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

// maxParts bounds the frames of one batch that are being written.
const maxParts = 64

// writeDivided writes rows as a frame for each shard. Parts that were not written because the category got another layout are divided
// again.
func writeDivided(ctx context.Context, p *producer.Producer, category string, shard uint32, batch arrow.RecordBatch, layout *placement.Layout) error {
	if shard != 0 {
		return fmt.Errorf("%w: category %s places rows by a column: leave the shard, %d, at 0", producer.ErrInvalid, category, shard)
	}
	parts, err := divide.Rows(batch, layout, rand.Uint32N(layout.Shards())) //nolint:forbidigo // rows without a value may go anywhere
	if err != nil {
		return fmt.Errorf("%w: category %s: %w", producer.ErrInvalid, category, err)
	}
	var (
		group  sync.WaitGroup
		slots  = make(chan struct{}, maxParts)
		errs   = make([]error, len(parts))
		rows   = make([]int64, len(parts))
		failed int64
		first  error
	)
	for i := range parts {
		rows[i] = parts[i].Rows.NumRows()
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			defer parts[i].Rows.Release()
			errs[i] = writePart(ctx, p, category, parts[i].Rows, producer.ArrowRows{Shard: parts[i].Shard, Layout: layout})
			if producer.IsMoved(errs[i]) {
				errs[i] = Write(ctx, p, category, shard, parts[i].Rows)
			}
		})
	}
	group.Wait()
	for i, err := range errs {
		if err != nil {
			failed += rows[i]
			if first == nil {
				first = err
			}
		}
	}
	if first != nil && len(parts) > 1 {
		return fmt.Errorf("%d of %d rows: %w", failed, batch.NumRows(), first)
	}
	return first
}
