package retention

// deadBlob is a dead blob that waits for its deletion. Times are Unix microseconds.
type deadBlob struct {
	key   string
	size  int64
	slice timeSlice
	kind  string
	// found is when it was found dead, notBefore the earliest time of its deletion.
	found, notBefore int64
}

// deletionQueue holds dead blobs in the order in which they were found. When it is full, later examinations find the rest again. It is
// not persisted: its slices, which the cursor has not passed, are examined again after a restart.
type deletionQueue struct {
	max   int
	keys  map[string]struct{}
	queue []deadBlob
	bytes int64
}

func newDeletionQueue(most int) *deletionQueue {
	return &deletionQueue{max: most, keys: map[string]struct{}{}}
}

func (d *deletionQueue) hasKey(key string) bool {
	_, ok := d.keys[key]
	return ok
}

// remainingCapacity is how many more blobs fit.
func (d *deletionQueue) remainingCapacity() int { return d.max - len(d.keys) }

// addBlob adds a blob. The caller has checked remainingCapacity.
func (d *deletionQueue) addBlob(b deadBlob) {
	d.keys[b.key] = struct{}{}
	d.queue = append(d.queue, b)
	d.bytes += b.size
}

// takeDue removes up to n blobs that may be deleted at now. The caller passes each to removeDeleted or retryLater.
func (d *deletionQueue) takeDue(now int64, n int) []deadBlob {
	i := 0
	for i < len(d.queue) && i < n && d.queue[i].notBefore <= now {
		i++
	}
	batch := append([]deadBlob(nil), d.queue[:i]...)
	d.queue = d.queue[i:]
	return batch
}

func (d *deletionQueue) removeDeleted(b deadBlob) {
	delete(d.keys, b.key)
	d.bytes -= b.size
}

// retryLater puts a blob that could not be deleted back.
func (d *deletionQueue) retryLater(b deadBlob) { d.queue = append(d.queue, b) }

// oldestFound returns the earliest time at which a queued blob was found; false when none is queued.
func (d *deletionQueue) oldestFound() (found int64, ok bool) {
	for _, b := range d.queue {
		if !ok || b.found < found {
			found, ok = b.found, true
		}
	}
	return found, ok
}
