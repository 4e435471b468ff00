package zone_test

import (
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/zone"
)

func TestCastsThatHaveNoRoomAreNull(t *testing.T) {
	s := &schema.Schema{Version: 1, Format: schema.JSON, Fields: []schema.Field{
		{Name: "d", Type: schema.Type{Kind: schema.Decimal, Precision: 10, Scale: 2}, Nullable: true},
	}}
	b := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 10, Scale: 2})
	b.Append(decimal128.FromI64(123456789))
	zb := zone.NewBuilder(zone.Define(s))
	zb.AddRows(1)
	zb.AddArray("d", b.NewArray())
	m := zb.Map()
	narrow := schema.Type{Kind: schema.Decimal, Precision: 4, Scale: 2}
	e := &expr.Call{Op: expr.IsNull, T: boolean, Args: []expr.Expr{&expr.Call{Op: expr.Cast, T: narrow, Args: []expr.Expr{&expr.Column{Name: "d", T: s.Fields[0].Type}}}}}
	if !zone.MayMatch(e, m) {
		t.Error("a payload with a value that the cast has no room for is left out")
	}
}

func TestRejectedRowsOfOneVersionAreRowsOfAnother(t *testing.T) {
	before := &schema.Schema{Version: 1, Format: schema.JSON, OnError: schema.OnErrorReject, Fields: []schema.Field{
		{Name: "a", Type: schema.Type{Kind: schema.Int64}, Nullable: true},
		{Name: "b", Type: schema.Type{Kind: schema.Int32}, Nullable: true},
	}}
	wider := *before
	wider.Version = 2
	wider.Fields = append([]schema.Field(nil), before.Fields...)
	wider.Fields[1].Type.Kind = schema.Int64
	tolerant := *before
	tolerant.Version, tolerant.OnError = 3, schema.OnErrorNull
	b := array.NewInt64Builder(memory.DefaultAllocator)
	b.Append(1) // a row {"a":7,"b":1e12} was rejected
	zb := zone.NewBuilder(zone.Define(before))
	zb.AddRows(1)
	zb.AddArray("a", b.NewArray())
	m := zb.Map()
	e := &expr.Call{Op: expr.Eq, T: boolean, Args: []expr.Expr{&expr.Column{Name: "a", T: before.Fields[0].Type}, &expr.Literal{T: before.Fields[0].Type, Value: int64(7)}}}
	for _, s := range []*schema.Schema{&wider, &tolerant} {
		if !zone.MayMatch(e, m.Under(zone.Define(s))) {
			t.Errorf("version %d: a payload is left out for rows that were rejected", s.Version)
		}
	}
}
