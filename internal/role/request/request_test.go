package request

import (
	"context"
	"fmt"
	"testing"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func makeFrame(t testing.TB, category string, shard uint32) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: category, Shard: shard}); err != nil {
		t.Fatal(err)
	}
	if err := b.Append(&record.Message{Payload: []byte("message")}); err != nil {
		t.Fatal(err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

func TestFrames(t *testing.T) {
	a, b := makeFrame(t, "a", 0), makeFrame(t, "b", 1)
	damaged := append([]byte(nil), a...)
	damaged[len(damaged)-1] ^= 1
	join := func(frames ...[]byte) (out []byte) {
		for _, f := range frames {
			out = append(out, f...)
		}
		return out
	}
	walk := func(frames Frames) (got string, fault error) {
		for frames.Next() {
			switch {
			case rpc.ReasonOf(frames.Err) == scribev1.Reason_REASON_CORRUPT:
				got += fmt.Sprintf("%d+%d damaged ", frames.Offset, len(frames.Bytes))
			case frames.Err != nil:
				t.Errorf("frame %d: %v", frames.Index, frames.Err)
			default:
				got += fmt.Sprintf("%d:%s/%d ", frames.Index, frames.Category, frames.Shard)
			}
		}
		return got, frames.Fault()
	}
	for _, c := range []struct {
		name   string
		frames Frames
		want   string
		fault  scribev1.Reason
	}{
		{"nothing", Walk(t.Context(), nil), "", 0},
		{"sound", Walk(t.Context(), join(a, b)), "0:a/0 1:b/1 ", 0},
		{"damaged body", Walk(t.Context(), join(damaged, b)), fmt.Sprintf("0+%d damaged 1:b/1 ", len(a)), 0},
		{"checked before", Walk(rpc.WithChecked(t.Context()), join(damaged, b)), "0:a/0 1:b/1 ", 0},
		{"headers alone", WalkHeaders(join(damaged, b)), "0:a/0 1:b/1 ", 0},
		{"cut off", Walk(t.Context(), join(a, b[:len(b)-1])), "0:a/0 ", scribev1.Reason_REASON_CORRUPT},
		{"noise", Walk(t.Context(), join(a, []byte("this is not the header of a frame, though it is as long as one"))), "0:a/0 ", scribev1.Reason_REASON_CORRUPT},
	} {
		got, fault := walk(c.frames)
		if got != c.want || rpc.ReasonOf(fault) != c.fault {
			t.Errorf("%s: walked %q and ended with %v, want %q", c.name, got, fault, c.want)
		}
	}
}

// catalog is a watched copy and what the control plane knows.
type catalog struct {
	copied, known map[string]*scribev1.Category
	err           error
	asked         int
}

func (c *catalog) Lookup(name string) (*scribev1.Category, bool) {
	found, ok := c.copied[name]
	return found, ok
}

func (c *catalog) Resolve(_ context.Context, name string) (*scribev1.Category, error) {
	c.asked++
	if c.err != nil {
		return nil, c.err
	}
	if found, ok := c.known[name]; ok {
		return found, nil
	}
	return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "there is no category %q", name)
}

func TestResolver(t *testing.T) {
	category := func(name string, id, shards uint32, d scribev1.Delivery) *scribev1.Category {
		return &scribev1.Category{Name: name, Id: id, Shards: shards, Delivery: d}
	}
	const (
		least = scribev1.Delivery_DELIVERY_AT_LEAST_ONCE
		once  = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
	)
	newCatalog := func() *catalog {
		c := &catalog{copied: map[string]*scribev1.Category{}, known: map[string]*scribev1.Category{}}
		for _, category := range []*scribev1.Category{category("least", 1, 2, least), category("once", 2, 2, once)} {
			c.copied[category.GetName()], c.known[category.GetName()] = category, category
		}
		return c
	}
	find := func(r *Resolver, name string, shard uint32) (id uint32, reason scribev1.Reason) {
		c, err := r.FindCategory(t.Context(), &record.Header{Category: []byte(name), Shard: shard})
		return c.GetId(), rpc.ReasonOf(err)
	}
	want := func(t *testing.T, r *Resolver, name string, shard, id uint32, reason scribev1.Reason) {
		t.Helper()
		if got, why := find(r, name, shard); got != id || why != reason {
			t.Errorf("%s/%d is of category %d, error %v, want %d and %v", name, shard, got, why, id, reason)
		}
	}
	t.Run("the control plane is asked for what the copy lacks", func(t *testing.T) {
		c := newCatalog()
		r := (&Categories{Catalog: c}).NewResolver()
		c.known["new"], c.known["least"] = category("new", 3, 0, least), category("least", 1, 4, least)
		want(t, &r, "least", 1, 1, 0)
		want(t, &r, "new", 0, 3, 0)
		want(t, &r, "least", 3, 1, 0) // it has grown
		want(t, &r, "least", 3, 1, 0)
		want(t, &r, "least", 4, 0, scribev1.Reason_REASON_UNKNOWN_SHARD)
		want(t, &r, "none", 0, 0, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
		if c.asked != 4 {
			t.Errorf("the control plane was asked %d times", c.asked)
		}
	})
	t.Run("missing categories are created", func(t *testing.T) {
		categories := &Categories{Catalog: newCatalog(), Create: func(_ context.Context, name string) (*scribev1.Category, error) {
			return category(name, 9, 1, least), nil
		}}
		r := categories.NewResolver()
		want(t, &r, "created", 0, 9, 0)
	})
	t.Run("behind a frame that may be taken later none of its shard is taken", func(t *testing.T) {
		c := newCatalog()
		r := (&Categories{Catalog: c}).NewResolver()
		c.err = rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "unavailable")
		want(t, &r, "new", 0, 0, scribev1.Reason_REASON_NO_BACKEND)
		c.err, c.known["new"] = nil, category("new", 3, 2, least)
		want(t, &r, "new", 0, 0, scribev1.Reason_REASON_NO_BACKEND)
		want(t, &r, "new", 1, 3, 0)
	})
	t.Run("an exactly_once category stays the same within a request", func(t *testing.T) {
		c := newCatalog()
		r := (&Categories{Catalog: c}).NewResolver()
		want(t, &r, "once", 0, 2, 0)
		c.copied["once"], c.copied["least"] = category("once", 12, 2, once), category("least", 11, 2, least)
		want(t, &r, "least", 0, 11, 0)
		want(t, &r, "once", 0, 2, 0)
		other := (&Categories{Catalog: c}).NewResolver()
		want(t, &other, "once", 0, 12, 0)
	})
	t.Run("a stale category is asked for again", func(t *testing.T) {
		c := newCatalog()
		categories := &Categories{Catalog: c, IsStale: func(c *scribev1.Category, shard uint32) bool { return c.GetId() < 10 && shard == 1 }}
		c.known["once"], c.known["least"] = category("once", 12, 2, once), category("least", 11, 2, least)
		r := categories.NewResolver()
		want(t, &r, "least", 0, 1, 0)
		want(t, &r, "least", 1, 11, 0)
		want(t, &r, "once", 1, 12, 0)
		r = categories.NewResolver()
		want(t, &r, "once", 0, 2, 0) // goes to the old log, so no frame goes to a new one
		want(t, &r, "once", 1, 0, scribev1.Reason_REASON_NO_BACKEND)
		want(t, &r, "once", 0, 2, 0)
	})
}

func TestAsUnknown(t *testing.T) {
	info := AsUnknown(rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "full")))
	if info.GetReason() != scribev1.Reason_REASON_UNKNOWN_OUTCOME || AsUnknown(info) != info {
		t.Errorf("the outcome is %v", info)
	}
}
