package schema

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Bounds of the observations.
const (
	maxNodesSeen   = 20_000
	maxObjectKeys  = 1000 // per object; beyond that its keys are data
	maxShapeDepth  = MaxDepth - 1
	maxDistinct    = 4096 // values of a dictionary
	maxDistinctLen = 1024 // bytes per value
)

// guesses are the layouts that texts are tried with after [RFC3339], in this order. Layouts whose order of day and month is
// ambiguous are not included.
var guesses = []TimeFormat{
	RFC3339, DateOnly, "2006-01-02T15:04:05", "2006-01-02 15:04:05", "2006-01-02T15:04:05Z0700", "2006-01-02 15:04:05 -0700",
	"2006/01/02 15:04:05", "02/Jan/2006:15:04:05 -0700", time.RFC1123, time.RFC1123Z, time.ANSIC,
}

var unixGuesses = []TimeFormat{UnixSeconds, UnixMillis, UnixMicros, UnixNanos}

// seenValues records the sample values at one position.
type seenValues struct {
	rows                                   int64 // values, including nulls
	nulls, bools, ints, floats, texts      int64
	objects, arrays                        int64
	negative, beyondInt, beyondUint, large bool // of whole numbers; large means more than 38 digits
	unix                                   map[TimeFormat]int64
	times                                  map[TimeFormat]int64
	last                                   TimeFormat // the format of the last text
	distinct                               map[string]struct{}
	tooMany                                bool // more distinct texts than are kept
	example                                string
	deep                                   bool // there are objects or arrays below the depth limit

	object  uint64 // the last object that had it as a member
	keys    []string
	fields  map[string]*seenValues
	dropped int64       // members beyond the limit
	elem    *seenValues // of a folded object: all its members merged
	item    *seenValues // elements of arrays
}

func newSeen() *seenValues {
	return &seenValues{
		unix: map[TimeFormat]int64{}, times: map[TimeFormat]int64{}, distinct: map[string]struct{}{}, fields: map[string]*seenValues{},
	}
}

func (n *seenValues) noteExample(text string) {
	if n.example == "" {
		n.example = clipText(text)
	}
}

func (n *seenValues) addNumber(text string) {
	n.noteExample(text)
	if strings.ContainsAny(text, ".eE") {
		n.floats++
		return
	}
	n.ints++
	digits, negative := strings.CutPrefix(text, "-")
	n.negative = n.negative || negative
	v, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		n.countUnix(v)
		return
	}
	n.beyondInt = true
	if _, err := strconv.ParseUint(text, 10, 64); err != nil {
		n.beyondUint = true
	}
	n.large = n.large || len(digits) > 38
}

// countUnix counts a whole number for the unix format in which it falls between 2000 and 2100. At most one format matches.
func (n *seenValues) countUnix(v int64) {
	const from, to = 946_684_800, 4_102_444_800
	if v < from {
		return
	}
	scale := int64(1)
	for _, f := range unixGuesses {
		if v >= from*scale && v/scale < to {
			n.unix[f]++
			return
		}
		if scale > math.MaxInt64/1000/to {
			return
		}
		scale *= 1000
	}
}

func (n *seenValues) addText(text string) {
	n.texts++
	n.noteExample(strconv.Quote(text))
	n.rememberText(text)
	if f := guessFormat(text, n.last); f != "" {
		n.times[f]++
		n.last = f
	}
}

func (n *seenValues) rememberText(text string) {
	if n.tooMany {
		return
	}
	if _, ok := n.distinct[text]; ok {
		return
	}
	if len(n.distinct) >= maxDistinct || len(text) > maxDistinctLen {
		n.tooMany, n.distinct = true, nil
		return
	}
	n.distinct[text] = struct{}{}
}

// guessFormat returns the format of an instant, or an empty format if the text is not one.
func guessFormat(text string, first TimeFormat) TimeFormat {
	if len(text) < 8 || len(text) > 40 || !strings.ContainsAny(text, "0123456789") {
		return ""
	}
	if first != "" {
		if _, ok := first.Parse(text); ok {
			return first
		}
	}
	for _, f := range guesses {
		if _, ok := f.Parse(text); ok {
			return f
		}
	}
	return ""
}

// foldMembers merges all members of an object into one observation, and so all later ones.
func (n *seenValues) foldMembers() {
	n.elem = n.mergeMembers()
	n.fields = nil
}

// mergeMembers returns all members of an object merged into one observation.
func (n *seenValues) mergeMembers() *seenValues {
	if n.elem != nil {
		return n.elem
	}
	all := newSeen()
	for _, key := range n.keys {
		all.mergeFrom(n.fields[key])
	}
	return all
}

// mergeFrom adds the observations of o without sharing memory with it.
func (n *seenValues) mergeFrom(o *seenValues) {
	n.rows += o.rows
	n.nulls += o.nulls
	n.bools += o.bools
	n.ints += o.ints
	n.floats += o.floats
	n.texts += o.texts
	n.objects += o.objects
	n.arrays += o.arrays
	n.negative, n.beyondInt, n.beyondUint, n.large = n.negative || o.negative, n.beyondInt || o.beyondInt, n.beyondUint || o.beyondUint, n.large || o.large
	n.deep = n.deep || o.deep
	n.dropped += o.dropped
	n.noteExample(o.example)
	addCounts(n.unix, o.unix)
	addCounts(n.times, o.times)
	if n.tooMany = n.tooMany || o.tooMany; n.tooMany {
		n.distinct = nil
	}
	for text := range o.distinct {
		n.rememberText(text)
	}
	if o.item != nil {
		if n.item == nil {
			n.item = newSeen()
		}
		n.item.mergeFrom(o.item)
	}
	if o.elem != nil && n.elem == nil {
		n.foldMembers()
	}
	if n.elem != nil {
		n.elem.mergeFrom(o.mergeMembers())
		n.keys = append(n.keys, o.keys...)
		return
	}
	for _, key := range o.keys {
		in, ok := n.fields[key]
		if !ok {
			in = newSeen()
			n.fields[key] = in
			n.keys = append(n.keys, key)
		}
		in.mergeFrom(o.fields[key])
	}
}

func addCounts(to, from map[TimeFormat]int64) {
	for f, count := range from {
		to[f] += count
	}
}

// countKinds returns the number of values of each kind, without nulls.
func (n *seenValues) countKinds() []KindCount {
	all := []KindCount{
		{"bool", n.bools}, {"integer", n.ints}, {"number", n.floats}, {"text", n.texts}, {"object", n.objects}, {"array", n.arrays},
	}
	return slices.DeleteFunc(all, func(k KindCount) bool { return k.Count == 0 })
}
