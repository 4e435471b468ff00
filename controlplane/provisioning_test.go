package controlplane

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/proto"

	"scribe/controlplane/provision"
	"scribe/internal/cell/catalog"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv/memkv"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// planOf returns the plan that a watched copy of the categories has, as text: micro-shards and logs by shard.
func planOf(v *catalog.View, category uint32) string {
	var out []string
	for _, s := range v.PlanOf(category).GetShards() {
		out = append(out, fmt.Sprintf("%d:%d/%d", s.GetShard(), s.GetMicroShards(), s.GetLogs()))
	}
	return strings.Join(out, " ")
}

// viewOf keeps a watched copy of a control plane's categories until the end of the test's bubble.
func viewOf(t *testing.T, c *ControlPlane) (v *catalog.View, end func()) {
	t.Helper()
	v, err := catalog.New(catalog.DefaultViewConfig(), catalog.ViewDeps{Source: c})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = v.Run(context.Background()) }()
	<-v.Ready()
	return v, func() {
		if err := v.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestPlansFollowReports: what write proxies report is planned, watched, described and kept over a restart, without a new revision of the
// category; what is not reported any more is planned no longer, later; and one log takes no micro-shards.
func TestPlansFollowReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "busy", Shards: 4}})
		if err != nil {
			t.Fatal(err)
		}
		id := res.GetCategory().GetId()
		for _, proxy := range []string{"p1", "p2"} {
			join(t, c, proxy, 10*time.Second, scribev1.Role_ROLE_WRITEPROXY)
		}
		v, end := viewOf(t, c)
		report := func(c *ControlPlane, proxy string, micro float64, oneLog bool) {
			t.Helper()
			traffic := []*scribev1.ShardTraffic{{Category: id, Shard: 2, BytesPerSecond: uint64(micro * (16 << 20)), MessagesPerSecond: 7, OneLog: oneLog}}
			if _, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: proxy, Traffic: traffic}); err != nil {
				t.Fatal(err)
			}
		}
		for range 10 {
			report(c, "p1", 1, false)
			report(c, "p2", 2, false)
			advance(3 * time.Second)
		}
		if got := planOf(v, id); got != "2:3/6" {
			t.Errorf("planned %q, want 3 micro-shards and 6 logs of shard 2", got)
		}
		got, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "busy", WithShards: true})
		if err != nil {
			t.Fatal(err)
		}
		want := []*scribev1.ShardStatus{{Shard: 2, BytesPerSecond: 3 * (16 << 20), MessagesPerSecond: 14, MicroShards: 3, Logs: 6}}
		if len(got.GetShards()) != 1 || !proto.Equal(got.GetShards()[0], want[0]) {
			t.Errorf("shards are described as %v, want %v", got.GetShards(), want)
		}
		if got.GetCategory().GetRevision() != res.GetCategory().GetRevision() {
			t.Errorf("a plan moved the category from revision %d to %d", res.GetCategory().GetRevision(), got.GetCategory().GetRevision())
		}

		// Another control plane on the same store has the plan at once, and goes on from it.
		end()
		stop(t, c)
		c = run(t, store, nil)
		v, end = viewOf(t, c)
		synctest.Wait()
		if got := planOf(v, id); got != "2:3/6" {
			t.Errorf("after a restart %q is planned", got)
		}
		advance(10 * time.Minute)
		if got := planOf(v, id); got != "2:3/6" {
			t.Errorf("after ten minutes without reports %q is planned", got)
		}
		join(t, c, "p1", 10*time.Second, scribev1.Role_ROLE_WRITEPROXY)
		report(c, "p1", 5, true)
		advance(9 * time.Second)
		if got, _ := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "busy", WithShards: true}); got.GetShards()[0].GetBytesPerSecond() != 5*(16<<20) {
			t.Errorf("traffic of a shard with one log is described as %v", got.GetShards())
		}
		advance(10 * time.Minute)
		if got := planOf(v, id); got != "" {
			t.Errorf("after twenty minutes without reports but for one of a shard with one log %q is planned", got)
		}
		if e, err := store.Get(t.Context(), planKey(id)); err == nil {
			t.Errorf("the store still has %q", e.Value)
		}
		end()
		stop(t, c)
	})
}

// TestDroppedCategoriesAreNotPlanned: the plan and the history of a deleted category are removed.
func TestDroppedCategoriesAreNotPlanned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "gone"}})
		if err != nil {
			t.Fatal(err)
		}
		id := res.GetCategory().GetId()
		join(t, c, "p", 5*time.Minute, scribev1.Role_ROLE_WRITEPROXY)
		for range 24 * 60 { // two hours
			_, err := c.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "p", Traffic: []*scribev1.ShardTraffic{{Category: id, BytesPerSecond: 1 << 30}}})
			if err != nil {
				t.Fatal(err)
			}
			advance(5 * time.Second)
		}
		for _, key := range []string{planKey(id), trafficKey(id)} {
			if _, err := store.Get(t.Context(), key); err != nil {
				t.Fatalf("%s after two hours: %v", key, err)
			}
		}
		if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "gone"}); err != nil {
			t.Fatal(err)
		}
		advance(time.Hour + time.Minute)
		for _, key := range []string{planKey(id), trafficKey(id)} {
			if _, err := store.Get(t.Context(), key); err == nil {
				t.Errorf("%s is there an hour after the category was deleted", key)
			}
		}
		stop(t, c)
	})
}

// TestReportsAreBounded: a report counts as far as it goes, and as long as it is fresh.
func TestReportsAreBounded(t *testing.T) {
	table, now := newTrafficTable(), time.Now()
	var many []*scribev1.ShardTraffic
	for i := range uint32(3000) {
		many = append(many, &scribev1.ShardTraffic{Category: 1, Shard: i, BytesPerSecond: 1 << 60})
	}
	table.replaceReport(now, "a", many)
	table.replaceReport(now.Add(time.Second), "b", many[:1])
	table.replaceReport(now, "c", []*scribev1.ShardTraffic{{Category: 1, Shard: 100_000, BytesPerSecond: 1}, {BytesPerSecond: 1}})
	if got := table.addUp(now); len(got) != maxReported || got[provision.ShardID{Category: 1}].Bytes != 2*maxReportedRate {
		t.Errorf("%d shards count, the first with %v", len(got), got[provision.ShardID{Category: 1}])
	}
	if got := table.addUp(now.Add(reportTTL)); len(got) != 1 {
		t.Errorf("%d shards count of reports that are as old as they may be", len(got))
	}
	table.replaceReport(now, "b", nil)
	if got := table.addUp(now); len(got) != 0 {
		t.Errorf("%v counts of a member that reports nothing", got)
	}
}

// TestLogsAreDescribed: a category's description says of each shard how many logs it has, how many of them are empty, and how many were removed. While
// the metadata engine does not answer it says that nobody has counted.
func TestLogsAreDescribed(t *testing.T) {
	log, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	c := run(t, memkv.New(), func(_ *Config, d *Deps) { d.Logs = log })
	defer stop(t, c)
	res, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "c", Shards: 2}})
	if err != nil {
		t.Fatal(err)
	}
	id := res.GetCategory().GetId()
	shards := []record.ShardID{record.MakeShardID(id, 0, 1), record.MakeShardID(id, 0, 2), record.MakeShardID(id, 1, 1), sequenced.Log(id)}
	states, err := log.Open(t.Context(), "writer", shards)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shards[0], Epoch: states[0].Epoch, Records: [][]byte{{1}}}}}); err != nil {
		t.Fatal(err)
	}
	if n, err := log.Remove(t.Context(), []metalog.Unused{{Shard: shards[2], Epoch: states[2].Epoch}}); n != 1 || err != nil {
		t.Fatalf("%d logs were removed, %v", n, err)
	}
	describe := func() *scribev1.GetCategoryResponse {
		t.Helper()
		got, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "c", WithShards: true})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	got := describe()
	want := []*scribev1.ShardStatus{{MicroShards: 1, ExistingLogs: 2, EmptyLogs: 1}, {Shard: 1, MicroShards: 1, RemovedLogs: 1}}
	if !got.GetLogsCounted() || len(got.GetShards()) != 2 || !proto.Equal(got.GetShards()[0], want[0]) || !proto.Equal(got.GetShards()[1], want[1]) {
		t.Errorf("described as %v, want %v", got, want)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if got := describe(); got.GetLogsCounted() || len(got.GetShards()) != 0 {
		t.Errorf("without the engine: %v", got)
	}
}
