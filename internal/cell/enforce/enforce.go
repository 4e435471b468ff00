package enforce

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/entropy"
	"scribe/internal/base/metrics"
	"scribe/internal/cell/access"
	"scribe/internal/cell/audit"
	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Rights is the process's copy of who may do what. *access.View has it.
type Rights interface {
	Set() *access.Set
	Known() bool
	Watch() (*access.Set, <-chan struct{})
}

// Issuer proves principals by tokens that somebody else has issued. *oidc.Verifier has it.
type Issuer interface {
	// Verify returns whom a token names, a client, or an *access.TokenError. sum is the SHA-256 of the text.
	Verify(ctx context.Context, text string, sum [sha256.Size]byte) (principal.Principal, error)
}

// Categories is the process's copy of the categories, for their owners. *catalog.View has it.
type Categories interface {
	Lookup(name string) (*scribev1.Category, bool)
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are what an Enforcer works with.
type Deps struct {
	// Rights is required.
	Rights Rights
	// Issuer proves whom tokens name that are not the cell's; nil if only the cell's count.
	Issuer Issuer
	// Trail notes denials, and counts who was let in to which data if it is to; nil notes nothing.
	Trail *audit.Trail
	// Random draws the process's own secret; nil means the machine's randomness.
	Random *entropy.Source
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Enforcer decides about requests. Its methods are safe for concurrent use.
type Enforcer struct {
	rights     Rights
	issuer     Issuer                     // nil if there is none
	categories atomic.Pointer[Categories] // nil until they are known
	trail      *audit.Trail
	now        func() time.Time
	log        *slog.Logger
	denials    *prometheus.CounterVec
	// own is the text with which the process proves to itself that it is a member, ownHash its hash.
	own     string
	ownHash [sha256.Size]byte
	// tables are restrictions of readers to rows and columns, applied to categories.
	tables *restrict.Cache
	// imposed are restrictions that members said they read under, by their texts.
	imposed *lru.Cache[string, *restrict.Restriction]
}

// keptImposed bounds the texts, of up to 44 KiB each, whose restrictions are kept.
const keptImposed = 256

// New returns an enforcer.
func New(deps Deps) (*Enforcer, error) {
	if deps.Rights == nil {
		return nil, errors.New("enforce: Deps.Rights is missing")
	}
	e := &Enforcer{
		rights: deps.Rights, issuer: deps.Issuer, trail: deps.Trail, now: deps.Now, log: cmp.Or(deps.Logger, slog.New(slog.DiscardHandler)),
		own: "process_" + deps.Random.Text() + deps.Random.Text(),
	}
	if e.now == nil {
		e.now = time.Now
	}
	e.tables = restrict.NewCache(e.log)
	e.imposed, _ = lru.New[string, *restrict.Restriction](keptImposed) // fails only without a bound
	e.ownHash = sha256.Sum256([]byte(e.own))
	set := metrics.NewSet("scribe_access_")
	causes := make([]string, len(access.Causes))
	for i, c := range access.Causes {
		causes[i] = string(c)
	}
	e.denials = set.CounterOf("denials_total", "Requests, frames and payloads that were denied, by cause.", "cause", causes...)
	if err := set.Register(deps.Registerer); err != nil {
		return nil, fmt.Errorf("enforce: %w", err)
	}
	return e, nil
}

// SetCategories gives the enforcer the categories. Until then rules about owners allow nothing.
func (e *Enforcer) SetCategories(c Categories) { e.categories.Store(&c) }

// OwnToken is what the process sends to itself where it calls itself over its address, as the SQL server does. Nobody else may get it.
func (e *Enforcer) OwnToken() string { return e.own }

// Authenticate returns who has a token.
func (e *Enforcer) Authenticate(ctx context.Context, token string) (principal.Principal, error) {
	sum := sha256.Sum256([]byte(token))
	if subtle.ConstantTimeCompare(sum[:], e.ownHash[:]) == 1 {
		return principal.Principal{Kind: principal.Member, Name: "this process"}, nil
	}
	p, err := e.prove(ctx, token, sum)
	if err == nil {
		return p, nil
	}
	const act = "be let in"
	if refused, ok := errors.AsType[*access.TokenError](err); ok {
		return principal.Principal{}, e.denyToken(ctx, refused, act)
	}
	return principal.Principal{}, e.deny(ctx, principal.Principal{}, access.NotKnown, act)
}

// errRightsUnknown means that this process does not know yet which tokens there are.
var errRightsUnknown = errors.New("this process does not know yet who may do what")

// prove returns whom a token of the cell or of its issuer names: an error is an *access.TokenError, or errRightsUnknown. A cell that is not known yet has nobody.
func (e *Enforcer) prove(ctx context.Context, token string, sum [sha256.Size]byte) (principal.Principal, error) {
	if e.issuer != nil && access.IsForeign(token) {
		p, err := e.issuer.Verify(ctx, token, sum)
		if err != nil {
			return principal.Principal{}, err
		}
		return e.rights.Set().WithKind(p, e.now()), nil
	}
	p, cause := e.rights.Set().Authenticate(token, e.now())
	switch {
	case cause == access.Allowed:
		return p, nil
	case !e.rights.Known():
		return principal.Principal{}, errRightsUnknown
	}
	return principal.Principal{}, &access.TokenError{Cause: cause}
}

// Closed reports whether only what a rule allows is allowed to those who are no members.
func (e *Enforcer) Closed() bool { return e.rights.Set().Closed() }

// IsFree reports whether nothing needs to be asked about the caller of ctx: it is a member, or the cell is open.
func (e *Enforcer) IsFree(ctx context.Context) bool {
	return principal.FromContext(ctx).Kind == principal.Member || !e.Closed()
}

// Allow returns an error unless the caller of ctx may do something to a category. Its text is the same whether the category exists
// or not. What it allows is in the trail, if it is access to data.
func (e *Enforcer) Allow(ctx context.Context, what access.Permission, category string) error {
	if err := e.checkCategory(ctx, what, category); err != nil {
		return err
	}
	e.countAccess(ctx, what, category)
	return nil
}

// dataActions are the permissions whose use is access to data, as the trail calls it.
var dataActions = map[access.Permission]string{access.Write: "write", access.Read: "read", access.Query: "query", access.Group: "group"}

// countAccess has the trail know that the caller of ctx was let in to the data of a category.
func (e *Enforcer) countAccess(ctx context.Context, what access.Permission, category string) {
	if !e.trail.NotesAccess() {
		return
	}
	if action, ok := dataActions[what]; ok {
		e.trail.CountAccess(ctx, action, category)
	}
}

// checkCategory is Allow without a trace of what is allowed: for what is asked again while it goes on, and for what more is asked about before it is let in.
func (e *Enforcer) checkCategory(ctx context.Context, what access.Permission, category string) error {
	p := principal.FromContext(ctx)
	if d := e.decide(ctx, p, what, category); d.cause != access.Allowed {
		return e.denyCategory(ctx, p, d.cause, describeAct(what, category), category)
	}
	return nil
}

// AllowCell returns an error unless the caller of ctx may do something to the cell as a whole.
func (e *Enforcer) AllowCell(ctx context.Context, what access.Permission, act string) error {
	p := principal.FromContext(ctx)
	if cause := e.rights.Set().Decide(p, what, "", "", e.now()); cause != access.Allowed {
		return e.deny(ctx, p, e.orUnknown(cause), act)
	}
	return nil
}

// AllowAny returns an error unless the caller of ctx may do one of some things to some category.
func (e *Enforcer) AllowAny(ctx context.Context, what access.Permission, act string) error {
	p := principal.FromContext(ctx)
	if cause := e.rights.Set().DecideAny(p, what, e.now()); cause != access.Allowed {
		return e.deny(ctx, p, e.orUnknown(cause), act)
	}
	return nil
}

// MayMonitor reports whether the caller of ctx may know how the cell and its processes are. It counts no denial.
func (e *Enforcer) MayMonitor(ctx context.Context) bool {
	return e.IsFree(ctx) || e.rights.Set().Decide(principal.FromContext(ctx), access.Monitor, "", "", e.now()) == access.Allowed
}

// Sees reports whether the caller of ctx may know that a category exists: it may do anything to it.
func (e *Enforcer) Sees(ctx context.Context, c *scribev1.Category) bool {
	return e.rights.Set().Decide(principal.FromContext(ctx), access.Visible, c.GetName(), c.GetOwner(), e.now()) == access.Allowed
}

// decision is what one look at the rights says about a caller and a category. It is used as a whole: a second look might see other rights.
type decision struct {
	cause access.Cause
	// limited is to which rows and columns the caller is limited; nil if it is not.
	limited *restrict.Restriction
	// set are the rights that were looked at, now is when.
	set *access.Set
	now time.Time
}

// decide decides about a category. Only for a caller whom a rule about owners may help is a category looked up that is not known here.
func (e *Enforcer) decide(ctx context.Context, p principal.Principal, what access.Permission, category string) decision {
	d := decision{set: e.rights.Set(), now: e.now()}
	switch {
	case p.Kind == principal.Member:
		d.limited = restrict.FromContext(ctx)
		return d
	case what == access.Write && e.isTrail(category):
		d.cause = access.NotMember // or who may write everything could lay a false trail
		return d
	case !d.set.Closed():
		return d
	}
	var owner string
	categories, known := e.categories.Load(), false
	if categories != nil {
		var c *scribev1.Category
		c, known = (*categories).Lookup(category)
		owner = c.GetOwner()
	}
	d.limited, d.cause = d.set.DecideLimits(p, what, category, owner, d.now)
	// A rule about the owner may permit what no other does, or more than limited ones.
	if (d.cause == access.NoRule || d.limited != nil) && !known && categories != nil && d.set.UsesOwners(p, what, d.now) {
		switch c, err := (*categories).Resolve(ctx, category); {
		case err == nil:
			d.limited, d.cause = d.set.DecideLimits(p, what, category, c.GetOwner(), d.now)
		case d.cause == access.NoRule && rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_CATEGORY && rpc.ReasonOf(err) != scribev1.Reason_REASON_INVALID:
			d.cause = access.NotKnown // it may be the caller's: the control plane can't say now
		}
	}
	d.cause = e.orUnknown(d.cause)
	return d
}

// isTrail reports whether a category is the audit trail of this cell.
func (e *Enforcer) isTrail(category string) bool { return e.trail != nil && category == audit.Category }

// orUnknown replaces a denial by NotKnown while it is not known who may do what.
func (e *Enforcer) orUnknown(cause access.Cause) access.Cause {
	if cause != access.Allowed && !e.rights.Known() {
		return access.NotKnown
	}
	return cause
}

// acts are the permissions in errors.
var acts = map[access.Permission]string{
	access.Write: "write to", access.Read: "read", access.Query: "query", access.Group: "use consumer groups of", access.Manage: "manage",
}

func describeAct(what access.Permission, category string) string {
	return cmp.Or(acts[what], "see") + fmt.Sprintf(" category %q", shortenName(category))
}

func shortenName(name string) string {
	if len(name) <= access.MaxName {
		return name
	}
	return fmt.Sprintf("%.64s...", name)
}

// deny is denyCategory for what is not about a category.
func (e *Enforcer) deny(ctx context.Context, p principal.Principal, cause access.Cause, act string) error {
	return e.denyCategory(ctx, p, cause, act, "")
}

// denyToken counts and notes that a token proves nothing, and returns the error: of a token of the issuer it says why in the issuer's words.
func (e *Enforcer) denyToken(ctx context.Context, refused *access.TokenError, act string) error {
	if refused.Err == nil {
		return e.deny(ctx, principal.Principal{}, refused.Cause, act)
	}
	e.noteDenial(ctx, principal.Principal{}, refused.Cause, act, "")
	if refused.Cause == access.NotKnown {
		// Who has proved nothing does not hear where the keys are and why they can't be had: the log and the process's health say that.
		e.log.DebugContext(ctx, "whom a token names is not known", "error", refused.Err)
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "whom the token names is not known now: the issuer's keys are not available")
	}
	return rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "the token proves nothing: %w", refused.Err)
}

// noteDenial counts and notes a denial.
func (e *Enforcer) noteDenial(ctx context.Context, p principal.Principal, cause access.Cause, act, category string) {
	if cause != access.NotKnown && cause != access.OldTicket && cause != access.OldRights { // none is anybody's attempt
		e.trail.Note(ctx, audit.Entry{Action: act, Target: shortenName(category), Outcome: audit.Denied, Reason: string(cause)})
	}
	e.denials.WithLabelValues(string(cause)).Inc()
	e.log.Debug("denied", "kind", p.Kind.String(), "principal", p.Name, "token", p.TokenID(), "act", act, "cause", string(cause))
}

// denyCategory counts and notes a denial, and returns its error.
func (e *Enforcer) denyCategory(ctx context.Context, p principal.Principal, cause access.Cause, act, category string) error {
	e.noteDenial(ctx, p, cause, act, category)
	switch cause { // the others are denials of a known caller
	case access.NotKnown:
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, time.Second, "this process does not know yet who may %s: the control plane does not answer", act)
	case access.Unproven:
		return rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "the cell is closed, and the request proves nothing: send a token (SCRIBE_TOKEN, or the header Authorization: Bearer) or a client certificate")
	case access.BadToken:
		return rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "the token is not one of this cell: check SCRIBE_TOKEN")
	case access.Expired, access.Revoked, access.UnknownKey:
		return rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "the token has ended (%s): ask for another one", cause)
	case access.OldTicket:
		return rpc.Errorf(scribev1.Reason_REASON_TICKET_EXPIRED, "the ticket of the pointer is too old: open the stream again at the same position")
	case access.OldRights: // this copy of the rights is older than the stream's, or the stream ends now
		return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, retryKeys, "the read stream and this read proxy do not agree yet on what you may see of category %q", shortenName(category))
	case access.BadTicket:
		return rpc.Errorf(scribev1.Reason_REASON_DENIED, "the pointer came without a ticket, or with one for another reader, payload or place: fetch what a read stream has sent, as it was sent")
	case access.Inapplicable:
		return rpc.Errorf(scribev1.Reason_REASON_DENIED, "nobody may %s by grants that are limited to rows and columns which can't be told in it as it is now; an administrator sees why with scribe access check", act)
	case access.NotMember:
		return rpc.Errorf(scribev1.Reason_REASON_DENIED, "%s %q may not %s: that is for members of the cell", p.Kind, p.Name, act)
	case access.Damaged:
		return rpc.Errorf(scribev1.Reason_REASON_DENIED, "%s %q may not %s: the record of its rules is damaged; an administrator can grant them again", p.Kind, p.Name, act)
	default:
		return rpc.Errorf(scribev1.Reason_REASON_DENIED, "%s %q may not %s: no rule allows it; an administrator can grant it", p.Kind, p.Name, act)
	}
}

// BeginRead decides whether its caller may read or query a category, and to which rows and columns it is limited in that, nil for none. The context that it returns ends with a
// denial as its cause as soon as that right ends: a grant was taken, or a token was revoked or has expired. It ends as well when the rows and columns change, with
// REASON_TICKET_EXPIRED: who begins again gets the others. cancel releases it; there is none with an error.
func (e *Enforcer) BeginRead(ctx context.Context, what access.Permission, category string) (watched context.Context, limited *restrict.Restriction, cancel context.CancelFunc, err error) {
	limited, err = e.allowRead(ctx, what, category)
	if err != nil {
		return nil, nil, nil, err
	}
	e.countAccess(ctx, what, category)
	release := func() {}
	if action, ok := dataActions[what]; ok { // until it ends the trail says that the access goes on
		release = e.trail.HoldAccess(ctx, action, category)
	}
	watched, stop := e.watchCaller(ctx, func(ctx context.Context) error {
		p := principal.FromContext(ctx)
		d := e.decide(ctx, p, what, category)
		switch {
		case d.cause != access.Allowed:
			return e.denyCategory(ctx, p, d.cause, describeAct(what, category), category)
		case d.limited.Digest() != limited.Digest():
			return errLimitsChanged
		}
		return nil
	})
	return watched, limited, func() { stop(); release() }, nil
}

// watchCaller returns a context that ends with an error of check as its cause, which is called whenever rights change. While it is not
// known who may do what, the context goes on.
func (e *Enforcer) watchCaller(ctx context.Context, check func(context.Context) error) (_ context.Context, cancel context.CancelFunc) {
	ctx, stop := context.WithCancelCause(ctx)
	p := principal.FromContext(ctx)
	if p.Kind == principal.Member {
		return ctx, func() { stop(nil) }
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			set, replaced := e.rights.Watch()
			if p.Issued != nil && p.Issued.Ended(e.now()) { // all tokens of issuers do: that is nobody's attempt
				stop(errTokenEnded)
				return
			}
			if err := check(ctx); err != nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
				stop(err)
				return
			}
			wait := longestWait
			if end := set.EndOf(p); !end.IsZero() {
				wait = min(max(end.Sub(e.now()), 0)+time.Millisecond, longestWait)
			}
			var withdrawn <-chan struct{}
			if p.Issued != nil {
				withdrawn = p.Issued.Withdrawn
			}
			t := time.NewTimer(wait)
			select {
			case <-replaced:
			case <-withdrawn:
			case <-t.C:
			case <-ctx.Done():
				t.Stop()
				return
			}
			t.Stop()
		}
	}()
	return ctx, func() { stop(nil); <-ended }
}

// errTokenEnded ends what goes on with a token of an issuer. Whoever has another one opens it again.
var errTokenEnded = rpc.Errorf(scribev1.Reason_REASON_UNAUTHENTICATED, "the token has ended: ask its issuer for another one")

// longestWait bounds the time between two looks at the same rights: a token may end in years, and the wall clock may be set.
const longestWait = time.Minute

// endedBy returns the denial that ended a context of BeginRead, or err.
func endedBy(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		switch rpc.ReasonOf(cause) { //nolint:exhaustive // denials
		case scribev1.Reason_REASON_DENIED, scribev1.Reason_REASON_UNAUTHENTICATED, scribev1.Reason_REASON_TICKET_EXPIRED:
			return cause
		}
	}
	return err
}
