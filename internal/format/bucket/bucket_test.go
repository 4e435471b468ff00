package bucket

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

func schemes() *rapid.Generator[Scheme] {
	return rapid.Custom(func(t *rapid.T) Scheme {
		return Scheme{
			Sharing: rapid.SampledFrom([]Sharing{Pointers, Shards}).Draw(t, "sharing"),
			Buckets: 1 << rapid.IntRange(0, 5).Draw(t, "log of buckets"),
		}
	})
}

func shards() *rapid.Generator[record.ShardID] {
	return rapid.Custom(func(t *rapid.T) record.ShardID {
		return record.MakeShardID(7, rapid.Uint16Range(0, 40).Draw(t, "logical"), rapid.Uint16Range(0, 5).Draw(t, "writer"))
	})
}

func sets(s Scheme) *rapid.Generator[Set] {
	return rapid.Custom(func(t *rapid.T) Set {
		set := NewSet(s.Buckets)
		for b := range s.Buckets {
			if rapid.Bool().Draw(t, "in") {
				set.Add(b)
			}
		}
		return set
	})
}

// Positions that are stored rest on these numbers: they must never change.
func TestOfIsFixed(t *testing.T) {
	s := Scheme{Pointers, 256}
	var got []uint32
	for _, lsn := range []record.LSN{1, 2, 3, 255, 256, 257, 1 << 40} {
		got = append(got, s.Of(record.MakeShardID(7, 0, 1), lsn), s.Of(record.MakeShardID(7, 3, 2), lsn))
	}
	want := []uint32{81, 5, 82, 6, 83, 7, 175, 251, 223, 140, 222, 141, 82, 207}
	if !slices.Equal(got, want) {
		t.Errorf("buckets %v, want %v", got, want)
	}
	s.Sharing = Shards
	if b := s.Of(record.MakeShardID(7, 259, 2), 9); b != 3 {
		t.Errorf("bucket %d, want 3", b)
	}
}

// Of, Next and Count say the same.
func TestSchemeIsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, shard := schemes().Draw(t, "scheme"), shards().Draw(t, "shard")
		from := record.LSN(rapid.Uint64Range(1, 500).Draw(t, "from"))
		to := from + record.LSN(rapid.Uint64Range(0, 200).Draw(t, "length"))
		b := rapid.Uint32Range(0, s.Buckets-1).Draw(t, "bucket")
		var in []record.LSN
		for lsn := from; lsn < to; lsn++ {
			if s.Of(shard, lsn) == b {
				in = append(in, lsn)
			}
		}
		if n := s.Count(shard, b, from, to); n != uint64(len(in)) {
			t.Fatalf("Count is %d, there are %d", n, len(in))
		}
		next, ok := s.Next(shard, b, from)
		switch {
		case ok != s.Covers(shard, b):
			t.Fatalf("Next finds some: %v, Covers says %v", ok, !ok)
		case len(in) > 0 && next != in[0]:
			t.Fatalf("Next is %d, want %d", next, in[0])
		case len(in) == 0 && ok && next < to:
			t.Fatalf("Next is %d, there is none below %d", next, to)
		}
	})
}

// Each round has one pointer for each bucket, and the turns differ.
func TestPointersAreSpreadEvenly(t *testing.T) {
	s := Scheme{Pointers, 64}
	shard := record.MakeShardID(7, 0, 1)
	even := 0 // of bucket 0: at an even LSN
	for round := range record.LSN(1000) {
		seen := NewSet(64)
		for i := range record.LSN(64) {
			b := s.Of(shard, round*64+i)
			seen.Add(b)
			if b == 0 && i%2 == 0 {
				even++
			}
		}
		if seen.Len() != 64 {
			t.Fatalf("round %d has %d buckets", round, seen.Len())
		}
	}
	if even < 400 || even > 600 {
		t.Errorf("bucket 0 has an even LSN in %d of 1000 rounds: a writer's rhythm would favour it", even)
	}
}

func TestNextAtTheEndOfNumbers(t *testing.T) {
	s := Scheme{Pointers, 1024}
	for b := range uint32(1024) {
		if next, ok := s.Next(3, b, math.MaxUint64-5); ok && next < math.MaxUint64-5 {
			t.Fatalf("bucket %d goes on at %d", b, next)
		}
	}
}

// A position says of each bucket that it is about which messages are behind it, and no less.
func TestCompact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, shard := schemes().Draw(t, "scheme"), shards().Draw(t, "shard")
		of := sets(s).Draw(t, "of")
		places := make(Places, s.Buckets)
		most := record.LSN(1)
		for b := range places {
			lsn := record.LSN(rapid.Uint64Range(1, 100).Draw(t, "lsn"))
			places[b] = Place{LSN: lsn}
			if s.Of(shard, lsn) == uint32(b) {
				places[b].Skip = rapid.Uint32Range(0, 2).Draw(t, "skip")
			}
			if of.Has(uint32(b)) && s.Covers(shard, uint32(b)) {
				most = max(most, lsn)
			}
		}
		p := s.Compact(shard, places, of)
		if p.Low > most {
			t.Fatalf("low is %d, nobody is beyond %d", p.Low, most)
		}
		if !slices.IsSortedFunc(p.Ahead, func(a, b Ahead) int { return int(a.Bucket) - int(b.Bucket) }) {
			t.Fatal("not by bucket")
		}
		again := s.Expand(&p, nil)
		for b := range of.Each() {
			if !s.Covers(shard, b) {
				continue
			}
			for lsn := record.LSN(1); lsn < 110; lsn++ {
				if s.Of(shard, lsn) != b {
					continue
				}
				if was, is := left(places[b], lsn), left(again[b], lsn); was != is {
					t.Fatalf("bucket %d, LSN %d: %d messages passed before, %d after (%+v, low %d)", b, lsn, was, is, p.Ahead, p.Low)
				}
			}
		}
		if q := s.Compact(shard, s.Expand(&p, nil), of); q.Low != p.Low || !slices.Equal(q.Ahead, p.Ahead) {
			t.Fatalf("not canonical: %+v becomes %+v", p, q)
		}
	})
}

// left is how much of the pointer at an LSN is behind a place: all (-1) or so many messages.
func left(at Place, lsn record.LSN) int {
	switch {
	case lsn < at.LSN:
		return -1
	case lsn == at.LSN:
		return int(at.Skip)
	default:
		return 0
	}
}

// Buckets that have all come to the end of a shard are in no exception, wherever their last pointers were.
func TestCompactOfAnIdleShard(t *testing.T) {
	s := Scheme{Pointers, 256}
	shard := record.MakeShardID(7, 0, 1)
	const tail = 1000
	places := make(Places, 256)
	for b := range places {
		last := record.LSN(0)
		for lsn := record.LSN(1); lsn < tail; lsn++ {
			if s.Of(shard, lsn) == uint32(b) {
				last = lsn
			}
		}
		places[b] = Place{LSN: last + 1}
	}
	if p := s.Compact(shard, places, All(256)); p.Low != tail || len(p.Ahead) != 0 {
		t.Errorf("low %d with %d ahead, want %d with none", p.Low, len(p.Ahead), tail)
	}
}

func TestSets(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := Scheme{Pointers, 1 << rapid.IntRange(0, 6).Draw(t, "log")}
		a, b := sets(s).Draw(t, "a"), sets(s).Draw(t, "b")
		both := a.Clone()
		both.AddAll(b)
		less := a.Clone()
		less.RemoveAll(b)
		for i := range s.Buckets {
			if both.Has(i) != (a.Has(i) || b.Has(i)) || less.Has(i) != (a.Has(i) && !b.Has(i)) {
				t.Fatalf("bucket %d is wrong", i)
			}
		}
		if got := a.Slice(); len(got) != a.Len() || (len(got) == 0) != a.Empty() {
			t.Fatalf("%d of %d", len(got), a.Len())
		}
		again, err := Parse(append(a.Clone(), 0, 0), s.Buckets)
		if err != nil || !slices.Equal(again, a) {
			t.Fatalf("parsed %v, %v", again, err)
		}
		if _, err := Parse(append(a.Clone(), 1), s.Buckets); err == nil {
			t.Fatal("a bucket that does not exist was accepted")
		}
	})
}
