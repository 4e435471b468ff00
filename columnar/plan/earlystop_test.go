package plan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
)

// predicate draws a condition over two declared columns and the message's time and key.
func predicate(t *rapid.T, depth int) string {
	sub := func() string { return "(" + predicate(t, depth-1) + ")" }
	number := rapid.SampledFrom([]string{
		"i", "l", "1", "2", "NULL::int", "coalesce(i, 1)", "i + l", "nullif(i, 2)", "greatest(i, 1)", "least(l, i)", "extract(minute FROM _time)::int",
		"CASE WHEN i = 1 THEN 2 ELSE l END", "CASE WHEN b THEN i END", "length(_key)", "i / l", "-i",
	})
	n := func() string { return number.Draw(t, "number") }
	kinds := 9
	if depth > 0 {
		kinds = 14
	}
	switch rapid.IntRange(0, kinds).Draw(t, "kind") {
	case 0:
		return "b"
	case 1:
		return n() + " IS NULL"
	case 2:
		return n() + " IS NOT NULL"
	case 3:
		return n() + " IS DISTINCT FROM " + n()
	case 4:
		return n() + " IN (1, " + n() + ", NULL)"
	case 5:
		return n() + " BETWEEN SYMMETRIC " + n() + " AND " + n()
	case 6:
		return "_key = 'a'"
	case 7:
		return rapid.SampledFrom([]string{"TRUE", "FALSE", "NULL", "_time > '2024-01-01'"}).Draw(t, "constant")
	case 8, 9:
		return n() + rapid.SampledFrom([]string{" = ", " <> ", " < ", " >= "}).Draw(t, "comparison") + n()
	case 10:
		return "NOT " + sub()
	case 11, 12:
		return sub() + " AND " + sub()
	case 13:
		return sub() + rapid.SampledFrom([]string{" IS TRUE", " IS NOT TRUE", " IS FALSE", " IS NOT FALSE", " IS UNKNOWN"}).Draw(t, "test")
	default:
		return sub() + " OR " + sub()
	}
}

// rows has every combination of values of the columns; the second batch has nulls for the declared ones.
func rows() (full, damaged arrow.RecordBatch) {
	fields := []arrow.Field{
		{Name: "i", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "l", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: schema.ColumnKey, Type: arrow.BinaryTypes.Binary, Nullable: true},
		{Name: schema.ColumnTime, Type: typeTimestamp.Arrow(), Nullable: true},
	}
	s := arrow.NewSchema(fields, nil)
	make1 := func(nulls bool) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, s)
		defer b.Release()
		for n := range 4 * 4 * 3 * 2 * 2 {
			i, l, bit, key, late := n%4, n/4%4, n/16%3, n/48%2, n/96
			put := func(column, v int, set func(int)) {
				if nulls || v == 0 {
					b.Field(column).AppendNull()
				} else {
					set(v)
				}
			}
			put(0, i, func(v int) { b.Field(0).(*array.Int32Builder).Append(int32(v)) }) //nolint:gosec // small
			put(1, l, func(v int) { b.Field(1).(*array.Int64Builder).Append(int64(v - 1)) })
			put(2, bit, func(v int) { b.Field(2).(*array.BooleanBuilder).Append(v == 1) })
			if key == 1 {
				b.Field(3).(*array.BinaryBuilder).Append([]byte("a"))
			} else {
				b.Field(3).AppendNull()
			}
			b.Field(4).(*array.TimestampBuilder).Append(arrow.Timestamp(late) * 1_800_000_000_000_000)
		}
		return b.NewRecordBatch()
	}
	return make1(false), make1(true)
}

// evaluate returns the value of a condition for each row: 1 true, 0 false, -1 null.
func evaluate(t *rapid.T, e expr.Expr, batch arrow.RecordBatch) []int {
	p, err := vector.Compile(e, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	a, err := p.Eval(batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Release()
	bools := a.(*array.Boolean)
	values := make([]int, bools.Len())
	for i := range values {
		switch {
		case bools.IsNull(i):
			values[i] = -1
		case bools.Value(i):
			values[i] = 1
		}
	}
	return values
}

// TestEarlyStopIsSound: where a row may be given up since the condition is false, damage of the row does not make the condition true.
func TestEarlyStopIsSound(t *testing.T) {
	full, damaged := rows()
	stopped := 0
	rapid.Check(t, func(t *rapid.T) {
		text := predicate(t, 3)
		q, err := sql.ParsePredicate(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		p, err := BindPredicate(q, testSchema(), Options{Now: testNow})
		if err != nil {
			if strings.Contains(err.Error(), "operator") {
				t.Skip(err)
			}
			t.Fatalf("%s: %v", text, err)
		}
		if p.Where == nil || !p.EarlyStop {
			return
		}
		stopped++
		whole, broken := evaluate(t, p.Where, full), evaluate(t, p.Where, damaged)
		for i := range whole {
			if whole[i] == 0 && broken[i] == 1 {
				t.Fatalf("%s: row %d is given up, and true when it is damaged", text, i)
			}
		}
	})
	if stopped == 0 {
		t.Error("no condition may stop early")
	}
}

// TestDocs binds the queries of the documentation.
func TestDocs(t *testing.T) {
	s := testSchema()
	for _, name := range []string{"client_ip", "path", "method"} {
		s.Fields = append(s.Fields, schema.Field{Name: name, Type: typeString, Nullable: true})
	}
	s.Fields = append(s.Fields, schema.Field{Name: "bytes", Type: typeInt64, Nullable: true}, schema.Field{Name: "duration", Type: typeFloat64, Nullable: true})
	raw := readFile(t, "../../docs/columnar/sql.md")
	blocks := strings.Split(raw, "```sql\n")[1:]
	for _, b := range blocks {
		text, _, _ := strings.Cut(b, "```")
		q, err := sql.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Bind(q, s, Options{Now: testNow}); err != nil {
			t.Error(err)
		}
	}
	if len(blocks) < 2 {
		t.Errorf("%d queries in the documentation", len(blocks))
	}
	for name := range functions {
		if !strings.Contains(raw, "`"+name) {
			t.Errorf("the documentation has no %s()", name)
		}
	}
	for name := range aggregates {
		if !strings.Contains(raw, "`"+name+"(") {
			t.Errorf("the documentation has no aggregate %s()", name)
		}
	}
	for _, limit := range []int{MaxNodes, MaxOutput, MaxKeys, MaxAggregates, MaxProgram, sql.MaxDepth, sql.MaxList} {
		text := fmt.Sprint(limit)
		if limit >= 1000 {
			text = fmt.Sprintf("%d,%03d", limit/1000, limit%1000)
		}
		if !strings.Contains(raw, text) {
			t.Errorf("the documentation has no limit of %s", text)
		}
	}
}
