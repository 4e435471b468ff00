package plan

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
)

// testSchema has a column of each type.
func testSchema() *schema.Schema {
	field := func(name string, t schema.Type) schema.Field {
		return schema.Field{Name: name, Type: t, Nullable: true}
	}
	text := schema.Type{Kind: schema.String}
	return &schema.Schema{Version: 1, Format: schema.JSON, OnError: schema.OnErrorNull, Fields: []schema.Field{
		field("i", typeInt32), field("l", typeInt64), field("u", typeUint64), field("f", typeFloat64),
		field("d", schema.Type{Kind: schema.Decimal, Precision: 10, Scale: 2}),
		field("s", schema.Type{Kind: schema.String, Dictionary: true}), field("b", typeBool), field("x", typeBinary),
		field("day", typeDate), field("t", typeTimestamp), field("status", typeInt32), field("Path", text),
		field("ls", schema.Type{Kind: schema.List, Elem: &text}),
		field("m", schema.Type{Kind: schema.Map, Elem: &typeInt64}),
		field("st", schema.Type{Kind: schema.Struct, Fields: []schema.Field{
			field("name", text), field("n", schema.Type{Kind: schema.Struct, Fields: []schema.Field{field("deep", typeInt32)}}),
		}}),
	}}
}

var testNow = time.Date(2024, 5, 6, 7, 8, 9, 123456000, time.UTC)

// TestPlans binds the texts of testdata and compares what becomes of them: the canonical text, and of expressions their exact form.
func TestPlans(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var b strings.Builder
			for text := range strings.SplitSeq(d.Input, "\n") {
				switch d.Cmd {
				case "expr":
					text = "SELECT " + text + " FROM c"
				case "where":
					text = "SELECT i FROM c WHERE " + text
				}
				q, err := sql.Parse(text)
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				p, err := Bind(q, testSchema(), Options{Now: testNow})
				switch {
				case err != nil:
					b.WriteString(err.Error() + "\n")
				case d.Cmd == "expr":
					fmt.Fprintf(&b, "%s: %s\n", p.Output[0].Name, expr.Key(p.Output[0].Expr))
				case d.Cmd == "where":
					fmt.Fprintf(&b, "%s; early stop: %t\n", expr.Key(p.Where), p.EarlyStop)
				default:
					b.WriteString(describe(p))
				}
			}
			return b.String()
		})
	})
}

func describe(p *Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\ncategory %s, limit %d, columns", p.Text, p.Category, p.Limit)
	for _, c := range p.Columns {
		b.WriteString(" " + c.Name)
	}
	b.WriteString("\n")
	if p.Offset > 0 || p.Distinct {
		fmt.Fprintf(&b, "offset %d, distinct %t\n", p.Offset, p.Distinct)
	}
	for _, o := range p.Order {
		fmt.Fprintf(&b, "rows in order of %s desc=%t nulls first=%t\n", expr.Key(o.Expr), o.Desc, o.NullsFirst)
	}
	if p.Where != nil {
		fmt.Fprintf(&b, "where %s\npushdown %s\n", expr.Text(p.Where), expr.Key(p.Pushdown()))
	}
	if g := p.Group; g != nil {
		for i, k := range g.Keys {
			fmt.Fprintf(&b, "%s = %s\n", KeyName(i), expr.Key(k))
		}
		for i, a := range g.Aggregates {
			fmt.Fprintf(&b, "%s = %s(%s) %s distinct=%t filter=%s params=%v\n", AggregateName(i), a.Func, expr.Key(a.Arg), &a.T, a.Distinct, expr.Key(a.Filter), a.Params)
		}
		if g.Having != nil {
			fmt.Fprintf(&b, "having %s\n", expr.Key(g.Having))
		}
		for _, o := range g.Order {
			fmt.Fprintf(&b, "order %s desc=%t nulls first=%t\n", expr.Key(o.Expr), o.Desc, o.NullsFirst)
		}
	}
	for _, o := range p.Output {
		fmt.Fprintf(&b, "%s: %s\n", o.Name, expr.Key(o.Expr))
	}
	return b.String()
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
