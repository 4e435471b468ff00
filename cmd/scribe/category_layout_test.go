package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	scribev1 "scribe/proto/scribe/v1"
)

// splitCategory is a category by key with two shards, of which the first was split, and the new one again; the second half of that was
// merged back.
func splitCategory() *scribev1.Category {
	return &scribev1.Category{
		Name: "clicks", Id: 1, Revision: 17, Shards: 2, ShardBy: scribev1.ShardBy_SHARD_BY_KEY,
		Ranges: []*scribev1.ShardRange{{Shard: 0}, {Shard: 1024, From: 1 << 62}, {Shard: 1, From: 1 << 63}},
		Lineage: []*scribev1.ShardLineage{
			{Shard: 1024, From: 0, Since: 1_700_000_000_000_000},
			{Shard: 2048, From: 1024, Since: 1_700_000_100_000_000},
			{Shard: 1024, From: 2048, Since: 1_700_000_200_000_000, Merged: true},
		},
	}
}

// TestCategoryShards: every shard is listed, with its hashes, its lineage, and its traffic.
func TestCategoryShards(t *testing.T) {
	c := &categories{category: splitCategory(), shards: []*scribev1.ShardStatus{{Shard: 1024, BytesPerSecond: 2 << 20, MessagesPerSecond: 70, MicroShards: 3, Logs: 6}}}
	out, err := c.run(t, "shards", "clicks", "-o", "json")
	if err != nil || !c.withShards {
		t.Fatal(out, err)
	}
	var shards []shardJSON
	if err := json.Unmarshal([]byte(out), &shards); err != nil {
		t.Fatal(err)
	}
	var numbers []uint32
	for _, s := range shards {
		numbers = append(numbers, s.Shard)
	}
	if !slices.Equal(numbers, []uint32{0, 1, 1024, 2048}) {
		t.Fatalf("shards %v", numbers)
	}
	if s := shards[2]; s.FirstHash != "4000000000000000" || s.LastHash != "7fffffffffffffff" || s.BytesPerSecond != 2<<20 || s.MicroShards != 3 || s.LogsAhead != 6 ||
		len(s.Lineage) != 2 || s.Lineage[0].From != 0 || s.Lineage[1].From != 2048 || !s.Lineage[1].Merged {
		t.Errorf("shard 1024: %+v", s)
	}
	if s := shards[3]; s.FirstHash != "" || s.MicroShards != 1 {
		t.Errorf("shard 2048, which was merged: %+v", s)
	}
	out, err = c.run(t, "shards", "clicks")
	for _, want := range []string{"0      0000000000000000 3fffffffffffffff  -", "4000000000000000 7fffffffffffffff  0,2048 (merged)  2MiB     70"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("want %q in %s, %v", want, out, err)
		}
	}
	c.category, c.shards = &scribev1.Category{Name: "plain", Shards: 2}, nil
	if out, err = c.run(t, "shards", "plain", "--json"); err != nil || strings.Contains(out, "hash") || strings.Count(out, `"shard"`) != 2 {
		t.Errorf("shards of a sticky category: %s, %v", out, err)
	}
}

// TestDivideShards: splits and merges name the revision of the category that they are meant for.
func TestDivideShards(t *testing.T) {
	c := &categories{category: splitCategory()}
	if _, err := c.run(t, "split", "clicks", "1024"); err != nil || c.update.GetSplitShard() != 1024 || c.update.GetRevision() != 17 {
		t.Errorf("split with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "merge", "clicks", "0", "1024"); err != nil || !slices.Equal(c.update.GetMergeShards(), []uint32{0, 1024}) || c.update.GetRevision() != 17 {
		t.Errorf("merged with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "split", "clicks", "first"); exitCode(err) != exitUsage {
		t.Errorf("a shard that is no number: %v", err)
	}
	if _, err := c.run(t, "update", "clicks", "--auto-split"); err != nil || !c.update.GetAutoSplit() {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "update", "clicks", "--encrypted", "--rotate-key"); err != nil || !c.update.GetEncrypted() || !c.update.GetRotateKey() {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "update", "clicks", "--rotate-key"); err != nil || c.update.Encrypted != nil || !c.update.GetRotateKey() {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "create", "secret", "--encrypted"); err != nil || !c.category.GetEncrypted() {
		t.Errorf("created %v, %v", c.category, err)
	}
	if _, err := c.run(t, "create", "busy", "--shard-by", "key", "--auto-split"); err != nil || !c.category.GetAutoSplit() {
		t.Errorf("created %v, %v", c.category, err)
	}
}
