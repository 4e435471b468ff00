package controlplane

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

func TestListCategories(t *testing.T) {
	c := start(t, newStore(t), nil)
	for _, name := range []string{"b.2", "a", "b.1", "c", "b", "b.3"} {
		create(t, c, name)
	}
	list := func(req *scribev1.ListCategoriesRequest) string {
		resp, err := c.ListCategories(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, cat := range resp.GetCategories() {
			names = append(names, cat.GetName())
		}
		return fmt.Sprintf("%s more=%v", strings.Join(names, " "), resp.GetMore())
	}
	resp, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Schema: new("infer")})
	if err != nil {
		t.Fatal(err)
	}
	for _, req := range []*scribev1.ListCategoriesRequest{{Names: []string{"a"}}, {Limit: 1}} {
		for _, req.WithoutSchemas = range []bool{false, true} {
			want := proto.CloneOf(resp.GetCategory())
			if req.GetWithoutSchemas() {
				want.Schema = ""
			}
			got, err := c.ListCategories(t.Context(), req)
			if err != nil || len(got.GetCategories()) != 1 || !proto.Equal(got.GetCategories()[0], want) || got.GetNamed() != (req.GetNames() != nil) {
				t.Errorf("%v: %v, %v; want %v", req, got, err, want)
			}
		}
	}
	for _, test := range []struct {
		req  *scribev1.ListCategoriesRequest
		want string
	}{
		{&scribev1.ListCategoriesRequest{}, "a b b.1 b.2 b.3 c more=false"},
		{&scribev1.ListCategoriesRequest{Prefix: "b."}, "b.1 b.2 b.3 more=false"},
		{&scribev1.ListCategoriesRequest{Prefix: "b", Limit: 2}, "b b.1 more=true"},
		{&scribev1.ListCategoriesRequest{Prefix: "b", After: "b.1", Limit: 2}, "b.2 b.3 more=false"},
		{&scribev1.ListCategoriesRequest{After: "b.3", Limit: 1_000_000}, "c more=false"},
		{&scribev1.ListCategoriesRequest{Prefix: "x"}, " more=false"},
		{&scribev1.ListCategoriesRequest{Names: []string{"c", "no", "a"}}, "c a more=false"},
		{&scribev1.ListCategoriesRequest{Names: []string{"no"}}, " more=false"},
		{&scribev1.ListCategoriesRequest{Prefix: "b", After: "a"}, "b b.1 b.2 b.3 more=false"},
	} {
		if got := list(test.req); got != test.want {
			t.Errorf("%v: %s, want %s", test.req, got, test.want)
		}
	}
}

// TestListsAreBounded: an answer fits a message, and a damaged category does not keep the others from being listed by their names.
func TestListsAreBounded(t *testing.T) {
	store := newStore(t)
	c := start(t, store, nil)
	large := &scribev1.Category{Name: "large", Schema: "fields: ["}
	for i := range 1000 {
		large.Schema += fmt.Sprintf("{name: %s_%d, type: string}, ", strings.Repeat("long", 50), i)
	}
	large.Schema += "]"
	if _, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: large}); err != nil {
		t.Fatal(err)
	}
	create(t, c, "small")
	req := &scribev1.ListCategoriesRequest{}
	for range maxNames {
		req.Names = append(req.Names, "large")
	}
	_, err := c.ListCategories(t.Context(), req)
	wantReason(t, err, scribev1.Reason_REASON_TOO_LARGE, "leave the schemas out")
	req.WithoutSchemas = true
	if resp, err := c.ListCategories(t.Context(), req); err != nil || len(resp.GetCategories()) != maxNames || proto.Size(resp) > rpc.MaxMessageBytes/2 {
		t.Errorf("%d categories, %v", len(resp.GetCategories()), err)
	}
	if _, err := store.Commit(t.Context(), kv.Put(categoryKey("large"), []byte("damaged"))); err != nil {
		t.Fatal(err)
	}
	resp, err := c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{Names: []string{"large", "small"}})
	if err != nil || len(resp.GetCategories()) != 1 || resp.GetCategories()[0].GetName() != "small" {
		t.Errorf("beside a damaged one: %v, %v", resp, err)
	}
}
