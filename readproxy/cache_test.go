package readproxy

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	"scribe/internal/base/config"
	scribev1 "scribe/proto/scribe/v1"
)

func testKey(n int) blockKey { return blockKey{offset: uint64(n)} }

// Whatever is added, asked for and dropped: the bound holds, the count of bytes is right, and a block that is found is the one that was
// added last under its key.
func TestCacheProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c, err := newCache(rapid.Int64Range(0, 20_000).Draw(t, "limit"))
		if err != nil {
			t.Fatal(err)
		}
		added := map[blockKey]*checkedBlock{}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			k := testKey(rapid.IntRange(0, 30).Draw(t, "key"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				b := &checkedBlock{data: make([]byte, rapid.IntRange(0, 6000).Draw(t, "size")), sums: make([]uint32, rapid.IntRange(0, 3).Draw(t, "sums"))}
				if b.chargedBytes() <= c.limit {
					added[k] = b
				}
				c.addBlock(k, b, rapid.Bool().Draw(t, "wanted"))
			case 2:
				if b, _ := c.getBlock(k); b != nil && b != added[k] {
					t.Fatal("another block was found")
				}
			default:
				if b := added[k]; b != nil {
					c.dropDamaged(k, b)
					if found, _ := c.getBlock(k); found != nil {
						t.Fatal("it is still there")
					}
				}
			}
			var sum int64
			for _, b := range append(c.mu.trial.Values(), c.mu.proven.Values()...) {
				sum += b.chargedBytes()
			}
			if s := c.readStats(); s.bytes != sum || sum > c.limit || s.proven > c.provenLimit {
				t.Fatalf("%+v, but the blocks have %d bytes", s, sum)
			}
		}
		c.clear()
		if s := c.readStats(); s.bytes != 0 || s.blocks != 0 {
			t.Fatalf("%+v after clear", s)
		}
	})
}

// A second look is told apart once: that is when a block has shown to be of use to more than one.
func TestCacheTellsTheSecondLook(t *testing.T) {
	c, _ := newCache(1 << 20)
	b := &checkedBlock{data: make([]byte, 100)}
	c.addBlock(testKey(1), b, false)
	for i, want := range []bool{true, false, false} {
		if got, first := c.getBlock(testKey(1)); got != b || first != want {
			t.Errorf("look %d: first is %v", i, first)
		}
	}
}

// TestReplayLeavesTheTail simulates consumers that follow a tail, each some blocks after, beside one that replays a history, each block
// once, at fifty times the speed. A plain LRU of the same size loses the tail to the replay.
func TestReplayLeavesTheTail(t *testing.T) {
	const (
		blocks    = 100 // that the cache holds
		followers = 10
		behind    = 30 // at most
		replay    = 50 // blocks of the history for each block of the tail
		steps     = 5000
	)
	run := func(get func(k blockKey) bool, add func(k blockKey, tail bool)) float64 {
		rng := rand.New(rand.NewPCG(1, 2))
		lag := make([]int, followers)
		for i := range lag {
			lag[i] = rng.IntN(behind)
		}
		hits, asked := 0, 0
		look := func(k blockKey, tail bool) {
			ok := get(k)
			if !ok {
				add(k, tail)
			}
			if tail {
				asked++
				if ok {
					hits++
				}
			}
		}
		for step := range steps {
			for _, l := range lag {
				if n := step - l; n >= 0 {
					look(testKey(n), true)
				}
			}
			for i := range replay {
				look(testKey(1_000_000+step*replay+i), false)
			}
		}
		return float64(hits) / float64(asked)
	}
	b := &checkedBlock{data: make([]byte, 1000)}
	lru, _ := simplelru.NewLRU[blockKey, *checkedBlock](blocks, nil)
	plain := run(func(k blockKey) bool { _, ok := lru.Get(k); return ok }, func(k blockKey, _ bool) { lru.Add(k, b) })
	for _, young := range []bool{true, false} {
		c, _ := newCache(blocks * b.chargedBytes())
		ours := run(func(k blockKey) bool { got, _ := c.getBlock(k); return got != nil }, func(k blockKey, tail bool) { c.addBlock(k, b, tail && young) })
		t.Logf("hits of those who follow the tail: %.3f, with a plain LRU %.3f; its blocks are young: %v", ours, plain, young)
		// Each block of the tail is fetched once when it is known to be one, else twice.
		if least := map[bool]float64{true: 0.89, false: 0.79}[young]; ours < least || ours < plain+0.1 {
			t.Errorf("hits of those who follow the tail: %.3f, with a plain LRU %.3f", ours, plain)
		}
	}
}

func TestSumsFindEveryFlip(t *testing.T) {
	data := make([]byte, 3*pieceBytes+100)
	b := &checkedBlock{data: data, sums: sumPieces(data)}
	k := blockKey{raw: true}
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.Uint64Range(0, uint64(len(data)-1)).Draw(t, "begin")
		end := rapid.Uint64Range(begin+1, uint64(len(data))).Draw(t, "end")
		at := rapid.Uint64Range(begin, end-1).Draw(t, "at")
		if !b.isIntact(&k, begin, end) {
			t.Fatal("good bytes are taken for damaged")
		}
		data[at] ^= 1
		defer func() { data[at] ^= 1 }()
		if b.isIntact(&k, begin, end) {
			t.Fatalf("byte %d of %d to %d changed, and nobody saw it", at, begin, end)
		}
	})
}

func TestRules(t *testing.T) {
	c := config.Defaults[Config]()
	c.Rules = []Rule{{Pattern: "audit.*", Memory: KeepNever, Shared: KeepReused, SharedAge: 1}, {Pattern: "*", Shared: KeepNever}}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	if r := c.ruleFor("audit.x", nil); r.Memory != KeepNever || r.Shared != KeepReused || r.SharedAge != 1 {
		t.Errorf("%+v", r)
	}
	if r := c.ruleFor("web", nil); r.Memory != KeepAlways || r.Shared != KeepNever || r.SharedAge != c.SharedAge {
		t.Errorf("%+v", r)
	}
	// What a category says itself holds in place of the rule, field by field.
	const never, reused = scribev1.CacheMode_CACHE_MODE_NEVER, scribev1.CacheMode_CACHE_MODE_REUSED
	if r := c.ruleFor("audit.x", &scribev1.CachePolicy{Memory: scribev1.CacheMode_CACHE_MODE_ALWAYS}); r.Memory != KeepAlways || r.Shared != KeepReused || r.SharedAge != 1 {
		t.Errorf("%+v", r)
	}
	if r := c.ruleFor("web", &scribev1.CachePolicy{Memory: never, Memcached: reused, MemcachedAge: durationpb.New(time.Hour)}); r.Memory != KeepNever || r.Shared != KeepReused || r.SharedAge != time.Hour {
		t.Errorf("%+v", r)
	}
	if r := c.ruleFor("web", &scribev1.CachePolicy{Memory: reused, Memcached: 77}); r.Memory != KeepAlways || r.Shared != KeepNever {
		t.Errorf("what this program does not know is not passed over: %+v", r)
	}
	c.Rules = []Rule{{Pattern: "["}, {Pattern: "a", Memory: KeepReused, Shared: 9, SharedAge: -1}}
	err := c.Validate()
	for _, want := range []string{"Rules[0]", "Rules[1]", "Rules[1].Memory", "keep(9)", "SharedAge"} {
		if err == nil || !contains(err, want) {
			t.Errorf("%s is not in %v", want, err)
		}
	}
	for _, k := range []Keep{KeepAlways, KeepNever, KeepReused} {
		text, _ := k.MarshalText()
		var back Keep
		if err := back.UnmarshalText(text); err != nil || back != k {
			t.Errorf("%v becomes %v, %v", k, back, err)
		}
	}
	if err := new(Keep).UnmarshalText([]byte("sometimes")); err == nil {
		t.Error("sometimes was taken")
	}
}
