package layout

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var rewriteGolden = flag.Bool("rewrite-golden", false, "write the golden files of the current version")

// sampleRecords are the records of the golden segment, with their data. Every other one may be encrypted: the format does not look into it.
func sampleRecords(encrypted bool) ([]RecordHeader, [][]byte) {
	var headers []RecordHeader
	data := [][]byte{[]byte("hello"), {}, bytes.Repeat([]byte{0xab}, 100), []byte("\x8aSPR looks like a record, and is none")}
	at := uint32(SegmentHeaderLen)
	for i, d := range data {
		if encrypted && i%2 == 0 {
			d = append(bytes.Repeat([]byte{0xee}, EncryptionOverhead), d...)
			data[i] = d
		}
		h := RecordHeader{
			Category: []string{"access", "b"}[i%2], DataLen: uint32(len(d)), Messages: uint32(i), Position: At(7, at), Time: 1_700_000_000_000_000 + int64(i),
			DataCRC: Checksum(d), Encrypted: encrypted && i%2 == 0,
		}
		if i > 2 {
			h.Durable = uint32(SegmentHeaderLen)
		}
		headers = append(headers, h)
		at += uint32(Padded(h.Size()))
	}
	return headers, data
}

// sampleSegment is the golden segment.
func sampleSegment(sealed, encrypted bool) (SegmentID, []byte) {
	id := SegmentID{First: 7, Last: 7, Generation: 1}
	b := AppendSegmentHeader(nil, &SegmentHeader{SegmentID: id, Created: 1_700_000_000_000_000}, encrypted)
	entries := map[string][]IndexEntry{}
	headers, data := sampleRecords(encrypted)
	for i, h := range headers {
		entries[h.Category] = append(entries[h.Category], IndexEntry{Position: h.Position, Time: h.Time, Offset: uint32(len(b)), Size: uint32(h.Size()), Messages: h.Messages, Encrypted: h.Encrypted})
		b = append(AppendRecordHeader(b, &h), data[i]...)
		b = append(b, make([]byte, Padded(int64(len(b)))-int64(len(b)))...)
	}
	if sealed {
		f := &Footer{SegmentID: id, DataEnd: int64(len(b)), Offset: int64(len(b)), Encrypted: encrypted}
		for _, name := range []string{"access", "b"} {
			f.Categories = append(f.Categories, NewCategory(name, entries[name]))
		}
		b = AppendFooter(b, f, func(i int) []IndexEntry { return entries[f.Categories[i].Name] })
	}
	return id, b
}

func sampleState() *SpoolState {
	return &SpoolState{
		Generation: 12, Next: 9, Saved: 1_700_000_000_000_000,
		Segments: []StateSegment{
			{SegmentID: SegmentID{3, 5, 2}, Footer: 0xcafe, Held: 4, Done: []StateDone{
				{"access", Amount{2, 20, 200}, []PositionRange{{At(3, 0), At(3, 65)}, {At(4, 100), At(5, 1)}}},
				{"b", Amount{1, 1, 1}, []PositionRange{{At(5, 64), At(5, 1<<32-1) + 1}}},
			}},
			{SegmentID: SegmentID{7, 7, 1}, Held: 1},
		},
		Dropped: []StateDropped{{"access", Amount{1, 2, 3}}},
	}
}

func sampleStateFile() []byte {
	b := AppendStateHeader(nil, MinStateSlot)
	b = append(b, make([]byte, 2*MinStateSlot)...)
	s := sampleState()
	s.Generation = 11
	s.Dropped = nil
	old, _ := AppendSlot(nil, s, MinStateSlot)
	copy(b[StateHeaderLen+MinStateSlot:], old)
	newer, _ := AppendSlot(nil, sampleState(), MinStateSlot)
	copy(b[StateHeaderLen:], newer)
	return b
}

// TestGolden reads files of every version, and writes each as it was.
func TestGolden(t *testing.T) {
	_, sealed := sampleSegment(true, false)
	_, open := sampleSegment(false, false)
	_, sealedEncrypted := sampleSegment(true, true)
	_, openEncrypted := sampleSegment(false, true)
	for name, want := range map[string][]byte{
		"v1/sealed.segment": sealed, "v1/unsealed.segment": open, "v1/state": sampleStateFile(),
		"v2/sealed.segment": sealedEncrypted, "v2/unsealed.segment": openEncrypted,
	} {
		path := filepath.Join("testdata", "golden", filepath.FromSlash(name))
		if *rewriteGolden {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, want, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is written in another way", name)
		}
		version, name, _ := strings.Cut(name, "/")
		if name == "state" {
			st, err := ReadState(bytes.NewReader(got))
			if err != nil || len(st.Damage) > 0 || !reflect.DeepEqual(st.State, sampleState()) || st.Slot != MinStateSlot {
				t.Errorf("%s: %+v, %v", name, st, err)
			}
			continue
		}
		readSegment(t, got, name == "sealed.segment", version == "v2")
	}
}

func readSegment(t *testing.T, b []byte, sealed, encrypted bool) {
	t.Helper()
	headers, data := sampleRecords(encrypted)
	id := SegmentID{7, 7, 1}
	i := 0
	scan, err := ScanSegment(bytes.NewReader(b), int64(len(b)), id, func(rec *ScannedRecord) {
		got, err := rec.Data(b[rec.Offset:])
		if rec.RecordHeader != headers[i] || err != nil || rec.Err != nil || !bytes.Equal(got, data[i]) {
			t.Errorf("record %d: %+v, %v, %v", i, rec, err, rec.Err)
		}
		i++
	})
	if err != nil || i != len(headers) || scan.HeaderErr != nil || len(scan.Unreadable) > 0 || scan.Tail != sealed || scan.Durable != SegmentHeaderLen {
		t.Errorf("%d records, %+v, %v", i, scan, err)
	}
	f, err := ReadFooter(bytes.NewReader(b), int64(len(b)), id)
	if !sealed {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("a footer where there is none: %v", err)
		}
		return
	}
	if err != nil || len(f.Categories) != 2 || f.DataEnd != scan.End || f.Encrypted != encrypted {
		t.Fatalf("%+v, %v", f, err)
	}
	for k := range f.Categories {
		c := &f.Categories[k]
		entries, err := ReadIndex(bytes.NewReader(b), f, c)
		if err != nil || len(entries) != 2 {
			t.Fatalf("%s: %d entries, %v", c.Name, len(entries), err)
		}
		for j, e := range entries {
			h := headers[2*j+k]
			if e.Position != h.Position || e.Time != h.Time || int64(e.Size) != h.Size() || e.Messages != h.Messages || e.Offset != h.Position.Offset() || e.Encrypted != h.Encrypted {
				t.Errorf("%s: entry %d is %+v, the record %+v", c.Name, j, e, h)
			}
			frame := int64(h.DataLen)
			if h.Encrypted {
				frame -= EncryptionOverhead
			}
			if e.FrameBytes(c.Name) != frame {
				t.Errorf("%s: the frame of entry %d has %d bytes, want %d", c.Name, j, e.FrameBytes(c.Name), frame)
			}
		}
	}
}

func TestSegmentName(t *testing.T) {
	id := SegmentID{3, 17, 4294967295}
	if got, ok := ParseSegmentName(id.Name()); !ok || got != id || id.Name() != "0000000003-0000000017-4294967295.segment" {
		t.Errorf("%s: %v, %v", id.Name(), got, ok)
	}
	for _, name := range []string{
		"", "state", "0000000003-0000000017-0000000001", "3-17-1.segment", "0000000003-0000000002-0000000001.segment", "0000000000-0000000000-0000000001.segment",
		"0000000001-0000000001-0000000000.segment", "0000000001-0000000001-0000000001.segment.tmp", "0000000001-0000000001-9999999999.segment",
	} {
		if id, ok := ParseSegmentName(name); ok {
			t.Errorf("%q is taken for %v", name, id)
		}
	}
	if (SegmentID{1, 3, 2}).Covers(SegmentID{2, 4, 1}) || (SegmentID{1, 3, 2}).Covers(SegmentID{2, 3, 2}) || !(SegmentID{1, 3, 2}).Covers(SegmentID{2, 3, 1}) {
		t.Error("what covers what")
	}
}

// TestEveryByte flips each byte of the structures: none is taken for what was written.
func TestEveryByte(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		testEveryByte(t, encrypted)
	}
}

func testEveryByte(t *testing.T, encrypted bool) {
	headers, _ := sampleRecords(encrypted)
	record := AppendRecordHeader(nil, &headers[0])
	for i := range record {
		b := slices.Clone(record)
		b[i] ^= 0x10
		if h, err := ParseRecordHeader(b); err == nil {
			t.Errorf("byte %d of a record's header: %+v", i, h)
		}
	}
	id, segment := sampleSegment(true, encrypted)
	for i := range SegmentHeaderLen {
		b := slices.Clone(segment)
		b[i] ^= 0x10
		if _, err := ParseSegmentHeader(b, id); err == nil {
			t.Errorf("byte %d of a segment's header", i)
		}
	}
	whole, err := ReadFooter(bytes.NewReader(segment), int64(len(segment)), id)
	if err != nil {
		t.Fatal(err)
	}
	for i := int(whole.Offset); i < len(segment); i++ {
		b := slices.Clone(segment)
		b[i] ^= 0x10
		r := bytes.NewReader(b)
		f, err := ReadFooter(r, int64(len(b)), id)
		for k := 0; err == nil && k < len(f.Categories); k++ {
			_, err = ReadIndex(r, f, &f.Categories[k])
		}
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of the footer: %v", i-int(whole.Offset), err)
		}
	}
	slot, _ := AppendSlot(nil, sampleState(), MinStateSlot)
	for i := range slot {
		b := slices.Clone(slot)
		b[i] ^= 0x10
		if _, err := ParseSlot(b); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of a slot: %v", i, err)
		}
	}
}

// TestResync: after damage the scan goes on with the next record, and never takes one that stands elsewhere than it was written.
func TestResync(t *testing.T) {
	id, b := sampleSegment(false, false)
	headers, _ := sampleRecords(false)
	second, third := int64(headers[1].Position.Offset()), int64(headers[2].Position.Offset())
	scan := func(b []byte, id SegmentID) (found []Position, s *SegmentScan) {
		t.Helper()
		s, err := ScanSegment(bytes.NewReader(b), int64(len(b)), id, func(rec *ScannedRecord) {
			found = append(found, rec.Position)
		})
		if err != nil {
			t.Fatal(err)
		}
		return found, s
	}
	bad := slices.Clone(b)
	bad[second+9]++ // the length: everything up to the next record is unreadable
	found, s := scan(bad, id)
	if want := []Position{headers[0].Position, headers[2].Position, headers[3].Position}; !slices.Equal(found, want) || !slices.Equal(s.Unreadable, []FileRange{{second, third}}) {
		t.Errorf("found %v, unreadable %v", found, s.Unreadable)
	}
	// A copy of the first record, in the place of the second, aligned: it is not where it was written.
	bad = slices.Clone(b)
	copy(bad[third:], b[SegmentHeaderLen:SegmentHeaderLen+64])
	if found, _ := scan(bad, id); !slices.Equal(found, []Position{headers[0].Position, headers[1].Position, headers[3].Position}) {
		t.Errorf("found %v with a copy of the first record", found)
	}
	// In a rewritten file records stand anywhere, but in order.
	if found, _ := scan(bad, SegmentID{7, 7, 2}); !slices.Equal(found, []Position{headers[0].Position, headers[1].Position, headers[3].Position}) {
		t.Errorf("found %v in a rewritten file", found)
	}
	if found, _ := scan(b, SegmentID{8, 9, 1}); len(found) > 0 {
		t.Errorf("found %v of another segment", found)
	}
}

// TestNewerVersions are told from damage.
func TestNewerVersions(t *testing.T) {
	id, segment := sampleSegment(true, true)
	seal := func(b []byte, sum int) []byte {
		b[4]++
		s := Checksum(b[:sum])
		copy(b[sum:], []byte{byte(s), byte(s >> 8), byte(s >> 16), byte(s >> 24)})
		return b
	}
	if _, err := ParseSegmentHeader(seal(slices.Clone(segment[:SegmentHeaderLen]), 60), id); !errors.Is(err, ErrVersion) {
		t.Errorf("segment: %v", err)
	}
	b := slices.Clone(segment)
	seal(b[len(b)-TrailerLen:], 56)
	if _, err := ReadFooter(bytes.NewReader(b), int64(len(b)), id); !errors.Is(err, ErrVersion) {
		t.Errorf("footer: %v", err)
	}
	st := sampleStateFile()
	seal(st, 12)
	if _, err := ReadState(bytes.NewReader(st)); !errors.Is(err, ErrVersion) {
		t.Errorf("state: %v", err)
	}
	st = sampleStateFile()
	seal(st[StateHeaderLen:], 36)
	if _, err := ReadState(bytes.NewReader(st)); !errors.Is(err, ErrVersion) {
		t.Errorf("slot: %v", err)
	}
}

// TestSlotLimit: what does not fit is left out, never anything that would lose a record.
func TestSlotLimit(t *testing.T) {
	s := &SpoolState{Generation: 1, Next: 100}
	for n := range uint32(20) {
		g := StateSegment{SegmentID: SegmentID{n + 1, n + 1, 1}, Held: 1}
		var d StateDone
		d.Category = "c"
		for i := range n * 30 {
			d.Spans = append(d.Spans, PositionRange{At(n+1, 1000*i), At(n+1, 1000*i+500)})
		}
		g.Done = append(g.Done, d)
		s.Segments = append(s.Segments, g)
	}
	for range 300 {
		s.Dropped = append(s.Dropped, StateDropped{"category", Amount{1, 1, 1}})
	}
	for _, limit := range []int64{64 << 10, 16 << 10, 4 << 10, 1 << 10, 200, 48} {
		b, fitted := AppendSlot(nil, s, limit)
		if int64(len(b)) > limit || fitted != (limit == 64<<10) {
			t.Errorf("%d bytes, the limit is %d, fitted %v", len(b), limit, fitted)
		}
		got, err := ParseSlot(b)
		if err != nil || got.Next != 100 {
			t.Fatalf("limit %d: %v", limit, err)
		}
		for _, g := range got.Segments {
			for _, d := range g.Done {
				if want := s.Segments[g.First-1].Done[0].Spans; len(want) != len(d.Spans) {
					t.Errorf("limit %d: segment %d has %d spans of %d", limit, g.First, len(d.Spans), len(want))
				}
			}
		}
	}
	if len(s.Segments) != 20 || len(s.Segments[19].Done) != 1 || len(s.Dropped) != 300 {
		t.Error("the state was changed")
	}
}

// TestStateRoundTrip: what is written is read.
func TestStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		amount := rapid.Custom(func(t *rapid.T) Amount {
			n := rapid.Int64Range(0, 1<<62)
			return Amount{n.Draw(t, "records"), n.Draw(t, "messages"), n.Draw(t, "bytes")}
		})
		name := rapid.StringN(0, -1, 255)
		s := &SpoolState{Generation: rapid.Uint64().Draw(t, "generation"), Next: rapid.Uint32().Draw(t, "next"), Saved: rapid.Int64().Draw(t, "saved")}
		for range rapid.IntRange(0, 5).Draw(t, "segments") {
			first := rapid.Uint32Range(1, 1<<32-1).Draw(t, "first")
			g := StateSegment{
				SegmentID: SegmentID{first, rapid.Uint32Range(first, 1<<32-1).Draw(t, "last"), rapid.Uint32Range(1, 1<<32-1).Draw(t, "generation")},
				Footer:    rapid.Uint32().Draw(t, "footer"), Held: rapid.Int64Range(0, 1<<62).Draw(t, "held"),
			}
			for range rapid.IntRange(0, 3).Draw(t, "done") {
				d := StateDone{Category: name.Draw(t, "name"), Amount: amount.Draw(t, "amount")}
				at, end := uint64(At(g.First, 0)), uint64(At(g.Last, 1<<32-1))
				for at < end && rapid.Bool().Draw(t, "more") {
					from := rapid.Uint64Range(at, end).Draw(t, "from")
					if from == end {
						break
					}
					to := rapid.Uint64Range(from+1, end).Draw(t, "to")
					d.Spans = append(d.Spans, PositionRange{Position(from), Position(to)})
					if to == end {
						break
					}
					at = to + 1
				}
				g.Done = append(g.Done, d)
			}
			s.Segments = append(s.Segments, g)
		}
		for range rapid.IntRange(0, 3).Draw(t, "dropped") {
			s.Dropped = append(s.Dropped, StateDropped{name.Draw(t, "name"), amount.Draw(t, "amount")})
		}
		b, fitted := AppendSlot(nil, s, MaxStateSlot)
		got, err := ParseSlot(append(b, 1, 2, 3))
		if err != nil || !fitted || !reflect.DeepEqual(got, s) {
			t.Fatalf("%+v is read as %+v, %v", s, got, err)
		}
	})
}

// TestBound: the data of an encrypted record is bound to all that its header says, but for the checksums.
func TestBound(t *testing.T) {
	h := RecordHeader{Category: "access", DataLen: 40, Messages: 2, Position: At(7, 64), Time: 3, Durable: 64, Encrypted: true, DataCRC: 5}
	want := string(h.AppendBound(nil))
	if got := AppendRecordHeader(nil, &h); want != string(got[:boundLen])+"access" {
		t.Errorf("bound to %x, the header is %x", want, got)
	}
	h.DataCRC = 6
	if got := string(h.AppendBound(nil)); got != want {
		t.Error("bound to the checksum of the encrypted data, which is not known before")
	}
	for i, change := range []func(*RecordHeader){
		func(h *RecordHeader) { h.Category = "excess" }, func(h *RecordHeader) { h.DataLen++ }, func(h *RecordHeader) { h.Messages++ },
		func(h *RecordHeader) { h.Position++ }, func(h *RecordHeader) { h.Time++ }, func(h *RecordHeader) { h.Durable++ }, func(h *RecordHeader) { h.Encrypted = false },
	} {
		other := h
		change(&other)
		if string(other.AppendBound(nil)) == want {
			t.Errorf("change %d: bound to the same", i)
		}
	}
	h.DataLen = EncryptionOverhead - 1
	if got, err := ParseRecordHeader(AppendRecordHeader(nil, &h)); !errors.Is(err, ErrDamaged) {
		t.Errorf("encrypted data that is too short: %+v, %v", got, err)
	}
}
