package controlplane

import (
	"fmt"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Bounds and defaults of a category's and a member's fields, as the protocol describes them.
const (
	minRetention     = time.Minute
	maxRetention     = 10 * 365 * 24 * time.Hour
	defaultRetention = 72 * time.Hour
	maxShards        = 10_000
	defaultMessage   = 16 << 20
	maxMessage       = 32 << 20
	maxOwner         = 255
	maxSchema        = 1 << 20
	schemaInfer      = "infer"
	minCacheAge      = time.Second
	maxCacheAge      = 30 * 24 * time.Hour // what memcached keeps for longer it takes for a date

	maxMemberID      = 255
	maxMemberRoles   = 16
	maxMemberURL     = 2048
	maxMemberVersion = 255
	maxLoad          = 1000
	minTTL           = 100 * time.Millisecond
	maxTTL           = 5 * time.Minute
	defaultTTL       = 10 * time.Second

	minHeartbeat     = 50 * time.Millisecond
	defaultHeartbeat = 5 * time.Second
)

// faults collects what is wrong with a request, so that one answer tells all of it.
type faults []string

// add notes a fault of a field.
func (f *faults) add(field, format string, args ...any) {
	*f = append(*f, field+": "+fmt.Sprintf(format, args...))
}

// String joins the faults.
func (f faults) String() string { return strings.Join(f, "; ") }

// err returns the faults as one error, nil if there are none. what is what was to be done.
func (f faults) err(what string) error {
	if len(f) == 0 {
		return nil
	}
	return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %s", what, f)
}

// between checks a duration that is set.
func (f *faults) between(field string, d *durationpb.Duration, low, high time.Duration) {
	if err := d.CheckValid(); err != nil {
		f.add(field, "is not a duration")
	} else if v := d.AsDuration(); v < low || v > high {
		f.add(field, "%v is not within %v and %v", units.Duration(v), units.Duration(low), units.Duration(high))
	}
}

// text checks free text.
func (f *faults) text(field, s string, limit int) {
	switch {
	case len(s) > limit:
		f.add(field, "%d bytes, the limit is %d", len(s), limit)
	case !utf8.ValidString(s):
		f.add(field, "is not UTF-8")
	}
}

// name checks the name of a category.
func (f *faults) name(field, name string) {
	if err := record.ValidateCategory(name); err != nil {
		f.add(field, "%v", err)
	}
}

// setDefaults fills in what a new category leaves at zero.
func setDefaults(c *scribev1.Category) {
	if r := c.GetRetention(); r.GetSeconds() == 0 && r.GetNanos() == 0 {
		c.Retention = durationpb.New(defaultRetention)
	}
	if c.GetShards() == 0 {
		c.Shards = 1
	}
	if c.GetDelivery() == scribev1.Delivery_DELIVERY_UNSPECIFIED {
		c.Delivery = scribev1.Delivery_DELIVERY_AT_LEAST_ONCE
	}
	if c.GetMaxMessageBytes() == 0 {
		c.MaxMessageBytes = defaultMessage
	}
	if c.GetQuotaMode() == scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED {
		c.QuotaMode = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
}

// checkCategory reports what is wrong with a category whose defaults are set, as the error of what is to be done. before is the one that it
// replaces, nil for none. The schema of c, which is the text of one, becomes what a category keeps: all versions.
func checkCategory(c, before *scribev1.Category, forceSchema bool, what string) error {
	var f faults
	f.name("name", c.GetName())
	f.text("owner", c.GetOwner(), maxOwner)
	f.between("retention", c.GetRetention(), minRetention, maxRetention)
	switch {
	case c.GetShards() < 1 || c.GetShards() > maxShards:
		f.add("shards", "%d is not within 1 and %d", c.GetShards(), maxShards)
	case c.GetShards() < before.GetShards():
		f.add("shards", "%d is fewer than the %d that there are; shards can only be added", c.GetShards(), before.GetShards())
	}
	switch c.GetDelivery() {
	case scribev1.Delivery_DELIVERY_BEST_EFFORT, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
	case scribev1.Delivery_DELIVERY_UNSPECIFIED:
		f.add("delivery", "is not set")
	default:
		f.add("delivery", "%d is not known", c.GetDelivery())
	}
	f.quotaMode("quota_mode", c)
	f.repeatable("repeatable", c, before)
	if c.GetMaxMessageBytes() < 1 || c.GetMaxMessageBytes() > maxMessage {
		f.add("max_message_bytes", "%v is not within 1B and %v", units.Bytes(c.GetMaxMessageBytes()), units.Bytes(maxMessage))
	}
	if w := c.GetOrderingWindow(); w != nil {
		f.between("ordering_window", w, 0, maxRetention)
	}
	f.cache(c.GetCache())
	f.text("schema", c.GetSchema(), maxSchema)
	var schemaErr error
	if len(c.GetSchema()) <= maxSchema && utf8.ValidString(c.GetSchema()) {
		c.Schema, schemaErr = newSchema(before.GetSchema(), c.GetSchema(), forceSchema)
		f.schema(schemaErr)
	}
	return categoryError(what, f, schemaErr)
}

// repeatable checks the order of a category. Checkpoints of readers name the logs that they read, which a sequenced category has others of.
func (f *faults) repeatable(field string, c, before *scribev1.Category) {
	switch r := c.GetRepeatable(); r {
	case scribev1.Repeatability_REPEATABILITY_UNSPECIFIED, scribev1.Repeatability_REPEATABILITY_NONE, scribev1.Repeatability_REPEATABILITY_BOUND,
		scribev1.Repeatability_REPEATABILITY_SEQUENCED:
		if before != nil && c.IsSequenced() != before.IsSequenced() {
			f.add(field, "sequenced is decided when a category is created, and not changed afterwards: create another one")
		}
	default:
		f.add(field, "%d is not known", r)
	}
}

// quotaMode checks what happens beyond a category's quota. Categories from before there were modes have none, which is block.
func (f *faults) quotaMode(field string, c *scribev1.Category) {
	switch mode := c.GetQuotaMode(); mode {
	case scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
	case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		if c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
			f.add(field, "sample drops frames, which exactly_once takes for lost ones: use block or throttle")
		}
	default:
		f.add(field, "%d is not known", mode)
	}
}

// cache checks how read proxies are to cache a category.
func (f *faults) cache(p *scribev1.CachePolicy) {
	const reused = scribev1.CacheMode_CACHE_MODE_REUSED
	switch mode := p.GetMemory(); {
	case mode == reused:
		f.add("cache.memory", "reused is for memcached: memory keeps what is asked for again for longer by itself")
	case mode < 0 || mode > reused:
		f.add("cache.memory", "%d is not known", mode)
	}
	if mode := p.GetMemcached(); mode < 0 || mode > reused {
		f.add("cache.memcached", "%d is not known", mode)
	}
	if age := p.GetMemcachedAge(); age != nil {
		f.between("cache.memcached_age", age, minCacheAge, maxCacheAge)
	}
}

// checkMember reports what is wrong with a member.
func checkMember(m *scribev1.Member) (f faults) {
	if m.GetId() == "" {
		f.add("id", "is empty")
	}
	f.text("id", m.GetId(), maxMemberID)
	if len(m.GetRoles()) == 0 || len(m.GetRoles()) > maxMemberRoles {
		f.add("roles", "%d of them, want 1 to %d", len(m.GetRoles()), maxMemberRoles)
	} else {
		for i, role := range m.GetRoles() {
			// A role that this program does not know is one of a newer program's: who watches for it knows it.
			if role <= scribev1.Role_ROLE_UNSPECIFIED {
				f.add("roles", "number %d is %d, which is not a role", i+1, role)
			}
		}
	}
	f.text("url", m.GetUrl(), maxMemberURL)
	if u, err := url.Parse(m.GetUrl()); m.GetUrl() != "" && (err != nil || u.Scheme == "" || (u.Host == "" && u.Path == "")) {
		f.add("url", "%.100q is not an absolute URL", m.GetUrl())
	}
	if m.GetLoad() > maxLoad {
		f.add("load", "%d is above %d", m.GetLoad(), maxLoad)
	}
	f.text("version", m.GetVersion(), maxMemberVersion)
	return f
}

// heartbeatOf returns how long a watch may be silent.
func heartbeatOf(d *durationpb.Duration) (time.Duration, error) {
	if d == nil || (d.GetSeconds() == 0 && d.GetNanos() == 0) {
		return defaultHeartbeat, nil
	}
	var f faults
	f.between("heartbeat", d, minHeartbeat, 24*time.Hour)
	return d.AsDuration(), f.err("watch")
}
