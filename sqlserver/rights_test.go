package sqlserver

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"scribe/internal/cell/access"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// onlyOne lets everybody query one category. Its word can be taken back.
type onlyOne struct {
	category string
	limits   *restrict.Restriction
	ended    context.CancelCauseFunc
}

var errDenied = rpc.Errorf(scribev1.Reason_REASON_DENIED, "client %q may not do that", "x")

func (o *onlyOne) BeginRead(ctx context.Context, what access.Permission, category string) (context.Context, *restrict.Restriction, context.CancelFunc, error) {
	if what != access.Query || category != o.category {
		return nil, nil, nil, errDenied
	}
	return o.watch(ctx)
}

// watch is the context of who may.
func (o *onlyOne) watch(ctx context.Context) (context.Context, *restrict.Restriction, context.CancelFunc, error) {
	ctx, o.ended = context.WithCancelCause(ctx)
	return ctx, o.limits, func() { o.ended(nil) }, nil
}

func (o *onlyOne) Sees(_ context.Context, c *scribev1.Category) bool {
	return c.GetName() == o.category
}

func (o *onlyOne) AllowAny(context.Context, access.Permission, string) error {
	if o.category == "" {
		return rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "nothing is proved")
	}
	return nil
}

func (*onlyOne) SeenAs(_ context.Context, c *scribev1.Category) *scribev1.Category { return c }

// twoCategories are the categories of a cell.
type twoCategories struct{}

func (twoCategories) All() iter.Seq[*scribev1.Category] {
	return func(yield func(*scribev1.Category) bool) {
		_ = yield(&scribev1.Category{Name: "access"}) && yield(&scribev1.Category{Name: "accession"})
	}
}

// damagedCategory is a cell with a category whose schema can't be read, and one without a schema.
type damagedCategory struct{}

func (damagedCategory) All() iter.Seq[*scribev1.Category] {
	return func(yield func(*scribev1.Category) bool) {
		_ = yield(&scribev1.Category{Name: "damaged", Schema: "x"}) && yield(&scribev1.Category{Name: "whole"})
	}
}

// TestRights: a query needs the right to its category, before anything of the category is looked up; what one may not see is neither a
// table nor a hint.
func TestRights(t *testing.T) {
	s := serve(t, &runner{}, nil)
	rights := &onlyOne{category: "access"}
	s.deps.Rights, s.deps.Categories = rights, twoCategories{}
	for text, want := range map[string]int{"SELECT * FROM other": http.StatusForbidden, "SELECT * FROM accession": http.StatusForbidden, "SELEC": http.StatusBadRequest} {
		res, err := s.http.Client().Get(s.http.URL + Path + "?" + url.Values{"sql": {text}}.Encode())
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%q: %s, want %d", text, res.Status, want)
		}
	}
	if tables := s.listTables(t.Context()); len(tables) != 1 || tables[0].name != "access" {
		t.Errorf("%d tables", len(tables))
	}
	if err := s.unknownCategory(t.Context(), "accessio"); strings.Contains(errorOf(err).Hint, "accession") || !strings.Contains(errorOf(err).Hint, "access") {
		t.Errorf("hint %q", errorOf(err).Hint)
	}
	if err := s.allowFlight(t.Context()); err != nil {
		t.Error(err)
	}
	q := &runningQuery{g: s.Server, ctx: t.Context(), req: &Request{SQL: "SELECT * FROM access"}}
	rights.limits = restrict.Nothing()
	if err := q.checkRights(); err != nil || q.req.limits != rights.limits {
		t.Fatalf("limited by %v, %v", q.req.limits, err)
	}
	rights.ended(errDenied)
	<-q.ctx.Done()
	if e := errorOf(q.endReason()); e.Kind != KindDenied {
		t.Errorf("a query whose right has ended: %v", e)
	}
	q.unwatch()
	// Other limits end it as well: whoever asks again gets those.
	q = &runningQuery{g: s.Server, ctx: t.Context(), req: &Request{SQL: "SELECT * FROM access"}}
	if err := q.checkRights(); err != nil {
		t.Fatal(err)
	}
	rights.ended(rpc.Errorf(scribev1.Reason_REASON_TICKET_EXPIRED, "other limits"))
	<-q.ctx.Done()
	if e := errorOf(q.endReason()); e.Kind != KindUnavailable || !strings.Contains(e.Message, "ask again") {
		t.Errorf("a query whose limits have changed: %v", e)
	}
	q.unwatch()
	rights.category = ""
	if err := s.allowFlight(t.Context()); status.Code(err) != codes.Unauthenticated {
		t.Errorf("a call of Flight: %v", err)
	}
}
