package retention

import (
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
)

// TestSlices: a slice's prefix lists the blobs made in its time, and no others.
func TestSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		class := rapid.SampledFrom(pointer.RetentionClasses()).Draw(t, "class")
		grace := rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "grace")
		at := rapid.Int64Range(0, 4e15).Draw(t, "time")
		k := sliceOf(class, sliceDigits(class, grace), at)
		if ms := at / 1000 * 1000; ms < k.start() || ms >= k.end() {
			t.Fatalf("the slice of %d is from %d to %d", at, k.start(), k.end())
		}
		if length := time.Duration(k.end()-k.start()) * time.Microsecond; length > time.Duration(class)*time.Hour/24 {
			t.Fatalf("class %d is looked at in slices of %v", class, length)
		}
		for made, in := range map[int64]bool{k.start() - 1000: false, k.start(): true, k.end() - 1000: true, k.end(): false} {
			if made < 0 {
				continue
			}
			key := pointer.Key(class, pointer.MakeBlobID(made, [10]byte{7}))
			if strings.HasPrefix(key, k.keyPrefix()) != in {
				t.Fatalf("%s is in %s: %v, want %v", key, k.keyPrefix(), !in, in)
			}
		}
	})
}

// TestSchedule: whatever is found in slices, each is looked at once after the boundary has passed it; one with blobs is looked at again,
// not too often, and not forgotten; and the cursor passes none that was not done with.
func TestSchedule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const class = 8
		s := newSliceSchedule(time.Hour)
		digits := sliceDigits(class, time.Hour)
		now := int64(1_750_000_000_000_000)
		boundary := now - classLength(1)
		begin := sliceOf(class, digits, now-classLength(rapid.Uint32Range(2, 20).Draw(t, "hours"))) // of few slices some are looked at again
		s.beginClass(class, begin.start(), 0, boundary, 8*time.Hour)
		left := map[timeSlice]int{}   // blobs that the store has
		doomed := map[timeSlice]int{} // and that wait to be deleted
		seen := map[timeSlice]bool{}  // that were examined completely
		done := map[timeSlice]bool{}  // and of which, since then, nothing waited to be deleted for a moment; later looks hold no cursor back
		looked := func(k timeSlice) {
			if seen[k] && doomed[k] == 0 {
				done[k] = true
			}
		}
		for k := begin; k.end() <= boundary; k = k.nextSlice() {
			left[k] = rapid.IntRange(0, 2).Draw(t, "blobs")
		}
		frontier := s.frontier[class]
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				cursor := s.classCursor(class)
				for k := begin; k.end() <= cursor; k = k.nextSlice() {
					if !done[k] {
						t.Fatalf("the cursor passed %s: looked at %v, %d doomed", k.keyPrefix(), seen[k], doomed[k])
					}
				}
				for k, n := range left {
					if n > 0 && s.queue.due[k] == 0 {
						t.Fatalf("%s with %d blobs was forgotten", k.keyPrefix(), n)
					}
				}
			},
			"advance": func(t *rapid.T) {
				now += rapid.Int64Range(0, classLength(2)).Draw(t, "by")
				boundary = now - classLength(1)
				s.advanceFrontier(class, boundary)
				for ; frontier.end() <= boundary; frontier = frontier.nextSlice() {
					left[frontier] = rapid.IntRange(0, 2).Draw(t, "blobs")
				}
			},
			"examine": func(t *rapid.T) {
				k, ok := s.takeDue(now)
				if !ok {
					return
				}
				if k.end() > boundary {
					t.Fatalf("%s is examined before the boundary has passed it", k.keyPrefix())
				}
				if rapid.IntRange(0, 5).Draw(t, "fails") == 0 {
					s.retryAfter(k, now, time.Second)
					return
				}
				o := sliceResult{doomed: rapid.IntRange(0, left[k]).Draw(t, "dead"), due: now + rapid.Int64Range(0, classLength(9)).Draw(t, "due")}
				o.left = left[k] - o.doomed
				o.cut = o.left > 0 && rapid.IntRange(0, 5).Draw(t, "cut") == 0
				left[k] -= o.doomed
				doomed[k] += o.doomed
				s.recordResult(k, o, now)
				if !o.cut {
					seen[k] = true
					looked(k)
					if next, ok := s.takeDue(now + classLength(class)/60 - 1); ok && next == k {
						t.Fatal("it is due again at once")
					} else if ok {
						s.retryAfter(next, now, 0)
					}
				}
			},
			"delete": func(t *rapid.T) {
				for k := begin; k.end() <= boundary; k = k.nextSlice() {
					if doomed[k] > 0 {
						doomed[k]--
						s.recordDeleted(k)
						looked(k)
						return
					}
				}
			},
			"again": func(*rapid.T) { s.examineAgain(class, 0, now, now) },
		})
		// In the end, nothing is kept of slices without blobs.
		for range 3 * len(left) {
			now += classLength(1)
			for k, ok := s.takeDue(now); ok; k, ok = s.takeDue(now) {
				doomed[k] += left[k]
				s.recordResult(k, sliceResult{doomed: left[k]}, now)
				left[k] = 0
			}
			for k, n := range doomed {
				for range n {
					s.recordDeleted(k)
				}
				delete(doomed, k)
			}
			if len(s.slices) == 0 {
				return
			}
		}
		t.Fatalf("%d slices are left", len(s.slices))
	})
}

// TestScheduleAfterRestart: what was examined before is due when it is expected to expire, the rest at once.
func TestScheduleAfterRestart(t *testing.T) {
	s := newSliceSchedule(time.Hour)
	now := int64(1_750_000_000_000_000)
	cursor := now - classLength(10)
	s.beginClass(72, now-classLength(80), cursor, now-classLength(1), 71*time.Hour)
	if got := s.classCursor(72); got > cursor || got < cursor-classLength(1) {
		t.Errorf("the cursor is %d hours ago", (now-got)/classLength(1))
	}
	due := 0
	for k, ok := s.takeDue(now); ok; k, ok = s.takeDue(now) {
		if k.end() > now-classLength(71) && k.end() <= cursor {
			t.Fatalf("a slice of %d hours ago is due", (now-k.start())/classLength(1))
		}
		due++
	}
	if width := sliceOf(72, 7, 0).end(); due < int(classLength(16)/width) {
		t.Errorf("%d slices are due", due)
	}
}

// TestHorizon: what a pin holds back.
func TestHorizon(t *testing.T) {
	const now, hour = int64(1e15), int64(3600e6)
	for _, tc := range []struct {
		pin, want     int64
		limit         time.Duration
		held, revoked bool
	}{
		{0, now - 4*hour, time.Hour, false, false},
		{now - 3*hour, now - 4*hour, time.Hour, false, false},
		{now - 4*hour - 5, now - 4*hour - 5, time.Hour, true, false},
		{now - 5*hour, now - 5*hour, time.Hour, true, false},
		{now - 5*hour - 1, now - 5*hour, time.Hour, true, true},
		{now - 50*hour, now - 8*hour, 24 * time.Hour, true, true}, // no longer than the retention
		{now - 5*hour, now - 4*hour, 0, true, true},
	} {
		at, held, revoked := trimHorizon(now, 4*time.Hour, tc.pin, tc.limit)
		if at != tc.want || held != tc.held || revoked != tc.revoked {
			t.Errorf("pin %d h ago: %d h ago, %v, %v", (now-tc.pin)/hour, (now-at)/hour, held, revoked)
		}
	}
}

// TestTrimming: categories are looked at when something of them expires, and at once when their retention is lowered.
func TestTrimming(t *testing.T) {
	const now = int64(1e15)
	hour := time.Hour.Microseconds()
	all := func(retentions ...time.Duration) func(func(*scribev1.Category) bool) {
		var cats []*scribev1.Category
		for i, r := range retentions {
			if r > 0 {
				cats = append(cats, &scribev1.Category{Id: uint32(i + 1), Retention: durationpb.New(r)})
			}
		}
		return slices.Values(cats)
	}
	s := newTrimSchedule(10 * time.Second)
	s.syncCategories(all(time.Hour, 4*time.Hour, 72*time.Hour), 1, now)
	for range 3 {
		if _, _, ok := s.takeDue(now); !ok {
			t.Fatal("a new category is not due")
		}
	}
	if _, _, ok := s.takeDue(now); ok {
		t.Fatal("one is due twice")
	}
	for i, tc := range []struct {
		id        uint32
		retention time.Duration
		found     trimResult
		due       int64
	}{
		{1, time.Hour, trimResult{empty: true}, now + hour},
		{2, 4 * time.Hour, trimResult{oldest: now - hour}, now + 3*hour},
		{2, 4 * time.Hour, trimResult{oldest: now - 4*hour}, now + 4*hour/64},
		{3, 72 * time.Hour, trimResult{}, now + hour/6},
		{3, 72 * time.Hour, trimResult{empty: true}, now + 24*hour},
		{1, time.Minute, trimResult{}, now + 10e6},
		{1, time.Hour, trimResult{held: true, oldest: now}, now + 10e6},
		{3, 72 * time.Hour, trimResult{empty: true, nextUnused: now + 5*hour}, now + 5*hour},
		{3, 72 * time.Hour, trimResult{empty: true, nextUnused: now + 1}, now + hour}, // many logs may have such a time
		{1, time.Minute, trimResult{nextUnused: now + 1}, now + 10e6},
	} {
		if got := s.recordResult(tc.id, tc.retention, tc.found, now); got != tc.due {
			t.Errorf("%d: due in %v", i, time.Duration(got-now)*time.Microsecond)
		}
	}
	s = newTrimSchedule(10 * time.Second)
	s.syncCategories(all(time.Hour, 4*time.Hour), 1, now)
	for id, _, ok := s.takeDue(now); ok; id, _, ok = s.takeDue(now) {
		s.recordResult(id, time.Hour, trimResult{empty: true}, now)
	}
	s.syncCategories(all(0, 2*time.Hour, 9*time.Hour), 2, now+1)
	var due []uint32
	for id, st, ok := s.takeDue(now + 1); ok; id, st, ok = s.takeDue(now + 1) {
		due = append(due, id)
		if id == 2 && st.lowered != 4*time.Hour {
			t.Errorf("lowered from %v", st.lowered)
		}
	}
	if slices.Sort(due); !slices.Equal(due, []uint32{2, 3}) {
		t.Errorf("due: %v", due)
	}
}

// TestLease: one that waits takes over when nothing has changed for the length of a lease by its own clock.
func TestLease(t *testing.T) {
	l := lease{ttl: 9 * time.Second}
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	st := metalog.State{Epoch: 3, NextLSN: 10}
	other := &keeperState{Owner: "other"}
	for _, tc := range []struct {
		second int
		next   uint64
		last   *keeperState
		take   bool
	}{
		{0, 10, other, false},
		{8, 10, other, false},
		{8, 11, other, false},
		{16, 11, other, false},
		{17, 11, other, true},
		{17, 12, other, false},
		{18, 13, &keeperState{Owner: "other", Released: true}, true},
		{18, 14, &keeperState{Owner: "me"}, true},
		{18, 15, nil, false},
	} {
		st.NextLSN = record.LSN(tc.next)
		if take, wait := l.checkTakeover(at(tc.second), "me", st, tc.last); take != tc.take || !take && (wait <= 0 || wait > 3*time.Second) {
			t.Errorf("second %d, LSN %d: take %v, wait %v", tc.second, tc.next, take, wait)
		}
	}
	if take, _ := l.checkTakeover(at(18), "me", metalog.State{}, nil); !take {
		t.Error("nobody ever led, and it waits")
	}
}
