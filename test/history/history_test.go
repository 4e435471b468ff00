package history_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"scribe/test/history"
)

func writtenMessage(writer string, index int) history.Message {
	id := history.ID{Writer: writer, Index: index}
	return history.Message{ID: id, Payload: history.Payload(id, 60, rand.New(rand.NewPCG(1, uint64(index))))} //nolint:gosec // reproducible on purpose
}

// world is a little history and what a reader sees of it.
type world struct {
	h *history.History
	// stream is what a reader gets, in order.
	stream []delivered
}

type delivered struct {
	payload    []byte
	logical    uint32
	shard, lsn uint64
	index      int
	persisted  int64
}

// newWorld writes ten messages of two writers one after another, committed, to a category that is exactly_once ("once"), and to one
// that is not ("least"); there is also a batch of three. The reader sees each payload of two messages under an LSN.
func newWorld(category string) *world {
	w := &world{h: history.New()}
	w.h.Category("once", history.Guarantees{ExactlyOnce: true, NoGivingUp: true})
	w.h.Category("least", history.Guarantees{})
	for i := range 10 {
		for _, writer := range []string{"ann", "bob"} {
			m := writtenMessage(writer, i)
			w.h.Begin(category, 0, m).Acked(0, history.Committed)
			w.deliver(m)
		}
	}
	batch := []history.Message{writtenMessage("cat", 0), writtenMessage("cat", 1), writtenMessage("cat", 2)}
	a := w.h.BeginAtomic(category, 0, batch...)
	for i := range batch {
		a.Acked(i, history.Spooled)
		w.deliver(batch[i])
	}
	w.number()
	return w
}

func (w *world) deliver(m history.Message) {
	w.stream = append(w.stream, delivered{payload: m.Payload})
}

// number gives what is in the stream its places, and times that go with them.
func (w *world) number() {
	for i := range w.stream {
		w.stream[i].lsn, w.stream[i].index, w.stream[i].persisted = uint64(1+i/2), i%2, int64(1+i)
	}
}

func (w *world) read(category string) *history.Reading {
	r := w.h.Read(category)
	for _, d := range w.stream {
		r.Record(d.payload, d.logical, d.shard, d.lsn, d.index, d.persisted)
	}
	return r
}

func (w *world) check(t *testing.T, category string, want ...history.Kind) {
	t.Helper()
	report := w.h.Check(w.read(category), history.Spooled)
	kinds := map[history.Kind]bool{}
	for _, v := range report.Violations {
		kinds[v.Kind] = true
	}
	for _, k := range want {
		if !kinds[k] {
			t.Errorf("no violation of kind %q is found, but: %v", k, report.Err())
		}
		delete(kinds, k)
	}
	if len(kinds) > 0 {
		t.Errorf("found: %v", report.Err())
	}
}

func TestConsistentHistories(t *testing.T) {
	for _, category := range []string{"once", "least"} {
		w := newWorld(category)
		w.check(t, category)
		w.check(t, category) // the same once more
		r := w.h.Check(w.read(category), history.Spooled)
		if r.Written != 23 || r.Acked != 23 || r.Failed != 0 || r.Seen != 23 || r.Copies != 0 || r.Err() != nil {
			t.Errorf("reported %+v", r)
		}
	}
}

// kinds are the kinds of the violations in a report, each once.
func kinds(r *history.Report) (kinds []history.Kind) {
	for _, v := range r.Violations {
		if !slices.Contains(kinds, v.Kind) {
			kinds = append(kinds, v.Kind)
		}
	}
	return kinds
}

// TestKeyOrder: the order of messages with keys, and where they are, as a strict reader sees them. The writer wrote 0 to 5, of the keys
// a, b, a, b, a, b, at once; 2 has an unknown outcome.
func TestKeyOrder(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream []int // index, times ten the logical shard if it is not the right one
		once   []history.Kind
		least  []history.Kind
	}{
		{"as written", []int{0, 1, 2, 3, 4, 5}, nil, nil},
		{"other keys between", []int{0, 2, 4, 1, 3, 5}, nil, nil},
		{"a key's messages change places", []int{2, 1, 0, 3, 4, 5}, []history.Kind{history.Reordered}, []history.Kind{history.Reordered}},
		{"a later one comes first", []int{4, 0, 1, 2, 3, 5}, []history.Kind{history.Reordered}, []history.Kind{history.Reordered}},
		{"one that was given up comes late", []int{0, 1, 4, 2, 3, 5}, []history.Kind{history.Reordered}, nil},
		{"copies come later", []int{0, 1, 2, 3, 4, 5, 0, 1}, []history.Kind{history.Duplicate}, nil},
		{"another shard", []int{0, 1, 20, 3, 4, 5}, []history.Kind{history.Misplaced}, []history.Kind{history.Misplaced}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := history.New()
			byKey := func(key string, shard uint32) bool { return shard == uint32(key[0]-'a') }
			h.Category("once", history.Guarantees{ExactlyOnce: true, ByKey: byKey})
			h.Category("least", history.Guarantees{ByKey: byKey})
			for name, want := range map[string][]history.Kind{"once": c.once, "least": c.least} {
				var msgs []history.Message
				for i := range 6 {
					m := writtenMessage("ann", i)
					m.Key = string(rune('a' + i%2))
					m.Payload = history.JSONPayload(m.Payload, `"key":"`+m.Key+`"`)
					msgs = append(msgs, m)
				}
				a := h.Begin(name, 0, msgs...)
				for i := range msgs {
					if i != 2 {
						a.Acked(i, history.Committed)
					}
				}
				r := h.Read(name)
				trail := h.Follow(name, "strict", 0)
				lsn := map[uint32]uint64{}
				for at, i := range c.stream {
					shard := uint32(i % 2)
					if i >= 10 {
						i, shard = i/10, 1
					}
					lsn[shard]++
					r.Record(msgs[i].Payload, shard, uint64(shard), lsn[shard], 0, int64(1000+at))
					trail.Record(msgs[i].Payload, shard, uint64(shard), lsn[shard], 0, int64(1000+at))
				}
				if got := kinds(h.Check(r, history.Committed)); !slices.Equal(got, want) {
					t.Errorf("%s: a reading: found %v, want %v", name, got, want)
				}
				if want = slices.DeleteFunc(slices.Clone(want), func(k history.Kind) bool { return k == history.Duplicate }); name == "least" {
					if got := kinds(h.CheckTrail(trail, nil)); !slices.Equal(got, want) {
						t.Errorf("%s: a trail: found %v, want %v", name, got, want)
					}
				}
			}
		})
	}
}

// TestPlantedViolations damages what a reader sees in each way, and the checker must say so.
func TestPlantedViolations(t *testing.T) {
	for _, c := range []struct {
		name       string
		plant      func(w *world)
		once, less []history.Kind // what is found in a category that is exactly_once, and in one that is not
	}{
		{
			"an acknowledged message is missing", func(w *world) { w.stream = slices.Delete(w.stream, 4, 5); w.number() },
			[]history.Kind{history.Lost, history.Gap},
			[]history.Kind{history.Lost},
		},
		{
			"the last messages of a writer are missing", func(w *world) { w.stream = slices.Delete(w.stream, 18, 20); w.number() },
			[]history.Kind{history.Lost},
			[]history.Kind{history.Lost},
		},
		{
			"a message is there twice", func(w *world) { w.stream = append(w.stream, w.stream[3]); w.number() },
			[]history.Kind{history.Duplicate},
			nil,
		},
		{
			"two messages of a writer change places",
			func(w *world) { w.stream[4], w.stream[6] = w.stream[6], w.stream[4]; w.number() },
			[]history.Kind{history.Reordered},
			[]history.Kind{history.Reordered}, // who waits for each commit sees it in the times
		},
		{
			"a persisted time goes back", func(w *world) { w.stream[6].persisted = 1 }, nil, []history.Kind{history.Reordered},
		},
		{
			"a byte is wrong", func(w *world) {
				w.stream[2].payload = []byte(strings.Replace(string(w.stream[2].payload), "GET", "GOT", 1))
			},
			[]history.Kind{history.WrongBytes, history.Lost, history.Gap},
			[]history.Kind{history.WrongBytes, history.Lost},
		},
		{
			"a payload is something else altogether", func(w *world) { w.stream = append(w.stream, delivered{payload: []byte("\x00")}); w.number() },
			[]history.Kind{history.WrongBytes},
			[]history.Kind{history.WrongBytes},
		},
		{
			"a message was never written", func(w *world) { w.deliver(writtenMessage("eve", 1)); w.number() },
			[]history.Kind{history.WrongBytes},
			[]history.Kind{history.WrongBytes},
		},
		{
			"a message is in another logical shard", func(w *world) { w.stream[1].logical = 7 },
			[]history.Kind{history.WrongBytes},
			[]history.Kind{history.WrongBytes},
		},
		{
			"an LSN is left out", func(w *world) { setLSN(w.stream[10:], 1) },
			[]history.Kind{history.Positions},
			[]history.Kind{history.Positions},
		},
		{
			"an LSN is used twice", func(w *world) { w.stream[2].lsn, w.stream[3].lsn = 1, 1 },
			[]history.Kind{history.Positions},
			[]history.Kind{history.Positions},
		},
		{
			"the first LSN is missing", func(w *world) { setLSN(w.stream, 1) },
			[]history.Kind{history.Positions},
			[]history.Kind{history.Positions},
		},
		{
			"a message fell out of a payload", func(w *world) { w.stream[4].index = 1; w.stream[5].index = 2 },
			[]history.Kind{history.Positions},
			[]history.Kind{history.Positions},
		},
		{
			"a batch lacks its end", func(w *world) { w.stream = w.stream[:22] },
			[]history.Kind{history.TornBatch, history.Lost},
			[]history.Kind{history.TornBatch, history.Lost},
		},
		{
			"a batch lacks its beginning", func(w *world) { w.stream = slices.Delete(w.stream, 20, 21); w.number() },
			[]history.Kind{history.TornBatch, history.Lost, history.Gap},
			[]history.Kind{history.TornBatch, history.Lost},
		},
		{
			"a batch is interrupted", func(w *world) {
				w.deliver(writtenMessage("dan", 0))
				w.h.Begin("once", 0, writtenMessage("dan", 0))
				w.h.Begin("least", 0, writtenMessage("dan", 0))
				w.stream[21], w.stream[23] = w.stream[23], w.stream[21]
				w.number()
			},
			[]history.Kind{history.TornBatch, history.Reordered},
			[]history.Kind{history.TornBatch},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld("once")
			c.plant(w)
			w.check(t, "once", c.once...)
			w = newWorld("least")
			c.plant(w)
			w.check(t, "least", c.less...)
		})
	}
}

func setLSN(stream []delivered, more uint64) {
	for i := range stream {
		stream[i].lsn += more
	}
}

// TestOutcomes: what may be there, and what has to be.
func TestOutcomes(t *testing.T) {
	for _, c := range []struct {
		name  string
		write func(h *history.History, m history.Message)
		// absent and present are what is wrong when the message is not there, and when it is.
		absent, present []history.Kind
		weak            int
	}{
		{"never told", func(h *history.History, m history.Message) { h.Begin("c", 0, m) }, nil, nil, 0},
		{"failed", func(h *history.History, m history.Message) { h.Begin("c", 0, m).Failed(0) }, nil, []history.Kind{history.VisibleFailure}, 0},
		{"failed, and written again without an answer", func(h *history.History, m history.Message) {
			h.Begin("c", 0, m).Failed(0)
			h.Begin("c", 0, m)
		}, nil, nil, 0},
		{"failed, and acknowledged later", func(h *history.History, m history.Message) {
			h.Begin("c", 0, m).Failed(0)
			h.Begin("c", 0, m).Acked(0, history.Committed)
		}, []history.Kind{history.Lost}, nil, 0},
		{"none", func(h *history.History, m history.Message) { h.Begin("c", 0, m).Acked(0, history.None) }, nil, nil, 1},
		{"spooled", func(h *history.History, m history.Message) { h.Begin("c", 0, m).Acked(0, history.Spooled) }, []history.Kind{history.Lost}, nil, 0},
		{"none, then committed", func(h *history.History, m history.Message) {
			h.Begin("c", 0, m).Acked(0, history.None)
			h.Begin("c", 0, m).Acked(0, history.Committed)
		}, []history.Kind{history.Lost}, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, there := range []bool{false, true} {
				w := &world{h: history.New()}
				w.h.Category("c", history.Guarantees{})
				m := writtenMessage("ann", 0)
				c.write(w.h, m)
				want := c.absent
				if there {
					w.deliver(m)
					w.number()
					want = c.present
				}
				w.check(t, "c", want...)
				if got := w.h.Check(w.read("c"), history.Spooled).WeakLost; !there && got != c.weak {
					t.Errorf("%d messages are lost that were acknowledged at a weak level, want %d", got, c.weak)
				}
			}
		})
	}
}

// TestReadingBesideWriters: what was acknowledged after a reading began need not be in it.
func TestReadingBesideWriters(t *testing.T) {
	h := history.New()
	h.Category("c", history.Guarantees{})
	m := writtenMessage("ann", 0)
	a := h.Begin("c", 0, m)
	r := h.Read("c")
	a.Acked(0, history.Committed)
	if err := h.Check(r, history.Spooled).Err(); err != nil {
		t.Error(err)
	}
	if h.Check(h.Read("c"), history.Spooled).Err() == nil {
		t.Error("a reading that began later lacks it, and nothing is found")
	}
}

// TestChangedPlaces: two readings of one log must agree.
func TestChangedPlaces(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"another message stands there": func(w *world) {
			w.stream[0].payload, w.stream[1].payload = w.stream[1].payload, w.stream[0].payload
		},
		"the end of the log is gone": func(w *world) { w.stream = w.stream[:20] },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld("least")
			w.check(t, "least")
			for i := range w.stream {
				w.stream[i].persisted = 1
			}
			change(w)
			found := false
			for _, v := range w.h.Check(w.read("least"), history.Committed).Violations {
				found = found || v.Kind == history.Changed
			}
			if !found {
				t.Error("nothing is found")
			}
		})
	}
}

// TestRowsWithoutPlaces: what has no place is checked by its content.
func TestRowsWithoutPlaces(t *testing.T) {
	h := history.New()
	h.Category("c", history.Guarantees{})
	batch := []history.Message{writtenMessage("ann", 0), writtenMessage("ann", 1)}
	a := h.BeginAtomic("c", 0, batch...)
	a.Acked(0, history.Committed)
	a.Acked(1, history.Committed)
	r := h.Read("c")
	r.Row(batch[0].Payload)
	r.Row(batch[1].Payload)
	if err := h.Check(r, history.Spooled).Err(); err != nil || r.Len() != 2 {
		t.Error(err)
	}
	r = h.Read("c")
	r.Row(batch[0].Payload)
	if err := h.Check(r, history.Spooled).Err(); err == nil || !strings.Contains(err.Error(), "invariant 14") || !strings.Contains(err.Error(), "invariant 1,") {
		t.Errorf("a row that is missing: %v", err)
	}
}

// TestManyViolations: an error stays readable.
func TestManyViolations(t *testing.T) {
	h := history.New()
	h.Category("c", history.Guarantees{})
	for i := range 100 {
		h.Begin("c", 0, writtenMessage("ann", i)).Acked(0, history.Committed)
	}
	err := h.Check(h.Read("c"), history.Spooled).Err()
	if err == nil || strings.Count(err.Error(), "\n") != 20 || !strings.HasSuffix(err.Error(), fmt.Sprintf("and %d more violations", 80)) {
		t.Errorf("the error is %v", err)
	}
}
