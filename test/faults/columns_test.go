package faults

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/producer/columns"
	"scribe/test/history"
)

// columnSchema is that of the batches of the workload.
var columnSchema = arrow.NewSchema([]arrow.Field{
	{Name: "index", Type: arrow.PrimitiveTypes.Int64},
	{Name: "payload", Type: arrow.BinaryTypes.Binary},
}, nil)

// columns writes an Arrow batch, whose rows are whole and contiguous.
func (wr *writer) columns(ctx context.Context) error {
	msgs := wr.source(1 + wr.rng.IntN(20))
	b := array.NewRecordBuilder(memory.DefaultAllocator, columnSchema)
	defer b.Release()
	for _, m := range msgs {
		b.Field(0).(*array.Int64Builder).Append(int64(m.ID.Index))
		b.Field(1).(*array.BinaryBuilder).Append(m.Payload)
	}
	batch := b.NewRecordBatch()
	defer batch.Release()
	a := wr.w.h.BeginAtomic(wr.category, wr.shard, msgs...)
	wr.tellAll(a, len(msgs), columns.Write(ctx, wr.p, wr.category, wr.shard, batch))
	return nil
}

// readRows notes the rows of a batch.
func readRows(r *history.Reading, batch arrow.RecordBatch) error {
	for i, f := range batch.Schema().Fields() {
		if f.Name != "payload" {
			continue
		}
		column, ok := batch.Column(i).(*array.Binary)
		if !ok {
			return fmt.Errorf("column payload is of type %v", f.Type)
		}
		for row := range column.Len() {
			r.Row(column.Value(row))
		}
		return nil
	}
	return fmt.Errorf("a batch without the column payload: %v", batch.Schema())
}
