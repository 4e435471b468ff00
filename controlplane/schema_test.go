package controlplane

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/columnar/schema"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// setSchema gives a category a schema.
func setSchema(t *testing.T, c *ControlPlane, revision uint64, text string, force bool) (*scribev1.Category, error) {
	t.Helper()
	resp, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Revision: revision, Schema: &text, ForceSchema: force})
	return resp.GetCategory(), err
}

// versionOf is the newest version of a category's schema, 0 for none.
func versionOf(t *testing.T, c *scribev1.Category) uint32 {
	t.Helper()
	h, err := schema.ParseHistory(c.GetSchema())
	if err != nil {
		t.Fatal(err)
	}
	return h.Current().Version
}

// TestSchemaVersions: a category keeps all versions, each compatible with the one before unless it was forced; the same one is no new one.
func TestSchemaVersions(t *testing.T) {
	store := newStore(t)
	c := start(t, store, nil)
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a", Schema: "fields: [{name: n, type: int32}]"}})
	if err != nil || versionOf(t, resp.GetCategory()) != 1 {
		t.Fatalf("%v, %v", resp, err)
	}
	first := resp.GetCategory()
	cat, err := setSchema(t, c, 0, `{"fields":[{"name":"n","type":"int32","nullable":true}]}`, false)
	if err != nil || cat.GetRevision() != first.GetRevision() || cat.GetSchema() != first.GetSchema() || cat.GetUpdatedAt() != first.GetUpdatedAt() {
		t.Errorf("the same schema in other words: %v, %v", cat, err)
	}
	if cat, err = setSchema(t, c, first.GetRevision(), "fields: [{name: n, type: int64}, {name: m, type: string}]", false); err != nil || versionOf(t, cat) != 2 {
		t.Errorf("a compatible one: %v, %v", cat, err)
	}
	_, err = setSchema(t, c, first.GetRevision(), "fields: [{name: n, type: int64}]", false)
	wantReason(t, err, scribev1.Reason_REASON_CONFLICT)

	_, err = setSchema(t, c, 0, "fields: [{name: n, type: string}]", false)
	wantReason(t, err, scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA, "version 2", `field "n": the type changes`, `field "m": is removed`)
	if p := rpc.Info(err).GetSchemaProblems(); len(p) != 2 || p[0].GetWhere() != "n" || !strings.Contains(p[0].GetMessage(), "int64 to string") || p[1].GetHint() == "" {
		t.Errorf("problems: %v", p)
	}
	if cat, err = setSchema(t, c, 0, "fields: [{name: n, type: string}]", true); err != nil || versionOf(t, cat) != 3 {
		t.Errorf("by force: %v, %v", cat, err)
	}
	for _, text := range []string{"", "infer"} {
		_, err = setSchema(t, c, 0, text, false)
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "schema: ", "only removed by force")
	}
	_, err = setSchema(t, c, 0, first.GetSchema(), false)
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "give one schema")

	// All of it is there for who reads the category, and in the store.
	c = start(t, store, nil)
	got, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
	if err != nil {
		t.Fatal(err)
	}
	h, err := schema.ParseHistory(got.GetCategory().GetSchema())
	if err != nil || len(h.Versions()) != 3 || h.Version(2).Fields[1].Name != "m" {
		t.Errorf("%s: %v", got.GetCategory().GetSchema(), err)
	}
	if cat, err = setSchema(t, c, 0, "infer", true); err != nil || versionOf(t, cat) != 0 {
		t.Errorf("removed by force: %v, %v", cat, err)
	}
	if cat, err = setSchema(t, c, 0, "fields: [{name: x, type: bool}]", false); err != nil || versionOf(t, cat) != 4 {
		t.Errorf("a number was used again: %v, %v", cat, err)
	}
	copied, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "b", Schema: got.GetCategory().GetSchema()}})
	if err != nil || copied.GetCategory().GetSchema() != got.GetCategory().GetSchema() {
		t.Errorf("a category with another one's versions: %v, %v", copied, err)
	}
}

// TestSchemaProblems: what is wrong with a schema is attached to the error, each with its place.
func TestSchemaProblems(t *testing.T) {
	c := start(t, newStore(t), nil)
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
		Name: "a", Schema: "format: jsn\nfields:\n  - {name: n, type: integer}\n  - {name: m, typ: int64, type: string}\n",
	}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "create category \"a\": schema: ", "line 3", "line 4", `did you mean "int64"?`)
	p := rpc.Info(err).GetSchemaProblems()
	if len(p) != 2 || p[0].GetLine() != 3 || p[0].GetWhere() != `field "n"` || p[0].GetHint() != `did you mean "int64"?` {
		t.Errorf("problems: %v", p)
	}
	create(t, c, "a")
	_, err = setSchema(t, c, 0, "fields: []", false)
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "update category \"a\": schema: fields: the schema has no fields")
}

// TestSchemaRace: of two that infer a schema from the same revision one wins, and the other learns of it.
func TestSchemaRace(t *testing.T) {
	c := start(t, newStore(t), nil)
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a", Schema: "infer"}})
	if err != nil || resp.GetCategory().GetSchema() != "infer" {
		t.Fatalf("%v, %v", resp, err)
	}
	revision := resp.GetCategory().GetRevision()
	if cat, err := setSchema(t, c, revision, "fields: [{name: n, type: int64}]", false); err != nil || versionOf(t, cat) != 1 {
		t.Fatalf("%v, %v", cat, err)
	}
	_, err = setSchema(t, c, revision, "fields: [{name: n, type: float64}]", false)
	wantReason(t, err, scribev1.Reason_REASON_CONFLICT)
}

// TestNewSchema: whatever a category keeps and is given, what it keeps then can be read, and versions only go up.
func TestNewSchema(t *testing.T) {
	texts := []string{
		"", "infer", "fields: [{name: n, type: int32}]", "fields: [{name: n, type: int64}]", "fields: [{name: n, type: string}]", "bad", "columns: []",
		"fields: [{name: n, type: int64}, {name: m, type: bool, nullable: false}]", `{"next":7,"versions":[]}`, `{"next":1,"versions":[{}]}`,
	}
	rapid.Check(t, func(t *rapid.T) {
		kept, newest := rapid.SampledFrom([]string{"", "infer", "opaque text"}).Draw(t, "kept"), uint32(0)
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			text, force := rapid.SampledFrom(texts).Draw(t, "text"), rapid.Bool().Draw(t, "force")
			after, err := newSchema(kept, text, force)
			if err != nil {
				continue
			}
			if kept = after; kept == "opaque text" {
				t.Fatalf("%q was taken for the same", text)
			}
			h, err := schema.ParseHistory(kept)
			if err != nil {
				t.Fatalf("%q then keeps %q: %v", text, kept, err)
			}
			if v := h.Current().Version; v != 0 && v < newest {
				t.Fatalf("version %d after %d", v, newest)
			}
			newest = max(newest, h.Current().Version)
		}
	})
}
