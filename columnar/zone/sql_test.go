package zone_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
)

// conditionText draws a condition as people write it. Not every one can be bound.
func conditionText(t *rapid.T, depth int) string {
	pick := func(list ...string) string { return rapid.SampledFrom(list).Draw(t, "word") }
	column := func() string { return pick("i32", "i64", "u64", "f64", "dec", "s", "d", "bin", "date", "ts") }
	operand := func() string {
		switch rapid.IntRange(0, 6).Draw(t, "operand") {
		case 0:
			return fmt.Sprintf("CAST(%s AS %s)", column(),
				pick("int", "bigint", "double precision", "decimal(4,2)", "decimal(3,0)", "decimal(38,10)", "text", "date", "timestamp", "boolean"))
		case 1:
			return fmt.Sprintf("date_trunc('%s', %s)", pick("millisecond", "day", "week", "year", "decade", "century"), pick("ts", "date"))
		case 2:
			return "coalesce(" + column() + ", NULL)"
		}
		return column()
	}
	constant := func() string {
		return pick("0", "1", "-1", "2.5", "1e0", "-0.0", "-3", "2147483648", "9223372036854775807", "18446744073709551615", "'NaN'::double precision",
			"''", "'0'", "'a'", "NULL", "date '1970-01-02'", "timestamp '1970-01-02 00:00:00'", "now()")
	}
	operator := func() string {
		return pick("=", "<>", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
	}
	shapes := 6
	if depth > 0 {
		shapes = 9
	}
	switch rapid.IntRange(0, shapes).Draw(t, "shape") {
	case 0, 1:
		return operand() + " " + operator() + " " + constant()
	case 2:
		return operand() + " " + operator() + " " + operand()
	case 3:
		return operand() + pick(" IN (", " NOT IN (") + constant() + ", " + constant() + ")"
	case 4:
		return operand() + pick(" IS NULL", " IS NOT NULL")
	case 5:
		return pick("s", "d") + pick(" LIKE ", " NOT LIKE ", " ILIKE ") + pick("'a%'", "'%'", "'_'", "'a'", "'%a%'", "'a%b'", `'\%%'`, "''", "'a_%'")
	case 6:
		return operand() + " BETWEEN " + constant() + " AND " + constant()
	case 7:
		return "NOT (" + conditionText(t, depth-1) + ")"
	case 8:
		return "(" + conditionText(t, depth-1) + ") IS " + pick("TRUE", "NOT TRUE", "FALSE", "NOT FALSE", "NULL", "NOT NULL")
	default:
		return "(" + conditionText(t, depth-1) + ")" + pick(" AND ", " OR ") + "(" + conditionText(t, depth-1) + ")"
	}
}

// batchOf is the rows of a payload as a batch.
func batchOf(s *schema.Schema, p *payload) arrow.RecordBatch {
	var fields []arrow.Field
	var arrays []arrow.Array
	for i := range s.Fields {
		values, ok := p.rows[s.Fields[i].Name]
		if !ok {
			continue
		}
		build := array.NewBuilder(memory.DefaultAllocator, s.Fields[i].Type.Arrow())
		for _, v := range values {
			appendValue(build, v)
		}
		fields = append(fields, arrow.Field{Name: s.Fields[i].Name, Type: build.Type(), Nullable: true})
		arrays = append(arrays, build.NewArray())
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrays, int64(p.n))
}

// TestPruningAgreesWithQueries binds conditions as queries have them, and has those that prune a payload evaluated over all of its rows.
func TestPruningAgreesWithQueries(t *testing.T) {
	s := testSchema()
	pruned := 0
	rapid.Check(t, func(t *rapid.T) {
		p := drawPayload(t, s)
		for range 20 {
			text := conditionText(t, 2)
			q, err := sql.ParsePredicate(text)
			if err != nil {
				t.Fatal(err)
			}
			bound, err := plan.BindPredicate(q, s, plan.Options{Now: time.Unix(100_000, 0)})
			if err != nil || zone.MayMatch(bound.Where, p.m) {
				continue
			}
			pruned++
			batch := batchOf(s, &p)
			filter, err := vector.CompileFilter(bound.Where, batch.Schema())
			if err != nil {
				t.Fatal(err)
			}
			selection, err := filter.Select(batch, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range p.n {
				if selection.Has(i) {
					t.Fatalf("a row matches, but the map says that none can: %s\n%v", text, batch)
				}
			}
		}
	})
	if pruned == 0 {
		t.Error("nothing was left out")
	}
}
