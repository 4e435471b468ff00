package layout

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"testing"
)

// Each decoder takes any bytes without a panic, allocates no more than they justify, and what it takes it writes again as it was.

func FuzzRecordHeader(f *testing.F) {
	for _, encrypted := range []bool{false, true} {
		headers, data := sampleRecords(encrypted)
		for i := range headers {
			f.Add(append(AppendRecordHeader(nil, &headers[i]), data[i]...))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseRecordHeader(b)
		if err != nil {
			return
		}
		if again := AppendRecordHeader(nil, &h); !bytes.HasPrefix(b, again) {
			t.Errorf("%+v is written as %x", h, again)
		}
		if data, err := h.Data(b); err == nil && len(data) != int(h.DataLen) {
			t.Errorf("%d bytes of data", len(data))
		}
	})
}

func FuzzScanSegment(f *testing.F) {
	for _, sealed := range []bool{true, false} {
		for _, encrypted := range []bool{false, true} {
			_, b := sampleSegment(sealed, encrypted)
			f.Add(b, uint32(1))
			f.Add(b, uint32(2))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, generation uint32) {
		end, last := int64(0), Position(0)
		scan, err := ScanSegment(bytes.NewReader(b), int64(len(b)), SegmentID{7, 7, max(1, generation)}, func(rec *ScannedRecord) {
			if rec.Offset < end || rec.Position <= last || rec.Position.Segment() != 7 {
				t.Errorf("%+v behind %d, %v", rec, end, last)
			}
			end, last = rec.End(), rec.Position
		})
		if err == nil && scan.End < end && scan.End != int64(len(b)) {
			t.Errorf("the end is %d, a record ends at %d of %d", scan.End, end, len(b))
		}
	})
}

func FuzzFooter(f *testing.F) {
	for _, encrypted := range []bool{false, true} {
		_, b := sampleSegment(true, encrypted)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id := SegmentID{7, 7, 1}
		r := bytes.NewReader(b)
		footer, err := ReadFooter(r, int64(len(b)), id)
		if err != nil {
			return
		}
		for i := range footer.Categories {
			c := &footer.Categories[i]
			entries, err := ReadIndex(r, footer, c)
			if err == nil && len(entries) != int(c.Records) {
				t.Errorf("%d entries of %d", len(entries), c.Records)
			}
		}
	})
}

// FuzzFooterTable and those below give bytes the checksums that they should have, to get behind them.
func FuzzFooterTable(f *testing.F) {
	_, b := sampleSegment(true, false)
	footer, err := ReadFooter(bytes.NewReader(b), int64(len(b)), SegmentID{7, 7, 1})
	if err != nil {
		f.Fatal(err)
	}
	var table []byte
	for i := range footer.Categories {
		table = appendCategory(table, &footer.Categories[i])
	}
	f.Add(table, 2)
	f.Fuzz(func(t *testing.T, b []byte, count int) {
		got := Footer{SegmentID: SegmentID{7, 7, 1}, DataEnd: 1 << 20, Offset: 1 << 20}
		if count < 0 || got.parseTable(b, count, 1<<20) != nil {
			return
		}
		var again []byte
		for i := range got.Categories {
			again = appendCategory(again, &got.Categories[i])
		}
		if !bytes.Equal(again, b) {
			t.Errorf("%+v is written as %x", got.Categories, again)
		}
	})
}

func FuzzIndex(f *testing.F) {
	id := SegmentID{7, 7, 1}
	for _, encrypted := range []bool{false, true} {
		headers, _ := sampleRecords(encrypted)
		var entries []IndexEntry
		for _, h := range headers {
			entries = append(entries, IndexEntry{
				Position: h.Position, Time: h.Time, Offset: h.Position.Offset(), Size: uint32(h.Size()), Messages: h.Messages, Encrypted: h.Encrypted,
			})
		}
		f.Add(appendIndex(nil, &Footer{SegmentID: id, Encrypted: encrypted}, entries), uint32(len(entries)), encrypted)
	}
	f.Fuzz(func(t *testing.T, b []byte, records uint32, encrypted bool) {
		footer := &Footer{SegmentID: id, DataEnd: 1 << 20, Encrypted: encrypted}
		c := &FooterCategory{Name: "b", IndexSummary: IndexSummary{Records: records, IndexCRC: Checksum(b)}}
		entries, err := ParseIndex(b, footer, c)
		for i := 1; i < len(entries); i++ {
			if entries[i].Position <= entries[i-1].Position || entries[i].Offset <= entries[i-1].Offset {
				t.Errorf("out of order: %+v, %v", entries, err)
			}
		}
		for i := range entries {
			if entries[i].Encrypted && !encrypted || entries[i].FrameBytes("b") < 0 {
				t.Errorf("entry %+v", entries[i])
			}
		}
	})
}

func FuzzSlot(f *testing.F) {
	slot, _ := AppendSlot(nil, sampleState(), MinStateSlot)
	f.Add(slot[slotHeaderLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		b, _ := AppendSlot(nil, &SpoolState{Generation: 3}, MinStateSlot)
		b = append(b[:slotHeaderLen], body...)
		binary.LittleEndian.PutUint32(b[16:], uint32(len(body)))
		binary.LittleEndian.PutUint32(b[32:], Checksum(body))
		binary.LittleEndian.PutUint32(b[36:], Checksum(b[:36]))
		s, err := ParseSlot(b)
		if err != nil {
			return
		}
		for i := range s.Segments {
			for _, d := range s.Segments[i].Done {
				for j, p := range d.Spans {
					if p.From >= p.To || j > 0 && p.From <= d.Spans[j-1].To {
						t.Errorf("spans %v", d.Spans)
					}
				}
			}
		}
		again, _ := AppendSlot(nil, s, MaxStateSlot)
		if s2, err := ParseSlot(again); err != nil || !reflect.DeepEqual(s, s2) {
			t.Errorf("%+v is written as what is read as %+v, %v", s, s2, err)
		}
	})
}

func FuzzState(f *testing.F) {
	f.Add(sampleStateFile())
	f.Fuzz(func(t *testing.T, b []byte) {
		st, err := ReadState(bytes.NewReader(b))
		if err != nil || st.State == nil {
			return
		}
		again, fitted := AppendSlot(nil, st.State, MaxStateSlot)
		if s, err := ParseSlot(again); err != nil || !fitted || s.Generation != st.State.Generation {
			t.Errorf("%+v is written as what is read as %+v, %v", st.State, s, err)
		}
	})
}
