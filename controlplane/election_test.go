package controlplane

import (
	"errors"
	"testing"
	"time"

	"scribe/storage/kv"
)

// reads is what an election is told, one look after another.
type reads struct {
	t   *testing.T
	e   election
	now time.Time
}

func newReads(t *testing.T) *reads {
	return &reads{t: t, e: election{interval: 250 * time.Millisecond, patience: time.Second}, now: time.Unix(1000, 0)}
}

// look reads a beat after a pause, and checks whether that is a reason to take over. The read itself takes as long as it takes.
func (r *reads) look(pause, took time.Duration, beat uint64, want bool) {
	r.t.Helper()
	r.now = r.now.Add(pause)
	began := r.now
	r.now = r.now.Add(took)
	s := leaderState{term: leaderTerm{Term: 3, Holder: "other"}, termRevision: 7, beatRevision: beat}
	if got := r.e.noteRead(s, began, r.now); got != want {
		r.t.Fatalf("take over: %t, want %t; silence %v", got, want, r.e.silence)
	}
}

func TestSilence(t *testing.T) {
	const tick = 250 * time.Millisecond
	r := newReads(t)
	for beat := range uint64(20) { // a leader that beats is never silent, and one that misses three beats is not
		r.look(tick, 0, 10+beat, false)
		r.look(tick, 0, 10+beat, false)
		r.look(tick, 0, 10+beat, false)
		r.look(tick, 0, 10+beat, false)
	}
	r.look(tick, 0, 29, true)
	r.look(tick, 0, 30, false) // and is alive with the next beat
}

func TestSilenceIsCounted(t *testing.T) {
	const tick = 250 * time.Millisecond
	r := newReads(t)
	r.look(tick, 0, 1, false)
	r.look(time.Hour, 0, 1, false) // this process was stopped
	r.look(tick, time.Hour, 1, false)
	r.look(tick, time.Minute, 1, false) // the store answers slowly: the leader's beats wait as well
	r.look(tick, 0, 1, true)

	r = newReads(t)
	for range 10 { // the store fails again and again
		r.look(tick, 0, 1, false)
		r.look(tick, 0, 1, false)
		r.look(tick, 0, 1, false)
		r.e.noteFailure()
		r.now = r.now.Add(tick)
	}
	for range 100 { // looks that are woken early do not shorten the patience
		r.look(time.Millisecond, 0, 1, false)
	}
}

func TestFreeTermsAreTaken(t *testing.T) {
	r := newReads(t)
	for _, free := range []leaderState{{}, {term: leaderTerm{Term: 9}, termRevision: 8, beatRevision: 7}} {
		if !r.e.noteRead(free, r.now, r.now) {
			t.Errorf("%+v is not taken", free)
		}
	}
	if r.e.noteRead(leaderState{unreadable: true, termRevision: 1}, r.now, r.now) {
		t.Error("a term that can't be read is taken at once")
	}
}

func TestTermIsStored(t *testing.T) {
	const golden = `{"version":1,"term":7,"holder":"n1","url":"http://n1:7420","since":1700000000000000}`
	term := leaderTerm{Version: 1, Term: 7, Holder: "n1", URL: "http://n1:7420", Since: 1_700_000_000_000_000}
	value, err := encodeTerm(term)
	if err != nil || string(value) != golden {
		t.Errorf("%s, %v; want %s", value, err, golden)
	}
	if got, err := decodeTerm([]byte(golden)); err != nil || got != term {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range []string{"", "{", `{"version":2,"term":7}`, `{"version":1,"term":0}`} {
		if got, err := decodeTerm([]byte(bad)); !errors.Is(err, kv.ErrCorrupt) {
			t.Errorf("%q: %+v, %v", bad, got, err)
		}
	}
}

func FuzzDecodeTerm(f *testing.F) {
	f.Add([]byte(`{"version":1,"term":7,"holder":"n1","url":"http://n1:7420","since":9}`))
	f.Add([]byte(`{"version":1,"term":7,"since":9}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		term, err := decodeTerm(value)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatalf("%v does not match ErrCorrupt", err)
			}
			return
		}
		again, err := encodeTerm(term)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := decodeTerm(again); err != nil || got != term {
			t.Fatalf("%+v became %+v, %v", term, got, err)
		}
	})
}
