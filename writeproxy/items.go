package writeproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	"scribe/internal/role/affinity"
	"scribe/internal/role/quota"
	"scribe/internal/role/request"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// frameItem is one frame of a request.
type frameItem struct {
	bytes    []byte // part of the request
	start    int    // in the request
	messages int
	shard    uint32
	category *scribev1.Category
	key      uint64
	// micro is the micro-shard that its request's frames of the key go to.
	micro int
	// body is where the body begins; bodyCRC is what the header says of it.
	body    int
	bodyCRC uint32
	// sampleRate is the frame's sample rate. resampled: it differs from that in bytes, and must be written into the copy that is
	// sent.
	sampleRate uint32
	resampled  bool
	// leftOut: sampling left the frame out.
	leftOut bool
	// checked: the body was checked. waits: the frame waits for a quota.
	checked, waits bool
	// summed: the caller, in this process, has verified the body's checksum.
	summed bool
	// rows: the body has encoded messages, to which the category's message limit applies.
	rows bool
	// sequenced: the frame has sequences, by which exactly_once categories recognise duplicates, and producer is theirs.
	sequenced bool
	producer  uint64
	// follows: the frame, or one of its producer before it in the request, continues one of another request that has no answer yet.
	// It goes where that one went, or nowhere. epoch, first and next are the sequences of such a request's frames.
	follows     bool
	epoch       uint32
	first, next uint64
	// renewed: the category was resolved again since its logs were sealed. This is done once.
	renewed bool
	// unsure: an attempt ended with an unknown outcome, so the frame may be stored even if a later attempt fails.
	unsure bool
	// group has the quotas that the frame is under; nil if there are none.
	group *limitedGroup
	// overQuota says of what the quota is over which the frame was refused; empty if it was not.
	overQuota quota.Kind
	// misplaced: the frame's shard does not follow from a layout of its category, so its messages have to be placed.
	misplaced bool
	// done: result is final.
	done   bool
	result *scribev1.FrameResult
}

// itemBytes is the approximate memory of an item and its result, in bytes. It is charged for itemStep items at a time.
const (
	itemBytes = 256
	itemStep  = 1024
)

// refuseWith ends the item with an error.
func (it *frameItem) refuseWith(err error) {
	it.done, it.result = true, &scribev1.FrameResult{Error: rpc.Info(err)}
}

// splitRequest returns an item for every frame of a request. It checks headers, not bodies. A frame that is refused individually
// has its error in its result; if the start of the next frame is unknown, the whole request is refused. charge charges memory for
// the items.
func (p *Proxy) splitRequest(ctx context.Context, req *scribev1.WriteRequest, charge func(n int64) error) ([]frameItem, error) {
	var (
		data     = req.GetFrames()
		items    []frameItem
		summed   = rpc.Checked(ctx)
		resolver = p.categories.NewResolver()
		frames   = request.WalkHeaders(data)
	)
	followers, err := request.NewFollowers(req.GetFollows())
	if err != nil {
		return nil, err
	}
	for frames.Next() {
		if len(items)%itemStep == 0 && len(items) > 0 {
			if err := charge(itemStep * itemBytes); err != nil {
				return nil, err
			}
		}
		h := &frames.Header
		if items == nil {
			items = make([]frameItem, 0, min(len(data)/h.Len+1, itemStep)) // frames of a request are often alike
		}
		it := frameItem{
			bytes: frames.Bytes, start: frames.Offset, messages: h.Count, shard: h.Shard, body: h.BodyOffset(), bodyCRC: h.BodyCRC,
			sampleRate: h.SampleRate, rows: h.Encoding == record.EncodingMessages, sequenced: h.Sequenced(), producer: h.Producer, summed: summed,
		}
		it.follows = followers.Marks(&frames)
		it.epoch, it.first, it.next = h.Epoch, h.FirstSequence, h.NextSequence()
		if c, err := resolver.FindCategory(ctx, h); err != nil {
			it.refuseWith(err)
		} else {
			it.setCategory(c)
			it.misplaced = !layouts.Accepts(c, h.Placement)
		}
		items = append(items, it)
	}
	return items, frames.Fault()
}

// setCategory sets the category and the routing key.
func (it *frameItem) setCategory(c *scribev1.Category) {
	it.category = c
	it.key = affinity.KeyOf(c.GetId(), it.shard)
}

// checkBody checks a frame's checksum and the sizes of its messages.
func (it *frameItem) checkBody() error {
	if err := it.checkSum(); err != nil {
		return err
	}
	// The header has the number of messages, not their sizes. A frame that is no longer than the limit of one message need not be
	// decoded; this is true for nearly every frame.
	if limit := maxMessage(it.category); it.rows && len(it.bytes)-it.body > limit {
		if err := checkSizes(it.bytes, limit); err != nil {
			return fmt.Errorf("category %s: %w", it.category.GetName(), err)
		}
	}
	return nil
}

// checkSum verifies the checksum of the body.
func (it *frameItem) checkSum() error {
	if it.summed {
		return nil
	}
	if computed := record.CRC(it.bytes[it.body:]); computed != it.bodyCRC {
		return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "frame at byte %d of the request: %w", it.start,
			&record.CorruptError{What: "body checksum", Offset: int64(it.body), Reason: fmt.Sprintf("stored %#08x, computed %#08x", it.bodyCRC, computed)})
	}
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

// maxMessage returns the category's limit for a message in bytes.
func maxMessage(c *scribev1.Category) int {
	if n := int(c.GetMaxMessageBytes()); n > 0 {
		return n
	}
	return record.DefaultMaxMessageSize
}

// resolveOrCreate asks the control plane for a category, and creates it if that is configured.
func (p *Proxy) resolveOrCreate(ctx context.Context, name string) (*scribev1.Category, error) {
	c, err := p.deps.Categories.Resolve(ctx, name)
	switch {
	case err == nil:
		return c, nil
	case rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_CATEGORY:
	case record.IsOwnCategory(name) && p.deps.Own != nil: // nobody's template has its schema
		own, oerr := p.createCategory(ctx, name, p.deps.Own)
		if !errors.Is(oerr, ErrNoOwnCategory) {
			return own, oerr
		}
	case !record.IsOwnCategory(name) && p.cfg.AutoCreate:
		return p.createCategory(ctx, name, func(context.Context, string) (*scribev1.Category, error) {
			return cmp.Or(proto.CloneOf(p.cfg.Template), &scribev1.Category{}), nil
		})
	}
	return nil, fmt.Errorf("category %s: %w", name, err)
}

// ErrNoOwnCategory is what Deps.Own returns of a category that the cell does not keep.
var ErrNoOwnCategory = errors.New("writeproxy: the cell keeps no such category")

var errNoCategory = errors.New("writeproxy: the control plane's answer holds no category")

// createCategory creates a category as describe says, once for all concurrent requests that miss it.
func (p *Proxy) createCategory(ctx context.Context, name string, describe func(context.Context, string) (*scribev1.Category, error)) (*scribev1.Category, error) {
	done := p.creating.DoChan(name, func() (any, error) {
		// Others wait for it, so the first caller's deadline must not bound it.
		ctx, cancel := context.WithTimeout(p.ctx, p.cfg.Timeout)
		defer cancel()
		c, err := describe(ctx, name)
		if err != nil {
			return nil, err
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
