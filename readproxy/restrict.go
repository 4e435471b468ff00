package readproxy

import (
	"context"
	"errors"
	"fmt"

	"scribe/columnar"
	"scribe/columnar/vector"
	"scribe/internal/format/pointer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Readers who are limited to some rows and columns. The restriction comes with the context, from who has decided about the request
// (internal/cell/enforce); a request can't name one. It is applied to stored payloads before anything that the request asks for: its view, its predicate, its encoding.

// readerLimits are those of the reader of a request.
type readerLimits struct {
	restriction *restrict.Restriction
	table       *restrict.Table // over the newest schema that this server knows
}

// limitsOf returns to what the reader of a request is limited, nil = nothing, and the category: another region may have it.
func (s *Server) limitsOf(ctx context.Context, encoding scribev1.PayloadEncoding, cat *scribev1.Category, req *scribev1.FetchRequest) (*readerLimits, *scribev1.Category, error) {
	r := restrict.FromContext(ctx)
	if r == nil {
		return nil, cat, nil
	}
	if req.GetPeer() || encoding == blockEncoding {
		return nil, nil, rpc.Errorf(scribev1.Reason_REASON_DENIED, "fetch: whole blocks are not for readers that are limited to some rows and columns")
	}
	if cat == nil { // of another region
		var err error
		if cat, err = s.deps.Categories.Resolve(ctx, req.GetCategory()); err != nil {
			return nil, nil, err
		}
	}
	t, _, err := s.tableOf(ctx, cat, r)
	return &readerLimits{restriction: r, table: t}, cat, err
}

// tableOf applies a restriction to the newest schema of a category, which it returns as well: this server's copy may be old.
func (s *Server) tableOf(ctx context.Context, cat *scribev1.Category, r *restrict.Restriction) (*restrict.Table, *scribev1.Category, error) {
	t, latest, err := s.tables.Latest(ctx, cat, r, s.deps.Categories.Resolve)
	switch {
	case errors.Is(err, restrict.ErrInapplicable):
		err = errInapplicable(cat.GetName())
	case errors.Is(err, restrict.ErrOld):
		err = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.retryHint(), "this read proxy does not know the schema of category %q yet that the read stream knows", cat.GetName())
	}
	return t, latest, err
}

// errInapplicable does not say why: the reader may not know which columns there are.
func errInapplicable(category string) error {
	return rpc.Errorf(scribev1.Reason_REASON_DENIED, "nobody may read category %q by grants that are limited to rows and columns which can't be told in it as it is now; an administrator sees why with scribe access check", category)
}

// tableFor returns the table of an answer, nil without limits: that of the view's schema, if there is one.
func (l *readerLimits) tableFor(wanted *viewRequest) *restrict.Table {
	switch {
	case l == nil:
		return nil
	case wanted != nil:
		return wanted.limited
	default:
		return l.table
	}
}

// visibleFrames returns the frames that the reader may see of a payload's. Of a server's requests as many make some at a time as views, since each may take much more
// memory than the payload while it does.
func (a *fetchAnswer) visibleFrames(ctx context.Context, p *pointer.Pointer, frames []byte) ([]byte, *scribev1.PayloadRestriction, error) {
	slots := a.s.views.slots
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	f, err := a.limited.Frames(frames, maxTranscoded)
	if err != nil {
		return nil, nil, a.limitError(p, err)
	}
	a.countHeld(f.Held)
	return f.Bytes, a.describePart(f.Frames, f.Messages), nil
}

// describePart describes the part of a payload that the reader gets.
func (a *fetchAnswer) describePart(frames, messages uint32) *scribev1.PayloadRestriction {
	part := &scribev1.PayloadRestriction{Frames: frames, Messages: messages}
	if a.limited.Rewritten() {
		part.SchemaVersion = a.limited.Schema().Version
	}
	return part
}

// restrictedBytes is what the part of a payload takes beside what any payload takes, in bytes: its rows put together, and their messages made anew, with names of columns. What was
// made counts as it is as soon as it is there.
func restrictedBytes(p *pointer.Pointer) int64 {
	return int64(p.Length) + min(2*int64(p.Length), maxTranscoded)
}

// limitError is an error of a restricted payload for its reader.
func (a *fetchAnswer) limitError(p *pointer.Pointer, err error) error {
	switch {
	case errors.Is(err, restrict.ErrInapplicable):
		a.s.log.Error("a grant limited to rows and columns can't be applied: nothing is served", "category", a.category, "error", err)
		return errInapplicable(a.category)
	case errors.Is(err, columnar.ErrTooLarge), errors.Is(err, vector.ErrTooLarge):
		a.s.log.Warn("a payload can't be made anew for a reader that is limited to some rows and columns: it is too large", "category", a.category, "payload", describePayload(p), "error", err)
		return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s is too large for a reader that is limited to some rows and columns: its messages would be made anew; query fewer columns of it", describePayload(p))
	default:
		return damagedError(p, err)
	}
}

// hideDamage returns the error of a payload for its reader. How a payload is damaged may tell a reader with limits what it can't see, such as the checksum of the block.
func (a *fetchAnswer) hideDamage(p *pointer.Pointer, err error) error {
	if a.limited == nil || rpc.ReasonOf(err) != scribev1.Reason_REASON_CORRUPT {
		return err
	}
	a.s.log.Error("payload is damaged, as a reader was told that is limited to some rows and columns", "category", a.category, "payload", describePayload(p), "error", err)
	return rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%s is damaged: the log of the read proxy says how", describePayload(p))
}

func (a *fetchAnswer) countHeld(rows int64) {
	a.s.metrics.restricted.Inc()
	a.s.metrics.rowsHeld.Add(float64(rows))
}

// restrictedView makes the block of a view of what the reader may see. The predicate of the reader's query is not applied, and no zone map is made.
func (a *fetchAnswer) restrictedView(it *answerItem, frames []byte) (*checkedBlock, error) {
	rows, err := a.limited.Rows(frames, it.view.Shape.Columns)
	if err != nil {
		return nil, err
	}
	defer func() { rows.Batch.Release() }()
	losses := make([]*scribev1.LossFrame, len(rows.Reports))
	for i, r := range rows.Reports {
		losses[i] = &scribev1.LossFrame{Index: r.Index, Frame: r.Frame}
	}
	data, err := columnar.EncodeIPC(make([]byte, 0, roomOf(rows.Batch)), rows.Batch)
	if err != nil {
		return nil, fmt.Errorf("view %d: %w", it.view.ID, err)
	}
	n := uint64(rows.Batch.NumRows()) //nolint:gosec // not negative
	a.countHeld(rows.Held)
	a.countView(it, len(frames), len(data), int64(n), int64(n)) //nolint:gosec // a count
	said := &scribev1.PayloadView{
		Rows: n, Kept: n, Rejected: uint64(rows.Rejected), Bad: uint64(rows.Bad), View: it.view.ID, Losses: losses, //nolint:gosec // counts
	}
	b := newViewBlock(data, a.asked.codec, said)
	b.part = a.describePart(0, rows.Messages)
	return b, nil
}
