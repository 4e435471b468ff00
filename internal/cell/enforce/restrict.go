package enforce

import (
	"context"
	"net/http"
	"slices"

	"google.golang.org/protobuf/proto"

	"scribe/columnar/schema"
	"scribe/internal/cell/access"
	"scribe/internal/format/pointer"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// What a reader with a restriction is let have of a category. Who reads for others from inside the cell, as the SQL server does, says so in a header of its
// requests, and is then treated as these are; the answer repeats the digest, so that it knows that it was heeded: a process that knows no restrictions would answer without.

// Restriction returns to which rows and columns the caller of ctx is limited in what it may do to a category, of what Allow lets it do; nil if it is not.
func (e *Enforcer) Restriction(ctx context.Context, what access.Permission, category string) *restrict.Restriction {
	p := principal.FromContext(ctx)
	if p.Kind == principal.Member {
		return restrict.FromContext(ctx)
	}
	set, now := e.rights.Set(), e.now()
	var owner string
	categories, known := e.categories.Load(), false
	if categories != nil {
		var c *scribev1.Category
		c, known = (*categories).Lookup(category)
		owner = c.GetOwner()
	}
	r := set.RestrictionOf(p, what, category, owner, now)
	if r != nil && !known && categories != nil && set.UsesOwners(p, what, now) {
		if c, err := (*categories).Resolve(ctx, category); err == nil {
			r = set.RestrictionOf(p, what, category, c.GetOwner(), now)
		}
	}
	return r
}

// withImposed returns a context with the restriction that a member of the cell says it reads under. Of others the header says nothing.
func withImposed(ctx context.Context, w http.ResponseWriter, h http.Header) (context.Context, error) {
	values := h.Values(restrict.Header)
	if len(values) == 0 || principal.FromContext(ctx).Kind != principal.Member {
		return ctx, nil
	}
	if len(values) > 1 {
		return ctx, rpc.Errorf(scribev1.Reason_REASON_INVALID, "header %s stands there %d times", restrict.Header, len(values))
	}
	r, err := restrict.Decode(values[0])
	if err != nil {
		return ctx, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
	}
	w.Header().Set(restrict.Header, r.Digest().Text())
	return restrict.NewContext(ctx, r), nil
}

// isImposed reports whether the caller of ctx is a member that reads for somebody with a restriction: it may do nothing but read.
func isImposed(ctx context.Context) bool {
	return principal.FromContext(ctx).Kind == principal.Member && restrict.FromContext(ctx) != nil
}

// errRestrictedMember refuses what a member asks under a restriction beside reading.
var errRestrictedMember = rpc.Errorf(scribev1.Reason_REASON_DENIED, "a request under a restriction to rows and columns may only read")

// errLimitsChanged ends what was begun under another restriction than the caller has now.
var errLimitsChanged = rpc.Errorf(scribev1.Reason_REASON_TICKET_EXPIRED, "what you may read of the category has changed: begin again at the same position")

// restrictCategory returns a category as a reader with a restriction knows it. Without a schema that the restriction can be applied to, it has none.
func (e *Enforcer) restrictCategory(c *scribev1.Category, r *restrict.Restriction) *scribev1.Category {
	if c == nil || r == nil {
		return c
	}
	c = proto.CloneOf(c)
	table, err := e.tables.TableOf(c, r)
	if err != nil {
		c.Schema = ""
	} else {
		c.Schema = schema.HistoryOf(table.Schema()).Marshal()
	}
	if err != nil || table.Rewritten() {
		// By which field messages are placed may be hidden, and means nothing in messages that are made anew: their readers read all shards.
		c.ShardBy, c.ShardField, c.FormerLayouts, c.LayoutsForgotten = scribev1.ShardBy_SHARD_BY_UNSPECIFIED, "", nil, true
	}
	return c
}

// seenAs returns a category as the caller of ctx may know it. Who may change the category, or reads all of it in some way, knows its schema.
func (e *Enforcer) seenAs(ctx context.Context, c *scribev1.Category) *scribev1.Category {
	if c == nil {
		return c
	}
	return e.restrictCategory(c, e.schemaRestriction(ctx, c))
}

// schemaRestriction returns the restriction under which the caller of ctx knows a category's schema; nil = none.
func (e *Enforcer) schemaRestriction(ctx context.Context, c *scribev1.Category) *restrict.Restriction {
	if isImposed(ctx) {
		return restrict.FromContext(ctx)
	}
	if e.IsFree(ctx) || e.mayTo(ctx, access.Manage, c) {
		return nil
	}
	// One look at the rights: they may end between two.
	p, set, now := principal.FromContext(ctx), e.rights.Set(), e.now()
	may := func(what access.Permission) bool {
		return set.Decide(p, what, c.GetName(), c.GetOwner(), now) == access.Allowed
	}
	first := restrict.Nothing()
	if may(access.Write) || may(access.Group) {
		first = nil
	}
	found := false
	for _, what := range []access.Permission{access.Read, access.Query} {
		if !may(what) {
			continue
		}
		r := set.RestrictionOf(p, what, c.GetName(), c.GetOwner(), now)
		if r == nil {
			return nil
		}
		if !found {
			first, found = r, true
		}
	}
	return first
}

// mayTo decides about a category that is known.
func (e *Enforcer) mayTo(ctx context.Context, what access.Permission, c *scribev1.Category) bool {
	return e.rights.Set().Decide(principal.FromContext(ctx), what, c.GetName(), c.GetOwner(), e.now()) == access.Allowed
}

// denyInapplicable returns an error if the caller of ctx may do nothing to a category but read it under a restriction that can't be applied: then it learns that at once.
func (e *Enforcer) denyInapplicable(ctx context.Context, c *scribev1.Category) error {
	r := e.schemaRestriction(ctx, c)
	if r == nil || !isImposed(ctx) && e.mayTo(ctx, access.Write|access.Group, c) {
		return nil
	}
	if _, err := e.tables.TableOf(c, r); err == nil {
		return nil
	}
	return e.denyCategory(ctx, principal.FromContext(ctx), access.Inapplicable, describeAct(access.Read, c.GetName()), c.GetName())
}

// SeenAs returns a category as the caller of ctx may know it, for who lists tables.
func (e *Enforcer) SeenAs(ctx context.Context, c *scribev1.Category) *scribev1.Category {
	return e.seenAs(ctx, c)
}

// allowRestricted returns an error if a restriction can't be applied to a category, so that nothing may be read. It does not say to the reader which columns there are.
func (e *Enforcer) allowRestricted(ctx context.Context, category string, r *restrict.Restriction) error {
	categories := e.categories.Load()
	if categories == nil {
		return e.denyCategory(ctx, principal.FromContext(ctx), access.NotKnown, describeAct(access.Read, category), category)
	}
	c, known := (*categories).Lookup(category)
	if !known {
		var err error
		if c, err = (*categories).Resolve(ctx, category); err != nil {
			return err
		}
	}
	if _, err := e.tables.TableOf(c, r); err != nil {
		return e.denyCategory(ctx, principal.FromContext(ctx), access.Inapplicable, describeAct(access.Read, category), category)
	}
	return nil
}

// blankPointer returns a pointer without its counts and times, which tell of rows that are not visible; nil for one that can't be decoded.
func blankPointer(encoded []byte) []byte {
	p, err := pointer.Decode(encoded)
	if err != nil {
		return nil
	}
	p.Frames, p.Messages, p.Sequences = 1, 1, nil
	p.MinTime, p.MaxTime = p.Blob.Time(), p.Blob.Time()
	return pointer.Append(nil, &p)
}

// restrictMessage takes out of a stream's message what a reader with a restriction must not learn.
func (e *Enforcer) restrictMessage(res *scribev1.StreamResponse, r *restrict.Restriction) *scribev1.StreamResponse {
	switch step := res.GetStep().(type) {
	case *scribev1.StreamResponse_Opened:
		o := proto.CloneOf(step.Opened)
		o.Category = e.restrictCategory(o.GetCategory(), r)
		return &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Opened{Opened: o}}
	case *scribev1.StreamResponse_Entries:
		out := &scribev1.StreamEntries{Watermark: step.Entries.GetWatermark(), Pending: step.Entries.GetPending()}
		out.Entries = slices.Clone(step.Entries.GetEntries())
		for i, entry := range out.Entries {
			entry = proto.CloneOf(entry)
			entry.Pointer = blankPointer(entry.GetPointer())
			out.Entries[i] = entry
		}
		for _, skip := range step.Entries.GetSkipped() {
			skip = proto.CloneOf(skip)
			skip.Messages = 0
			out.Skipped = append(out.Skipped, skip)
		}
		return &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{Entries: out}}
	}
	return res
}

// explainLimits says in the answer of CheckAccess why the limits can't be applied to a category.
func (e *Enforcer) explainLimits(ctx context.Context, category string, res *scribev1.CheckAccessResponse) {
	categories := e.categories.Load()
	if len(res.GetLimits()) == 0 || categories == nil {
		return
	}
	c, known := (*categories).Lookup(category)
	if !known {
		var err error
		if c, err = (*categories).Resolve(ctx, category); err != nil {
			return // it need not exist
		}
	}
	limits := make([]restrict.Limit, len(res.GetLimits()))
	for i, text := range res.GetLimits() {
		var err error
		if limits[i], err = restrict.ParseLimit(text); err != nil {
			return // of a newer control plane
		}
	}
	if _, err := restrict.Apply(c, restrict.New(limits...)); err != nil {
		res.Inapplicable = err.Error()
	}
}
