package spool

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestOldestRecord: the oldest record of a category is the oldest one that is held, also when records come as others are finished, so that the
// segment always has some.
func TestOldestRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig()
		c.MaxBytes, c.SegmentBytes = 1<<20, 64<<10 // one segment takes all
		s := openSpool(t, c, vfs.NewMem())
		type held struct {
			ref Ref
			at  time.Time
		}
		var waiting []held
		for i := range 100 {
			waiting = append(waiting, held{appendOne(t, s, "a", i, 10, true), time.Now()})
			if len(waiting) > 3 {
				s.Done(waiting[0].ref)
				waiting = waiting[1:]
			}
			if got := s.Queue("a").Oldest; !got.Equal(waiting[0].at.Truncate(time.Microsecond)) {
				t.Fatalf("after %d records the oldest is of %v, want %v", i+1, got, waiting[0].at)
			}
			<-time.After(time.Second)
		}
		// One that is finished before its predecessors does not count.
		s.Done(waiting[1].ref)
		if got := s.Queue("a").Oldest; !got.Equal(waiting[0].at.Truncate(time.Microsecond)) {
			t.Errorf("the oldest is of %v, want %v", got, waiting[0].at)
		}
		s.Done(waiting[0].ref)
		if got := s.Queue("a").Oldest; !got.Equal(waiting[2].at.Truncate(time.Microsecond)) {
			t.Errorf("the oldest is of %v, want %v", got, waiting[2].at)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}
