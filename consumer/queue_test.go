package consumer

import (
	"testing"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/pointer"
)

// TestFetchesShareTheMemory: no fetch takes the memory that others could use at the same time.
func TestFetchesShareTheMemory(t *testing.T) {
	q := newQueue(16 << 20) // with more, fetchBytes is the tighter bound
	for range 200 {         // well-compressed payloads, of which one fetch could bring ten
		q.pushItem(&streamItem{
			kind: itemPayload, Payload: payload.Payload{}, ready: make(chan struct{}),
			ptr: pointer.Pointer{Length: 200 << 10, BlockRawLen: 200 << 10, BlockLen: 20 << 10, Codec: pointer.CodecZstd},
		})
	}
	fetches, payloads := 0, 0
	for group := q.nextFetch(DefaultConcurrency); group != nil; group = q.nextFetch(DefaultConcurrency) {
		cost := int64(0)
		for _, it := range group {
			cost += it.cost
		}
		if cost > q.room/fetchParts {
			t.Errorf("a fetch of %d payloads takes %d bytes of %d", len(group), cost, q.room)
		}
		fetches, payloads = fetches+1, payloads+len(group)
	}
	if fetches != DefaultConcurrency || q.mu.held > q.room {
		t.Errorf("%d fetches of %d payloads hold %d bytes of %d", fetches, payloads, q.mu.held, q.room)
	}
}
