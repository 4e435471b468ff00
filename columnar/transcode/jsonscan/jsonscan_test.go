package jsonscan

import (
	"bytes"
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// withBoth runs a check with the assembly, where there is some, and without.
func withBoth(t *testing.T, check func(t *testing.T)) {
	t.Run("machine", check)
	t.Run("portable", func(t *testing.T) {
		defer UsePortable()()
		check(t)
	})
}

// randomText is mostly what matters to JSON.
func randomText(rng *rand.Rand, n int) []byte {
	const alphabet = "{}[]:,\"\"\"\\\\ \t\n\r\x00\x1a\x0c\x1f abE0e9e-\x7f\x80\xc3\xa9\xff"
	b := make([]byte, n)
	for i := range b {
		if rng.IntN(20) == 0 {
			b[i] = byte(rng.IntN(256))
		} else {
			b[i] = alphabet[rng.IntN(len(alphabet))]
		}
	}
	return b
}

func TestIndexHasEveryByteInItsClasses(t *testing.T) {
	withBoth(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		var x Index
		for n := range 400 {
			b := randomText(rng, n)
			x.Reset(b)
			for i := range (n + 63) / 64 * 64 {
				c := byte(' ') // what stands after the end
				if i < n {
					c = b[i]
				}
				k, bit := &x.blocks[i/64], i%64
				got := [...]bool{
					k.Special>>bit&1 != 0, k.Back>>bit&1 != 0, k.Control>>bit&1 != 0, k.Op>>bit&1 != 0, k.Space>>bit&1 != 0, k.High>>bit&1 != 0,
				}
				want := [...]bool{
					c == '"' || c == '\\' || c < 0x20, c == '\\', c < 0x20, strings.IndexByte("{}[]:,", c) >= 0, strings.IndexByte(" \t\n\r", c) >= 0, c >= 0x80,
				}
				if got != want {
					t.Fatalf("byte %#x at %d of %d is in the classes %v, want %v", c, i, n, got, want)
				}
			}
			for range 10 {
				at := rng.IntN(n + 1)
				end := at + rng.IntN(n+1-at)
				want := bytes.IndexFunc(b[at:end], func(r rune) bool { return r >= 0x80 }) < 0
				if got := x.ASCII(at, end); got != want {
					t.Fatalf("%q is ASCII: %v", b[at:end], got)
				}
			}
		}
	})
}

// naiveString is StringEnd byte by byte.
func naiveString(b []byte, at int) (quote int, escaped bool) {
	for ; at < len(b); at++ {
		switch {
		case b[at] == '"':
			return at, escaped
		case b[at] < 0x20:
			return -1, true
		case b[at] == '\\':
			escaped = true
			if at++; at < len(b) && b[at] < 0x20 {
				return -1, true
			}
		}
	}
	return -1, true
}

// naiveSkip is Skip by recursion; -1 for a container that is damaged.
func naiveSkip(b []byte, at, depth int) int {
	space := func() {
		for at < len(b) && strings.IndexByte(" \t\n\r", b[at]) >= 0 {
			at++
		}
	}
	value := func() bool {
		if at >= len(b) {
			return false
		}
		switch b[at] {
		case '"':
			quote, _ := naiveString(b, at+1)
			at = quote + 1
			return quote >= 0
		case '{', '[':
			at = naiveSkip(b, at, depth+1)
			return at >= 0
		}
		begin := at
		for at < len(b) && b[at] > ' ' && strings.IndexByte("{}[]:,\"\\", b[at]) < 0 {
			at++
		}
		return at > begin
	}
	if depth >= MaxDepth {
		return -1
	}
	end := b[at] + 2
	at++
	for first := true; ; first = false {
		space()
		if at >= len(b) {
			return -1
		}
		if b[at] == end && first {
			return at + 1
		}
		if end == '}' {
			if b[at] != '"' {
				return -1
			}
			if !value() {
				return -1
			}
			if space(); at >= len(b) || b[at] != ':' {
				return -1
			}
			at++
			space()
		}
		if !value() {
			return -1
		}
		space()
		if at >= len(b) {
			return -1
		}
		if b[at] == end {
			return at + 1
		}
		if b[at] != ',' {
			return -1
		}
		at++
	}
}

// randomValue is a value of sound structure.
func randomValue(rng *rand.Rand, depth int) string {
	space := func() string { return strings.Repeat(" \n\t"[:1+rng.IntN(3)], max(0, rng.IntN(8)-5)*rng.IntN(30)) }
	text := func() string {
		return `"` + strings.Repeat([]string{"a", `\\`, `\"`, "é", "{", ",", `\u00e9`}[rng.IntN(7)], rng.IntN(40)) + `"`
	}
	if depth == 0 {
		return []string{"1", "true", "-12.5e3", "tru", text(), text(), "[]", "{}"}[rng.IntN(8)]
	}
	var items []string
	if rng.IntN(2) == 0 {
		for range rng.IntN(5) {
			items = append(items, space()+randomValue(rng, depth-1)+space())
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	for range rng.IntN(5) {
		items = append(items, space()+text()+space()+":"+space()+randomValue(rng, depth-1)+space())
	}
	return "{" + strings.Join(items, ",") + "}"
}

func TestSkipIsAsByRecursion(t *testing.T) {
	withBoth(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(2, 2))
		var x Index
		sound := 0
		for range 20_000 {
			b := []byte(strings.Repeat(" ", rng.IntN(70)))
			start := len(b)
			b = append(b, []string{"[", "{"}[rng.IntN(2)]...)
			b = append(b[:start], randomValue(rng, 1+rng.IntN(3))...)
			if b[start] != '{' && b[start] != '[' {
				continue
			}
			if rng.IntN(2) == 0 {
				i := start + rng.IntN(len(b)-start)
				b[i] = randomText(rng, 1)[0]
			}
			b = append(b, randomText(rng, rng.IntN(80))...)
			if b[start] != '{' && b[start] != '[' {
				continue
			}
			x.Reset(b)
			want := naiveSkip(b, start, 0)
			got, fault := x.Skip(start, len(b), 0)
			if got != want || (got < 0) == fault.OK() {
				t.Fatalf("the container in %q at %d ends at %d (%s), want %d", b, start, got, fault.Why, want)
			}
			if want > 0 {
				sound++
				// A limit within it makes it one that does not end.
				limit := start + 1 + rng.IntN(want-start-1)
				if got, _ := x.Skip(start, limit, 0); got != -1 {
					t.Fatalf("the container in %q at %d ends at %d, behind the limit %d", b, start, got, limit)
				}
			}
		}
		if sound < 1000 {
			t.Errorf("only %d containers were sound", sound)
		}
	})
}

func TestStringsEnd(t *testing.T) {
	withBoth(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(3, 3))
		var x Index
		for range 5_000 {
			b := []byte(strings.Repeat("x", rng.IntN(200)))
			b = append(b, randomText(rng, rng.IntN(20))...)
			b = append(b, strings.Repeat("x", rng.IntN(200))...)
			x.Reset(b)
			at := rng.IntN(len(b) + 1)
			limit := at + rng.IntN(len(b)-at+1)
			want, wantEscaped := naiveString(b[:limit], at)
			got, escaped := x.StringEnd(at, limit)
			if got != want || got >= 0 && escaped != wantEscaped {
				t.Fatalf("the string in %q from %d up to %d ends at %d, %v, want %d, %v", b, at, limit, got, escaped, want, wantEscaped)
			}
			if fault := x.StringFault(at, limit); got < 0 && (fault.OK() || fault.At > limit) {
				t.Fatalf("%q from %d up to %d: fault %+v", b, at, limit, fault)
			}
		}
	})
}

func TestDepthIsBounded(t *testing.T) {
	withBoth(t, func(t *testing.T) {
		for _, open := range []string{"[", `{"a":`} {
			closing := map[string]string{"[": "]", `{"a":`: "}"}[open]
			for n, ok := range map[int]bool{MaxDepth: true, MaxDepth + 1: false, 1_000_000: false} {
				b := []byte(strings.Repeat(open, n-1) + open + "1" + strings.Repeat(closing, n))
				if open == "[" {
					b = []byte(strings.Repeat(open, n) + strings.Repeat(closing, n))
				}
				var x Index
				x.Reset(b)
				end, fault := x.Skip(0, len(b), 0)
				if (end == len(b)) != ok || !ok && fault.Why != TooDeep {
					t.Errorf("%d times %s ends at %d of %d: %s", n, open, end, len(b), fault.Why)
				}
			}
		}
	})
}

func TestSearch(t *testing.T) {
	withBoth(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(4, 4))
		for range 20_000 {
			b := make([]byte, rng.IntN(300))
			for i := range b {
				b[i] = "ab0e9E"[rng.IntN(6)]
			}
			needle := make([]byte, rng.IntN(6))
			for i := range needle {
				needle[i] = "ab0e9E"[rng.IntN(6)]
			}
			if got, want := Search(b, needle), bytes.Index(b, needle); got != want {
				t.Fatalf("%q is in %q at %d, want %d", needle, b, got, want)
			}
			if len(needle) > 1 {
				i := rng.IntN(len(needle) - 1)
				j := i + 1 + rng.IntN(len(needle)-1-i)
				if got, want := SearchPair(b, needle, i, j), bytes.Index(b, needle); got != want {
					t.Fatalf("%q is in %q at %d by its bytes %d and %d, want %d", needle, b, got, i, j, want)
				}
			}
			want := -1
			for i := range max(len(b), 1) - 1 {
				if b[i] >= '0' && b[i] <= '9' && (b[i+1] == 'e' || b[i+1] == 'E') {
					want = i
					break
				}
			}
			if got := SearchExponent(b); got != want {
				t.Fatalf("an exponent is in %q at %d, want %d", b, got, want)
			}
		}
	})
}

func FuzzScalar(f *testing.F) {
	for _, s := range []string{"null", "true", "false", "0", "-0", "01", "1.5e+10", "1.", "1.25", "-0.0", "123456789.123456", "0.000001", ".5", "1e", "-", "+1", "NaN", "Infinity", "0x10", "1_000", "tru", "123456789012345678", "1234567890123456789", "-12345678", "12345678.12345678", "00000000", "123456789012.345"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || ScalarEnd(b, 0, len(b)) != len(b) || b[0] == '"' {
			return
		}
		kind := Scalar(b)
		if valid := json.Valid(b); (kind != Malformed) != valid {
			t.Fatalf("%q is of kind %d, and valid for encoding/json: %v", b, kind, valid)
		}
		if v, end, ok := ShortInteger(b, 0, len(b)); ok {
			var want int64
			if err := json.Unmarshal(b, &want); err != nil || v != want || end != len(b) || kind != Integer {
				t.Fatalf("%q is the integer %d, for encoding/json %d, %v", b, v, want, err)
			}
		}
		longer := append(slices.Clip(b), ",1234567890"...)
		if v, end, ok := ShortInteger(b, 0, len(b)); !ok {
			if _, _, ok = ShortInteger(longer, 0, len(longer)); ok {
				t.Fatalf("%q is no integer, and one where more follows", b)
			}
		} else if again, endAgain, ok := ShortInteger(longer, 0, len(longer)); !ok || again != v || endAgain != end {
			t.Fatalf("%q is the integer %d, and %d where more follows", b, v, again)
		}
		if v, places, end, ok := ShortDecimal(b, 0, len(b)); !ok {
			if _, _, _, ok = ShortDecimal(longer, 0, len(longer)); ok {
				t.Fatalf("%q is no decimal, and one where more follows", b)
			}
		} else if again, placesAgain, endAgain, ok := ShortDecimal(longer, 0, len(longer)); !ok || again != v || placesAgain != places || endAgain != end {
			t.Fatalf("%q is %d with %d places, and %d with %d where more follows", b, v, places, again, placesAgain)
		}
		if v, places, end, ok := ShortDecimal(b, 0, len(b)); ok {
			var want float64
			if err := json.Unmarshal(b, &want); err != nil || float64(v)/math.Pow10(places) != want || end != len(b) || kind != Fraction {
				t.Fatalf("%q is %d with %d places, for encoding/json %v, %v", b, v, places, want, err)
			}
		}
		if _, _, ok := ShortInteger(b, 0, len(b)); !ok && kind == Integer && len(b) <= 18 {
			t.Fatalf("%q is no short integer", b)
		}
	})
}

func FuzzUnescape(f *testing.F) {
	for _, s := range []string{`a\nb`, `\ud83d\ude00`, `\ud800`, `\udc00\ud800x`, `\ud800\u0041`, `\q`, `\u12`, `\`, `\u00e9\/`, `\ud83d\ud83d\ude00`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		if quote, _ := naiveString([]byte(raw+`"`), 0); quote != len(raw) || !utf8.ValidString(raw) {
			return // not what stands between quotes
		}
		var want string
		err := json.Unmarshal([]byte(`"`+raw+`"`), &want)
		got, fault := AppendUnescaped(nil, []byte(raw))
		if fault.OK() != (err == nil) || err == nil && string(got) != want || fault.At > len(raw) {
			t.Fatalf("%q becomes %q, %+v, for encoding/json %q, %v", raw, got, fault, want, err)
		}
	})
}

func FuzzSkip(f *testing.F) {
	for _, s := range []string{`{"a":[1,2,{"b":"\\\""}]}`, `[1 2]`, `{"a" 1}`, `[,]`, `[1,]`, `{"a":}`, `[tru]`, "[\"\x01\"]", `[\"]`, strings.Repeat("[", 200)} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || b[0] != '{' && b[0] != '[' {
			return
		}
		var x Index
		x.Reset(b)
		end, fault := x.Skip(0, len(b), 0)
		if want := naiveSkip(b, 0, 0); end != want {
			t.Fatalf("the container in %q ends at %d (%s), want %d", b, end, fault.Why, want)
		}
		// Whatever encoding/json takes has sound structure.
		if json.Valid(b) && end < 0 && fault.Why != TooDeep {
			t.Fatalf("%q is valid, and damaged: %s", b, fault.Why)
		}
		undo := UsePortable()
		defer undo()
		x.Reset(b)
		if again, faultAgain := x.Skip(0, len(b), 0); again != end || faultAgain != fault {
			t.Fatalf("%q: %d, %+v with assembly, %d, %+v without", b, end, fault, again, faultAgain)
		}
	})
}
