package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// categories is a control plane that keeps one category and notes the last update.
type categories struct {
	rpc.ControlService
	category *scribev1.Category
	update   *scribev1.UpdateCategoryRequest
	// shards is what it knows of the category's shards, withShards whether it was asked for that last.
	shards     []*scribev1.ShardStatus
	withShards bool
}

func (c *categories) CreateCategory(_ context.Context, req *scribev1.CreateCategoryRequest) (*scribev1.CreateCategoryResponse, error) {
	c.category = req.GetCategory()
	c.category.Id = 1
	return &scribev1.CreateCategoryResponse{Category: c.category}, nil
}

func (c *categories) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	c.withShards = req.GetWithShards()
	return &scribev1.GetCategoryResponse{Category: c.category, Shards: c.shards}, nil
}

func (c *categories) ListCategories(context.Context, *scribev1.ListCategoriesRequest) (*scribev1.ListCategoriesResponse, error) {
	return &scribev1.ListCategoriesResponse{Categories: []*scribev1.Category{c.category}}, nil
}

func (c *categories) UpdateCategory(_ context.Context, req *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	c.update = req
	return &scribev1.UpdateCategoryResponse{Category: c.category}, nil
}

// category runs a command against it.
func (c *categories) run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	mux := http.NewServeMux()
	(&rpc.Services{Control: c}).Register(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	cmd := newRoot()
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(append(append([]string{"category"}, args...), "--server", server.URL))
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// TestRepeatableFlag: that a category has one order is created, shown and changed by name.
func TestRepeatableFlag(t *testing.T) {
	c := &categories{}
	if _, err := c.run(t, "create", "changes", "--repeatable", "bound"); err != nil || !c.category.HasOneOrder() {
		t.Errorf("created %v, %v", c.category, err)
	}
	if out, err := c.run(t, "describe", "changes"); err != nil || !strings.Contains(out, `"repeatable": "bound"`) {
		t.Errorf("described as %s, %v", out, err)
	}
	if _, err := c.run(t, "update", "changes", "--repeatable", "none"); err != nil || c.update.GetRepeatable() != scribev1.Repeatability_REPEATABILITY_NONE {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "update", "changes", "--owner", "x"); err != nil || c.update.Repeatable != nil {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	if _, err := c.run(t, "create", "ordered", "--repeatable", "sequenced"); err != nil || !c.category.IsSequenced() {
		t.Errorf("created %v, %v", c.category, err)
	}
	if _, err := c.run(t, "create", "x", "--repeatable", "yes"); err == nil || !strings.Contains(err.Error(), "none, bound") {
		t.Errorf("created with an unknown kind: %v", err)
	}
}

// TestQuotaFlags: a quota and what happens beyond it are created, shown, listed and changed by the names that people use.
func TestQuotaFlags(t *testing.T) {
	c := &categories{}
	if _, err := c.run(t, "create", "debug", "--quota", "10MiB", "--quota-mode", "sample"); err != nil {
		t.Fatal(err)
	}
	if c.category.GetQuotaBytesPerSecond() != 10<<20 || c.category.GetQuotaMode() != scribev1.QuotaMode_QUOTA_MODE_SAMPLE {
		t.Errorf("created %v", c.category)
	}
	out, err := c.run(t, "describe", "debug")
	var shown map[string]any
	if err != nil || json.Unmarshal([]byte(out), &shown) != nil || shown["quota_per_second"] != "10MiB" || shown["quota_mode"] != "sample" {
		t.Errorf("described as %s, %v", out, err)
	}
	if out, err = c.run(t, "list"); err != nil || !strings.Contains(out, "10MiB/s sample") {
		t.Errorf("listed as %s, %v", out, err)
	}
	if _, err := c.run(t, "update", "debug", "--quota-mode", "throttle"); err != nil {
		t.Fatal(err)
	}
	if c.update.GetQuotaMode() != scribev1.QuotaMode_QUOTA_MODE_THROTTLE || c.update.QuotaBytesPerSecond != nil {
		t.Errorf("updated with %v", c.update)
	}
	for _, args := range [][]string{{"create", "x", "--quota-mode", "drop"}, {"update", "x", "--quota-mode", ""}} {
		if _, err := c.run(t, args...); err == nil || !strings.Contains(err.Error(), "block, throttle or sample") {
			t.Errorf("%v: %v", args, err)
		}
	}
	// Without a quota its mode says nothing; one from before there were modes blocks.
	c.category.QuotaBytesPerSecond = 0
	if out, err = c.run(t, "describe", "debug"); err != nil || strings.Contains(out, "quota") {
		t.Errorf("described as %s, %v", out, err)
	}
	c.category.QuotaBytesPerSecond, c.category.QuotaMode = 1000, 0
	if out, err = c.run(t, "describe", "debug"); err != nil || !strings.Contains(out, `"quota_mode": "block"`) {
		t.Errorf("described as %s, %v", out, err)
	}
}

// TestReadQuotaFlags: quotas for reading are created, shown, listed and changed by the names that people use.
func TestReadQuotaFlags(t *testing.T) {
	c := &categories{}
	if _, err := c.run(t, "create", "a", "--read-quota", "50MiB", "--read-requests", "20", "--read-quota-mode", "throttle"); err != nil {
		t.Fatal(err)
	}
	if got := c.category; got.GetReadQuotaBytesPerSecond() != 50<<20 || got.GetReadQuotaRequestsPerSecond() != 20 || got.GetReadQuotaMode() != scribev1.QuotaMode_QUOTA_MODE_THROTTLE {
		t.Errorf("created %v", got)
	}
	out, err := c.run(t, "describe", "a")
	for _, want := range []string{`"read_quota_per_second": "50MiB"`, `"read_requests_per_second": 20`, `"read_quota_mode": "throttle"`} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("described as %s, %v; want %s", out, err, want)
		}
	}
	if out, err = c.run(t, "list"); err != nil || !strings.Contains(out, "50MiB/s, 20 requests/s throttle") {
		t.Errorf("listed as %s, %v", out, err)
	}
	if _, err := c.run(t, "update", "a", "--read-quota", "0", "--read-quota-mode", "sample"); err != nil {
		t.Fatal(err)
	}
	if u := c.update; u.ReadQuotaBytesPerSecond == nil || *u.ReadQuotaBytesPerSecond != 0 || u.GetReadQuotaMode() != scribev1.QuotaMode_QUOTA_MODE_SAMPLE || u.ReadQuotaRequestsPerSecond != nil {
		t.Errorf("updated with %v", u)
	}
	c.category = &scribev1.Category{Name: "a"}
	if out, err = c.run(t, "describe", "a"); err != nil || strings.Contains(out, "read_") {
		t.Errorf("described as %s, %v", out, err)
	}
}

// TestPriorityFlag: a priority is created, shown and changed by name, and normal is not worth a word.
func TestPriorityFlag(t *testing.T) {
	c := &categories{}
	if _, err := c.run(t, "create", "a", "--priority", "critical"); err != nil || c.category.GetPriority() != scribev1.Priority_PRIORITY_CRITICAL {
		t.Errorf("created %v, %v", c.category, err)
	}
	if out, err := c.run(t, "describe", "a"); err != nil || !strings.Contains(out, `"priority": "critical"`) {
		t.Errorf("described as %s, %v", out, err)
	}
	if _, err := c.run(t, "update", "a", "--priority", "normal"); err != nil || c.update.GetPriority() != scribev1.Priority_PRIORITY_NORMAL {
		t.Errorf("updated with %v, %v", c.update, err)
	}
	c.category.Priority = scribev1.Priority_PRIORITY_NORMAL
	if out, err := c.run(t, "describe", "a"); err != nil || strings.Contains(out, "priority") {
		t.Errorf("described as %s, %v", out, err)
	}
	if _, err := c.run(t, "create", "b", "--priority", "urgent"); err == nil || !strings.Contains(err.Error(), "low, normal, high or critical") {
		t.Errorf("an unknown priority: %v", err)
	}
}

// TestCacheFlag: how read proxies cache a category is created, shown and changed by the names that people use.
func TestCacheFlag(t *testing.T) {
	c := &categories{}
	const never, reused = scribev1.CacheMode_CACHE_MODE_NEVER, scribev1.CacheMode_CACHE_MODE_REUSED
	for text, want := range map[string]*scribev1.CachePolicy{
		"default":                              nil,
		"memcached=reused":                     {Memcached: reused},
		"memory=never,memcached=reused,age=4h": {Memory: never, Memcached: reused, MemcachedAge: durationpb.New(4 * time.Hour)},
	} {
		if _, err := c.run(t, "create", "a", "--cache", text); err != nil || !proto.Equal(c.category.GetCache(), want) {
			t.Errorf("--cache %s creates %v, %v", text, c.category.GetCache(), err)
		}
		out, err := c.run(t, "describe", "a")
		if err != nil || strings.Contains(out, `"cache": "`+text+`"`) != (want != nil) {
			t.Errorf("--cache %s is described as %s, %v", text, out, err)
		}
		if _, err := c.run(t, "update", "a", "--cache", text); err != nil || c.update.GetCache() == nil || want != nil && !proto.Equal(c.update.GetCache(), want) {
			t.Errorf("--cache %s updates with %v, %v", text, c.update.GetCache(), err)
		}
	}
	if _, err := c.run(t, "update", "a", "--owner", "x"); err != nil || c.update.GetCache() != nil {
		t.Errorf("an update that names no policy: %v, %v", c.update, err)
	}
	for _, text := range []string{"", "memory", "memory=sometimes", "disk=always", "age=soon", "memcached=never,default"} {
		if _, err := c.run(t, "update", "a", "--cache", text); err == nil || exitCode(err) != exitUsage {
			t.Errorf("--cache %q: %v", text, err)
		}
	}
}

// TestDurationOrFlags: an ordering window and a linger are set with a duration, and removed with a word.
func TestDurationOrFlags(t *testing.T) {
	c := &categories{}
	for _, f := range []struct {
		flag, without string
		created       func() *durationpb.Duration
		updated       func() (*durationpb.Duration, bool)
	}{
		{
			"--window", "none", func() *durationpb.Duration { return c.category.GetOrderingWindow() },
			func() (*durationpb.Duration, bool) {
				return c.update.GetOrderingWindow(), c.update.GetUnboundedWindow()
			},
		},
		{
			"--linger", "auto", func() *durationpb.Duration { return c.category.GetLinger() },
			func() (*durationpb.Duration, bool) { return c.update.GetLinger(), c.update.GetAutoLinger() },
		},
	} {
		for _, tc := range []struct {
			text    string
			set     *durationpb.Duration
			removed bool
		}{{"30s", durationpb.New(30 * time.Second), false}, {"0s", durationpb.New(0), false}, {f.without, nil, true}} {
			if _, err := c.run(t, "create", "a", f.flag, tc.text); err != nil {
				t.Fatal(err)
			}
			if got := f.created(); (got == nil) != (tc.set == nil) || got.AsDuration() != tc.set.AsDuration() {
				t.Errorf("%s %s creates %v", f.flag, tc.text, got)
			}
			if _, err := c.run(t, "update", "a", f.flag, tc.text); err != nil {
				t.Fatal(err)
			}
			if got, removed := f.updated(); (got == nil) != (tc.set == nil) || got.AsDuration() != tc.set.AsDuration() || removed != tc.removed {
				t.Errorf("%s %s updates with %v", f.flag, tc.text, c.update)
			}
		}
		if _, err := c.run(t, "update", "a", "--owner", "x"); err != nil {
			t.Fatal(err)
		}
		if got, removed := f.updated(); got != nil || removed {
			t.Errorf("an update without %s: %v", f.flag, c.update)
		}
		if _, err := c.run(t, "update", "a", f.flag, "never"); err == nil || !strings.Contains(err.Error(), "or "+f.without) {
			t.Errorf("%s never: %v", f.flag, err)
		}
	}
}
