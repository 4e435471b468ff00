package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/producer"
)

// readAll takes every line, with the place that an error would name.
func readAll(t testing.TB, l *lineReader, stdin io.Reader, files ...string) (got, places []string, err error) {
	t.Helper()
	go l.readInputs(t.Context(), stdin, files)
	for {
		c, err := l.takeChunk()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return got, places, err
		}
		for i, m := range c.appendMessages(nil, new(producer.Message)) {
			got = append(got, string(m.Payload))
			places = append(places, c.linePosition(i))
		}
		l.releaseChunk(c)
	}
}

func TestLines(t *testing.T) {
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"nothing", "", nil},
		{"one without a newline", "a", []string{"a"}},
		{"one with a newline", "a\n", []string{"a"}},
		{"empty ones", "\n\na\n\n", []string{"", "", "a", ""}},
		{"bytes that are not text", "\xff\x00\r\n\xfe", []string{"\xff\x00\r", "\xfe"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, _, err := readAll(t, newLineReader(100, ""), strings.NewReader(c.in))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// TestLinesAnyInput: whatever the input and the limit, every line within the limit comes out once, in order, under its number.
func TestLinesAnyInput(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		in := rapid.SliceOfN(rapid.SliceOfN(rapid.SampledFrom([]byte("ab\x00")), 0, 30), 0, 50).Draw(rt, "lines")
		limit := rapid.IntRange(1, 30).Draw(rt, "limit")
		l := newLineReader(limit, "")
		got, places, err := readAll(t, l, bytes.NewReader(append(bytes.Join(in, []byte{'\n'}), '\n')))
		if err != nil {
			rt.Fatal(err)
		}
		if len(in) == 0 {
			in = [][]byte{{}} // a lone newline is one empty line
		}
		var want, wantPlaces []string
		long := 0
		for i, line := range in {
			if len(line) > limit {
				long++
				continue
			}
			want, wantPlaces = append(want, string(line)), append(wantPlaces, fmt.Sprintf("-:%d", i+1))
		}
		if !slices.Equal(got, want) || !slices.Equal(places, wantPlaces) {
			rt.Fatalf("%q at %q, want %q at %q", got, places, want, wantPlaces)
		}
		if (l.tooLongError() != nil) != (long > 0) {
			rt.Fatalf("%d lines are too long, the error is %v", long, l.tooLongError())
		}
	})
}

// TestLinesLongerThanTheBuffer: a line may be longer than what is read at once, up to the limit and not beyond.
func TestLinesLongerThanTheBuffer(t *testing.T) {
	const limit = 3 << 20
	fits, over := strings.Repeat("x", limit), strings.Repeat("y", limit+1)
	l := newLineReader(limit, "")
	got, places, err := readAll(t, l, strings.NewReader("a\n"+fits+"\n"+over+"\nb\n"+over))
	if err != nil || !slices.Equal(got, []string{"a", fits, "b"}) {
		t.Fatalf("%d lines, %v", len(got), err)
	}
	if want := []string{"-:1", "-:2", "-:4"}; !slices.Equal(places, want) {
		t.Errorf("places %q, want %q", places, want)
	}
	if err := l.tooLongError(); err == nil || !strings.Contains(err.Error(), "-:3: ") || !strings.Contains(err.Error(), "-:5: ") {
		t.Errorf("the error does not name lines 3 and 5: %v", err)
	}
}

// TestStopReading: what was read before the reading was stopped still comes, without a last line whose end was not read, although a read
// of the input never returns.
func TestStopReading(t *testing.T) {
	for _, c := range []struct {
		name string
		more []string // files that follow
		want error
	}{
		{"the last input", nil, io.EOF},
		{"another input follows", []string{"unread"}, errInterrupted},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := &hangingInput{text: "a\nb\nunfinished", hanging: make(chan struct{}), goOn: make(chan struct{})}
			l := newLineReader(100, "")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				l.readInputs(t.Context(), in, append([]string{"-"}, c.more...))
			}()
			<-in.hanging
			var got string
			var err error
			l.stopReading()
			for err == nil {
				var chunk *lineChunk
				if chunk, err = l.takeChunk(); err == nil {
					got += string(chunk.buf)
					l.releaseChunk(chunk)
				}
			}
			if got != "ab" || !errors.Is(err, c.want) {
				t.Errorf("got %q, %v, want \"ab\", %v", got, err, c.want)
			}
			close(in.goOn)
			<-ended
			if chunk, err := l.takeChunk(); err == nil {
				t.Errorf("after the end: %q", chunk.buf)
			}
		})
	}
}

// hangingInput is an input whose second read hangs.
type hangingInput struct {
	text    string
	reads   int
	hanging chan struct{} // closed when it hangs
	goOn    chan struct{}
}

func (h *hangingInput) Read(b []byte) (int, error) {
	switch h.reads++; h.reads {
	case 1:
		return copy(b, h.text), nil
	case 2:
		close(h.hanging)
		<-h.goOn
		return copy(b, " line\nlate\n"), nil
	}
	return 0, io.EOF
}

// TestDiscardLines: the lines that were read and not taken are counted, and the first is named.
func TestDiscardLines(t *testing.T) {
	in := &hangingInput{text: "a\nb\nc\n", hanging: make(chan struct{}), goOn: make(chan struct{})}
	l := newLineReader(100, "")
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.readInputs(t.Context(), in, nil)
	}()
	<-in.hanging
	if lines, first := l.discardLines(); lines != 3 || first != "-:1" {
		t.Errorf("%d lines from %s, want 3 from -:1", lines, first)
	}
	close(in.goOn)
	<-ended
}

func TestLinesOfFiles(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for name, content := range map[string]string{a: "1\n2", b: "3\n"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, places, err := readAll(t, newLineReader(10, ""), strings.NewReader("4\n"), a, b, "-")
	if err != nil || !slices.Equal(got, []string{"1", "2", "3", "4"}) || !slices.Equal(places, []string{a + ":1", a + ":2", b + ":1", "-:1"}) {
		t.Errorf("%q at %q, %v", got, places, err)
	}
	got, _, err = readAll(t, newLineReader(10, ""), nil, a, filepath.Join(dir, "missing"))
	if !errors.Is(err, os.ErrNotExist) || !slices.Equal(got, []string{"1", "2"}) {
		t.Errorf("a missing file after a good one: %q, %v", got, err)
	}
}

func TestKeyField(t *testing.T) {
	for _, c := range []struct {
		line, want string
		none, bad  bool
	}{
		{line: `{"user":"ann","n":1}`, want: "ann"},
		{line: `{"user":42}`, want: "42"},
		{line: `{"user":{"id": 1}}`, want: `{"id": 1}`},
		{line: `{"user":null}`, none: true},
		{line: `{"n":1}`, none: true},
		{line: `{"user":""}`, want: ""},
		{line: `not JSON`, bad: true},
		{line: `[1]`, bad: true},
	} {
		got, err := lineKey([]byte(c.line), "user")
		if (err != nil) != c.bad || (got == nil) != (c.none || c.bad) || string(got) != c.want {
			t.Errorf("keyOf(%s) = %q, %v", c.line, got, err)
		}
	}
}
