package otlp

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	collectorv1 "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	resourcev1 "go.opentelemetry.io/proto/slim/otlp/resource/v1"
	"go.uber.org/goleak"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/config"
	"scribe/internal/transport/rpc"
	"scribe/producer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/inputs"
	"scribe/scribed/inputs/inputstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent is one that keeps what it is given.
type agent struct {
	mu     sync.Mutex
	got    []message
	err    error
	after  int // messages that are taken before err
	calls  int
	enter  func()
	memory int // the largest delivery, in bytes of payloads and attributes
}

// message is an producer.Message that may be kept.
type message struct {
	category, payload string
	time              time.Time
	attributes        []string
}

func (a *agent) Deliver(_ context.Context, category string, messages []producer.Message) error {
	if a.enter != nil {
		a.enter()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls++
	if a.err != nil && len(a.got)+len(messages) > a.after {
		return a.err
	}
	size := 0
	for i := range messages {
		m := &messages[i]
		size += sizeOf(m)
		kept := message{category: category, payload: string(m.Payload), time: m.Time}
		for _, x := range m.Attributes {
			kept.attributes = append(kept.attributes, x.Name+"="+string(x.Value))
		}
		a.got = append(a.got, kept)
	}
	a.memory = max(a.memory, size)
	return nil
}

func (a *agent) payloads() (out []string) {
	for _, m := range a.got {
		out = append(out, m.category+":"+m.payload)
	}
	return out
}

// input is one that gives to a, without a listener.
func input(t testing.TB, a *agent, adjust func(*Config)) *Input {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Listen.Address = "127.0.0.1:0"
	if adjust != nil {
		adjust(&cfg)
	}
	i, err := New(cfg, inputs.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	if i.metrics, err = inputs.NewNetworkMetrics("otlp", cfg.Name, nil); err != nil {
		t.Fatal(err)
	}
	i.agent = inputstest.NewProducer(t, a.Deliver)
	return i
}

// counted are the values of a counter, in the order of its labels.
func counted(c prometheus.Collector) (values []float64) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, _ := reg.Gather() // one that can't be gathered has no values
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values = append(values, m.GetCounter().GetValue())
		}
	}
	return values
}

// is reports whether a counter has only this value.
func is(c prometheus.Collector, want float64) bool { return slices.Equal(counted(c), []float64{want}) }

func post(t *testing.T, i *Input, kind, encoding string, body io.Reader) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/logs", body)
	r.Header.Set("Content-Type", kind)
	if encoding != "" {
		r.Header.Set("Content-Encoding", encoding)
	}
	w := httptest.NewRecorder()
	i.handler().ServeHTTP(w, r)
	return w
}

func str(s string) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
}

func integer(n int64) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_IntValue{IntValue: n}}
}

func array(v ...*commonv1.AnyValue) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_ArrayValue{ArrayValue: &commonv1.ArrayValue{Values: v}}}
}

func object(kv ...*commonv1.KeyValue) *commonv1.AnyValue {
	return &commonv1.AnyValue{Value: &commonv1.AnyValue_KvlistValue{KvlistValue: &commonv1.KeyValueList{Values: kv}}}
}

func kv(k string, v *commonv1.AnyValue) *commonv1.KeyValue {
	return &commonv1.KeyValue{Key: k, Value: v}
}

// request has records of one service.
func request(service string, records ...*logsv1.LogRecord) *collectorv1.ExportLogsServiceRequest {
	return &collectorv1.ExportLogsServiceRequest{ResourceLogs: []*logsv1.ResourceLogs{{
		Resource:  &resourcev1.Resource{Attributes: []*commonv1.KeyValue{kv("service.name", str(service))}},
		ScopeLogs: []*logsv1.ScopeLogs{{Scope: &commonv1.InstrumentationScope{Name: "lib"}, LogRecords: records}},
	}}}
}

func texts(bodies ...string) (out []*logsv1.LogRecord) {
	for _, b := range bodies {
		out = append(out, &logsv1.LogRecord{Body: str(b)})
	}
	return out
}

func encoded(t testing.TB, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

// The example of the specification's repository, examples/logs.json, with a field that no version has.
const example = `{"resourceLogs": [{
  "resource": {"attributes": [{"key": "service.name", "value": {"stringValue": "my.service"}}]},
  "scopeLogs": [{
    "scope": {"name": "my.library", "version": "1.0.0", "attributes": [{"key": "my.scope.attribute", "value": {"stringValue": "some scope attribute"}}]},
    "logRecords": [{
      "timeUnixNano": "1544712660300000000", "observedTimeUnixNano": 1544712660300000000, "severityNumber": 10, "severityText": "Information",
      "traceId": "5B8EFFF798038103D269B633813FC60C", "spanId": "EEE19B7EC3C1B174", "inTheFuture": [{"traceId": "what"}],
      "body": {"stringValue": "Example log record"},
      "attributes": [
        {"key": "string.attribute", "value": {"stringValue": "some string"}}, {"key": "boolean.attribute", "value": {"boolValue": true}},
        {"key": "int.attribute", "value": {"intValue": "10"}}, {"key": "double.attribute", "value": {"doubleValue": 637.704}},
        {"key": "array.attribute", "value": {"arrayValue": {"values": [{"stringValue": "many"}, {"stringValue": "values"}]}}},
        {"key": "map.attribute", "value": {"kvlistValue": {"values": [{"key": "some.map.key", "value": {"stringValue": "some value"}}]}}}
      ]
    }]
  }]
}]}`

func TestJSON(t *testing.T) {
	for _, encoding := range []string{"", "identity", "gzip"} {
		body := []byte(example)
		if encoding == "gzip" {
			body = gzipped(body)
		}
		a := &agent{}
		w := post(t, input(t, a, nil), "application/json; charset=utf-8", encoding, bytes.NewReader(body))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != typeJSON || strings.TrimSpace(w.Body.String()) != "{}" {
			t.Fatalf("%q: %d %s", encoding, w.Code, w.Body)
		}
		want := message{category: "otel.my.service", payload: "Example log record", time: time.Unix(1544712660, 300e6), attributes: []string{
			"severity=Information", "trace_id=5b8efff798038103d269b633813fc60c", "span_id=eee19b7ec3c1b174", "string.attribute=some string",
			"boolean.attribute=true", "int.attribute=10", "double.attribute=637.704", `array.attribute=["many","values"]`,
			`map.attribute={"some.map.key":"some value"}`, "scope.name=my.library", "scope.my.scope.attribute=some scope attribute",
			"resource.service.name=my.service",
		}}
		if len(a.got) != 1 || fmt.Sprint(a.got[0]) != fmt.Sprint(want) {
			t.Fatalf("%q:\n got %v\nwant %v", encoding, a.got, want)
		}
	}
}

// Protobuf's JSON has base64 where OTLP/JSON has hexadecimal. What is neither is not guessed at.
func TestJSONIDs(t *testing.T) {
	for text, ok := range map[string]bool{
		`"5b8efff798038103d269b633813fc60c"`: true, `""`: true, `null`: true,
		`"W47/95gDgQPSabYzgT/GDA=="`: false, `"5b8efff798038103d269b633813fc60"`: false, `"5b8e"`: false, `"5b8efff798038103d269b633813fc60g"`: false,
		`"5b8efff798038103d269b633813fc6"`: false, `17`: false,
	} {
		body := `{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"x"},"traceId":` + text + `}]}]}]}`
		w := post(t, input(t, &agent{}, nil), typeJSON, "", strings.NewReader(body))
		if want := map[bool]int{true: 200, false: 400}[ok]; w.Code != want || !ok && !strings.Contains(w.Body.String(), "traceId") {
			t.Errorf("%s: %d %s", text, w.Code, w.Body)
		}
	}
}

func TestProtobuf(t *testing.T) {
	for _, encoding := range []string{"", "gzip"} {
		body := encoded(t, request("shop", texts("one", "two")...))
		if encoding == "gzip" {
			body = gzipped(body)
		}
		a := &agent{}
		i := input(t, a, nil)
		w := post(t, i, typeProtobuf, encoding, bytes.NewReader(body))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != typeProtobuf || w.Body.Len() != 0 {
			t.Fatalf("%q: %d %q", encoding, w.Code, w.Body)
		}
		if want := []string{"otel.shop:one", "otel.shop:two"}; !slices.Equal(a.payloads(), want) {
			t.Fatalf("%q: %q", encoding, a.payloads())
		}
		if !is(i.metrics.Messages, 2) || !is(i.metrics.Bytes, 6) {
			t.Fatalf("%v messages with %v bytes are counted", counted(i.metrics.Messages), counted(i.metrics.Bytes))
		}
	}
}

func TestRefusals(t *testing.T) {
	record := encoded(t, request("s", texts("hello")...))
	bomb := gzipped(make([]byte, 1<<20))
	empty := bytes.Repeat([]byte{0x12, 0x00}, maxValues+1) // LogRecords without anything
	for name, c := range map[string]struct {
		kind, encoding string
		body           []byte
		length         int64 // announced; 0 = as it is, -1 = not
		adjust         func(*Config)
		err            error
		busy           bool
		status         int
		reason, says   string
	}{
		"content type":        {kind: "text/plain", body: record, status: 415, reason: "unsupported", says: "Content-Type"},
		"no content type":     {body: record, status: 415, reason: "unsupported", says: "Content-Type"},
		"encoding":            {kind: typeProtobuf, encoding: "br", body: record, status: 415, reason: "unsupported", says: `\"br\"`},
		"malformed protobuf":  {kind: typeProtobuf, body: []byte("\x0a\xff"), status: 400, reason: "invalid", says: "ExportLogsServiceRequest"},
		"malformed JSON":      {kind: typeJSON, body: []byte(`{"resourceLogs":[`), status: 400, reason: "invalid", says: "ExportLogsServiceRequest"},
		"empty JSON":          {kind: typeJSON, status: 400, reason: "invalid", says: "ExportLogsServiceRequest"},
		"wrong JSON":          {kind: typeJSON, body: []byte(`{"resourceLogs":7}`), status: 400, reason: "invalid", says: "unexpected token 7"},
		"not gzip":            {kind: typeJSON, encoding: "gzip", body: []byte("plain"), status: 400, reason: "invalid", says: "gzip"},
		"broken gzip":         {kind: typeJSON, encoding: "gzip", body: gzipped(record)[:20], status: 400, reason: "invalid", says: "read"},
		"announced too large": {kind: typeJSON, body: record, length: 1 << 30, status: 413, reason: "too_large", says: "16MiB"},
		"too large": {
			kind: typeProtobuf, body: make([]byte, 2<<10), length: -1, adjust: func(c *Config) { c.MaxRequest = 1 << 10 },
			status: 413, reason: "too_large", says: "1KiB",
		},
		"bomb": {
			kind: typeJSON, encoding: "gzip", body: bomb, adjust: func(c *Config) { c.MaxRequest = 512 << 10 },
			status: 413, reason: "too_large", says: "512KiB",
		},
		"bomb of records": {
			kind: typeProtobuf, body: slices.Concat(prefixed(0x0a, slices.Concat(prefixed(0x12, empty)))), status: 413, reason: "too_large", says: "values",
		},
		"bomb of JSON": {
			kind:   typeJSON,
			body:   []byte(`{"resourceLogs":[` + strings.Repeat("{},", maxValues) + `{}]}`),
			status: 413, reason: "too_large", says: "values",
		},
		"nested for ever": {
			kind: typeJSON, body: []byte(`{"resourceLogs":` + strings.Repeat(`[{"x":`, 100_000)), status: 400, reason: "invalid", says: "ExportLogsServiceRequest",
		},
		"no room": {kind: typeJSON, body: []byte(example), err: errors.New("full"), status: 503, reason: "full", says: "full"},
		"busy":    {kind: typeProtobuf, body: record, busy: true, status: 429, reason: "busy", says: "try again later"},
	} {
		t.Run(name, func(t *testing.T) {
			i := input(t, &agent{err: c.err}, c.adjust)
			if c.busy {
				for i.running.TryAcquire(1) {
				}
			}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/v1/logs", bytes.NewReader(c.body))
			r.Header.Set("Content-Type", c.kind)
			r.Header.Set("Content-Encoding", c.encoding)
			if c.length != 0 {
				r.ContentLength = c.length
			}
			w := httptest.NewRecorder()
			i.handler().ServeHTTP(w, r)
			// The answer is a google.rpc.Status in the request's encoding.
			var s rpcstatus.Status
			var err error
			said := w.Body.String()
			if c.kind == typeProtobuf {
				err = proto.Unmarshal(w.Body.Bytes(), &s)
				said = fmt.Sprintf("%q", s.GetMessage())
			} else {
				err = protojson.Unmarshal(w.Body.Bytes(), &s)
			}
			if err != nil || w.Code != c.status || !strings.Contains(said, c.says) {
				t.Fatalf("%d %s (%v), want %d and %q", w.Code, said, err, c.status, c.says)
			}
			if got := w.Header().Get("Retry-After") != ""; got != (c.status == 429 || c.status == 503) {
				t.Fatalf("Retry-After: %v", got)
			}
			if !is(i.metrics.Refused.WithLabelValues(c.reason), 1) || !is(i.metrics.Refused, 1) {
				t.Fatalf("not counted as %s: %v", c.reason, counted(i.metrics.Refused))
			}
		})
	}
}

// prefixed is a field with bytes.
func prefixed(tag byte, b []byte) []byte {
	out := []byte{tag}
	n := len(b)
	for ; n >= 0x80; n >>= 7 {
		out = append(out, byte(n)|0x80)
	}
	return append(append(out, byte(n)), b...)
}

func TestMethodsAndPaths(t *testing.T) {
	i := input(t, &agent{}, nil)
	for target, want := range map[string]int{
		"GET /v1/logs": 405, "PUT /v1/logs": 405, "GET " + grpcMethod: 405, "POST /v1/traces": 404, "POST /v1/metrics": 404,
		"POST /opentelemetry.proto.collector.trace.v1.TraceService/Export": 404, "POST " + grpcMethod: 415,
	} {
		method, path, _ := strings.Cut(target, " ")
		w := httptest.NewRecorder()
		i.handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", target, w.Code, want)
		}
	}
}

// Records that will never be taken are counted and named; the others are delivered, and the request is not sent again.
func TestPartialSuccess(t *testing.T) {
	a := &agent{}
	i := input(t, a, func(c *Config) { c.MaxRecord = 5 })
	w := post(t, i, typeProtobuf, "", bytes.NewReader(encoded(t, request("s", texts("fits", "too long", "also")...))))
	var resp collectorv1.ExportLogsServiceResponse
	if err := proto.Unmarshal(w.Body.Bytes(), &resp); err != nil || w.Code != http.StatusOK {
		t.Fatal(w.Code, err)
	}
	if p := resp.GetPartialSuccess(); p.GetRejectedLogRecords() != 1 || !strings.Contains(p.GetErrorMessage(), "more than 5") || !slices.Equal(a.payloads(), []string{"otel.s:fits", "otel.s:also"}) {
		t.Fatalf("%v, %q", p, a.payloads())
	}
	if !is(i.metrics.Dropped.WithLabelValues(inputs.DropTooLarge), 1) {
		t.Fatalf("%v are counted", counted(i.metrics.Dropped))
	}

	for text, want := range map[string]float64{strings.Repeat("too large", 1000): 1, "refused": 3} {
		a := &agent{}
		if text == "refused" {
			a.err = rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "never")
		}
		i = input(t, a, nil)
		i.agent = inputstest.NewProducer(t, a.Deliver, producer.WithMaxMessageBytes(5000))
		w = post(t, i, typeJSON, "", bytes.NewReader(mustJSON(t, request("s", texts("a", text, "c")...))))
		if w.Code != http.StatusOK || !strings.Contains(strings.ReplaceAll(w.Body.String(), " ", ""), fmt.Sprintf(`"rejectedLogRecords":"%v"`, want)) {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		if !is(i.metrics.Dropped.WithLabelValues(inputs.DropRefused), want) || !is(i.metrics.Messages, 3-want) {
			t.Fatalf("%v are dropped, %v taken", counted(i.metrics.Dropped), counted(i.metrics.Messages))
		}
	}
}

// A request that will come again counts nothing as lost: it would be counted again.
func TestDropsAreCountedOnce(t *testing.T) {
	a := &agent{err: errors.New("full")}
	i := input(t, a, func(c *Config) { c.MaxRecord = 5 })
	body := encoded(t, request("s", texts("fits", "too long")...))
	if w := post(t, i, typeProtobuf, "", bytes.NewReader(body)); w.Code != http.StatusServiceUnavailable {
		t.Fatal(w.Code)
	}
	a.err = nil
	if w := post(t, i, typeProtobuf, "", bytes.NewReader(body)); w.Code != http.StatusOK {
		t.Fatal(w.Code)
	}
	if !is(i.metrics.Dropped.WithLabelValues(inputs.DropTooLarge), 1) {
		t.Fatalf("%v are counted", counted(i.metrics.Dropped))
	}
}

func mustJSON(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFormats(t *testing.T) {
	r := &logsv1.LogRecord{
		ObservedTimeUnixNano: 7_000, SeverityNumber: logsv1.SeverityNumber_SEVERITY_NUMBER_ERROR2, TraceId: bytes.Repeat([]byte{0xab}, 16), SpanId: make([]byte, 8),
		EventName: "login", Flags: 1, Attributes: []*commonv1.KeyValue{kv("n", integer(1<<60))},
		Body: object(kv("a<b>&", array(integer(1), str("x"), &commonv1.AnyValue{Value: &commonv1.AnyValue_BytesValue{BytesValue: []byte{0xff}}}, &commonv1.AnyValue{}))),
	}
	for format, want := range map[string]string{
		formatBody: `{"a<b>&":[1,"x","/w==",null]}`,
		formatJSON: `{"attributes":{"n":1152921504606846976},"body":{"a<b>&":[1,"x","/w==",null]},"eventName":"login","flags":1,"observedTimeUnixNano":"7000",` +
			`"resource":{"service.name":"s"},"scope":{"attributes":{},"name":"lib"},"severity":"ERROR","severityNumber":18,"traceId":"abababababababababababababababab"}`,
		formatProtobuf: string(encoded(t, r)),
	} {
		a := &agent{}
		i := input(t, a, func(c *Config) { c.Format, c.Category = format, "{service.namespace}.{service.name}.{severity}" })
		if w := post(t, i, typeProtobuf, "", bytes.NewReader(encoded(t, request("s", r)))); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
		if len(a.got) != 1 || a.got[0].payload != want || a.got[0].category != "none.s.ERROR" || !a.got[0].time.Equal(time.Unix(0, 7000)) {
			t.Errorf("%s: %+v\nwant %s", format, a.got, want)
		}
		// The span's id is all zeros, which is none.
		if names := strings.Join(a.got[0].attributes, " "); names != "severity=ERROR trace_id=abababababababababababababababab event_name=login n=1152921504606846976 scope.name=lib resource.service.name=s" {
			t.Errorf("%s: %s", format, names)
		}
	}
}

// A time that no clock here has is not taken for one before 1970.
func TestImpossibleTime(t *testing.T) {
	if got := eventTime(&logsv1.LogRecord{TimeUnixNano: 1 << 63, ObservedTimeUnixNano: 5}); got.UnixNano() != 5 {
		t.Errorf("%v", got)
	}
	if got := eventTime(&logsv1.LogRecord{TimeUnixNano: 1 << 63}); !got.IsZero() {
		t.Errorf("%v", got)
	}
}

func TestBoundsAttributes(t *testing.T) {
	for name, c := range map[string]struct {
		adjust     func(*Config)
		attributes []*commonv1.KeyValue
		want       []string
		cut        float64
	}{
		"all":       {attributes: []*commonv1.KeyValue{kv("a", str("1")), kv("empty", str(""))}, want: []string{"a=1", "empty=", "scope.name=lib", "resource.service.name=s"}},
		"count":     {adjust: func(c *Config) { c.MaxAttributes = 1 }, attributes: []*commonv1.KeyValue{kv("a", str("1")), kv("b", str("2"))}, want: []string{"a=1"}, cut: 1},
		"none":      {adjust: func(c *Config) { c.MaxAttributes = 0 }, attributes: []*commonv1.KeyValue{kv("a", str("1"))}},
		"value":     {adjust: func(c *Config) { c.MaxValue = 4 }, attributes: []*commonv1.KeyValue{kv("a", str("abcäö"))}, want: []string{"a=abc", "scope.name=lib", "resource.service.name=s"}, cut: 1},
		"name":      {attributes: []*commonv1.KeyValue{kv(strings.Repeat("x", 256), str("1"))}, want: []string{"scope.name=lib", "resource.service.name=s"}, cut: 1},
		"twice":     {attributes: []*commonv1.KeyValue{kv("a", str("1")), kv("a", str("2"))}, want: []string{"a=1", "scope.name=lib", "resource.service.name=s"}, cut: 1},
		"our names": {attributes: []*commonv1.KeyValue{kv("scope.name", str("1"))}, want: []string{"scope.name=1", "resource.service.name=s"}, cut: 1},
	} {
		a := &agent{}
		i := input(t, a, c.adjust)
		body := encoded(t, request("s", &logsv1.LogRecord{Body: str("x"), Attributes: c.attributes}))
		if w := post(t, i, typeProtobuf, "", bytes.NewReader(body)); w.Code != http.StatusOK || len(a.got) != 1 {
			t.Fatalf("%s: %d %s", name, w.Code, w.Body)
		}
		if !slices.Equal(a.got[0].attributes, c.want) || !is(i.metrics.Truncated, c.cut) {
			t.Errorf("%s: %q, %v are counted as truncated", name, a.got[0].attributes, counted(i.metrics.Truncated))
		}
	}
}

func TestBoundsCategories(t *testing.T) {
	a := &agent{}
	i := input(t, a, func(c *Config) { c.MaxCategories = 2 })
	for n := range 4 {
		if w := post(t, i, typeProtobuf, "", bytes.NewReader(encoded(t, request(fmt.Sprint("s", n), texts("x")...)))); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
	}
	if want := []string{"otel.s0:x", "otel.s1:x", "otel.other:x", "otel.other:x"}; !slices.Equal(a.payloads(), want) || !is(i.metrics.Stray, 2) {
		t.Fatalf("%q, %v stray", a.payloads(), counted(i.metrics.Stray))
	}
}

// What is too deep becomes null, in a payload of bounded size, and is counted.
func TestBoundsDepth(t *testing.T) {
	deep := str("bottom")
	for range maxDepth {
		deep = array(deep)
	}
	for format, inside := range map[string]string{formatBody: "", formatJSON: `"body":`} {
		a := &agent{}
		i := input(t, a, func(c *Config) { c.Format = format })
		if w := post(t, i, typeProtobuf, "", bytes.NewReader(encoded(t, request("s", &logsv1.LogRecord{Body: deep}, &logsv1.LogRecord{Body: array(str("flat"))})))); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
		want := inside + strings.Repeat("[", maxDepth) + "null" + strings.Repeat("]", maxDepth)
		if len(a.got) != 2 || !strings.Contains(a.got[0].payload, want) || !is(i.metrics.Truncated, 1) {
			t.Errorf("%s: %v, %v truncated", format, a.got, counted(i.metrics.Truncated))
		}
	}
}

// A resource stands once in a request, and in every message: what a small request becomes is never held at once.
func TestBoundsMemory(t *testing.T) {
	const records = 2000
	for _, format := range []string{formatBody, formatJSON} {
		req := request("s", texts(slices.Repeat([]string{"x"}, records)...)...)
		req.ResourceLogs[0].Resource.Attributes = append(req.ResourceLogs[0].Resource.Attributes, kv("large", str(strings.Repeat("y", 8<<10))))
		a := &agent{}
		if w := post(t, input(t, a, func(c *Config) { c.Format = format }), typeProtobuf, "", bytes.NewReader(encoded(t, req))); w.Code != http.StatusOK {
			t.Fatal(w.Code)
		}
		if len(a.got) != records || a.memory > pieceBytes+64<<10 || a.calls < 8 {
			t.Fatalf("%s: %d messages, at most %d bytes in one of %d deliveries", format, len(a.got), a.memory, a.calls)
		}
	}
	// One that is over max_record by itself is not even written out.
	req := request("s", texts("x", "y")...)
	req.ResourceLogs[0].Resource.Attributes = append(req.ResourceLogs[0].Resource.Attributes, kv("large", str(strings.Repeat("y", 8<<10))))
	i := input(t, &agent{}, func(c *Config) { c.Format, c.MaxRecord = formatJSON, 4<<10 })
	w := post(t, i, typeJSON, "", bytes.NewReader(mustJSON(t, req)))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), `"2"`) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
}

func FuzzJSON(f *testing.F) {
	f.Add([]byte(example))
	f.Add([]byte(`{"resource_logs":[{"scope_logs":[{"log_records":[{"trace_id":"5b8efff798038103d269b633813fc60c","span_id":"zz"}]}]}]}`))
	f.Add([]byte(`{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"arrayValue":{"values":[{"doubleValue":"NaN"},{"bytesValue":"AA=="}]}}}]}]}]}`))
	i := input(f, &agent{}, func(c *Config) { c.MaxRecord, c.MaxAttributes = 64<<10, 8 })
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &collectorv1.ExportLogsServiceRequest{}
		if decodeJSON(b, req) != nil {
			return
		}
		// What was read can be converted in every format, and its ids are what protobuf has.
		for _, format := range []string{formatBody, formatJSON, formatProtobuf} {
			i.cfg.Format = format
			a := &agent{}
			i.agent = inputstest.NewProducer(t, a.Deliver)
			if _, err := i.writeRecords(t.Context(), req); err != nil {
				t.Fatal(err)
			}
			for _, m := range a.got {
				if len(m.payload) > 64<<10 || len(m.attributes) > 8 {
					t.Fatalf("%d bytes, %d attributes", len(m.payload), len(m.attributes))
				}
			}
		}
		for _, rl := range req.GetResourceLogs() {
			for _, sl := range rl.GetScopeLogs() {
				for _, r := range sl.GetLogRecords() {
					if n, m := len(r.GetTraceId()), len(r.GetSpanId()); n != 0 && n != traceLen || m != 0 && m != spanLen {
						t.Fatalf("ids of %d and %d bytes", n, m)
					}
				}
			}
		}
	})
}

// Counting what a request would take comes before its decoding: it has to survive the same bytes.
func FuzzProtobuf(f *testing.F) {
	f.Add(encoded(f, request("s", texts("hello")...)))
	f.Fuzz(func(t *testing.T, b []byte) {
		req := &collectorv1.ExportLogsServiceRequest{}
		if decodeProtobuf(b, req) != nil {
			return
		}
		if n, least := countValues(b, req.ProtoReflect().Descriptor(), maxNesting), len(req.GetResourceLogs()); n < least {
			t.Fatalf("%d values, and %d resources", n, least)
		}
	})
}

func TestValidate(t *testing.T) {
	cfg := Config{Name: "a b", Listen: inputs.ListenConfig{Address: "nowhere", TLSKey: "x"}, Category: "{host}", MaxAttributes: -1}
	fields := map[string]bool{
		"Name": true, "Category": true, "Fallback": true, "Format": true, "MaxRequest": true, "MaxRecord": true, "MaxAttributes": true, "MaxValue": true,
		"MaxRequests": true, "MaxCategories": true, "Patience": true, "Listen.Address": true, "Listen.TLSCert": true,
	}
	for _, err := range config.Errors(cfg.Validate()) {
		violation, _ := errors.AsType[config.Violation](err)
		if !fields[violation.Field] {
			t.Errorf("unexpected: %v", err)
		}
		delete(fields, violation.Field)
	}
	if len(fields) > 0 {
		t.Errorf("nothing of %v", slices.Sorted(maps.Keys(fields)))
	}
	if _, err := New(cfg, inputs.Deps{}); err == nil || !strings.Contains(err.Error(), "otlp a b: Listen.Address:") {
		t.Errorf("New: %v", err)
	}
	good := DefaultConfig()
	good.Listen.Address = "127.0.0.1:4318"
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
}
