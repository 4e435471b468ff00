package batcher

import (
	"sync"
	"sync/atomic"

	"scribe/internal/format/record"
)

// maxSealed bounds the sealed logs that are remembered. A forgotten one costs an append that is refused.
const maxSealed = 10_000

// sealedLogs are logs that the engine has sealed, as those of a deleted category are. The local view may still know the category by the id
// that they belong to, and not that it was deleted, or created again under the same name: so who sends frames for them has the control
// plane asked. It is safe for concurrent use.
type sealedLogs struct {
	n  atomic.Int32 // len(mu.shards): nearly always none
	mu struct {
		sync.Mutex
		shards map[record.ShardID]struct{}
	}
}

func (e *sealedLogs) addLog(s record.ShardID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.shards == nil {
		e.mu.shards = make(map[record.ShardID]struct{})
	}
	if _, ok := e.mu.shards[s]; ok {
		return
	}
	for old := range e.mu.shards { // in the map's order: random
		if len(e.mu.shards) < maxSealed {
			break
		}
		delete(e.mu.shards, old)
	}
	e.mu.shards[s] = struct{}{}
	e.n.Store(int32(len(e.mu.shards))) //nolint:gosec // at most maxEnded
}

func (e *sealedLogs) hasLog(s record.ShardID) bool {
	if e.n.Load() == 0 {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, ok := e.mu.shards[s]
	return ok
}
