package inflight

import "testing"

// TestPlaces: a key is where its newest request went, until the last one has ended.
func TestPlaces(t *testing.T) {
	var p Places[string, int]
	if _, ok := p.Find("a"); ok {
		t.Error("found before it began")
	}
	p.Begin("a", 1)
	p.Begin("a", 2)
	p.Begin("b", 3)
	p.End("a")
	if at, ok := p.Find("a"); at != 2 || !ok {
		t.Errorf("a is at %d, %t", at, ok)
	}
	p.End("a")
	if _, ok := p.Find("a"); ok || p.Len() != 1 {
		t.Errorf("a is there after its end, with %d keys", p.Len())
	}
	if at, ok := p.Find("b"); at != 3 || !ok {
		t.Errorf("b is at %d, %t", at, ok)
	}
}
