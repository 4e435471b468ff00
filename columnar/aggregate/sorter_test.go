package aggregate

import (
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/plan"
)

// TestSorterSortsSeldom: rows that take nearly all that they may are not sorted again with each batch, and an error says what they may take.
func TestSorterSortsSeldom(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}, {Name: "key", Type: arrow.PrimitiveTypes.Int64}}, nil)
	text := strings.Repeat("x", 1000)
	batch := func(n int, key int64) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, in)
		defer b.Release()
		for range n {
			b.Field(0).(*array.StringBuilder).Append(text)
			b.Field(1).(*array.Int64Builder).Append(key)
		}
		return b.NewRecordBatch()
	}
	s, err := NewSorter([]plan.Order{{Expr: column("int64")}}, in, 1000, Limits{Bytes: 2_200_000})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Add(batch(1000, 5)); err != nil {
		t.Fatal(err)
	}
	sorted := 0
	for i := range int64(200) {
		if err := s.Add(batch(10, 1000-i)); err != nil {
			t.Fatal(err)
		}
		if len(s.held) == 1 {
			sorted++
		}
	}
	if sorted == 0 || sorted > 10 {
		t.Errorf("200 batches were sorted %d times", sorted)
	}
	out, err := s.Result()
	if err != nil || out.NumRows() != 1000 || out.NumCols() != 1 {
		t.Fatalf("%v, %v", out, err)
	}
	out.Release()
	all, err := NewSorter([]plan.Order{{Expr: column("int64")}}, in, -1, Limits{Bytes: 1_900_000})
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	if err := all.Add(batch(1000, 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := all.Result(); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "950000 are allowed, a quarter of the query's memory") {
		t.Errorf("over the limit: %v", err)
	}
}
