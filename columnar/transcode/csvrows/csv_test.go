package csvrows

import (
	"bytes"
	"encoding/csv"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// What encoding/csv reads is read alike, and what it refuses is refused.
func TestCSVAgrees(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		text := rapid.StringOf(rapid.SampledFrom([]rune("a,,\"\n\r1 é"))).Draw(rt, "text")
		checkCSV(rt, text)
	})
}

func checkCSV(t interface{ Fatalf(string, ...any) }, text string) {
	if strings.HasPrefix(text, "\uFEFF") {
		return // encoding/csv knows no byte order marks
	}
	r := csv.NewReader(strings.NewReader(text))
	r.FieldsPerRecord = -1
	cut := csvReader{c: &csvPlan{delimiter: []byte(",")}}
	rest := []byte(text)
	for {
		for len(rest) > 0 && (rest[0] == '\n' || len(rest) > 1 && rest[0] == '\r' && rest[1] == '\n') {
			rest = rest[bytes.IndexByte(rest, '\n')+1:]
		}
		want, err := r.Read()
		if err == io.EOF || len(rest) == 0 {
			if (err == io.EOF) != (len(rest) == 0) && string(rest) != "\r" {
				t.Fatalf("%q: %v, and %q is left", text, err, rest)
			}
			return
		}
		n, end, _, why := cut.cutLine(rest, math.MaxInt)
		if (err != nil) != (why != "") {
			t.Fatalf("%q: encoding/csv says %v, here %q", text, err, why)
		}
		if err != nil {
			return // they go on at different positions
		}
		var got []string
		for _, c := range cut.cells {
			// encoding/csv takes line ends inside of cells as line feeds.
			cell := strings.ReplaceAll(string(cut.cellText(rest, c)), "\r\n", "\n")
			got = append(got, cell)
		}
		if n != len(want) || !slices.Equal(got, want) {
			t.Fatalf("%q: got %q, want %q", text, got, want)
		}
		rest = rest[end:]
	}
}

func FuzzCut(f *testing.F) {
	for _, s := range []string{"a,b\n1,\"x\"\"\n\"\n", "\"", "a\"b\n", "\r\n,,\r", "\uFEFF1,2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) { checkCSV(t, text) })
}
