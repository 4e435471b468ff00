package sequenced_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/golden anew")

const category = 17

func readSource(logical, writer uint16) record.ShardID {
	return record.MakeShardID(category, logical, writer)
}

func goldenRecords() map[string]sequenced.Record {
	return map[string]sequenced.Record{
		"pointer": {
			Kind: sequenced.KindPointer, Source: readSource(3, 2), LSN: 4711, Offset: 100_000, Horizon: 1_709_208_000_123_456,
			Time: 1_709_208_000_123_456, Pointer: []byte("a pointer"),
		},
		"late": {Kind: sequenced.KindPointer, Source: readSource(0, 1), LSN: 1, Horizon: 1_709_208_000_123_456, Time: 1_709_208_000_000_000, Pointer: []byte{1}},
		"gap":  {Kind: sequenced.KindGap, Source: readSource(0, 1), LSN: 5, Offset: 7, Horizon: 9, To: 300, Cause: sequenced.CauseTrimmed},
		"extremes": {
			Kind: sequenced.KindGap, Source: readSource(sequenced.Logical-1, math.MaxUint16), LSN: math.MaxUint64 - 1, Offset: math.MaxUint64 - 1,
			Horizon: math.MaxInt64, To: math.MaxUint64, Cause: sequenced.CauseDamaged,
		},
	}
}

func goldenChanges() map[string]sequenced.Change {
	return map[string]sequenced.Change{
		"empty": {Whole: true, Parts: 1, Next: 1},
		"usual": {Parts: 1, Next: 4711, Offset: 1_000_000, Horizon: 1_709_208_000_123_456, At: []sequenced.Position{
			{Shard: readSource(0, 0), LSN: 1}, {Shard: readSource(0, 1), LSN: 812}, {Shard: readSource(9999, 2), LSN: 3},
		}},
		"part": {Whole: true, Part: 1, Parts: 3, Next: math.MaxUint64 - 1, Offset: math.MaxUint64 - 1, Horizon: math.MaxInt64, At: []sequenced.Position{
			{Shard: readSource(sequenced.Logical-1, math.MaxUint16), LSN: math.MaxUint64 - 1},
		}},
	}
}

// golden compares bytes with a file of hexadecimal digits.
func golden(t *testing.T, name string, written []byte) []byte {
	t.Helper()
	path := filepath.Join("testdata", "golden", "v1", name+".hex")
	if *rewrite {
		if err := os.WriteFile(path, []byte(hex.EncodeToString(written)+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := hex.EncodeToString(written) + "\n"; got != string(text) {
		t.Errorf("%s is\n%swant\n%s", name, got, text)
	}
	b, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestGolden(t *testing.T) {
	for name, want := range goldenRecords() {
		got, err := sequenced.Decode(category, golden(t, "record-"+name, sequenced.Append(nil, &want)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, want)
		}
	}
	for name, want := range goldenChanges() {
		got, err := sequenced.DecodeChange(category, golden(t, "change-"+name, sequenced.AppendChange(nil, &want)))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, %v\nwant %+v", name, got, err, want)
		}
	}
}

// TestDamage: a record with any bit changed, or cut anywhere, is refused and never read as another one.
func TestDamage(t *testing.T) {
	g, c := goldenRecords()["gap"], goldenChanges()["usual"]
	for name, b := range map[string][]byte{"record": sequenced.Append(nil, &g), "change": sequenced.AppendChange(nil, &c)} {
		decode := func(b []byte) error {
			_, err := sequenced.Decode(category, b)
			if name == "change" {
				_, err = sequenced.DecodeChange(category, b)
			}
			return err
		}
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				if err := decode(b); !errors.Is(err, sequenced.ErrCorrupt) {
					t.Errorf("%s, bit %d of byte %d: %v", name, bit, i, err)
				}
				b[i] ^= 1 << bit
			}
			if err := decode(b[:i]); !errors.Is(err, sequenced.ErrCorrupt) {
				t.Errorf("%s cut to %d bytes: %v", name, i, err)
			}
		}
	}
}

// sealed puts the right checksum behind a body.
func sealed(body ...byte) []byte {
	sum := record.CRC(body)
	return append(body, byte(sum), byte(sum>>8), byte(sum>>16), byte(sum>>24))
}

// TestRefused: what no writer writes, with the right checksum.
func TestRefused(t *testing.T) {
	for name, b := range map[string][]byte{
		"version 0":      sealed(0, 1),
		"kind":           sealed(1, 9, 0, 1, 1, 0, 0, 0),
		"no pointer":     sealed(1, 1, 0, 1, 1, 0, 0, 0),
		"LSN 0":          sealed(1, 2, 0, 1, 0, 0, 0, 1, 1),
		"empty gap":      sealed(1, 2, 0, 1, 1, 0, 0, 0, 1),
		"cause":          sealed(1, 2, 0, 1, 1, 0, 0, 1, 3),
		"time below 0":   sealed(1, 1, 0, 1, 1, 0, 0, 1, 7),
		"reserved":       sealed(1, 2, 0xff, 0xff, 3, 1, 1, 0, 0, 1, 1),
		"something more": sealed(1, 2, 0, 1, 1, 0, 0, 1, 1, 0),
	} {
		if _, err := sequenced.Decode(category, b); !errors.Is(err, sequenced.ErrCorrupt) {
			t.Errorf("record, %s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{
		"version 0":     sealed(0, 0, 0, 1, 1, 0, 0, 0),
		"flags":         sealed(1, 2, 0, 1, 1, 0, 0, 0),
		"no parts":      sealed(1, 1, 0, 0, 1, 0, 0, 0),
		"part":          sealed(1, 1, 2, 2, 1, 0, 0, 0),
		"many parts":    sealed(1, 1, 0, 0xe9, 7, 1, 0, 0, 0),
		"next LSN 0":    sealed(1, 1, 0, 1, 0, 0, 0, 0),
		"twice":         sealed(1, 1, 0, 1, 1, 0, 0, 2, 5, 1, 0, 1),
		"LSN 0":         sealed(1, 1, 0, 1, 1, 0, 0, 1, 5, 0),
		"more than fit": sealed(1, 1, 0, 1, 1, 0, 0, 9, 5, 1),
	} {
		if _, err := sequenced.DecodeChange(category, b); !errors.Is(err, sequenced.ErrCorrupt) {
			t.Errorf("change, %s: %v", name, err)
		}
	}
	for _, err := range []error{second(sequenced.Decode(category, sealed(2, 1))), second(sequenced.DecodeChange(category, sealed(2, 1)))} {
		if !errors.Is(err, sequenced.ErrVersion) || errors.Is(err, sequenced.ErrCorrupt) || !strings.Contains(err.Error(), "upgrade") {
			t.Errorf("a newer version: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestStrip(t *testing.T) {
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecNone, BlockLen: 9, BlockRawLen: 9, Length: 9, Frames: 1, Messages: 1,
		Sequences: []pointer.Sequence{{Producer: 1, Epoch: 1, First: 1, Last: 1}},
	}
	b, err := sequenced.Strip(&p, pointer.Append(nil, &p))
	if err != nil {
		t.Fatal(err)
	}
	got, err := pointer.Decode(b)
	if err != nil || got.Sequences != nil || got.Blob != p.Blob || len(p.Sequences) != 1 {
		t.Errorf("%+v, %v", got, err)
	}
	if again, err := sequenced.Strip(&got, b); err != nil || &again[0] != &b[0] {
		t.Errorf("what has no sequences is copied (%v)", err)
	}
	if _, err := sequenced.Strip(&got, make([]byte, sequenced.MaxPointer+1)); err == nil {
		t.Error("a pointer that does not fit is taken")
	}
	largest := sequenced.Append(nil, &sequenced.Record{
		Kind: sequenced.KindPointer, Source: readSource(sequenced.Logical-1, math.MaxUint16), LSN: math.MaxUint64 - 1, Offset: math.MaxUint64 - 1,
		Horizon: math.MaxInt64, Pointer: make([]byte, sequenced.MaxPointer),
	})
	if _, err := sequenced.Decode(category, largest); err != nil || len(largest) > sequenced.MaxLen {
		t.Errorf("the largest record has %d bytes: %v", len(largest), err)
	}
}

func TestShards(t *testing.T) {
	log, positions := sequenced.Log(category), sequenced.Positions(category)
	if log == positions || log.Category() != category || positions.Category() != category {
		t.Errorf("%v, %v", log, positions)
	}
	if !sequenced.Reserved(log) || !sequenced.Reserved(positions) || sequenced.Reserved(readSource(9999, 0)) {
		t.Error("the wrong shards are reserved")
	}
	if !sequenced.IsLog(log) || sequenced.IsLog(positions) || sequenced.IsLog(readSource(0, 0)) {
		t.Error("the wrong shard is the log")
	}
}

// TestStates: whatever changes are written after a whole state, what is read is what was there.
func TestStates(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sequenced.NewState()
		for range rapid.SampledFrom([]int{0, 3, 4000, 9000}).Draw(t, "sources") {
			s.At[readSource(uint16(len(s.At)%1000), uint16(len(s.At)/1000))] = 1
		}
		r := sequenced.NewReader(category)
		add := func(records [][]byte) {
			for i, b := range records {
				if len(b) > sequenced.MaxLen {
					t.Fatalf("part %d has %d bytes", i, len(b))
				}
				if i > 0 && r.State() != nil {
					t.Fatal("half a state is taken for a whole one")
				}
				if err := r.Add(b); err != nil {
					t.Fatal(err)
				}
			}
		}
		add(s.Whole())
		for range rapid.IntRange(0, 10).Draw(t, "changes") {
			touched := map[record.ShardID]struct{}{}
			for range rapid.SampledFrom([]int{1, 2, 5, 3500}).Draw(t, "touched") {
				shard := readSource(uint16(len(touched)%700), uint16(len(touched)/700))
				s.At[shard] = s.Position(shard) + record.LSN(rapid.IntRange(1, 300).Draw(t, "by"))
				touched[shard] = struct{}{}
			}
			s.Next += record.LSN(len(touched))
			s.Offset += 17
			s.Horizon += 1000
			if rapid.Bool().Draw(t, "whole") {
				add(s.Whole())
			} else {
				add(s.Changed(touched))
			}
		}
		got := r.State()
		if got == nil || got.Next != s.Next || got.Offset != s.Offset || got.Horizon != s.Horizon || !maps.Equal(got.At, s.At) {
			t.Fatalf("read %+v, want %+v", got, s)
		}
	})
}

// TestReaderRefuses: records that do not belong together.
func TestReaderRefuses(t *testing.T) {
	change := func(whole bool, part, parts uint32) []byte {
		return sequenced.AppendChange(nil, &sequenced.Change{Whole: whole, Part: part, Parts: parts, Next: 1})
	}
	for name, records := range map[string][][]byte{
		"a change of nothing": {change(false, 0, 1)},
		"a part is missing":   {change(true, 0, 3), change(true, 2, 3)},
		"begins in a state":   {change(true, 1, 2)},
		"damage":              {{1, 2, 3}},
	} {
		r := sequenced.NewReader(category)
		var err error
		for _, b := range records {
			err = errors.Join(err, r.Add(b))
		}
		if !errors.Is(err, sequenced.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if sequenced.NewReader(category).State() != nil {
		t.Error("nothing is a state")
	}
}

func FuzzDecode(f *testing.F) {
	for _, rec := range goldenRecords() {
		b := sequenced.Append(nil, &rec)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := sealed(bytes.Clone(body)...) // the rest is what is worth trying
		rec, err := sequenced.Decode(category, b)
		if err != nil {
			return
		}
		if again := sequenced.Append(nil, &rec); string(again) != string(b) {
			t.Errorf("%x is read as %+v, which is %x", b, rec, again)
		}
	})
}

func FuzzDecodeChange(f *testing.F) {
	for _, c := range goldenChanges() {
		b := sequenced.AppendChange(nil, &c)
		f.Add(b[:len(b)-4])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		b := sealed(bytes.Clone(body)...)
		c, err := sequenced.DecodeChange(category, b)
		if err != nil {
			return
		}
		if again := sequenced.AppendChange(nil, &c); string(again) != string(b) {
			t.Errorf("%x is read as %+v, which is %x", b, c, again)
		}
	})
}
