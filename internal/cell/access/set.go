package access

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"scribe/internal/role/restrict"
	"scribe/internal/transport/principal"
)

// Set is who may do what at one moment. It never changes once it is in a [View], and its methods are safe for concurrent use. The
// zero Set is open.
type Set struct {
	tokens     map[string]*tokenEntry
	principals map[string]*rights
	roles      map[string]*rights
	keys       map[uint32][]byte
	newest     uint32 // key that signs
	newestAt   int64
	// closed is set by the first record of any kind, and stays: the end of the last token must not open a cell.
	closed bool
	// damaged counts the records that deny since they can't be decoded; rules those of principals and roles; limitBytes those of the limits of all records.
	damaged, rules, limitBytes int
	// unions are restrictions that several rules make together, by the digests of each. The sets that follow one another share it.
	unions *lru.Cache[string, *restrict.Restriction]
}

// keptUnions bounds the restrictions of several rules that are kept ready.
const keptUnions = 1024

// tokenEntry is a token.
type tokenEntry struct {
	principal string
	hash      [hashLen]byte
	expires   int64 // Unix microseconds; 0 = never
	revoked   int64
	issued    int64
	// own are the token's own rights; nil = those of its principal.
	own     *rights
	damaged bool
}

// rights are what the rules of a token, principal or role permit.
type rights struct {
	exact map[string]Permission
	// prefixes are by their text; lengths are the lengths of the texts, ascending.
	prefixes map[string]Permission
	lengths  []int
	owners   map[string]Permission
	// limited are rules that permit to read some rows and columns. The maps have none of them. limitBytes is the length of their limits.
	limited    []limitedRule
	limitBytes int
	// everywhere is what is permitted on every category, anywhere on some.
	everywhere, anywhere Permission
	roles                []string
	count                int
	damaged              bool
}

// limitedRule is a rule with a limit, and the restriction of who has no other.
type limitedRule struct {
	Rule
	alone *restrict.Restriction
}

// newRights compiles rules in their normal form. Rules that do not parse are an error: then the record is damaged.
func newRights(rules []string) (*rights, error) {
	r := &rights{count: len(rules)}
	for _, text := range rules {
		if IsRole(text) {
			r.roles = append(r.roles, text)
			continue
		}
		rule, err := ParseRule(text)
		if err != nil {
			return nil, err
		}
		if rule.coversAll() && rule.Permissions&Operate != 0 {
			rule.Permissions |= Monitor
		}
		r.anywhere |= rule.Permissions
		if !rule.Limit.IsZero() {
			r.limited = append(r.limited, limitedRule{rule, restrict.New(rule.Limit)})
			r.limitBytes += len(rule.Limit.String())
			continue
		}
		switch {
		case rule.coversAll():
			r.everywhere |= rule.Permissions
		case rule.kind == namePrefix:
			addPermission(&r.prefixes, rule)
		case rule.kind == ownerName:
			addPermission(&r.owners, rule)
		default:
			addPermission(&r.exact, rule)
		}
	}
	var seen [MaxName + 1]bool
	for text := range r.prefixes {
		seen[min(len(text), MaxName)] = true
	}
	for n, has := range seen {
		if has {
			r.lengths = append(r.lengths, n)
		}
	}
	return r, nil
}

func addPermission(m *map[string]Permission, rule Rule) {
	if *m == nil {
		*m = make(map[string]Permission)
	}
	(*m)[rule.text] |= rule.Permissions
}

// permits reports whether a rule permits p on a category, perhaps limited to rows and columns. The empty name is the cell as a whole.
func (r *rights) permits(p Permission, category, owner string) bool {
	return r.permitsAll(p, category, owner) || r.limitsOf(p, category, owner, nil) > 0
}

// limitsOf calls yield, unless it is nil, for each limited rule that permits p on a category, and counts them.
func (r *rights) limitsOf(p Permission, category, owner string, yield func(*limitedRule)) (n int) {
	if r == nil || r.damaged || len(r.limited) == 0 {
		return 0
	}
	for i := range r.limited {
		if rule := &r.limited[i]; rule.Permissions&p != 0 && rule.isFor(category, owner) {
			if n++; yield != nil {
				yield(rule)
			}
		}
	}
	return n
}

// permitsAll reports whether a rule permits p on a category, without a limit.
func (r *rights) permitsAll(p Permission, category, owner string) bool {
	if r == nil || r.damaged || r.anywhere&p == 0 {
		return false
	}
	if r.everywhere&p != 0 || r.exact[category]&p != 0 {
		return true
	}
	for _, n := range r.lengths {
		if n > len(category) {
			break
		}
		if r.prefixes[category[:n]]&p != 0 {
			return true
		}
	}
	return owner != "" && r.owners[owner]&p != 0
}

// deciding returns the rule that permits p, in words.
func (r *rights) deciding(p Permission, category, owner string) string {
	rule := func(kind patternKind, text string, of Permission) string {
		return Rule{Permissions: of, kind: kind, text: text}.String()
	}
	if !r.permitsAll(p, category, owner) {
		var texts []string
		r.limitsOf(p, category, owner, func(l *limitedRule) { texts = append(texts, l.String()) })
		return strings.Join(texts, "; ")
	}
	switch {
	case r.everywhere&p != 0:
		return rule(namePrefix, "", r.everywhere)
	case r.exact[category]&p != 0:
		return rule(exactName, category, r.exact[category])
	}
	for _, n := range r.lengths {
		if n <= len(category) && r.prefixes[category[:n]]&p != 0 {
			return rule(namePrefix, category[:n], r.prefixes[category[:n]])
		}
	}
	return rule(ownerName, owner, r.owners[owner])
}

// Closed reports whether only what a rule allows is allowed.
func (s *Set) Closed() bool { return s.closed }

// Cause says why something is denied. The values are those of a metric's label.
type Cause string

// The causes.
const (
	// Allowed is no denial.
	Allowed Cause = ""
	// NotKnown: this process does not know yet who may do what.
	NotKnown Cause = "not_known"
	// Unproven: who asks has not proved who it is.
	Unproven Cause = "unproven"
	// BadToken: no token is like that.
	BadToken Cause = "bad_token"
	// Expired and Revoked: the token was valid once.
	Expired Cause = "expired"
	Revoked Cause = "revoked"
	// NoRule: no rule allows it.
	NoRule Cause = "no_rule"
	// Damaged: the record with the rules can't be decoded.
	Damaged Cause = "damaged"
	// NotMember: it is for members of the cell.
	NotMember Cause = "not_member"
	// BadTicket: the ticket is missing, or of another reader, payload or place. OldTicket: it is too old.
	BadTicket Cause = "bad_ticket"
	OldTicket Cause = "old_ticket"
	// OldRights: read stream and read proxy do not agree on the rows and columns to which the reader is limited.
	OldRights Cause = "old_rights"
	// Inapplicable: the rows and columns to which a reader is limited can't be told in the category as it is.
	Inapplicable Cause = "inapplicable"
	// Of tokens of an issuer: BadAlgorithm and BadSignature: nobody vouches for it. UnknownKey: its key is not, or no longer, the issuer's.
	BadAlgorithm Cause = "bad_algorithm"
	BadSignature Cause = "bad_signature"
	UnknownKey   Cause = "unknown_key"
	// WrongIssuer and WrongAudience: it is of somebody else's, or for somebody else.
	WrongIssuer   Cause = "wrong_issuer"
	WrongAudience Cause = "wrong_audience"
	// NotYetValid: it is from the future. BadClaims: it lacks what is required, or a name.
	NotYetValid Cause = "not_yet_valid"
	BadClaims   Cause = "bad_claims"
)

// Causes are all causes of denials.
var Causes = []Cause{
	NotKnown, Unproven, BadToken, Expired, Revoked, NoRule, Damaged, NotMember, BadTicket, OldTicket, OldRights, Inapplicable,
	BadAlgorithm, BadSignature, UnknownKey, WrongIssuer, WrongAudience, NotYetValid, BadClaims,
}

// Decide returns why a principal may not do something to a category of an owner, or Allowed. It is for hot paths: it takes no lock and
// allocates nothing. The empty category is the cell as a whole.
func (s *Set) Decide(p principal.Principal, what Permission, category, owner string, now time.Time) Cause {
	if p.Kind == principal.Member || !s.Closed() {
		return Allowed
	}
	own, of, cause := s.rightsOf(p, now)
	switch {
	case cause != Allowed:
		return cause
	case isOperator(p) && what&(OfCell|Manage) != 0:
		return Allowed
	case own != nil && own.permits(what, category, owner):
		return Allowed
	case own != nil:
		return denied(own)
	case of.permits(what, category, owner):
		return Allowed
	}
	if s.roleThat(p, of, func(r *rights) bool { return r.permits(what, category, owner) }) != "" {
		return Allowed
	}
	return denied(of)
}

// DecideLimits is Decide, and says as well to which rows and columns the principal is limited in what it may do; nil if it is not. Both follow from one look at the
// rights. For who has no limits it costs what Decide does.
func (s *Set) DecideLimits(p principal.Principal, what Permission, category, owner string, now time.Time) (*restrict.Restriction, Cause) {
	if p.Kind == principal.Member || !s.Closed() {
		return nil, Allowed
	}
	own, of, cause := s.rightsOf(p, now)
	switch {
	case cause != Allowed:
		return nil, cause
	case isOperator(p) && what&(OfCell|Manage) != 0, own.permitsAll(what, category, owner):
		return nil, Allowed
	case own != nil:
		if r := s.unionOf(what, category, owner, own); r != nil {
			return r, Allowed
		}
		return nil, denied(own)
	case of.permitsAll(what, category, owner), s.roleThat(p, of, func(r *rights) bool { return r.permitsAll(what, category, owner) }) != "":
		return nil, Allowed
	}
	if r := s.unionOf(what, category, owner, append(s.rolesOf(p, of), of)...); r != nil {
		return r, Allowed
	}
	return nil, denied(of)
}

// unionOf returns the restriction that the limited rules of some rights make together; nil if none permits what.
func (s *Set) unionOf(what Permission, category, owner string, of ...*rights) *restrict.Restriction {
	var (
		single *restrict.Restriction
		more   []*restrict.Restriction
	)
	for _, r := range of {
		r.limitsOf(what, category, owner, func(rule *limitedRule) {
			switch {
			case single == nil:
				single = rule.alone
			case rule.alone.Digest() != single.Digest():
				more = append(more, rule.alone)
			}
		})
	}
	if len(more) == 0 {
		return single
	}
	more = append(more, single)
	digests := make([]string, len(more))
	for i, r := range more {
		d := r.Digest()
		digests[i] = string(d[:])
	}
	slices.Sort(digests)
	key := strings.Join(slices.Compact(digests), "")
	if s.unions == nil {
		return restrict.Union(more...)
	}
	if r, ok := s.unions.Get(key); ok {
		return r
	}
	r := restrict.Union(more...)
	s.unions.Add(key, r)
	return r
}

// HasLimits reports whether a principal has a rule that is limited to rows and columns.
func (s *Set) HasLimits(p principal.Principal, now time.Time) bool {
	if p.Kind == principal.Member || !s.Closed() {
		return false
	}
	own, of, cause := s.rightsOf(p, now)
	if cause != Allowed {
		return false
	}
	limited := func(r *rights) bool { return r != nil && !r.damaged && len(r.limited) > 0 }
	if own != nil {
		return limited(own)
	}
	return limited(of) || s.roleThat(p, of, limited) != ""
}

// rolesOf returns the rights of the roles of a principal with the rights of.
func (s *Set) rolesOf(p principal.Principal, of *rights) (list []*rights) {
	s.roleThat(p, of, func(r *rights) bool {
		list = append(list, r)
		return false
	})
	return list
}

// roleThat returns a role of a principal, with its rights of, whose rights meet a condition: one that is granted to it or that its issuer's token gives. "" if none is.
func (s *Set) roleThat(p principal.Principal, of *rights, meet func(*rights) bool) string {
	for _, role := range of.activeRoles() {
		if r := s.roles[role]; r != nil && meet(r) {
			return role
		}
	}
	if p.Issued == nil {
		return ""
	}
	for _, role := range p.Issued.Roles {
		if r := s.roles[role]; r != nil && meet(r) {
			return role
		}
	}
	return ""
}

// isOperator reports whether a certificate says that a principal operates the cell. What a token may is decided by its rules alone.
func isOperator(p principal.Principal) bool {
	return p.Kind == principal.Operator && p.Token == "" && p.Issued == nil
}

// activeRoles are the roles of a principal whose record is not damaged.
func (r *rights) activeRoles() []string {
	if r == nil || r.damaged {
		return nil
	}
	return r.roles
}

func denied(r *rights) Cause {
	if r != nil && r.damaged {
		return Damaged
	}
	return NoRule
}

// rightsOf returns the rights of a principal: its token's own, or those of its name, which may have roles.
func (s *Set) rightsOf(p principal.Principal, now time.Time) (own, of *rights, cause Cause) {
	if p.Kind == principal.Anonymous {
		return nil, nil, Unproven
	}
	switch {
	case p.Issued == nil:
	case p.Issued.WithoutKey():
		return nil, nil, UnknownKey
	case p.Issued.Ended(now):
		return nil, nil, Expired
	}
	if p.Token == "" {
		return nil, s.principals[p.Name], Allowed
	}
	t := s.tokens[p.Token]
	if cause := t.validity(now); cause != Allowed {
		return nil, nil, cause
	}
	if t.own != nil {
		return t.own, nil, Allowed
	}
	return nil, s.principals[t.principal], Allowed
}

// validity returns why a token proves nothing, or Allowed.
func (t *tokenEntry) validity(now time.Time) Cause {
	switch {
	case t == nil:
		return BadToken
	case t.damaged:
		return Damaged
	case t.revoked != 0:
		return Revoked
	case t.expires != 0 && now.UnixMicro() >= t.expires:
		return Expired
	}
	return Allowed
}

// DecideAny returns why a principal may do none of some things to any category, or Allowed if it may do one of them to one.
func (s *Set) DecideAny(p principal.Principal, what Permission, now time.Time) Cause {
	if p.Kind == principal.Member || !s.Closed() {
		return Allowed
	}
	own, of, cause := s.rightsOf(p, now)
	if cause != Allowed {
		return cause
	}
	if isOperator(p) && what&(OfCell|Manage) != 0 {
		return Allowed
	}
	for _, r := range []*rights{own, of} {
		if r != nil && !r.damaged && r.anywhere&what != 0 {
			return Allowed
		}
	}
	if s.roleThat(p, of, func(r *rights) bool { return !r.damaged && r.anywhere&what != 0 }) != "" {
		return Allowed
	}
	if own != nil {
		return denied(own)
	}
	return denied(of)
}

// UsesOwners reports whether a rule about owners may permit something to a principal, so that the owner of a category that is not
// known here is worth asking for.
func (s *Set) UsesOwners(p principal.Principal, what Permission, now time.Time) bool {
	own, of, cause := s.rightsOf(p, now)
	if cause != Allowed {
		return false
	}
	if own.hasOwners(what) || of.hasOwners(what) {
		return true
	}
	return s.roleThat(p, of, func(r *rights) bool { return r.hasOwners(what) }) != ""
}

func (r *rights) hasOwners(what Permission) bool {
	if r == nil || r.damaged {
		return false
	}
	for _, p := range r.owners {
		if p&what != 0 {
			return true
		}
	}
	return false
}

// Explanation is a decision in words.
type Explanation struct {
	Allowed bool
	// Rule is the rule that decides, Holder whose it is; empty if none does.
	Rule, Holder string
	// Reason is for people.
	Reason string
	// Limits are to which rows and columns it is limited: what one of them shows is visible. None means that it is not.
	Limits []string
}

// Explain decides as Decide does, and says why.
func (s *Set) Explain(p principal.Principal, what Permission, category, owner string, now time.Time) Explanation {
	limited, cause := s.DecideLimits(p, what, category, owner, now)
	own, of, _ := s.rightsOf(p, now)
	e := Explanation{Allowed: cause == Allowed, Limits: limited.Texts()}
	decide := func(r *rights, holder, reason string) Explanation {
		e.Rule, e.Holder, e.Reason = r.deciding(what, category, owner), holder, reason
		return e
	}
	switch {
	case !s.Closed():
		e.Reason = "the cell is open: there is no token and no grant"
	case !e.Allowed:
		e.Reason = cause.Explain()
	case p.Kind == principal.Member:
		e.Reason = "members of the cell may do what they must"
	case own != nil && own.permits(what, category, owner):
		return decide(own, "token "+p.Token, "a rule of the token")
	case of != nil && of.permits(what, category, owner) && (len(e.Limits) > 0 || of.permitsAll(what, category, owner)):
		return decide(of, s.nameOf(p), "a rule of the principal")
	default:
		if role := s.roleThat(p, of, func(r *rights) bool { return r.permitsAll(what, category, owner) }); role != "" {
			return decide(s.roles[role], role, "a rule of a role of the principal")
		}
		if role := s.roleThat(p, of, func(r *rights) bool { return r.permits(what, category, owner) }); role != "" {
			return decide(s.roles[role], role, "a rule of a role of the principal")
		}
		e.Reason = "operators may operate, monitor and manage"
	}
	return e
}

// nameOf returns the name whose grants count for a principal.
func (s *Set) nameOf(p principal.Principal) string {
	if t := s.tokens[p.Token]; t != nil {
		return t.principal
	}
	return p.Name
}

// Explain is the cause for people.
func (c Cause) Explain() string {
	switch c {
	case NotKnown:
		return "this process does not know yet who may do what"
	case Unproven:
		return "who asks has not proved who it is"
	case BadToken:
		return "there is no such token"
	case Expired:
		return "the token has expired"
	case Revoked:
		return "the token was revoked"
	case UnknownKey:
		return "the issuer has withdrawn the key of the token"
	case Damaged:
		return "the record of its rules is damaged: give the rules again"
	default:
		return "no rule allows it"
	}
}

// HasAdministrator reports whether anybody may operate the cell by a token or a grant.
func (s *Set) HasAdministrator(now time.Time) bool {
	for id, t := range s.tokens {
		if t.validity(now) == Allowed && s.Decide(principal.Principal{Kind: principal.Client, Name: t.principal, Token: id}, Operate, "", "", now) == Allowed {
			return true
		}
	}
	for name := range s.principals {
		if s.Decide(principal.Principal{Kind: principal.Client, Name: name}, Operate, "", "", now) == Allowed {
			return true
		}
	}
	return false
}

// Tokens counts the tokens.
func (s *Set) Tokens() int { return len(s.tokens) }

// Principals counts the principals and roles that have grants.
func (s *Set) Principals() int { return len(s.principals) + len(s.roles) }

// Rules counts the rules of all grants.
func (s *Set) Rules() int { return s.rules }

// LimitBytes is the length of the limits to rows and columns of all records.
func (s *Set) LimitBytes() int { return s.limitBytes }

// MostLimits returns the name of a category for which some rules of one reader have more different limits than for any other, and how many.
func MostLimits(rules []string) (category string, most int) {
	r, err := newRights(slices.DeleteFunc(slices.Clone(rules), IsRole))
	if err != nil {
		return "", 0
	}
	// All rules that are for one category are for the longest of their patterns, as a name, as well.
	for i := range r.limited {
		name := cmp.Or(r.limited[i].text, "a") // of a star alone any
		for _, what := range []Permission{Read, Query} {
			different := map[restrict.Digest]bool{}
			r.limitsOf(what, name, "", func(l *limitedRule) { different[l.alone.Digest()] = true })
			if len(different) > most {
				category, most = name, len(different)
			}
		}
	}
	return category, most
}

// LimitBytesOf is the length of the limits to rows and columns of some rules.
func LimitBytesOf(rules []string) int {
	r, err := newRights(rules)
	if err != nil {
		return 0
	}
	return r.limitBytes
}

// Damaged counts the records that deny since they can't be decoded.
func (s *Set) Damaged() int { return s.damaged }

// NewestKey returns the key that signs tickets, and when it was made in Unix microseconds; 0 if there is none.
func (s *Set) NewestKey() (id uint32, createdAt int64) { return s.newest, s.newestAt }

// clone returns a copy that can be changed. Rights and keys are shared: they never change.
func (s *Set) clone() *Set {
	c := *s
	if c.unions == nil {
		c.unions, _ = lru.New[string, *restrict.Restriction](keptUnions) // fails only without a bound
	}
	c.tokens, c.principals, c.roles, c.keys = maps.Clone(s.tokens), maps.Clone(s.principals), maps.Clone(s.roles), maps.Clone(s.keys)
	return &c
}
