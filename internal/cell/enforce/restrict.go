package enforce

import (
	"context"
	"errors"
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

// allowRead returns to which rows and columns the caller of ctx is limited in reading or querying a category, nil for none, or an error if it may not do it, or may, but under limits that
// can't be applied. All follows from one look at the rights.
func (e *Enforcer) allowRead(ctx context.Context, what access.Permission, category string) (*restrict.Restriction, error) {
	p := principal.FromContext(ctx)
	d := e.decide(ctx, p, what, category)
	if d.cause != access.Allowed {
		return nil, e.denyCategory(ctx, p, d.cause, describeAct(what, category), category)
	}
	if d.limited != nil {
		// That there is no such category is for the role to say.
		table, err := e.tableOf(ctx, category, d.limited)
		switch {
		case err == nil: // who reads on behalf of the caller hands it on
			return d.limited.Over(table.Schema().Version), nil
		case rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_CATEGORY:
			return nil, err
		}
	}
	return d.limited, nil
}

// tableOf applies a restriction to a category. A denial does not say to the reader which columns there are.
func (e *Enforcer) tableOf(ctx context.Context, category string, r *restrict.Restriction) (*restrict.Table, error) {
	categories := e.categories.Load()
	if categories == nil {
		return nil, e.denyCategory(ctx, principal.FromContext(ctx), access.NotKnown, describeAct(access.Read, category), category)
	}
	c, known := (*categories).Lookup(category)
	if !known {
		var err error
		if c, err = (*categories).Resolve(ctx, category); err != nil {
			return nil, err
		}
	}
	table, _, err := e.tables.Latest(ctx, c, r, (*categories).Resolve)
	switch {
	case errors.Is(err, restrict.ErrInapplicable):
		err = e.denyCategory(ctx, principal.FromContext(ctx), access.Inapplicable, describeAct(access.Read, category), category)
	case errors.Is(err, restrict.ErrOld):
		err = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, retryKeys, "this read proxy does not know the schema of category %q yet that the read stream knows", shortenName(category))
	}
	return table, err
}

// withImposed returns a context with the restriction that a member of the cell says it reads under. Of others the header says nothing.
func (e *Enforcer) withImposed(ctx context.Context, w http.ResponseWriter, h http.Header) (context.Context, error) {
	values := h.Values(restrict.Header)
	if len(values) == 0 || principal.FromContext(ctx).Kind != principal.Member {
		return ctx, nil
	}
	if len(values) > 1 {
		return ctx, rpc.Errorf(scribev1.Reason_REASON_INVALID, "header %s stands there %d times", restrict.Header, len(values))
	}
	r, err := e.decodeImposed(values[0])
	if err != nil {
		return ctx, rpc.Errorf(scribev1.Reason_REASON_INVALID, "%w", err)
	}
	w.Header().Set(restrict.Header, r.Digest().Text())
	return restrict.NewContext(ctx, r), nil
}

// decodeImposed is restrict.Decode, once for each text: a query says it with each of its requests.
func (e *Enforcer) decodeImposed(text string) (*restrict.Restriction, error) {
	if r, ok := e.imposed.Get(text); ok {
		return r, nil
	}
	r, err := restrict.Decode(text)
	if err == nil {
		e.imposed.Add(text, r)
	}
	return r, err
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
	table, err := e.tables.TableOf(c, r)
	if err != nil {
		table = nil
	}
	return limitCategory(c, table)
}

// limitCategory returns a category without what a table hides: without a schema, where there is no table.
func limitCategory(c *scribev1.Category, table *restrict.Table) *scribev1.Category {
	c = proto.CloneOf(c)
	if table == nil {
		c.Schema = ""
	} else {
		c.Schema = schema.HistoryOf(table.Schema()).Marshal()
	}
	if table == nil || table.Rewritten() {
		// By which field messages are placed may be hidden, and means nothing in messages that are made anew: their readers read all shards.
		c.ShardBy, c.ShardField, c.FormerLayouts, c.LayoutsForgotten = scribev1.ShardBy_SHARD_BY_UNSPECIFIED, "", nil, true
	}
	return c
}

// seenAs returns a category as the caller of ctx may know it. With by, access.Read or access.Query, it is what that gives it, if it has it at all: plans of queries and payloads must be of one
// schema, whatever else the caller may do. Otherwise who may change the category, or reads all of it in some way, knows its schema; and who may write to it knows how messages are placed,
// since its library places them.
func (e *Enforcer) seenAs(ctx context.Context, c *scribev1.Category, by access.Permission) *scribev1.Category {
	r := e.schemaRestriction(ctx, c, by)
	if c == nil || r == nil {
		return c
	}
	return e.keepLayout(ctx, c, e.restrictCategory(c, r), by)
}

// seenListed is seenAs of a category that was asked for without its schema.
func (e *Enforcer) seenListed(ctx context.Context, c *scribev1.Category) *scribev1.Category {
	if e.schemaRestriction(ctx, c, 0) == nil {
		return c
	}
	return e.keepLayout(ctx, c, limitCategory(c, nil), 0)
}

// keepLayout returns what the caller sees of a category, with its layout for who may write to it.
func (e *Enforcer) keepLayout(ctx context.Context, c, seen *scribev1.Category, by access.Permission) *scribev1.Category {
	if by == 0 && !isImposed(ctx) && e.mayTo(ctx, access.Write, c) {
		seen.ShardBy, seen.ShardField, seen.LayoutsForgotten = c.GetShardBy(), c.GetShardField(), c.GetLayoutsForgotten()
		seen.FormerLayouts = c.GetFormerLayouts()
	}
	return seen
}

// schemaRestriction returns the restriction under which the caller of ctx knows a category's schema; nil = none.
func (e *Enforcer) schemaRestriction(ctx context.Context, c *scribev1.Category, by access.Permission) *restrict.Restriction {
	if isImposed(ctx) {
		return restrict.FromContext(ctx)
	}
	if c == nil || e.IsFree(ctx) {
		return nil
	}
	// One look at the rights: they may end between two.
	p, set, now := principal.FromContext(ctx), e.rights.Set(), e.now()
	decide := func(what access.Permission) (*restrict.Restriction, bool) {
		r, cause := set.DecideLimits(p, what, c.GetName(), c.GetOwner(), now)
		return r, cause == access.Allowed
	}
	if by != 0 {
		if r, may := decide(by); may {
			return r
		}
	}
	if _, may := decide(access.Manage); may {
		return nil
	}
	read, mayRead := decide(access.Read)
	query, mayQuery := decide(access.Query)
	switch {
	case mayRead && read == nil, mayQuery && query == nil:
		return nil
	case mayRead:
		return read
	case mayQuery:
		return query
	}
	if _, may := decide(access.Write | access.Group); may {
		return nil
	}
	return restrict.Nothing()
}

// mayTo decides about a category that is known.
func (e *Enforcer) mayTo(ctx context.Context, what access.Permission, c *scribev1.Category) bool {
	return e.rights.Set().Decide(principal.FromContext(ctx), what, c.GetName(), c.GetOwner(), e.now()) == access.Allowed
}

// denyInapplicable returns an error if the caller of ctx may do nothing to a category but read it under a restriction that can't be applied: then it learns that at once.
func (e *Enforcer) denyInapplicable(ctx context.Context, c *scribev1.Category, by access.Permission) error {
	r := e.schemaRestriction(ctx, c, by)
	if r == nil || by == 0 && !isImposed(ctx) && e.mayTo(ctx, access.Write|access.Group|access.Manage, c) {
		return nil
	}
	if _, err := e.tables.TableOf(c, r); err == nil {
		return nil
	}
	return e.denyCategory(ctx, principal.FromContext(ctx), access.Inapplicable, describeAct(access.Read, c.GetName()), c.GetName())
}

// SeenAs returns a category as the caller of ctx may know it from its queries, for who lists tables.
func (e *Enforcer) SeenAs(ctx context.Context, c *scribev1.Category) *scribev1.Category {
	return e.seenAs(ctx, c, access.Query)
}

// blankPointer returns a pointer without its counts and times, which tell of rows that are not visible; nil for one that can't be decoded. A pointer has a message at least: its
// reader knows by StreamOpened.restricted that this counts nothing.
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
		o.Category, o.Restricted = e.restrictCategory(o.GetCategory(), r), true
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
	limits := make([]restrict.Limit, len(res.GetLimits()))
	for i, text := range res.GetLimits() {
		var err error
		if limits[i], err = restrict.ParseLimit(text); err != nil {
			return // of a newer control plane
		}
	}
	c, known := (*categories).Lookup(category)
	if !known {
		var err error
		if c, err = (*categories).Resolve(ctx, category); err != nil {
			return // it need not exist
		}
	}
	if _, _, err := e.tables.Latest(ctx, c, restrict.New(limits...), (*categories).Resolve); errors.Is(err, restrict.ErrInapplicable) {
		res.Inapplicable = err.Error()
	}
}
