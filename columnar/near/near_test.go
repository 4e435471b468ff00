package near

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	have := []string{"client_ip", "status", "Stats", "path", "user_agent", "bytes"}
	for want, names := range map[string][]string{
		"statsu":    {"status", "Stats"},
		"STATUS":    {"status", "Stats"},
		"clientip":  {"client_ip"},
		"pth":       {"path"},
		"pa":        nil,
		"usr_agnet": {"user_agent"},
		"":          nil,
		"status":    {"Stats"},
		"nothing":   nil,
	} {
		if got := Names(want, have); !slices.Equal(got, names) {
			t.Errorf("%q: %q, want %q", want, got, names)
		}
	}
	if got := Names(strings.Repeat("x", 1000), []string{strings.Repeat("x", 1001)}); got != nil {
		t.Errorf("a name beyond the bound: %d suggestions", len(got))
	}
}

func TestHint(t *testing.T) {
	for want, hint := range map[string]string{
		"ab": `did you mean "aa", "bb" or "abc"?`, "abcx": `did you mean "abc"?`, "zzzzz": "",
	} {
		if got := Hint(want, []string{"aa", "bb", "abc"}); got != hint {
			t.Errorf("%q: %s", want, got)
		}
	}
}

// TestFinder: what a finder keeps of many names is what it would keep of all, each once.
func TestFinder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringOfN(rapid.SampledFrom([]rune("abÜ")), 1, 6, -1)
		want, names := word.Draw(t, "want"), rapid.SliceOfN(word, 0, 60).Draw(t, "names")
		f := NewFinder(want)
		all := []nearCandidate{}
		for _, name := range names {
			f.Offer(name)
			x := nearCandidate{name, editDistance([]rune(strings.ToLower(want)), []rune(strings.ToLower(name)), f.limit)}
			if name != want && x.distance <= f.limit && !slices.Contains(all, x) {
				all = append(all, x)
			}
		}
		slices.SortStableFunc(all, func(a, b nearCandidate) int { return a.distance - b.distance })
		var nearest []string
		for _, x := range all[:min(len(all), maxNames)] {
			nearest = append(nearest, x.name)
		}
		if got := f.Names(); !slices.Equal(got, nearest) {
			t.Fatalf("%q of %q: %q, want %q", want, names, got, nearest)
		}
	})
}

// TestDistance compares the bounded distance with the definition.
func TestDistance(t *testing.T) {
	var slow func(a, b []rune) int
	slow = func(a, b []rune) int {
		if len(a) == 0 || len(b) == 0 {
			return len(a) + len(b)
		}
		i, j := len(a)-1, len(b)-1
		cost := 1
		if a[i] == b[j] {
			cost = 0
		}
		d := min(slow(a[:i], b)+1, slow(a, b[:j])+1, slow(a[:i], b[:j])+cost)
		if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
			d = min(d, slow(a[:i-1], b[:j-1])+1)
		}
		return d
	}
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SliceOfN(rapid.SampledFrom([]rune("abü")), 0, 5)
		a, b, limit := word.Draw(t, "a"), word.Draw(t, "b"), rapid.IntRange(0, 5).Draw(t, "limit")
		if got, want := editDistance(a, b, limit), slow(a, b); got != want && (got <= limit || want <= limit) {
			t.Fatalf("distance(%q, %q, %d) = %d, want %d", string(a), string(b), limit, got, want)
		}
	})
}

// TestDistanceOfLongNames: what is done by one change costs one, and the longest names stay within the table.
func TestDistanceOfLongNames(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.SliceOfN(rapid.SampledFrom([]rune("abü")), 1, maxName-1).Draw(t, "a")
		i := rapid.IntRange(0, len(a)-1).Draw(t, "i")
		longer := slices.Insert(slices.Clone(a), i, 'x')
		if d, e := editDistance(a, longer, 3), editDistance(longer, a, 3); d != 1 || e != 1 {
			t.Fatalf("one letter more: %d, and less: %d", d, e)
		}
		other := slices.Clone(a)
		other[i] = 'x'
		if d := editDistance(a, other, 3); d != 1 {
			t.Fatalf("one letter wrong: %d", d)
		}
	})
	a, b := []rune(strings.Repeat("a", maxName)), []rune(strings.Repeat("b", maxName))
	if d := editDistance(a, b, maxName); d != maxName {
		t.Errorf("%d", d)
	}
}
