package quota

import (
	"cmp"
	"fmt"
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
	// Name is the name of the category, the prefix or the owner.
	Name string
}

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
	byOwner, byPrefix map[string]*scribev1.TenantQuota
	// lengths are those of prefixes, the longest first.
	lengths []int
}

// NewTenants returns an index of quotas, which must not change any more. It leaves out those that are of nobody.
func NewTenants(quotas []*scribev1.TenantQuota) *Tenants {
	if len(quotas) == 0 {
		return nil
	}
	t := &Tenants{byOwner: make(map[string]*scribev1.TenantQuota), byPrefix: make(map[string]*scribev1.TenantQuota)}
	for _, q := range quotas {
		switch owner, prefix := q.GetOwner(), q.GetPrefix(); {
		case owner != "":
			t.byOwner[owner] = q
		case prefix != "":
			t.byPrefix[prefix] = q
			if !slices.Contains(t.lengths, len(prefix)) {
				t.lengths = append(t.lengths, len(prefix))
			}
		}
	}
	slices.SortFunc(t.lengths, func(a, b int) int { return cmp.Compare(b, a) })
	return t
}

// QuotasOf returns the quotas that a category is under: that of the longest prefix of its name, and its owner's; nil where there is none. The cell's own
// categories are under none: nobody's quota may silence the audit trail.
func (t *Tenants) QuotasOf(name, owner string) (ofPrefix, ofOwner *scribev1.TenantQuota) {
	if t == nil || strings.HasPrefix(name, "_") {
		return nil, nil
	}
	if owner != "" {
		ofOwner = t.byOwner[owner]
	}
	for _, n := range t.lengths {
		if n <= len(name) {
			if q := t.byPrefix[name[:n]]; q != nil {
				return q, ofOwner
			}
		}
	}
	return nil, ofOwner
}

// Quotas returns all quotas, in no particular order.
func (t *Tenants) Quotas() (all []*scribev1.TenantQuota) {
	if t == nil {
		return nil
	}
	for _, byName := range []map[string]*scribev1.TenantQuota{t.byOwner, t.byPrefix} {
		for _, q := range byName {
			all = append(all, q)
		}
	}
	return all
}

// WriteLimits returns the quotas that what is written to a category has to pass, in order.
func WriteLimits(c *scribev1.Category, t *Tenants) []Limit {
	own := Limit{Bytes: c.GetQuotaBytesPerSecond(), Mode: c.GetQuotaMode()}
	return limitsOf(c, t, own, func(q *scribev1.TenantQuota) Limit { return Limit{Bytes: q.GetWriteBytesPerSecond()} })
}

// ReadLimits returns the quotas that what is read of a category has to pass, in order.
func ReadLimits(c *scribev1.Category, t *Tenants) []Limit {
	own := Limit{Bytes: c.GetReadQuotaBytesPerSecond(), Requests: c.GetReadQuotaRequestsPerSecond(), Mode: c.GetReadQuotaMode()}
	return limitsOf(c, t, own, func(q *scribev1.TenantQuota) Limit {
		return Limit{Bytes: q.GetReadBytesPerSecond(), Requests: q.GetReadRequestsPerSecond()}
	})
}

func limitsOf(c *scribev1.Category, t *Tenants, own Limit, valuesOf func(*scribev1.TenantQuota) Limit) (limits []Limit) {
	add := func(l Limit, k Key, kind Kind, name string) {
		if l.Bytes > 0 || l.Requests > 0 {
			l.Key, l.Kind, l.Name, l.Mode = k, kind, name, modeOf(c, l.Mode)
			limits = append(limits, l)
		}
	}
	add(own, Key{Category: c.GetId()}, OfCategory, c.GetName())
	ofPrefix, ofOwner := t.QuotasOf(c.GetName(), c.GetOwner())
	for _, q := range []*scribev1.TenantQuota{ofPrefix, ofOwner} {
		if q != nil {
			l, kind, name := valuesOf(q), OfPrefix, q.GetPrefix()
			if l.Mode = q.GetMode(); q.GetOwner() != "" {
				kind, name = OfOwner, q.GetOwner()
			}
			add(l, Key{Tenant: TenantText(q.GetOwner(), q.GetPrefix())}, kind, name)
		}
	}
	return limits
}

// modeOf returns what happens to a category beyond a quota with a mode. In exactly_once categories, sampling becomes blocking, since what is left
// out would be a gap in the sequences of producers, and a lost message for readers.
func modeOf(c *scribev1.Category, mode scribev1.QuotaMode) scribev1.QuotaMode {
	if mode == scribev1.QuotaMode_QUOTA_MODE_SAMPLE && c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
		return scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
	return mode
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
