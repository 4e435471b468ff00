package pebblelog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// shardTable holds the states of shards that were used since the engine opened, about 150 bytes each. States are loaded on first
// use, and stay.
//
// A reader that loads a state from Pebble might see a state that is committed but not synced. It does not use that one: the
// committer puts every shard into the table before it commits any change of it, and a state already in the table wins.
type shardTable struct {
	db *pebble.DB
	// origin is where new shards begin. It does not change while the engine is open.
	origin Origin
	mu     struct {
		sync.RWMutex
		shards map[record.ShardID]*shardEntry
		// watches are notified of new shards under this lock, so that they neither miss nor repeat one; see watch.go.
		watches map[uint32][]*categoryWatch
		// retired are the retired categories that readers see.
		retired categorySet
	}
}

// shardEntry is a shard in memory.
type shardEntry struct {
	id record.ShardID
	// pub is durable and visible; guarded by table.mu. Epoch 0 means that the shard does not exist yet.
	pub schema.State
	// cur includes the batch being built. Only the committer uses it and the fields below.
	cur schema.State
	// dirty says that the batch being built changes the state.
	dirty bool
	// swept says that no records below pub.First are left over from trims before the engine was opened.
	swept bool
}

// Origin is where the shards begin that a recovery did not find: above all positions that they may have had before, so that no
// position of then is taken for another one. The zero value lets all shards begin at record.FirstLSN.
type Origin struct {
	// LSN is that of a shard's first record. The shard's epochs begin above it, too.
	LSN record.LSN
	// End is above the categories that existed before the recovery: shards of later ones begin at record.FirstLSN.
	End uint64
}

// covers reports whether a shard begins at the origin.
func (o Origin) covers(id record.ShardID) bool { return uint64(id.Category()) < o.End }

// absentState returns the state of a shard that does not exist.
func (t *shardTable) absentState(id record.ShardID) schema.State {
	if !t.origin.covers(id) || t.origin.LSN <= record.FirstLSN {
		return schema.State{First: record.FirstLSN, Next: record.FirstLSN}
	}
	return schema.State{First: t.origin.LSN, Next: t.origin.LSN, Origin: t.origin.LSN}
}

// states fills in the published states of shards.
func (t *shardTable) states(ids []record.ShardID, out []schema.State) error {
	var missing []int
	t.mu.RLock()
	for i, id := range ids {
		if sh := t.mu.shards[id]; sh != nil {
			out[i] = sh.pub
		} else {
			missing = append(missing, i)
		}
	}
	t.mu.RUnlock()
	for _, i := range missing {
		st, err := t.stateOf(ids[i])
		if err != nil {
			return err
		}
		out[i] = st
	}
	return nil
}

// stateOf returns the published state of one shard.
func (t *shardTable) stateOf(id record.ShardID) (schema.State, error) {
	if st, ok := t.cachedState(id); ok {
		return st, nil
	}
	loaded, found, err := t.loadState(id)
	if err != nil {
		return schema.State{}, err
	}
	if !found {
		if st, ok := t.cachedState(id); ok { // it was created in the meantime
			return st, nil
		}
		return t.missingState(id), nil
	}
	sh := t.addLoaded(id, loaded)
	t.mu.RLock()
	defer t.mu.RUnlock()
	return sh.pub, nil
}

// missingState returns the state of a shard that does not exist. A shard of a retired category never will.
func (t *shardTable) missingState(id record.ShardID) schema.State {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.mu.retired.holds(id.Category()) {
		return erasedState
	}
	return t.absentState(id)
}

func (t *shardTable) cachedState(id record.ShardID) (schema.State, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if sh := t.mu.shards[id]; sh != nil {
		return sh.pub, true
	}
	return schema.State{}, false
}

// getShard returns a shard for the committer, or nil if it does not exist.
func (t *shardTable) getShard(id record.ShardID) (*shardEntry, error) {
	t.mu.RLock()
	sh := t.mu.shards[id]
	t.mu.RUnlock()
	if sh != nil {
		return sh, nil
	}
	loaded, found, err := t.loadState(id)
	if err != nil || !found {
		return nil, err
	}
	return t.addLoaded(id, loaded), nil
}

// getShards is getShard for several shards.
func (t *shardTable) getShards(ids []record.ShardID) (shards []*shardEntry, err error) {
	shards = make([]*shardEntry, len(ids))
	for i, id := range ids {
		if shards[i], err = t.getShard(id); err != nil {
			return nil, err
		}
	}
	return shards, nil
}

// currentState returns a shard for the committer with its state, which includes the batch being built.
func (t *shardTable) currentState(id record.ShardID) (*shardEntry, schema.State, error) {
	sh, err := t.getShard(id)
	if sh == nil {
		return nil, t.absentState(id), err
	}
	return sh, sh.cur, nil
}

// createShard returns a new shard for the committer. Readers see it once it is published. Its epoch is above those that the shard may have
// had before a recovery: a blob that arrives late must not look like one of a later writer.
func (t *shardTable) createShard(id record.ShardID) *shardEntry {
	sh := t.addLoaded(id, t.absentState(id))
	if t.origin.covers(id) {
		sh.cur.Epoch = max(sh.cur.Epoch, uint64(t.origin.LSN))
	}
	return sh
}

// addLoaded puts a shard into the table, unless the table has it.
func (t *shardTable) addLoaded(id record.ShardID, st schema.State) *shardEntry {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sh := t.mu.shards[id]; sh != nil {
		return sh
	}
	if t.mu.shards == nil {
		t.mu.shards = make(map[record.ShardID]*shardEntry)
	}
	sh := &shardEntry{id: id, pub: st, cur: st, swept: st.Epoch == 0}
	t.mu.shards[id] = sh
	return sh
}

// publishStates makes the committer's changes visible.
func (t *shardTable) publishStates(changed []*shardEntry, r categorySet) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.retired = append(t.mu.retired[:0], r...)
	for _, sh := range changed {
		created := !isListed(sh.pub) && isListed(sh.cur)
		sh.pub = sh.cur
		if created {
			for _, w := range t.mu.watches[sh.id.Category()] {
				w.addShard(sh.id)
			}
		}
	}
}

// isListed reports whether a shard with this state is among those of its category.
func isListed(st schema.State) bool { return st.Epoch != 0 && !st.Removed }

// forgetShards forgets all states. Nobody uses the table.
func (t *shardTable) forgetShards() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.mu.shards)
}

func (t *shardTable) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.mu.shards)
}

// loadState reads a shard's state, or its stub, from Pebble. A shard that is opened again between the two looks has neither: whoever asks
// finds it in the table then, as the committer puts it there first.
func (t *shardTable) loadState(id record.ShardID) (st schema.State, found bool, err error) {
	key := make([]byte, 0, schema.StateKeyLen)
	st, found, err = lookUp(t.db, schema.AppendStateKey(key, id), schema.DecodeState)
	if !found && err == nil {
		st, found, err = lookUp(t.db, schema.AppendStubKey(key, id), schema.DecodeStub)
	}
	if err != nil {
		err = readError(id, 0, err)
	}
	return st, found, err
}

// readError adds the damaged record to an error.
func readError(id record.ShardID, lsn record.LSN, err error) error {
	switch {
	case errors.Is(err, schema.ErrCorrupt), pebble.IsCorruptionError(err):
		return &metalog.CorruptError{Shard: id, LSN: lsn, Detail: err.Error()}
	case lsn == 0:
		return fmt.Errorf("metalog: read the state of shard %v: %w", id, err)
	default:
		return fmt.Errorf("metalog: read shard %v at LSN %d: %w", id, lsn, err)
	}
}
