package main

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"scribe/consumer"
	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/producer"
)

// TestSuggestions: a misspelled command or flag is an error that names the one that was probably meant, and nothing that is far from it.
func TestSuggestions(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"taill", "x"}, `did you mean "tail"?`},
		{[]string{"prodcue"}, `did you mean "produce"?`},
		{[]string{"cat"}, `did you mean "category"?`},
		{[]string{"category", "lst"}, `did you mean "list"?`},
		{[]string{"category", "create", "x", "--retenion", "3d"}, "did you mean --retention?"},
		{[]string{"tail", "x", "--form", "latest"}, "did you mean --format?"},
		{[]string{"up", "--lisen", "x"}, "did you mean --listen?"},
		{[]string{"xyzzy"}, ""},
		{[]string{"tail", "x", "--zzzzzz"}, ""},
	} {
		root := newRoot()
		root.SetArgs(c.args)
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		err := root.ExecuteContext(t.Context())
		if exitCode(err) != exitUsage {
			t.Errorf("%q: exit code %d (%v), want %d", c.args, exitCode(err), err, exitUsage)
			continue
		}
		if text := err.Error(); !strings.Contains(text, c.want) || c.want == "" && strings.Contains(text, "did you mean") {
			t.Errorf("%q: %s, want %q", c.args, text, c.want)
		}
	}
}

func TestEditDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"tail", "tail", 0}, {"tial", "tail", 1}, {"taill", "tail", 1}, {"til", "tail", 1}, {"tool", "tail", 2}} {
		if got := editDistance(c.a, c.b); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.a, c.b, got, c.want)
		}
		if got := editDistance(c.b, c.a); got != c.want {
			t.Errorf("from %q to %q: %d, want %d", c.b, c.a, got, c.want)
		}
	}
}

// TestQuotaUnit: of a bare number nobody knows what it counts.
func TestQuotaUnit(t *testing.T) {
	for text, want := range map[string]units.Bytes{"0": 0, "10MiB": 10 << 20, "1.5k": 1536, "10B": 10} {
		var s sizeWithUnit
		if err := s.Set(text); err != nil || units.Bytes(s) != want {
			t.Errorf("%q is %v, %v; want %v", text, units.Bytes(s), err, want)
		}
	}
	var s sizeWithUnit
	for _, text := range []string{"10", " 7 ", "1.5"} {
		if err := s.Set(text); err == nil || !strings.Contains(err.Error(), "has no unit") {
			t.Errorf("%q: %v", text, err)
		}
	}
	c := &categories{}
	if _, err := c.run(t, "create", "x", "--quota", "10"); exitCode(err) != exitUsage || !strings.Contains(err.Error(), "10MiB") {
		t.Errorf("created with exit code %d, %v", exitCode(err), err)
	}
}

// TestConfirmName: only the name itself confirms.
func TestConfirmName(t *testing.T) {
	for answer, good := range map[string]bool{"access\n": true, "\taccess\n": true, "access": true, "y\n": false, "\n": false, "": false, "Access\n": false} {
		var out bytes.Buffer
		err := confirmName(t.Context(), strings.NewReader(answer), &out, "delete category access", "access")
		if (err == nil) != good || !strings.Contains(out.String(), "Type access to go on") {
			t.Errorf("%q: %v after %q", answer, err, out.String())
		}
	}
}

// TestInputsOfFiles: files are decompressed by their names, and may be messages as a whole.
func TestInputsOfFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		var b bytes.Buffer
		switch filepath.Ext(name) {
		case ".gz":
			for part := range strings.SplitAfterSeq(content, "\n") { // a file of several parts, as gzip appends them
				w := gzip.NewWriter(&b)
				_, _ = io.WriteString(w, part)
				_ = w.Close()
			}
		case ".zst":
			w, err := zstd.NewWriter(&b)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(w, content)
			_ = w.Close()
		default:
			b.WriteString(content)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain, zipped, packed := write("a", "1\n2\n"), write("b.gz", "3\n4\n"), write("c.zst", "5\n6")
	got, places, err := readAll(t, newLineReader(100, ""), nil, plain, zipped, packed)
	if want := []string{"1", "2", "3", "4", "5", "6"}; err != nil || !slices.Equal(got, want) || places[3] != zipped+":2" {
		t.Errorf("read %q at %q, %v", got, places, err)
	}
	whole := newLineReader(5, "")
	whole.wholeFiles = true
	got, places, err = readAll(t, whole, nil, plain, write("long", "1234567\n"), zipped, packed)
	if want := []string{"1\n2\n", "3\n4\n", "5\n6"}; err != nil || !slices.Equal(got, want) || !slices.Equal(places, []string{plain, zipped, packed}) {
		t.Errorf("read whole %q at %q, %v", got, places, err)
	}
	if err := whole.tooLongError(); whole.countTooLong() != 1 || err == nil || !strings.Contains(err.Error(), "long: the file is over the limit of 5B") {
		t.Errorf("a file that is too large: %d, %v", whole.countTooLong(), err)
	}
	for _, name := range []string{"bad.gz", "bad.zst"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("this is not compressed, it only says so"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := readAll(t, newLineReader(100, ""), nil, path); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, _, err := readAll(t, newLineReader(100, ""), nil, write("empty.txt", ""), filepath.Join(dir, "a")); err != nil || len(got) != 2 {
		t.Errorf("after an empty file: %q, %v", got, err)
	}
}

// TestKeyDelimiter: the key is what stands before the first delimiter; a line without one has no key.
func TestKeyDelimiter(t *testing.T) {
	l := newLineReader(100, "")
	l.keyDelimiter = "::"
	go l.readInputs(t.Context(), strings.NewReader("k::v\n::empty key\nno key\na::b::c\n"), nil)
	var got []string
	for {
		c, err := l.takeChunk()
		if err != nil {
			break
		}
		for _, m := range c.appendMessages(nil, &producer.Message{Shard: 3, Attributes: []producer.Attribute{{Name: "h", Value: []byte("x")}}}) {
			key := "none"
			if m.Key != nil {
				key = "[" + string(m.Key) + "]"
			}
			got = append(got, key+" "+string(m.Payload))
			if m.Shard != 3 || len(m.Attributes) != 1 {
				t.Errorf("%q lacks what all share: %+v", m.Payload, m)
			}
		}
		l.releaseChunk(c)
	}
	if want := []string{"[k] v", "[] empty key", "none no key", "[a] b::c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestProduceFlags: what can't go together is refused before anything is read.
func TestProduceFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--key", "a", "--key-field", "b"}, "give one of them"},
		{[]string{"--key-delimiter", ":", "--whole-files"}, "is for lines"},
		{[]string{"--attribute", "novalue"}, "want NAME=VALUE"},
		{[]string{"--key-delimiter", `\q`}, "invalid escape"},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"produce", "log"}, c.args...))
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: exit code %d, %v; want %q", c.args, exitCode(err), err, c.want)
		}
	}
}

// TestFormatString: each part of a format string says what its help says.
func TestFormatString(t *testing.T) {
	rec := consumer.Record{
		Payload: []byte("pay load"), Key: []byte("k1"), Time: time.UnixMicro(1_795_000_000_250_000), Persisted: time.UnixMicro(1_795_000_001_000_000),
		LogicalShard: 2, SampleRate: 4, Shard: record.MakeShardID(7, 2, 1), LSN: 41, Index: 3,
	}
	for text, want := range map[string]string{
		"%s\\n":           "pay load\n",
		"%S %K":           "8 2",
		"%T %t":           "2026-11-18T11:06:40.25Z 1795000000250000",
		"%P|%p":           "2026-11-18T11:06:41Z|1795000001000000",
		"%d %n %l %i":     "7/2/1 2 41 3",
		"%o":              "7/2/1/41/3",
		"%r%%":            "4%",
		"[%h] [%{host}]":  "[] []",
		`\t\x41\\\r\0`:    "\tA\\\r\x00",
		"no parts at all": "no parts at all",
	} {
		format, err := parseFormat(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got, err := format([]byte(">"), &rec); err != nil || string(got) != ">"+want {
			t.Errorf("%q prints %q, %v; want %q", text, got, err, want)
		}
	}
	rec.Key, rec.SampleRate = nil, 0
	format, err := parseFormat("%k/%K/%r")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := format(nil, &rec); string(got) != "/-1/1" {
		t.Errorf("without a key and a rate: %q", got)
	}
	for text, want := range map[string]string{"%": "single %", "%y": "unknown part %y", `\q`: "invalid escape", "%{host": "want %{NAME}", "%{}": "want %{NAME}", `\x4`: "invalid escape"} {
		if _, err := parseFormat(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
