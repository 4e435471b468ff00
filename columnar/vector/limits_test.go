package vector_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// TestWhatGrowsIsAnError makes values of which no memory has room.
func TestWhatGrowsIsAnError(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{{Name: "s", Type: textT.Arrow()}, {Name: "e", Type: dictT.Arrow()}}, nil)
	row := `{"s": "` + strings.Repeat("a", 1000) + `", "e": "` + strings.Repeat("b", 1000) + `"}`
	batch := fromJSON(t, in, "["+strings.Repeat(row+",", 99)+row+"]")
	s, e := col("s", textT), col("e", dictT)
	long := lit(strings.Repeat("x", 10000), textT)
	twice := func(e expr.Expr, n int) expr.Expr {
		for range n {
			e = call(expr.Concat, textT, e, e)
		}
		return e
	}
	for name, grown := range map[string]expr.Expr{
		"replace":            call(expr.Replace, textT, s, lit("a", textT), long),
		"concat":             twice(s, 6),
		"by code":            call(expr.Replace, textT, e, lit("b", textT), lit(strings.Repeat("x", 100000), textT)),
		"in a case":          call(expr.Case, textT, compareTo(expr.Eq, s, "b"), s, twice(s, 6)),
		"a length":           call(expr.Length, int32T, twice(s, 6)),
		"beside a condition": call(expr.And, boolT, compareTo(expr.Ge, s, "a"), compareTo(expr.Eq, twice(s, 6), "x")),
	} {
		p, err := vector.Compile(grown, in)
		if err != nil {
			t.Fatal(err)
		}
		p.SetLimit(2 << 20)
		if _, err := p.Eval(batch, nil); !errors.Is(err, vector.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Nothing of that is left.
	p, err := vector.Compile(call(expr.Upper, textT, s), in)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := p.Eval(batch, nil); err != nil || out.(*array.String).Value(99) != strings.Repeat("A", 1000) {
		t.Error(err)
	}
}

// TestPieces: what takes too much memory at once is evaluated in pieces, and what a row alone takes too much for, or all together, is an error.
func TestPieces(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{{Name: "s", Type: textT.Arrow()}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, in)
	for i := range 1000 {
		b.Field(0).(*array.StringBuilder).Append(strings.Repeat("a", i))
	}
	batch := b.NewRecordBatch()
	s := col("s", textT)
	grown := call(expr.Replace, textT, s, lit("a", textT), lit(strings.Repeat("b", 100), textT)) // up to 100 KB, 50 MB in all
	long, err := vector.CompileFilter(call(expr.Gt, boolT, call(expr.Length, int32T, grown), lit(int32(50_000), int32T)), in)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name            string
		piece, row, all int
		fits            bool
	}{
		{"at once", 1 << 30, 1 << 30, 1 << 30, true},
		{"in pieces", 1 << 20, 1 << 20, 1 << 30, true},
		{"rows alone", 50_000, 1 << 20, 1 << 30, true},
		{"a row too large", 50_000, 50_000, 1 << 30, false},
		{"all too large", 1 << 20, 1 << 20, 10 << 20, false},
	} {
		long.SetPieces(c.piece, c.row, c.all)
		sel, err := long.Select(batch, nil)
		switch {
		case !c.fits:
			if !errors.Is(err, vector.ErrTooLarge) {
				t.Errorf("%s: %v", c.name, err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case sel.Count() != 499 || sel.Has(500) || !sel.Has(501):
			t.Errorf("%s: %d rows", c.name, sel.Count())
		}
	}
}

func TestTextsOfNestedValues(t *testing.T) {
	in := arrow.NewSchema([]arrow.Field{
		{Name: "ls", Type: textsT.Arrow(), Nullable: true}, {Name: "p", Type: pairT.Arrow(), Nullable: true}, {Name: "m", Type: mapT.Arrow(), Nullable: true},
	}, nil)
	batch := fromJSON(t, in, `[
		{"ls": ["a", "", null, "null", "a b", "q\"x\\y", "{}"], "p": {"n": 1, "s": "a b", "l": [1, null]}, "m": [{"key": "a", "value": "x"}, {"key": "b\"", "value": null}]},
		{"ls": [], "p": {"n": null, "s": "", "l": null}, "m": []},
		{"ls": null, "p": null, "m": null}, {"ls": ["x"], "p": {"n": 2, "s": "\"", "l": []}, "m": [{"key": "", "value": ""}]}]`)
	for name, want := range map[string][]string{
		"ls": {`{a,"",NULL,"null","a b","q\"x\\y","{}"}`, `{}`, "(null)", "{x}"},
		"p":  {`(1,"a b","{1,NULL}")`, `(,"",)`, "(null)", `(2,"""",{})`},
		"m":  {`"a"=>"x", "b\""=>NULL`, ``, "(null)", `""=>""`},
	} {
		ty := map[string]schema.Type{"ls": textsT, "p": pairT, "m": mapT}[name]
		p, err := vector.Compile(call(expr.Cast, textT, col(name, ty)), in)
		if err != nil {
			t.Fatal(err)
		}
		for from := range int64(4) {
			out, err := p.Eval(batch.NewSlice(from, 4), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i := range out.Len() {
				if got := out.ValueStr(i); got != want[int(from)+i] {
					t.Errorf("%s: %s, want %s", name, got, want[int(from)+i])
				}
			}
		}
	}
}

// TestContainsAgreesWithBytes searches texts in which parts of what is looked for are common.
func TestContainsAgreesWithBytes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		what := rapid.StringMatching(`[ab=]{1,30}`).Draw(t, "what")
		rows := rapid.SliceOfN(rapid.StringMatching(`[ab=cd]{0,40}`), 1, 200).Draw(t, "rows")
		for i := range rows {
			if i%3 > 0 {
				rows[i] = what[:len(what)-i%2] + rows[i] // many begin with it, or nearly
			}
		}
		b := array.NewStringBuilder(memory.DefaultAllocator)
		b.AppendValues(rows, nil)
		in := arrow.NewSchema([]arrow.Field{{Name: "s", Type: textT.Arrow()}}, nil)
		batch := array.NewRecordBatch(in, []arrow.Array{b.NewArray()}, int64(len(rows)))
		for pattern, want := range map[string]func(s, what []byte) bool{"%" + what + "%": bytes.Contains, what + "%": bytes.HasPrefix, "%" + what: bytes.HasSuffix} {
			f, err := vector.CompileFilter(like("s", pattern), in)
			if err != nil {
				t.Fatal(err)
			}
			s, err := f.Select(batch, nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, row := range rows {
				if s.Has(i) != want([]byte(row), []byte(what)) {
					t.Fatalf("%q LIKE %q is %v", row, pattern, s.Has(i))
				}
			}
		}
	})
}

// TestProgramsAreShared evaluates one program in many goroutines, as the race detector watches.
func TestProgramsAreShared(t *testing.T) {
	batch := accessLog()
	f, err := vector.CompileFilter(call(expr.And, boolT, like("agent", "%Googlebot%"),
		call(expr.Match, boolT, col("path", textT), call(expr.Concat, textT, lit("^/", textT), lit("api", textT)))), batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	want, err := f.Select(batch, nil)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5 {
				if s, err := f.Select(batch, nil); err != nil || s.Count() != want.Count() || s.Count() == 0 {
					t.Errorf("%v: %d rows, want %d", err, s.Count(), want.Count())
				}
			}
		})
	}
	wg.Wait()
}

func TestLimitOfASelection(t *testing.T) {
	batch := accessLog()
	f, err := vector.CompileFilter(nil, batch.Schema())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{-1, 0, 1, 65, benchRows, benchRows + 1} {
		s, err := f.Select(batch, nil)
		if err != nil {
			t.Fatal(err)
		}
		s.Limit(n)
		want := min(max(n, 0), benchRows)
		if s.Count() != want || int(s.Take(batch).NumRows()) != want || want > 0 && !s.Has(want-1) || want < benchRows && s.Has(want) || s.Rows() != benchRows {
			t.Errorf("limit %d: %d rows", n, s.Count())
		}
	}
}
