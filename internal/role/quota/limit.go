package quota

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cespare/xxhash/v2"

	"scribe/internal/base/units"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Kind says what a quota is of. It is the value of a metric's label.
type Kind string

// The kinds, in the order in which quotas are passed.
const (
	OfCategory Kind = "category"
	OfPrefix   Kind = "prefix"
	OfOwner    Kind = "owner"
)

// Key tells a quota from others of the same role: by the id of its category, or by its tenant as [TenantText] names it.
type Key struct {
	Category uint32
	Tenant   string
}

// stripe returns which of the locks guards the quota's state.
func (k Key) stripe() uint64 {
	if k.Tenant == "" {
		return uint64(k.Category % stripes)
	}
	return xxhash.Sum64String(k.Tenant) % stripes
}

// Limit is a quota in the whole cell, per second. A value of 0 limits nothing; at least one is above 0.
type Limit struct {
	Key
	Bytes    uint64
	Requests uint64
	Mode     scribev1.QuotaMode
	Kind     Kind
	// BesideSampled: the quota samples others, which take all of it. What it blocks may go into debt beside them, which they pay: else it would get nothing.
	BesideSampled bool
	// Name is the name of the category, the prefix or the owner.
	Name string
}

// MaxLimits is how many quotas a category may be under.
const MaxLimits = 3

// ownerPrefix begins the text of a tenant that is an owner. No name of a category has its last byte.
const ownerPrefix = "owner="

// TenantText returns the text that tells the tenant of a quota from others: "owner=shop" or "web.*", as rules of grants have them.
func TenantText(owner, prefix string) string {
	if owner != "" {
		return ownerPrefix + owner
	}
	return prefix + "*"
}

// CompareTenants orders quotas: those of owners by owner, then those of prefixes by prefix.
func CompareTenants(a, b *scribev1.TenantQuota) int {
	return cmp.Or(cmp.Compare(a.GetPrefix(), b.GetPrefix()), cmp.Compare(a.GetOwner(), b.GetOwner()))
}

// Tenants has the quotas of tenants by whom they are of. It is immutable, and nil has none.
type Tenants struct {
	owners map[string]*tenantLimits
	// prefixes are in order, so that a search finds the longest one of a name.
	prefixes []tenantLimits
}

// tenantLimits are the limits of a tenant, made once: what passes them allocates nothing.
type tenantLimits struct {
	quota       *scribev1.TenantQuota
	write, read Limit
	// wider is the index of the longest other prefix that the prefix begins with; -1 for none.
	wider int
}

// NewTenants returns an index of quotas, which must not change any more. It leaves out those that are not of one owner or one prefix: a newer program may know of whom
// they are.
func NewTenants(quotas []*scribev1.TenantQuota) *Tenants {
	t := &Tenants{owners: make(map[string]*tenantLimits)}
	byPrefix := make(map[string]*scribev1.TenantQuota)
	for _, q := range quotas {
		switch owner, prefix := q.GetOwner(), q.GetPrefix(); {
		case (owner == "") == (prefix == ""):
		case owner != "":
			t.owners[owner] = newTenantLimits(q, OfOwner, owner)
		default:
			byPrefix[prefix] = q
		}
	}
	if len(t.owners)+len(byPrefix) == 0 {
		return nil
	}
	for _, prefix := range slices.Sorted(maps.Keys(byPrefix)) {
		l := newTenantLimits(byPrefix[prefix], OfPrefix, prefix)
		l.wider = t.longestOf(prefix, len(t.prefixes)-1)
		t.prefixes = append(t.prefixes, *l)
	}
	return t
}

func newTenantLimits(q *scribev1.TenantQuota, kind Kind, name string) *tenantLimits {
	l := Limit{Key: Key{Tenant: TenantText(q.GetOwner(), q.GetPrefix())}, Kind: kind, Name: name, Mode: q.GetMode()}
	t := &tenantLimits{quota: q, write: l, read: l, wider: -1}
	t.write.Bytes = q.GetWriteBytesPerSecond()
	t.read.Bytes, t.read.Requests = q.GetReadBytesPerSecond(), q.GetReadRequestsPerSecond()
	return t
}

// longestOf returns the index of the longest prefix of a name, -1 for none. at is that of the last prefix that is not after the name: it begins with all prefixes
// of the name.
func (t *Tenants) longestOf(name string, at int) int {
	for at >= 0 && !strings.HasPrefix(name, t.prefixes[at].write.Name) {
		at = t.prefixes[at].wider
	}
	return at
}

// limitsOf returns what a category is under: the limits of the longest prefix of its name, and its owner's; nil where there are none. The cell's own categories are under
// none: nobody's quota may silence the audit trail.
func (t *Tenants) limitsOf(name, owner string) (ofPrefix, ofOwner *tenantLimits) {
	if t == nil || strings.HasPrefix(name, "_") {
		return nil, nil
	}
	if owner != "" {
		ofOwner = t.owners[owner]
	}
	at, found := slices.BinarySearchFunc(t.prefixes, name, func(l tenantLimits, name string) int { return strings.Compare(l.write.Name, name) })
	if !found {
		at--
	}
	if at = t.longestOf(name, at); at >= 0 {
		ofPrefix = &t.prefixes[at]
	}
	return ofPrefix, ofOwner
}

// QuotasOf returns the quotas that a category is under: that of the longest prefix of its name, and its owner's; nil where there is none.
func (t *Tenants) QuotasOf(name, owner string) (ofPrefix, ofOwner *scribev1.TenantQuota) {
	p, o := t.limitsOf(name, owner)
	if p != nil {
		ofPrefix = p.quota
	}
	if o != nil {
		ofOwner = o.quota
	}
	return ofPrefix, ofOwner
}

// AppendWriteLimits appends the quotas that what is written to a category has to pass, in order.
func AppendWriteLimits(to []Limit, c *scribev1.Category, t *Tenants) []Limit {
	to = appendLimit(to, c, Limit{Key: Key{Category: c.GetId()}, Kind: OfCategory, Name: c.GetName(), Bytes: c.GetQuotaBytesPerSecond(), Mode: c.GetQuotaMode()})
	ofPrefix, ofOwner := t.limitsOf(c.GetName(), c.GetOwner())
	if ofPrefix != nil {
		to = appendLimit(to, c, ofPrefix.write)
	}
	if ofOwner != nil {
		to = appendLimit(to, c, ofOwner.write)
	}
	return to
}

// AppendReadLimits appends the quotas that what is read of a category has to pass, in order.
func AppendReadLimits(to []Limit, c *scribev1.Category, t *Tenants) []Limit {
	to = appendLimit(to, c, Limit{
		Key: Key{Category: c.GetId()}, Kind: OfCategory, Name: c.GetName(), Bytes: c.GetReadQuotaBytesPerSecond(), Requests: c.GetReadQuotaRequestsPerSecond(), Mode: c.GetReadQuotaMode(),
	})
	ofPrefix, ofOwner := t.limitsOf(c.GetName(), c.GetOwner())
	if ofPrefix != nil {
		to = appendLimit(to, c, ofPrefix.read)
	}
	if ofOwner != nil {
		to = appendLimit(to, c, ofOwner.read)
	}
	return to
}

// appendLimit appends a limit, with what happens to a category beyond it. In exactly_once categories, sampling becomes blocking, since what is left out would be a gap in the
// sequences of producers, and a lost message for readers. So does what a newer program may know.
func appendLimit(to []Limit, c *scribev1.Category, l Limit) []Limit {
	if l.Bytes == 0 && l.Requests == 0 {
		return to
	}
	switch {
	case l.Mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
		l = l.Blocking()
	case l.Mode < scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED || l.Mode > scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		l.Mode = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
	return append(to, l)
}

// Blocking returns the limit for what it must block although it samples others.
func (l Limit) Blocking() Limit {
	l.Mode, l.BesideSampled = scribev1.QuotaMode_QUOTA_MODE_BLOCK, l.Kind != OfCategory
	return l
}

// RefusalError returns the error for what a quota refuses, with the time after which to try again. who is refused is said of the category: "category
// web.access is", or "readers of category web.access are".
func (l *Limit) RefusalError(who string, after time.Duration) error {
	var limits []string
	if l.Bytes > 0 {
		limits = append(limits, fmt.Sprintf("%v/s", units.Bytes(l.Bytes))) //nolint:gosec // a quota beyond int64 is none
	}
	if l.Requests > 0 {
		limits = append(limits, fmt.Sprintf("%d requests a second", l.Requests))
	}
	var quota string
	switch amount := strings.Join(limits, " and "); l.Kind {
	case OfOwner:
		quota = fmt.Sprintf("the quota of its owner %s, %s for all of its categories", l.Name, amount)
	case OfPrefix:
		quota = fmt.Sprintf("the quota of names that begin with %s, %s for all of them", l.Name, amount)
	case OfCategory:
		quota = "its quota of " + amount
	}
	return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, after, "%s over %s: try again in %v", who, quota, after.Round(time.Millisecond))
}
