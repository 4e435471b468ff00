package placement_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/placement"
)

func mustLayout(t testing.TB, kind placement.Kind, field string, shards uint32) *placement.Layout {
	t.Helper()
	l, err := placement.NewLayout(kind, field, shards)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestVectors: the vectors of docs/format/placement.md. Other languages place messages by them; they never change.
func TestVectors(t *testing.T) {
	f, err := os.Open(filepath.Join("..", "..", "..", "docs", "format", "placement.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	hashes, tags, payloads, ranged := 0, 0, 0, 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		cells := strings.Split(strings.Trim(lines.Text(), "| "), " | ")
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		switch {
		case len(cells) == 5 && strings.HasPrefix(cells[1], "0x"): // value, hash, shards of 8, 16 and 10000
			value := []byte(cells[0])
			if cells[0] == "(empty)" {
				value = nil
			}
			hashes++
			if got := fmt.Sprintf("%#016x", placement.Hash(value)); got != cells[1] {
				t.Errorf("%q: hash %s, the page has %s", value, got, cells[1])
			}
			for i, shards := range []uint32{8, 16, 10_000} {
				if got := fmt.Sprint(mustLayout(t, placement.ByKey, "", shards).ShardOf(value)); got != cells[2+i] {
					t.Errorf("%q of %d: shard %s, the page has %s", value, shards, got, cells[2+i])
				}
			}
		case len(cells) == 4 && strings.HasPrefix(cells[3], "0x"): // kind, path, shards, tag
			kind := map[string]placement.Kind{"key": placement.ByKey, "field": placement.ByField}[cells[0]]
			n, err := strconv.ParseUint(cells[2], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			tags++
			if got := fmt.Sprintf("0x%06x", mustLayout(t, kind, strings.Trim(cells[1], "-"), uint32(n)).Tag()); got != cells[3] {
				t.Errorf("%v: tag %s", cells, got)
			}
		case len(cells) == 5 && strings.HasPrefix(cells[4], "0x"): // kind, path, shards, ranges, tag
			kind := map[string]placement.Kind{"key": placement.ByKey, "field": placement.ByField}[cells[0]]
			var ranges []placement.Range
			for text := range strings.FieldsSeq(cells[3]) {
				var r placement.Range
				if _, err := fmt.Sscanf(text, "%d:%x", &r.Shard, &r.From); err != nil {
					t.Fatal(err)
				}
				ranges = append(ranges, r)
			}
			shards, err := strconv.ParseUint(cells[2], 10, 32)
			if err != nil {
				t.Fatal(err)
			}
			l, err := placement.NewRangedLayout(kind, strings.Trim(cells[1], "-"), uint32(shards), ranges)
			if err != nil {
				t.Fatal(err)
			}
			ranged++
			if got := fmt.Sprintf("0x%06x", l.Tag()); got != cells[4] {
				t.Errorf("%v: tag %s", cells, got)
			}
		case len(cells) == 3 && strings.HasPrefix(cells[0], "{"): // payload, path, canonical text
			path, err := placement.ParsePath(cells[1])
			if err != nil {
				t.Fatal(err)
			}
			payloads++
			text, ok := path.Find([]byte(cells[0]), new(placement.Scratch))
			if !ok {
				text = []byte("(none)")
			}
			if string(text) != cells[2] {
				t.Errorf("%s of %s is %q, the page has %q", cells[1], cells[0], text, cells[2])
			}
		}
	}
	if hashes < 4 || tags < 3 || payloads < 10 || ranged < 2 {
		t.Errorf("the page has %d hashes, %d tags, %d payloads and %d layouts with ranges", hashes, tags, payloads, ranged)
	}
}

// TestGrowth: twice as many shards divide each shard in two, and all shards get messages.
func TestGrowth(t *testing.T) {
	four, eight := mustLayout(t, placement.ByKey, "", 4), mustLayout(t, placement.ByKey, "", 8)
	used := map[uint32]int{}
	for i := range 8000 {
		key := fmt.Append(nil, "user-", i)
		used[eight.ShardOf(key)]++
		if eight.ShardOf(key)/2 != four.ShardOf(key) {
			t.Fatalf("%s goes from shard %d to %d", key, four.ShardOf(key), eight.ShardOf(key))
		}
	}
	for shard := range uint32(8) {
		if n := used[shard]; n < 800 || n > 1200 {
			t.Errorf("shard %d has %d of 8000 keys", shard, n)
		}
	}
}

// TestRanges: equal ranges place as the number of shards does, a split moves the upper half of one range alone, and lists that are none are
// refused.
func TestRanges(t *testing.T) {
	for _, shards := range []uint32{1, 2, 3, 7, 64, 255} {
		plain, equal := mustLayout(t, placement.ByKey, "", shards), placement.EqualRanges(shards)
		ranged, err := placement.NewRangedLayout(placement.ByKey, "", shards, equal)
		if err != nil {
			t.Fatal(err)
		}
		at := int(shards) / 2
		end := uint64(math.MaxUint64)
		if at+1 < len(equal) {
			end = equal[at+1].From - 1
		}
		middle := equal[at].From + (end-equal[at].From)/2 + 1
		split, err := placement.NewRangedLayout(placement.ByKey, "", shards, slices.Insert(slices.Clone(equal), at+1, placement.Range{Shard: 1024, From: middle}))
		if err != nil || split.Tag() == ranged.Tag() || split.Tag() == plain.Tag() || split.Shards() != shards {
			t.Fatal(split, err)
		}
		for i := range 3000 {
			key := fmt.Append(nil, "user-", i)
			want := plain.ShardOf(key)
			if got := ranged.ShardOf(key); got != want {
				t.Fatalf("%s is in shard %d of %d by ranges, %d by number", key, got, shards, want)
			}
			if hash := placement.Hash(key); hash >= middle && hash <= end {
				want = 1024
			}
			if got := split.ShardOf(key); got != want {
				t.Fatalf("%s is in shard %d after a split, want %d", key, got, want)
			}
		}
	}
	for name, ranges := range map[string][]placement.Range{
		"a gap at the beginning": {{From: 1}},
		"no order":               {{}, {Shard: 1, From: 9}, {Shard: 2, From: 8}},
		"an empty one":           {{}, {Shard: 1, From: 9}, {Shard: 2, From: 9}},
		"very many":              placement.EqualRanges(placement.MaxRanges + 1),
	} {
		if l, err := placement.NewRangedLayout(placement.ByKey, "", 3, ranges); err == nil {
			t.Errorf("%s: %v", name, l)
		}
	}
}

func TestTags(t *testing.T) {
	seen := map[uint32]string{}
	for _, field := range []string{"a", "a.b", `"a.b"`, "ab"} {
		for _, shards := range []uint32{1, 2, 1000} {
			l := mustLayout(t, placement.ByField, field, shards)
			name := fmt.Sprint(field, shards)
			if other, taken := seen[l.Tag()]; taken || l.Tag() == 0 || l.Tag() >= placement.Unplaced {
				t.Errorf("%s and %s have tag %#x", name, other, l.Tag())
			}
			seen[l.Tag()] = name
		}
	}
	if _, err := placement.NewLayout(placement.ByKey, "a", 1); err == nil {
		t.Error("a layout by key has a field")
	}
}

func TestParsePath(t *testing.T) {
	for text, want := range map[string]string{
		"a": "[a]", "a.b.c": "[a b c]", `"a.b".c`: "[a.b c]", `"say ""x"""`: `[say "x"]`, "client_ip": "[client_ip]", `""`: "[]",
	} {
		if p, err := placement.ParsePath(text); err != nil || fmt.Sprint([]string(p)) != want {
			t.Errorf("%s: %q, %v", text, p, err)
		}
	}
	for _, text := range []string{"", ".", "a.", ".a", "a..b", `"a`, `"a"b`, "\xff", strings.Repeat("a", placement.MaxPathBytes+1), strings.Repeat("a.", placement.MaxSteps) + "a"} {
		if p, err := placement.ParsePath(text); err == nil {
			t.Errorf("%.40q is the path %q", text, p)
		}
	}
}

// TestIntegers: numbers that are equal have one text, however they are written.
func TestIntegers(t *testing.T) {
	path, _ := placement.ParsePath("n")
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.Int64().Draw(rt, "n")
		want := strconv.FormatInt(n, 10)
		spellings := []string{want, want + ".0", want + ".000e0", want + "E+0"}
		if n != 0 { // no number begins with 00
			spellings = append(spellings, want+"0e-1", want+"00.0E-2")
		}
		if n%100 == 0 && n != 0 {
			spellings = append(spellings, strconv.FormatInt(n/100, 10)+"e2")
		}
		if n >= 0 {
			spellings = append(spellings, "0."+want+"e"+strconv.Itoa(len(want)))
		}
		spelling := rapid.SampledFrom(spellings).Draw(rt, "spelling")
		got, ok := path.Find([]byte(`{"n":`+spelling+`}`), new(placement.Scratch))
		if !ok || string(got) != want {
			rt.Fatalf("%s is %q", spelling, got)
		}
	})
}

// TestIsCanonical: what readers may look for is what a writer finds, from the string and from the number.
func TestIsCanonical(t *testing.T) {
	for text, want := range map[string]bool{
		"": true, "a": true, "10.0.0.1": true, "42": true, "-7": true, "0": true, "007": true, "+1": true, "null": true, "true": true, "1e": true, "1.": true,
		"1.0": false, "1e2": false, "1.5": false, "-0": false, "123456789012345678901": false, "NaN": false, "Infinity": false, "{}": false, "[1]": false, "a\ufffd": false,
	} {
		if got := placement.IsCanonical(text); got != want {
			t.Errorf("IsCanonical(%q) = %v", text, got)
		}
	}
}

// findNaively is Find by encoding/json; ok is false unless the payload is valid.
func findNaively(path []string, payload []byte) (raw json.RawMessage, ok, valid bool) {
	if !json.Valid(payload) {
		return nil, false, false
	}
	raw = payload
	for _, step := range path {
		d := json.NewDecoder(strings.NewReader(string(raw)))
		if open, err := d.Token(); err != nil || open != json.Delim('{') {
			return nil, false, true
		}
		found := false
		for d.More() {
			name, err := d.Token()
			if err != nil {
				return nil, false, true
			}
			var value json.RawMessage
			if err := d.Decode(&value); err != nil {
				return nil, false, true
			}
			if name == step && !found { // the first of equal keys counts
				raw, found = value, true
			}
		}
		if !found {
			return nil, false, true
		}
	}
	return raw, true, true
}

// FuzzFind: Find agrees with encoding/json on every valid payload, and does nothing bad with others.
func FuzzFind(f *testing.F) {
	for _, payload := range []string{
		`{"a":{"b":"x"}}`, `{"a":{"b":1.50e1}}`, `{"a":1,"a":{"b":2}}`, `{"\u0061":{"b":"\ud83d\ude00\ud800\n"}}`, `{"x":["}",{"a":"\\"}],"a":{"b":null}}`,
		` { "a" : { "b" : [1, 2] } } `, `{"a":{"b":"`, `[]`, ``, `{"a":{"b":-0}}`, `{"a":{"b":123456789012345678901}}`, `{"c":"\\\"","a":{"b":true}}`,
	} {
		f.Add([]byte(payload))
	}
	path, err := placement.ParsePath("a.b")
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, payload []byte) {
		var scratch placement.Scratch
		got, ok := path.Find(payload, &scratch)
		raw, want, valid := findNaively(path, payload)
		if !valid {
			return // queries read nothing of it, whatever is found
		}
		var text string
		switch {
		case want && string(raw) == "null":
			want = false
		case want && raw[0] == '"':
			if !strings.Contains(string(raw), `\`) {
				text = string(raw[1 : len(raw)-1]) // as it is, also if it is not UTF-8
			} else if err := json.Unmarshal(raw, &text); err != nil {
				t.Fatal(err)
			} else if strings.ContainsRune(text, '\ufffd') {
				return // encoding/json replaces bytes that are not UTF-8
			}
		case want && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9'):
			if ok && !placement.IsCanonical(string(got)) && string(got) != string(raw) {
				t.Fatalf("%q: number %s has the text %q", payload, raw, got)
			}
			text = string(got)
		case want:
			text = string(raw)
		}
		if ok != want || ok && string(got) != text {
			t.Fatalf("%q: %q, %v; want %q, %v", payload, got, ok, text, want)
		}
	})
}

// TestFindAllocatesNothing: placing a message costs no memory.
func TestFindAllocatesNothing(t *testing.T) {
	l := mustLayout(t, placement.ByField, "user.id", 8)
	payload := []byte(`{"path":"/a\"b","status":200,"nested":{"a":[1,2,{"b":"c"}]},"user":{"name":"x","id":"u\u0031-17"}}`)
	var scratch placement.Scratch
	if n := testing.AllocsPerRun(100, func() {
		if shard, ok := l.Place(nil, payload, &scratch); !ok || shard != l.ShardOf([]byte("u1-17")) {
			t.Fatal(shard, ok)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// How fast messages are placed.
//
//	go test ./internal/format/placement -run '^$' -bench Place -count 6
func BenchmarkPlace(b *testing.B) {
	payload := []byte(`{"time":"2026-11-21T09:00:00Z","client_ip":"203.0.113.7","method":"GET","path":"/index.html","status":200,"bytes":5120,"user":{"id":17}}`)
	for _, field := range []string{"", "client_ip", "user.id"} {
		kind := placement.ByField
		if field == "" {
			kind = placement.ByKey
		}
		l := mustLayout(b, kind, field, 8)
		b.Run("by="+field, func(b *testing.B) {
			var scratch placement.Scratch
			b.ReportAllocs()
			for b.Loop() {
				l.Place([]byte("user-17"), payload, &scratch)
			}
		})
	}
}
