package request

import (
	"context"
	"fmt"
	"time"

	"scribe/internal/format/placement"
	"scribe/internal/format/record"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Catalog is a role's watched copy of the categories, with access to the control plane.
type Catalog interface {
	// Lookup looks up a category in the copy, Resolve at the control plane.
	Lookup(name string) (*scribev1.Category, bool)
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Categories finds the categories of a role's requests.
type Categories struct {
	// Catalog has the categories.
	Catalog Catalog
	// Create is called for a category that is not in the copy; nil calls Resolve.
	Create func(ctx context.Context, name string) (*scribev1.Category, error)
	// IsStale reports whether the copy's entry for a logical shard's category must be outdated, so that the control plane is
	// asked; nil means never.
	IsStale func(c *scribev1.Category, shard uint32) bool
	// RetryAfter is the retry hint of frames whose category was replaced while their request was read.
	RetryAfter time.Duration
}

// LookupFrame looks up a frame's category in the copy. It does not allocate the name if the catalog supports that.
func (c *Categories) LookupFrame(h *record.Header) (*scribev1.Category, bool) {
	if fast, ok := c.Catalog.(interface {
		LookupBytes(name []byte) (*scribev1.Category, bool)
	}); ok {
		return fast.LookupBytes(h.Category)
	}
	return c.Catalog.Lookup(h.CategoryName())
}

// NewResolver returns a resolver for one request.
func (c *Categories) NewResolver() Resolver { return Resolver{categories: c} }

// Resolver finds the categories of one request's frames, in order.
type Resolver struct {
	categories *Categories
	current    *scribev1.Category
	// taken: a frame of the current category was accepted.
	taken bool
	// pinned has the exactly_once categories before the current one, by name. During a request the copy may learn that one was
	// deleted and created again. Suppose that frames of one producer went first to the old logs, which refuse them, and then to
	// the new ones. When the first frames are sent again, the new logs would take them for repetitions, since they have seen
	// later sequences.
	pinned map[string]*scribev1.Category
	// failed has the shards with a frame that was refused for a transient reason.
	failed map[failedShard]error
}

type failedShard struct {
	category string
	shard    uint32
}

// FindCategory returns the category of a frame, which has the frame's logical shard.
func (r *Resolver) FindCategory(ctx context.Context, h *record.Header) (*scribev1.Category, error) {
	if len(r.failed) > 0 {
		if err := r.failed[failedShard{string(h.Category), h.Shard}]; err != nil {
			return nil, err
		}
	}
	if err := r.useCategory(ctx, h); err != nil {
		if retry.Retryable(err) {
			if r.failed == nil {
				r.failed = make(map[failedShard]error)
			}
			r.failed[failedShard{h.CategoryName(), h.Shard}] = err
		}
		return nil, err
	}
	r.taken = true
	return r.current, nil
}

// useCategory makes the category of a frame the current one.
func (r *Resolver) useCategory(ctx context.Context, h *record.Header) error {
	if r.current == nil || r.current.GetName() != string(h.Category) {
		if err := r.switchCategory(ctx, h); err != nil {
			return err
		}
	}
	// The category may have grown, or have been deleted and created again. If the control plane has nothing newer, the log
	// decides. A writer that places messages by a layout may also know of a newer one.
	newer := h.Placement != 0 && h.Placement != placement.Unplaced && !layouts.Accepts(r.current, h.Placement)
	if newer || !r.current.HasShard(h.Shard) || r.categories.IsStale != nil && r.categories.IsStale(r.current, h.Shard) {
		if err := r.renewCategory(ctx); err != nil {
			return err
		}
	}
	return CheckShard(r.current, h.Shard)
}

func (r *Resolver) switchCategory(ctx context.Context, h *record.Header) error {
	if r.taken && isExactlyOnce(r.current) {
		if r.pinned == nil {
			r.pinned = make(map[string]*scribev1.Category)
		}
		r.pinned[r.current.GetName()] = r.current
	}
	c, pinned := r.pinned[string(h.Category)]
	if !pinned {
		var err error
		if c, err = r.lookupCategory(ctx, h); err != nil {
			return err
		}
	}
	r.current, r.taken = c, pinned
	return nil
}

func (r *Resolver) lookupCategory(ctx context.Context, h *record.Header) (*scribev1.Category, error) {
	if c, ok := r.categories.LookupFrame(h); ok {
		return c, nil
	}
	if r.categories.Create != nil {
		return r.categories.Create(ctx, h.CategoryName())
	}
	return r.categories.resolveName(ctx, h.CategoryName())
}

// renewCategory gets the current category from the control plane.
func (r *Resolver) renewCategory(ctx context.Context) error {
	old := r.current
	c, err := r.categories.resolveName(ctx, old.GetName())
	if err != nil {
		return err
	}
	if r.taken && isExactlyOnce(old) && c.GetId() != old.GetId() { // see pinned
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, r.categories.RetryAfter,
			"category %s was deleted and created again while the request was read: send the frames again", c.GetName())
	}
	r.current = c
	return nil
}

func (c *Categories) resolveName(ctx context.Context, name string) (*scribev1.Category, error) {
	found, err := c.Catalog.Resolve(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("category %s: %w", name, err)
	}
	return found, nil
}

func isExactlyOnce(c *scribev1.Category) bool {
	return c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE
}

// CheckShard refuses a logical shard that a category does not have, with REASON_UNKNOWN_SHARD.
func CheckShard(c *scribev1.Category, shard uint32) error {
	if c.HasShard(shard) {
		return nil
	}
	return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD,
		"category %s has %d logical shards, the frame is for number %d", c.GetName(), c.GetShards(), shard)
}
