package otlp

import (
	"encoding/json"
	"math"
	"strconv"

	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
)

// maxDepth bounds the nesting of a value that is converted to JSON; deeper values become null.
const maxDepth = 32

// jsonValues converts values to types that encoding/json writes.
type jsonValues struct {
	// cut says that something was left out: it was nested too deeply, or had a duplicate key.
	cut bool
}

// plainValue converts a value. Bytes become base64 in JSON, as OTLP/JSON requires.
func (p *jsonValues) plainValue(v *commonv1.AnyValue, depth int) any {
	if depth == 0 {
		p.cut = p.cut || v.GetValue() != nil
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
		return plainNumber(x.DoubleValue)
	case *commonv1.AnyValue_BytesValue:
		return x.BytesValue
	case *commonv1.AnyValue_ArrayValue:
		out := make([]any, 0, len(x.ArrayValue.GetValues()))
		for _, e := range x.ArrayValue.GetValues() {
			out = append(out, p.plainValue(e, depth-1))
		}
		return out
	case *commonv1.AnyValue_KvlistValue:
		return p.plainObject(x.KvlistValue.GetValues(), depth)
	}
	return nil
}

// plainNumber converts a floating-point number. NaN and the infinities, which JSON lacks, become texts.
func plainNumber(f float64) any {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return strconv.FormatFloat(f, 'g', -1, 64)
	}
	return f
}

func (p *jsonValues) plainObject(list []*commonv1.KeyValue, depth int) map[string]any {
	out := make(map[string]any, len(list))
	for _, kv := range list {
		if _, twice := out[kv.GetKey()]; twice {
			p.cut = true
			continue
		}
		out[kv.GetKey()] = p.plainValue(kv.GetValue(), depth-1)
	}
	return out
}

// plainRecord converts a record with its source, in the names of OTLP/JSON.
func (p *jsonValues) plainRecord(s *recordSource, r *logsv1.LogRecord) map[string]any {
	out := map[string]any{"body": p.plainValue(r.GetBody(), maxDepth), "severity": severityOf(r)}
	add := func(name string, v any, present bool) {
		if present {
			out[name] = v
		}
	}
	add("timeUnixNano", strconv.FormatUint(r.GetTimeUnixNano(), 10), r.GetTimeUnixNano() != 0)
	add("observedTimeUnixNano", strconv.FormatUint(r.GetObservedTimeUnixNano(), 10), r.GetObservedTimeUnixNano() != 0)
	add("severityNumber", int32(r.GetSeverityNumber()), r.GetSeverityNumber() != 0)
	trace, span := hexID(r.GetTraceId(), traceLen), hexID(r.GetSpanId(), spanLen)
	add("traceId", trace, trace != "")
	add("spanId", span, span != "")
	add("flags", r.GetFlags(), r.GetFlags() != 0)
	add("eventName", r.GetEventName(), r.GetEventName() != "")
	if attrs := r.GetAttributes(); len(attrs) > 0 {
		out["attributes"] = p.plainObject(attrs, maxDepth)
	}
	add("resource", json.RawMessage(s.resourceJSON), s.resourceJSON != nil)
	add("scope", json.RawMessage(s.scopeJSON), s.scopeJSON != nil)
	return out
}
