package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// Keys of the store (docs/format/catalog.md).
const (
	categoryPrefix = "category/" // then the name
	droppedPrefix  = "dropped/"  // then the id in ten digits
	retiringPrefix = "retiring/" // then the name
	slotPrefix     = "slot/"     // then the slot in five digits
	accessPrefix   = "access/"   // then the key of a record, see package access
	planPrefix     = "plan/"     // then the category's id in ten digits
	trafficPrefix  = "traffic/"  // likewise
	nextIDKey      = "meta/next-category-id"
	// tenantQuotasKey has the quotas of all tenants.
	tenantQuotasKey = "meta/tenant-quotas"
	cellStoreKey    = "meta/blob-store"
	// accessChangesKey changes with every change of an access record, so that of two changes that were decided by the same records
	// one is decided anew.
	accessChangesKey = "meta/access-changes"
)

func categoryKey(name string) string { return categoryPrefix + name }
func droppedKey(id uint32) string    { return fmt.Sprintf("%s%010d", droppedPrefix, id) }
func retiringKey(name string) string { return retiringPrefix + name }
func slotKey(slot uint32) string     { return fmt.Sprintf("%s%05d", slotPrefix, slot) }
func planKey(id uint32) string       { return fmt.Sprintf("%s%010d", planPrefix, id) }
func trafficKey(id uint32) string    { return fmt.Sprintf("%s%010d", trafficPrefix, id) }

// categoryOfKey returns the id that a key has after its prefix; 0 if it has none.
func categoryOfKey(prefix, key string) uint32 {
	digits := strings.TrimPrefix(key, prefix)
	id, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || len(digits) != 10 {
		return 0
	}
	return uint32(id)
}

// encodeCategory returns the stored form of a category: the protobuf message without the revision, which the store keeps. Unknown
// fields of newer programs are kept.
func encodeCategory(c *scribev1.Category) ([]byte, error) {
	stored := proto.CloneOf(c)
	stored.Revision = 0
	return proto.MarshalOptions{Deterministic: true}.Marshal(stored)
}

// decodeCategory decodes a stored category.
func decodeCategory(name string, value []byte, revision uint64) (*scribev1.Category, error) {
	c := new(scribev1.Category)
	if err := proto.Unmarshal(value, c); err != nil {
		return nil, fmt.Errorf("%w: category %q: %w", kv.ErrCorrupt, name, err)
	}
	if c.GetName() != name || c.GetId() == 0 || record.ValidateCategory(name) != nil {
		return nil, fmt.Errorf("%w: category %q with id %d is stored under the name %q", kv.ErrCorrupt, c.GetName(), c.GetId(), name)
	}
	c.Revision = revision
	return c, nil
}

// decodeDeleted decodes a deleted category: one that retention has not finished, or one whose logs may not be retired yet.
func decodeDeleted(key string, value []byte) (*scribev1.Category, error) {
	c := new(scribev1.Category)
	if err := proto.Unmarshal(value, c); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, key, err)
	}
	fits := key == droppedKey(c.GetId()) || key == retiringKey(c.GetName()) && record.ValidateCategory(c.GetName()) == nil
	if c.GetId() == 0 || !fits {
		return nil, fmt.Errorf("%w: %s holds category %q with id %d", kv.ErrCorrupt, key, c.GetName(), c.GetId())
	}
	return c, nil
}

// encodeNextID returns the stored form of the counter of ids, in decimal. The counter may be one more than the largest id.
func encodeNextID(next uint64) []byte { return strconv.AppendUint(nil, next, 10) }

func decodeNextID(value []byte) (uint64, error) {
	next, err := strconv.ParseUint(string(value), 10, 64)
	if err != nil || next == 0 || next > maxID+1 || string(encodeNextID(next)) != string(value) {
		return 0, fmt.Errorf("%w: the counter of category ids is %.40q", kv.ErrCorrupt, value)
	}
	return next, nil
}

// slotVersion is the version of slotRecord. A newer version is refused.
const slotVersion = 1

// slotRecord is the stored form of a slot and its last holder. Times are Unix microseconds.
type slotRecord struct {
	Version int     `json:"version"`
	ID      string  `json:"id"`
	Roles   []int32 `json:"roles,omitempty"`
	URL     string  `json:"url,omitempty"`
	Program string  `json:"program,omitempty"`
	// Incarnation and Store are the member's; empty for one of an older program.
	Incarnation string `json:"incarnation,omitempty"`
	Store       string `json:"store,omitempty"`

	JoinedAt int64 `json:"joined_at"`
	TTL      int64 `json:"ttl_us"`
	// ExpiredAt is when the lease ended; 0 if it was live when this was written.
	ExpiredAt int64 `json:"expired_at,omitempty"`
	// SharesQuotas is Member.shares_quotas.
	SharesQuotas bool `json:"shares_quotas,omitempty"`
	// OwnCategories is Member.own_categories.
	OwnCategories bool `json:"own_categories,omitempty"`
	// HasKeys is Member.has_keys.
	HasKeys bool `json:"has_keys,omitempty"`
	// RemovedLogs is Member.removed_logs.
	RemovedLogs bool `json:"removed_logs,omitempty"`
}

func encodeSlot(m *scribev1.Member, ttl time.Duration, expiredAt int64) ([]byte, error) {
	r := slotRecord{
		Version: slotVersion, ID: m.GetId(), URL: m.GetUrl(), Program: m.GetVersion(),
		Incarnation: m.GetIncarnation(), Store: m.GetStore(), JoinedAt: m.GetJoinedAt(), TTL: ttl.Microseconds(), ExpiredAt: expiredAt, SharesQuotas: m.GetSharesQuotas(), OwnCategories: m.GetOwnCategories(), HasKeys: m.GetHasKeys(), RemovedLogs: m.GetRemovedLogs(),
	}
	for _, role := range m.GetRoles() {
		r.Roles = append(r.Roles, int32(role))
	}
	return json.Marshal(r)
}

// decodeSlot decodes the entry of a slot: the member, its TTL, and when its lease expired, 0 for never.
func decodeSlot(key string, value []byte) (m *scribev1.Member, ttl time.Duration, expiredAt int64, err error) {
	damaged := func(err error) (*scribev1.Member, time.Duration, int64, error) {
		return nil, 0, 0, fmt.Errorf("%w: %s: %w", kv.ErrCorrupt, key, err)
	}
	slot, err := strconv.ParseUint(strings.TrimPrefix(key, slotPrefix), 10, 32)
	if err != nil || slot == 0 || slot > MaxSlot || slotKey(uint32(slot)) != key {
		return damaged(errors.New("the key does not name a slot"))
	}
	var r slotRecord
	if err := json.Unmarshal(value, &r); err != nil {
		return damaged(err)
	}
	if r.Version != slotVersion {
		return damaged(fmt.Errorf("version %d, this program knows version %d", r.Version, slotVersion))
	}
	m = &scribev1.Member{Id: r.ID, Url: r.URL, Slot: uint32(slot), JoinedAt: r.JoinedAt, Version: r.Program, Incarnation: r.Incarnation, Store: r.Store, SharesQuotas: r.SharesQuotas, OwnCategories: r.OwnCategories, HasKeys: r.HasKeys, RemovedLogs: r.RemovedLogs}
	for _, role := range r.Roles {
		m.Roles = append(m.Roles, scribev1.Role(role))
	}
	ttl = time.Duration(r.TTL) * time.Microsecond
	if r.TTL < minTTL.Microseconds() || r.TTL > maxTTL.Microseconds() || r.ExpiredAt < 0 {
		return damaged(fmt.Errorf("ttl %d µs, expired at %d", r.TTL, r.ExpiredAt))
	}
	if violations := checkMember(m); len(violations) > 0 {
		return damaged(errors.New(violations.String()))
	}
	return m, ttl, r.ExpiredAt, nil
}
