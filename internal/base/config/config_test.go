package config

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"
)

func TestFaults(t *testing.T) {
	inner := Of("inner")
	inner.Int("Workers", -1, 0, Open)
	f := Of("outer")
	for _, v := range []int{1, 2, 3} { // both ends are within
		f.Int("Right", v, 1, 3)
	}
	f.Bytes("Right", math.MaxInt64, 0, Open)
	f.Duration("Right", time.Hour, time.Second, time.Hour)
	f.Float("Right", math.Inf(1), math.SmallestNonzeroFloat64, Open)
	f.Join(nil)
	if err := f.Err(); err != nil {
		t.Fatal(err)
	}
	f.Int("Int", 4, 1, 3)
	f.Int("Int", 0, 1, Open)
	f.Bytes("Bytes", 1<<20, 2<<20, 1<<30)
	f.Bytes("Bytes", 1000, 1<<10, Open)
	f.Duration("Duration", 48*time.Hour, 0, time.Hour)
	f.Duration("Duration", 0, 1, Open)
	f.Float("Float", math.NaN(), 0.5, 1e6)
	f.Float("Float", 0, math.SmallestNonzeroFloat64, Open)
	f.Join(inner.Err())
	f.Add("Rules[0]", "pattern %q is not a glob", "[")
	f.Refuse("Mode", "odd", "even")
	want := `outer: Int is 4, it must be 1 to 3
outer: Int is 0, it must be above 0
outer: Bytes is 1MiB, it must be 2MiB to 1GiB
outer: Bytes is 1000B, it must be at least 1KiB
outer: Duration is 2d, it must be 0s to 1h
outer: Duration is 0s, it must be above 0
outer: Float is NaN, it must be 0.5 to 1000000
outer: Float is 0, it must be above 0
inner: Workers is -1, it must be at least 0
outer: Rules[0]: pattern "[" is not a glob
outer: Mode is odd, it must be even`
	err := f.Err()
	if err == nil {
		t.Fatal("no faults")
	}
	for i, got := range strings.Split(err.Error(), "\n") {
		if line := strings.Split(want, "\n"); i >= len(line) || got != line[i] {
			t.Errorf("line %d is %q, want\n%s", i, got, want)
		}
	}
	var fault Fault
	if !errors.As(inner.Err(), &fault) || fault != (Fault{Package: "inner", Field: "Workers", Text: " is -1, it must be at least 0"}) {
		t.Errorf("got %+v", fault)
	}
}
