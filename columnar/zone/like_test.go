package zone_test

import (
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/plan"
	"scribe/columnar/sql"
	"scribe/columnar/zone"
)

func TestNotLikeLeavesOutOnlyWhatMustMatch(t *testing.T) {
	s := testSchema()
	for _, c := range []struct {
		text string
		want bool
	}{
		{"s NOT LIKE '%foo%'", true},
		{"s NOT LIKE '_'", true},
		{"s NOT LIKE 'ab%z'", true},
		{"s NOT LIKE 'ab_'", true},
		{"NOT (s LIKE '%foo%' OR s LIKE 'b%')", true},
		{"(s LIKE 'a_') IS FALSE", true},
		{"s NOT LIKE '%%foo'", true},
		{"s NOT LIKE 'ab%'", false},
		{"s NOT LIKE '%'", false},
		{"s NOT LIKE 'abc'", false},
		{"s LIKE 'b%z'", false},
	} {
		q, err := sql.ParsePredicate(c.text)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.BindPredicate(q, s, plan.Options{Now: time.Unix(1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.AppendValues([]string{"abc", "abc"}, nil)
		zb := zone.NewBuilder(zone.Define(s))
		zb.AddRows(2)
		values := b.NewArray()
		zb.AddArray("s", values)
		values.Release()
		if got := zone.MayMatch(p.Where, zb.Map()); got != c.want {
			t.Errorf("%s: may match is %v, want %v", c.text, got, c.want)
		}
	}
}
