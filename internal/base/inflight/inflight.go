// Package inflight knows where what is in flight went (Places), and how much may be in flight at a time (Window).
package inflight

import "sync"

// Places has the place of what is in flight of each key. Requests of a key that follow one another go where the earlier ones are. The
// zero Places is ready. It is safe for concurrent use.
type Places[K, P comparable] struct {
	mu    sync.Mutex
	byKey map[K]requests[P]
}

// requests are those of a key in flight.
type requests[P any] struct {
	place P // of the newest
	count int
}

// Begin notes that a request of a key goes to a place. End must follow.
func (f *Places[K, P]) Begin(key K, place P) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.byKey == nil {
		f.byKey = make(map[K]requests[P])
	}
	f.byKey[key] = requests[P]{place, f.byKey[key].count + 1}
}

// End notes that a request of a key has been answered.
func (f *Places[K, P]) End(key K) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.byKey[key]
	if r.count--; r.count == 0 {
		delete(f.byKey, key)
		return
	}
	f.byKey[key] = r
}

// Find returns where the newest request of a key in flight went.
func (f *Places[K, P]) Find(key K) (place P, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.byKey[key]
	return r.place, ok
}

// Len returns the number of keys with requests in flight.
func (f *Places[K, P]) Len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.byKey)
}
