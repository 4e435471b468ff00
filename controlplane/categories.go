package controlplane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/columnar/near"
	"scribe/controlplane/request"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// maxAttempts bounds the attempts of a change that names no revision and conflicts with other changes.
const maxAttempts = 16

// maxNames bounds the names of a list.
const maxNames = 1000

// maxList is the largest page of ListCategories.
const maxList = 10_000

// CreateCategory implements rpc.ControlService. A deleted category of the same name must have been retired: a batcher that does
// not know of the deletion looks up the name of a frame in its copy of the categories, finds the old id, and puts the frame into
// the old logs. If it answered after the create, the frame would be acknowledged and no reader of the new category would see it.
func (c *ControlPlane) CreateCategory(ctx context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	if req.GetCategory() == nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "create category: category: is missing")
	}
	cat := proto.CloneOf(req.GetCategory())
	what := fmt.Sprintf("create category %q", shorten(cat.GetName()))
	cat.ProtoReflect().SetUnknown(nil) // this program can't check fields that it does not know
	setDefaults(cat)
	cat.Cache = cachePolicy(cat.GetCache())
	cat.FormerLayouts, cat.LayoutsForgotten, cat.Ranges, cat.Lineage = nil, false, nil, nil // a new category has had none
	if cat.KeyGeneration = 0; cat.GetEncrypted() {
		cat.KeyGeneration = 1
	}
	if err := checkCategory(cat, nil, false, what); err != nil {
		return nil, err
	}
	for range maxAttempts {
		// Most creates of an existing category come from programs that create their categories at every start. Do not spend a
		// transaction and an id on them.
		existing, err := c.readCategory(ctx, cat.GetName())
		if err == nil {
			return existsAnswer(existing, req.GetIfNotExists())
		}
		if !errors.Is(err, kv.ErrNotFound) {
			return nil, request.ReadError(what, err)
		}
		if err := c.awaitRetired(ctx, what, cat.GetName()); err != nil {
			return nil, err
		}
		if cat.GetEncrypted() {
			if err := c.checkKeys(ctx, what); err != nil {
				return nil, err
			}
		}
		err = c.insertCategory(ctx, what, cat)
		if err == nil {
			return &scribev1.CreateCategoryResponse{Category: cat}, nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			return nil, err
		}
	}
	return nil, errContended(what)
}

// insertCategory stores a new category and sets the fields that the server owns. It fails with kv.ErrConflict when a category of
// that name exists or is not retired yet, and otherwise with an error for the caller.
func (c *ControlPlane) insertCategory(ctx context.Context, what string, cat *scribev1.Category) error {
	if n := c.feed.countLive(); n >= c.cfg.MaxCategories {
		return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: there are %d categories, which is the limit: delete some or raise it", what, n)
	}
	id, err := c.ids.takeID(ctx)
	if errors.Is(err, errNoIDs) {
		return rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "%s: %w", what, err)
	}
	if err != nil {
		return request.ReadError(what, err)
	}
	cat.Id = id
	cat.CreatedAt = c.deps.Now().UnixMicro()
	cat.UpdatedAt = cat.GetCreatedAt()
	value, err := encodeCategory(cat)
	if err != nil {
		c.ids.giveBack(id)
		return rpc.Errorf(scribev1.Reason_REASON_INVALID, "%s: %w", what, err)
	}
	revision, err := c.deps.Store.Commit(ctx, kv.Put(categoryKey(cat.GetName()), value).If(0), kv.Check(retiringKey(cat.GetName()), 0))
	if err != nil {
		certain, wrapped := commitError(what, err)
		if certain {
			c.ids.giveBack(id)
		}
		if errors.Is(err, kv.ErrConflict) {
			return err
		}
		return wrapped
	}
	cat.Revision = revision
	c.metrics.changes.WithLabelValues(changeCreated).Inc()
	c.logger.Info("category created", "category", cat.GetName(), "id", id)
	return nil
}

func errContended(what string) error {
	return rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "%s: it was changed concurrently %d times: try again", what, maxAttempts)
}

// existsAnswer answers a create of an existing category.
func existsAnswer(existing *scribev1.Category, ifNotExists bool) (*scribev1.CreateCategoryResponse, error) {
	if !ifNotExists {
		return nil, rpc.Errorf(scribev1.Reason_REASON_CATEGORY_EXISTS,
			"create category %q: it exists (id %d); update it, or choose another name", existing.GetName(), existing.GetId())
	}
	return &scribev1.CreateCategoryResponse{Category: existing}, nil
}

// readCategory reads a category from the store. It fails with kv.ErrNotFound if there is none.
func (c *ControlPlane) readCategory(ctx context.Context, name string) (*scribev1.Category, error) {
	e, err := c.deps.Store.Get(ctx, categoryKey(name))
	if err != nil {
		return nil, err
	}
	return c.decodeCounted(name, e.Value, e.Revision)
}

// decodeCounted calls decodeCategory, and counts damage.
func (c *ControlPlane) decodeCounted(name string, value []byte, revision uint64) (*scribev1.Category, error) {
	cat, err := decodeCategory(name, value, revision)
	if err != nil {
		c.metrics.damaged.Inc()
	}
	return cat, err
}

// GetCategory implements rpc.ControlService.
func (c *ControlPlane) GetCategory(ctx context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	what := fmt.Sprintf("get category %q", shorten(req.GetName()))
	if err := checkName(what, req.GetName()); err != nil {
		return nil, err
	}
	cat, err := c.readCategory(ctx, req.GetName())
	if err != nil {
		return nil, c.lookupError(what, req.GetName(), err)
	}
	if !req.GetWithShards() {
		return &scribev1.GetCategoryResponse{Category: cat}, nil
	}
	return serveLeading(ctx, c, what, req, rpc.ControlService.GetCategory, func(ctx context.Context, _ *heldTerm) (*scribev1.GetCategoryResponse, error) {
		shards, counted := c.describeShards(ctx, cat.GetId())
		return &scribev1.GetCategoryResponse{Category: cat, Shards: shards, LogsCounted: counted}, nil
	})
}

func checkName(what, name string) error {
	var v request.Violations
	checkCategoryName(&v, "name", name)
	return v.Err(what)
}

// shorten bounds the length of a possibly invalid name in an error.
func shorten(name string) string {
	if len(name) <= record.MaxCategoryName {
		return name
	}
	return strings.ToValidUTF8(name[:64], "") + "..."
}

// lookupError returns the error for a category that could not be read.
func (c *ControlPlane) lookupError(what, name string, err error) error {
	if !errors.Is(err, kv.ErrNotFound) {
		return request.ReadError(what, err)
	}
	return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "%s: it does not exist%s", what, c.suggestNames(name))
}

// suggestNames returns names similar to name, as the end of a message. In a closed cell it returns none: a name is told only to who
// may do something with it, and the call comes from a process that does not say for whom.
func (c *ControlPlane) suggestNames(name string) string {
	if c.accessFeed.countLive() > 0 {
		return ""
	}
	if !c.suggestive.Allow() || !c.suggesting.TryLock() {
		return ""
	}
	defer c.suggesting.Unlock()
	f := near.NewFinder(name)
	c.feed.eachName(f.Offer)
	if phrase := near.Phrase(f.Names()); phrase != "" {
		return "; " + phrase
	}
	return ""
}

// ListCategories implements rpc.ControlService.
func (c *ControlPlane) ListCategories(ctx context.Context, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	const what = "list categories"
	var v request.Violations
	if len(req.GetPrefix()) > record.MaxCategoryName {
		v.Add("prefix", "%d bytes, the limit is %d", len(req.GetPrefix()), record.MaxCategoryName)
	}
	if len(req.GetAfter()) > record.MaxCategoryName {
		v.Add("after", "%d bytes, the limit is %d", len(req.GetAfter()), record.MaxCategoryName)
	}
	if n := len(req.GetNames()); n > maxNames {
		v.Add("names", "%d names, the limit is %d", n, maxNames)
	} else if n > 0 && (req.GetPrefix() != "" || req.GetAfter() != "" || req.GetLimit() != 0) {
		v.Add("names", "stands alone: not beside prefix, after or limit")
	}
	for i, name := range req.GetNames()[:min(len(req.GetNames()), maxNames)] {
		checkCategoryName(&v, fmt.Sprintf("names[%d]", i), name)
	}
	if err := v.Err(what); err != nil {
		return nil, err
	}
	if len(req.GetNames()) > 0 {
		return c.listNamed(ctx, what, req)
	}
	r := kv.KeyRange{Prefix: categoryKey(req.GetPrefix()), Limit: int(cmp.Or(min(req.GetLimit(), maxList), maxList))}
	if req.GetAfter() != "" {
		r.After = categoryKey(req.GetAfter())
	}
	page, err := c.deps.Store.Range(ctx, r)
	if err != nil {
		return nil, request.ReadError(what, err)
	}
	resp := &scribev1.ListCategoriesResponse{Categories: make([]*scribev1.Category, 0, len(page.Entries)), More: page.More}
	for _, e := range page.Entries {
		cat, err := c.decodeCounted(strings.TrimPrefix(e.Key, categoryPrefix), e.Value, e.Revision)
		if err != nil {
			return nil, request.ReadError(what, err)
		}
		if req.GetWithoutSchemas() {
			cat.Schema = ""
		}
		resp.Categories = append(resp.Categories, cat)
	}
	return resp, nil
}

// listNamed lists the categories that a request names. Damaged ones are left out: others do not depend on them.
func (c *ControlPlane) listNamed(ctx context.Context, what string, req *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	resp := &scribev1.ListCategoriesResponse{Named: true}
	size := 0
	for _, name := range req.GetNames() {
		e, err := c.deps.Store.Get(ctx, categoryKey(name))
		if errors.Is(err, kv.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, request.ReadError(what, err)
		}
		cat, err := c.decodeCounted(name, e.Value, e.Revision)
		if err != nil {
			continue
		}
		if req.GetWithoutSchemas() {
			cat.Schema = ""
		}
		if size += proto.Size(cat); size > rpc.MaxMessageBytes/2 {
			return nil, rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s: the categories take more than %d bytes: name fewer, or leave the schemas out",
				what, rpc.MaxMessageBytes/2)
		}
		resp.Categories = append(resp.Categories, cat)
	}
	return resp, nil
}

// UpdateCategory implements rpc.ControlService. Fields that the request sets to their current values change nothing.
func (c *ControlPlane) UpdateCategory(ctx context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	if req.GetUnboundedWindow() && req.GetOrderingWindow() != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "update category %q: unbounded_window: removes the window that ordering_window sets: give one of them",
			shorten(req.GetName()))
	}
	if req.GetAutoLinger() && req.GetLinger() != nil {
		return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "update category %q: auto_linger: removes the duration that linger sets: give one of them",
			shorten(req.GetName()))
	}
	t := categoryChange{change: changeUpdated, what: "update category", name: req.GetName(), revision: req.GetRevision()}
	var v request.Violations
	if checkDivision(&v, req); len(v) > 0 {
		return nil, v.Err(t.String())
	}
	cat, err := c.changeCategory(ctx, t, func(before *scribev1.Category) ([]kv.Op, *scribev1.Category, error) {
		after := applyUpdate(before, req)
		var v request.Violations
		if req.GetRotateKey() && !after.GetEncrypted() {
			v.Add("rotate_key", "the category is not encrypted")
		}
		if divideShards(&v, before, after, req); len(v) > 0 {
			return nil, nil, v.Err(t.String())
		}
		if proto.Equal(before, after) {
			return nil, before, nil
		}
		if err := checkCategory(after, before, req.GetForceSchema(), t.String()); err != nil {
			return nil, nil, err
		}
		if after.GetEncrypted() && !before.GetEncrypted() {
			if err := c.checkKeys(ctx, t.String()); err != nil {
				return nil, nil, err
			}
		}
		if proto.Equal(before, after) { // the schema is another text of the newest version
			return nil, before, nil
		}
		after.UpdatedAt = c.deps.Now().UnixMicro()
		if n := len(after.GetLineage()); n > len(before.GetLineage()) {
			after.Lineage[n-1].Since = after.GetUpdatedAt()
		}
		keepLayout(before, after)
		value, err := encodeCategory(after)
		return []kv.Op{kv.Put(categoryKey(t.name), value).If(before.GetRevision())}, after, err
	})
	if err != nil {
		return nil, err
	}
	return &scribev1.UpdateCategoryResponse{Category: cat}, nil
}

// applyUpdate returns a copy of the category with the fields that the request sets.
func applyUpdate(before *scribev1.Category, req *scribev1.UpdateCategoryRequest) *scribev1.Category {
	after := proto.CloneOf(before)
	setGiven(&after.Owner, req.Owner)
	setGiven(&after.Shards, req.Shards)
	setGiven(&after.MaxMessageBytes, req.MaxMessageBytes)
	setGiven(&after.QuotaBytesPerSecond, req.QuotaBytesPerSecond)
	setGiven(&after.Repeatable, req.Repeatable)
	setGiven(&after.Schema, req.Schema)
	setGiven(&after.AutoSplit, req.AutoSplit)
	setGiven(&after.Encrypted, req.Encrypted)
	if after.GetEncrypted() && (after.GetKeyGeneration() == 0 || req.GetRotateKey()) {
		after.KeyGeneration++
	}
	if req.QuotaMode != nil {
		after.QuotaMode = cmp.Or(req.GetQuotaMode(), scribev1.QuotaMode_QUOTA_MODE_BLOCK)
	}
	setGiven(&after.ReadQuotaBytesPerSecond, req.ReadQuotaBytesPerSecond)
	setGiven(&after.ReadQuotaRequestsPerSecond, req.ReadQuotaRequestsPerSecond)
	if req.ReadQuotaMode != nil {
		after.ReadQuotaMode = cmp.Or(req.GetReadQuotaMode(), scribev1.QuotaMode_QUOTA_MODE_BLOCK)
	}
	setGiven(&after.Priority, req.Priority)
	if req.GetRetention() != nil {
		after.Retention = proto.CloneOf(req.GetRetention())
	}
	if req.GetCache() != nil {
		after.Cache = cachePolicy(req.GetCache())
	}
	switch {
	case req.ShardBy != nil:
		after.ShardBy, after.ShardField = cmp.Or(req.GetShardBy(), scribev1.ShardBy_SHARD_BY_STICKY), req.GetShardField()
	case req.ShardField != nil:
		after.ShardField = req.GetShardField()
	}
	setOrRemove(&after.OrderingWindow, req.GetOrderingWindow(), req.GetUnboundedWindow())
	setOrRemove(&after.Linger, req.GetLinger(), req.GetAutoLinger())
	return after
}

// setOrRemove sets a duration to the one that a request gives, if any, or removes it.
func setOrRemove(field **durationpb.Duration, given *durationpb.Duration, remove bool) {
	switch {
	case remove:
		*field = nil
	case given != nil:
		*field = proto.CloneOf(given)
	}
}

// setGiven sets a field to the value that a request gives for it, if any.
func setGiven[T any](field, given *T) {
	if given != nil {
		*field = *given
	}
}

// cachePolicy returns a policy as a category keeps it: the fields that this program knows, or nil if they are all unset.
func cachePolicy(p *scribev1.CachePolicy) *scribev1.CachePolicy {
	known := &scribev1.CachePolicy{Memory: p.GetMemory(), Memcached: p.GetMemcached(), MemcachedAge: proto.CloneOf(p.GetMemcachedAge())}
	if proto.Equal(known, &scribev1.CachePolicy{}) {
		return nil
	}
	return known
}

// DeleteCategory implements rpc.ControlService. The transaction that deletes the category also records that its logs must be
// retired. The retirement begins at once and is retried until it succeeds, here or in the next control plane. Retention removes
// what is left in the logs; it finds the category in ListDropped.
func (c *ControlPlane) DeleteCategory(ctx context.Context, req *scribev1.DeleteCategoryRequest) (*scribev1.DeleteCategoryResponse, error) {
	if err := c.enterCall(); err != nil {
		return nil, err
	}
	defer c.calls.Leave()
	t := categoryChange{change: changeDeleted, what: "delete category", name: req.GetName(), revision: req.GetRevision()}
	c.retireSchedule.beginChange()
	gone, err := c.changeCategory(ctx, t, func(before *scribev1.Category) ([]kv.Op, *scribev1.Category, error) {
		dropped := proto.CloneOf(before)
		dropped.Schema = ""
		dropped.UpdatedAt = c.deps.Now().UnixMicro()
		value, err := encodeCategory(dropped)
		return []kv.Op{
			kv.Delete(categoryKey(t.name)).If(before.GetRevision()),
			kv.Put(droppedKey(before.GetId()), value),
			// No such entry exists: while it does, no category of that name can be created.
			kv.Put(retiringKey(t.name), value).If(0),
		}, before, err
	})
	if err != nil {
		c.retireSchedule.endChange(0)
		if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			c.retireSchedule.requestScan()
		}
		return nil, err
	}
	c.retireSchedule.endChange(1)
	c.retireSchedule.requestNow(retiringCategory{name: gone.GetName(), id: gone.GetId(), revision: gone.GetRevision()})
	return &scribev1.DeleteCategoryResponse{}, nil
}

// categoryChange is the target of a change.
type categoryChange struct {
	change string // for metrics
	what   string // for errors
	name   string
	// revision is the revision that the category must have; 0 for any.
	revision uint64
}

// String describes the change.
func (t categoryChange) String() string { return fmt.Sprintf("%s %q", t.what, shorten(t.name)) }

// changeCategory reads a category, lets fn choose operations conditional on its revision, and commits them. On a conflict it
// begins again, unless the target names a revision. It returns the category that fn returned, with its new revision. No
// operations mean that nothing needs to change.
func (c *ControlPlane) changeCategory(ctx context.Context, t categoryChange,
	fn func(before *scribev1.Category) ([]kv.Op, *scribev1.Category, error),
) (*scribev1.Category, error) {
	what := t.String()
	if err := checkName(what, t.name); err != nil {
		return nil, err
	}
	for range maxAttempts {
		before, err := c.readCategory(ctx, t.name)
		if err != nil {
			return nil, c.lookupError(what, t.name, err)
		}
		if t.revision != 0 && before.GetRevision() != t.revision {
			return nil, rpc.Errorf(scribev1.Reason_REASON_CONFLICT, "%s: its revision is %d, not %d: read it again and decide anew",
				what, before.GetRevision(), t.revision)
		}
		ops, after, err := fn(before)
		if err != nil || len(ops) == 0 {
			return after, err
		}
		now, err := c.deps.Store.Commit(ctx, ops...)
		if err == nil {
			after.Revision = now
			c.metrics.changes.WithLabelValues(t.change).Inc()
			c.logger.Info("category changed", "change", t.change, "category", t.name, "id", after.GetId())
			return after, nil
		}
		if !errors.Is(err, kv.ErrConflict) {
			_, err = commitError(what, err)
			return nil, err
		}
	}
	return nil, errContended(what)
}
