package record_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"scribe/internal/format/record"
)

// Seeds are in testdata/fuzz. With repair set, the checksums are made right
// before the bytes are read, so that the fuzzer reaches what lies behind them.

// known fails on an error that is none of those that readers promise.
func known(t *testing.T, err error) {
	t.Helper()
	if err != nil && !damage(err) && !errors.Is(err, record.ErrEncoding) {
		t.Fatalf("undocumented error %v", err)
	}
}

func FuzzParseHeader(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = reseal(b)
		}
		h, err := record.ParseHeader(b)
		known(t, err)
		if err != nil {
			return
		}
		if h.Len > record.MaxFrameLen || h.BodyLen() <= 0 || h.Count <= 0 || h.Count > record.MaxMessagesPerFrame {
			t.Fatalf("header %+v", h)
		}
		if err := record.ValidateCategory(h.CategoryName()); err != nil {
			t.Fatal(err)
		}
		// Header and name are enough, and a writer would have written them.
		short := bytes.Clone(b[:h.BodyOffset()])
		if again, err := record.ParseHeader(short); err != nil || again.Envelope() != h.Envelope() {
			t.Fatalf("%+v, %v", again, err)
		}
		if err := record.SetSampleRate(short, h.SampleRate); err != nil || !bytes.Equal(short, b[:h.BodyOffset()]) {
			t.Fatalf("SetSampleRate with the same rate changes the header: %v", err)
		}
	})
}

func FuzzDecoder(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		if repair {
			b = reseal(b)
		}
		before := bytes.Clone(b)
		h, records, err := decode(b)
		known(t, err)
		if !bytes.Equal(b, before) {
			t.Fatal("the decoder changed the frame")
		}
		size := 0
		for i := range records {
			size += records[i].Size()
		}
		if size > len(b) {
			t.Fatalf("%d bytes of messages in %d bytes", size, len(b))
		}
		if _, checkErr := record.Check(b); checkErr != nil && len(records) > 0 {
			t.Fatalf("messages of a frame that fails Check: %v", checkErr)
		}
		if err != nil {
			return
		}
		if len(records) != h.Count {
			t.Fatalf("%d messages, want %d", len(records), h.Count)
		}
		reencode(t, h, records)
	})
}

// reencode checks that what was decoded survives another round.
func reencode(t *testing.T, h record.Header, records []record.Record) {
	t.Helper()
	messages := make([]record.Message, len(records))
	var b record.Builder
	if err := b.Reset(nil, h.Envelope()); err != nil {
		t.Fatal(err)
	}
	for i := range records {
		messages[i] = message(&records[i])
		// Decoders take what builders refuse: nameless attributes, times that
		// time.Time has no number of microseconds for, and the zero time.
		if messages[i].Time.IsZero() && records[i].HasTime {
			return
		}
		err := b.Append(&messages[i])
		if errors.Is(err, record.ErrInvalid) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	_, again, err := decode(frame)
	if err != nil {
		t.Fatal(err)
	}
	same(t, h.BaseTime, messages, again)
}

func FuzzSplit(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte, repair bool) {
		offset := 0
		if repair {
			for rest := b; len(rest) > 0; {
				h, err := record.ParseHeader(reseal(rest))
				if err != nil || h.Len > len(rest) {
					break
				}
				rest = rest[h.Len:]
			}
		}
		var failed bool
		for frame, err := range record.Split(b) {
			if failed {
				t.Fatal("an error must end the sequence")
			}
			known(t, err)
			if frame.Offset != offset {
				t.Fatalf("frame at %d, want %d", frame.Offset, offset)
			}
			if failed = err != nil; failed {
				continue
			}
			if len(frame.Bytes) != frame.Len || !bytes.Equal(frame.Bytes, b[offset:offset+frame.Len]) || len(frame.Body()) != frame.BodyLen() {
				t.Fatalf("frame %+v", frame)
			}
			offset += frame.Len
		}
		if failed == (offset == len(b)) {
			t.Fatalf("%d of %d bytes are frames, failed: %t", offset, len(b), failed)
		}
	})
}

// FuzzRoundTrip reads a script of messages from any bytes.
func FuzzRoundTrip(f *testing.F) {
	f.Fuzz(func(t *testing.T, script []byte, base int64) {
		take := func(n int) []byte {
			n = min(n, len(script))
			p := script[:n:n]
			script = script[n:]
			return p
		}
		number := func() int {
			n := 0
			for _, c := range take(2) {
				n = n<<8 | int(c)
			}
			return n
		}
		var messages []record.Message
		for len(script) > 0 {
			kind := take(1)[0]
			var m record.Message
			if kind&1 != 0 {
				m.Key = take(int(kind >> 3))
			}
			if kind&2 != 0 {
				m.Time = time.UnixMicro(base + int64(number())<<(kind>>2) - 1<<20)
				if y := m.Time.Year(); m.Time.IsZero() || y < -200_000 || y > 200_000 {
					m.Time = time.Time{}
				}
			}
			for range kind >> 2 & 3 {
				name := string(take(number() & 15))
				value := take(number() & 255)
				if record.ValidateAttributeName(name) == nil {
					m.Attributes = append(m.Attributes, record.Attribute{Name: name, Value: value})
				}
			}
			m.Payload = take(number() & 1023)
			messages = append(messages, m)
		}
		if len(messages) == 0 {
			return
		}
		frame := encode(t, nil, record.Envelope{Category: "f", BaseTime: base}, messages)
		h, records, err := decode(frame)
		if err != nil || h.Len != len(frame) {
			t.Fatalf("%+v, %v", h, err)
		}
		same(t, base, messages, records)
	})
}
