package otlp

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"

	"connectrpc.com/connect"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxValues bounds the records, attributes and values of a request together. An empty value takes two bytes in a request and some
// hundred in memory, so the size of a request does not bound its decoded size.
const maxValues = 1 << 20

// maxNesting bounds the nesting of the messages of a request: a value in a list in a value takes three levels.
const maxNesting = 1000

// errTooMany is the answer to a request with more than maxValues.
var errTooMany = fmt.Errorf("the request has more than %d records, attributes and values: send less at once", maxValues)

// decodeProtobuf decodes a message after checking its number of values.
func decodeProtobuf(b []byte, m proto.Message) error {
	if n := countValues(b, m.ProtoReflect().Descriptor(), maxNesting); n > maxValues {
		return errTooMany
	}
	return proto.UnmarshalOptions{RecursionLimit: maxNesting}.Unmarshal(b, m)
}

// countValues counts the messages in an encoded message. It stops at invalid encoding, which decoding then reports.
func countValues(b []byte, md protoreflect.MessageDescriptor, depth int) (n int) {
	for len(b) > 0 && depth > 0 {
		num, kind, head := protowire.ConsumeTag(b)
		if head < 0 {
			return n
		}
		size := protowire.ConsumeFieldValue(num, kind, b[head:])
		if size < 0 {
			return n
		}
		if kind == protowire.BytesType {
			if fd := md.Fields().ByNumber(num); fd != nil && fd.Message() != nil {
				inner, _ := protowire.ConsumeBytes(b[head:])
				n += 1 + countValues(inner, fd.Message(), depth-1)
			}
		}
		b = b[head+size:]
	}
	return n
}

// decodeJSON decodes OTLP/JSON, which is protobuf's JSON except for trace and span ids: they are hexadecimal in OTLP, base64 in
// protobuf.
func decodeJSON(b []byte, req *collectorv1.ExportLogsServiceRequest) error {
	if bytes.Count(b, []byte{'{'}) > maxValues {
		return errTooMany
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true, RecursionLimit: maxNesting}).Unmarshal(b, req); err != nil {
		return err
	}
	for _, rl := range req.GetResourceLogs() {
		for _, sl := range rl.GetScopeLogs() {
			for _, r := range sl.GetLogRecords() {
				var errs [2]error
				r.TraceId, errs[0] = restoreID("traceId", r.GetTraceId(), traceLen)
				r.SpanId, errs[1] = restoreID("spanId", r.GetSpanId(), spanLen)
				if err := errors.Join(errs[:]...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// Lengths of ids in bytes.
const (
	traceLen = 16
	spanLen  = 8
)

// restoreID restores an id whose hexadecimal digits were decoded as base64. All of them are base64 digits too, and their number
// is a multiple of four, so encoding the bytes again yields the original text.
func restoreID(field string, id []byte, size int) ([]byte, error) {
	if len(id) == 0 {
		return nil, nil
	}
	text := base64.StdEncoding.EncodeToString(id)
	got, err := hex.DecodeString(text)
	if err != nil || len(got) != size {
		return nil, fmt.Errorf("a %s is not of %d hexadecimal digits", field, 2*size)
	}
	return got, nil
}

// boundedCodec is gRPC's codec with the bounds of this package.
type boundedCodec struct{}

var _ connect.Codec = boundedCodec{}

// Name implements connect.Codec.
func (boundedCodec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (boundedCodec) Marshal(m any) ([]byte, error) {
	p, ok := m.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a protobuf message", m)
	}
	return proto.Marshal(p)
}

// Unmarshal implements connect.Codec.
func (boundedCodec) Unmarshal(b []byte, m any) error {
	p, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a protobuf message", m)
	}
	return decodeProtobuf(b, p)
}
