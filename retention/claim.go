package retention

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"scribe/storage/blob"
)

// ClaimRoot is the prefix of claims in the blob store: collector/CELL/BOUNDARY, with the boundary as 16 digits of Unix microseconds.
const ClaimRoot = "collector/"

// maxClaims bounds the claims that are read: a keeper leaves one or two.
const maxClaims = 10_000

// storeClaim says that a cell's retention has deleted blobs older than the boundary from this store.
type storeClaim struct {
	cell     string
	boundary int64
}

func (c storeClaim) key() string { return fmt.Sprintf("%s%s/%016d", ClaimRoot, c.cell, c.boundary) }

// parseClaim parses a key that storeClaim.key returned, and rejects others.
func parseClaim(key string) (storeClaim, error) {
	rest, ok := strings.CutPrefix(key, ClaimRoot)
	cell, digits, found := strings.Cut(rest, "/")
	t, err := strconv.ParseInt(digits, 10, 64)
	c := storeClaim{cell, t}
	if !ok || !found || err != nil || checkCell(cell) != nil || c.key() != key {
		return storeClaim{}, fmt.Errorf("retention: invalid claim key %.100q", key)
	}
	return c, nil
}

// ClaimBoundary returns the boundary of the claim with that key, in Unix microseconds; false if it is not a claim's key. Blobs older than
// the boundary were deleted if no pointer referred to them.
func ClaimBoundary(key string) (int64, bool) {
	c, err := parseClaim(key)
	return c.boundary, err == nil
}

// checkCell checks the name of a cell, which is a part of a key.
func checkCell(cell string) error {
	if len(cell) > 64 || strings.Contains(cell, "/") {
		return errors.New("retention: invalid cell name: want at most 64 bytes, no slash")
	}
	return blob.CheckKey(ClaimRoot + cell)
}

// HaltedError says why a keeper deletes nothing: the blob store has claims that do not match the metadata engine.
type HaltedError struct {
	// Claims are the keys of the claims that halt it, of each cell the newest, with commas between. Config.Adopt takes them.
	Claims string
	// Reason describes the mismatch, for people.
	Reason string
}

// Error returns the reason and the remedy.
func (e *HaltedError) Error() string {
	return fmt.Sprintf("retention: deletion is halted: %s. If these logs and blobs do belong together, restart retention "+
		"with this to adopt: %s", e.Reason, e.Claims)
}

// claimRule says which claims in the blob store a keeper may replace.
type claimRule struct {
	// own has the keeper's cell, and the engine's boundary.
	own storeClaim
	// former is the state's FormerUntil, adopt is Config.Adopt.
	former int64
	adopt  string
}

// covers reports whether the claim with a key stands for another one too: the same cell has older ones if it was stopped between putting a claim and
// deleting those before.
func covers(key string, other storeClaim) bool {
	c, err := parseClaim(key)
	return err == nil && c.cell == other.cell && c.boundary >= other.boundary
}

// adopts reports whether a claim is one of those that are adopted.
func (r claimRule) adopts(c storeClaim) bool {
	for key := range strings.SplitSeq(r.adopt, ",") {
		if covers(key, c) {
			return true
		}
	}
	return false
}

// replaces reports whether a claim does not halt the keeper. A claim of a former cell may appear long after the cell is gone, because the
// answer to a put was lost: one up to former is such a claim. A cell that still lives soon claims more than that, and halts the keeper.
func (r claimRule) replaces(c storeClaim) bool {
	switch {
	case r.adopts(c):
		return true
	case c.cell == r.own.cell:
		return c.boundary <= r.own.boundary
	default:
		return c.boundary <= r.former
	}
}

// compareClaims fails with a HaltedError when claims in the blob store are not ones that the keeper may replace: another cell's, or above
// the engine's boundary. Several cells may halt it, as after a second recovery, when a late put has left a claim of the cell that was lost first.
func compareClaims(rule claimRule, claims []storeClaim) error {
	newest := map[string]storeClaim{} // that halt it, by cell
	for _, c := range claims {
		if !rule.replaces(c) && c.boundary >= newest[c.cell].boundary {
			newest[c.cell] = c
		}
	}
	if len(newest) == 0 {
		return nil
	}
	var keys, reasons []string
	for _, cell := range slices.Sorted(maps.Keys(newest)) {
		c := newest[cell]
		keys = append(keys, c.key())
		if cell != rule.own.cell {
			reasons = append(reasons, fmt.Sprintf("the blob store has a claim of cell %s, this cell is %s: two cells share a store, or the metadata logs "+
				"were replaced", cell, rule.own.cell))
			continue
		}
		reasons = append(reasons, fmt.Sprintf("the blob store was collected up to %d (Unix microseconds), but the engine's boundary is %d: the metadata was "+
			"restored from a backup, and newer blobs would look like orphans", c.boundary, rule.own.boundary))
	}
	return &HaltedError{Claims: strings.Join(keys, ","), Reason: strings.Join(reasons, "; ")}
}

// ruleAt returns the rule at a boundary of the engine.
func (t *leaseTerm) ruleAt(boundary int64) claimRule {
	t.mu.Lock()
	defer t.mu.Unlock()
	return claimRule{own: storeClaim{t.mu.state.Cell, boundary}, former: t.mu.state.FormerUntil, adopt: t.c.cfg.Adopt}
}

// checkStoreClaims fails with a HaltedError when this cell may not delete from the blob store.
func (t *leaseTerm) checkStoreClaims(ctx context.Context, boundary int64) error {
	claims, err := t.listClaims(ctx)
	if err != nil {
		return err
	}
	rule := t.ruleAt(boundary)
	if err := compareClaims(rule, claims); err != nil {
		return err
	}
	return t.noteFormer(ctx, rule, claims)
}

// noteFormer persists up to where claims of other cells are former ones, when the cell has the store for the first time, or by adopting
// another cell's claim. A recovered engine begins with the time of the recovery as its boundary, and lost cells claimed less; a new engine
// begins with 0, and accepts none.
func (t *leaseTerm) noteFormer(ctx context.Context, rule claimRule, claims []storeClaim) error {
	until := int64(-1)
	for _, c := range claims {
		if c.cell != rule.own.cell && c.boundary > rule.former {
			until = max(until, c.boundary, rule.own.boundary)
		}
	}
	t.updateState(func(s *keeperState) {
		if s.Unclaimed {
			until = max(until, rule.own.boundary)
		}
		s.Unclaimed, s.FormerUntil = false, max(s.FormerUntil, until)
	})
	if until < 0 {
		return nil
	}
	return t.saveState(ctx)
}

func (t *leaseTerm) listClaims(ctx context.Context) (claims []storeClaim, err error) {
	if err := t.c.waitForStore(ctx, 1); err != nil {
		return nil, err
	}
	for info, err := range t.c.deps.Blobs.List(ctx, ClaimRoot) {
		if err != nil {
			return nil, fmt.Errorf("list claims: %w", err)
		}
		c, err := parseClaim(info.Key)
		if err != nil {
			t.c.log.WarnContext(ctx, "ignoring object under the claim prefix: not a claim", "key", info.Key)
			continue
		}
		if claims = append(claims, c); len(claims) > maxClaims {
			return nil, fmt.Errorf("retention: more than %d claims under %s: delete the claims of cells that no longer exist", maxClaims, ClaimRoot)
		}
	}
	return claims, nil
}

// writeClaim stores a claim with the engine's boundary, and then deletes the claims that it replaces. The engine's boundary advances first, so that a
// crash between the two does not look like a lost boundary.
func (t *leaseTerm) writeClaim(ctx context.Context, boundary int64) error {
	rule := t.ruleAt(boundary)
	own := rule.own
	if err := t.c.waitForStore(ctx, 1); err != nil {
		return err
	}
	text := fmt.Sprintf("{\"cell\":%q,\"boundary\":%d,\"owner\":%q}\n", own.cell, own.boundary, t.c.deps.Owner)
	if err := t.c.deps.Blobs.Put(ctx, own.key(), []byte(text)); err != nil && !errors.Is(err, blob.ErrExists) {
		return fmt.Errorf("put claim: %w", err)
	}
	claims, err := t.listClaims(ctx)
	if err != nil {
		return err
	}
	for _, c := range claims {
		if c == own || !rule.replaces(c) {
			continue
		}
		if err := t.c.waitForStore(ctx, 1); err != nil {
			return err
		}
		if err := t.c.deps.Blobs.Delete(ctx, c.key()); err != nil {
			return fmt.Errorf("delete claim: %w", err)
		}
	}
	return nil
}
