package readproxy

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	"scribe/columnar"
	"scribe/columnar/value"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

// jsonRoom estimates the length of a payload's JSON.
func jsonRoom(p *pointer.Pointer) int {
	return min(int(p.Length)+int(p.Length)/4+40*int(p.Messages), maxTranscoded)
}

// appendJSON appends the messages of frames, each an object and a newline. A result over limit bytes fails with
// columnar.ErrTooLarge.
func appendJSON(dst, frames []byte, limit int) ([]byte, error) {
	var (
		d record.Decoder
		r record.Record
	)
	start := len(dst)
	for f, err := range record.Split(frames) {
		if err != nil {
			return nil, err
		}
		if f.Encoding != record.EncodingMessages {
			return nil, columnar.ErrArrowFrame
		}
		if _, err := d.Reset(f.Bytes); err != nil {
			return nil, err
		}
		for d.Next(&r) {
			dst = appendMessage(dst, &r, f.SampleRate)
			if len(dst)-start > limit {
				return nil, fmt.Errorf("%w: the JSON has more than %d bytes", columnar.ErrTooLarge, limit)
			}
		}
		if err := d.Err(); err != nil {
			return nil, err
		}
	}
	return dst, nil
}

// appendMessage appends a message that stands for rate messages; 0 and 1 both stand for itself alone.
func appendMessage(dst []byte, r *record.Record, rate uint32) []byte {
	dst = append(dst, `{"time":`...)
	dst = strconv.AppendInt(dst, r.Time, 10)
	if r.HasKey {
		dst = appendBytes(dst, `,"key`, r.Key)
	}
	dst = appendBytes(dst, `,"payload`, r.Payload)
	if len(r.Attributes) > 0 {
		dst = appendAttributes(dst, r.Attributes)
	}
	if rate > 1 {
		dst = strconv.AppendUint(append(dst, `,"rate":`...), uint64(rate), 10)
	}
	return append(dst, '}', '\n')
}

// appendBytes appends a member. name is the start of its name with everything before it. The value is a string, or base64 under
// another name.
func appendBytes(dst []byte, name string, b []byte) []byte {
	dst = append(dst, name...)
	if utf8.Valid(b) {
		return value.AppendJSONString(append(dst, `":`...), b)
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, `_base64":"`...), b), '"')
}

// jsonAttribute is an attribute name with its values.
type jsonAttribute struct {
	name   []byte
	values [][]byte
}

// appendAttributes appends the attributes as an object, and those with a value that is not UTF-8 as a second one.
func appendAttributes(dst []byte, attributes record.Attributes) []byte {
	var (
		list  []jsonAttribute
		index map[string]int // used for many attributes only
	)
	const few = 8
	for name, value := range attributes.All() {
		at, known := index[string(name)]
		if index == nil {
			at = slices.IndexFunc(list, func(a jsonAttribute) bool { return bytes.Equal(a.name, name) })
			known = at >= 0
		}
		if !known {
			at = len(list)
			list = append(list, jsonAttribute{name: name})
			if index != nil {
				index[string(name)] = at
			} else if len(list) > few {
				index = make(map[string]int, 4*few)
				for i := range list {
					index[string(list[i].name)] = i
				}
			}
		}
		list[at].values = append(list[at].values, value)
	}
	for _, text := range []bool{true, false} {
		open := false
		for i := range list {
			if list[i].isText() != text {
				continue
			}
			switch {
			case open:
				dst = append(dst, ',')
			case text:
				dst = append(dst, `,"attributes":{`...)
			default:
				dst = append(dst, `,"attributes_base64":{`...)
			}
			open = true
			dst = list[i].appendTo(dst, text)
		}
		if open {
			dst = append(dst, '}')
		}
	}
	return dst
}

func (a *jsonAttribute) isText() bool {
	return !slices.ContainsFunc(a.values, func(v []byte) bool { return !utf8.Valid(v) })
}

func (a *jsonAttribute) appendTo(dst []byte, text bool) []byte {
	dst = append(value.AppendJSONString(dst, a.name), ':')
	if len(a.values) > 1 {
		dst = append(dst, '[')
	}
	for i, v := range a.values {
		if i > 0 {
			dst = append(dst, ',')
		}
		if text {
			dst = value.AppendJSONString(dst, v)
		} else {
			dst = append(base64.StdEncoding.AppendEncode(append(dst, '"'), v), '"')
		}
	}
	if len(a.values) > 1 {
		dst = append(dst, ']')
	}
	return dst
}
