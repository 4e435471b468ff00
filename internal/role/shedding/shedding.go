// Package shedding decides whose frames are refused first when the memory of a role runs out: those of the categories with the lowest
// priority.
//
// Memory that is full of frames that were accepted can't be taken back. So part of it is kept free for higher priorities, but only while
// these are there: a role whose categories are all alike uses all of its memory, and pays for nothing.
package shedding

import (
	"sync/atomic"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

const (
	// Levels is the number of priorities, with the one that is not set.
	Levels = int(scribev1.Priority_PRIORITY_CRITICAL) + 1
	// remembered is how long a priority counts as there after its last frame.
	remembered = 10 * time.Second
	// pressed is how long lower priorities give way entirely after a higher one was refused.
	pressed = 2 * time.Second
	// reserve is the share of the memory that is kept for each higher priority that is there.
	reserve = 1.0 / 8
)

// LevelOf returns the priority of a category; normal if it has none.
func LevelOf(c *scribev1.Category) scribev1.Priority {
	if p := c.GetPriority(); p > scribev1.Priority_PRIORITY_UNSPECIFIED && int(p) < Levels {
		return p
	}
	return scribev1.Priority_PRIORITY_NORMAL
}

// Shedder is the state of one role's memory. Its zero value is ready, and it is safe for concurrent use. Times are since any fixed instant
// before the first call.
type Shedder struct {
	// seen and refused are when a priority had frames and was refused last, plus one nanosecond, so that 0 is never.
	seen, refused [Levels]atomic.Int64
}

// Note notes that frames of a priority came.
func (s *Shedder) Note(now time.Duration, p scribev1.Priority) { raiseTime(&s.seen[p], now) }

// NoteRefused notes that frames of a priority were refused for lack of memory.
func (s *Shedder) NoteRefused(now time.Duration, p scribev1.Priority) { raiseTime(&s.refused[p], now) }

// raiseTime keeps a time, unless a close one is there: most calls write nothing that other processors read.
func raiseTime(at *atomic.Int64, now time.Duration) {
	if last := at.Load(); last == 0 || now-time.Duration(last) > pressed/8 {
		at.Store(int64(now) + 1)
	}
}

// ReservedShare returns the share of the memory that is kept free of frames of a priority, for the sake of higher ones: 0 while there are
// none, 1 while they have to be refused.
func (s *Shedder) ReservedShare(now time.Duration, p scribev1.Priority) float64 {
	higher := 0
	for l := int(p) + 1; l < Levels; l++ {
		if isRecent(&s.refused[l], now, pressed) {
			return 1
		}
		if isRecent(&s.seen[l], now, remembered) {
			higher++
		}
	}
	return reserve * float64(higher)
}

// GivesWay reports whether frames are refused that have to leave a share free, when used bytes of a limit are taken.
func GivesWay(reserved float64, used, limit int64) bool {
	return reserved > 0 && (reserved >= 1 || used > limit-int64(float64(limit)*reserved))
}

func isRecent(at *atomic.Int64, now, within time.Duration) bool {
	last := at.Load()
	return last != 0 && now-time.Duration(last) < within
}
