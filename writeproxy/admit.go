package writeproxy

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// item is one frame of a request.
type item struct {
	bytes    []byte // of the request
	start    int    // in the request
	messages int
	key      uint64
	delivery scribev1.Delivery
	// sequenced frames are recognised when they are repeated, in exactly_once categories.
	sequenced bool
	// unsure: an attempt ended with an unknown outcome, so the frame may be stored whatever a later one says.
	unsure bool
	// done: result is final.
	done   bool
	result *scribev1.FrameResult
}

// admission checks the frames of a request. It remembers the last category: neighbours often have the same.
type admission struct {
	p        *Proxy
	category *scribev1.Category
}

// split checks every frame of a request. A frame that is refused alone has its error in its result; when nobody knows where the
// next frame begins, the whole request is refused.
func (a *admission) split(ctx context.Context, data []byte) ([]item, error) {
	var items []item
	for offset := 0; offset < len(data); {
		h, err := record.Check(data[offset:])
		size := h.Len
		if err != nil {
			if size, err = damaged(data[offset:], offset, err); size == 0 {
				return nil, err
			}
		}
		it := item{bytes: data[offset : offset+size : offset+size], start: offset}
		offset += size
		if err == nil {
			it.messages = h.Count
			err = a.admit(ctx, &h, &it)
		}
		if err != nil {
			it.done, it.result = true, &scribev1.FrameResult{Error: rpc.Info(err)}
		}
		items = append(items, it)
	}
	return items, nil
}

// damaged decides about a frame that does not pass its check: it returns its size and the error of that frame alone when only
// its body is damaged, else 0 and the error of the whole request.
func damaged(b []byte, offset int, err error) (int, error) {
	h, herr := record.ParseHeader(b)
	if herr == nil && h.Len <= len(b) {
		return h.Len, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "frame at byte %d of the request: %w", offset, err)
	}
	reason := scribev1.Reason_REASON_CORRUPT
	if errors.Is(err, record.ErrVersion) {
		reason = scribev1.Reason_REASON_INVALID
	}
	return 0, rpc.Errorf(reason, "frame at byte %d of the request: %w", offset, err)
}

func (a *admission) admit(ctx context.Context, h *record.Header, it *item) error {
	c := a.category
	if c == nil || c.GetName() != string(h.Category) {
		var err error
		if c, err = a.p.category(ctx, h.CategoryName()); err != nil {
			return err
		}
		a.category = c
	}
	if h.Shard >= max(c.GetShards(), 1) {
		// The category may have grown.
		grown, err := a.p.deps.Categories.Resolve(ctx, c.GetName())
		if err != nil {
			return fmt.Errorf("category %s: %w", c.GetName(), err)
		}
		a.category, c = grown, grown
		if h.Shard >= max(c.GetShards(), 1) {
			return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_SHARD,
				"category %s has %d logical shards, the frame is for number %d", c.GetName(), c.GetShards(), h.Shard)
		}
	}
	// The header tells the number of messages, not their sizes. A frame no longer than one message may be needs no look at them,
	// which is nearly every frame of nearly every category.
	if limit := maxMessage(c); h.Encoding == record.EncodingMessages && h.BodyLen() > limit {
		if err := checkSizes(it.bytes, limit); err != nil {
			return fmt.Errorf("category %s: %w", c.GetName(), err)
		}
	}
	it.key = routeKey(c.GetId(), h.Shard, 0)
	it.delivery = c.GetDelivery()
	it.sequenced = h.Sequenced()
	return nil
}

// checkSizes refuses a frame that holds a message over the limit.
func checkSizes(frame []byte, limit int) error {
	var d record.Decoder
	if _, err := d.Reset(frame); err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
	}
	var r record.Record
	for i := 0; d.Next(&r); i++ {
		if n := r.Size(); n > limit {
			return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "message %d of the frame has %d bytes, the limit is %d: nothing of the frame was stored", i, n, limit)
		}
	}
	if err := d.Err(); err != nil {
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
	}
	return nil
}

// maxMessage is the category's limit of a message in bytes.
func maxMessage(c *scribev1.Category) int {
	if n := int(c.GetMaxMessageBytes()); n > 0 {
		return n
	}
	return record.DefaultMaxMessageSize
}

// category finds a category, or creates it when that is configured.
func (p *Proxy) category(ctx context.Context, name string) (*scribev1.Category, error) {
	if c, ok := p.deps.Categories.Lookup(name); ok {
		return c, nil
	}
	c, err := p.deps.Categories.Resolve(ctx, name)
	switch {
	case err == nil:
		return c, nil
	case !p.cfg.AutoCreate || rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_CATEGORY:
		return nil, fmt.Errorf("category %s: %w", name, err)
	}
	return p.create(ctx, name)
}

var errNoCategory = errors.New("writeproxy: the control plane's answer holds no category")

// create creates a category, once for all requests that miss it at the same time.
func (p *Proxy) create(ctx context.Context, name string) (*scribev1.Category, error) {
	done := p.creating.DoChan(name, func() (any, error) {
		// Others wait for it, so the first caller's patience must not bound it.
		ctx, cancel := context.WithTimeout(p.ctx, p.cfg.Timeout)
		defer cancel()
		c := &scribev1.Category{}
		if p.cfg.Template != nil {
			c, _ = proto.Clone(p.cfg.Template).(*scribev1.Category)
		}
		c.Name = name
		resp, err := p.deps.Creator.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: c, IfNotExists: true})
		if err != nil {
			return nil, err
		}
		p.metrics.created.Inc()
		if resp.GetCategory() == nil {
			return nil, errNoCategory
		}
		return resp.GetCategory(), nil
	})
	select {
	case r := <-done:
		c, _ := r.Val.(*scribev1.Category)
		if r.Err != nil {
			return nil, fmt.Errorf("category %s does not exist and could not be created: %w", name, r.Err)
		}
		return c, nil
	case <-ctx.Done():
		return nil, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, p.cfg.RetryMax, "category %s is being created: %w", name, context.Cause(ctx))
	}
}
