package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

// The places that tests tamper with, written out rather than shared with the
// code under test.
const (
	atVersion   = 4
	atLen       = 8
	atNameLen   = 20
	atBodyCRC   = 56
	atHeaderCRC = 60
	atName      = 64
)

// encode builds one frame at the end of dst.
func encode(t rapid.TB, dst []byte, env record.Envelope, messages []record.Message) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(dst, env); err != nil {
		t.Fatal(err)
	}
	for i := range messages {
		if err := b.Append(&messages[i]); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	wantLen := b.Len()
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if b.Count() != len(messages) || b.Len() != wantLen || len(out)-len(dst) != wantLen {
		t.Fatalf("Count %d, Len %d before and %d after Finish; want %d messages, %d bytes",
			b.Count(), wantLen, b.Len(), len(messages), len(out)-len(dst))
	}
	return out
}

// decode returns copies of the records of the frame at the start of b, those
// before an error included.
func decode(b []byte) (record.Header, []record.Record, error) {
	var (
		d   record.Decoder
		r   record.Record
		all []record.Record
	)
	h, err := d.Reset(b)
	for d.Next(&r) {
		all = append(all, r)
	}
	if err != nil && !errors.Is(d.Err(), err) {
		return h, all, errors.New("Err differs from what Reset returned")
	}
	return h, all, d.Err()
}

// reseal makes the checksums of a tampered frame right again, as a faulty or
// hostile writer would.
func reseal(b []byte) []byte {
	if len(b) < atName || len(b) < atName+int(b[atNameLen]) {
		return b
	}
	nameEnd := atName + int(b[atNameLen])
	if n := int(binary.LittleEndian.Uint32(b[atLen:])); nameEnd <= n && n <= len(b) {
		binary.LittleEndian.PutUint32(b[atBodyCRC:], record.CRC(b[nameEnd:n]))
	}
	covered := append(bytes.Clone(b[:atHeaderCRC]), b[atName:nameEnd]...)
	binary.LittleEndian.PutUint32(b[atHeaderCRC:], record.CRC(covered))
	return b
}

// rawFrame is a frame with any body and count, and right checksums.
func rawFrame(t rapid.TB, count uint32, base int64, body []byte) []byte {
	t.Helper()
	b := encode(t, nil, record.Envelope{Category: "raw", BaseTime: base}, []record.Message{{}})
	b = append(b[:len(b)-1], body...)
	binary.LittleEndian.PutUint32(b[atLen:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[12:], count)
	return reseal(b)
}

// same fails unless records are what messages became in a frame of that base
// time.
func same(t rapid.TB, base int64, messages []record.Message, records []record.Record) {
	t.Helper()
	if len(messages) != len(records) {
		t.Fatalf("%d records, want %d", len(records), len(messages))
	}
	for i := range messages {
		m, r := &messages[i], &records[i]
		wantTime := base
		if !m.Time.IsZero() {
			wantTime = m.Time.UnixMicro()
		}
		switch {
		case r.Index != i:
			t.Fatalf("record %d: index %d", i, r.Index)
		case r.Payload == nil || !bytes.Equal(r.Payload, m.Payload):
			t.Fatalf("record %d: payload %q, want %q", i, r.Payload, m.Payload)
		case r.HasKey != (m.Key != nil) || (r.Key != nil) != r.HasKey || !bytes.Equal(r.Key, m.Key):
			t.Fatalf("record %d: key %q (%t), want %q (%t)", i, r.Key, r.HasKey, m.Key, m.Key != nil)
		case r.HasTime == m.Time.IsZero() || r.Time != wantTime:
			t.Fatalf("record %d: time %d (%t), want %d (%t)", i, r.Time, r.HasTime, wantTime, !m.Time.IsZero())
		case r.Attributes.Len() != len(m.Attributes):
			t.Fatalf("record %d: %d attributes, want %d", i, r.Attributes.Len(), len(m.Attributes))
		case r.Size() != m.Size():
			t.Fatalf("record %d: size %d, want %d", i, r.Size(), m.Size())
		}
		j := 0
		first := map[string][]byte{}
		for name, value := range r.Attributes.All() {
			if want := m.Attributes[j]; string(name) != want.Name || !bytes.Equal(value, want.Value) {
				t.Fatalf("record %d, attribute %d: %q=%q, want %q=%q", i, j, name, value, want.Name, want.Value)
			}
			if _, seen := first[string(name)]; !seen {
				first[string(name)] = value
			}
			j++
		}
		if j != len(m.Attributes) {
			t.Fatalf("record %d: All yields %d attributes, want %d", i, j, len(m.Attributes))
		}
		for name, want := range first {
			if got, ok := r.Attributes.Get(name); !ok || !bytes.Equal(got, want) {
				t.Fatalf("record %d: Get(%q) = %q, %t, want %q", i, name, got, ok, want)
			}
		}
		if _, ok := r.Attributes.Get("no such name"); ok {
			t.Fatalf("record %d: Get finds a name that is not there", i)
		}
	}
}

// message is the message that a record was.
func message(r *record.Record) record.Message {
	m := record.Message{Payload: r.Payload, Key: r.Key}
	if r.HasTime {
		m.Time = time.UnixMicro(r.Time)
	}
	for name, value := range r.Attributes.All() {
		m.Attributes = append(m.Attributes, record.Attribute{Name: string(name), Value: value})
	}
	return m
}
