package columns

import (
	"fmt"
	"slices"
	"testing"

	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/sql"
	"scribe/internal/transport/layouts"
	scribev1 "scribe/proto/scribe/v1"
)

// TestMatchingShards: which shards a WHERE leaves. "all" where values may be anywhere.
func TestMatchingShards(t *testing.T) {
	const (
		byKey   = scribev1.ShardBy_SHARD_BY_KEY
		byField = scribev1.ShardBy_SHARD_BY_FIELD
	)
	history, err := schema.Parse([]byte(`
format: json
fields:
  - {name: ip, type: string, path: client.ip}
  - {name: "client.ip", type: string, path: elsewhere}
  - {name: n, type: int64}
  - {name: small, type: int32}
  - {name: f, type: float64}
  - {name: old, type: string, aliases: [older]}
  - {name: def, type: string, default: "x"}
`))
	if err != nil {
		t.Fatal(err)
	}
	former := func(by scribev1.ShardBy, field string, shards uint32) *scribev1.ShardLayout {
		return &scribev1.ShardLayout{By: by, Field: field, Shards: shards}
	}
	for _, tc := range []struct {
		by     scribev1.ShardBy
		field  string
		former []*scribev1.ShardLayout
		where  string
		values []string // whose shards are read; nil = all
	}{
		{byField, "client.ip", nil, "ip = '10.0.0.1'", []string{"10.0.0.1"}},
		{byField, "client.ip", nil, "'10.0.0.1' = ip AND n > 5", []string{"10.0.0.1"}},
		{byField, "client.ip", nil, "ip IN ('a', 'b', 'c')", []string{"a", "b", "c"}},
		{byField, "client.ip", nil, "ip IN ('a', 'b') AND ip = 'b'", []string{"b"}},
		{byField, "client.ip", nil, "ip = 'a' AND ip = 'user-17'", []string{}},
		{byField, "client.ip", nil, "ip = 'a' OR n = 1", nil},
		{byField, "client.ip", nil, "ip <> 'a'", nil},
		{byField, "client.ip", nil, "NOT (ip = 'a')", nil},
		{byField, "client.ip", nil, "lower(ip) = 'a'", nil},
		{byField, "client.ip", nil, "ip = '1.0'", nil}, // a number that is written so is placed like 1
		{byField, "client.ip", nil, "ip = '42'", []string{"42"}},
		{byField, "client.ip", nil, `"client.ip" = 'a'`, nil}, // a column that comes from another field
		{byField, "n", nil, "n = 42", []string{"42"}},
		{byField, "n", nil, "n = 42.0", []string{"42"}},
		{byField, "small", nil, "small = -7", []string{"-7"}},
		{byField, "small", nil, "small IN (1, 2)", []string{"1", "2"}},
		{byField, "f", nil, "f = 1", nil},
		{byField, "old", nil, "old = 'a'", nil},
		{byField, "def", nil, "def = 'x'", nil},
		{byKey, "", nil, "_key = 'user-17'", []string{"user-17"}},
		{byKey, "", nil, "n = 1", nil},
		{scribev1.ShardBy_SHARD_BY_STICKY, "", nil, "_key = 'user-17'", nil},
		{byKey, "", []*scribev1.ShardLayout{former(byKey, "", 4)}, "_key = 'user-17'", []string{"user-17"}},
		{byKey, "", []*scribev1.ShardLayout{former(byKey, "", 4), former(scribev1.ShardBy_SHARD_BY_STICKY, "", 4)}, "_key = 'user-17'", nil},
		{byField, "n", []*scribev1.ShardLayout{former(byField, "small", 4)}, "n = 1", nil},
	} {
		c := &scribev1.Category{Shards: 7, ShardBy: tc.by, ShardField: tc.field, FormerLayouts: tc.former}
		parsed, err := sql.Parse("SELECT n FROM c WHERE " + tc.where)
		if err != nil {
			t.Fatal(err)
		}
		p, err := plan.Bind(parsed, history, plan.Options{})
		if err != nil {
			t.Fatal(err)
		}
		got, ok := matchingShards(p.Where, p.Schema, c)
		var want []uint32
		for _, value := range tc.values {
			want = append(want, layouts.Current(c).ShardOf([]byte(value)))
			for _, f := range tc.former {
				earlier := &scribev1.Category{Shards: f.GetShards(), ShardBy: f.GetBy(), ShardField: f.GetField()}
				want = append(want, layouts.Current(earlier).ShardOf([]byte(value)))
			}
		}
		slices.Sort(want)
		if want = slices.Compact(want); ok != (tc.values != nil) || fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s, by %v %s: shards %v (%v), want %v", tc.where, tc.by, tc.field, got, ok, want)
		}
		c.LayoutsForgotten = true
		if _, ok := matchingShards(p.Where, p.Schema, c); ok {
			t.Errorf("%s: shards are known although layouts were forgotten", tc.where)
		}
	}
}
