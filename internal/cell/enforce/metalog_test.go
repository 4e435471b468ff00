package enforce

import (
	"context"
	"testing"

	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// boundaries answers where the boundary is.
type boundaries struct{ rpc.MetalogService }

func (boundaries) AdvanceBoundary(_ context.Context, req *scribev1.AdvanceBoundaryRequest) (*scribev1.AdvanceBoundaryResponse, error) {
	return &scribev1.AdvanceBoundaryResponse{Time: max(7, req.GetTime())}, nil
}

// TestBoundary: who looks at a cell is told where the boundary of deletions is, and only members raise it.
func TestBoundary(t *testing.T) {
	of := func(k principal.Kind) context.Context {
		return principal.NewContext(t.Context(), principal.Principal{Kind: k, Name: "n"})
	}
	closed := []string{"root all:*"}
	for name, c := range map[string]struct {
		grants []string
		ctx    context.Context
		time   int64
		want   scribev1.Reason
	}{
		"an operator asks":                   {closed, of(principal.Operator), 0, 0},
		"an operator raises":                 {closed, of(principal.Operator), 8, denied},
		"a time before all":                  {closed, of(principal.Operator), -1, denied},
		"an operator raises in an open cell": {nil, of(principal.Operator), 8, denied},
		"a client raises in an open cell":    {nil, of(principal.Client), 8, denied},
		"nobody raises in an open cell":      {nil, context.Background(), 8, 0},
		"nobody raises in a closed cell":     {closed, context.Background(), 8, denied},
		"a member raises":                    {closed, of(principal.Member), 8, 0},
	} {
		t.Run(name, func(t *testing.T) {
			e, _ := newEnforcer(t, nil, c.grants...)
			res, err := e.Services(rpc.Services{Metalog: boundaries{}}).Metalog.AdvanceBoundary(c.ctx, &scribev1.AdvanceBoundaryRequest{Time: c.time})
			if wantReason(t, err, c.want); err == nil && res.GetTime() != max(7, c.time) {
				t.Errorf("the boundary is %d", res.GetTime())
			}
		})
	}
}
