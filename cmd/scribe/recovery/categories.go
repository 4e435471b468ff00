package recovery

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/units"
	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
)

// categoryRow has the facts about a category from footers.
type categoryRow struct {
	Name string `json:"name"`
	// Settings are those of the newest blob with settings.
	Settings   *layout.Settings `json:"settings,omitempty"`
	SettingsAt int64            `json:"settings_at,omitempty"`
	// Class is the retention class of the newest blob, in hours.
	Class uint32 `json:"class"`
	// Shards is one more than the highest logical shard.
	Shards uint32 `json:"shards"`
	// Sequenced: pointers have sequences, which occur only in exactly_once categories. Bound: there are logs of writer slot 0.
	Sequenced bool `json:"sequenced,omitempty"`
	Bound     bool `json:"bound,omitempty"`
	// Encrypted: the payloads of the newest blob are.
	Encrypted bool `json:"encrypted,omitempty"`
	// First and Last are the times of the oldest and the newest blob, Unix microseconds.
	First int64 `json:"first"`
	Last  int64 `json:"last"`
}

// categoryRows holds the rows in memory while blobs are read.
type categoryRows struct {
	rows  map[uint32]*categoryRow
	dirty map[uint32]bool
}

func newCategoryRows() *categoryRows {
	return &categoryRows{rows: map[uint32]*categoryRow{}, dirty: map[uint32]bool{}}
}

func (c *categoryRows) loadRows(ctx context.Context, s *scratchDB) error {
	return s.eachRow(ctx, []byte{keyCategory}, func(r scratchRow) error {
		row := new(categoryRow)
		if err := json.Unmarshal(r.value, row); err != nil || len(r.key) != 1+4 {
			return errScratch
		}
		c.rows[binary.BigEndian.Uint32(r.key[1:])] = row
		return nil
	})
}

// saveRows adds the changed rows to the batch.
func (c *categoryRows) saveRows(s *scratchDB) error {
	for id := range c.dirty {
		value, err := json.Marshal(c.rows[id])
		if err == nil {
			err = s.putRow(binary.BigEndian.AppendUint32([]byte{keyCategory}, id), value)
		}
		if err != nil {
			return err
		}
	}
	clear(c.dirty)
	return nil
}

// addEntry updates a category's row with an entry.
func (c *categoryRows) addEntry(f *layout.Footer, e *layout.Entry) {
	id := e.Shard.Category()
	row := c.rows[id]
	if row == nil {
		row = &categoryRow{First: f.Created, Last: f.Created}
		c.rows[id] = row
	}
	c.dirty[id] = true
	if row.Name == "" || f.Created >= row.Last {
		row.Name, row.Class, row.Encrypted = e.Category, f.Class, e.Pointer.Codec.IsEncrypted()
	}
	if e.Settings != nil && (row.Settings == nil || f.Created >= row.SettingsAt) {
		row.Settings, row.SettingsAt = e.Settings, f.Created
	}
	row.Shards = max(row.Shards, uint32(e.Shard.Logical())+1)
	row.Sequenced = row.Sequenced || len(e.Pointer.Sequences) > 0
	row.Bound = row.Bound || e.Shard.Writer() == 0
	row.First, row.Last = min(row.First, f.Created), max(row.Last, f.Created)
}

// categoryPlan is the outcome for each category.
type categoryPlan struct {
	categories []*scribev1.Category
	// keep are the deleted categories whose logs retention still has to remove.
	keep []*scribev1.Category
	// dropped are the categories whose logs are sealed, deleted those without logs. Both are retired.
	dropped, deleted map[uint32]bool
	retired          []uint32
	names            map[uint32]string
	retention        map[uint32]int64 // microseconds
	// sources are the logs of sequenced categories.
	sources  map[uint32][]sequencedFrom
	nextID   uint64
	findings []Finding
}

func (r *recoveryRun) makePlan(ctx context.Context) (*categoryPlan, error) {
	rows := newCategoryRows()
	if err := rows.loadRows(ctx, r.scratch); err != nil {
		return nil, err
	}
	retired := func(uint32) bool { return false }
	if r.deps.Base != nil {
		retired = r.deps.Base.IsRetired
	}
	p := planCategories(rows.rows, r.cfg.Catalog, retired, r.now)
	return p, r.findKeys(ctx, p.categories)
}

// findKeys sets the numbers of the keys of encrypted categories that were built from footers, or may have got newer keys since the copy.
func (r *recoveryRun) findKeys(ctx context.Context, categories []*scribev1.Category) error {
	for _, cat := range categories {
		older := r.cfg.Catalog != nil && r.cfg.Catalog.Older
		if !cat.GetEncrypted() || cat.GetKeyGeneration() > 0 && !older {
			continue
		}
		cat.KeyGeneration = max(cat.GetKeyGeneration(), 1)
		for k, err := range encryption.ListKeys(ctx, r.deps.Blobs, encryption.CategoryPrefix(cat.GetId())) {
			switch {
			case err == nil, errors.Is(err, encryption.ErrObject): // whether it can be read is for who reads it
				cat.KeyGeneration = max(cat.GetKeyGeneration(), k.Generation)
			default:
				return fmt.Errorf("find the keys of category %q: %w", cat.GetName(), err)
			}
		}
	}
	return nil
}

// copyDelay is the minimum age of a category, relative to a copy of the categories, at which its absence means that it was
// deleted: clocks differ, and copies lag.
const copyDelay = time.Minute

// planCategories decides which categories exist. It does no I/O. Categories that a copy of the logs knows as retired were deleted.
//
// An id is used for only one category, ids increase, and a name belongs to one category at a time. So a category that is not in a
// complete copy was deleted, and so was the one with the lower id of two that share a name.
func planCategories(rows map[uint32]*categoryRow, c *Catalog, retired func(uint32) bool, now int64) *categoryPlan {
	p := &categoryPlan{dropped: map[uint32]bool{}, deleted: map[uint32]bool{}, names: map[uint32]string{}, retention: map[uint32]int64{}, sources: map[uint32][]sequencedFrom{}, nextID: 1}
	byName := map[string]*scribev1.Category{}
	known := map[uint32]bool{}
	note := func(name, format string, args ...any) {
		p.findings = append(p.findings, Finding{Kind: FindingCategory, Category: name, Reason: fmt.Sprintf(format, args...)})
	}
	complete := false
	if c != nil {
		complete = c.NextID != 0 && !c.Older
		for _, cat := range c.Categories {
			known[cat.GetId()] = true
			byName[cat.GetName()] = cat
		}
		for _, cat := range c.Dropped {
			known[cat.GetId()] = true
			p.dropped[cat.GetId()] = true
			p.keep = append(p.keep, cat)
		}
	}
	if c != nil && !complete {
		for _, cat := range c.Categories {
			if newer := asOfCopy(cat, rows[cat.GetId()], note); newer != nil {
				byName[cat.GetName()] = newer
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		row := rows[id]
		p.names[id] = row.Name
		p.nextID = max(p.nextID, uint64(id)+1)
		switch {
		case known[id]:
			continue
		case retired(id):
			p.deleted[id] = true
			note(row.Name, "id %d is in blobs and retired in the logs of the backup: it was deleted, and its records are passed over", id)
			continue
		case complete && uint64(id) < c.NextID, c != nil && !complete && row.First < c.SavedAt-copyDelay.Microseconds():
			p.deleted[id] = true
			note(row.Name, "id %d is in blobs and not in the catalog, which is newer: it was deleted, and its records are passed over", id)
			continue
		}
		// Ids are processed in order, so a later category of the same name replaces this one.
		if old := byName[row.Name]; old != nil {
			if old.GetId() > id {
				p.deleted[id] = true
				note(row.Name, "id %d is in blobs, but the name belongs to the later id %d: it was deleted, and its records are passed over", id, old.GetId())
				continue
			}
			p.deleted[old.GetId()] = true
			note(row.Name, "id %d has the name now, so id %d was deleted, and its records are passed over", id, old.GetId())
		}
		byName[row.Name] = fromFooters(id, row, now, note)
	}
	for id := range known {
		p.nextID = max(p.nextID, uint64(id)+1)
	}
	if c != nil {
		p.nextID = max(p.nextID, c.NextID)
	}
	if !complete {
		p.nextID = min(p.nextID+IDMargin, 1<<32)
	}
	p.finishPlan(byName)
	return p
}

// asOfCopy returns a category of a copy that may be older than its last change, nil if it may stay as it is. Messages may be in shards
// that were added since, and placed by layouts that the copy does not have: a reader of one key must not rely on those that it has.
func asOfCopy(cat *scribev1.Category, row *categoryRow, note func(name, format string, args ...any)) *scribev1.Category {
	shards := max(cat.GetShards(), 1)
	if row != nil {
		shards = max(shards, row.Shards)
		if row.Settings != nil {
			shards = max(shards, row.Settings.Shards)
		}
	}
	places := cat.GetShardBy() == scribev1.ShardBy_SHARD_BY_KEY || cat.GetShardBy() == scribev1.ShardBy_SHARD_BY_FIELD
	// Parts of split shards have numbers above those of the others: the copy knows them by their lineage.
	grown := shards > max(cat.GetShards(), 1) && !cat.HasShard(shards-1)
	hidden := row != nil && row.Encrypted && !cat.GetEncrypted()
	if !grown && !hidden && (!places || cat.GetLayoutsForgotten()) {
		return nil
	}
	newer := proto.CloneOf(cat)
	if hidden {
		newer.Encrypted = true
		note(cat.GetName(), "id %d: its newest payloads are encrypted, unlike in the copy: so are new ones", cat.GetId())
	}
	if grown {
		newer.Shards = shards
		note(cat.GetName(), "id %d: it has %d logical shards, more than in the copy: those that were used", cat.GetId(), shards)
	}
	if places {
		newer.LayoutsForgotten = true
		note(cat.GetName(), "id %d: the copy may lack layouts by which messages were placed: readers of a key or a value read all shards", cat.GetId())
	}
	return newer
}

// finishPlan sorts the decisions.
func (p *categoryPlan) finishPlan(byName map[string]*scribev1.Category) {
	for _, cat := range byName {
		p.categories = append(p.categories, cat)
	}
	slices.SortFunc(p.categories, func(a, b *scribev1.Category) int { return cmp.Compare(a.GetId(), b.GetId()) })
	for _, cat := range p.categories {
		if cat.IsSequenced() {
			p.sources[cat.GetId()] = nil
			p.findings = append(p.findings, Finding{Kind: FindingCategory, Category: cat.GetName(), Reason: fmt.Sprintf(
				"id %d: the order in which it was sequenced is in no blob: it is sequenced anew, and readers with checkpoints of before get a gap and then everything again", cat.GetId())})
		}
	}
	for _, cat := range slices.Concat(p.categories, p.keep) {
		retention := cat.GetRetention().AsDuration()
		if retention <= 0 {
			retention = pointer.DefaultRetention
		}
		p.retention[cat.GetId()], p.names[cat.GetId()] = retention.Microseconds(), cat.GetName()
	}
	p.retired = slices.Sorted(maps.Keys(p.deleted))
	p.retired = slices.Concat(p.retired, slices.Sorted(maps.Keys(p.dropped)))
	slices.Sort(p.retired)
}

// fromFooters builds a category from footers, and reports the settings that it has to assume.
func fromFooters(id uint32, row *categoryRow, now int64, note func(name, format string, args ...any)) *scribev1.Category {
	cat := &scribev1.Category{
		Name: row.Name, Id: id, Shards: row.Shards, Retention: durationpb.New(time.Duration(row.Class) * time.Hour),
		Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, MaxMessageBytes: defaultMaxMessage, QuotaMode: scribev1.QuotaMode_QUOTA_MODE_BLOCK,
		CreatedAt: row.First, UpdatedAt: now, Encrypted: row.Encrypted,
	}
	s := row.Settings
	if s == nil {
		if row.Sequenced {
			cat.Delivery = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
		} else if row.Bound {
			cat.Repeatable = scribev1.Repeatability_REPEATABILITY_BOUND
		}
		note(row.Name, "id %d: its settings are in no blob; assumed: retention %v, at most the class of its blobs; %d logical shards, those that were "+
			"written to; delivery %v, repeatable %v; no owner, quota, ordering window or schema, and the default size of messages",
			id, units.Duration(cat.GetRetention().AsDuration()), cat.GetShards(), scribev1.EnumName(cat.GetDelivery()), repeatableName(cat))
		return cat
	}
	if s.Retention > 0 {
		cat.Retention = durationpb.New(s.Retention)
	}
	cat.Shards = max(cat.GetShards(), s.Shards)
	cat.Delivery, cat.Repeatable = scribev1.Delivery(s.Delivery), scribev1.Repeatability(s.Repeatable)
	note(row.Name, "id %d: retention %v, %d logical shards, delivery %v and repeatable %v are those of its newest blob; assumed: no owner, quota, "+
		"ordering window or schema, and the default size of messages", id, units.Duration(cat.GetRetention().AsDuration()), cat.GetShards(), scribev1.EnumName(cat.GetDelivery()), repeatableName(cat))
	return cat
}

func repeatableName(c *scribev1.Category) string {
	return scribev1.EnumName(cmp.Or(c.GetRepeatable(), scribev1.Repeatability_REPEATABILITY_NONE))
}

// defaultMaxMessage is the control plane's default for a category without a size.
const defaultMaxMessage = 16 << 20

func blobOfKey(key []byte) (class uint32, id pointer.BlobID) {
	return binary.BigEndian.Uint32(key[1:]), pointer.BlobID(key[5:])
}
