package otlp

import (
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"time"

	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"scribe/scribed/inputs"
)

// maxDepth bounds how deep a value may be nested that becomes JSON; what is deeper becomes null.
const maxDepth = 32

// plain is a value as encoding/json writes it. Bytes become base64 there, as OTLP/JSON wants it.
func plain(v *commonv1.AnyValue, depth int) any {
	if depth == 0 {
		return nil
	}
	switch x := v.GetValue().(type) {
	case *commonv1.AnyValue_StringValue:
		return x.StringValue
	case *commonv1.AnyValue_BoolValue:
		return x.BoolValue
	case *commonv1.AnyValue_IntValue:
		return x.IntValue
	case *commonv1.AnyValue_DoubleValue:
		return number(x.DoubleValue)
	case *commonv1.AnyValue_BytesValue:
		return x.BytesValue
	case *commonv1.AnyValue_ArrayValue:
		out := make([]any, 0, len(x.ArrayValue.GetValues()))
		for _, e := range x.ArrayValue.GetValues() {
			out = append(out, plain(e, depth-1))
		}
		return out
	case *commonv1.AnyValue_KvlistValue:
		return object(x.KvlistValue.GetValues(), depth)
	}
	return nil
}

// number is a floating-point number; JSON has none for NaN and the infinities, which become texts.
func number(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return f
}

func object(list []*commonv1.KeyValue, depth int) map[string]any {
	out := make(map[string]any, len(list))
	for _, kv := range list {
		out[kv.GetKey()] = plain(kv.GetValue(), depth-1)
	}
	return out
}

// text is a value as a person writes it: a string as it is, anything else as JSON.
func text(v *commonv1.AnyValue) []byte {
	switch x := v.GetValue().(type) {
	case nil:
		return nil
	case *commonv1.AnyValue_StringValue:
		return []byte(x.StringValue)
	case *commonv1.AnyValue_BytesValue:
		return x.BytesValue
	}
	b, err := json.Marshal(plain(v, maxDepth))
	if err != nil {
		return []byte(err.Error()) // nothing of the above can fail
	}
	return b
}

// source is where records come from: what those of one scope share.
type source struct {
	resource, scope []*commonv1.KeyValue
	scopeName       string
	service         map[string]string // fields of the category
}

func newSource(resource []*commonv1.KeyValue) source {
	s := source{resource: resource, service: map[string]string{}}
	for _, kv := range resource {
		if k := kv.GetKey(); k == fieldService || k == fieldNamespace {
			s.service[k] = string(text(kv.GetValue()))
		}
	}
	return s
}

// message turns a record into a message. cut says that attributes were left out or cut.
func (i *Input) message(s *source, r *logsv1.LogRecord) (m inputs.Message, cut bool, err error) {
	switch i.cfg.Format {
	case formatJSON:
		m.Payload, err = json.Marshal(whole(s, r))
	case formatProtobuf:
		m.Payload, err = proto.Marshal(r)
	default:
		m.Payload = text(r.GetBody())
	}
	if nanos := r.GetTimeUnixNano(); nanos != 0 {
		m.Time = time.Unix(0, int64(nanos)) //nolint:gosec // until 2262
	} else if nanos := r.GetObservedTimeUnixNano(); nanos != 0 {
		m.Time = time.Unix(0, int64(nanos)) //nolint:gosec // until 2262
	}
	a := attributes{limit: i.cfg.MaxAttributes, value: int(i.cfg.MaxValue)}
	a.add("severity", []byte(severity(r)))
	a.add("trace_id", hexOf(r.GetTraceId()))
	a.add("span_id", hexOf(r.GetSpanId()))
	a.all("", r.GetAttributes())
	a.add("scope.name", []byte(s.scopeName))
	a.all("scope.", s.scope)
	a.all("resource.", s.resource)
	m.Attributes = a.list
	return m, a.cut, err
}

// severity is the text that the record brings, else the name of its number's range.
func severity(r *logsv1.LogRecord) string {
	if s := r.GetSeverityText(); s != "" {
		return s
	}
	n := int(r.GetSeverityNumber())
	if names := [...]string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}; n >= 1 && n <= 24 {
		return names[(n-1)/4]
	}
	return ""
}

func hexOf(id []byte) []byte { return []byte(hex.EncodeToString(id)) }

// attributes gathers attributes within bounds.
type attributes struct {
	list         []inputs.Attribute
	limit, value int
	cut          bool
}

// maxName bounds an attribute's name in bytes.
const maxName = 255

func (a *attributes) add(name string, value []byte) {
	switch {
	case len(value) == 0 || name == "":
		return
	case len(a.list) >= a.limit || len(name) > maxName:
		a.cut = true
		return
	case len(value) > a.value:
		a.cut = true
		value = value[:a.value]
	}
	a.list = append(a.list, inputs.Attribute{Name: strings.ToValidUTF8(name, "_"), Value: value})
}

func (a *attributes) all(prefix string, list []*commonv1.KeyValue) {
	for _, kv := range list {
		a.add(prefix+kv.GetKey(), text(kv.GetValue()))
	}
}

// whole is a record with where it comes from, in the names of OTLP/JSON.
func whole(s *source, r *logsv1.LogRecord) map[string]any {
	out := map[string]any{"body": plain(r.GetBody(), maxDepth), "severity": severity(r)}
	add := func(name string, v any, present bool) {
		if present {
			out[name] = v
		}
	}
	add("timeUnixNano", strconv.FormatUint(r.GetTimeUnixNano(), 10), r.GetTimeUnixNano() != 0)
	add("observedTimeUnixNano", strconv.FormatUint(r.GetObservedTimeUnixNano(), 10), r.GetObservedTimeUnixNano() != 0)
	add("severityNumber", int32(r.GetSeverityNumber()), r.GetSeverityNumber() != 0)
	add("traceId", hex.EncodeToString(r.GetTraceId()), len(r.GetTraceId()) > 0)
	add("spanId", hex.EncodeToString(r.GetSpanId()), len(r.GetSpanId()) > 0)
	add("flags", r.GetFlags(), r.GetFlags() != 0)
	add("eventName", r.GetEventName(), r.GetEventName() != "")
	add("attributes", object(r.GetAttributes(), maxDepth), len(r.GetAttributes()) > 0)
	add("resource", object(s.resource, maxDepth), len(s.resource) > 0)
	add("scope", map[string]any{"name": s.scopeName, "attributes": object(s.scope, maxDepth)}, s.scopeName != "" || len(s.scope) > 0)
	return out
}
