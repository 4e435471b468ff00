package loss_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"scribe/internal/format/loss"
)

func TestLedger(t *testing.T) {
	l := loss.NewLedger(loss.ByAgent, nil)
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	one := loss.Amount{Frames: 1, Bytes: 10, Messages: 2}
	a, b := loss.Key{Category: "a", Shard: 3, Reason: "full"}, loss.Key{Category: "b", AllShards: true, Reason: "expired"}
	l.Add(a, one, at(1), at(1))
	l.Add(a, one, at(2), at(2))
	l.Add(b, one, at(3), at(4))
	l.Add(b, loss.Amount{Frames: 1}, at(5), at(5)) // of no messages: nothing to tell
	first := l.Reports(at(9))
	if len(first) != 2 || len(first["a"]) != 1 || len(first["b"]) != 1 || l.Idle() {
		t.Fatalf("reports %+v", first)
	}
	r := decode(t, first["a"][0].Frame)
	if got, ok := loss.Parse(r.Payload, r.Attributes); !ok || got.Messages != 4 || got.Frames != 2 || got.Bytes != 20 || got.Since != 1e6 || got.Until != 2e6 || got.AllShards || r.Time != 9e6 {
		t.Errorf("report %+v at %d", got, r.Time)
	}
	// While it waits, more is summed and not reported.
	l.Add(a, one, at(6), at(6))
	l.Add(a, one, at(7), at(7))
	again := l.Reports(at(10))
	if len(again["a"]) != 1 || again["a"][0] != first["a"][0] {
		t.Errorf("reports %+v", again)
	}
	l.Settle(map[*loss.Pending]bool{first["a"][0]: true, first["b"][0]: false})
	if told, untold := l.Counts(); told != 1 || untold != 2 {
		t.Errorf("%d told, %d not", told, untold)
	}
	more := l.Reports(at(11))
	r = decode(t, more["a"][0].Frame)
	if got, ok := loss.Parse(r.Payload, r.Attributes); len(more) != 1 || !ok || got.Messages != 4 || got.Number != 3 {
		t.Errorf("report %+v of %d", got, len(more))
	}
	l.Settle(map[*loss.Pending]bool{more["a"][0]: true})
	if !l.Idle() || len(l.Reports(at(12))) != 0 {
		t.Error("something is left")
	}

	// A report that is dropped itself is not a message that is lost.
	l.AddFrame("a", "full", first["a"][0].Frame, 1, at(13))
	l.AddFrame("a", "full", []byte("no frame"), 1, at(13))
	last := l.Reports(at(14))["a"]
	for _, p := range last {
		if want := map[bool]int64{true: 1, false: 4}[p.AllShards]; p.Messages != want || !p.AllShards && p.Shard != 3 {
			t.Errorf("%+v", p)
		}
	}
	if len(last) != 2 {
		t.Errorf("%d reports", len(last))
	}
	l.Settle(map[*loss.Pending]bool{last[0]: true, last[1]: true})

	for i := range loss.MaxSums + 3 {
		l.Add(loss.Key{Category: fmt.Sprint("c", i), Reason: "full"}, one, at(15), at(15))
	}
	l.Add(loss.Key{Category: "not a name", Reason: "full"}, one, at(15), at(15))
	if _, untold := l.Counts(); untold != 2+4*2 {
		t.Errorf("%d untold", untold)
	}
}

// TestKeptReports: a ledger that takes over what another one kept reports the same losses, those that were pending as the same bytes.
func TestKeptReports(t *testing.T) {
	l := loss.NewLedger(loss.ByAgent, nil)
	l.NameReporter("host-1", strings.Repeat("é", loss.MaxText))
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	key := loss.Key{Category: "a", Shard: 3, Reason: "full"}
	l.Add(key, loss.Amount{Frames: 1, Bytes: 10, Messages: 2}, at(1), at(1))
	pending := l.Reports(at(2))["a"][0]
	l.Add(key, loss.Amount{Frames: 2, Bytes: 20, Messages: 5}, at(3), at(4)) // while the first report is on its way
	l.Add(loss.Key{Category: "b", AllShards: true, Reason: "expired"}, loss.Amount{Frames: 1, Bytes: 1, Messages: 1}, at(5), at(5))
	kept := l.AppendKept(nil, at(6))

	next := loss.NewLedger(loss.ByAgent, nil)
	if err := next.Restore(kept); err != nil {
		t.Fatal(err)
	}
	messages, identical := uint64(0), false
	numbers := map[string]bool{}
	for category, reports := range next.Reports(at(7)) {
		for _, p := range reports {
			r := decode(t, p.Frame)
			got, ok := loss.Parse(r.Payload, r.Attributes)
			if !ok || p.Category != category || got.Host != "host-1" || len(got.Agent) > loss.MaxText || got.Agent == "" {
				t.Errorf("report %+v of %s", got, category)
			}
			if id := fmt.Sprint(got.Run, got.Number); numbers[id] {
				t.Errorf("two reports are number %d", got.Number)
			} else {
				numbers[id] = true
			}
			messages += got.Messages
			identical = identical || string(p.Frame) == string(pending.Frame)
		}
	}
	if messages != 8 || len(numbers) != 3 || !identical {
		t.Errorf("%d messages in %d reports, the pending one as it was: %v", messages, len(numbers), identical)
	}
	for n := range kept {
		if err := loss.NewLedger(loss.ByAgent, nil).Restore(kept[:n]); n > 0 && n < len(pending.Frame) && !errors.Is(err, loss.ErrKept) {
			t.Errorf("cut to %d bytes: %v", n, err)
		}
	}
	damaged := append([]byte(nil), kept...)
	damaged[len(damaged)-1] ^= 1
	again := loss.NewLedger(loss.ByAgent, nil)
	if err := again.Restore(damaged); !errors.Is(err, loss.ErrKept) || again.Idle() {
		t.Errorf("damaged at the end: %v, and nothing of what stands before it: %v", err, again.Idle())
	}
	if len(loss.NewLedger(loss.ByAgent, nil).AppendKept(nil, at(9))) != 0 {
		t.Error("an empty ledger keeps something")
	}
}
