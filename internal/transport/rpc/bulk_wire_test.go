package rpc

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	scribev1 "scribe/proto/scribe/v1"
)

func (b bulkRequest) join() []byte { return bytes.Join(b.pieces, nil) }

// fill sets every field of a message to something, so that one that the code here does not know shows.
func fill(t *testing.T, m protoreflect.Message) {
	t.Helper()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList() && f.Kind() == protoreflect.MessageKind:
			list := m.Mutable(f).List()
			fill(t, list.AppendMutable().Message())
			list.AppendMutable()
		case f.Kind() == protoreflect.MessageKind:
			if _, ok := m.Interface().(*durationpb.Duration); !ok {
				fill(t, m.Mutable(f).Message())
			}
		case f.IsList() && f.Kind() == protoreflect.Uint32Kind:
			list := m.Mutable(f).List()
			list.Append(protoreflect.ValueOfUint32(1))
			list.Append(protoreflect.ValueOfUint32(300))
		case f.IsList():
			t.Fatalf("%s: a list of %s: teach the test", f.FullName(), f.Kind())
		case f.Kind() == protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes([]byte{1, 2, byte(f.Number())}))
		case f.Kind() == protoreflect.StringKind:
			m.Set(f, protoreflect.ValueOfString("s"+string(f.Name())))
		case f.Kind() == protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(protoreflect.EnumNumber(f.Number())+1))
		case f.Kind() == protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(f.Number())+100))
		case f.Kind() == protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(uint64(f.Number())+1000))
		case f.Kind() == protoreflect.Int64Kind:
			m.Set(f, protoreflect.ValueOfInt64(int64(f.Number())+2000))
		case f.Kind() == protoreflect.Int32Kind:
			m.Set(f, protoreflect.ValueOfInt32(int32(f.Number())+3000))
		case f.Kind() == protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		default:
			t.Fatalf("%s: a %s: teach the test", f.FullName(), f.Kind())
		}
	}
}

// A field that is added to one of the messages must be added here.
func TestBulkEncodingHasEveryField(t *testing.T) {
	w, s, f := new(scribev1.WriteRequest), new(scribev1.SubmitRequest), new(scribev1.FetchResponse)
	for _, m := range []proto.Message{w, s, f} {
		fill(t, m.ProtoReflect())
	}
	gotW, gotS, gotF := new(scribev1.WriteRequest), new(scribev1.SubmitRequest), new(scribev1.FetchResponse)
	pieces, err := encodeFetched(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		b         []byte
		got, want proto.Message
	}{
		{encodeFrames(w, w.GetFrames()).join(), gotW, w},
		{encodeFrames(s, s.GetFrames()).join(), gotS, s},
		{bytes.Join(pieces, nil), gotF, f},
	} {
		if err := proto.Unmarshal(c.b, c.got); err != nil || !proto.Equal(c.got, c.want) {
			t.Errorf("encoded %v, want %v (%v)", c.got, c.want, err)
		}
	}
	for _, m := range []proto.Message{w, s, f} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var got proto.Message
		switch m.(type) {
		case *scribev1.WriteRequest:
			got, err = decodeWrite(b)
		case *scribev1.SubmitRequest:
			got, err = decodeSubmit(b)
		default:
			got, err = decodeFetched(bytes.NewReader(b), int64(len(b)), 2)
		}
		if err != nil || !proto.Equal(got, m) {
			t.Errorf("decoded %v, want %v (%v)", got, m, err)
		}
	}
}

func drawBytes(limit int) *rapid.Generator[[]byte] {
	return rapid.Custom(func(t *rapid.T) []byte {
		return bytes.Repeat(rapid.SliceOfN(rapid.Byte(), 1, 5).Draw(t, "pattern"), rapid.IntRange(0, limit/5).Draw(t, "times"))
	})
}

var drawPayload = rapid.Custom(func(t *rapid.T) *scribev1.Payload {
	p := &scribev1.Payload{
		Codec: rapid.Uint32().Draw(t, "codec"), Crc: rapid.Uint32().Draw(t, "crc"), RawLength: rapid.Uint64().Draw(t, "raw"),
		Data: drawBytes(3*smallData).Draw(t, "data"),
	}
	if rapid.Bool().Draw(t, "failed") {
		p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason(rapid.Int32().Draw(t, "reason")), Message: rapid.String().Draw(t, "message")}
	}
	return p
})

// Whatever is encoded here is read by protobuf, and the other way round.
func TestBulkEncodingIsProtobuf(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &scribev1.WriteRequest{
			Frames: drawBytes(100_000).Draw(t, "frames"), Ack: scribev1.AckLevel(rapid.Int32().Draw(t, "ack")),
			Follows: rapid.SliceOfN(rapid.Uint32(), 0, 8).Draw(t, "follows"),
		}
		encoded := encodeFrames(w, w.GetFrames())
		got := new(scribev1.WriteRequest)
		if err := proto.Unmarshal(encoded.join(), got); err != nil || !proto.Equal(got, w) || encoded.size != int64(len(encoded.join())) {
			t.Fatalf("write: protobuf reads %v: %v", got, err)
		}
		if got, err := decodeWrite(encoded.join()); err != nil || !proto.Equal(got, w) {
			t.Fatalf("write: read %v: %v", got, err)
		}
		f := &scribev1.FetchResponse{Payloads: rapid.SliceOfN(drawPayload, 0, 8).Draw(t, "payloads")}
		pieces, err := encodeFetched(f)
		if err != nil {
			t.Fatal(err)
		}
		b := bytes.Join(pieces, nil)
		read := new(scribev1.FetchResponse)
		if err := proto.Unmarshal(b, read); err != nil || !proto.Equal(read, f) {
			t.Fatalf("fetch: protobuf reads %v: %v", read, err)
		}
		if read, err := decodeFetched(iotest.HalfReader(bytes.NewReader(b)), int64(len(b)), len(f.GetPayloads())); err != nil || !proto.Equal(read, f) {
			t.Fatalf("fetch: read %v: %v", read, err)
		}
		if len(b) > 0 {
			cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
			if _, err := decodeFetched(bytes.NewReader(b[:cut]), int64(len(b)), 8); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("cut to %d of %d bytes: %v", cut, len(b), err)
			}
		}
	})
}

// The frames of a request are those of its body, without a copy, and can't be appended to.
func TestFramesAreNotCopied(t *testing.T) {
	body := encodeFrames(&scribev1.WriteRequest{Ack: scribev1.AckLevel_ACK_LEVEL_NONE}, []byte("frames")).join()
	req, err := decodeWrite(body)
	if err != nil {
		t.Fatal(err)
	}
	if &req.GetFrames()[0] != &body[2] || cap(req.GetFrames()) != len("frames") {
		t.Error("copied, or with room to write into")
	}
}

// Each payload has memory of its own: one that a cache keeps does not keep the answer.
func TestPayloadsHaveTheirOwnMemory(t *testing.T) {
	pieces, err := encodeFetched(&scribev1.FetchResponse{Payloads: []*scribev1.Payload{{Data: make([]byte, 100_000)}, {Data: make([]byte, 3)}}})
	if err != nil {
		t.Fatal(err)
	}
	b := bytes.Join(pieces, nil)
	res, err := decodeFetched(bytes.NewReader(b), int64(len(b)), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range res.GetPayloads() {
		if cap(p.GetData()) != len(p.GetData()) {
			t.Errorf("%d bytes lie in %d", len(p.GetData()), cap(p.GetData()))
		}
	}
}

// What a message announces is believed only as far as the answer goes, and what stands beside the payload is little.
func TestBulkLimits(t *testing.T) {
	beside := protowire.AppendTag(nil, 15, protowire.BytesType)
	beside = protowire.AppendBytes(beside, make([]byte, maxBesideBytes+1))
	if _, _, err := cutFrames(beside); !errors.Is(err, errBeside) {
		t.Errorf("request: %v", err)
	}
	inPayload := protowire.AppendBytes(protowire.AppendTag(nil, payloadsField, protowire.BytesType), beside)
	for _, b := range [][]byte{beside, inPayload} {
		if _, err := decodeFetched(bytes.NewReader(b), int64(len(b)), 1); !errors.Is(err, errBeside) {
			t.Errorf("answer: %v", err)
		}
	}
	for _, b := range [][]byte{
		{0x0a, 0xff, 0xff, 0xff, 0x7f},                         // a payload of 256 MiB
		{0x0a, 0x05, 0x1a, 0xff, 0xff, 0xff, 0x7f},             // data of 256 MiB
		{0x0a, 0x03, 0x1a, 0x09, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, // data that ends after its payload
	} {
		if _, err := decodeFetched(bytes.NewReader(b), int64(len(b)), 1); !errors.Is(err, errFieldEnd) {
			t.Errorf("%x: %v", b, err)
		}
	}
	two := []byte{0x0a, 0, 0x0a, 0}
	if _, err := decodeFetched(bytes.NewReader(two), 4, 1); err == nil {
		t.Error("more payloads than were asked for")
	}
}

func FuzzDecodeFrames(f *testing.F) {
	f.Add(encodeFrames(&scribev1.WriteRequest{Ack: 3}, []byte("fra"), nil, []byte("mes")).join())
	f.Add([]byte{0x10, 0x02, 0x0a, 0x01, 'x', 0x0a, 0x01, 'y', 0x52, 0x01, 'z'})
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeWrite(b)
		want := new(scribev1.WriteRequest)
		wantErr := unmarshal.Unmarshal(b, want)
		if err == nil && (wantErr != nil || !proto.Equal(got, want)) || err != nil && wantErr == nil && !errors.Is(err, errBeside) {
			t.Errorf("%x: %v (%v), protobuf says %v (%v)", b, got, err, want, wantErr)
		}
	})
}

func FuzzDecodeFetched(f *testing.F) {
	pieces, err := encodeFetched(&scribev1.FetchResponse{Payloads: []*scribev1.Payload{
		{Data: []byte("data"), Codec: 2, Crc: 3, RawLength: 4}, {Error: &scribev1.ErrorInfo{Reason: 5, Message: "gone"}},
	}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Join(pieces, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := decodeFetched(bytes.NewReader(b), int64(len(b)), 100)
		if err != nil {
			return
		}
		want := new(scribev1.FetchResponse)
		if err := unmarshal.Unmarshal(b, want); err != nil || !proto.Equal(got, want) {
			t.Errorf("%x: %v, protobuf says %v (%v)", b, got, want, err)
		}
	})
}
