package delivery_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/base/entropy"
	"scribe/internal/format/delivery"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

// noon is the beginning of a minute.
var noon = time.Date(2024, 2, 29, 12, 0, 0, 0, time.UTC)

func minute(n int64) int64 { return delivery.MinuteOf(noon.UnixMicro()) + n }

func newLedger(hop, host, agent string, seed uint64) *delivery.Ledger {
	return delivery.NewLedger(hop, host, agent, entropy.FromSource(rand.NewPCG(seed, 0)))
}

// rowsOf returns the rows of frames, and their minutes.
func rowsOf(t *testing.T, frames []*delivery.Pending) (rows []delivery.Row, minutes []int64) {
	t.Helper()
	for _, p := range frames {
		category := ""
		err := delivery.RowsOf(p.Frame, func(r *delivery.Row, minute int64) error {
			if category != "" && category != r.Category {
				t.Errorf("a frame has rows of %s and %s", category, r.Category)
			}
			category = r.Category
			rows, minutes = append(rows, *r), append(minutes, minute)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return rows, minutes
}

// report moves what a ledger has to an account, as if it was stored at a time.
func report(t *testing.T, l *delivery.Ledger, a *delivery.Account, at time.Time, held map[string]int64) {
	t.Helper()
	frames := l.Reports(at, held)
	rows, minutes := rowsOf(t, frames)
	done := map[*delivery.Pending]bool{}
	for _, p := range frames {
		done[p] = true
	}
	l.Settle(done)
	for range 2 { // a row that was stored twice counts once
		for i := range rows {
			a.AddRow(&rows[i], minutes[i], at)
		}
	}
}

func TestGolden(t *testing.T) {
	l := newLedger(delivery.Agent, "host-7", "agent-7", 1)
	l.Add(delivery.Key{Category: "web.access", Producer: 0xfeed, Minute: minute(0)}, delivery.Counts{Produced: 12, Stored: 7, Sampled: 2})
	l.Add(delivery.Key{Category: "web.access", Producer: 0xfeed, Minute: minute(1), Reason: "full"}, delivery.Counts{Dropped: 3})
	frames := l.Reports(noon.Add(time.Second), map[string]int64{"web.access": 5})
	if len(frames) != 1 {
		t.Fatalf("%d frames", len(frames))
	}
	path := filepath.Join("testdata", "golden", "v1", "frame")
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, frames[0].Frame, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(kept) != string(frames[0].Frame) {
		t.Errorf("the frame is\n%q, want\n%q", frames[0].Frame, kept)
	}
	rows, minutes := rowsOf(t, []*delivery.Pending{{Frame: kept}})
	if len(rows) != 3 || rows[0].Produced != 12 || rows[0].Stored != 7 || rows[0].Sampled != 2 || rows[0].Producer != "000000000000feed" || minutes[0] != minute(0) ||
		rows[1].Dropped != 3 || rows[1].Reason != "full" || minutes[1] != minute(1) || *rows[2].Held != 5 || rows[2].Host != "host-7" || rows[2].Agent != "agent-7" {
		t.Errorf("the rows are %+v of the minutes %v", rows, minutes)
	}
}

// TestMinutes: a minute has its beginning, also before 1970.
func TestMinutes(t *testing.T) {
	for micros, want := range map[int64]int64{0: 0, 59_999_999: 0, 60_000_000: 1, -1: -1, -60_000_000: -1, -60_000_001: -2} {
		if got := delivery.MinuteOf(micros); got != want {
			t.Errorf("the minute of %d is %d, want %d", micros, got, want)
		}
	}
}

// TestInvalidRows: what exceeds a limit is not a row.
func TestInvalidRows(t *testing.T) {
	good := `{"id":"a/1","hop":"agent","category":"c","producer":"000000000000feed","produced":3}`
	if r, err := delivery.ParseRow([]byte(good)); err != nil || r.Produced != 3 {
		t.Fatal(r, err)
	}
	for name, text := range map[string]string{
		"no JSON":           "x",
		"cut":               good[:len(good)-1],
		"more":              good + "{}",
		"too long":          good + strings.Repeat(" ", delivery.MaxPayload),
		"no id":             strings.Replace(good, "a/1", "", 1),
		"no hop":            strings.Replace(good, "agent", "", 1),
		"another hop":       strings.Replace(good, "agent", "store", 1),
		"no category":       strings.Replace(good, `"c"`, `""`, 1),
		"a bad category":    strings.Replace(good, `"c"`, `"a b"`, 1),
		"a long id":         strings.Replace(good, "a/1", strings.Repeat("a", delivery.MaxText+1), 1),
		"a bad producer":    strings.Replace(good, "feed", "FEED", 1),
		"producer 0":        strings.Replace(good, "feed", "0000", 1),
		"a count too large": strings.Replace(good, ":3", ":9223372036854775807", 1),
		"held below 0":      strings.Replace(good, `"produced":3`, `"held":-1`, 1),
	} {
		if r, err := delivery.ParseRow([]byte(text)); !errors.Is(err, delivery.ErrInvalid) {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}

func FuzzParseRow(f *testing.F) {
	f.Add([]byte(`{"id":"a/1","hop":"agent","category":"c","producer":"000000000000feed","produced":3,"held":4}`))
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := delivery.ParseRow(payload)
		if err != nil {
			if !errors.Is(err, delivery.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		a := delivery.NewAccount(r.Category, noon)
		a.AddRow(&r, minute(0), noon)
		a.Lines()
	})
}

// TestLedger: while a frame is pending, sums grow; nothing is told twice, and bounds are counted.
func TestLedger(t *testing.T) {
	l := newLedger(delivery.Library, "h", "", 1)
	key := delivery.Key{Category: "c", Producer: 1, Minute: minute(0)}
	l.Add(key, delivery.Counts{Produced: 5})
	l.Add(delivery.Key{Category: delivery.Category, Minute: minute(0)}, delivery.Counts{Produced: 5}) // rows are not counted
	first := l.Reports(noon, nil)
	l.Add(key, delivery.Counts{Produced: 2})
	again := l.Reports(noon, nil)
	if len(first) != 1 || len(again) != 1 || string(first[0].Frame) != string(again[0].Frame) {
		t.Fatal("a pending frame has changed")
	}
	l.Settle(map[*delivery.Pending]bool{again[0]: true})
	rows, _ := rowsOf(t, append(first, l.Reports(noon, nil)...))
	if len(rows) != 2 || rows[0].Produced != 5 || rows[1].Produced != 2 || rows[0].ID == rows[1].ID {
		t.Errorf("the rows are %+v", rows)
	}
	if l.Idle() {
		t.Error("a ledger with a pending frame is idle")
	}
	l.Settle(map[*delivery.Pending]bool{l.Reports(noon, nil)[0]: false})
	if told, untold := l.Counts(); told != 1 || untold != 2 || !l.Idle() {
		t.Errorf("%d frames told, %d messages not", told, untold)
	}
	for i := range uint64(3 * delivery.MaxKeys) {
		l.Add(delivery.Key{Category: "c", Producer: i + 1, Minute: minute(0)}, delivery.Counts{Produced: 1})
	}
	sum := int64(0)
	rows, _ = rowsOf(t, l.Reports(noon, nil))
	for i := range rows {
		sum += rows[i].Produced
	}
	if sum != 3*delivery.MaxKeys || len(rows) != delivery.MaxKeys+1 {
		t.Errorf("%d messages in %d rows, want all %d in at most one row more than the bound", sum, len(rows), 3*delivery.MaxKeys)
	}
}

// TestKept: what was not told outlives the ledger, and nothing is told twice for it.
func TestKept(t *testing.T) {
	l := newLedger(delivery.Agent, "h", "a", 1)
	l.Add(delivery.Key{Category: "c", Producer: 1, Minute: minute(0)}, delivery.Counts{Produced: 5})
	pending := l.Reports(noon, map[string]int64{"c": 5})
	l.Add(delivery.Key{Category: "c", Producer: 1, Minute: minute(0)}, delivery.Counts{Produced: 2})
	kept := l.AppendKept(nil, noon)
	next := newLedger(delivery.Agent, "h", "a", 2)
	if err := next.Restore(kept); err != nil {
		t.Fatal(err)
	}
	a := delivery.NewAccount("c", noon)
	rows, minutes := rowsOf(t, pending) // its answer was lost
	for i := range rows {
		a.AddRow(&rows[i], minutes[i], noon)
	}
	report(t, next, a, noon, map[string]int64{})
	report(t, next, a, noon.Add(time.Second), map[string]int64{}) // now it says that it holds nothing
	if lines := a.Lines(); len(lines) != 1 || lines[0].Produced != 7 || lines[0].Pending != 0 || lines[0].Unaccounted != 7 {
		t.Errorf("the lines are %+v", lines)
	}
	if !next.Idle() || len(next.AppendKept(nil, noon)) != 0 {
		t.Error("something is left")
	}
	for n := 1; n < len(kept); n++ {
		if err := newLedger(delivery.Agent, "h", "a", 3).Restore(kept[:n]); n != len(pending[0].Frame) && !errors.Is(err, delivery.ErrKept) {
			t.Errorf("cut to %d of %d bytes: %v", n, len(kept), err)
		}
	}
	kept[len(kept)-1] ^= 1
	if err := newLedger(delivery.Agent, "h", "a", 4).Restore(kept); !errors.Is(err, delivery.ErrKept) {
		t.Errorf("damaged: %v", err)
	}
}

// TestAccount: what became of messages is found at the host and the hop where it happened.
func TestAccount(t *testing.T) {
	library := newLedger(delivery.Library, "h1", "", 1)
	agent := newLedger(delivery.Agent, "h1", "a1", 2)
	other := newLedger(delivery.Library, "h2", "", 3)
	reader := newLedger(delivery.Reader, "h3", "", 4)
	a := delivery.NewAccount("c", noon)
	of := func(producer uint64, m int64) delivery.Key {
		return delivery.Key{Category: "c", Producer: producer, Minute: minute(m)}
	}
	dropped := func(producer uint64, m int64, reason string) delivery.Key {
		k := of(producer, m)
		k.Reason = reason
		return k
	}
	// 100 through the agent: 10 the library had no memory for, 20 were sampled out, 40 are stored, 30 wait in the agent.
	library.Add(of(1, 0), delivery.Counts{Produced: 100, Passed: 90})
	library.Add(dropped(1, 0, "buffer_full"), delivery.Counts{Dropped: 10})
	agent.Add(of(1, 0), delivery.Counts{Produced: 90, Sampled: 20, Stored: 40})
	// A minute later 50, which all wait; the agent has dropped 45 and knows not which: the oldest.
	library.Add(of(1, 1), delivery.Counts{Produced: 50, Passed: 50})
	agent.Add(of(1, 1), delivery.Counts{Produced: 50})
	agent.Add(dropped(0, 2, "full"), delivery.Counts{Dropped: 45})
	// 7 straight to the cell; of one nobody knows, one was refused, and one is still in the library.
	other.Add(of(2, 0), delivery.Counts{Produced: 7, Stored: 4})
	other.Add(dropped(2, 0, "unknown_outcome"), delivery.Counts{Dropped: 1})
	other.Add(dropped(2, 0, "refused"), delivery.Counts{Dropped: 1})
	reader.Add(delivery.Key{Category: "c", Producer: 1, Minute: minute(0), Reader: "billing"}, delivery.Counts{Delivered: 39})
	reader.Add(delivery.Key{Category: "d", Producer: 1, Minute: minute(0), Reader: "billing"}, delivery.Counts{Delivered: 39})
	report(t, library, a, noon, nil)
	report(t, agent, a, noon, map[string]int64{"c": 35, "d": 1})
	report(t, other, a, noon, nil)
	report(t, reader, a, noon, nil)

	lines := a.Lines()
	check := func(i int, want delivery.Line) {
		t.Helper()
		if i >= len(lines) {
			t.Fatalf("the lines are %+v", lines)
		}
		l := lines[i]
		if l.Host != want.Host || !l.Minute.Equal(want.Minute) || l.Produced != want.Produced || l.Stored != want.Stored || l.Dropped != want.Dropped ||
			l.Sampled != want.Sampled || l.Pending != want.Pending || l.Unaccounted != want.Unaccounted || l.Copies != want.Copies {
			t.Errorf("line %d is\n%+v, want\n%+v", i, l, want)
		}
		for reason, n := range want.Reasons {
			if l.Reasons[reason] != n {
				t.Errorf("line %d: %s: %d, want %d", i, reason, l.Reasons[reason], n)
			}
		}
		for hop, n := range want.Held {
			if l.Held[hop] != n {
				t.Errorf("line %d: %s holds %d, want %d", i, hop, l.Held[hop], n)
			}
		}
		if l.Produced != l.Stored+l.Dropped+l.Sampled+l.Pending+l.Unaccounted {
			t.Errorf("line %d does not add up: %+v", i, l)
		}
	}
	check(0, delivery.Line{
		Host: "h1", Minute: noon, Produced: 100, Stored: 40, Dropped: 40, Sampled: 20,
		Reasons: map[string]int64{"library:buffer_full": 10, "agent:full": 30},
	})
	if lines[0].Delivered["billing"] != 39 || lines[0].Rate != 1.5 {
		t.Errorf("delivered: %+v", lines[0])
	}
	check(1, delivery.Line{
		Host: "h2", Minute: noon, Produced: 7, Stored: 4, Dropped: 1, Pending: 1, Unaccounted: 1,
		Reasons: map[string]int64{"library:refused": 1}, Held: map[string]int64{delivery.Library: 1},
	})
	check(2, delivery.Line{
		Host: "h1", Minute: noon.Add(time.Minute), Produced: 50, Dropped: 15, Pending: 35,
		Reasons: map[string]int64{"agent:full": 15}, Held: map[string]int64{delivery.Agent: 35},
	})

	// A crash of the agent takes five of those that it had: its next run says that it has 30.
	report(t, newLedgerWith(t, agent, noon), a, noon.Add(time.Hour), map[string]int64{"c": 30})
	lines = a.Lines()
	check(2, delivery.Line{
		Host: "h1", Minute: noon.Add(time.Minute), Produced: 50, Dropped: 15, Pending: 30, Unaccounted: 5, Held: map[string]int64{delivery.Agent: 30},
	})

	// The log decides: two of the first were stored twice, and one that was told to be stored is not there.
	for i := range uint64(39) {
		a.AddStored(delivery.Place{Producer: 1, Epoch: 1, Sequence: i}, noon.UnixMicro()+int64(i))
	}
	a.AddStored(delivery.Place{Producer: 1, Epoch: 1, Sequence: 5}, noon.UnixMicro())
	a.AddStored(delivery.Place{Producer: 1, Epoch: 1, Sequence: 38}, noon.UnixMicro())
	a.AddStored(delivery.Place{Producer: 1, Epoch: 2, Sequence: 5}, noon.Add(-time.Hour).UnixMicro())
	for i := range uint64(5) { // the one of which nobody knew is stored
		a.AddStored(delivery.Place{Producer: 2, Epoch: 1, Sequence: 4 - i}, noon.UnixMicro())
	}
	lines = a.Lines()
	check(0, delivery.Line{Host: "h1", Minute: noon, Produced: 100, Stored: 39, Dropped: 40, Sampled: 20, Unaccounted: 1, Copies: 2})
	check(1, delivery.Line{Host: "h2", Minute: noon, Produced: 7, Stored: 5, Dropped: 1, Pending: 1})
}

// TestChainedAgents: messages that pass several agents are counted once, at the host where they were produced; what the cell alone knows is there.
func TestChainedAgents(t *testing.T) {
	first, second := newLedger(delivery.Agent, "h1", "a1", 1), newLedger(delivery.Cell, "n1", "node1", 2)
	a := delivery.NewAccount("c", noon)
	add := func(l *delivery.Ledger, producer uint64, c delivery.Counts) {
		l.Add(delivery.Key{Category: "c", Producer: producer, Minute: minute(0)}, c)
	}
	add(second, 7, delivery.Counts{Produced: 8, Stored: 8})
	add(second, 8, delivery.Counts{Produced: 5, Stored: 5}) // straight to the cell
	add(second, 0, delivery.Counts{Produced: 3, Stored: 3})
	add(first, 7, delivery.Counts{Produced: 10, Stored: 8})
	add(first, 0, delivery.Counts{Produced: 3, Stored: 3})
	report(t, second, a, noon, map[string]int64{})
	report(t, first, a, noon, map[string]int64{"c": 2})
	lines := a.Lines()
	if len(lines) != 2 || lines[0].Host != "h1" || lines[0].Produced != 13 || lines[0].Stored != 11 || lines[0].Pending != 2 || lines[0].Unaccounted != 0 ||
		lines[1].Host != "n1" || lines[1].Produced != 5 || lines[1].Stored != 5 {
		t.Errorf("the lines are %+v", lines)
	}
}

// newLedgerWith returns the ledger of the next run of a reporter.
func newLedgerWith(t *testing.T, before *delivery.Ledger, now time.Time) *delivery.Ledger {
	t.Helper()
	l := newLedger(delivery.Agent, "h1", "a1", 9)
	if err := l.Restore(before.AppendKept(nil, now)); err != nil {
		t.Fatal(err)
	}
	for _, p := range l.Reports(now, nil) { // which were stored before
		l.Settle(map[*delivery.Pending]bool{p: true})
	}
	return l
}

// TestRanges: a message counts once, in whatever order and how often it is read.
func TestRanges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := delivery.NewAccount("c", noon)
		distinct, copies := map[uint64]bool{}, int64(0)
		for _, n := range rapid.SliceOf(rapid.Uint64Range(0, 40)).Draw(t, "sequences") {
			if distinct[n] {
				copies++
			}
			distinct[n] = true
			a.AddStored(delivery.Place{Producer: 1, Sequence: n}, noon.UnixMicro())
		}
		lines := a.Lines()
		if len(distinct) == 0 {
			if len(lines) != 0 {
				t.Fatal(lines)
			}
			return
		}
		if len(lines) != 1 || lines[0].Stored != int64(len(distinct)) || lines[0].Copies != copies {
			t.Fatalf("%d messages and %d copies are %+v", len(distinct), copies, lines)
		}
	})
}
