package follow

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"scribe/internal/testkit/sample"
	"scribe/producer"
	"scribe/scribed/inputs/inputstest"
)

// Whatever a file holds and wherever a read ends, the splitter comes to the end of it, and long lines are cut without losing a byte.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("one\ntwo\r\nthree"), uint8(4), uint8(3), true)
	f.Add([]byte("1 a\n b\n c\n2 d\n"), uint8(10), uint8(40), false)
	f.Fuzz(func(t *testing.T, text []byte, limit, chunk uint8, multiline bool) {
		s := lineSplitter{maxLine: int(limit) + 1, long: longSplit}
		if multiline {
			s.multiline = regexp.MustCompile(`^\d`)
		}
		size := max(int(chunk), s.maxLine+2)
		var got []byte
		for at := 0; at < len(text); {
			b := text[at:min(at+size, len(text))]
			last := at+len(b) == len(text)
			c := s.nextMessages(nil, b, false, last, last)
			if c.consumed <= 0 || c.consumed > len(b) || c.skipping {
				t.Fatalf("%d of %d bytes consumed of %q, skipping %v", c.consumed, len(b), b, c.skipping)
			}
			for _, m := range c.messages {
				if len(m.Payload) > s.maxLine {
					t.Fatalf("%d bytes are more than %d", len(m.Payload), s.maxLine)
				}
				got = append(got, m.Payload...)
			}
			at += c.consumed
		}
		ends := func(b []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte{'\n'}, nil), []byte{'\r'}, nil)
		}
		if !bytes.Equal(ends(got), ends(text)) {
			t.Fatalf("%q became %q", text, got)
		}
	})
}

// BenchmarkFollow compares reading a log to its end with a plain read of the same file.
//
//	go test ./scribed/inputs/follow -run '^$' -bench Follow -count 6
func BenchmarkFollow(b *testing.B) {
	text := bytes.Repeat(sample.AccessLog(), 10)
	path := filepath.Join(b.TempDir(), "app.log")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("follow", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		for b.Loop() {
			w := newWorld(b, filepath.Dir(path), nil)
			for _, s := range w.f.sources { // of the run before
				w.f.closeFile(s)
				delete(w.f.sources, s.id)
			}
			n := 0
			w.f.Step(b.Context(), inputstest.NewProducer(b, func(_ context.Context, _ string, messages []producer.Message) error {
				n += len(messages)
				return nil
			}), w.now)
			if n != 100_000 {
				b.Fatalf("%d lines", n)
			}
			for _, s := range w.f.sources {
				w.f.closeFile(s)
			}
		}
	})
	b.Run("plain", func(b *testing.B) {
		b.SetBytes(int64(len(text)))
		buf := make([]byte, 1<<20)
		for b.Loop() {
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{f}, buf); err != nil {
				b.Fatal(err)
			}
			_ = f.Close()
		}
	})
}
