package otlp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	commonv1 "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logsv1 "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"scribe/internal/base/units"
	"scribe/producer"
)

// recordConverter converts the records of one request to messages.
type recordConverter struct {
	cfg *Config
	// seen are the names of the attributes that a message already has.
	seen map[string]struct{}
	buf  bytes.Buffer
}

// recordSource is the resource and scope of records, converted once for all records of a scope.
type recordSource struct {
	service, namespace string // fields of the category
	resource, scope    attributeList
	// As JSON, if that is the format; nil if there are none.
	resourceJSON, scopeJSON json.RawMessage
	resourceCut, scopeCut   bool
}

// newSource returns the source of a resource.
func (c *recordConverter) newSource(list []*commonv1.KeyValue) (s recordSource) {
	for _, kv := range list {
		switch kv.GetKey() {
		case fieldService:
			s.service = c.categoryField(kv.GetValue())
		case fieldNamespace:
			s.namespace = c.categoryField(kv.GetValue())
		}
	}
	s.resource = c.sharedAttributes("resource.", list, "")
	if c.cfg.Format == formatJSON && len(list) > 0 {
		var p jsonValues
		s.resourceJSON, s.resourceCut = c.encodeJSON(p.plainObject(list, maxDepth)), p.cut
	}
	return s
}

// setScope sets the scope of a source.
func (c *recordConverter) setScope(s *recordSource, name string, list []*commonv1.KeyValue) {
	s.scope, s.scopeJSON, s.scopeCut = c.sharedAttributes("scope.", list, name), nil, false
	if c.cfg.Format == formatJSON && (name != "" || len(list) > 0) {
		var p jsonValues
		s.scopeJSON = c.encodeJSON(map[string]any{"name": name, "attributes": p.plainObject(list, maxDepth)})
		s.scopeCut = p.cut
	}
}

// categoryField returns a value as a field of a category, no longer than a name can use.
func (c *recordConverter) categoryField(v *commonv1.AnyValue) string {
	t, _ := c.valueText(v)
	return string(t[:min(len(t), maxName)])
}

// sharedAttributes converts the attributes of a resource or scope, with their prefix; name is that of a scope.
func (c *recordConverter) sharedAttributes(prefix string, list []*commonv1.KeyValue, name string) attributeList {
	a := c.newAttributes()
	a.addField(prefix+"name", name)
	a.addAll(prefix, list)
	return a
}

// convertRecord converts a record to a message. cut says that part of it was left out. An error means that it is too large.
func (c *recordConverter) convertRecord(s *recordSource, r *logsv1.LogRecord) (m producer.Message, cut bool, err error) {
	if m.Payload, cut, err = c.encodePayload(s, r); err != nil {
		return m, cut, err
	}
	if limit := c.cfg.MaxRecord; int64(len(m.Payload)) > int64(limit) {
		return m, cut, tooLong(limit)
	}
	m.Time = eventTime(r)
	a := c.newAttributes()
	a.addField("severity", severityOf(r))
	a.addField("trace_id", hexID(r.GetTraceId(), traceLen))
	a.addField("span_id", hexID(r.GetSpanId(), spanLen))
	a.addField("event_name", r.GetEventName())
	a.addAll("", r.GetAttributes())
	a.addShared(&s.scope)
	a.addShared(&s.resource)
	m.Attributes = a.list
	return m, cut || a.cut, nil
}

func tooLong(limit units.Bytes) error {
	return fmt.Errorf("a record has more than %v", limit)
}

func (c *recordConverter) encodePayload(s *recordSource, r *logsv1.LogRecord) (b []byte, cut bool, err error) {
	switch c.cfg.Format {
	case formatJSON:
		// Checked before the JSON is repeated for every record.
		if limit := c.cfg.MaxRecord; int64(len(s.resourceJSON)+len(s.scopeJSON)) > int64(limit) {
			return nil, false, tooLong(limit)
		}
		var p jsonValues
		b = c.encodeJSON(p.plainRecord(s, r))
		return b, p.cut || s.resourceCut || s.scopeCut, nil
	case formatProtobuf:
		b, err = proto.Marshal(r)
		return b, false, err
	}
	b, cut = c.valueText(r.GetBody())
	return b, cut, nil
}

// eventTime returns the record's time, else its observed time; zero if neither is valid.
func eventTime(r *logsv1.LogRecord) time.Time {
	for _, nanos := range []uint64{r.GetTimeUnixNano(), r.GetObservedTimeUnixNano()} {
		if nanos > 0 && nanos <= math.MaxInt64 {
			return time.Unix(0, int64(nanos)) //nolint:gosec // compared above
		}
	}
	return time.Time{}
}

// severityOf returns the record's severity text, else the name of its number's range.
func severityOf(r *logsv1.LogRecord) string {
	if s := r.GetSeverityText(); s != "" {
		return s
	}
	n := int(r.GetSeverityNumber())
	if names := [...]string{"TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL"}; n >= 1 && n <= 24 {
		return names[(n-1)/4]
	}
	return ""
}

// hexID returns the id of a trace or span in hexadecimal; "" if it is invalid: the specification treats an id of zeros or of
// another length as absent.
func hexID(b []byte, size int) string {
	if len(b) != size || !slices.ContainsFunc(b, func(x byte) bool { return x != 0 }) {
		return ""
	}
	return hex.EncodeToString(b)
}

// attributeList collects attributes within bounds. Of several with one name, the first counts.
type attributeList struct {
	convert *recordConverter
	list    []producer.Attribute
	cut     bool
}

// maxName bounds an attribute's name in bytes.
const maxName = 255

func (c *recordConverter) newAttributes() attributeList {
	if c.seen == nil {
		c.seen = map[string]struct{}{}
	}
	clear(c.seen)
	return attributeList{convert: c}
}

// addField adds an attribute unless its value is empty.
func (a *attributeList) addField(name, value string) {
	if value != "" {
		a.addAttribute(name, []byte(value))
	}
}

func (a *attributeList) addAttribute(name string, value []byte) {
	limit := a.convert.cfg.MaxAttributes
	if limit == 0 {
		return
	}
	_, twice := a.convert.seen[name]
	if twice || name == "" || len(name) > maxName || len(a.list) >= limit {
		a.cut = true
		return
	}
	if most := int(a.convert.cfg.MaxValue); len(value) > most {
		a.cut = true
		value = cutText(value, most)
	}
	a.convert.seen[name] = struct{}{}
	a.list = append(a.list, producer.Attribute{Name: name, Value: value})
}

func (a *attributeList) addAll(prefix string, list []*commonv1.KeyValue) {
	if a.convert.cfg.MaxAttributes == 0 {
		return
	}
	for _, kv := range list {
		if len(a.list) >= a.convert.cfg.MaxAttributes { // the remaining values need not be converted
			a.cut = true
			return
		}
		value, cut := a.convert.valueText(kv.GetValue())
		a.cut = a.cut || cut
		a.addAttribute(prefix+kv.GetKey(), value)
	}
}

// addShared adds the attributes of a source.
func (a *attributeList) addShared(b *attributeList) {
	for _, x := range b.list {
		a.addAttribute(x.Name, x.Value)
	}
	a.cut = a.cut || b.cut
}

// cutText cuts to at most n bytes, without splitting a character.
func cutText(b []byte, n int) []byte {
	for i := n; i > max(n-utf8.UTFMax, 0); i-- {
		if utf8.RuneStart(b[i]) {
			return b[:i]
		}
	}
	return b[:n]
}

// valueText returns a value as text: a string or bytes as they are, anything else as JSON.
func (c *recordConverter) valueText(v *commonv1.AnyValue) (b []byte, cut bool) {
	switch x := v.GetValue().(type) {
	case nil:
		return nil, false
	case *commonv1.AnyValue_StringValue:
		return []byte(x.StringValue), false
	case *commonv1.AnyValue_BytesValue:
		return x.BytesValue, false
	}
	var p jsonValues
	return c.encodeJSON(p.plainValue(v, maxDepth)), p.cut
}

// encodeJSON encodes JSON, without escaping <, > and &.
func (c *recordConverter) encodeJSON(v any) []byte {
	c.buf.Reset()
	enc := json.NewEncoder(&c.buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(err.Error()) // values from jsonValues always encode
	}
	return bytes.Clone(bytes.TrimSuffix(c.buf.Bytes(), []byte{'\n'}))
}
