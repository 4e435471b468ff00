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

// table holds the states of shards that were used since the engine opened, about 150 bytes each. They are loaded when they are
// first asked for, and stay.
//
// A reader that loads a state from Pebble might see one that is committed but not synced yet. It does not use it then: the
// committer puts every shard into the table before it commits anything about it, and what is in the table already wins.
type table struct {
	db *pebble.DB
	mu struct {
		sync.RWMutex
		shards map[record.ShardID]*shard
		// watches are told of new shards under this lock, so that they neither miss nor repeat one; see watch.go.
		watches map[uint32][]*categoryWatch
		// retired are the categories that readers know to be.
		retired retired
	}
}

// shard is a shard in memory.
type shard struct {
	id record.ShardID
	// pub is durable and visible; guarded by table.mu. Epoch 0: the shard does not exist yet.
	pub schema.State
	// cur includes the batch being built. Only the committer uses it and what follows.
	cur schema.State
	// dirty says that the batch being built changes the state.
	dirty bool
	// swept says that no records below pub.First are left of a trim before the engine was opened.
	swept bool
}

// absent is the state of a shard that does not exist.
var absent = schema.State{First: record.FirstLSN, Next: record.FirstLSN}

// states fills in the published states of shards.
func (t *table) states(ids []record.ShardID, out []schema.State) error {
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
		st, err := t.state(ids[i])
		if err != nil {
			return err
		}
		out[i] = st
	}
	return nil
}

// state returns the published state of one shard.
func (t *table) state(id record.ShardID) (schema.State, error) {
	if st, ok := t.cached(id); ok {
		return st, nil
	}
	loaded, found, err := t.load(id)
	if err != nil {
		return schema.State{}, err
	}
	if !found {
		if st, ok := t.cached(id); ok { // created meanwhile
			return st, nil
		}
		return t.missing(id), nil
	}
	sh := t.add(id, loaded)
	t.mu.RLock()
	defer t.mu.RUnlock()
	return sh.pub, nil
}

// missing is the state of a shard that does not exist: one of a retired category never will.
func (t *table) missing(id record.ShardID) schema.State {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if t.mu.retired.holds(id.Category()) {
		return erased
	}
	return absent
}

func (t *table) cached(id record.ShardID) (schema.State, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if sh := t.mu.shards[id]; sh != nil {
		return sh.pub, true
	}
	return schema.State{}, false
}

// get returns a shard for the committer, nil when it does not exist.
func (t *table) get(id record.ShardID) (*shard, error) {
	t.mu.RLock()
	sh := t.mu.shards[id]
	t.mu.RUnlock()
	if sh != nil {
		return sh, nil
	}
	loaded, found, err := t.load(id)
	if err != nil || !found {
		return nil, err
	}
	return t.add(id, loaded), nil
}

// create returns a shard for the committer that exists for readers once it is published.
func (t *table) create(id record.ShardID) *shard { return t.add(id, absent) }

// add puts a shard into the table, unless it is there.
func (t *table) add(id record.ShardID, st schema.State) *shard {
	t.mu.Lock()
	defer t.mu.Unlock()
	if sh := t.mu.shards[id]; sh != nil {
		return sh
	}
	if t.mu.shards == nil {
		t.mu.shards = make(map[record.ShardID]*shard)
	}
	sh := &shard{id: id, pub: st, cur: st, swept: st.Epoch == 0}
	t.mu.shards[id] = sh
	return sh
}

// publish makes what the committer did visible.
func (t *table) publish(changed []*shard, r retired) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.retired = append(t.mu.retired[:0], r...)
	for _, sh := range changed {
		created := sh.pub.Epoch == 0 && sh.cur.Epoch != 0
		sh.pub = sh.cur
		if created {
			for _, w := range t.mu.watches[sh.id.Category()] {
				w.add(sh.id)
			}
		}
	}
}

func (t *table) len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return len(t.mu.shards)
}

// load reads a shard's state from Pebble.
func (t *table) load(id record.ShardID) (st schema.State, found bool, err error) {
	key := schema.AppendStateKey(make([]byte, 0, schema.StateKeyLen), id)
	value, closer, err := t.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return schema.State{}, false, nil
	}
	if err == nil {
		st, err = schema.DecodeState(key, value)
		err = errors.Join(err, closer.Close())
	}
	if err != nil {
		return schema.State{}, false, readError(id, 0, err)
	}
	return st, true, nil
}

// readError gives damage its place.
func readError(id record.ShardID, lsn record.LSN, err error) error {
	switch {
	case errors.Is(err, schema.ErrCorrupt), errors.Is(err, pebble.ErrCorruption):
		return &metalog.CorruptError{Shard: id, LSN: lsn, Detail: err.Error()}
	case lsn == 0:
		return fmt.Errorf("metalog: read the state of shard %v: %w", id, err)
	default:
		return fmt.Errorf("metalog: read shard %v at LSN %d: %w", id, lsn, err)
	}
}
