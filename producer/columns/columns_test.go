package columns_test

import (
	"context"
	"errors"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"scribe/columnar"
	"scribe/internal/format/record"
	"scribe/producer"
	"scribe/producer/columns"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server stores every frame.
type server struct{ frames []record.Frame }

func (s *server) Write(_ context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	res := &scribev1.WriteResponse{}
	for f, err := range record.Split(append([]byte(nil), req.GetFrames()...)) {
		if err != nil {
			return nil, err
		}
		s.frames = append(s.frames, f)
		res.Results = append(res.Results, &scribev1.FrameResult{})
	}
	return res, nil
}

func TestWrite(t *testing.T) {
	s := &server{}
	p, err := producer.New("", producer.WithService(s), producer.WithMaxBufferedBytes(512<<10))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	schema := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil)
	batch := func(rows int) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		for i := range rows {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
		}
		return b.NewRecordBatch()
	}
	rec := batch(1000)
	defer rec.Release()
	for range 2 { // the second has sequences that follow those of the first
		if err := columns.Write(t.Context(), p, "a", 2, rec); err != nil {
			t.Fatal(err)
		}
	}
	if h := s.frames[1]; h.Count != 1000 || h.Shard != 2 || h.FirstSequence != 1000 || !h.Sequenced() || h.BaseTime == 0 {
		t.Errorf("the frame is %+v", h)
	}
	got, err := columnar.DecodeIPC(s.frames[0].Body())
	if err != nil {
		t.Fatal(err)
	}
	defer got.Release()
	if !array.RecordEqual(got, rec) {
		t.Errorf("stored %v", got)
	}
	if st := p.Stats(); st.Acked != 2000 {
		t.Errorf("stats are %+v", st)
	}

	none, large := batch(0), batch(100_000)
	defer none.Release()
	defer large.Release()
	if err := columns.Write(t.Context(), p, "a", 0, none); err != nil || len(s.frames) != 2 {
		t.Errorf("a batch without rows: %v, %d frames", err, len(s.frames))
	}
	if err := columns.Write(t.Context(), p, "a", 0, large); !errors.Is(err, producer.ErrTooLarge) {
		t.Errorf("a batch over the memory bound: %v", err)
	}
	if err := columns.Write(t.Context(), p, "no name", 0, rec); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("a wrong category: %v", err)
	}
	union := arrow.SparseUnionOf([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, []arrow.UnionTypeCode{0})
	ub := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "u", Type: union}}, nil))
	defer ub.Release()
	ub.Field(0).(*array.SparseUnionBuilder).Append(0)
	ub.Field(0).(*array.SparseUnionBuilder).Child(0).(*array.Int64Builder).Append(1)
	odd := ub.NewRecordBatch()
	defer odd.Release()
	if err := columns.Write(t.Context(), p, "a", 0, odd); !errors.Is(err, producer.ErrInvalid) {
		t.Errorf("a type that frames do not carry: %v", err)
	}
}
