package pointer

import (
	"math"
	"slices"
	"time"
)

// classes are the retention classes in hours, ascending. A blob holds categories of one class, so there must be few classes. A
// blob is deleted when the last category in it expires, so neighbouring classes must not differ much. Classes may be added, but
// never removed, because they are in the keys of blobs.
var classes = []uint32{
	1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72, 96, 120, 168, 240, 336, 504, 720, 1080, 1440, 2160, 3240, 4380, 6570, 8760,
	13_140, 17_520, 26_280, 35_040, 43_800, 52_560, 61_320, 70_080, 78_840, 87_600,
}

// DefaultRetention is the retention of a category that states none.
const DefaultRetention = 72 * time.Hour

// RetentionClass returns the class, in hours, of blobs of a category with that retention: the smallest class that is not below
// it. A retention above every class is a class of its own.
func RetentionClass(retention time.Duration) uint32 {
	if retention <= 0 {
		retention = DefaultRetention
	}
	hours := uint64((retention + time.Hour - 1) / time.Hour)
	for _, c := range classes {
		if hours <= uint64(c) {
			return c
		}
	}
	return uint32(min(hours, math.MaxUint32))
}

// RetentionClasses returns the classes, ascending. The caller owns the slice.
func RetentionClasses() []uint32 { return slices.Clone(classes) }
