package retention

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"scribe/internal/format/pointer"
)

func sampleState() *keeperState {
	return &keeperState{
		Cell: "abcdefghijklmnop", Owner: "host-1", Cursors: map[uint32]int64{1: 5, 72: 1_750_000_000_000_000},
		Rechecks: []recheckRange{{Class: 72, From: 1, To: 2, At: 3}}, SweptAt: 9, SweepClass: 4,
	}
}

// TestStateGolden: version 1 is read for ever.
func TestStateGolden(t *testing.T) {
	const golden = `{"version":1,"cell":"abcdefghijklmnop","owner":"host-1","cursors":{"1":5,"72":1750000000000000},` +
		`"rechecks":[{"class":72,"from":1,"to":2,"at":3}],"swept_at":9,"sweep_class":4}`
	b, err := sampleState().encode()
	if err != nil || string(b) != golden {
		t.Errorf("%s, %v", b, err)
	}
	want := sampleState()
	want.Version = 1
	if got, err := decodeState([]byte(golden)); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = decodeState([]byte(strings.Replace(golden, `"version":1`, `"version":2`, 1)))
	if err == nil || errors.Is(err, errState) || !strings.Contains(err.Error(), "newer") {
		t.Errorf("a newer version: %v", err)
	}
}

// TestFormerClaimsGolden: what says whose claims are former ones is absent from the states of cells that have replaced none.
func TestFormerClaimsGolden(t *testing.T) {
	const golden = `{"version":1,"cell":"c","unclaimed":true,"former_until":1750000000000000,"owner":"host-1"}`
	s := &keeperState{Cell: "c", Owner: "host-1", Unclaimed: true, FormerUntil: 1_750_000_000_000_000}
	b, err := s.encode()
	if err != nil || string(b) != golden {
		t.Errorf("%s, %v", b, err)
	}
	if got, err := decodeState([]byte(golden)); err != nil || !reflect.DeepEqual(got, s) {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := decodeState([]byte(strings.Replace(golden, ":175", ":-175", 1))); !errors.Is(err, errState) {
		t.Errorf("a negative boundary: %v", err)
	}
}

// TestRechecksAreBounded: however many there are, the state fits a record, and none is forgotten.
func TestRechecksAreBounded(t *testing.T) {
	s := sampleState()
	s.Rechecks = nil
	for i := range int64(10_000) {
		for _, class := range pointer.RetentionClasses() {
			s.addRecheck(recheckRange{Class: class, From: i, To: 1_750_000_000_000_000 + i, At: i})
		}
	}
	if len(s.Rechecks) > maxRechecks {
		t.Errorf("%d", len(s.Rechecks))
	}
	covered := map[uint32][2]int64{}
	for _, r := range s.Rechecks {
		c, ok := covered[r.Class]
		if !ok {
			c = [2]int64{r.From, r.To}
		}
		covered[r.Class] = [2]int64{min(c[0], r.From), max(c[1], r.To)}
	}
	if !slices.Equal(slices.Sorted(maps.Keys(covered)), pointer.RetentionClasses()) || covered[72] != [2]int64{0, 1_750_000_000_009_999} {
		t.Errorf("covered: %v", covered)
	}
	for _, class := range pointer.RetentionClasses() {
		s.Cursors[class] = 1_750_000_000_000_000
	}
	if b, err := s.encode(); err != nil || len(b) > 48<<10 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
}

func FuzzDecodeState(f *testing.F) {
	b, err := sampleState().encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"version":1,"cell":"../x","owner":"o"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := decodeState(b)
		if err != nil {
			return
		}
		if _, err := parseClaim(storeClaim{s.Cell, 7}.key()); err != nil {
			t.Fatalf("cell %q has no claims: %v", s.Cell, err)
		}
		again, err := s.encode()
		if err != nil {
			return // numbers may take more room than in b
		}
		if back, err := decodeState(again); err != nil || len(back.Rechecks) != len(s.Rechecks) {
			t.Fatalf("%q came back as %+v, %v", b, back, err)
		}
	})
}

func FuzzParseClaim(f *testing.F) {
	f.Add("collector/abc/0000000000000007")
	f.Add("collector/abc/7")
	f.Add("collector/a/b/0000000000000007")
	f.Fuzz(func(t *testing.T, key string) {
		c, err := parseClaim(key)
		if at, ok := ClaimBoundary(key); ok != (err == nil) || at != c.boundary {
			t.Fatalf("%q has the boundary %d, %t", key, at, ok)
		}
		if err == nil && c.key() != key {
			t.Fatalf("%q is %+v", key, c)
		}
	})
}
