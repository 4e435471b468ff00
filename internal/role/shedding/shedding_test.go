package shedding

import (
	"testing"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

const (
	low      = scribev1.Priority_PRIORITY_LOW
	normal   = scribev1.Priority_PRIORITY_NORMAL
	high     = scribev1.Priority_PRIORITY_HIGH
	critical = scribev1.Priority_PRIORITY_CRITICAL
)

// gives reports whether frames of a priority give way when so much of 100 is used.
func (s *Shedder) gives(now time.Duration, p scribev1.Priority, used int64) bool {
	return GivesWay(s.ReservedShare(now, p), used, 100)
}

// TestLowestGoesFirst: the fuller the memory, the more priorities give way, and the highest that is there never does.
func TestLowestGoesFirst(t *testing.T) {
	var s Shedder
	for _, p := range []scribev1.Priority{low, normal, critical} { // nobody has high
		s.Note(time.Second, p)
	}
	for _, tc := range []struct {
		used                  int64
		low, normal, critical bool
	}{
		{0, false, false, false}, {75, false, false, false}, {76, true, false, false}, {88, true, false, false}, {89, true, true, false}, {100, true, true, false},
	} {
		for p, want := range map[scribev1.Priority]bool{low: tc.low, normal: tc.normal, critical: tc.critical} {
			if got := s.gives(2*time.Second, p, tc.used); got != want {
				t.Errorf("at %d of 100: %v gives way: %v", tc.used, p, got)
			}
		}
	}
}

// TestAlikeUseEverything: while only one priority is there, none gives way, whichever it is.
func TestAlikeUseEverything(t *testing.T) {
	for _, p := range []scribev1.Priority{low, normal, high, critical} {
		var s Shedder
		s.Note(0, p)
		s.NoteRefused(0, p)
		if s.gives(0, p, 100) {
			t.Errorf("%v gives way to nobody", p)
		}
	}
	var s Shedder
	s.Note(time.Second, critical)
	if !s.gives(2*time.Second, low, 100) || s.gives(time.Second+remembered+time.Second, low, 100) {
		t.Error("critical is not there for as long as it is remembered")
	}
}

// TestRefusedDrivesOthersOut: after a refusal lower priorities give way whatever is used, until there is room again.
func TestRefusedDrivesOthersOut(t *testing.T) {
	var s Shedder
	s.NoteRefused(time.Second, high)
	if !s.gives(time.Second, normal, 0) || s.gives(time.Second, critical, 100) || s.gives(time.Second, high, 100) {
		t.Error("a refusal does not drive lower priorities out, or higher ones")
	}
	if s.gives(2*time.Second+pressed, normal, 0) {
		t.Error("lower priorities are kept out for ever")
	}
	for at := time.Second; at < 10*time.Second; at += 10 * time.Millisecond {
		s.NoteRefused(at, high)
		if !s.gives(at, low, 0) {
			t.Fatal("steady refusals are forgotten")
		}
	}
}

func TestLevelOf(t *testing.T) {
	for p, want := range map[scribev1.Priority]scribev1.Priority{0: normal, low: low, critical: critical, 9: normal, -1: normal} {
		if got := LevelOf(&scribev1.Category{Priority: p}); got != want {
			t.Errorf("priority %d is %v, want %v", p, got, want)
		}
	}
}
