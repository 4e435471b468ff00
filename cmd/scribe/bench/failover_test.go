package bench

import (
	"testing"
	"time"
)

// A gap that lasts counts, and so does one that began before the measurement.
func TestGapMeter(t *testing.T) {
	begin := time.Unix(1, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	g := &gapMeter{last: begin}
	g.noteMessage(at(10))
	g.noteMessage(at(50))
	g.noteMessage(at(60))
	if got := g.take(at(70)); got != 40*time.Millisecond {
		t.Errorf("the longest gap is %v, want 40ms", got)
	}
	if got := g.take(at(160)); got != 100*time.Millisecond {
		t.Errorf("a gap that lasts is %v, want 100ms", got)
	}
	g.noteMessage(at(200))
	if got := g.take(at(201)); got != 140*time.Millisecond {
		t.Errorf("a gap that began before is %v, want 140ms", got)
	}
	if g.since(at(200)) || !g.since(at(199)) {
		t.Error("the last event was at 200ms")
	}
}
