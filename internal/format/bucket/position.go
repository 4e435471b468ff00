package bucket

import (
	"cmp"
	"slices"

	"scribe/internal/format/record"
)

// Place is the position of a bucket's next message in a shard: message number Skip of the bucket's first pointer from LSN on.
// With a Skip above 0, that is the pointer at LSN itself.
type Place struct {
	LSN  record.LSN
	Skip uint32
}

// Before reports whether p is before q.
func (p Place) Before(q Place) bool { return p.LSN < q.LSN || p.LSN == q.LSN && p.Skip < q.Skip }

// Ahead is a bucket that is ahead of the others.
type Ahead struct {
	Bucket uint32
	Place
}

// Position is the positions of buckets in one shard: buckets in Ahead have their own place, all others are at Low. The zero
// Position is the beginning of the shard.
type Position struct {
	Low   record.LSN
	Ahead []Ahead
}

// At returns the place of a bucket.
func (p *Position) At(bucket uint32) Place {
	if i, ok := p.findAhead(bucket); ok {
		return p.Ahead[i].Place
	}
	return Place{LSN: max(p.Low, record.FirstLSN)}
}

func (p *Position) findAhead(bucket uint32) (int, bool) {
	if len(p.Ahead) == 0 {
		return 0, false
	}
	return slices.BinarySearchFunc(p.Ahead, bucket, func(a Ahead, b uint32) int { return cmp.Compare(a.Bucket, b) })
}

// Places are the places of all buckets in one shard: a scratch buffer that is reused from shard to shard.
type Places []Place

// Expand fills dst with the places of all buckets. It may return another slice.
func (s Scheme) Expand(p *Position, dst Places) Places {
	dst = slices.Grow(dst[:0], int(s.Buckets))[:s.Buckets]
	low := Place{LSN: max(p.Low, record.FirstLSN)}
	for i := range dst {
		dst[i] = low
	}
	for _, a := range p.Ahead {
		dst[a.Bucket] = a.Place
	}
	return dst
}

// Compact returns the position that represents the places of the buckets in of. Of other buckets it says nothing. Every pointer below
// its Low that is in one of these buckets has been passed, and Low is at most the largest of their places.
func (s Scheme) Compact(shard record.ShardID, places Places, of Set) Position {
	if s.Sharing == Shards {
		return s.compactWhole(shard, places, of)
	}
	var p Position
	first, most := true, record.LSN(0)
	for b := range of.Each() {
		at := places[b]
		most = max(most, at.LSN)
		next := at.LSN
		if at.Skip == 0 {
			var ok bool
			if next, ok = s.Next(shard, b, at.LSN); !ok {
				continue
			}
		}
		if first || next < p.Low {
			first, p.Low = false, next
		}
	}
	p.Low = max(min(p.Low, most), record.FirstLSN)
	n := 0
	for b := range of.Each() {
		if s.isAhead(shard, b, places[b], p.Low) {
			n++
		}
	}
	if n == 0 {
		return p
	}
	p.Ahead = make([]Ahead, 0, n)
	for b := range of.Each() {
		if s.isAhead(shard, b, places[b], p.Low) {
			p.Ahead = append(p.Ahead, Ahead{Bucket: b, Place: places[b]})
		}
	}
	return p
}

// isAhead reports whether a bucket at a place has passed any of its pointers from low on.
func (s Scheme) isAhead(shard record.ShardID, bucket uint32, at Place, low record.LSN) bool {
	if at.Skip > 0 {
		return true
	}
	next, ok := s.Next(shard, bucket, low)
	return ok && next < at.LSN
}

func (s Scheme) compactWhole(shard record.ShardID, places Places, of Set) Position {
	b := s.wholeBucket(shard)
	if !of.Has(b) {
		return Position{Low: record.FirstLSN}
	}
	p := Position{Low: max(places[b].LSN, record.FirstLSN)}
	if places[b].Skip > 0 {
		p.Ahead = []Ahead{{Bucket: b, Place: places[b]}}
	}
	return p
}
