package pebblelog

import (
	"testing"
	"time"

	"scribe/storage/metalog/journal"
)

// A leader is silent after enough looks and time without a change. Looks that fail begin anew, and leaders that were deposed make the
// next ones be waited for longer.
func TestSilence(t *testing.T) {
	now := time.Unix(1000, 0)
	s := silence{after: time.Second}
	until := func(head journal.Head) time.Duration {
		began := now
		for !s.observe(head, now) {
			now = now.Add(100 * time.Millisecond)
		}
		return now.Sub(began)
	}
	head := journal.Head{Term: 1, Owner: journal.ID{1}, Revision: 1}
	if took := until(head); took != time.Second {
		t.Errorf("silent after %v", took)
	}
	s.lose()
	if s.observe(head, now.Add(time.Hour)) {
		t.Error("a journal that did not answer made the leader silent")
	}
	for i, want := range []time.Duration{2, 4, 8} {
		head.Term++
		if took := until(head); took != want*time.Second {
			t.Errorf("after %d deposed leaders: silent after %v", i+1, took)
		}
	}
	free := journal.Head{Term: head.Term, Revision: 9}
	now = now.Add(strikeMemory)
	s.observe(free, now)
	head.Term++
	if took := until(head); took != time.Second {
		t.Errorf("after a hand-over: silent after %v", took)
	}
}
