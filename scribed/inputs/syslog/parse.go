package syslog

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"time"

	gosyslog "github.com/leodido/go-syslog/v4"
	"github.com/leodido/go-syslog/v4/rfc5424"

	"scribe/producer"
)

// messageParser converts syslog messages. It is not safe for concurrent use: each connection has one.
type messageParser struct {
	cfg      *Config
	location *time.Location
	now      func() time.Time
	// host is the host name of local messages, which carry none; empty where messages come from elsewhere.
	host   string
	modern gosyslog.Machine
	// attributes and values hold those of all messages since reset; they are allocated in bulk.
	attributes []producer.Attribute
	values     []byte
}

// reset is called when the parsed messages are no longer used. Until then messages share the parser's memory, but not the bytes
// that they were parsed from.
func (p *messageParser) reset() {
	clear(p.attributes) // the garbage collector may then free what they point to
	p.attributes, p.values = p.attributes[:0], p.values[:0]
}

func newParser(cfg *Config, location *time.Location, now func() time.Time, localHost string) *messageParser {
	return &messageParser{
		cfg: cfg, location: location, now: now, host: localHost,
		modern: rfc5424.NewParser(rfc5424.WithBestEffort()),
	}
}

// messageFields are the fields of a syslog message.
type messageFields struct {
	Facility string            `json:"facility,omitempty"`
	Severity string            `json:"severity,omitempty"`
	Time     *time.Time        `json:"time,omitempty"`
	Host     string            `json:"host,omitempty"`
	App      string            `json:"app,omitempty"`
	ProcID   string            `json:"procid,omitempty"`
	MsgID    string            `json:"msgid,omitempty"`
	Data     map[string]string `json:"data,omitempty"` // id.name
	Message  string            `json:"message"`
	unparsed bool
}

// maxData bounds the structured data that become attributes.
const maxData = 32

// parseMessage parses one message. ok is false when it is to be dropped.
func (p *messageParser) parseMessage(raw []byte) (m producer.Message, f messageFields, ok bool) {
	raw = bytes.TrimRight(raw, "\n\r\x00")
	f = p.parseFields(raw)
	if f.unparsed && p.cfg.Unparsed == drop {
		return m, f, false
	}
	m.Payload = raw
	switch {
	case p.cfg.Format == formatJSON:
		if text, err := json.Marshal(&f); err == nil { // strings and a time always encode
			m.Payload = text
		}
	case p.cfg.Format == formatMessage && !f.unparsed:
		m.Payload = []byte(f.Message)
	}
	if f.Time != nil {
		m.Time = *f.Time
	}
	if p.cfg.HostKey && f.Host != "" {
		m.Key = []byte(f.Host)
	}
	m.Attributes = p.attributesOf(&f)
	return m, f, true
}

func (p *messageParser) attributesOf(f *messageFields) []producer.Attribute {
	begin := len(p.attributes)
	add := func(name, value string) {
		if value == "" {
			return
		}
		at := len(p.values)
		p.values = append(p.values, value...)
		p.attributes = append(p.attributes, producer.Attribute{Name: name, Value: p.values[at:len(p.values):len(p.values)]})
	}
	add("facility", f.Facility)
	add("severity", f.Severity)
	add("host", f.Host)
	add("app", f.App)
	add("procid", f.ProcID)
	add("msgid", f.MsgID)
	if f.unparsed {
		add("unparsed", "true")
	}
	f.addData(add)
	return p.attributes[begin:len(p.attributes):len(p.attributes)]
}

// addData adds structured data in order of their names.
func (f *messageFields) addData(add func(name, value string)) {
	if len(f.Data) == 0 { // as usual: without an allocation
		return
	}
	names := slices.Sorted(maps.Keys(f.Data))
	for _, name := range names[:min(len(names), maxData)] {
		add(name, f.Data[name])
	}
}

func (p *messageParser) parseFields(raw []byte) messageFields {
	first, second := p.parse5424, p.parse3164
	switch {
	case p.cfg.Protocol == rfc5424Name:
		second = nil
	case p.cfg.Protocol == rfc3164Name, !hasVersion(raw):
		first, second = p.parse3164, nil
	}
	if f, ok := first(raw); ok {
		return f
	}
	if second != nil {
		if f, ok := second(raw); ok {
			return f
		}
	}
	return messageFields{Message: string(raw), unparsed: true}
}

// hasVersion reports whether a version follows the priority, as in RFC 5424.
func hasVersion(raw []byte) bool {
	i := bytes.IndexByte(raw[:min(len(raw), 6)], '>')
	return i > 0 && i+2 < len(raw) && raw[i+1] >= '1' && raw[i+1] <= '9' && (raw[i+2] == ' ' || raw[i+2] >= '0' && raw[i+2] <= '9')
}

func (p *messageParser) parse5424(raw []byte) (messageFields, bool) {
	if f, ok := parsePlain5424(raw); ok {
		return f, true
	}
	return p.parseFull5424(raw)
}

func (p *messageParser) parseFull5424(raw []byte) (messageFields, bool) {
	parsed, err := p.modern.Parse(raw)
	m, ok := parsed.(*rfc5424.SyslogMessage)
	if !ok || m == nil || m.Priority == nil || err != nil && m.Message == nil && m.Hostname == nil {
		return messageFields{}, false
	}
	f := baseFields(&m.Base)
	if m.StructuredData != nil {
		f.Data = map[string]string{}
		for id, params := range *m.StructuredData {
			for name, value := range params {
				f.Data[id+"."+name] = value
			}
		}
	}
	return f, true
}

func baseFields(b *gosyslog.Base) messageFields {
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	f := messageFields{Time: b.Timestamp, Host: text(b.Hostname), App: text(b.Appname), ProcID: text(b.ProcID), MsgID: text(b.MsgID), Message: text(b.Message)}
	if b.Facility != nil {
		f.Facility = nameAt(facilities[:], *b.Facility)
	}
	if b.Severity != nil {
		f.Severity = nameAt(severities[:], *b.Severity)
	}
	return f
}

// Names of RFC 5424, section 6.2.1, as syslog.conf(5) writes them.
var (
	facilities = [...]string{
		"kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news", "uucp", "cron", "authpriv", "ftp", "ntp", "audit", "alert", "clock",
		"local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7",
	}
	severities = [...]string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}
)

func nameAt(names []string, i uint8) string {
	if int(i) < len(names) {
		return names[i]
	}
	return strconv.Itoa(int(i))
}
