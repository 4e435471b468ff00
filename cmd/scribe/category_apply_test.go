package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/columnar/schema"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// namedCategories is a control plane that keeps categories by name, and notes what it is told.
type namedCategories struct {
	rpc.ControlService
	all     map[string]*scribev1.Category
	created []*scribev1.Category
	updated []*scribev1.UpdateCategoryRequest
}

func (c *namedCategories) CreateCategory(_ context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	c.created = append(c.created, req.GetCategory())
	return &scribev1.CreateCategoryResponse{Category: req.GetCategory()}, nil
}

func (c *namedCategories) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	if found := c.all[req.GetName()]; found != nil {
		return &scribev1.GetCategoryResponse{Category: found}, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", req.GetName())
}

func (c *namedCategories) UpdateCategory(_ context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	c.updated = append(c.updated, req)
	return &scribev1.UpdateCategoryResponse{Category: c.all[req.GetName()]}, nil
}

// run runs a command of categories.
func (c *namedCategories) run(t *testing.T, stdin string, args ...string) (string, error) {
	t.Helper()
	mux := http.NewServeMux()
	(&rpc.Services{Control: c}).Register(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	cmd := newRoot()
	var out bytes.Buffer
	cmd.SetIn(strings.NewReader(stdin))
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append(append([]string{"category"}, args...), "--server", server.URL))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// everyProperty has a value other than the default in each property.
const everyProperty = `name: web.access
owner: "42"
retention: 7d
shards: 8
shard_by: field:client_ip
auto_split: true
delivery: exactly_once
max_message: 1MiB
quota_per_second: 10MiB
quota_mode: throttle
read_quota_per_second: 50MiB
read_requests_per_second: 100
read_quota_mode: sample
priority: high
window: 2s
linger: 1m
repeatable: bound
cache: memory=never,memcached=reused,age=4h
schema:
  format: json
  fields:
    - {name: status, type: int32}
    - {name: ts, type: timestamp, nullable: false, doc: "when: it came"}
`

// TestApply: what describe prints is what apply takes, and nothing of it changes anything; what a document leaves out stays.
func TestApply(t *testing.T) {
	c := &namedCategories{}
	out, err := c.run(t, everyProperty+"---\nname: plain\n", "apply", "-f", "-")
	if err != nil || out != "web.access created\nplain created\n" || len(c.created) != 2 {
		t.Fatalf("got %q, %v", out, err)
	}
	made := c.created[0]
	if made.GetShards() != 8 || made.GetQuotaBytesPerSecond() != 10<<20 || made.GetDelivery() != scribev1.Delivery_DELIVERY_EXACTLY_ONCE || made.GetOwner() != "42" {
		t.Errorf("created %v", made)
	}
	// The cell keeps versions.
	s, err := schema.Parse([]byte(made.GetSchema()))
	if err != nil {
		t.Fatal(err)
	}
	h, err := schema.ParseHistory("")
	if err != nil {
		t.Fatal(err)
	}
	other := *s
	other.Fields = other.Fields[:1]
	for _, version := range []*schema.Schema{&other, s} {
		if _, _, err := h.Append(version, true); err != nil {
			t.Fatal(err)
		}
	}
	made.Schema, made.Id, made.Revision = h.Marshal(), 7, 17
	byDefault := c.created[1]
	byDefault.Schema, byDefault.Revision = inferSchema, 3
	c.all = map[string]*scribev1.Category{"web.access": made, "plain": byDefault}
	var documents string
	for _, name := range []string{"web.access", "plain"} {
		document, err := c.run(t, "", "describe", name, "-o", "yaml")
		if err != nil {
			t.Fatal(err)
		}
		documents += "---\n" + document
	}
	if out, err = c.run(t, documents, "apply", "-f", "-", "--diff"); err != nil || out != "web.access unchanged\nplain unchanged\n" || len(c.updated) > 0 {
		t.Fatalf("applied\n%s\ngot %s %v, %v", documents, out, c.updated, err)
	}
	// A copy made of its document is the same.
	c.created = nil
	if _, err = c.run(t, strings.Replace(documents, "web.access", "copy", 1), "apply", "-f", "-"); err != nil || len(c.created) != 1 {
		t.Fatal(c.created, err)
	}
	copied := proto.CloneOf(made)
	copied.Name, copied.Id, copied.Revision, copied.Schema = "copy", 0, 0, everySchema(t)
	if !proto.Equal(c.created[0], copied) {
		t.Errorf("got  %v\nwant %v", c.created[0], copied)
	}
	// JSON, in a list, with a part of the properties.
	const changes = `[{"name": "web.access", "retention": "14d", "shards": 8, "linger": "auto"}, {"name": "plain", "owner": "ada"}]`
	const wouldChange = "web.access would be changed\n- retention: 7d\n+ retention: 14d\n- linger: 1m\n+ linger: auto\nplain would be changed\n- owner: \n+ owner: ada\n"
	out, err = c.run(t, changes, "apply", "-f", "-", "--dry-run")
	if exitCode(err) != 1 || err.Error() != "" || out != wouldChange || len(c.updated) > 0 {
		t.Errorf("dry run: got %q, %v, %d changes", out, err, len(c.updated))
	}
	out, err = c.run(t, changes, "apply", "-f", "-")
	if err != nil || out != "web.access changed\nplain changed\n" || len(c.updated) != 2 {
		t.Fatalf("got %q, %v", out, err)
	}
	u := c.updated[0]
	if u.GetRevision() != 17 || u.GetRetention().AsDuration().Hours() != 14*24 || !u.GetAutoLinger() || u.Shards != nil || u.Owner != nil || u.Schema != nil {
		t.Errorf("updated with %v", u)
	}
	if out, err = c.run(t, documents, "apply", "-f", "-", "--dry-run"); err != nil {
		t.Errorf("dry run of no changes: got %q, %v", out, err)
	}
}

// everySchema is the schema of everyProperty.
func everySchema(t *testing.T) string {
	t.Helper()
	wanted, err := parseCategories("f", []byte(everyProperty))
	if err != nil {
		t.Fatal(err)
	}
	return wanted[0].schema
}

// TestApplyMistakes: all mistakes of a file are told with their lines, before anything is done.
func TestApplyMistakes(t *testing.T) {
	c := &namedCategories{all: map[string]*scribev1.Category{"old": {Name: "old", Delivery: scribev1.Delivery_DELIVERY_BEST_EFFORT}}}
	for text, want := range map[string]string{
		"name: a\nretenion: 3d\n":                "-:2: retenion: unknown key: want one of name, owner",
		"name: ok\n---\nname: a\nshards: many\n": "-:4: shards: ",
		"name: a\nretention: 0s\n":               "--retention",
		"name: a\nowner: x\nowner: y\n":          "the key owner is there twice",
		"owner: x\n":                             "-:1: the category has no name",
		"name: a\n---\nname: a\n":                "-:3: category a is also at -:1",
		"name: a\nowner:\n":                      "-:2: owner: want one value",
		"name: a\nowner: [x]\n":                  "-:2: owner: want one value",
		"name: a\nowner: &x y\nshard_by: *x\n":   "-:3: shard_by: want one value",
		"a\n":                                    "-:1: a category is a mapping",
		"":                                       "there is no category",
		"name: [\n":                              "-: line",
		"name: a\nschema: access.yaml\n":         "-:2: schema: want infer, or the keys of a schema",
		"name: a\nschema: {format: jsn}\n":       "-:2: schema: in the schema alone: ",
		"name: new\n---\nname: old\ndelivery: exactly_once": "-:3: category old: delivery is best_effort and can't become exactly_once",
	} {
		if _, err := c.run(t, text, "apply", "-f", "-"); exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %s", text, err, want)
		}
	}
	if _, err := c.run(t, "", "apply"); exitCode(err) != exitUsage {
		t.Errorf("without a file: %v", err)
	}
	if len(c.created)+len(c.updated) > 0 {
		t.Errorf("changed %v, %v", c.created, c.updated)
	}
}
