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

// TestDistance: the distance is one of a metric's, as far as it goes, and what is done by one change costs one.
func TestDistance(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.SliceOfN(rapid.SampledFrom([]rune("abü")), 1, 8)
		a, b := word.Draw(t, "a"), word.Draw(t, "b")
		d := distance(a, b, 9)
		if (d == 0) != slices.Equal(a, b) || d != distance(b, a, 9) || d > max(len(a), len(b)) {
			t.Fatalf("%q %q: %d", string(a), string(b), d)
		}
		i := rapid.IntRange(0, len(a)-1).Draw(t, "i")
		if got := distance(a, slices.Insert(slices.Clone(a), i, 'x'), 9); got != 1 {
			t.Fatalf("one letter more: %d", got)
		}
		if limit := rapid.IntRange(0, 9).Draw(t, "limit"); distance(a, b, limit) <= limit != (d <= limit) {
			t.Fatalf("%q %q: %d, not with the limit %d", string(a), string(b), d, limit)
		}
	})
}
