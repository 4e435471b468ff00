package expr_test

import (
	"testing"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
)

// TestOperators: every operator has an entry, and those that follow from another agree with it.
func TestOperators(t *testing.T) {
	for op := range expr.Op(expr.Operators) {
		o := op.Info()
		if (o.Name == "") != (op == 0) {
			t.Errorf("operator %d is named %q", op, o.Name)
		}
		if o.Opposite != 0 {
			other := o.Opposite.Info()
			if other.Opposite != op || o.Orders|other.Orders != 0 && o.Orders+other.Orders != expr.AnyOrder || o.Tests|other.Tests != 0 && o.Tests+other.Tests != expr.AnyTruth {
				t.Errorf("%s is not the opposite of %s", other.Name, o.Name)
			}
		}
		if o.SQL != "" && (o.Result == schema.Invalid || o.Many) {
			t.Errorf("a call of %s() has no type", o.SQL)
		}
	}
	if name := expr.Op(255).String(); name != "" {
		t.Errorf("an operator that does not exist is %q", name)
	}
}

// TestTruths compares operations on sets of truths with those on each of their values.
func TestTruths(t *testing.T) {
	single := []expr.Truths{expr.False, expr.True, expr.Null}
	// SQL's tables: rows and columns are false, true, null.
	and := [3][3]expr.Truths{{expr.False, expr.False, expr.False}, {expr.False, expr.True, expr.Null}, {expr.False, expr.Null, expr.Null}}
	or := [3][3]expr.Truths{{expr.False, expr.True, expr.Null}, {expr.True, expr.True, expr.True}, {expr.Null, expr.True, expr.Null}}
	not := [3]expr.Truths{expr.True, expr.False, expr.Null}
	for a := range expr.AnyTruth + 1 {
		for b := range expr.AnyTruth + 1 {
			var wantAnd, wantOr, wantNot expr.Truths
			for i, x := range single {
				if a&x == 0 {
					continue
				}
				wantNot |= not[i]
				for j, y := range single {
					if b&y != 0 {
						wantAnd |= and[i][j]
						wantOr |= or[i][j]
					}
				}
			}
			if b != 0 && a.Not() != wantNot {
				t.Errorf("NOT %b: %b, want %b", a, a.Not(), wantNot)
			}
			if a == 0 || b == 0 {
				continue
			}
			if got := a.Join(b, expr.False); got != wantAnd {
				t.Errorf("%b AND %b: %b, want %b", a, b, got, wantAnd)
			}
			if got := a.Join(b, expr.True); got != wantOr {
				t.Errorf("%b OR %b: %b, want %b", a, b, got, wantOr)
			}
		}
	}
}
