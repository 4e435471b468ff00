package rpc

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	scribev1 "scribe/proto/scribe/v1"
)

// Messages that consist mostly of one bytes field are encoded and decoded here around that field, so that its bytes are not
// copied. The encoding is that of protobuf, compatible with Connect's own codec. bulk_wire_test.go fails if a field is added to
// one of these messages and not here.
const (
	framesField    protowire.Number = 1 // of WriteRequest and SubmitRequest
	ackField       protowire.Number = 2 // of both
	followsField   protowire.Number = 3 // of both
	lingeredField  protowire.Number = 4 // of both
	payloadsField  protowire.Number = 1 // of FetchResponse
	dataField      protowire.Number = 3 // of Payload
	maxBesideBytes                  = 1 << 20
	// smallData is the size up to which copying data is cheaper than writing it separately.
	smallData = 8 << 10
)

// bulkRequest is the encoding of a request in pieces: the fields before its frames, the frames, and the fields after them.
type bulkRequest struct {
	pieces [][]byte
	size   int64
}

// besideFrames are the fields of a WriteRequest or SubmitRequest beside its frames.
type besideFrames interface {
	GetAck() scribev1.AckLevel
	GetFollows() []uint32
	GetLingered() bool
}

// encodeFrames encodes a WriteRequest or SubmitRequest whose frames lie in any number of pieces. The result refers to them.
func encodeFrames(req besideFrames, frames ...[]byte) bulkRequest {
	ack, follows := req.GetAck(), req.GetFollows()
	b := bulkRequest{pieces: make([][]byte, 0, len(frames)+2)}
	length := 0
	for _, p := range frames {
		length += len(p)
	}
	small := make([]byte, 0, 24)
	if length > 0 {
		small = protowire.AppendTag(small, framesField, protowire.BytesType)
		small = protowire.AppendVarint(small, uint64(length))
	}
	b.pieces = append(append(b.pieces, small), frames...)
	tail := small[len(small):]
	if ack != 0 {
		tail = protowire.AppendTag(tail, ackField, protowire.VarintType)
		tail = protowire.AppendVarint(tail, uint64(ack))
	}
	if len(follows) > 0 {
		length := 0
		for _, i := range follows {
			length += protowire.SizeVarint(uint64(i))
		}
		tail = protowire.AppendTag(tail, followsField, protowire.BytesType)
		tail = protowire.AppendVarint(tail, uint64(length))
		for _, i := range follows {
			tail = protowire.AppendVarint(tail, uint64(i))
		}
	}
	if req.GetLingered() {
		tail = protowire.AppendTag(tail, lingeredField, protowire.VarintType)
		tail = protowire.AppendVarint(tail, protowire.EncodeBool(true))
	}
	if len(tail) > 0 {
		b.pieces = append(b.pieces, tail)
	}
	for _, p := range b.pieces {
		b.size += int64(len(p))
	}
	return b
}

// cutFrames separates the frames of an encoded request, which refer to b, from rest, the encoding of the other fields.
func cutFrames(b []byte) (frames, rest []byte, err error) {
	for len(b) > 0 {
		num, typ, tagLen := protowire.ConsumeTag(b)
		if tagLen < 0 {
			return nil, nil, protowire.ParseError(tagLen)
		}
		if num == framesField && typ == protowire.BytesType {
			v, n := protowire.ConsumeBytes(b[tagLen:])
			if n < 0 {
				return nil, nil, fmt.Errorf("frames: %w", protowire.ParseError(n))
			}
			frames = slices.Clip(v)
			b = b[tagLen+n:]
			continue
		}
		n := protowire.ConsumeFieldValue(num, typ, b[tagLen:])
		if n < 0 {
			return nil, nil, fmt.Errorf("field %d: %w", num, protowire.ParseError(n))
		}
		if len(rest)+tagLen+n > maxBesideBytes {
			return nil, nil, errBeside
		}
		rest = append(rest, b[:tagLen+n]...)
		b = b[tagLen+n:]
	}
	return frames, rest, nil
}

var errBeside = fmt.Errorf("more than %d bytes beside the payload", maxBesideBytes)

func decodeWrite(b []byte) (*scribev1.WriteRequest, error) {
	req := new(scribev1.WriteRequest)
	return req, unmarshalBeside(b, req, &req.Frames)
}

func decodeSubmit(b []byte) (*scribev1.SubmitRequest, error) {
	req := new(scribev1.SubmitRequest)
	return req, unmarshalBeside(b, req, &req.Frames)
}

// unmarshalBeside decodes a request, whose frames refer to b.
func unmarshalBeside(b []byte, req proto.Message, frames *[]byte) error {
	cut, rest, err := cutFrames(b)
	if err == nil {
		err = unmarshal.Unmarshal(rest, req)
	}
	*frames = cut
	return err
}

func decodeFetch(b []byte) (*scribev1.FetchRequest, error) {
	req := new(scribev1.FetchRequest)
	return req, unmarshal.Unmarshal(b, req)
}

// encodeMessage encodes a small answer in one piece.
func encodeMessage(m proto.Message) ([][]byte, error) {
	b, err := proto.Marshal(m)
	return [][]byte{b}, err
}

// encodeFetched encodes an answer in pieces that refer to the payloads' data.
func encodeFetched(res *scribev1.FetchResponse) ([][]byte, error) {
	pieces := make([][]byte, 0, 2*len(res.GetPayloads())+1)
	var small []byte // the bytes from begin on are not in pieces yet
	begin := 0
	for _, p := range res.GetPayloads() {
		data := p.GetData()
		// A shallow copy without data; a Payload struct must not be copied.
		beside, err := proto.Marshal(&scribev1.Payload{Error: p.GetError(), Codec: p.GetCodec(), RawLength: p.GetRawLength(), Crc: p.GetCrc(), View: p.GetView(), SampledOut: p.GetSampledOut(), SampleRate: p.GetSampleRate(), Restricted: p.GetRestricted()})
		if err != nil {
			return nil, err
		}
		size := len(beside)
		if len(data) > 0 {
			size += protowire.SizeTag(dataField) + protowire.SizeBytes(len(data))
		}
		small = protowire.AppendTag(small, payloadsField, protowire.BytesType)
		small = protowire.AppendVarint(small, uint64(size))
		small = append(small, beside...)
		if len(data) > 0 {
			small = protowire.AppendTag(small, dataField, protowire.BytesType)
			small = protowire.AppendVarint(small, uint64(len(data)))
		}
		if len(data) <= smallData {
			small = append(small, data...)
			continue
		}
		pieces = append(pieces, small[begin:len(small):len(small)], data)
		begin = len(small)
	}
	return append(pieces, small[begin:]), nil
}

// decodeFetched decodes an answer of at most limit payloads from r. The data of each payload is read directly into its own
// memory, so that keeping one payload does not keep the others.
func decodeFetched(r io.Reader, size int64, limit int) (*scribev1.FetchResponse, error) {
	buffered := fieldReaders.Get().(*bufio.Reader)
	buffered.Reset(r)
	defer func() {
		buffered.Reset(nil)
		fieldReaders.Put(buffered)
	}()
	f := fieldReader{r: buffered, left: size}
	res := new(scribev1.FetchResponse)
	for f.left > 0 {
		num, typ, err := f.tag()
		if err != nil {
			return nil, err
		}
		if num != payloadsField || typ != protowire.BytesType {
			if _, err := f.value(nil, num, typ); err != nil {
				return nil, err
			}
			continue
		}
		n, err := f.length()
		if err != nil {
			return nil, err
		}
		if len(res.GetPayloads()) == limit {
			return nil, fmt.Errorf("more than the %d payloads that were asked for", limit)
		}
		p, err := f.payload(n)
		if err != nil {
			return nil, fmt.Errorf("payload %d: %w", len(res.GetPayloads()), err)
		}
		res.Payloads = append(res.Payloads, p)
	}
	return res, nil
}

// fieldReaders buffer the fields beside the payloads' data, which bypasses them.
var fieldReaders = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// fieldReader reads fields of an encoded message from a stream.
type fieldReader struct {
	r    *bufio.Reader
	left int64 // bytes to the end of the current message
}

// payload reads a message of n bytes.
func (f *fieldReader) payload(n int64) (*scribev1.Payload, error) {
	outer := f.left - n
	f.left = n
	p := new(scribev1.Payload)
	var data, rest []byte
	for f.left > 0 {
		num, typ, err := f.tag()
		if err != nil {
			return nil, err
		}
		if num == dataField && typ == protowire.BytesType {
			size, err := f.length()
			if err != nil {
				return nil, err
			}
			data = make([]byte, size) // within left, and so within the announced length of the answer
			if err := f.read(data); err != nil {
				return nil, err
			}
			continue
		}
		if rest, err = f.value(protowire.AppendTag(rest, num, typ), num, typ); err != nil {
			return nil, err
		}
		if len(rest) > maxBesideBytes {
			return nil, errBeside
		}
	}
	f.left = outer
	if err := unmarshal.Unmarshal(rest, p); err != nil {
		return nil, err
	}
	p.Data = data
	return p, nil
}

var errFieldEnd = errors.New("a field reaches over the end of its message")

func (f *fieldReader) ReadByte() (byte, error) {
	if f.left == 0 {
		return 0, errFieldEnd
	}
	b, err := f.r.ReadByte()
	if err != nil {
		return 0, noEOF(err)
	}
	f.left--
	return b, nil
}

func (f *fieldReader) read(b []byte) error {
	if int64(len(b)) > f.left {
		return errFieldEnd
	}
	n, err := io.ReadFull(f.r, b)
	f.left -= int64(n)
	return noEOF(err)
}

func (f *fieldReader) tag() (protowire.Number, protowire.Type, error) {
	v, err := binary.ReadUvarint(f)
	if err != nil {
		return 0, 0, noEOF(err)
	}
	num, typ := protowire.DecodeTag(v)
	if num < protowire.MinValidNumber || num > protowire.MaxValidNumber {
		return 0, 0, fmt.Errorf("field number %d", v>>3)
	}
	return num, typ, nil
}

// length reads the length of a field, and checks it against the rest of its message.
func (f *fieldReader) length() (int64, error) {
	v, err := binary.ReadUvarint(f)
	if err != nil {
		return 0, noEOF(err)
	}
	if v > uint64(f.left) {
		return 0, errFieldEnd
	}
	return int64(v), nil
}

// value appends the encoded value of a small field to dst.
func (f *fieldReader) value(dst []byte, num protowire.Number, typ protowire.Type) ([]byte, error) {
	size := int64(0)
	switch typ {
	case protowire.VarintType:
		v, err := binary.ReadUvarint(f)
		return protowire.AppendVarint(dst, v), noEOF(err)
	case protowire.Fixed32Type:
		size = 4
	case protowire.Fixed64Type:
		size = 8
	case protowire.BytesType:
		n, err := f.length()
		if err != nil {
			return nil, err
		}
		size = n
		dst = protowire.AppendVarint(dst, uint64(n))
	default:
		return nil, fmt.Errorf("field %d has wire type %d", num, typ)
	}
	if size > maxBesideBytes {
		return nil, errBeside
	}
	begin := len(dst)
	dst = append(dst, make([]byte, size)...)
	return dst, f.read(dst[begin:])
}

// noEOF converts the end of the input in the middle of a message into an error other than io.EOF, which means success.
func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
