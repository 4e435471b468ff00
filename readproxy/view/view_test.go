package view

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/internal/base/config"
)

var boolean = schema.Type{Kind: schema.Bool}

func flag(name string) expr.Expr { return &expr.Column{Name: name, T: boolean} }

func and(args ...expr.Expr) expr.Expr {
	if len(args) == 1 {
		return args[0]
	}
	return &expr.Call{Op: expr.And, Args: args, T: boolean}
}

// evaluate evaluates flags under AND and OR.
func evaluate(e expr.Expr, row map[string]bool) bool {
	switch e := e.(type) {
	case nil:
		return true
	case *expr.Column:
		return row[e.Name]
	case *expr.Call:
		for _, a := range e.Args {
			if evaluate(a, row) != (e.Op == expr.And) {
				return e.Op != expr.And
			}
		}
		return e.Op == expr.And
	}
	panic("?")
}

var names = []string{"a", "b", "c", "d"}

func drawNeed(t *rapid.T) (*Need, expr.Expr) {
	var terms []expr.Expr
	for _, n := range names {
		if rapid.IntRange(0, 2).Draw(t, "term") == 0 {
			terms = append(terms, flag(n))
		}
	}
	var where expr.Expr
	if len(terms) > 0 {
		where = and(terms...)
	}
	columns := rapid.SliceOfN(rapid.SampledFrom([]string{"x", "y", "z", "v", "w"}), 1, 4).Draw(t, "columns")
	return NewNeed(columns, where, rapid.Bool().Draw(t, "early")), where
}

// TestWhatCoversHasEveryRow merges needs at random, and looks at all rows that there can be.
func TestWhatCoversHasEveryRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		need, where := drawNeed(t)
		s := ShapeOf(need)
		var wheres []expr.Expr
		all := []*Need{need}
		wheres = append(wheres, where)
		for range rapid.IntRange(0, 4).Draw(t, "more") {
			n, w := drawNeed(t)
			s = mergeShapes(s, ShapeOf(n))
			all, wheres = append(all, n), append(wheres, w)
		}
		for i, n := range all {
			if !s.Covers(n) {
				t.Fatalf("what need %d was merged into does not cover it", i)
			}
		}
		other, otherWhere := drawNeed(t)
		covered := s.Covers(other)
		for bits := range 1 << len(names) {
			row := map[string]bool{}
			for i, n := range names {
				row[n] = bits>>i&1 == 1
			}
			in := evaluate(s.Where(), row)
			want := false
			for _, w := range wheres {
				want = want || evaluate(w, row)
			}
			if in != want {
				t.Fatalf("row %v is in the shape: %v, want %v", row, in, want)
			}
			if covered && evaluate(otherWhere, row) && !in {
				t.Fatalf("row %v is not in a shape that covers its need", row)
			}
			if covered && s.Exact(other) && evaluate(otherWhere, row) != in {
				t.Fatalf("row %v: an exact shape says %v", row, in)
			}
		}
		if covered {
			for _, c := range other.Columns {
				if !slices.Contains(s.Columns, c) {
					t.Fatalf("column %s is missing", c)
				}
			}
		}
	})
}

// Queries of many terms can't make a view's predicate, and the work to find it, grow without end.
func TestLongPredicatesBecomeAllRows(t *testing.T) {
	need := func(query, terms int) *Need {
		all := make([]expr.Expr, terms)
		for i := range all {
			all[i] = flag(fmt.Sprintf("query%02d_%040d", query%(i+1), i)) // the first ones are those of all
		}
		return NewNeed([]string{"_index"}, and(all...), true)
	}
	all := []*Need{need(0, 100)}
	s := ShapeOf(all[0])
	for query := 1; len(s.any[0].terms) > 0; query++ {
		if query > maxPredicate/1000 {
			t.Fatalf("%d alternatives", len(s.any))
		}
		n := need(query, 100)
		s = mergeShapes(s, ShapeOf(n))
		all = append(all, n)
	}
	if len(all) < 3 || s.Where() != nil || s.EarlyStop {
		t.Errorf("%d needs were merged into %+v", len(all), s)
	}
	for i, n := range all {
		if !s.Covers(n) || s.Exact(n) {
			t.Errorf("need %d: covered %v, exact %v", i, s.Covers(n), s.Exact(n))
		}
	}
}

func table(t *testing.T, cfg Config) *Table[int] {
	t.Helper()
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	return NewTable(cfg, func(Key, *Shape) int { return 0 })
}

// TestEveryQueryIsServed has queries come and go.
func TestEveryQueryIsServed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		cfg := config.Defaults[Config]()
		cfg.Views, cfg.Queries = rapid.IntRange(1, 4).Draw(rt, "views"), rapid.IntRange(1, 6).Draw(rt, "queries")
		tab := table(t, cfg)
		now := time.Unix(1_800_000_000, 0)
		needs := make([]*Need, 10)
		for i := range needs {
			needs[i], _ = drawNeed(rt)
		}
		for range 60 {
			now = now.Add(time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "ms")) * time.Millisecond)
			i := rapid.IntRange(0, len(needs)-1).Draw(rt, "query")
			k := Key{Category: 7, Version: uint32(rapid.IntRange(1, 2).Draw(rt, "version"))}
			v, others := tab.ChooseView(k, "web", fmt.Sprint(i), needs[i], rapid.Uint64Range(0, 5).Draw(rt, "payload"), now)
			if v == nil || !v.Shape.Covers(needs[i]) || v.Key != k {
				rt.Fatalf("query %d is served by %+v", i, v)
			}
			for _, o := range others {
				if o == v || !o.Shape.Covers(needs[i]) {
					rt.Fatalf("query %d may be served by %+v", i, o)
				}
			}
			v.Stats.RowsIn.Add(1000)
			v.Stats.RowsOut.Add(uint64(rapid.IntRange(0, 1000).Draw(rt, "kept")))
			if rapid.IntRange(0, 9).Draw(rt, "prune") == 0 {
				tab.Prune(now)
			}
			views, queries := tab.State()
			counts := map[Key]int{}
			for _, s := range views {
				counts[s.Key]++
			}
			for k, n := range counts {
				if n > cfg.Views {
					rt.Fatalf("%d views of %v, the limit is %d", n, k, cfg.Views)
				}
			}
			if len(queries) > 2*cfg.Queries {
				rt.Fatalf("%d queries", len(queries))
			}
		}
		tab.Prune(now.Add(time.Hour))
		if views, queries := tab.State(); len(views)+len(queries) > 0 {
			rt.Fatalf("an hour later there are %d views, %d queries", len(views), len(queries))
		}
	})
}

// play has queries ask for the same payloads, n times, and returns the views in the end.
func play(t *testing.T, needs []*Need, kept func(s *Shape) float64, payload func(query, turn int) uint64) []ShownView[int] {
	tab := table(t, config.Defaults[Config]())
	now := time.Unix(1_800_000_000, 0)
	for turn := range 100 {
		for i, n := range needs {
			v, _ := tab.ChooseView(Key{Category: 1, Version: 1}, "web", fmt.Sprint(i), n, payload(i, turn), now)
			v.Stats.RowsIn.Add(10_000)
			v.Stats.RowsOut.Add(uint64(10_000 * kept(v.Shape)))
		}
		now = now.Add(200 * time.Millisecond)
	}
	views, _ := tab.State()
	return views
}

func together(_, turn int) uint64 { return uint64(turn) }

func TestRareRowsShareAView(t *testing.T) {
	var needs []*Need
	for i := range 20 {
		needs = append(needs, NewNeed([]string{"_index", "path", "status"}, flag(fmt.Sprint("f", i)), true))
	}
	views := play(t, needs, func(s *Shape) float64 { return 0.01 * float64(len(s.any)) }, together)
	if len(views) != 1 || views[0].Queries != 20 || len(views[0].Shape.any) != 20 {
		t.Errorf("%d views, the first for %d queries: %s", len(views), views[0].Queries, views[0].Reason)
	}
}

func TestAWideQueryDoesNotBurdenManyNarrowOnes(t *testing.T) {
	wide := make([]string, 60)
	for i := range wide {
		wide[i] = fmt.Sprint("column", i)
	}
	needs := []*Need{NewNeed(wide, nil, false)}
	for range 50 {
		needs = append(needs, NewNeed([]string{"_index", "path"}, flag("rare"), true))
	}
	views := play(t, needs, func(s *Shape) float64 {
		if s.Where() == nil {
			return 1
		}
		return 0.01
	}, together)
	if len(views) != 2 {
		t.Errorf("%d views: all rows of %d columns go to those who want few", len(views), len(views[0].Shape.Columns))
	}
}

func TestQueriesOfOtherPayloadsShareNothing(t *testing.T) {
	needs := []*Need{NewNeed([]string{"a", "b", "c"}, flag("f"), true), NewNeed([]string{"x", "y", "z"}, flag("g"), true)}
	apart := func(query, turn int) uint64 { return uint64(query*1000 + turn) }
	half := func(s *Shape) float64 { return min(1, 0.5*float64(len(s.any))) }
	if views := play(t, needs, half, apart); len(views) != 2 {
		t.Errorf("%d views of queries that read different payloads", len(views))
	}
	rare := func(s *Shape) float64 { return 0.01 * float64(len(s.any)) }
	if views := play(t, needs, rare, together); len(views) != 1 {
		t.Errorf("%d views of queries that read the same payloads", len(views))
	}
}

func TestAQueryThatComesIsServedByWhatThereIs(t *testing.T) {
	tab := table(t, config.Defaults[Config]())
	now := time.Unix(1_800_000_000, 0)
	k := Key{Category: 1, Version: 1}
	v, _ := tab.ChooseView(k, "web", "first", NewNeed([]string{"a", "b"}, flag("f"), true), 1, now)
	v.Stats.RowsIn.Add(1000)
	v.Stats.RowsOut.Add(10)
	later := now.Add(5 * time.Second)
	tab.ChooseView(k, "web", "first", NewNeed([]string{"a", "b"}, flag("f"), true), 2, later)
	narrow := NewNeed([]string{"a"}, and(flag("f"), flag("g")), true)
	got, _ := tab.ChooseView(k, "web", "second", narrow, 2, later)
	if got != v || got.Shape.Exact(narrow) {
		t.Errorf("view %d, want %d", got.ID, v.ID)
	}
	wide, others := tab.ChooseView(k, "web", "third", NewNeed([]string{"a", "z"}, nil, false), 2, later)
	if wide == v || len(others) != 0 {
		t.Errorf("view %d for what it does not cover", wide.ID)
	}
	again, others := tab.ChooseView(k, "web", "fourth", narrow, 2, later.Add(time.Minute))
	if again == nil || !again.Shape.Covers(narrow) {
		t.Errorf("%+v %v", again, others)
	}
	if got := tab.Inputs(k); !slices.Equal(got, []string{"f", "g"}) {
		t.Errorf("predicates name %v", got)
	}
}

func TestFiguresOutOfRange(t *testing.T) {
	bad := Config{}
	if err := bad.Validate(); err == nil {
		t.Error("a table without views")
	}
}
