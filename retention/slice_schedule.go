package retention

import "time"

// sliceSchedule decides when each slice is examined. It does no I/O. Times are the engine's, in Unix microseconds.
//
// It holds a slice, in some 60 bytes, from when the boundary passes the slice's end until no blob of it is left. The number of slices is
// the class's retention divided by their length: 220 for a class of 4 hours, 7,400 for 90 days, 18,800 for ten years.
type sliceSchedule struct {
	grace  time.Duration
	slices map[timeSlice]*sliceState
	queue  dueQueue[timeSlice]
	// frontier is, for each class, the first slice that the boundary has not passed.
	frontier map[uint32]timeSlice
	// open are the slices, by class, whose first examination and deletions have not finished. They hold the cursor back.
	open map[uint32]map[timeSlice]struct{}
}

type sliceState struct {
	// unseen: it waits for its first complete examination. left: that examination kept blobs. doomed is how many of its blobs wait for
	// their deletion.
	unseen, left bool
	doomed       int
}

func newSliceSchedule(grace time.Duration) *sliceSchedule {
	return &sliceSchedule{
		grace: grace, slices: map[timeSlice]*sliceState{}, frontier: map[uint32]timeSlice{}, open: map[uint32]map[timeSlice]struct{}{},
	}
}

// beginClass adds the slices of a class from its oldest blob on; oldest is that blob's time, -1 for none. Slices up to cursor were examined
// before, and become due when their blobs expire after expected. It reports false when there are blobs so old that only a listing of all
// blobs covers them: the time in an id comes from a batcher's clock.
func (s *sliceSchedule) beginClass(class uint32, oldest, cursor, boundary int64, expected time.Duration) bool {
	digits := sliceDigits(class, s.grace)
	s.open[class] = map[timeSlice]struct{}{}
	first := sliceOf(class, digits, boundary)
	horizon := boundary - 4*classLength(class) - classLength(24)
	if oldest >= 0 && oldest < first.start() {
		first = sliceOf(class, digits, max(oldest, horizon))
	}
	at := first
	for ; at.end() <= min(cursor, boundary); at = at.nextSlice() {
		s.putDue(at, at.end()+expected.Microseconds())
	}
	s.frontier[class] = at
	s.advanceFrontier(class, boundary)
	return oldest < 0 || oldest >= horizon
}

// advanceFrontier adds the slices of a class that the boundary has passed.
func (s *sliceSchedule) advanceFrontier(class uint32, boundary int64) {
	at := s.frontier[class]
	for ; at.end() <= boundary; at = at.nextSlice() {
		s.putUnseen(at, at.end())
	}
	s.frontier[class] = at
}

// putUnseen schedules a complete examination of a slice; until then it holds the cursor back.
func (s *sliceSchedule) putUnseen(k timeSlice, due int64) {
	s.putDue(k, due)
	s.slices[k].unseen = true
	s.open[k.class][k] = struct{}{}
}

// putDue schedules an examination at due, unless an earlier one is scheduled.
func (s *sliceSchedule) putDue(k timeSlice, due int64) {
	if s.slices[k] == nil {
		s.slices[k] = &sliceState{}
	}
	s.queue.putKey(k, due)
}

// takeDue removes the slice that has been due longest. It is not due again before recordResult or retryAfter.
func (s *sliceSchedule) takeDue(now int64) (timeSlice, bool) { return s.queue.takeDue(now) }

// sliceResult is the result of an examination of a slice.
type sliceResult struct {
	// doomed is how many blobs will be deleted, left how many are kept.
	doomed, left int
	// due is when the first of the kept blobs will have expired.
	due int64
	// cut: the deletion queue was full. The slice is due again soon.
	cut bool
}

// addKept counts a blob that is kept until due.
func (r *sliceResult) addKept(due int64) {
	if r.left == 0 || due < r.due {
		r.due = due
	}
	r.left++
}

// recordResult takes the result of an examination at now. The next examination is at least 1/60 of the class's retention later, so that a
// class whose categories expire at different times is not read over and over.
func (s *sliceSchedule) recordResult(k timeSlice, o sliceResult, now int64) {
	st := s.slices[k]
	if st == nil {
		return
	}
	st.doomed += o.doomed
	switch {
	case o.cut:
		st.unseen = true
		s.putDue(k, now+(10*time.Second).Microseconds())
		return
	case o.left > 0:
		s.putDue(k, max(o.due, now+classLength(k.class)/60))
	}
	st.unseen, st.left = false, o.left > 0
	s.dropFinished(k, st)
}

// retryAfter schedules another examination of a slice after a failed one.
func (s *sliceSchedule) retryAfter(k timeSlice, now int64, pause time.Duration) {
	if s.slices[k] != nil {
		s.putDue(k, now+pause.Microseconds())
	}
}

// recordDoomed counts n blobs that wait for their deletion after an incomplete examination.
func (s *sliceSchedule) recordDoomed(k timeSlice, n int) {
	if st := s.slices[k]; st != nil {
		st.doomed += n
		st.unseen = true
	}
}

// recordDeleted counts the deletion of a doomed blob.
func (s *sliceSchedule) recordDeleted(k timeSlice) {
	if st := s.slices[k]; st != nil {
		st.doomed--
		s.dropFinished(k, st)
	}
}

// dropFinished lets the cursor pass a slice that was examined and has no blobs left to delete. It forgets the slice if no blob was kept.
func (s *sliceSchedule) dropFinished(k timeSlice, st *sliceState) {
	if st.doomed > 0 || st.unseen {
		return
	}
	delete(s.open[k.class], k)
	if _, due := s.queue.due[k]; !st.left && !due {
		delete(s.slices, k)
	}
}

// examineAgain schedules the slices of a class that may hold blobs made between from and to.
func (s *sliceSchedule) examineAgain(class uint32, from, to, now int64) {
	for k := range s.slices {
		if k.class == class && k.end() > from && k.start() <= to {
			s.putDue(k, now)
		}
	}
}

// addListed takes a blob, made at t, from a listing of all blobs. It schedules the blob's slice if that is unknown, or if the blob was stored
// late, long after t.
func (s *sliceSchedule) addListed(class uint32, t, now int64, late bool) {
	k := sliceOf(class, sliceDigits(class, s.grace), t)
	f, known := s.frontier[class]
	if !known || k.number >= f.number {
		return // advanceFrontier will add it
	}
	if s.slices[k] == nil || late && s.queue.due[k] > now {
		s.putUnseen(k, now)
	}
}

// classCursor is a time: the older blobs of the class were all examined once, and the dead ones among them deleted.
func (s *sliceSchedule) classCursor(class uint32) int64 {
	f, known := s.frontier[class]
	if !known {
		return 0
	}
	at := f.start()
	for k := range s.open[class] {
		at = min(at, k.start())
	}
	return at
}
