package readproxy

import (
	"bytes"
	"encoding/base64"
	stdjson "encoding/json"
	"errors"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"scribe/columnar"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
)

func TestJSON(t *testing.T) {
	h := newHarness(t)
	enc, _ := h.put(pointer.CodecZstd, []payload{newPayload(t, "a", 3)})
	got := h.fetch(json, "a", enc[0])[0]
	want := `{"time":1700000000000000,"payload":"{\"n\":0,\"text\":\"\"}"}
{"time":1700000000000000,"payload":"{\"n\":1,\"text\":\"scribe \"}"}
{"time":1700000000000000,"payload":"{\"n\":2,\"text\":\"scribe scribe \"}"}
`
	if string(got.GetData()) != want {
		t.Fatalf("got %s, %v", got.GetData(), got.GetError())
	}
}

func TestJSONForms(t *testing.T) {
	attr := func(name, value string) record.Attribute { return record.Attribute{Name: name, Value: []byte(value)} }
	for want, m := range map[string]record.Message{
		`{"time":5,"payload":""}`:                                {},
		`{"time":7,"key":"","payload":"x"}`:                      {Payload: []byte("x"), Key: []byte{}, Time: time.UnixMicro(7)},
		`{"time":5,"key_base64":"/w==","payload_base64":"/gA="}`: {Payload: []byte("\xfe\x00"), Key: []byte("\xff")},
		`{"time":5,"payload":"","attributes":{"a":["1","2"],"b":"3"},"attributes_base64":{"c":"/w=="}}`: {
			Attributes: []record.Attribute{attr("a", "1"), attr("c", "\xff"), attr("b", "3"), attr("a", "2")},
		},
		`{"time":5,"payload":"\"\\\u0000\n\r\t\u001f\u007fé日😀"}`: {Payload: []byte("\"\\\x00\n\r\t\x1f\x7fé日😀")},
	} {
		var b record.Builder
		if err := b.Reset(nil, record.Envelope{Category: "a", BaseTime: 5}); err != nil {
			t.Fatal(err)
		}
		if err := b.Append(&m); err != nil {
			t.Fatal(err)
		}
		frames, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		got, err := appendJSON(nil, frames, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		var g, w any
		if err := stdjson.Unmarshal(got, &g); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if err := stdjson.Unmarshal([]byte(want), &w); err != nil {
			t.Fatal(err)
		}
		a, _ := stdjson.Marshal(g)
		b2, _ := stdjson.Marshal(w)
		if !bytes.Equal(a, b2) {
			t.Errorf("got %s, want %s", a, b2)
		}
	}
}

// A message that was kept for others says for how many.
func TestJSONRate(t *testing.T) {
	for rate, want := range map[uint32]string{0: "", 1: "", 2: `,"rate":2`, 1 << 31: `,"rate":2147483648`} {
		var b record.Builder
		if err := b.Reset(nil, record.Envelope{Category: "a", BaseTime: 5, SampleRate: rate}); err != nil {
			t.Fatal(err)
		}
		if err := b.AppendPayload([]byte("x")); err != nil {
			t.Fatal(err)
		}
		frames, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		got, err := appendJSON(nil, frames, 1<<20)
		if want := `{"time":5,"payload":"x"` + want + "}\n"; err != nil || string(got) != want {
			t.Errorf("rate %d: %s, %v, want %s", rate, got, err, want)
		}
	}
}

// Every message can be told from its JSON.
func TestJSONRoundTrip(t *testing.T) {
	type line struct {
		Time      int64             `json:"time"`
		Key       *string           `json:"key"`
		Key64     *string           `json:"key_base64"`
		Payload   *string           `json:"payload"`
		Payload64 *string           `json:"payload_base64"`
		Attr      map[string]any    `json:"attributes"`
		Attr64    map[string]any    `json:"attributes_base64"`
		Unknown   map[string]string `json:"-"`
	}
	value := func(text, b64 *string) []byte {
		if text != nil {
			return []byte(*text)
		}
		if b64 == nil {
			return nil
		}
		b, err := base64.StdEncoding.DecodeString(*b64)
		if err != nil {
			return nil
		}
		return b
	}
	rapid.Check(t, func(t *rapid.T) {
		m := record.Message{
			Payload: rapid.SliceOf(rapid.Byte()).Draw(t, "payload"),
			Time:    time.UnixMicro(rapid.Int64Range(1, 1e16).Draw(t, "time")),
		}
		if rapid.Bool().Draw(t, "text") {
			m.Payload = []byte(rapid.String().Draw(t, "payload"))
		}
		if rapid.Bool().Draw(t, "keyed") {
			m.Key = append([]byte{}, rapid.SliceOf(rapid.Byte()).Draw(t, "key")...)
		}
		names := map[string]int{}
		for range rapid.IntRange(0, 20).Draw(t, "attributes") {
			name := rapid.StringMatching(`[a-d"\\]{1,2}`).Draw(t, "name")
			names[name]++
			m.Attributes = append(m.Attributes, record.Attribute{Name: name, Value: rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "value")})
		}
		var b record.Builder
		if err := b.Reset(nil, record.Envelope{Category: "a"}); err != nil {
			t.Fatal(err)
		}
		if err := b.Append(&m); err != nil {
			t.Fatal(err)
		}
		frames, err := b.Finish()
		if err != nil {
			t.Fatal(err)
		}
		out, err := appendJSON(nil, frames, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if !utf8.Valid(out) || bytes.Count(out, []byte{'\n'}) != 1 || out[len(out)-1] != '\n' {
			t.Fatalf("not one line of text: %q", out)
		}
		var got line
		if err := stdjson.Unmarshal(out, &got); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		if !bytes.Equal(value(got.Payload, got.Payload64), m.Payload) || got.Time != m.Time.UnixMicro() {
			t.Fatalf("%s: want %q at %d", out, m.Payload, m.Time.UnixMicro())
		}
		if key := value(got.Key, got.Key64); !bytes.Equal(key, m.Key) || (key == nil) != (m.Key == nil) && len(key) > 0 {
			t.Fatalf("%s: want key %q", out, m.Key)
		}
		if len(got.Attr)+len(got.Attr64) != len(names) {
			t.Fatalf("%s: want %v", out, names)
		}
		for name, n := range names {
			v, ok := got.Attr[name]
			if !ok {
				v, ok = got.Attr64[name]
			}
			list, many := v.([]any)
			if !ok || many != (n > 1) || many && len(list) != n {
				t.Fatalf("%s: want %d values of %q", out, n, name)
			}
		}
	})
}

func TestJSONLimit(t *testing.T) {
	frames := newPayload(t, "a", 100).frames
	if _, err := appendJSON(nil, frames, 1000); !errors.Is(err, columnar.ErrTooLarge) {
		t.Fatalf("got %v", err)
	}
}
