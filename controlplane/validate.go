package controlplane

import (
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/controlplane/request"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
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
	maxLinger        = 5 * time.Minute
	maxOwner         = 255
	maxSchema        = 1 << 20
	schemaInfer      = "infer"
	minCacheAge      = time.Second
	maxCacheAge      = 30 * 24 * time.Hour // memcached reads larger values as a date

	maxMemberID      = 255
	maxMemberRoles   = 16
	maxMemberURL     = 2048
	maxMemberVersion = 255
	maxIdentity      = 64 // of a start of a process, and of a store
	maxLoad          = 1000
	minTTL           = 100 * time.Millisecond
	maxTTL           = 5 * time.Minute
	defaultTTL       = 10 * time.Second

	minHeartbeat     = 50 * time.Millisecond
	defaultHeartbeat = 5 * time.Second
)

// checkCategoryName checks the name of a category.
func checkCategoryName(v *request.Violations, field, name string) {
	if err := record.ValidateCategory(name); err != nil {
		v.Add(field, "%v", err)
	}
}

// setDefaults fills in the zero fields of a new category.
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
	if c.GetShardBy() == scribev1.ShardBy_SHARD_BY_UNSPECIFIED {
		c.ShardBy = scribev1.ShardBy_SHARD_BY_STICKY
	}
	if c.GetQuotaMode() == scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED {
		c.QuotaMode = scribev1.QuotaMode_QUOTA_MODE_BLOCK
	}
}

// checkCategory returns the violations of a category whose defaults are set, as one error. what names the request. before is the
// category that it replaces, or nil. It replaces c's schema, a request's text, by the form that a category keeps: all versions.
func checkCategory(c, before *scribev1.Category, forceSchema bool, what string) error {
	var v request.Violations
	checkCategoryName(&v, "name", c.GetName())
	if name := c.GetName(); strings.HasPrefix(name, "_") && !record.IsOwnCategory(name) {
		v.Add("name", "%q is a name for the cell's own categories: want one that begins with a letter or a digit", name)
	}
	v.CheckText("owner", c.GetOwner(), maxOwner)
	v.CheckDuration("retention", c.GetRetention(), minRetention, maxRetention)
	switch {
	case c.GetShards() < 1 || c.GetShards() > maxShards:
		v.Add("shards", "%d is not within 1 and %d", c.GetShards(), maxShards)
	case c.GetShards() < before.GetShards():
		v.Add("shards", "%d is fewer than the %d that there are; shards can only be added", c.GetShards(), before.GetShards())
	}
	switch c.GetDelivery() {
	case scribev1.Delivery_DELIVERY_BEST_EFFORT, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, scribev1.Delivery_DELIVERY_EXACTLY_ONCE:
	case scribev1.Delivery_DELIVERY_UNSPECIFIED:
		v.Add("delivery", "is not set")
	default:
		v.Add("delivery", "%d is not known", c.GetDelivery())
	}
	checkQuotaMode(&v, "quota_mode", c, c.GetQuotaMode())
	checkQuotaMode(&v, "read_quota_mode", c, c.GetReadQuotaMode())
	if p := c.GetPriority(); p < scribev1.Priority_PRIORITY_UNSPECIFIED || p > scribev1.Priority_PRIORITY_CRITICAL {
		v.Add("priority", "%d is not known", p)
	}
	checkRepeatable(&v, "repeatable", c, before)
	checkShardBy(&v, c)
	if c.GetAutoSplit() && !placesMessages(c.GetShardBy()) {
		v.Add("auto_split", "beside shard_by %s: only shards by key or field can be split", scribev1.EnumName(c.GetShardBy()))
	}
	if c.GetMaxMessageBytes() < 1 || c.GetMaxMessageBytes() > maxMessage {
		v.Add("max_message_bytes", "%v is not within 1B and %v", units.Bytes(c.GetMaxMessageBytes()), units.Bytes(maxMessage))
	}
	if w := c.GetOrderingWindow(); w != nil {
		v.CheckDuration("ordering_window", w, 0, maxRetention)
	}
	if l := c.GetLinger(); l != nil {
		v.CheckDuration("linger", l, 0, maxLinger)
	}
	checkCachePolicy(&v, c.GetCache())
	v.CheckText("schema", c.GetSchema(), maxSchema)
	var schemaErr error
	if len(c.GetSchema()) <= maxSchema && utf8.ValidString(c.GetSchema()) {
		c.Schema, schemaErr = newSchema(before.GetSchema(), c.GetSchema(), forceSchema)
		addSchemaError(&v, schemaErr)
	}
	return categoryError(what, v, schemaErr)
}

// checkRepeatable checks the order of a category. Whether it is sequenced can't change: checkpoints of readers name logs, and
// a sequenced category has other logs.
func checkRepeatable(v *request.Violations, field string, c, before *scribev1.Category) {
	switch r := c.GetRepeatable(); r {
	case scribev1.Repeatability_REPEATABILITY_UNSPECIFIED, scribev1.Repeatability_REPEATABILITY_NONE, scribev1.Repeatability_REPEATABILITY_BOUND,
		scribev1.Repeatability_REPEATABILITY_SEQUENCED:
		if before != nil && c.IsSequenced() != before.IsSequenced() {
			v.Add(field, "sequenced is decided when a category is created, and not changed afterwards: create another one")
		}
	default:
		v.Add(field, "%d is not known", r)
	}
}

// checkQuotaMode checks the mode of a category's quota. Categories older than the modes have none, which means block.
func checkQuotaMode(v *request.Violations, field string, c *scribev1.Category, mode scribev1.QuotaMode) {
	switch mode {
	case scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED, scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE:
	case scribev1.QuotaMode_QUOTA_MODE_SAMPLE:
		if c.GetDelivery() == scribev1.Delivery_DELIVERY_EXACTLY_ONCE {
			v.Add(field, "sample drops frames, which exactly_once takes for lost ones: use block or throttle")
		}
	default:
		v.Add(field, "%d is not known", mode)
	}
}

// checkCachePolicy checks how read proxies cache a category.
func checkCachePolicy(v *request.Violations, p *scribev1.CachePolicy) {
	const reused = scribev1.CacheMode_CACHE_MODE_REUSED
	switch mode := p.GetMemory(); {
	case mode == reused:
		v.Add("cache.memory", "reused is for memcached: memory keeps what is asked for again for longer by itself")
	case mode < 0 || mode > reused:
		v.Add("cache.memory", "%d is not known", mode)
	}
	if mode := p.GetMemcached(); mode < 0 || mode > reused {
		v.Add("cache.memcached", "%d is not known", mode)
	}
	if age := p.GetMemcachedAge(); age != nil {
		v.CheckDuration("cache.memcached_age", age, minCacheAge, maxCacheAge)
	}
}

// checkMember returns the violations of a member.
func checkMember(m *scribev1.Member) (v request.Violations) {
	if m.GetId() == "" {
		v.Add("id", "is empty")
	}
	v.CheckText("id", m.GetId(), maxMemberID)
	if len(m.GetRoles()) == 0 || len(m.GetRoles()) > maxMemberRoles {
		v.Add("roles", "%d of them, want 1 to %d", len(m.GetRoles()), maxMemberRoles)
	} else {
		for i, role := range m.GetRoles() {
			// Accept unknown roles of newer programs: their watchers know them.
			if role <= scribev1.Role_ROLE_UNSPECIFIED {
				v.Add("roles", "number %d is %d, which is not a role", i+1, role)
			}
		}
	}
	v.CheckText("url", m.GetUrl(), maxMemberURL)
	if u, err := url.Parse(m.GetUrl()); m.GetUrl() != "" && (err != nil || u.Scheme == "" || (u.Host == "" && u.Path == "")) {
		v.Add("url", "%.100q is not an absolute URL", m.GetUrl())
	}
	if m.GetLoad() > maxLoad {
		v.Add("load", "%d is above %d", m.GetLoad(), maxLoad)
	}
	checkLoads(&v, m.GetLoads())
	v.CheckText("version", m.GetVersion(), maxMemberVersion)
	v.CheckText("incarnation", m.GetIncarnation(), maxIdentity)
	v.CheckText("store", m.GetStore(), maxIdentity)
	return v
}

// checkLoads adds the violations of the loads of a member's roles. Roles of newer programs are accepted, as in checkMember.
func checkLoads(v *request.Violations, loads []*scribev1.RoleLoad) {
	if len(loads) > maxMemberRoles {
		v.Add("loads", "%d of them, want at most %d", len(loads), maxMemberRoles)
		return
	}
	for _, l := range loads {
		if l.GetLoad() > maxLoad {
			v.Add("loads", "%d is above %d", l.GetLoad(), maxLoad)
		}
	}
}
