package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"scribe/consumer"
	"scribe/internal/format/record"
)

// recordPrinter collects messages and hands them to standard output in pieces.
type recordPrinter struct {
	format   func([]byte, *consumer.Record) ([]byte, error)
	out      *stdoutWriter
	position *outputPosition
	marking  bool // the place is wanted

	buf   []byte
	marks []recordMark // of the messages in buf

	messages, bytes atomic.Uint64 // that have gone out; bytes as printed
	waiting         uint64        // messages in buf
}

// recordMark is where a message ends in the printer's buffer, and which one it is.
type recordMark struct {
	end   int
	shard record.ShardID
	lsn   record.LSN
	index uint32
}

const (
	// printAt is when a buffer is handed over: messages are collected up to it.
	printAt = 64 << 10
	// keptBuffer is how large it may stay after a large message.
	keptBuffer = 4 << 20
)

// printRecord takes a message; its memory may be used again afterwards.
func (p *recordPrinter) printRecord(rec *consumer.Record) (err error) {
	if p.buf, err = p.format(p.buf, rec); err != nil {
		return fmt.Errorf("message %v/%d/%d: %w", rec.Shard, rec.LSN, rec.Index, err)
	}
	p.waiting++
	if p.marking {
		p.marks = append(p.marks, recordMark{len(p.buf), rec.Shard, record.LSN(rec.LSN), uint32(rec.Index)}) //nolint:gosec // not negative
	}
	return nil
}

// bufferFull says that it is time to flush.
func (p *recordPrinter) bufferFull() bool { return len(p.buf) >= printAt }

// flushBuffer hands over what was printed. When it fails, the place is behind the last message that went out whole.
func (p *recordPrinter) flushBuffer(ctx context.Context) error {
	if len(p.buf) == 0 {
		return nil
	}
	n, err := p.out.writeBytes(ctx, p.buf)
	p.bytes.Add(uint64(n)) //nolint:gosec // not negative
	if err != nil {
		whole := 0
		for whole < len(p.marks) && p.marks[whole].end <= n {
			whole++
		}
		p.marks = p.marks[:whole]
	} else {
		p.messages.Add(p.waiting)
	}
	p.position.advancePast(p.marks)
	p.marks, p.waiting = p.marks[:0], 0
	if p.buf = p.buf[:0]; cap(p.buf) > keptBuffer {
		p.buf = nil
	}
	return err
}

// recordFormat returns what appends a message in a format.
func recordFormat(name string) (func([]byte, *consumer.Record) ([]byte, error), error) {
	switch name {
	case "raw":
		return appendRaw, nil
	case "jsonl":
		return appendJSONLine, nil
	default:
		return nil, fmt.Errorf("invalid value %q for -o: want raw or jsonl", name)
	}
}

func appendRaw(dst []byte, rec *consumer.Record) ([]byte, error) {
	return append(append(dst, rec.Payload...), '\n'), nil
}

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

func appendJSONLine(dst []byte, rec *consumer.Record) ([]byte, error) {
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
