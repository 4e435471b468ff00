package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"scribe/columnar"
	"scribe/columnar/schema"
	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// catalog is a control plane of one category.
type catalog struct {
	// onUpdate, when set, may fail the n-th update after it was applied.
	onUpdate func(n int) error

	mu       sync.Mutex
	category *scribev1.Category
	updates  int
}

func newCatalog(text string) *catalog {
	return &catalog{category: &scribev1.Category{Name: categoryName, Id: categoryID, Revision: 1, Schema: text}}
}

func (c *catalog) now() *scribev1.Category {
	c.mu.Lock()
	defer c.mu.Unlock()
	return proto.CloneOf(c.category)
}

func (c *catalog) GetCategory(context.Context, *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	return &scribev1.GetCategoryResponse{Category: c.now()}, nil
}

func (c *catalog) UpdateCategory(_ context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.updates++
	if req.GetRevision() != c.category.GetRevision() {
		return nil, rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "its revision is %d", c.category.GetRevision())
	}
	h, err := schema.ParseHistory(c.category.GetSchema())
	if err != nil {
		return nil, err
	}
	s, err := schema.Parse([]byte(req.GetSchema()))
	if err != nil {
		return nil, err
	}
	if _, _, err := h.Append(s, false); err != nil {
		return nil, err
	}
	c.category.Schema = h.Marshal()
	c.category.Revision++
	if c.onUpdate != nil {
		if err := c.onUpdate(c.updates); err != nil {
			return nil, err
		}
	}
	return &scribev1.UpdateCategoryResponse{Category: proto.CloneOf(c.category)}, nil
}

// TestEnsureSchema: a category that waits for its first schema gets one from its messages, once, whoever is first, and all agree on it.
func TestEnsureSchema(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.create(shardID(0, 1))
		control := newCatalog("infer")
		r := open(t, c)
		if _, _, err := columns.EnsureSchema(t.Context(), r, control, control.now()); !errors.Is(err, columns.ErrSchemaPending) || control.updates > 0 {
			t.Fatalf("without messages: %v", err)
		}
		c.add(shardID(0, 1), "plain text")
		if _, _, err := columns.EnsureSchema(t.Context(), r, control, control.now()); !errors.Is(err, columns.ErrSchemaPending) {
			t.Fatalf("without rows: %v", err)
		}
		c.add(shardID(0, 1), `{"n":1}`, `{"n":2,"at":"2024-01-02T03:04:05Z"}`)
		old := control.now()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				r := open(t, c)
				h, category, err := columns.EnsureSchema(t.Context(), r, control, old)
				if err != nil {
					t.Error(err)
					return
				}
				if s := h.Current(); s.Version != 1 || len(s.Fields) != 2 || !s.Fields[0].Nullable || s.Fields[1].Type.Kind != schema.Timestamp || category.GetRevision() != 2 {
					t.Errorf("%s of revision %d", s.Marshal(), category.GetRevision())
				}
			})
		}
		wg.Wait()
		before := control.updates
		if h, _, err := columns.EnsureSchema(t.Context(), r, control, control.now()); err != nil || h.Current().Version != 1 || control.updates != before {
			t.Errorf("%v, %d updates more", err, control.updates-before)
		}
		if got, err := read(t.Context(), open(t, c, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd()), 0); err != nil || len(got) != 3 {
			t.Errorf("%d records, %v", len(got), err)
		}
	})
}

// TestEnsureSchemaLostAnswer: an update whose answer is lost counts if it was applied, and any other failure is told.
func TestEnsureSchemaLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCell()
		c.add(shardID(0, 1), `{"n":1}`)
		control := newCatalog("infer")
		control.onUpdate = func(int) error { return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "lost") }
		if h, _, err := columns.EnsureSchema(t.Context(), open(t, c), control, control.now()); err != nil || h.Current().Version != 1 {
			t.Errorf("%v", err)
		}
		control = newCatalog("infer")
		control.onUpdate = func(int) error { return rpc.Errorf(scribev1.Reason_REASON_INVALID, "no") }
		if _, _, err := columns.EnsureSchema(t.Context(), open(t, c), control, control.now()); rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID {
			t.Errorf("%v", err)
		}
		control = newCatalog("not a schema")
		if _, _, err := columns.EnsureSchema(t.Context(), open(t, c), control, control.now()); err == nil {
			t.Error("a broken history was taken")
		}
	})
}

// TestInferSchemaOfBatches: the schema of Arrow batches is their own.
func TestInferSchemaOfBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rows, err := columnar.FromFrames(frame(0, "x", "y"), columnar.Meta{})
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Release()
		body, err := columnar.EncodeIPC(nil, rows)
		if err != nil {
			t.Fatal(err)
		}
		batch, err := record.AppendArrowFrame(nil, record.Envelope{Category: categoryName}, 2, body)
		if err != nil {
			t.Fatal(err)
		}
		c := newCell()
		c.addFrames(shardID(0, 1), batch)
		s, report, err := columns.InferSchema(t.Context(), open(t, c), "", schema.DefaultInferOptions())
		if err != nil || s.Format != schema.Arrow || len(s.Fields) != 6 || fmt.Sprint(s.Fields[0].Path) != "[_time]" || report.Rows != 2 {
			t.Errorf("%v, %+v, %v", s, report, err)
		}
		c.addFrames(shardID(0, 1), frame(0, `{"n":1}`))
		if _, _, err := columns.InferSchema(t.Context(), open(t, c), schema.JSON, schema.DefaultInferOptions()); !errors.Is(err, schema.ErrNoRows) {
			t.Errorf("JSON in front of which are batches: %v", err)
		}
	})
}
