package retention

// doom is a dead blob that waits to be deleted. Times are Unix microseconds.
type doom struct {
	key   string
	size  int64
	slice slice
	kind  string
	// found is when it was found dead, notBefore when it may be deleted.
	found, notBefore int64
}

// dooms are dead blobs in the order in which they were found. When it is full, what else is dead is found again later. It is lost with
// the process: then its slices, which the cursor has not passed, are examined again.
type dooms struct {
	max   int
	keys  map[string]struct{}
	queue []doom
	bytes int64
}

func newDooms(most int) *dooms { return &dooms{max: most, keys: map[string]struct{}{}} }

func (d *dooms) has(key string) bool {
	_, ok := d.keys[key]
	return ok
}

// room is how many more fit.
func (d *dooms) room() int { return d.max - len(d.keys) }

// add takes up a blob. There must be room.
func (d *dooms) add(b doom) {
	d.keys[b.key] = struct{}{}
	d.queue = append(d.queue, b)
	d.bytes += b.size
}

// due takes up to n blobs that may be deleted at now. Each must be given to done or again.
func (d *dooms) due(now int64, n int) []doom {
	i := 0
	for i < len(d.queue) && i < n && d.queue[i].notBefore <= now {
		i++
	}
	batch := append([]doom(nil), d.queue[:i]...)
	d.queue = d.queue[i:]
	return batch
}

func (d *dooms) done(b doom) {
	delete(d.keys, b.key)
	d.bytes -= b.size
}

// again has a blob that could not be deleted tried later.
func (d *dooms) again(b doom) { d.queue = append(d.queue, b) }

// oldest returns when the blob was found that waits for longest.
func (d *dooms) oldest() (found int64, ok bool) {
	for _, b := range d.queue {
		if !ok || b.found < found {
			found, ok = b.found, true
		}
	}
	return found, ok
}
