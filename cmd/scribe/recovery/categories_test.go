package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/layout"
	"scribe/storage/blob/memory"
)

// never is for logs of which nothing is known.
func never(uint32) bool { return false }

// TestCopiedEncryption: what was encrypted since the copy was made stays so.
func TestCopiedEncryption(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		cat := &scribev1.Category{Name: "a", Id: 3, Shards: 1, Retention: durationpb.New(time.Hour)}
		rows := map[uint32]*categoryRow{3: {Name: "a", Class: 72, Shards: 1, First: 5, Last: 5, Encrypted: encrypted}}
		p := planCategories(rows, &Catalog{Categories: []*scribev1.Category{cat}, SavedAt: 10}, never, 100)
		if got := p.categories[0].GetEncrypted(); got != encrypted || (len(p.findings) > 0) != encrypted {
			t.Errorf("encrypted %v, want %v: %+v", got, encrypted, p.findings)
		}
		// The control store is complete, and right.
		p = planCategories(rows, &Catalog{Categories: []*scribev1.Category{cat}, SavedAt: 10, NextID: 4}, never, 100)
		if p.categories[0].GetEncrypted() {
			t.Error("the control store does not count")
		}
	}
}

// TestCopiedLayouts: a copy may be older than the last layout of a category, the control store is not.
func TestCopiedLayouts(t *testing.T) {
	for name, test := range map[string]struct {
		category  *scribev1.Category
		shards    uint32 // that blobs tell of
		settings  uint32
		complete  bool
		want      uint32
		forgotten bool
	}{
		"by key":                  {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}, 3, 4, false, 4, true},
		"by field, more shards":   {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_FIELD, ShardField: "a"}, 6, 4, false, 6, true},
		"by key, more in blobs":   {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}, 3, 9, false, 9, true},
		"sticky":                  {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_STICKY}, 4, 4, false, 4, false},
		"explicit, more shards":   {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_EXPLICIT}, 7, 0, false, 7, false},
		"by key, control store":   {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}, 3, 4, true, 4, false},
		"by key, without a blob":  {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_KEY}, 0, 0, false, 4, true},
		"sticky, without a blob":  {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_STICKY}, 0, 0, false, 4, false},
		"by key, known forgotten": {&scribev1.Category{Shards: 4, ShardBy: scribev1.ShardBy_SHARD_BY_KEY, LayoutsForgotten: true}, 3, 4, true, 4, true},
	} {
		t.Run(name, func(t *testing.T) {
			test.category.Name, test.category.Id, test.category.Retention = "a", 3, durationpb.New(time.Hour)
			c := &Catalog{Categories: []*scribev1.Category{test.category}, SavedAt: 10}
			if test.complete {
				c.NextID = 4
			}
			rows := map[uint32]*categoryRow{}
			if test.shards > 0 {
				rows[3] = &categoryRow{Name: "a", Class: 72, Shards: test.shards, First: 5, Last: 5}
			}
			if test.settings > 0 {
				rows[3].Settings = &layout.Settings{Shards: test.settings}
			}
			p := planCategories(rows, c, never, 100)
			if got := p.categories[0]; len(p.categories) != 1 || got.GetShards() != test.want || got.GetLayoutsForgotten() != test.forgotten || got.GetShardBy() != test.category.GetShardBy() {
				t.Errorf("recovered %v", got)
			}
			if changed := test.want != test.category.GetShards() || test.forgotten != test.category.GetLayoutsForgotten(); changed != (len(p.findings) > 0) {
				t.Errorf("findings %+v", p.findings)
			}
		})
	}
}

func TestPlanCategories(t *testing.T) {
	row := func(name string, first int64) *categoryRow {
		return &categoryRow{Name: name, Class: 72, Shards: 2, First: first, Last: first}
	}
	cat := func(name string, id uint32) *scribev1.Category {
		return &scribev1.Category{Name: name, Id: id, Shards: 9, Owner: "somebody", Retention: durationpb.New(time.Hour)}
	}
	const minute = 60_000_000
	for name, test := range map[string]struct {
		rows    map[uint32]*categoryRow
		catalog *Catalog
		// want are name, id and shards.
		want    []string
		retired []uint32
		nextID  uint64
		notes   []string
		// known are retired in a copy of the logs.
		known []uint32
	}{
		"nothing": {nextID: 1 + IDMargin},
		"blobs alone": {
			rows: map[uint32]*categoryRow{3: row("a", 5), 7: row("b", 5)}, want: []string{"a 3 2", "b 7 2"}, nextID: 8 + IDMargin,
			notes: []string{"at most the class", "at most the class"},
		},
		"a name that was used again": {
			rows: map[uint32]*categoryRow{3: row("a", 5), 7: row("a", 9)}, want: []string{"a 7 2"}, retired: []uint32{3}, nextID: 8 + IDMargin,
			notes: []string{"at most the class", "so id 3 was deleted", "at most the class"},
		},
		"a copy": {
			rows: map[uint32]*categoryRow{3: row("a", 5), 4: row("deleted", 5), 5: row("young", 10*minute)},
			// A category that never had a message is in the copy alone.
			catalog: &Catalog{Categories: []*scribev1.Category{cat("a", 3), cat("silent", 9)}, SavedAt: 10 * minute},
			want:    []string{"a 3 9", "young 5 2", "silent 9 9"}, retired: []uint32{4}, nextID: 10 + IDMargin,
			notes: []string{"it was deleted", "at most the class"},
		},
		"a name that was used again after the copy": {
			rows:    map[uint32]*categoryRow{3: row("a", 5), 8: row("a", 20*minute)},
			catalog: &Catalog{Categories: []*scribev1.Category{cat("a", 3)}, SavedAt: 10 * minute},
			want:    []string{"a 8 2"}, retired: []uint32{3}, nextID: 9 + IDMargin, notes: []string{"so id 3 was deleted", "at most the class"},
		},
		"the control store": {
			rows:    map[uint32]*categoryRow{3: row("a", 5), 4: row("erased", 5), 5: row("dropped", 5), 12: row("later", 5)},
			catalog: &Catalog{Categories: []*scribev1.Category{cat("a", 3)}, Dropped: []*scribev1.Category{cat("dropped", 5)}, NextID: 11},
			want:    []string{"a 3 9", "later 12 2"}, retired: []uint32{4, 5}, nextID: 13, notes: []string{"it was deleted", "at most the class"},
		},
		"a control store that is older than the blobs": {
			// An id below the next one may have been given out since.
			rows:    map[uint32]*categoryRow{3: row("a", 5), 4: row("retired", 20*minute), 5: row("erased", 5), 8: row("young", 10*minute)},
			catalog: &Catalog{Categories: []*scribev1.Category{cat("a", 3)}, NextID: 11, SavedAt: 10 * minute, Older: true},
			want:    []string{"a 3 9", "young 8 2"}, retired: []uint32{4, 5}, nextID: 11 + IDMargin, known: []uint32{4},
			notes: []string{"retired in the logs of the backup", "it was deleted", "at most the class"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := planCategories(test.rows, test.catalog, func(id uint32) bool { return slices.Contains(test.known, id) }, 100*minute)
			var got []string
			for _, c := range p.categories {
				got = append(got, fmt.Sprintf("%s %d %d", c.GetName(), c.GetId(), c.GetShards()))
			}
			if !slices.Equal(got, test.want) || !slices.Equal(p.retired, test.retired) || p.nextID != test.nextID {
				t.Errorf("%v, retired %v, next id %d", got, p.retired, p.nextID)
			}
			if len(p.findings) != len(test.notes) {
				t.Fatalf("findings %+v", p.findings)
			}
			for i, f := range p.findings {
				if f.Kind != FindingCategory || !strings.Contains(f.Reason, test.notes[i]) {
					t.Errorf("finding %d: %+v, want %q", i, f, test.notes[i])
				}
			}
		})
	}
}

func TestSettingsOfCategories(t *testing.T) {
	p := planCategories(map[uint32]*categoryRow{
		1: {Name: "told", Class: 72, Shards: 2, Settings: &layout.Settings{Retention: 50 * time.Hour, Shards: 8, Delivery: 3, Repeatable: 1}, Sequenced: true, Bound: true},
		2: {Name: "sequenced", Class: 1, Shards: 1, Sequenced: true, Bound: true},
		3: {Name: "bound", Class: 1, Shards: 1, Bound: true},
		4: {Name: "plain", Class: 24, Shards: 5},
	}, nil, never, 7)
	for i, want := range []struct {
		retention  time.Duration
		shards     uint32
		delivery   scribev1.Delivery
		repeatable scribev1.Repeatability
	}{
		{50 * time.Hour, 8, scribev1.Delivery_DELIVERY_EXACTLY_ONCE, scribev1.Repeatability_REPEATABILITY_NONE},
		{time.Hour, 1, scribev1.Delivery_DELIVERY_EXACTLY_ONCE, 0},
		{time.Hour, 1, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, scribev1.Repeatability_REPEATABILITY_BOUND},
		{24 * time.Hour, 5, scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, 0},
	} {
		c := p.categories[i]
		if c.GetRetention().AsDuration() != want.retention || c.GetShards() != want.shards || c.GetDelivery() != want.delivery || c.GetRepeatable() != want.repeatable {
			t.Errorf("%s: %v", c.GetName(), c)
		}
	}
}

// TestSequencedAnew: the sequencer begins at the first record of each log, far above where it was.
func TestSequencedAnew(t *testing.T) {
	store := memory.New()
	other := record.MakeShardID(17, 2, 5)
	putAll(t, store, at{web, 1, 3, 0}, at{web, 1, 4, 1}, at{other, 1, 1, 1})
	l, _, findings := recoverAll(t, store, func(c *Config, _ *Deps) {
		c.Catalog = &Catalog{NextID: 18, Categories: []*scribev1.Category{{
			Name: "web", Id: 17, Shards: 3, Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED,
		}}}
	})
	base := record.LSN(now.UnixNano())
	if st := l.states[sequenced.Log(17)]; st.FirstLSN != base || st.NextLSN != base || st.Origin != base {
		t.Errorf("the sequenced log: %+v", st)
	}
	r := sequenced.NewReader(17)
	for _, e := range l.records[sequenced.Positions(17)] {
		if err := r.Add(e.Data); err != nil {
			t.Fatal(err)
		}
	}
	s := r.State()
	if s == nil || s.Next != base || s.Offset != uint64(base) || s.Position(web) != 3 || s.Position(other) != 1 {
		t.Errorf("%+v", s)
	}
	if n := len(findings); n == 0 || !slices.ContainsFunc(findings, func(f Finding) bool { return strings.Contains(f.Reason, "sequenced anew") }) {
		t.Errorf("%+v", findings)
	}
}
