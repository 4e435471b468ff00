package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func order(key uint64, urls []string) []string {
	urls = slices.Clone(urls)
	slices.SortFunc(urls, func(a, b string) int { return cmp.Compare(weightOf(key, b), weightOf(key, a)) })
	return urls
}

// The order of the others does not depend on who is there: keys move only from one that leaves, and only to one that joins.
func TestRendezvousStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		urls := rapid.SliceOfNDistinct(rapid.StringMatching(`http://[a-z0-9.]{1,20}:7420`), 2, 20, rapid.ID).Draw(t, "urls")
		key := rapid.Uint64().Draw(t, "key")
		all := order(key, urls)
		if !slices.Equal(all, order(key, rapid.Permutation(urls).Draw(t, "permutation"))) {
			t.Fatal("the order depends on the list's")
		}
		gone := rapid.IntRange(0, len(urls)-1).Draw(t, "gone")
		left := slices.Delete(slices.Clone(urls), gone, gone+1)
		if !slices.Equal(order(key, left), slices.DeleteFunc(slices.Clone(all), func(u string) bool { return u == urls[gone] })) {
			t.Fatal("the others changed their order")
		}
	})
}

// Each instance is first, and second, for about the same number of keys.
func TestRendezvousFair(t *testing.T) {
	urls := make([]string, 10)
	for i := range urls {
		urls[i] = fmt.Sprintf("http://10.0.0.%d:7420", i)
	}
	const keys = 20_000
	first, second := make(map[string]int), make(map[string]int)
	for key := range uint64(keys) {
		o := order(key, urls)
		first[o[0]]++
		second[o[1]]++
	}
	for _, u := range urls {
		// 2,000 are expected, with a standard deviation of 42.
		if n, m := first[u], second[u]; n < 1750 || n > 2250 || m < 1750 || m > 2250 {
			t.Errorf("%s is first for %d keys, second for %d", u, n, m)
		}
	}
}
