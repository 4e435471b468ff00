package batcher

import (
	"sync"
	"sync/atomic"

	"scribe/internal/format/record"
)

// maxSealed bounds the cached sealed logs. An evicted one costs a refused append.
const maxSealed = 10_000

// sealedLogs caches the logs that the engine has sealed, such as those of a deleted category. The local view of categories may
// not yet know that the category was deleted, or created again under the same name with another id. So frames for a sealed log
// make the resolver ask the control plane. It is safe for concurrent use.
type sealedLogs struct {
	n  atomic.Int32 // len(mu.shards): nearly always 0
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
