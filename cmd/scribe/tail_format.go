package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"scribe/consumer"
)

// formatHelp describes the format strings of --format.
const formatHelp = `  %s  payload                           %S  its length in bytes
  %k  key (nothing without one)         %K  its length in bytes, -1 without a key
  %T  event time, RFC 3339 (UTC)        %t  event time, microseconds since 1970
  %P  persisted time, RFC 3339 (UTC)    %p  persisted time, microseconds since 1970
  %d  physical shard, such as 7/0/1     %n  logical shard
  %l  LSN of the message's pointer      %i  index of the message in the payload
  %o  position SHARD/LSN/INDEX          %r  rate: the message stands for so many
  %h  attributes as NAME=VALUE, separated by commas; %{NAME} the value of one
  %%  a percent sign; \n, \t, \r, \0, \\ and \xHH as in C. No newline is added.`

// recordAppender appends a part of a message to a buffer.
type recordAppender func(dst []byte, rec *consumer.Record) []byte

// formatParts are the letters of a format string.
var formatParts = map[byte]recordAppender{
	's': func(dst []byte, rec *consumer.Record) []byte { return append(dst, rec.Payload...) },
	'S': func(dst []byte, rec *consumer.Record) []byte {
		return strconv.AppendInt(dst, int64(len(rec.Payload)), 10)
	},
	'k': func(dst []byte, rec *consumer.Record) []byte { return append(dst, rec.Key...) },
	'K': func(dst []byte, rec *consumer.Record) []byte {
		if rec.Key == nil {
			return append(dst, "-1"...)
		}
		return strconv.AppendInt(dst, int64(len(rec.Key)), 10)
	},
	'T': func(dst []byte, rec *consumer.Record) []byte { return appendTime(dst, rec.Time) },
	't': func(dst []byte, rec *consumer.Record) []byte { return strconv.AppendInt(dst, rec.Time.UnixMicro(), 10) },
	'P': func(dst []byte, rec *consumer.Record) []byte { return appendTime(dst, rec.Persisted) },
	'p': func(dst []byte, rec *consumer.Record) []byte {
		return strconv.AppendInt(dst, rec.Persisted.UnixMicro(), 10)
	},
	'd': func(dst []byte, rec *consumer.Record) []byte { return append(dst, rec.Shard.String()...) },
	'n': func(dst []byte, rec *consumer.Record) []byte {
		return strconv.AppendUint(dst, uint64(rec.LogicalShard), 10)
	},
	'l': func(dst []byte, rec *consumer.Record) []byte { return strconv.AppendUint(dst, rec.LSN, 10) },
	'i': func(dst []byte, rec *consumer.Record) []byte { return strconv.AppendInt(dst, int64(rec.Index), 10) },
	'o': func(dst []byte, rec *consumer.Record) []byte {
		return fmt.Appendf(dst, "%v/%d/%d", rec.Shard, rec.LSN, rec.Index)
	},
	'r': func(dst []byte, rec *consumer.Record) []byte {
		return strconv.AppendUint(dst, uint64(max(rec.SampleRate, 1)), 10)
	},
	'h': appendAttributes,
}

// appendTime appends a time as the other formats have it.
func appendTime(dst []byte, at time.Time) []byte { return at.UTC().AppendFormat(dst, time.RFC3339Nano) }

func appendAttributes(dst []byte, rec *consumer.Record) []byte {
	first := true
	for name, value := range rec.Attributes.All() {
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = append(append(append(dst, name...), '='), value...)
	}
	return dst
}

// parseFormat compiles a format string.
func parseFormat(text string) (func([]byte, *consumer.Record) ([]byte, error), error) {
	var (
		parts   []recordAppender
		literal []byte
	)
	endLiteral := func() {
		if len(literal) > 0 {
			whole := literal
			parts = append(parts, func(dst []byte, _ *consumer.Record) []byte { return append(dst, whole...) })
			literal = nil
		}
	}
	for rest := text; rest != ""; {
		switch rest[0] {
		case '\\':
			c, after, err := parseEscape(rest)
			if err != nil {
				return nil, err
			}
			literal, rest = append(literal, c), after
			continue
		case '%':
		default:
			literal, rest = append(literal, rest[0]), rest[1:]
			continue
		}
		part, after, err := parseFormatPart(rest[1:])
		if err != nil {
			return nil, err
		}
		if rest = after; part == nil {
			literal = append(literal, '%')
			continue
		}
		endLiteral()
		parts = append(parts, part)
	}
	endLiteral()
	return func(dst []byte, rec *consumer.Record) ([]byte, error) {
		for _, part := range parts {
			dst = part(dst, rec)
		}
		return dst, nil
	}, nil
}

// parseFormatPart reads what follows a percent sign; the part is nil for another percent sign.
func parseFormatPart(text string) (part recordAppender, rest string, err error) {
	if text == "" {
		return nil, "", errors.New("it ends with a single %: write %% for a percent sign")
	}
	if text[0] == '{' {
		name, rest, ok := strings.Cut(text[1:], "}")
		if !ok || name == "" {
			return nil, "", fmt.Errorf("%%%s: want %%{NAME}, the value of an attribute", text)
		}
		return func(dst []byte, rec *consumer.Record) []byte {
			value, _ := rec.Attributes.Get(name)
			return append(dst, value...)
		}, rest, nil
	}
	part = formatParts[text[0]]
	if part == nil && text[0] != '%' {
		return nil, "", fmt.Errorf("unknown part %%%c: \"scribe tail --help\" lists them; write %%%% for a percent sign", []rune(text)[0])
	}
	return part, text[1:], nil
}

// parseEscape reads the escape with which text begins.
func parseEscape(text string) (c byte, rest string, err error) {
	if len(text) > 1 {
		switch text[1] {
		case 'n':
			return '\n', text[2:], nil
		case 't':
			return '\t', text[2:], nil
		case 'r':
			return '\r', text[2:], nil
		case '0':
			return 0, text[2:], nil
		case '\\':
			return '\\', text[2:], nil
		case 'x':
			if len(text) >= 4 {
				if n, err := strconv.ParseUint(text[2:4], 16, 8); err == nil {
					return byte(n), text[4:], nil
				}
			}
		}
	}
	return 0, "", fmt.Errorf("invalid escape %q: want \\n, \\t, \\r, \\0, \\\\ or \\x and two digits in base 16", text[:min(len(text), 4)])
}
