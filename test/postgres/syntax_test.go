package postgres

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// inputs are texts that are read as every type.
var inputs = append([]string{
	"0", "-0", "+5", "007", "1.5", ".5", "5.", "1e3", "1E-3", "1e", "--1", "1 2", "0x10", "1_000", "NaN", "+nan", "inf", "+Inf", "infinity", "-infinity", "nano",
	"2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "1e308", "1e309",
	"1e-320", "1e-400", "0e999", "123456789.123456789", "0.00005", "0.00004999", "-0.00005", "9999999999.99994", "9999999999.99995", "1e23", "9007199254740993",
	"t", "T", "tr", "trued", "yes", "Y", "on", "o", "of", "off", "no", "n", "1", " true ", "2", "truE",
	"2024-02-29", "2023-02-29", "2024-2-9", "20240229", "2024-02-29 24:00:00", "2024-02-29 24:00:01", "2024-02-29 23:59:60", "2024-02-29 23:59:61",
	"2024-02-29T12:30:45Z", "2024-02-29T12:30:45.123456789Z", "2024-02-29 12:30:45.9999995", "2024-02-29 12:30:45.1234565", "2024-02-29 12:30:45 UTC",
	"2024-02-29 12:30+05:30", "2024-02-29 12:30:00-0330", "2024-02-29 12:30:00 +14", "2024-02-29 12:30:00+15:59:59", "2024-02-29 12:30:00+16",
	"2024-02-29 12:30:00 BC", "0001-01-01 BC", "0000-01-01", "10000-01-01", "294276-12-31 23:59:59", "294277-01-01", "4714-11-24 BC", "4714-11-23 BC",
	"epoch", "2024-13-01", "2024-00-10", "2024-01-32", "2024-01-01 12:60", "2024-01-01 25:00", "5874897-12-31", "5874898-01-01", "2024-02-29 AD",
	"2024-01-05 1:2:3", "2024-02-29 12:30:45.", "99999-12-31 00:00:00.5",
	"1 day", "1 days", "-1 day", "+1 day", "1day", "1 d", "1.5 days", "1.5 weeks", "1.5 months", "1.5 years", "0.1 months", "1.99 years", "1 day 2 hours",
	"1 hour ago", "1 day -2 hours ago", "1 year 2 mons 3 days 04:05:06.7", "-1 year 2 mons -3 days -04:05:06.7", "04:05", "-04:05", "+04:05:06.1234567", "100:00:00",
	"1 mon 1 day", "1 decade", "2 centuries", "1 millennium", "1 us", "1 ms", "1 microsecond", "1.5 seconds", "1.5 minutes", "0.0000005 seconds", "1 fortnight",
	"P1Y2M3DT4H5M6S", "P1.5D", "PT1.5H", "P1W", "P", "PT", "P-1DT-2H", "1 2", "1 day 5", "1y 2mon", "1 Day", "1 DAYS", "ago", "day", "1 day day",
	"2147483647 days", "2147483648 days", "178956970 years", "178956971 years", "2500000 hours", "1 day 04:05:06 ago", "-1.5 days", "1.5", "-.5", "1e3 days",
	"1 c", "1 m", "1 h", "1 y", "1 w", "1 s", "1 mil", "00:00:60", "00:60", "1:2", "12:34:56.789 1 day", "@ 1 day", "1-2", "1 month 15 days 12:00",
	`\x`, `\xABcd`, `\xa`, `\x a b`, `\xab cd`, `\xzz`, `a\b`, `a\\b`, `\001\377`, `\400`, `\01`, "é",
}, texts...)

// TestInputSyntax reads texts as each type, and writes what was read.
func TestInputSyntax(t *testing.T) {
	s := start(t)
	s.safe()
	b := array.NewStringBuilder(memory.DefaultAllocator)
	var rows []string
	for _, text := range inputs {
		b.Append(text)
		rows = append(rows, "("+quoted(text)+")")
	}
	in := arrow.NewSchema([]arrow.Field{{Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	batch := array.NewRecordBatch(in, []arrow.Array{b.NewArray()}, int64(len(inputs)))
	for kind, name := range pgNames {
		if kind == schema.String {
			continue
		}
		ty := schema.Type{Kind: kind}
		if kind == schema.Decimal {
			ty.Precision, ty.Scale = 14, 4
		}
		p, err := vector.Compile(&expr.Call{Op: expr.Cast, T: ty, Args: []expr.Expr{&expr.Column{Name: "s", T: schema.Type{Kind: schema.String}}}}, in)
		if err != nil {
			t.Fatal(err)
		}
		var st vector.Stats
		ours, err := p.Eval(batch, &st)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := s.query("SELECT to_" + name + "(s) FROM (VALUES " + strings.Join(rows, ",") + ") AS v(s)")
		if err != nil {
			t.Fatal(err)
		}
		for i, text := range inputs {
			if got := textAt(ours, i); got != theirs[i][0] && !excused(kind, text) {
				t.Errorf("%q is read as the %s %q, PostgreSQL has %q", text, name, got, theirs[i][0])
			}
		}
		if st.Errors != int64(ours.NullN()) {
			t.Errorf("%d of %d nulls of %s were counted", st.Errors, ours.NullN(), name)
		}
	}
}

// excused are the differences that docs/columnar/sql.md names.
func excused(k schema.Kind, text string) bool {
	switch k {
	case schema.Float64:
		return text == "0x10"
	case schema.Interval:
		// Punctuation and repeated words are skipped.
		return text == "1 day day" || strings.HasPrefix(text, `\`)
	default:
		return false
	}
}
