package retention

import "time"

// sliceSchedule decides which slices are looked at when. It does no I/O. Times are the engine's, in Unix microseconds.
//
// A slice is in it from when the boundary has passed its end until nothing is left of it. Some 60 bytes each; there are as many as its
// class is long, divided by their length: 220 for a class of 4 hours, 7,400 for 90 days, 18,800 for ten years.
type sliceSchedule struct {
	grace  time.Duration
	slices map[timeSlice]*sliceState
	queue  dueQueue[timeSlice]
	// frontier is, for each class, the first slice that was not added yet.
	frontier map[uint32]timeSlice
	// open are the slices, by class, that were not done with for the first time.
	open map[uint32]map[timeSlice]struct{}
}

type sliceState struct {
	// unseen says that it waits to be examined completely, left that blobs stayed when it was; doomed is how many of its blobs wait to be
	// deleted.
	unseen, left bool
	doomed       int
	// queued is the due time of its entry in the queue that counts; older entries are skipped. 0: none.
	queued int64
}

func newSliceSchedule(grace time.Duration) *sliceSchedule {
	return &sliceSchedule{
		grace: grace, slices: map[timeSlice]*sliceState{}, frontier: map[uint32]timeSlice{}, open: map[uint32]map[timeSlice]struct{}{},
	}
}

// beginClass takes up a class: its oldest blob is of the time oldest (none: -1), and up to cursor its slices were examined before. Those
// are taken to expire after expected. It reports false when there are blobs so old that they are left to a listing of everything: the time
// in an id is what a batcher's clock said.
func (s *sliceSchedule) beginClass(class uint32, oldest, cursor, boundary int64, expected time.Duration) bool {
	digits := sliceDigits(class, s.grace)
	s.open[class] = map[timeSlice]struct{}{}
	first := sliceOf(class, digits, boundary)
	horizon := boundary - 4*classLength(class) - classLength(24)
	if oldest >= 0 && oldest < first.start() {
		first = sliceOf(class, digits, max(oldest, horizon))
	}
	at := first
	for ; at.end() <= min(cursor, boundary); at = at.next() {
		s.putDue(at, at.end()+expected.Microseconds())
	}
	s.frontier[class] = at
	s.advanceFrontier(class, boundary)
	return oldest < 0 || oldest >= horizon
}

// advanceFrontier adds the slices that the boundary has passed.
func (s *sliceSchedule) advanceFrontier(class uint32, boundary int64) {
	at := s.frontier[class]
	for ; at.end() <= boundary; at = at.next() {
		s.putUnseen(at, at.end())
	}
	s.frontier[class] = at
}

// putUnseen has a slice examined completely before the cursor passes it.
func (s *sliceSchedule) putUnseen(k timeSlice, due int64) {
	s.putDue(k, due)
	s.slices[k].unseen = true
	s.open[k.class][k] = struct{}{}
}

// putDue has a slice examined at due, or earlier if it was to be.
func (s *sliceSchedule) putDue(k timeSlice, due int64) {
	st := s.slices[k]
	if st == nil {
		st = &sliceState{}
		s.slices[k] = st
	} else if st.queued != 0 && st.queued <= due {
		return
	}
	st.queued = due
	s.queue.pushKey(due, k)
}

// takeDue returns the slice that has been due for longest at now. It is not due again before examined was called.
func (s *sliceSchedule) takeDue(now int64) (timeSlice, bool) {
	for {
		e, ok := s.queue.popDue(now)
		if !ok {
			return timeSlice{}, false
		}
		if st := s.slices[e.key]; st != nil && st.queued == e.due {
			st.queued = 0
			return e.key, true
		}
	}
}

// sliceResult is what was found in a slice.
type sliceResult struct {
	// doomed is how many blobs are to be deleted, left how many stay.
	doomed, left int
	// due is when the first of those that stay will have expired.
	due int64
	// cut says that not all could be looked at: the slice is due again soon.
	cut bool
}

// addKept counts a blob that is kept until due.
func (r *sliceResult) addKept(due int64) {
	if r.left == 0 || due < r.due {
		r.due = due
	}
	r.left++
}

// recordResult says what was found in a slice at now. It is not looked at again before 1/60 of its class has gone by, so that a class whose
// categories expire at different times is not read over and over.
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

// retryAfter says that a slice could not be examined: it is tried again.
func (s *sliceSchedule) retryAfter(k timeSlice, now int64, pause time.Duration) {
	if s.slices[k] != nil {
		s.putDue(k, now+pause.Microseconds())
	}
}

// recordDoomed says that blobs of a slice wait to be deleted, though not all of it was examined.
func (s *sliceSchedule) recordDoomed(k timeSlice, n int) {
	if st := s.slices[k]; st != nil {
		st.doomed += n
		st.unseen = true
	}
}

// recordDeleted says that a doomed blob of a slice is gone.
func (s *sliceSchedule) recordDeleted(k timeSlice) {
	if st := s.slices[k]; st != nil {
		st.doomed--
		s.dropFinished(k, st)
	}
}

// dropFinished ends the first look at a slice when nothing of it waits to be deleted any more, and forgets slices of which nothing is left.
func (s *sliceSchedule) dropFinished(k timeSlice, st *sliceState) {
	if st.doomed > 0 || st.unseen {
		return
	}
	delete(s.open[k.class], k)
	if !st.left && st.queued == 0 {
		delete(s.slices, k)
	}
}

// examineAgain has the slices of a class examined that hold blobs made from from to to.
func (s *sliceSchedule) examineAgain(class uint32, from, to, now int64) {
	for k, st := range s.slices {
		if k.class == class && k.end() > from && k.start() <= to && (st.queued == 0 || st.queued > now) {
			s.putDue(k, now)
		}
	}
}

// addListed tells of a blob in a listing of everything, made at t. late: it was stored long after that.
func (s *sliceSchedule) addListed(class uint32, t, now int64, late bool) {
	k := sliceOf(class, sliceDigits(class, s.grace), t)
	f, known := s.frontier[class]
	if !known || k.number >= f.number {
		return // its time comes
	}
	if st := s.slices[k]; st == nil || late && st.queued > now {
		s.putUnseen(k, now)
	}
}

// classCursor is the time of a class up to which everything was examined once, and what was dead is gone.
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
