package group

import "strings"

// restoreMargin is by how much a restored group's epochs and generations are above those of its copy: memberships and assignments since then are unknown, and
// must not be taken for later ones.
const restoreMargin = 1 << 20

// RestoreValue returns what a key of an older copy of a control store has in the store that begins with it. A group keeps its positions and has no members: those of
// before have to join again. A value that can't be decoded, and that of any other key, stays as it is.
func RestoreValue(key string, value []byte) []byte {
	name, ok := strings.CutPrefix(key, groupPrefix)
	if !ok {
		return value
	}
	old, err := decodeGroup(name, value)
	if err != nil {
		return value // the coordinator says what is wrong with it
	}
	g := New(old.Name, old.Category, old.CategoryID, old.Scheme, old.Useful)
	g.Generation, g.LastEpoch, g.Positions = old.Generation+restoreMargin, old.LastEpoch+restoreMargin, old.Positions
	g.CreatedAt, g.PositionedAt, g.PointerBytes, g.Capacity = old.CreatedAt, old.PositionedAt, old.PointerBytes, old.Capacity
	fenced, err := encodeGroup(g)
	if err != nil {
		return value
	}
	return fenced
}
