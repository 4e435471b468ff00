package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"scribe/consumer"
	"scribe/consumer/jsonline"
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
		return jsonline.AppendRecord, nil
	default:
		return nil, fmt.Errorf("invalid value %q for -o: want raw or jsonl", name)
	}
}

func appendRaw(dst []byte, rec *consumer.Record) ([]byte, error) {
	return append(append(dst, rec.Payload...), '\n'), nil
}
