package vector

import (
	"testing"

	"scribe/columnar/expr"
)

// TestEveryOperatorHasAnEvaluator: of its own, or one that its description stands for.
func TestEveryOperatorHasAnEvaluator(t *testing.T) {
	for op := range expr.Op(expr.Operators) {
		info := op.Info()
		described := info.Decides != 0 || info.Orders != 0 || info.Tests != 0
		if (evaluators[op] != nil) == described && op != 0 {
			t.Errorf("%s: an evaluator of its own %v, of its description %v", info.Name, evaluators[op] != nil, described)
		}
	}
}
