package record_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	"scribe/internal/format/record"
)

// slowCRC is CRC32C bit by bit, from its definition.
func slowCRC(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			if crc&1 != 0 {
				crc = crc>>1 ^ 0x82f63b78
			} else {
				crc >>= 1
			}
		}
	}
	return ^crc
}

func TestCRC(t *testing.T) {
	if got := record.CRC([]byte("123456789")); got != 0xe3069283 { // check value of CRC-32C
		t.Errorf("CRC %#x", got)
	}
	if got, want := record.CRC([]byte("scribe")), slowCRC([]byte("scribe")); got != want {
		t.Errorf("CRC %#x, want %#x", got, want)
	}
}

// TestLayout puts a frame together by hand, from docs/format/frame.md.
func TestLayout(t *testing.T) {
	body := []byte{
		2 << 3, 'h', 'i', // payload only
		1<<3 | 7, 0x06, 1, 'k', 5, 1, 1, 'n', 1, 'v', 'p', // time +3, key, attributes
		2, 0x01, // empty payload, time -1 from the message before
	}
	want := []byte("SCRF\x01\x01\x03\x00")
	want = binary.LittleEndian.AppendUint32(want, uint32(64+3+len(body)))
	want = binary.LittleEndian.AppendUint32(want, 3)                  // count
	want = binary.LittleEndian.AppendUint32(want, 9)                  // shard
	want = append(want, 3, 0, 0, 0)                                   // name length, reserved
	want = binary.LittleEndian.AppendUint64(want, 1_000)              // base time
	want = binary.LittleEndian.AppendUint64(want, 0x1122334455667788) // producer
	want = binary.LittleEndian.AppendUint32(want, 2)                  // epoch
	want = binary.LittleEndian.AppendUint32(want, 4)                  // sample rate
	want = binary.LittleEndian.AppendUint64(want, 77)                 // first sequence
	want = binary.LittleEndian.AppendUint32(want, slowCRC(body))
	want = binary.LittleEndian.AppendUint32(want, slowCRC(append(bytes.Clone(want), "cat"...)))
	want = append(want, "cat"...)
	want = append(want, body...)

	got := encode(t, nil, record.Envelope{
		Category: "cat", Shard: 9, Atomic: true, Sequenced: true, Producer: 0x1122334455667788,
		Epoch: 2, FirstSequence: 77, BaseTime: 1_000, SampleRate: 4,
	}, []record.Message{
		{Payload: []byte("hi")},
		{Payload: []byte("p"), Key: []byte("k"), Time: micro(1_003), Attributes: []record.Attribute{{Name: "n", Value: []byte("v")}}},
		{Time: micro(1_002)},
	})
	if !bytes.Equal(got, want) {
		t.Fatalf("got  %x\nwant %x", got, want)
	}
}

// TestFlips changes every byte of a frame to every other value. Each change
// must be found, by the checksums, before a message is handed out.
func TestFlips(t *testing.T) {
	for _, g := range goldenFrames() {
		t.Run(g.name, func(t *testing.T) {
			frame := g.encode(t)
			// What follows a frame must not hide damage to its lengths.
			damaged := append(bytes.Clone(frame), frame...)
			for i := range frame {
				for x := 1; x < 256; x++ {
					damaged[i] ^= byte(x)
					if _, err := record.Check(damaged); !damage(err) {
						t.Fatalf("byte %d ^ %#x: Check: %v", i, x, err)
					}
					if _, records, err := decode(damaged); !damage(err) || len(records) > 0 {
						t.Fatalf("byte %d ^ %#x: Decoder: %d messages, %v", i, x, len(records), err)
					}
					damaged[i] ^= byte(x)
				}
			}
			if _, err := record.Check(damaged); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// damage reports whether err is one of those for bytes that are no frame.
func damage(err error) bool {
	return errors.Is(err, record.ErrCorrupt) || errors.Is(err, record.ErrVersion) || errors.Is(err, record.ErrTruncated)
}

func TestTruncated(t *testing.T) {
	for _, g := range goldenFrames() {
		t.Run(g.name, func(t *testing.T) {
			frame := g.encode(t)
			for n := range frame {
				cut := frame[:n:n]
				check := func(call string, err error) {
					t.Helper()
					var te *record.TruncatedError
					if !errors.Is(err, record.ErrTruncated) || !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, record.ErrCorrupt) ||
						!errors.As(err, &te) || te.Have != n || te.Need <= n || te.Need > len(frame) {
						t.Fatalf("%s of %d of %d bytes: %v", call, n, len(frame), err)
					}
				}
				_, err := record.ParseHeader(cut)
				if n < record.HeaderLen+len(g.env.Category) {
					check("ParseHeader", err)
					check("SetSampleRate", record.SetSampleRate(bytes.Clone(cut), 2))
				} else if err != nil {
					t.Fatalf("ParseHeader needs more than header and name: %v", err)
				}
				_, err = record.Check(cut)
				check("Check", err)
				_, records, err := decode(cut)
				check("Decoder", err)
				if len(records) > 0 {
					t.Fatalf("%d messages of %d bytes", len(records), n)
				}
			}
		})
	}
}

func TestNewerVersion(t *testing.T) {
	for version := record.Version + 1; version < 256; version++ {
		frame := encode(t, nil, record.Envelope{Category: "c"}, []record.Message{{}})
		frame[atVersion] = byte(version)
		// Whatever follows the version byte of a newer version: it decides.
		for _, b := range [][]byte{frame, reseal(bytes.Clone(frame)), frame[:5]} {
			_, err := record.ParseHeader(b)
			var ve *record.VersionError
			if !errors.Is(err, record.ErrVersion) || errors.Is(err, record.ErrCorrupt) || !errors.As(err, &ve) ||
				int(ve.Version) != version || ve.Supported != record.Version {
				t.Fatalf("version %d: %v", version, err)
			}
		}
	}
}

// TestRefusedHeaders has headers that are wrong although their checksum is
// right.
func TestRefusedHeaders(t *testing.T) {
	put32 := binary.LittleEndian.PutUint32
	put64 := binary.LittleEndian.PutUint64
	for _, tc := range []struct {
		name, what string
		offset     int64
		tamper     func(b []byte)
	}{
		{"magic", "magic", 0, func(b []byte) { b[0] = 's' }},
		{"version 0", "version", 4, func(b []byte) { b[4] = 0 }},
		{"encoding 0", "encoding", 5, func(b []byte) { b[5] = 0 }},
		{"encoding 3", "encoding", 5, func(b []byte) { b[5] = 3 }},
		{"unknown flag", "flags", 6, func(b []byte) { b[6] |= 4 }},
		{"unknown high flag", "flags", 6, func(b []byte) { b[7] |= 0x80 }},
		{"frame length 0", "frame length", 8, func(b []byte) { put32(b[8:], 0) }},
		{"frame length without body", "frame length", 8, func(b []byte) { put32(b[8:], 64+3) }},
		{"frame length over limit", "frame length", 8, func(b []byte) { put32(b[8:], record.MaxFrameLen+1) }},
		{"frame length all ones", "frame length", 8, func(b []byte) { put32(b[8:], math.MaxUint32) }},
		{"no messages", "message count", 12, func(b []byte) { put32(b[12:], 0) }},
		{"too many messages", "message count", 12, func(b []byte) { put32(b[12:], record.MaxMessagesPerFrame+1) }},
		{"messages do not fit", "message count", 12, func(b []byte) { put32(b[12:], 10) }},
		{"shard", "logical shard", 16, func(b []byte) { put32(b[16:], record.MaxLogicalShard+1) }},
		{"reserved 1", "reserved bytes", 21, func(b []byte) { b[21] = 1 }},
		{"reserved 2", "reserved bytes", 21, func(b []byte) { b[22] = 1 }},
		{"reserved 3", "reserved bytes", 21, func(b []byte) { b[23] = 0x80 }},
		{"producer without sequence", "producer id", 32, func(b []byte) { put64(b[32:], 1) }},
		{"epoch without sequence", "producer id", 32, func(b []byte) { put32(b[40:], 1) }},
		{"first without sequence", "producer id", 32, func(b []byte) { put64(b[48:], 1) }},
		{"sequence wraps", "first sequence", 48, func(b []byte) { b[6] |= 2; put64(b[48:], math.MaxUint64) }},
		{"name begins with a dot", "category name", 64, func(b []byte) { b[64] = '.' }},
		{"name with a slash", "category name", 64, func(b []byte) { b[65] = '/' }},
		{"no name", "category name", 64, func(b []byte) { b[20] = 0 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			frame := encode(t, nil, record.Envelope{Category: "abc"}, []record.Message{{Payload: []byte("12345678")}})
			tc.tamper(frame)
			_, err := record.ParseHeader(reseal(frame))
			var ce *record.CorruptError
			if !errors.Is(err, record.ErrCorrupt) || !errors.As(err, &ce) || ce.What != tc.what || ce.Offset != tc.offset {
				t.Fatalf("got %v, want %s at byte %d", err, tc.what, tc.offset)
			}
		})
	}
}

// TestRefusedBodies has bodies that are wrong although their checksum is
// right: [record.Check] lets them pass, the Decoder must not.
func TestRefusedBodies(t *testing.T) {
	const bodyAt = atName + len("raw")
	long := bytes.Repeat([]byte{0xff}, 9)
	for _, tc := range []struct {
		name      string
		count     uint32
		body      []byte
		delivered int
		what      string
		offset    int64 // in the body
	}{
		{"bytes follow the last message", 1, []byte{0, 0}, 0, "body", 1},
		{"count over the messages", 2, []byte{8, 'x'}, 1, "message 1: payload length", 2},
		{"payload overruns", 1, []byte{2 << 3, 'x'}, 0, "message 0: payload", 1},
		{"second payload overruns", 2, []byte{8, 'x', 8}, 1, "message 1: payload", 3},
		{"lead is cut", 1, []byte{0x80}, 0, "message 0: payload length", 0},
		{"lead over 64 bits", 1, append(bytes.Clone(long), 0x02), 0, "message 0: payload length", 0},
		{"lead of eleven bytes", 1, append(bytes.Clone(long), 0xff, 0x01), 0, "message 0: payload length", 0},
		{"payload length all ones", 1, append(bytes.Clone(long)[:9:9], 0x01), 0, "message 0: event time", 10},
		{"payload length of 2^61-1", 1, []byte{0xf8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 0, "message 0: payload", 10},
		{"time is missing", 1, []byte{2}, 0, "message 0: event time", 1},
		{"time over 64 bits", 1, append([]byte{2}, append(bytes.Clone(long), 0x02)...), 0, "message 0: event time", 1},
		{"key length is missing", 1, []byte{1}, 0, "message 0: key", 1},
		{"key overruns", 1, []byte{1, 2, 'k'}, 0, "message 0: key", 1},
		{"key over the limit", 1, append([]byte{1, 0x81, 0x80, 0x04}, make([]byte, record.MaxKeyLen+1)...), 0, "message 0: key", 1},
		{"attributes are missing", 1, []byte{4}, 0, "message 0: attributes", 1},
		{"attributes overrun", 1, []byte{4, 2, 0}, 0, "message 0: attributes", 1},
		{"attribute section is empty", 1, []byte{4, 0}, 0, "message 0: attributes", 1},
		{"attribute count cannot fit", 1, []byte{4, 2, 1, 0}, 0, "message 0: attributes", 1},
		{"attribute count over the limit", 1, append([]byte{4, 0x84, 0x10, 0x81, 0x08}, make([]byte, 2050)...), 0, "message 0: attributes", 1},
		{"attribute name overruns", 1, []byte{4, 3, 1, 2, 'n'}, 0, "message 0: attributes", 1},
		{"attribute value overruns", 1, []byte{4, 4, 1, 1, 'n', 1}, 0, "message 0: attributes", 1},
		{"attribute value is missing", 1, []byte{4, 3, 1, 1, 'n'}, 0, "message 0: attributes", 1},
		{"bytes follow the last attribute", 1, []byte{4, 4, 1, 0, 0, 0}, 0, "message 0: attributes", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			frame := rawFrame(t, tc.count, 0, tc.body)
			if _, err := record.Check(frame); err != nil {
				t.Fatalf("Check: %v", err)
			}
			_, records, err := decode(frame)
			var ce *record.CorruptError
			if !errors.As(err, &ce) || !errors.Is(err, record.ErrCorrupt) || ce.What != tc.what || ce.Offset != int64(bodyAt)+tc.offset {
				t.Errorf("got %v, want %s at byte %d", err, tc.what, int64(bodyAt)+tc.offset)
			}
			if len(records) != tc.delivered {
				t.Errorf("%d messages before the damage, want %d", len(records), tc.delivered)
			}
		})
	}
}

func TestSplit(t *testing.T) {
	var (
		all     []byte
		offsets []int
		frames  [][]byte
	)
	for i, g := range goldenFrames() {
		frame := g.encode(t)
		offsets = append(offsets, len(all))
		frames = append(frames, frame)
		if i%2 == 0 {
			all = append(all, frame...)
		} else { // in place, as a producer does
			if g.arrow != nil {
				var err error
				if all, err = record.AppendArrowFrame(all, g.env, g.rows, g.arrow); err != nil {
					t.Fatal(err)
				}
			} else {
				all = encode(t, all, g.env, g.messages)
			}
		}
	}
	i := 0
	for f, err := range record.Split(all) {
		if err != nil {
			t.Fatal(err)
		}
		if f.Offset != offsets[i] || !bytes.Equal(f.Bytes, frames[i]) || !bytes.Equal(f.Body(), frames[i][f.BodyOffset():]) {
			t.Fatalf("frame %d at %d: %x", i, f.Offset, f.Bytes)
		}
		i++
	}
	if i != len(frames) {
		t.Fatalf("%d frames, want %d", i, len(frames))
	}
	for f, err := range record.Split(nil) {
		t.Errorf("an empty buffer holds no frame: %+v, %v", f, err)
	}
	i = 0
	for _, err := range record.Split(all) {
		if i++; err != nil || i == 2 {
			break // must not go on
		}
	}
	if i != 2 {
		t.Errorf("%d frames, want to stop at 2", i)
	}
}

func TestSplitError(t *testing.T) {
	good := encode(t, nil, record.Envelope{Category: "c"}, []record.Message{{Payload: []byte("p")}})
	newer := bytes.Clone(good)
	newer[atVersion] = record.Version + 1
	broken := bytes.Clone(good)
	broken[12] = 9
	for _, tc := range []struct {
		name   string
		tail   []byte
		want   error
		offset int64 // that the error names
	}{
		{"not a frame", []byte("zzzz"), record.ErrCorrupt, int64(len(good))},
		{"header checksum", broken, record.ErrCorrupt, int64(len(good)) + atHeaderCRC},
		{"newer", newer, record.ErrVersion, int64(len(good))},
		{"cut in the header", good[:10], record.ErrTruncated, int64(len(good))},
		{"cut in the body", good[:len(good)-1], record.ErrTruncated, int64(len(good))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var (
				n    int
				last error
			)
			for f, err := range record.Split(append(bytes.Clone(good), tc.tail...)) {
				if last != nil {
					t.Fatal("an error must end the sequence")
				}
				if err != nil && (f.Offset != len(good) || f.Bytes != nil) {
					t.Errorf("frame beside the error: %+v", f)
				}
				n, last = n+1, err
			}
			if n != 2 || !errors.Is(last, tc.want) {
				t.Fatalf("%d items, then %v", n, last)
			}
			if want := fmt.Sprintf("at byte %d", tc.offset); !strings.Contains(last.Error(), want) {
				t.Errorf("%q does not say %q", last, want)
			}
		})
	}
}

func TestSetSampleRate(t *testing.T) {
	for _, g := range goldenFrames() {
		frame := g.encode(t)
		g.env.SampleRate = 1234
		want := g.encode(t)
		if err := record.SetSampleRate(frame, 1234); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(frame, want) {
			t.Errorf("%s: got\n%x, want\n%x", g.name, frame, want)
		}
	}
	// Damage to the header is not signed over.
	frame := encode(t, nil, record.Envelope{Category: "c"}, []record.Message{{}})
	frame[16] ^= 1
	before := bytes.Clone(frame)
	if err := record.SetSampleRate(frame, 2); !errors.Is(err, record.ErrCorrupt) || !bytes.Equal(frame, before) {
		t.Errorf("%v, %x", err, frame)
	}
}

func TestStrings(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{record.EncodingMessages.String(), "messages"},
		{record.EncodingArrow.String(), "arrow"},
		{record.Encoding(9).String(), "encoding(9)"},
		{record.Flags(0).String(), "none"},
		{(record.FlagAtomic | record.FlagSequenced).String(), "atomic|sequenced"},
		{(record.FlagSequenced | 0x10).String(), "sequenced|0x10"},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}

// TestPlacement: a frame has a placement tag in version 2 alone, and the tag can be changed with the shard and nothing else.
func TestPlacement(t *testing.T) {
	frame := encode(t, nil, record.Envelope{Category: "c", Shard: 3, Sequenced: true, Producer: 7, Epoch: 1}, []record.Message{{Payload: []byte("x")}})
	plain := bytes.Clone(frame)
	if frame[atVersion] != 1 {
		t.Errorf("a frame without a tag has version %d", frame[atVersion])
	}
	if err := record.SetPlacement(frame, 9, record.MaxPlacement); err != nil {
		t.Fatal(err)
	}
	h, err := record.Check(frame)
	want := record.Envelope{Category: "c", Shard: 9, Sequenced: true, Producer: 7, Epoch: 1, Placement: record.MaxPlacement}
	if err != nil || h.Envelope() != want || frame[atVersion] != 2 {
		t.Errorf("%+v in version %d, %v", h.Envelope(), frame[atVersion], err)
	}
	if record.SetPlacement(frame, 9, record.MaxPlacement+1) == nil || record.SetPlacement(frame, record.MaxLogicalShard+1, 1) == nil {
		t.Error("a tag or a shard over the limit was written")
	}
	if err := record.SetPlacement(frame, 3, 0); err != nil || !bytes.Equal(frame, plain) {
		t.Errorf("removing the tag: %v, %x, want %x", err, frame, plain)
	}
	// A tag in version 1, and none in version 2, were never written.
	for _, version := range []byte{1, 2} {
		f := bytes.Clone(plain)
		f[atVersion] = version
		if version == 1 {
			f[22] = 1
		}
		if _, err := record.ParseHeader(reseal(f)); !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("version %d: %v", version, err)
		}
	}
}
