package pointer_test

import (
	"slices"
	"testing"
	"time"

	"scribe/internal/format/pointer"
)

func TestRetentionClass(t *testing.T) {
	for _, tc := range []struct {
		retention time.Duration
		want      uint32
	}{
		{0, 72},
		{time.Minute, 1},
		{time.Hour, 1},
		{time.Hour + 1, 2},
		{72 * time.Hour, 72},
		{73 * time.Hour, 96},
		{10 * 365 * 24 * time.Hour, 87_600},
		{11 * 365 * 24 * time.Hour, 96_360},
	} {
		if got := pointer.RetentionClass(tc.retention); got != tc.want {
			t.Errorf("%v: class %d, want %d", tc.retention, got, tc.want)
		}
	}
	all := pointer.RetentionClasses()
	if !slices.IsSorted(all) {
		t.Errorf("the classes are not in order: %v", all)
	}
	for i, c := range all {
		if got := pointer.RetentionClass(time.Duration(c) * time.Hour); got != c {
			t.Errorf("a retention of class %d gets class %d", c, got)
		}
		if i > 0 && c > 2*all[i-1] {
			t.Errorf("class %d is more than twice %d: what expires stays for longer than it was owed", c, all[i-1])
		}
	}
}
