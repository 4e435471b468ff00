package record_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
)

func micro(us int64) time.Time { return time.UnixMicro(us) }

// anyMessage draws messages of every shape, small ones mostly.
func anyMessage() *rapid.Generator[record.Message] {
	return rapid.Custom(func(t *rapid.T) record.Message {
		m := record.Message{Payload: rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "payload")}
		switch rapid.IntRange(0, 4).Draw(t, "key kind") {
		case 0, 1:
		case 2:
			m.Key = []byte{}
		case 3:
			m.Key = rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "key")
		case 4:
			m.Key = bytes.Repeat([]byte{'k'}, rapid.IntRange(100, record.MaxKeyLen).Draw(t, "key length"))
		}
		switch rapid.IntRange(0, 3).Draw(t, "time kind") {
		case 0, 1:
		case 2:
			m.Time = micro(rapid.Int64Range(1.7e15, 1.7e15+1e6).Draw(t, "near time"))
		case 3: // any time that a frame can hold, and nanoseconds that it cannot
			const limit = math.MaxInt64/1_000_000 - 1
			m.Time = time.Unix(rapid.Int64Range(-limit, limit).Draw(t, "second"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanosecond"))
		}
		attributes := rapid.Custom(func(t *rapid.T) record.Attribute {
			return record.Attribute{
				Name:  rapid.StringN(1, 10, -1).Draw(t, "name"),
				Value: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "value"),
			}
		})
		if rapid.IntRange(0, 3).Draw(t, "attributes") == 0 {
			m.Attributes = rapid.SliceOfN(attributes, 0, 20).Draw(t, "attributes")
		}
		return m
	})
}

func anyEnvelope() *rapid.Generator[record.Envelope] {
	return rapid.Custom(func(t *rapid.T) record.Envelope {
		env := record.Envelope{
			Category:   rapid.StringMatching(`[A-Za-z0-9][A-Za-z0-9._-]{0,254}`).Draw(t, "category"),
			Shard:      rapid.Uint32Range(0, record.MaxLogicalShard).Draw(t, "shard"),
			Atomic:     rapid.Bool().Draw(t, "atomic"),
			BaseTime:   rapid.Int64().Draw(t, "base time"),
			SampleRate: rapid.Uint32().Draw(t, "sample rate"),
			Sequenced:  rapid.Bool().Draw(t, "sequenced"),
		}
		if env.Sequenced {
			env.Producer = rapid.Uint64().Draw(t, "producer")
			env.Epoch = rapid.Uint32().Draw(t, "epoch")
			env.FirstSequence = rapid.Uint64Range(0, math.MaxUint64-1000).Draw(t, "first sequence")
		}
		return env
	})
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		env := anyEnvelope().Draw(rt, "envelope")
		messages := rapid.SliceOfN(anyMessage(), 1, 50).Draw(rt, "messages")
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(rt, "prefix")
		suffix := rapid.SliceOfN(rapid.Byte(), 0, 10).Draw(rt, "suffix")

		out := encode(rt, bytes.Clone(prefix), env, messages)
		if !bytes.HasPrefix(out, prefix) {
			rt.Fatal("what stood in the buffer is gone")
		}
		frame := append(out[len(prefix):], suffix...)
		h, records, err := decode(frame)
		if err != nil {
			rt.Fatal(err)
		}
		if got := h.Envelope(); got != env {
			rt.Fatalf("envelope %+v, want %+v", got, env)
		}
		if h.Count != len(messages) || h.Len != len(frame)-len(suffix) || (h.Sequenced() && h.NextSequence() != env.FirstSequence+uint64(h.Count)) {
			rt.Fatalf("header %+v", h)
		}
		same(rt, env.BaseTime, messages, records)

		// The same messages have the same bytes, whoever encodes them.
		again := make([]record.Message, len(records))
		for i := range records {
			again[i] = message(&records[i])
		}
		if second := encode(rt, nil, env, again); !bytes.Equal(second, out[len(prefix):len(prefix)+h.Len]) {
			rt.Fatal("encoding what was decoded gives other bytes")
		}
	})
}

func TestManyMessages(t *testing.T) {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "many"}); err != nil {
		t.Fatal(err)
	}
	for range record.MaxMessagesPerFrame {
		if err := b.AppendPayload(nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.AppendPayload(nil); !errors.Is(err, record.ErrFrameFull) {
		t.Fatalf("one message too many: %v", err)
	}
	if err := b.Append(&record.Message{Key: []byte{}}); !errors.Is(err, record.ErrFrameFull) {
		t.Fatalf("one message too many: %v", err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	_, records, err := decode(frame)
	if err != nil || len(records) != record.MaxMessagesPerFrame {
		t.Fatalf("%d messages, %v", len(records), err)
	}
}

// TestFull fills a frame to its last bytes.
func TestFull(t *testing.T) {
	b := record.Builder{MaxMessageSize: record.MaxFrameLen}
	dst := make([]byte, 0, record.MaxFrameLen)
	if err := b.Reset(dst, record.Envelope{Category: "full"}); err != nil {
		t.Fatal(err)
	}
	var tooLarge *record.MessageTooLargeError
	if err := b.AppendPayload(make([]byte, record.MaxFrameLen)); !errors.As(err, &tooLarge) || !errors.Is(err, record.ErrTooLarge) {
		t.Fatalf("a payload that fits no frame: %v", err)
	}
	largest := make([]byte, tooLarge.Limit)
	if err := b.Append(&record.Message{Payload: largest, Key: []byte("k")}); !errors.Is(err, record.ErrTooLarge) {
		t.Fatalf("a payload and key that fit no frame: %v", err)
	}
	if err := b.AppendPayload(largest); err != nil {
		t.Fatalf("a payload at the limit: %v", err)
	}
	if err := b.AppendPayload([]byte("0123456789")); !errors.Is(err, record.ErrFrameFull) || errors.Is(err, record.ErrTooLarge) {
		t.Fatalf("a full frame: %v", err)
	}
	frame, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if len(frame) > record.MaxFrameLen || &frame[0] != &dst[:1][0] {
		t.Fatalf("%d bytes, in place: %t", len(frame), &frame[0] == &dst[:1][0])
	}
	if _, records, err := decode(frame); err != nil || len(records) != 1 || len(records[0].Payload) != len(largest) {
		t.Fatalf("%d messages, %v", len(records), err)
	}
}

// TestAppendErrors has messages that a frame refuses; each must leave the
// frame as it was.
func TestAppendErrors(t *testing.T) {
	attributes := func(n int) []record.Attribute {
		a := make([]record.Attribute, n)
		for i := range a {
			a[i].Name = "n"
		}
		return a
	}
	for _, tc := range []struct {
		name string
		m    record.Message
		want error
	}{
		{"payload", record.Message{Payload: make([]byte, 100_001)}, record.ErrTooLarge},
		{"payload and key", record.Message{Payload: make([]byte, 99_999), Key: []byte("kk")}, record.ErrTooLarge},
		{"payload and attribute", record.Message{Payload: make([]byte, 99_999), Attributes: attributes(2)}, record.ErrTooLarge},
		{"key", record.Message{Key: make([]byte, record.MaxKeyLen+1)}, record.ErrTooLarge},
		{"attributes", record.Message{Attributes: attributes(record.MaxAttributes + 1)}, record.ErrTooLarge},
		{"attribute without name", record.Message{Attributes: []record.Attribute{{Name: ""}}}, record.ErrInvalid},
		{"attribute name", record.Message{Attributes: []record.Attribute{{Name: "ok"}, {Name: "\xff"}}}, record.ErrInvalid},
		{"far future", record.Message{Time: time.Unix(math.MaxInt64/1_000_000+1, 0)}, record.ErrInvalid},
		{"far past", record.Message{Time: time.Unix(math.MinInt64/1_000_000-1, 0)}, record.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			good := []record.Message{
				{Payload: []byte("before"), Time: micro(5)},
				{Payload: []byte("after"), Time: micro(7)},
				{Payload: make([]byte, 100_000-record.MaxKeyLen-record.MaxAttributes), Key: make([]byte, record.MaxKeyLen), Attributes: attributes(record.MaxAttributes)},
			}
			env := record.Envelope{Category: "c"}
			b := record.Builder{MaxMessageSize: 100_000}
			if err := b.Reset(nil, env); err != nil {
				t.Fatal(err)
			}
			if err := b.Append(&good[0]); err != nil {
				t.Fatal(err)
			}
			count, length := b.Count(), b.Len()
			if err := b.Append(&tc.m); !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if b.Count() != count || b.Len() != length {
				t.Fatalf("%d messages, %d bytes, want %d, %d", b.Count(), b.Len(), count, length)
			}
			for _, m := range good[1:] {
				if err := b.Append(&m); err != nil {
					t.Fatal(err)
				}
			}
			got, err := b.Finish()
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, encode(t, nil, env, good)) {
				t.Error("the refused message left something behind")
			}
		})
	}
}

func TestDefaultMessageLimit(t *testing.T) {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "c"}); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, record.DefaultMaxMessageSize+1)
	err := b.AppendPayload(p)
	var tooLarge *record.MessageTooLargeError
	if !errors.As(err, &tooLarge) || tooLarge.Size != len(p) || tooLarge.Limit != record.DefaultMaxMessageSize {
		t.Fatal(err)
	}
	if err := b.AppendPayload(p[1:]); err != nil {
		t.Fatal(err)
	}
}

func TestBuilderStates(t *testing.T) {
	var b record.Builder
	unused := func(when string) {
		t.Helper()
		if err := b.AppendPayload(nil); !errors.Is(err, record.ErrNoFrame) {
			t.Errorf("AppendPayload %s: %v", when, err)
		}
		if err := b.Append(&record.Message{Key: []byte("k"), Payload: make([]byte, 1<<10)}); !errors.Is(err, record.ErrNoFrame) {
			t.Errorf("Append %s: %v", when, err)
		}
		if out, err := b.Finish(); !errors.Is(err, record.ErrNoFrame) || out != nil {
			t.Errorf("Finish %s: %v", when, err)
		}
	}
	unused("before Reset")

	dst := []byte("kept")
	if err := b.Reset(dst, record.Envelope{Category: "c"}); err != nil {
		t.Fatal(err)
	}
	if out, err := b.Finish(); !errors.Is(err, record.ErrEmptyFrame) || string(out) != "kept" {
		t.Errorf("Finish of an empty frame: %q, %v", out, err)
	}
	unused("after Finish")

	for _, env := range []record.Envelope{{}, {Category: "a/b"}, {Category: "c", Shard: record.MaxLogicalShard + 1}} {
		if err := b.Reset(dst, env); !errors.Is(err, record.ErrInvalid) {
			t.Errorf("Reset with %+v: %v", env, err)
		}
		unused("after a failed Reset")
		if out, err := record.AppendArrowFrame(dst, env, 1, []byte("x")); !errors.Is(err, record.ErrInvalid) || string(out) != "kept" {
			t.Errorf("AppendArrowFrame with %+v: %q, %v", env, out, err)
		}
	}

	// Sequence numbers must not wrap.
	wraps := record.Envelope{Category: "c", Sequenced: true, FirstSequence: math.MaxUint64}
	if err := b.Reset(dst, wraps); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload(nil); err != nil {
		t.Fatal(err)
	}
	if out, err := b.Finish(); !errors.Is(err, record.ErrInvalid) || string(out) != "kept" {
		t.Errorf("Finish: %q, %v", out, err)
	}
	if out, err := record.AppendArrowFrame(dst, wraps, 1, []byte("x")); !errors.Is(err, record.ErrInvalid) || string(out) != "kept" {
		t.Errorf("AppendArrowFrame: %q, %v", out, err)
	}

	// A sequence that the envelope carries but does not announce is not written.
	if err := b.Reset(nil, record.Envelope{Category: "c", Producer: 1, Epoch: 2, FirstSequence: 3}); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload(nil); err != nil {
		t.Fatal(err)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	if h, err := record.Check(out); err != nil || h.Sequenced() || h.Producer != 0 || h.Epoch != 0 || h.FirstSequence != 0 {
		t.Errorf("%+v, %v", h, err)
	}
}

func TestSetSequence(t *testing.T) {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: "c"}); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload([]byte("p")); err != nil {
		t.Fatal(err)
	}
	b.SetSequence(11, 22, 33)
	got, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	want := encode(t, nil, record.Envelope{Category: "c", Sequenced: true, Producer: 11, Epoch: 22, FirstSequence: 33},
		[]record.Message{{Payload: []byte("p")}})
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
	// The next frame begins without it.
	if next := encode(t, nil, record.Envelope{Category: "c"}, []record.Message{{}}); next[6] != 0 {
		t.Error("the sequence outlives its frame")
	}
}

func TestArrowFrame(t *testing.T) {
	env := record.Envelope{Category: "c"}
	for _, tc := range []struct {
		rows int
		body []byte
		want error
	}{
		{0, []byte("x"), record.ErrEmptyFrame},
		{-1, []byte("x"), record.ErrEmptyFrame},
		{1, nil, record.ErrEmptyFrame},
		{record.MaxMessagesPerFrame + 1, []byte("x"), record.ErrTooLarge},
		{1, make([]byte, record.MaxFrameLen-record.HeaderLen), record.ErrTooLarge},
	} {
		if out, err := record.AppendArrowFrame([]byte("kept"), env, tc.rows, tc.body); !errors.Is(err, tc.want) || string(out) != "kept" {
			t.Errorf("%d rows, %d bytes: %q, %v", tc.rows, len(tc.body), out[:4], err)
		}
	}
	// Rows may outnumber bytes: a column of nulls has no buffers.
	frame, err := record.AppendArrowFrame(nil, env, record.MaxMessagesPerFrame, []byte("x"))
	if err != nil {
		t.Fatal(err)
	}
	if h, err := record.Check(frame); err != nil || h.Count != record.MaxMessagesPerFrame {
		t.Errorf("%+v, %v", h, err)
	}
	h, records, err := decode(frame)
	if !errors.Is(err, record.ErrEncoding) || len(records) != 0 || h.Encoding != record.EncodingArrow {
		t.Errorf("decoding Arrow as messages: %+v, %d messages, %v", h, len(records), err)
	}
}

// TestAllocations holds the promise of the package: no allocation a message.
func TestAllocations(t *testing.T) {
	messages := goldenFrames()[1].messages
	var (
		b   record.Builder
		d   record.Decoder
		r   record.Record
		buf = make([]byte, 0, 1<<20)
	)
	fill := func() {
		if err := b.Reset(buf[:0], record.Envelope{Category: "c"}); err != nil {
			t.Fatal(err)
		}
		for range 100 {
			for i := range messages {
				if err := b.Append(&messages[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
		b.SetSequence(1, 2, 3)
		var err error
		if buf, err = b.Finish(); err != nil {
			t.Fatal(err)
		}
	}
	if n := testing.AllocsPerRun(10, fill); n != 0 {
		t.Errorf("encoding a frame allocates %v times", n)
	}
	total := 0
	if n := testing.AllocsPerRun(10, func() {
		if _, err := d.Reset(buf); err != nil {
			t.Fatal(err)
		}
		for d.Next(&r) {
			total += len(r.Payload) + r.Attributes.Len()
			for name, value := range r.Attributes.All() {
				total += len(name) + len(value)
			}
			if v, ok := r.Attributes.Get("pii"); ok {
				total += len(v)
			}
		}
		if d.Err() != nil {
			t.Fatal(d.Err())
		}
	}); n != 0 {
		t.Errorf("decoding a frame allocates %v times", n)
	}
	if n := testing.AllocsPerRun(10, func() {
		for f, err := range record.Split(buf) {
			if err != nil {
				t.Fatal(err)
			}
			total += f.Len
		}
	}); n != 0 {
		t.Errorf("splitting allocates %v times", n)
	}
}

// TestMove: a frame that moves to other buffers in between is the same.
func TestMove(t *testing.T) {
	build := func(move bool) []byte {
		var b record.Builder
		buf := make([]byte, 0, 128<<10)
		if err := b.Reset(buf, record.Envelope{Category: "c", BaseTime: 1_000_000}); err != nil {
			t.Fatal(err)
		}
		for i := range 2000 { // more than one step of the checksum
			if err := b.Append(&record.Message{Payload: fmt.Append(nil, "message ", i), Time: time.UnixMicro(1_000_000 + int64(i))}); err != nil {
				t.Fatal(err)
			}
			if move && i%300 == 0 {
				next := make([]byte, 17, 128<<10)
				b.Move(next)
				clear(buf[:cap(buf)]) // the caller uses it for something else
				buf = next
			}
		}
		frame, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		return frame
	}
	if !bytes.Equal(build(true), build(false)) {
		t.Error("the frame that moved is another")
	}
}
