package retention

import (
	"fmt"
	"time"

	"scribe/internal/format/pointer"
)

// timeSlice is a time range of a class: the blobs whose ids share their leading digits, which a store can list by a prefix.
type timeSlice struct {
	class uint32 // in hours
	// digits is how many hexadecimal digits of the id they share, number is the value of these digits.
	digits uint8
	number uint64
}

// An id begins with 48 bits of Unix milliseconds: twelve digits, with a dash after the eighth.
const (
	idDigits  = 12
	dashAfter = 8
)

// sliceDigits returns the digits of a class's slices. A slice is examined as a whole, so it should span only a small part of the class;
// and a class should have at most some thousands of slices. 9, 8, 7 and 6 digits are 4 s, 66 s, 17.5 min and 4.7 h.
func sliceDigits(class uint32, grace time.Duration) uint8 {
	switch {
	case class < 8 && grace < time.Minute:
		return 9 // a short grace asks for early deletion
	case class < 8:
		return 8
	case class < 3000:
		return 7
	default:
		return 6
	}
}

func sliceShift(digits uint8) uint { return 4 * uint(idDigits-digits) }

// sliceOf returns the slice of a blob made at t, Unix microseconds.
func sliceOf(class uint32, digits uint8, t int64) timeSlice {
	return timeSlice{class: class, digits: digits, number: uint64(max(t, 0)/1000) >> sliceShift(digits)}
}

// start is the time of the first blob that the slice may hold, end that of the first one after it, in Unix microseconds.
func (s timeSlice) start() int64 { return int64(s.number<<sliceShift(s.digits)) * 1000 }
func (s timeSlice) end() int64   { return s.nextSlice().start() }

func (s timeSlice) nextSlice() timeSlice {
	s.number++
	return s
}

// keyPrefix is the prefix that the keys of its blobs have, and no other keys.
func (s timeSlice) keyPrefix() string {
	digits := fmt.Sprintf("%0*x", int(s.digits), s.number)
	if len(digits) > dashAfter {
		digits = digits[:dashAfter] + "-" + digits[dashAfter:]
	}
	return classPrefix(s.class) + digits
}

// classPrefix is the prefix of a class's keys.
func classPrefix(class uint32) string { return fmt.Sprintf("%s%dh/", pointer.KeyRoot, class) }

// classLength is the retention of a class in microseconds.
func classLength(class uint32) int64 { return (time.Duration(class) * time.Hour).Microseconds() }
