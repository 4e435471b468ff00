package group

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/storage/kv"
)

func groups() *rapid.Generator[*Group] {
	return rapid.Custom(func(t *rapid.T) *Group {
		buckets := uint32(1) << rapid.IntRange(0, 7).Draw(t, "log")
		g := testGroup(buckets, rapid.Uint32Range(0, buckets).Draw(t, "useful"))
		g.Positions, g.CreatedAt, g.PositionedAt = rapid.Uint64().Draw(t, "set"), rapid.Int64().Draw(t, "created"), rapid.Int64().Draw(t, "positioned")
		g.KnownUntil = rapid.Int64().Draw(t, "known until")
		g.PointerBytes, g.Capacity = rapid.Uint64().Draw(t, "bytes"), rapid.Uint64().Draw(t, "capacity")
		for i := range rapid.IntRange(0, 6).Draw(t, "members") {
			m := testMember(fmt.Sprint("m", i))
			m.Status = MemberStatus{Generation: rapid.Uint64().Draw(t, "generation"), Watermark: rapid.Int64().Draw(t, "watermark"), BusyPermille: 5}
			epoch := g.Join(m)
			if rapid.Bool().Draw(t, "release") {
				for _, m := range g.Members {
					g.Release(m.Epoch, g.Generation, g.Assignment(m.Epoch).Revoked)
				}
			}
			if rapid.IntRange(0, 4).Draw(t, "leave") == 0 {
				g.RemoveMembers(epoch)
			}
		}
		return g
	})
}

func TestGroupsAreStoredWhole(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := groups().Draw(t, "group")
		value, err := encodeGroup(g)
		if err != nil {
			t.Fatal(err)
		}
		again, err := decodeGroup(g.Name, value)
		if err != nil {
			t.Fatal(err)
		}
		if len(g.Members) == 0 {
			g.Members, again.Members = nil, nil
		}
		if !reflect.DeepEqual(g, again) {
			t.Fatalf("stored  %+v\nis read %+v", g, again)
		}
		if _, err := decodeGroup("another", value); !errors.Is(err, kv.ErrCorrupt) {
			t.Fatalf("under another name: %v", err)
		}
	})
}

func chunksOf() *rapid.Generator[positionMap] {
	return rapid.Custom(func(t *rapid.T) positionMap {
		p := positionMap{}
		s := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}
		for range rapid.IntRange(0, 5).Draw(t, "shards") {
			shard := record.MakeShardID(7, rapid.Uint16().Draw(t, "logical"), rapid.Uint16Range(0, 3).Draw(t, "writer"))
			places := make(bucket.Places, 16)
			for b := range places {
				lsn := record.LSN(rapid.Uint64Range(1, 100).Draw(t, "lsn"))
				places[b] = bucket.Place{LSN: lsn}
				if s.Of(shard, lsn) == uint32(b) {
					places[b].Skip = rapid.Uint32Range(0, 3).Draw(t, "skip")
				}
			}
			p[shard] = s.Compact(shard, places, bucket.All(16))
		}
		return p
	})
}

func TestPositionsAreStoredWhole(t *testing.T) {
	g := testGroup(16, 16)
	rapid.Check(t, func(t *rapid.T) {
		p := chunksOf().Draw(t, "positions")
		value, err := encodePositions(p)
		if err != nil {
			t.Fatal(err)
		}
		again := positionMap{}
		if err := decodePositions(g, value, again); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(p, again) {
			t.Fatalf("stored  %+v\nis read %+v", p, again)
		}
	})
}

// What is stored takes as little as the package's comment says.
func TestPositionsAreSmall(t *testing.T) {
	s := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 256}
	size := func(places bucket.Places) int {
		p := positionMap{}
		for i := range 100 {
			shard := record.MakeShardID(7, uint16(i), 1)
			p[shard] = s.Compact(shard, places, bucket.All(256))
		}
		value, err := encodePositions(p)
		if err != nil {
			t.Fatal(err)
		}
		return len(value) / 100
	}
	idle, apart := make(bucket.Places, 256), make(bucket.Places, 256)
	for b := range idle {
		idle[b].LSN, apart[b].LSN = 100_000, record.LSN(1000+b*300)
	}
	if n := size(idle); n > 8 {
		t.Errorf("%d bytes for an idle shard", n)
	}
	if n := size(apart); n > 1100 {
		t.Errorf("%d bytes for a shard whose buckets are far apart", n)
	}
}

// goldens are values as version 1 stores them: later programs must read them.
func goldens(t *testing.T) map[string][]byte {
	g := testGroup(4, 3)
	g.Positions, g.CreatedAt, g.PositionedAt, g.PointerBytes, g.Capacity = 0x0123456789abcdef, 1_700_000_000_000_000, 1_700_000_000_000_001, 2_000_000, 90_000_000
	a := testMember("a")
	a.Description, a.JoinedAt, a.Beat = "pid 7", 1_700_000_000_000_002, 9
	a.Status = MemberStatus{Generation: 1, Watermark: 1_700_000_000_000_003, BytesPerSecond: 4, MessagesPerSecond: 5, PointersPerKilosecond: 6, BusyPermille: 7}
	g.Join(a)
	g.Join(testMember("b"))
	group, err := encodeGroup(g)
	if err != nil {
		t.Fatal(err)
	}
	pos, err := encodePositions(positionMap{
		record.MakeShardID(7, 0, 1): {Low: 12},
		record.MakeShardID(7, 3, 2): {Low: 100, Ahead: []bucket.Ahead{{Bucket: 1, Place: bucket.Place{LSN: 300}}, {Bucket: 3, Place: bucket.Place{LSN: 101, Skip: 5}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	times, err := encodeTimes([]int64{1_700_000_000_000_000, 1_700_000_000_000_000, 0, 5})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"group": group, "positions": pos, "times": times}
}

func TestGolden(t *testing.T) {
	for name, value := range goldens(t) {
		file := filepath.Join("testdata", "golden", "v1", name+".hex")
		if os.Getenv("SCRIBE_REWRITE") != "" {
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(hex.EncodeToString(value)+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(value); got != strings.TrimSpace(string(text)) {
			t.Errorf("%s is stored as\n%s\nand was\n%s", name, got, text)
		}
	}
}

func FuzzDecodeGroup(f *testing.F) {
	value, err := encodeGroup(testGroup(8, 8))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	f.Fuzz(func(t *testing.T, value []byte) {
		g, err := decodeGroup("readers", value)
		if err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		g.Join(testMember("another")) // whatever was read can be worked with
		if _, err := encodeGroup(g); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodePositions(f *testing.F) {
	value, err := encodePositions(positionMap{record.MakeShardID(7, 3, 2): {Low: 100, Ahead: []bucket.Ahead{{Bucket: 1, Place: bucket.Place{LSN: 300, Skip: 1}}}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	g := testGroup(16, 16)
	f.Fuzz(func(t *testing.T, value []byte) {
		p := positionMap{}
		if err := decodePositions(g, value, p); err != nil {
			if !errors.Is(err, kv.ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		for shard, at := range p {
			g.Scheme.Compact(shard, g.Scheme.Expand(&at, nil), bucket.All(16))
		}
		if _, err := encodePositions(p); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodeTimes(f *testing.F) {
	value, err := encodeTimes([]int64{5, 0, 7})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value)
	g := testGroup(16, 16)
	f.Fuzz(func(t *testing.T, value []byte) {
		if times, err := decodeTimes(g, value); err == nil && len(times) != 16 || err != nil && !errors.Is(err, kv.ErrCorrupt) {
			t.Fatal(times, err)
		}
	})
}
