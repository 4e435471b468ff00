package jsonrows

import (
	"encoding/json"

	"scribe/columnar/transcode/jsonscan"
)

// appendRest appends the undeclared members of a row as an object, or nothing if there are none. The first of duplicate keys
// counts. A value or key that is not valid JSON is added as a string of its text, so the object is always valid JSON.
func (w *rowWalker) appendRest(dst []byte) []byte {
	if len(w.rest) == 0 {
		return dst
	}
	known := make(map[string]struct{}, len(w.rest))
	for _, m := range w.rest {
		quote, _ := w.x.StringEnd(m.key+1, w.limit)
		if quote < 0 {
			continue // the walk has checked that the key ends
		}
		raw := w.b[m.key+1 : quote]
		key, fault := jsonscan.AppendUnescaped(w.scratch[:0], raw)
		if fault.OK() {
			w.scratch = key
		} else {
			key = raw
		}
		if _, ok := known[string(key)]; ok {
			continue
		}
		known[string(key)] = struct{}{}
		if len(dst) == 0 {
			dst = append(dst, '{')
		} else {
			dst = append(dst, ',')
		}
		if fault.OK() {
			dst = append(dst, w.b[m.key:quote+1]...)
		} else {
			dst = appendQuoted(dst, raw)
		}
		dst = append(dst, ':')
		if value := w.b[m.value:m.end]; json.Valid(value) {
			dst = append(dst, value...)
		} else {
			dst = appendQuoted(dst, value)
		}
	}
	return append(dst, '}')
}

// appendQuoted appends text without control characters as a JSON string.
func appendQuoted(dst, text []byte) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20: // white space within a container
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}
