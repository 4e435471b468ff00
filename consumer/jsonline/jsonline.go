// Package jsonline writes messages as JSON, one object a line: what "scribe tail -o jsonl" prints, and what the cell answers over HTTP.
package jsonline

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"

	"scribe/consumer"
)

// recordLine is a message as JSON. Bytes that are not UTF-8 can't be a JSON string: they come as base64 under another name.
type recordLine struct {
	Time             *time.Time        `json:"time,omitempty"`
	TimeMicros       *int64            `json:"time_us,omitempty"`
	Persisted        time.Time         `json:"persisted"`
	Key              *string           `json:"key,omitempty"`
	KeyBase64        []byte            `json:"key_base64,omitempty"`
	Payload          *string           `json:"payload,omitempty"`
	PayloadBase64    []byte            `json:"payload_base64,omitempty"`
	Attributes       map[string]string `json:"attributes,omitempty"`
	AttributesBase64 map[string][]byte `json:"attributes_base64,omitempty"`
	Shard            string            `json:"shard"`
	LSN              uint64            `json:"lsn"`
	Index            int               `json:"index"`
	Rate             uint32            `json:"rate,omitempty"`
}

// Years that RFC 3339 can write.
const (
	firstYear = 0
	lastYear  = 9999
)

// AppendRecord appends a message as a line. Its error is that of encoding/json, which has none for such a line.
func AppendRecord(dst []byte, rec *consumer.Record) ([]byte, error) {
	line := recordLine{Persisted: rec.Persisted.UTC(), Shard: rec.Shard.String(), LSN: rec.LSN, Index: rec.Index}
	if at := rec.Time.UTC(); at.Year() >= firstYear && at.Year() <= lastYear {
		line.Time = &at
	} else { // a producer may give any
		line.TimeMicros = new(at.UnixMicro())
	}
	line.Payload, line.PayloadBase64 = textOrBytes(rec.Payload)
	if rec.Key != nil {
		line.Key, line.KeyBase64 = textOrBytes(rec.Key)
	}
	line.setAttributes(rec.Attributes)
	if rec.SampleRate > 1 {
		line.Rate = rec.SampleRate
	}
	out := bytes.NewBuffer(dst)
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	err := enc.Encode(line)
	return out.Bytes(), err
}

// setAttributes fills in what stands beside the payload. Names are UTF-8; of several of one name the first counts, as for Attributes.Get.
func (l *recordLine) setAttributes(of consumer.Attributes) {
	for name, value := range of.All() {
		name := string(name)
		_, text := l.Attributes[name]
		_, other := l.AttributesBase64[name]
		switch {
		case text || other:
		case utf8.Valid(value):
			if l.Attributes == nil {
				l.Attributes = make(map[string]string)
			}
			l.Attributes[name] = string(value)
		default:
			if l.AttributesBase64 == nil {
				l.AttributesBase64 = make(map[string][]byte)
			}
			l.AttributesBase64[name] = value
		}
	}
}

func textOrBytes(b []byte) (*string, []byte) {
	if utf8.Valid(b) {
		return new(string(b)), nil
	}
	return nil, b
}
