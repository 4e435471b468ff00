package enforce

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/cell/access"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// readStreamService serves streams of categories that the caller may read, with tickets for their pointers.
type readStreamService struct {
	rpc.ReadStreamService
	e *Enforcer
}

// Bounds implements rpc.ReadStreamService.
func (s readStreamService) Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	if err := s.e.Allow(ctx, access.Read, req.GetCategory()); err != nil {
		return nil, err
	}
	return s.ReadStreamService.Bounds(ctx, req)
}

// Stream implements rpc.ReadStreamService. The stream ends when the caller's right does.
func (s readStreamService) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	p := principal.FromContext(ctx)
	if p.Kind == principal.Member && !isImposed(ctx) {
		return s.ReadStreamService.Stream(ctx, recv, send)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		category string
		limited  *restrict.Restriction
		refused  error
		release  = func() {}
	)
	defer func() { release() }()
	begin := func(rctx context.Context) (*scribev1.StreamRequest, error) {
		req, err := recv(rctx)
		if start := req.GetStart(); err == nil && start != nil && category == "" && refused == nil {
			if refused = s.e.allowStart(ctx, start); refused != nil {
				return nil, refused
			}
			category = start.GetCategory()
			watched, under, end, err := s.e.BeginRead(ctx, access.Read, category)
			if err != nil {
				refused = err
				return nil, refused
			}
			limited, release = under, end
			context.AfterFunc(watched, func() { cancel(context.Cause(watched)) })
			if limited != nil {
				// Zone maps are of all rows: what is left out for a query of the reader would tell it of rows and values that it may not see.
				start.Filter = nil
			}
		}
		return req, err
	}
	ticketed := func(res *scribev1.StreamResponse) error {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		limits := access.Limits{Restriction: limited}
		if limited != nil {
			table, err := s.e.tableOf(ctx, category, limited)
			if err != nil {
				cancel(err) // as when the schema has changed, so that the limits can't be told any more
				return err
			}
			limits.Schema = table.Schema().Version
			res = s.e.restrictMessage(res, limited)
		}
		if entries := res.GetEntries().GetEntries(); len(entries) > 0 && s.e.Closed() && p.Kind != principal.Member {
			set, now := s.e.rights.Set(), s.e.now()
			for _, entry := range entries {
				at := access.Place{Shard: entry.GetShard(), LSN: entry.GetLsn()}
				if limited != nil { // the entry is a copy
					entry.Pointer = set.SealPointer(entry.GetPointer(), at, limited)
				}
				entry.Ticket = set.SignTicket(p, category, at, entry.GetPointer(), limits, now)
			}
		}
		return send(res)
	}
	err := s.ReadStreamService.Stream(ctx, begin, ticketed)
	if refused != nil {
		return refused
	}
	if err = endedBy(ctx, err); p.Issued != nil && rpc.ReasonOf(err) == scribev1.Reason_REASON_UNAUTHENTICATED {
		// Readers who renew their tokens go on at once, with another stream; the others are refused there.
		return rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "the token of the stream has ended: open it again with another one")
	}
	return err
}

// allowStart decides what the start of a stream may ask for, beside the right to read.
func (e *Enforcer) allowStart(ctx context.Context, start *scribev1.StreamStart) error {
	if start.GetUnsequenced() && (!e.IsFree(ctx) || isImposed(ctx)) {
		return e.deny(ctx, principal.FromContext(ctx), access.NotMember, "read what is not sequenced yet")
	}
	return nil
}

// retryKeys is when a fetch is worth repeating whose key has not arrived.
const retryKeys = 200 * time.Millisecond

// readProxyService serves payloads for which the caller has tickets.
type readProxyService struct {
	rpc.ReadProxyService
	e *Enforcer
}

// Fetch implements rpc.ReadProxyService. The read proxy gets the caller's restriction with the context: nobody else can put one there.
func (s readProxyService) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	if s.e.IsFree(ctx) && !isImposed(ctx) {
		s.e.countAccess(ctx, access.Read, req.GetCategory())
		return s.ReadProxyService.Fetch(ctx, req)
	}
	d, err := s.e.allowFetch(ctx, req)
	if err != nil {
		return nil, err
	}
	if d.limited == nil {
		s.e.countAccess(ctx, access.Read, req.GetCategory())
		return s.ReadProxyService.Fetch(ctx, req)
	}
	if !req.GetAcceptsRestricted() {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "fetch: your grants on category %q are limited to some rows and columns, and this client is older than that: use a newer one", shortenName(req.GetCategory()))
	}
	limited := d.limited
	if len(req.GetTickets()) > 0 { // of a member's request the pointers are as they are stored
		req = proto.CloneOf(req)
		for i, ticket := range req.GetTickets() {
			req.Pointers[i] = d.set.UnsealPointer(ticket, req.GetPointers()[i])
			limited = limited.Over(access.SchemaOf(ticket))
		}
	}
	if _, err := s.e.tableOf(ctx, req.GetCategory(), limited); err != nil {
		return nil, err
	}
	s.e.countAccess(ctx, access.Read, req.GetCategory())
	return s.ReadProxyService.Fetch(restrict.NewContext(ctx, limited), req)
}

// allowFetch decides about a fetch. Whoever may read every category of the cell needs no tickets: there is nothing of others in a
// block. Whole blocks are for the read proxies of other regions alone.
func (e *Enforcer) allowFetch(ctx context.Context, req *scribev1.FetchRequest) (decision, error) {
	p, category := principal.FromContext(ctx), req.GetCategory()
	if req.GetPeer() || req.GetEncoding() == scribev1.PayloadEncoding_PAYLOAD_ENCODING_BLOCK {
		return decision{}, e.deny(ctx, p, access.NotMember, "fetch whole blocks")
	}
	d := e.decide(ctx, p, access.Read, category)
	if d.cause != access.Allowed {
		return d, e.denyCategory(ctx, p, d.cause, describeAct(access.Read, category), category)
	}
	if p.Kind == principal.Member {
		return d, nil // it reads for somebody: whoever that is has no tickets
	}
	everywhere := d.set.Decide(p, access.Read, "", "", d.now) == access.Allowed
	if everywhere && len(req.GetTickets()) == 0 && len(req.GetPlaces()) == 0 {
		return d, nil
	}
	if len(req.GetTickets()) != len(req.GetPointers()) {
		return d, e.deny(ctx, p, access.BadTicket, "fetch")
	}
	places := req.GetPlaces()
	if len(places) > 0 && len(places) != len(req.GetPointers()) {
		return d, e.deny(ctx, p, access.BadTicket, "fetch")
	}
	check := ticketChecker{set: d.set, reader: p, as: p, limited: d.limited}
	for i, ticket := range req.GetTickets() {
		at, cause := check.check(ticket, category, req.GetPointers()[i], d.now)
		// What is learned of a payload is kept at its place, for other readers: it must be the payload's own.
		if cause == access.Allowed && len(places) > 0 && at != (access.Place{Shard: places[i].GetShard(), LSN: places[i].GetLsn()}) {
			cause = access.BadTicket
		}
		if cause == access.NotKnown { // a key that has not arrived yet
			return d, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, retryKeys, "the key of the ticket has not arrived at this read proxy yet")
		}
		if cause == access.OldRights {
			return d, e.denyCategory(ctx, p, cause, "fetch", category)
		}
		if cause != access.Allowed {
			return d, e.deny(ctx, p, cause, "fetch")
		}
	}
	return d, nil
}

// ticketChecker checks the tickets of one fetch.
type ticketChecker struct {
	set    *access.Set
	reader principal.Principal
	// limited is to what the reader is limited.
	limited *restrict.Restriction
	// as is whom the last good ticket was for: the reader, or what it was when its stream began.
	as principal.Principal
	// namesakes are known once a ticket was not the reader's, the one found last first.
	namesakes []principal.Principal
}

// check is CheckTicket for the reader, whose token may have been replaced since its stream began.
func (c *ticketChecker) check(ticket []byte, category string, pointer []byte, now time.Time) (access.Place, access.Cause) {
	at, cause := c.set.CheckTicket(ticket, c.as, category, pointer, c.limited, now)
	if cause != access.BadTicket {
		return at, cause
	}
	if c.namesakes == nil {
		c.namesakes = append(c.set.Namesakes(c.reader), c.reader)
	}
	for i, p := range c.namesakes {
		if other, otherCause := c.set.CheckTicket(ticket, p, category, pointer, c.limited, now); otherCause != access.BadTicket {
			c.as, c.namesakes[0], c.namesakes[i] = p, p, c.namesakes[0]
			return other, otherCause
		}
	}
	return at, cause // it ends the fetch, so all namesakes are tried once at most
}
