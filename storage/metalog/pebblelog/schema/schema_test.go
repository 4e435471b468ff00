package schema

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

// TestGolden pins the bytes of each version, where a later one has only what it added. A change of these files is a change of the
// format.
func TestGolden(t *testing.T) {
	for _, file := range []string{"testdata/v1.txt", "testdata/v2.txt", "testdata/v3.txt", "testdata/v4.txt", "testdata/v5.txt", "testdata/v6.txt"} {
		golden(t, file)
	}
}

func golden(t *testing.T, file string) {
	t.Helper()
	datadriven.RunTest(t, file, func(t *testing.T, d *datadriven.TestData) string {
		var category, producer, number uint64
		var logical, writer, epoch, first, next, lsn, at, last, began, removed uint64
		for _, a := range d.CmdArgs {
			if dst := map[string]*uint64{
				"category": &category, "logical": &logical, "writer": &writer, "producer": &producer, "epoch": &epoch, "first": &first,
				"next": &next, "lsn": &lsn, "time": &at, "last": &last, "number": &number, "began": &began, "removed": &removed,
			}[a.Key]; dst != nil {
				d.ScanArgs(t, a.Key, dst)
			}
		}
		shard := record.MakeShardID(uint32(category), uint16(logical), uint16(writer))
		var key, value []byte
		switch d.Cmd {
		case "meta":
			metas := map[string]Meta{"format": MetaFormat, "clock": MetaClock, "boundary": MetaBoundary, "origin": MetaOrigin, "origin-end": MetaOriginEnd}
			key = MetaKey(metas[d.CmdArgs[0].Key])
			value = AppendNumber(nil, key, int64(number))
		case "state":
			key = AppendStateKey(nil, shard)
			value = AppendState(nil, key, State{
				First: record.LSN(first), Next: record.LSN(next), Epoch: epoch, LastTime: int64(last), Sealed: d.HasArg("sealed"), Origin: record.LSN(began), OriginTime: int64(removed),
			})
		case "stub":
			key = AppendStubKey(nil, shard)
			value = AppendStub(nil, key, State{
				First: record.LSN(next), Next: record.LSN(next), Epoch: epoch, LastTime: int64(last), Sealed: d.HasArg("sealed"), Removed: true,
			})
		case "record":
			key = AppendRecordKey(nil, shard, record.LSN(lsn))
			value = make([]byte, RecordOverhead+len(d.Input))
			PutRecord(value, key, int64(at), []byte(d.Input))
		case "producer":
			key = AppendProducerKey(nil, shard, producer)
			value = AppendProducer(nil, key, Producer{Epoch: uint32(epoch), Next: next, LSN: record.LSN(lsn), Time: int64(at)})
		case "retired":
			key = RetiredKey(uint32(first))
			value = AppendRetired(nil, key, uint32(last))
		case "annotation":
			key = AppendAnnotationKey(nil, shard, uint8(number), record.LSN(lsn))
			value = AppendAnnotation(nil, key, []byte(d.Input))
		case "applied":
			key = MetaKey(MetaApplied)
			value = AppendApplied(nil, key, Applied{Seq: number, Time: int64(at), Chain: [16]byte([]byte(d.Input))})
		case "changes":
			value = BeginChanges(nil)
			for line := range strings.SplitSeq(d.Input, "\n") {
				words := strings.Fields(line)
				value = AppendChange(value, Change{Kind: map[string]ChangeKind{"set": 1, "delete": 2, "range": 3}[words[0]], Key: []byte(words[1]), Value: []byte(words[2])})
			}
		case "changes-with-stub":
			value = AppendChange(BeginChanges(nil), Change{Kind: ChangeDelete, Key: AppendStateKey(nil, 7)})
			value = AppendChange(value, Change{Kind: ChangeSet, Key: AppendStubKey(nil, 7), Value: []byte("stub")})
		case "snapshot":
			value = AppendSnapshot(nil, Snapshot{Applied: Applied{Seq: number, Time: int64(at)}, Files: []SnapshotFile{
				{Name: "MANIFEST-000001", Size: uint64(len(d.Input)), CRC: 1, Data: []byte(d.Input)},
				{Name: "000004.sst", Size: 1 << 20, CRC: 2, ID: [16]byte{1, 2, 3}},
			}})
		default:
			d.Fatalf(t, "unknown command %s", d.Cmd)
		}
		return fmt.Sprintf("key   % x\nvalue % x\n", key, value)
	})
}

// TestRoundTrip checks that what is encoded comes back, and that any flipped bit, in key or value, is damage.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shard := record.ShardID(rapid.Uint64().Draw(t, "shard"))
		lsn := record.LSN(rapid.Uint64Min(1).Draw(t, "lsn"))
		data := rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "data")
		at := rapid.Int64().Draw(t, "time")

		key := AppendRecordKey(nil, shard, lsn)
		if got := RecordKeyLSN(key, shard); got != lsn {
			t.Fatalf("LSN %d came back as %d", lsn, got)
		}
		if RecordKeyLSN(key, shard+1) != 0 {
			t.Fatal("a record's key passes for one of another shard")
		}
		value := make([]byte, RecordOverhead+len(data))
		PutRecord(value, key, at, data)
		decode := func(key, value []byte) error {
			gotTime, gotData, err := Record(key, value)
			if err == nil && (gotTime != at || !bytes.Equal(gotData, data)) {
				t.Fatalf("time %d, data %x came back as %d, %x", at, data, gotTime, gotData)
			}
			return err
		}
		everyFlip(t, key, value, decode)

		first := record.LSN(rapid.Uint64Range(1, 1<<62).Draw(t, "first"))
		st := State{
			First: first, Next: first + record.LSN(rapid.Uint32().Draw(t, "records")), Epoch: rapid.Uint64Min(1).Draw(t, "epoch"),
			LastTime: at, Sealed: rapid.Bool().Draw(t, "sealed"), Origin: record.LSN(rapid.Uint64Range(0, uint64(first)).Draw(t, "origin")),
		}
		if st.Origin > 0 && rapid.Bool().Draw(t, "was removed") {
			st.OriginTime = rapid.Int64Min(1).Draw(t, "time of the origin")
		}
		key = AppendStateKey(nil, shard)
		if got, err := StateKeyShard(key); err != nil || got != shard {
			t.Fatalf("shard %v came back as %v, %v", shard, got, err)
		}
		everyFlip(t, key, AppendState(nil, key, st), func(key, value []byte) error {
			got, err := DecodeState(key, value)
			if err == nil && got != st {
				t.Fatalf("%+v came back as %+v", st, got)
			}
			return err
		})

		st.First, st.Removed, st.LastTime, st.Origin, st.OriginTime = st.Next, true, max(st.LastTime, 0), 0, 0
		st = st.WithOrigin()
		key = AppendStubKey(nil, shard)
		if got, err := StubKeyShard(key); err != nil || got != shard {
			t.Fatalf("shard %v came back as %v, %v", shard, got, err)
		}
		everyFlip(t, key, AppendStub(nil, key, st), func(key, value []byte) error {
			got, err := DecodeStub(key, value)
			if err == nil && got != st {
				t.Fatalf("%+v came back as %+v", st, got)
			}
			return err
		})

		p := Producer{Epoch: rapid.Uint32().Draw(t, "epoch"), Next: rapid.Uint64Min(1).Draw(t, "next"), LSN: lsn, Time: at}
		key = AppendProducerKey(nil, shard, rapid.Uint64().Draw(t, "producer"))
		everyFlip(t, key, AppendProducer(nil, key, p), func(key, value []byte) error {
			got, err := DecodeProducer(key, value)
			if err == nil && got != p {
				t.Fatalf("%+v came back as %+v", p, got)
			}
			return err
		})

		kind := rapid.Uint8().Draw(t, "kind of annotation")
		key = AppendAnnotationKey(nil, shard, kind, lsn)
		if AnnotationKeyLSN(key, shard, kind) != lsn || AnnotationKeyLSN(key, shard, kind+1) != 0 || AnnotationKeyLSN(key, shard+1, kind) != 0 {
			t.Fatal("an annotation's key is another's, or not its own")
		}
		everyFlip(t, key, AppendAnnotation(nil, key, data), func(key, value []byte) error {
			got, err := Annotation(key, value)
			if err == nil && !bytes.Equal(got, data) {
				t.Fatalf("%x came back as %x", data, got)
			}
			return err
		})

		low := rapid.Uint32().Draw(t, "first retired")
		high := rapid.Uint32Min(low).Draw(t, "last retired")
		key = RetiredKey(low)
		everyFlip(t, key, AppendRetired(nil, key, high), func(key, value []byte) error {
			gotLow, gotHigh, err := DecodeRetired(key, value)
			if err == nil && (gotLow != low || gotHigh != high) {
				t.Fatalf("%d to %d came back as %d to %d", low, high, gotLow, gotHigh)
			}
			return err
		})
	})
}

// everyFlip decodes key and value, and then with each byte changed and each length cut.
func everyFlip(t *rapid.T, key, value []byte, decode func(key, value []byte) error) {
	if err := decode(key, value); err != nil {
		t.Fatalf("what was encoded can't be decoded: %v", err)
	}
	for _, b := range [][]byte{key, value} {
		for i := range b {
			b[i] ^= 0x40
			if err := decode(key, value); !errors.Is(err, ErrCorrupt) {
				t.Fatalf("byte %d was changed and decoding ended with %v", i, err)
			}
			b[i] ^= 0x40
		}
	}
	for n := range value {
		if err := decode(key, value[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%d of %d bytes ended with %v", n, len(value), err)
		}
	}
	if err := decode(key, append(bytes.Clone(value), 0)); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("one byte too many ended with %v", err)
	}
}

// TestOrder checks that keys sort as what they stand for.
func TestOrder(t *testing.T) {
	last := record.ShardID(1<<64 - 1)
	statesEnd := func(category uint32) []byte {
		_, end := CategoryBounds(KindState, category)
		return end
	}
	keys := [][]byte{
		MetaKey(MetaFormat), MetaKey(MetaBoundary),
		AppendStateKey(nil, 0), AppendStateKey(nil, record.MakeShardID(7, 65535, 65535)), statesEnd(7),
		AppendStateKey(nil, record.MakeShardID(8, 0, 1)), AppendStateKey(nil, last), statesEnd(1<<32 - 1),
		AppendRecordKey(nil, 5, 1), AppendRecordKey(nil, 5, 255), AppendRecordKey(nil, 5, 256),
		AppendRecordKey(nil, last, 1<<64-1), AppendProducerKey(nil, 0, 0),
		RetiredKey(0), RetiredKey(255), RetiredKey(256), RetiredKey(1<<32 - 1),
		AppendAnnotationKey(nil, 5, 1, 1), AppendAnnotationKey(nil, 5, 1, 256), AppendAnnotationKey(nil, 5, 2, 1), AppendAnnotationKey(nil, 6, 1, 1),
	}
	for i := 1; i < len(keys); i++ {
		// The first key behind a range may be the one that begins the next.
		if c := bytes.Compare(keys[i-1], keys[i]); c > 0 {
			t.Errorf("key %x sorts behind %x", keys[i-1], keys[i])
		}
	}
}

func FuzzDecode(f *testing.F) {
	key := AppendRecordKey(nil, 7, 9)
	value := make([]byte, RecordOverhead+3)
	PutRecord(value, key, 5, []byte("abc"))
	f.Add(key, value)
	key = AppendStateKey(nil, 7)
	f.Add(key, AppendState(nil, key, State{First: 1, Next: 2, Epoch: 3}))
	key = AppendProducerKey(nil, 7, 8)
	f.Add(key, AppendProducer(nil, key, Producer{Next: 1, LSN: 1}))
	key = AppendStubKey(nil, 7)
	f.Add(key, AppendStub(nil, key, State{First: 5, Next: 5, Epoch: 3, LastTime: 9, Removed: true}))
	key = MetaKey(MetaClock)
	f.Add(key, AppendNumber(nil, key, 5))
	key = RetiredKey(7)
	f.Add(key, AppendRetired(nil, key, 9))
	key = AppendAnnotationKey(nil, 7, 1, 8)
	f.Add(key, AppendAnnotation(nil, key, []byte("abc")))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		_ = AnnotationKeyLSN(key, 7, 1)
		_, _ = StubKeyShard(key)
		if st, err := DecodeStub(key, value); err == nil && (!st.Removed || st.First != st.Next) {
			t.Fatalf("a stub of %+v", st)
		}
		if data, err := Annotation(key, value); err == nil {
			same(t, value, AppendAnnotation(nil, key, data))
		}
		_ = RecordKeyLSN(key, 7)
		_, _ = StateKeyShard(key)
		if at, data, err := Record(key, value); err == nil {
			again := make([]byte, RecordOverhead+len(data))
			PutRecord(again, key, at, data)
			same(t, value, again)
		}
		if s, err := DecodeState(key, value); err == nil {
			same(t, value, AppendState(nil, key, s))
		}
		if p, err := DecodeProducer(key, value); err == nil {
			same(t, value, AppendProducer(nil, key, p))
		}
		if _, last, err := DecodeRetired(key, value); err == nil {
			same(t, value, AppendRetired(nil, key, last))
		}
		if v, err := DecodeNumber(key, value); err == nil {
			same(t, value, AppendNumber(nil, key, v))
		}
	})
}

func same(t *testing.T, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%x decodes, but encodes as %x", got, want)
	}
}

func TestErrorsSayWhat(t *testing.T) {
	key := AppendStateKey(nil, 7)
	value := AppendState(nil, key, State{First: 1, Next: 2, Epoch: 3})
	value[5] ^= 1
	_, err := DecodeState(key, value)
	if err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("the error of a flipped bit is %v", err)
	}
	value = AppendState(nil, key, State{First: 3, Next: 2, Epoch: 3}) // sound bytes, but no state
	if _, err := DecodeState(key, value); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a state that cannot be ended with %v", err)
	}
}

// TestDamagedSnapshots: a list with any flipped bit is damaged, and not one of a newer version.
func TestDamagedSnapshots(t *testing.T) {
	b := AppendSnapshot(nil, Snapshot{Applied: Applied{Seq: 3}, Files: []SnapshotFile{{Name: "a", Data: []byte("x"), Size: 1}}})
	for i := range 8 * len(b) {
		damaged := bytes.Clone(b)
		damaged[i/8] ^= 1 << (i % 8)
		if _, err := DecodeSnapshot(damaged); !errors.Is(err, ErrCorrupt) {
			t.Errorf("bit %d of byte %d: %v", i%8, i/8, err)
		}
	}
	newer := append([]byte(snapshotMagic), SnapshotVersion+1)
	newer = binary.LittleEndian.AppendUint32(newer, crc32.Checksum(newer, castagnoli))
	if _, err := DecodeSnapshot(newer); !errors.Is(err, ErrNewer) {
		t.Errorf("a list of the next version: %v", err)
	}
}
