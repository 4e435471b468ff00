package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/config"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start starts a control plane that is closed with the test.
func start(t *testing.T, store kv.Store, change func(*Config, *Deps)) *ControlPlane {
	t.Helper()
	cfg, deps := config.Defaults[Config](), Deps{Store: store}
	if change != nil {
		change(&cfg, &deps)
	}
	c, err := New(cfg, deps)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(t, c) })
	return c
}

func stop(t *testing.T, c *ControlPlane) {
	t.Helper()
	if err := c.Close(context.Background()); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func newStore(t *testing.T) *memkv.Store {
	s := memkv.New()
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func create(t *testing.T, c *ControlPlane, name string) *scribev1.Category {
	t.Helper()
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.GetCategory()
}

func wantReason(t *testing.T, err error, want scribev1.Reason, texts ...string) {
	t.Helper()
	if rpc.ReasonOf(err) != want {
		t.Fatalf("error %v has reason %v, want %v", err, rpc.ReasonOf(err), want)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}

func TestCreateCategory(t *testing.T) {
	now := time.UnixMicro(1_700_000_000_000_000)
	c := start(t, newStore(t), func(_ *Config, d *Deps) { d.Now = func() time.Time { return now } })
	req := &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "access_log", Id: 99, Revision: 99, CreatedAt: 99, UpdatedAt: 99}}
	resp, err := c.CreateCategory(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	got := resp.GetCategory()
	want := &scribev1.Category{
		Name: "access_log", Id: 1, Revision: got.GetRevision(), Retention: durationpb.New(72 * time.Hour), Shards: 1,
		Delivery: scribev1.Delivery_DELIVERY_AT_LEAST_ONCE, MaxMessageBytes: 16 << 20, CreatedAt: now.UnixMicro(), UpdatedAt: now.UnixMicro(),
		QuotaMode: scribev1.QuotaMode_QUOTA_MODE_BLOCK, ShardBy: scribev1.ShardBy_SHARD_BY_STICKY,
	}
	if !proto.Equal(got, want) || got.GetRevision() == 0 {
		t.Fatalf("created %v, want %v", got, want)
	}
	if req.GetCategory().GetId() != 99 {
		t.Error("the request was changed")
	}
	read, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "access_log"})
	if err != nil || !proto.Equal(read.GetCategory(), want) {
		t.Fatalf("read %v, %v; want %v", read.GetCategory(), err, want)
	}

	_, err = c.CreateCategory(t.Context(), req)
	wantReason(t, err, scribev1.Reason_REASON_CATEGORY_EXISTS, `"access_log"`)
	req.IfNotExists, req.Category.Shards = true, 7
	if resp, err = c.CreateCategory(t.Context(), req); err != nil || !proto.Equal(resp.GetCategory(), want) {
		t.Fatalf("create if not exists: %v, %v; want %v", resp.GetCategory(), err, want)
	}
	full := &scribev1.Category{
		Name: "orders", Owner: "payments", Retention: durationpb.New(time.Minute), Shards: 10_000,
		Delivery: scribev1.Delivery_DELIVERY_EXACTLY_ONCE, MaxMessageBytes: 32 << 20, QuotaBytesPerSecond: 5,
		QuotaMode:      scribev1.QuotaMode_QUOTA_MODE_THROTTLE,
		Repeatable:     scribev1.Repeatability_REPEATABILITY_BOUND,
		Cache:          &scribev1.CachePolicy{Memory: scribev1.CacheMode_CACHE_MODE_NEVER, MemcachedAge: durationpb.New(time.Hour)},
		OrderingWindow: durationpb.New(0), Linger: durationpb.New(time.Minute), Schema: "infer", ShardBy: scribev1.ShardBy_SHARD_BY_FIELD, ShardField: "user.id",
	}
	resp, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: full})
	if err != nil {
		t.Fatal(err)
	}
	full.Id, full.Revision, full.CreatedAt, full.UpdatedAt = 2, resp.GetCategory().GetRevision(), now.UnixMicro(), now.UnixMicro()
	if !proto.Equal(resp.GetCategory(), full) {
		t.Error("fields of a create are not as asked for")
	}
}

// TestInvalid: one error names every field that is wrong.
func TestInvalid(t *testing.T) {
	c := start(t, newStore(t), nil)
	long := strings.Repeat("x", 1<<20+1)
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
		Name: "-x", Owner: long[:256], Retention: durationpb.New(time.Second), Shards: 10_001, Delivery: 9,
		MaxMessageBytes: 32<<20 + 1, OrderingWindow: durationpb.New(-1), Linger: durationpb.New(time.Hour), Schema: long, QuotaMode: 9, Repeatable: 9,
	}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "repeatable: ", "quota_mode: ", "name: ", "owner: ", "retention: ", "shards: ", "delivery: ", "max_message_bytes: ",
		"ordering_window: ", "linger: ", "schema: ")
	_, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a", Schema: "bad", Owner: "\xff"}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "schema: line 1, column 1: got \"bad\", want an object", "owner: is not UTF-8")
	for _, wrong := range []*scribev1.Category{
		{ShardBy: scribev1.ShardBy_SHARD_BY_FIELD}, {ShardBy: scribev1.ShardBy_SHARD_BY_FIELD, ShardField: "a..b"}, {ShardBy: scribev1.ShardBy_SHARD_BY_KEY, ShardField: "a"},
	} {
		wrong.Name = "a"
		_, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: wrong})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "shard_field: ")
	}
	_, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "_mine"}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "name: \"_mine\" is a name for the cell's own categories")
	_, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a", ShardBy: 9}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "shard_by: 9 is not known")
	_, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "category: ")
	for _, name := range []string{"", "a/b", strings.Repeat("a", 256), "é"} {
		_, err = c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: name})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "name: ")
		_, err = c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: name})
		wantReason(t, err, scribev1.Reason_REASON_INVALID, "name: ")
	}
	create(t, c, "a")
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{
		Name: "a", Owner: new(long), Retention: durationpb.New(11 * 365 * 24 * time.Hour), Shards: new(uint32(0)),
		MaxMessageBytes: new(uint32(0)), Schema: new("bad"),
	})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "owner: ", "retention: ", "shards: ", "max_message_bytes: ", "schema: line 1, column 1: ")
	_, err = c.Join(t.Context(), &scribev1.JoinRequest{
		Member: &scribev1.Member{Roles: []scribev1.Role{0}, Url: "nowhere", Load: 1001, Version: long}, Ttl: durationpb.New(time.Millisecond),
	})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "id: ", "roles: ", "url: ", "load: ", "version: ", "ttl: ")
	_, err = c.Join(t.Context(), &scribev1.JoinRequest{})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "member: ")
	_, err = c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{Prefix: long, After: long})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "prefix: ", "after: ")
	_, err = c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{Names: make([]string, 1001)})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "names: 1001 names, the limit is 1000")
	_, err = c.ListCategories(t.Context(), &scribev1.ListCategoriesRequest{Names: []string{"a", "-"}, Limit: 1})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "names: ", "names[1]: ")
	err = c.WatchCategories(t.Context(), &scribev1.WatchCategoriesRequest{Heartbeat: durationpb.New(time.Millisecond)}, nil)
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "heartbeat: ")
	err = c.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{Heartbeat: durationpb.New(time.Millisecond)}, nil)
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "heartbeat: ")
}

func TestUpdateCategory(t *testing.T) {
	c := start(t, newStore(t), nil)
	first := create(t, c, "a")
	update := func(req *scribev1.UpdateCategoryRequest) (*scribev1.Category, error) {
		req.Name = "a"
		resp, err := c.UpdateCategory(t.Context(), req)
		return resp.GetCategory(), err
	}
	same, err := update(&scribev1.UpdateCategoryRequest{Shards: new(uint32(1)), Owner: new("")})
	if err != nil || !proto.Equal(same, first) {
		t.Fatalf("an update to what is there: %v, %v; want %v", same, err, first)
	}
	second, err := update(&scribev1.UpdateCategoryRequest{
		Revision: first.GetRevision(), Owner: new("me"), Retention: durationpb.New(time.Hour), Shards: new(uint32(4)),
		MaxMessageBytes: new(uint32(7)), QuotaBytesPerSecond: new(uint64(8)), OrderingWindow: durationpb.New(time.Second), Schema: new("infer"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := proto.CloneOf(first)
	want.Owner, want.Retention, want.Shards, want.MaxMessageBytes, want.QuotaBytesPerSecond = "me", durationpb.New(time.Hour), 4, 7, 8
	want.OrderingWindow, want.Schema, want.Revision, want.UpdatedAt = durationpb.New(time.Second), "infer", second.GetRevision(), second.GetUpdatedAt()
	if !proto.Equal(second, want) || second.GetRevision() <= first.GetRevision() || second.GetUpdatedAt() < first.GetUpdatedAt() {
		t.Fatalf("updated to %v, want %v", second, want)
	}
	_, err = update(&scribev1.UpdateCategoryRequest{Revision: first.GetRevision(), Owner: new("you")})
	wantReason(t, err, scribev1.Reason_REASON_CONFLICT, fmt.Sprint(second.GetRevision()))
	_, err = update(&scribev1.UpdateCategoryRequest{Shards: new(uint32(3))})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "shards: 3 is fewer than the 4")
	third, err := update(&scribev1.UpdateCategoryRequest{Owner: new("")})
	if err != nil || third.GetOwner() != "" || third.GetShards() != 4 {
		t.Fatalf("%v, %v", third, err)
	}
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "b", Owner: new("me")})
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
}

// TestEncrypted: the number of a category's key is the control plane's: 1 once it is encrypted, and one more with each rotation.
func TestEncrypted(t *testing.T) {
	c := start(t, newStore(t), nil)
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "secret", Encrypted: true, KeyGeneration: 77}})
	if got := resp.GetCategory(); err != nil || !got.GetEncrypted() || got.GetKeyGeneration() != 1 {
		t.Fatalf("%v, %v", got, err)
	}
	resp, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "open", KeyGeneration: 77}})
	if got := resp.GetCategory(); err != nil || got.GetEncrypted() || got.GetKeyGeneration() != 0 {
		t.Fatalf("%v, %v", got, err)
	}
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "open", RotateKey: true})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "rotate_key: the category is not encrypted")
	for i, step := range []struct {
		req        *scribev1.UpdateCategoryRequest
		encrypted  bool
		generation uint32
	}{
		{&scribev1.UpdateCategoryRequest{Encrypted: new(true)}, true, 1},
		{&scribev1.UpdateCategoryRequest{Encrypted: new(true)}, true, 1},
		{&scribev1.UpdateCategoryRequest{RotateKey: true}, true, 2},
		{&scribev1.UpdateCategoryRequest{Encrypted: new(false)}, false, 2}, // what is stored needs its key
		{&scribev1.UpdateCategoryRequest{Encrypted: new(true)}, true, 2},
		{&scribev1.UpdateCategoryRequest{Encrypted: new(true), RotateKey: true}, true, 3},
	} {
		step.req.Name = "open"
		resp, err := c.UpdateCategory(t.Context(), step.req)
		if got := resp.GetCategory(); err != nil || got.GetEncrypted() != step.encrypted || got.GetKeyGeneration() != step.generation {
			t.Errorf("step %d: %v, %v", i, got, err)
		}
	}
}

// TestEncryptedWithoutKeys: no category is encrypted while a member would store its payloads as they are, or can't read them.
func TestEncryptedWithoutKeys(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "open")
	member := func(id string, keys bool, role scribev1.Role) {
		t.Helper()
		if _, err := c.Join(t.Context(), &scribev1.JoinRequest{Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{role}, Url: "http://" + id + ":7420", HasKeys: keys}}); err != nil {
			t.Fatal(err)
		}
	}
	try := func() (errs [2]error) {
		_, errs[0] = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "open", Encrypted: new(true)})
		_, errs[1] = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "secret", Encrypted: true}})
		return errs
	}
	member("with", true, scribev1.Role_ROLE_BATCHER)
	member("other", false, scribev1.Role_ROLE_WRITEPROXY) // sees no key
	for _, role := range []scribev1.Role{scribev1.Role_ROLE_BATCHER, scribev1.Role_ROLE_READPROXY} {
		member("without", false, role)
		for _, err := range try() {
			wantReason(t, err, scribev1.Reason_REASON_INVALID, "older program: without (http://without:7420): start")
		}
	}
	member("without", true, scribev1.Role_ROLE_READPROXY)
	for _, err := range try() {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestRepeatable: whether a category is bound can be changed at any time, whether it is sequenced never.
func TestRepeatable(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "changes")
	bound, none := scribev1.Repeatability_REPEATABILITY_BOUND, scribev1.Repeatability_REPEATABILITY_NONE
	for _, set := range []*scribev1.Repeatability{&bound, nil, &none} {
		resp, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "changes", Repeatable: set, Owner: new("someone")})
		want := bound // nil changes nothing
		if set != nil {
			want = *set
		}
		if err != nil || resp.GetCategory().GetRepeatable() != want {
			t.Errorf("after %v: %v, %v", set, resp.GetCategory(), err)
		}
	}
	_, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "changes", Repeatable: new(scribev1.Repeatability(9))})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "repeatable: 9 is not known")

	// But for a sequenced one, whose readers read other logs.
	const sequenced = scribev1.Repeatability_REPEATABILITY_SEQUENCED
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "changes", Repeatable: new(sequenced)})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "repeatable: sequenced is decided when a category is created")
	resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "ordered", Repeatable: sequenced}})
	if cat := resp.GetCategory(); err != nil || !cat.IsSequenced() || !cat.HasOneOrder() || cat.OneLog() {
		t.Errorf("created %v, %v", cat, err)
	}
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "ordered", Repeatable: &none})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "repeatable: sequenced is decided when a category is created")
	if _, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "ordered", Repeatable: new(sequenced), Owner: new("someone")}); err != nil {
		t.Errorf("to say it again: %v", err)
	}
}

// TestQuotaMode: what happens beyond a quota can be changed at any time, but to nothing that loses what exactly_once counts on.
func TestQuotaMode(t *testing.T) {
	c := start(t, newStore(t), nil)
	const (
		block, throttle = scribev1.QuotaMode_QUOTA_MODE_BLOCK, scribev1.QuotaMode_QUOTA_MODE_THROTTLE
		sample, unset   = scribev1.QuotaMode_QUOTA_MODE_SAMPLE, scribev1.QuotaMode_QUOTA_MODE_UNSPECIFIED
		once            = scribev1.Delivery_DELIVERY_EXACTLY_ONCE
	)
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "once", Delivery: once, QuotaMode: sample, ReadQuotaMode: sample}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "quota_mode: sample drops frames", "read_quota_mode: sample drops frames")
	if _, err = c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "once", Delivery: once}}); err != nil {
		t.Fatal(err)
	}
	create(t, c, "least")
	for _, tc := range []struct {
		name      string
		set, want scribev1.QuotaMode
		fault     string
	}{
		{"once", sample, block, "quota_mode: sample drops frames"},
		{"once", throttle, throttle, ""},
		{"least", sample, sample, ""},
		{"least", 9, sample, "quota_mode: 9 is not known"},
		{"least", unset, block, ""},
	} {
		_, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: tc.name, QuotaMode: &tc.set})
		if tc.fault != "" {
			wantReason(t, err, scribev1.Reason_REASON_INVALID, tc.fault)
		} else if err != nil {
			t.Errorf("%s to %v: %v", tc.name, tc.set, err)
		}
		resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: tc.name})
		if err != nil || resp.GetCategory().GetQuotaMode() != tc.want {
			t.Errorf("%s after %v: %v, %v", tc.name, tc.set, resp.GetCategory().GetQuotaMode(), err)
		}
	}
}

// TestReadQuota: the quotas for reading are stored, and changed one by one.
func TestReadQuota(t *testing.T) {
	c := start(t, newStore(t), nil)
	throttle, sample := scribev1.QuotaMode_QUOTA_MODE_THROTTLE, scribev1.QuotaMode_QUOTA_MODE_SAMPLE
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{
		Name: "a", ReadQuotaBytesPerSecond: 5, ReadQuotaRequestsPerSecond: 6, ReadQuotaMode: throttle,
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := func(bytes, requests uint64, mode scribev1.QuotaMode) {
		t.Helper()
		resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
		if got := resp.GetCategory(); err != nil || got.GetReadQuotaBytesPerSecond() != bytes || got.GetReadQuotaRequestsPerSecond() != requests || got.GetReadQuotaMode() != mode {
			t.Errorf("%v, %v; want %d bytes, %d requests, %v", got, err, bytes, requests, mode)
		}
	}
	want(5, 6, throttle)
	for _, req := range []*scribev1.UpdateCategoryRequest{{ReadQuotaBytesPerSecond: new(uint64(7))}, {ReadQuotaMode: &sample}, {ReadQuotaRequestsPerSecond: new(uint64(0))}} {
		req.Name = "a"
		if _, err := c.UpdateCategory(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	want(7, 0, sample)
}

// TestCachePolicy: a policy is changed as a whole and removed with an empty one, and only one that means something is taken.
func TestCachePolicy(t *testing.T) {
	c := start(t, newStore(t), nil)
	const (
		always, never, reused = scribev1.CacheMode_CACHE_MODE_ALWAYS, scribev1.CacheMode_CACHE_MODE_NEVER, scribev1.CacheMode_CACHE_MODE_REUSED
	)
	age := durationpb.New(time.Hour)
	bad := &scribev1.CachePolicy{Memory: reused, Memcached: 9, MemcachedAge: durationpb.New(time.Millisecond)}
	faults := []string{"cache.memory: reused is for memcached", "cache.memcached: 9 is not known", "cache.memcached_age: 1ms"}
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "bad", Cache: bad}})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, faults...)
	if _, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a", Cache: &scribev1.CachePolicy{}}}); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		set, want *scribev1.CachePolicy
	}{
		{nil, nil}, // as created
		{&scribev1.CachePolicy{Memory: never, Memcached: reused, MemcachedAge: age}, &scribev1.CachePolicy{Memory: never, Memcached: reused, MemcachedAge: age}},
		{nil, &scribev1.CachePolicy{Memory: never, Memcached: reused, MemcachedAge: age}},
		{&scribev1.CachePolicy{Memcached: always}, &scribev1.CachePolicy{Memcached: always}},
		{bad, &scribev1.CachePolicy{Memcached: always}},
		{&scribev1.CachePolicy{}, nil},
	} {
		_, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Cache: tc.set})
		if tc.set == bad {
			wantReason(t, err, scribev1.Reason_REASON_INVALID, faults...)
		} else if err != nil {
			t.Errorf("%v: %v", tc.set, err)
		}
		resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
		if err != nil || !proto.Equal(resp.GetCategory().GetCache(), tc.want) {
			t.Errorf("after %v: %v, %v", tc.set, resp.GetCategory().GetCache(), err)
		}
	}
}

// TestAutoLinger: a linger that was set can be removed again.
func TestAutoLinger(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "a")
	resp, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Linger: durationpb.New(time.Second)})
	if err != nil || resp.GetCategory().GetLinger().AsDuration() != time.Second {
		t.Fatalf("%v, %v", resp, err)
	}
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Linger: durationpb.New(0), AutoLinger: true})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "auto_linger: ")
	resp, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", AutoLinger: true})
	if err != nil || resp.GetCategory().GetLinger() != nil {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestUnboundedWindow: a window that was set can be removed again.
func TestUnboundedWindow(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "a")
	resp, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", OrderingWindow: durationpb.New(time.Second)})
	if err != nil || resp.GetCategory().GetOrderingWindow() == nil {
		t.Fatalf("%v, %v", resp, err)
	}
	_, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", OrderingWindow: durationpb.New(time.Hour), UnboundedWindow: true})
	wantReason(t, err, scribev1.Reason_REASON_INVALID, "unbounded_window: ")
	resp, err = c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", UnboundedWindow: true})
	if err != nil || resp.GetCategory().GetOrderingWindow() != nil {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestUpdatesConcurrently: updates without a revision lose nothing of each other.
func TestUpdatesConcurrently(t *testing.T) {
	c := start(t, newStore(t), nil)
	create(t, c, "a")
	var wg sync.WaitGroup
	for _, req := range []*scribev1.UpdateCategoryRequest{
		{Owner: new("me")},
		{Shards: new(uint32(5))},
		{MaxMessageBytes: new(uint32(6))},
		{Schema: new("infer")},
		{QuotaBytesPerSecond: new(uint64(7))},
	} {
		wg.Go(func() {
			req.Name = "a"
			if _, err := c.UpdateCategory(t.Context(), req); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
	got := resp.GetCategory()
	if err != nil || got.GetOwner() != "me" || got.GetShards() != 5 || got.GetMaxMessageBytes() != 6 || got.GetSchema() != "infer" || got.GetQuotaBytesPerSecond() != 7 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestDeleteCategory(t *testing.T) {
	store := newStore(t)
	c := start(t, store, withLogs(newLogs()))
	a := create(t, c, "a")
	_, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a", Revision: a.GetRevision() + 1})
	wantReason(t, err, scribev1.Reason_REASON_CONFLICT)
	if _, err = c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a", Revision: a.GetRevision()}); err != nil {
		t.Fatal(err)
	}
	_, err = c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	_, err = c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"})
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	if again := create(t, c, "a"); again.GetId() == a.GetId() || again.GetRevision() <= a.GetRevision() {
		t.Errorf("created again as %v after %v", again, a)
	}
	if _, err = c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	// The id is not used again by a later process either.
	stop(t, c)
	c = start(t, store, withLogs(newLogs()))
	if third := create(t, c, "a"); third.GetId() != 3 {
		t.Errorf("id %d after a restart, want 3", third.GetId())
	}
	gone, err := dropped(t, c, 0, 0)
	if err != nil || len(gone) != 2 || gone[0].GetId() != 1 || gone[1].GetId() != 2 || gone[0].GetName() != "a" {
		t.Fatalf("dropped %v, %v", gone, err)
	}
	if _, err := c.ForgetDropped(t.Context(), &scribev1.ForgetDroppedRequest{Ids: []uint32{1, 7, 1}}); err != nil {
		t.Fatal(err)
	}
	if gone, err = dropped(t, c, 0, 1); err != nil || len(gone) != 1 || gone[0].GetId() != 2 {
		t.Fatalf("dropped %v, %v", gone, err)
	}
	if gone, err = dropped(t, c, 2, 0); err != nil || len(gone) != 0 {
		t.Fatalf("dropped after 2: %v, %v", gone, err)
	}
}

func TestSuggestions(t *testing.T) {
	c := start(t, newStore(t), nil)
	for _, name := range []string{"access_log", "access_logs", "error_log", "Payments", "a", "b"} {
		create(t, c, name)
	}
	waitSynced(t, c, 6)
	for want, text := range map[string]string{
		"acces_log":  `did you mean "access_log" or "access_logs"?`,
		"acecss_log": `did you mean "access_log"`,
		"payment":    `did you mean "Payments"?`,
		"c":          `did you mean "a" or "b"?`,
	} {
		_, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: want})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY, text)
	}
	_, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "something-else"})
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	if strings.Contains(err.Error(), "mean") {
		t.Errorf("%q suggests what is far", err)
	}
}

// waitSynced waits until watches see so many categories.
func waitSynced(t *testing.T, c *ControlPlane, n int) {
	t.Helper()
	errDone := errors.New("done")
	known := map[string]bool{}
	err := c.WatchCategories(t.Context(), &scribev1.WatchCategoriesRequest{}, func(msg *scribev1.WatchCategoriesResponse) error {
		for _, cat := range msg.GetUpdated() {
			known[cat.GetName()] = true
		}
		if len(known) == n {
			return errDone
		}
		return nil
	})
	if !errors.Is(err, errDone) {
		t.Fatal(err)
	}
}

// TestCreateConcurrently: many creates of few names by two control planes on one store give each name one id, and no id twice.
func TestCreateConcurrently(t *testing.T) {
	store := newStore(t)
	planes := []*ControlPlane{
		start(t, store, func(c *Config, _ *Deps) { c.IDBlock = 3 }), start(t, store, func(c *Config, _ *Deps) { c.IDBlock = 2 }),
	}
	var mu sync.Mutex
	ids := map[string]map[uint32]bool{}
	var wins atomic.Int64
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 20 {
				name := fmt.Sprintf("c%d", i)
				resp, err := planes[w%2].CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{
					Category: &scribev1.Category{Name: name}, IfNotExists: w%4 < 2,
				})
				if rpc.ReasonOf(err) == scribev1.Reason_REASON_CATEGORY_EXISTS && w%4 >= 2 {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if w%4 >= 2 {
					wins.Add(1)
				}
				mu.Lock()
				if ids[name] == nil {
					ids[name] = map[uint32]bool{}
				}
				ids[name][resp.GetCategory().GetId()] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	all := map[uint32]bool{}
	for name, of := range ids {
		for id := range of {
			if len(of) != 1 || all[id] || id == 0 {
				t.Errorf("%s has ids %v", name, of)
			}
			all[id] = true
		}
	}
	if len(all) != 20 || wins.Load() > 20 {
		t.Errorf("%d ids, %d creates that returned success without if_not_exists", len(all), wins.Load())
	}
}

// faultyStore fails commits of keys with a prefix: after carrying them out when applied is set.
type faultyStore struct {
	kv.Store
	prefix  string
	applied bool
	failing atomic.Bool
}

var errLost = errors.New("the answer was lost")

func (s *faultyStore) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if !s.failing.Load() || !slices.ContainsFunc(ops, func(op kv.Op) bool { return strings.HasPrefix(op.Key, s.prefix) }) {
		return s.Store.Commit(ctx, ops...)
	}
	if s.applied {
		if _, err := s.Store.Commit(ctx, ops...); err != nil {
			return 0, err
		}
	}
	return 0, errLost
}

// TestUnknownOutcome: an id whose create may have happened is not given out again, and the caller is told.
func TestUnknownOutcome(t *testing.T) {
	for _, applied := range []bool{false, true} {
		store := &faultyStore{Store: newStore(t), prefix: categoryPrefix, applied: applied}
		c := start(t, store, nil)
		store.failing.Store(true)
		_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		store.failing.Store(false)
		if b := create(t, c, "b"); b.GetId() != 2 {
			t.Errorf("applied %v: id %d after an unknown outcome with 1", applied, b.GetId())
		}
		resp, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "a"}, IfNotExists: true})
		if want := uint32(3); err != nil || (resp.GetCategory().GetId() == want) == applied {
			t.Errorf("applied %v: %v, %v", applied, resp.GetCategory(), err)
		}
	}
}

// TestLimits: a cell takes so many categories and no more, and watches likewise.
func TestLimits(t *testing.T) {
	c := start(t, newStore(t), func(c *Config, _ *Deps) { c.MaxCategories, c.MaxWatches = 2, 1 })
	create(t, c, "a")
	create(t, c, "b")
	waitSynced(t, c, 2)
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "c"}})
	wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
	err = c.WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error {
		err := c.WatchCategories(t.Context(), &scribev1.WatchCategoriesRequest{}, nil)
		wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
		return errLost
	})
	if !errors.Is(err, errLost) {
		t.Error(err)
	}
}

// TestExhaustedIDs: the last id is given out, and then none.
func TestExhaustedIDs(t *testing.T) {
	store := newStore(t)
	if _, err := store.Commit(t.Context(), kv.Put(nextIDKey, encodeNextID(maxID-1))); err != nil {
		t.Fatal(err)
	}
	c := start(t, store, nil)
	if a, b := create(t, c, "a"), create(t, c, "b"); a.GetId() != maxID-1 || b.GetId() != maxID {
		t.Errorf("ids %d and %d", a.GetId(), b.GetId())
	}
	_, err := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "c"}})
	wantReason(t, err, scribev1.Reason_REASON_OVERLOADED, "ids")
}

func TestConfig(t *testing.T) {
	if err := config.Defaults[Config]().Validate(); err != nil {
		t.Error(err)
	}
	err := Config{MemberInterval: -1, CreatePatience: -1}.Validate()
	var joined interface{ Unwrap() []error }
	if !errors.As(err, &joined) || len(joined.Unwrap()) != 16 {
		t.Errorf("%v does not report every field", err)
	}
	if _, err := New(Config{}, Deps{Store: newStore(t)}); err == nil {
		t.Error("New takes an invalid configuration")
	}
	if _, err := New(config.Defaults[Config](), Deps{}); err == nil {
		t.Error("New takes no store")
	}
	closed := memkv.New()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := New(config.Defaults[Config](), Deps{Store: closed}); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("New on a store that does not answer: %v", err)
	}
}

// TestStatusAndMetrics looks at what operators see.
func TestStatusAndMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	c := start(t, newStore(t), func(cfg *Config, d *Deps) {
		cfg.Version, cfg.StartedAt, cfg.Roles = "v1", time.UnixMicro(7), []scribev1.Role{scribev1.Role_ROLE_CONTROLPLANE}
		d.Registerer = registry
	})
	create(t, c, "a")
	waitSynced(t, c, 1)
	join(t, c, "m", time.Minute)
	status, err := c.GetStatus(t.Context(), nil)
	if err != nil || status.GetVersion() != "v1" || status.GetStartedAt() != 7 || len(status.GetRoles()) != 1 || len(status.GetMembers()) != 1 || status.GetCategories() != 1 {
		t.Errorf("%v, %v", status, err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := strings.TrimPrefix(f.GetName(), "scribe_controlplane_")
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			values[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	for name, want := range map[string]float64{
		"categories": 1, "members": 1, "watches/categories": 0, "watches/members": 0, "category_changes_total/created": 1,
		"joins_total": 1, "leaves_total": 0, "expiries_total": 0, "store_reads_total": 1,
		"leads": 1, "term": 0, "leader_changes_total": 0, "beat_failures_total": 0, "forwarded_calls_total/done": 0, "forwarded_calls_total/refused": 0,
	} {
		if got, ok := values[name]; !ok || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, ok, want)
		}
	}
}

func dropped(t *testing.T, c *ControlPlane, after, limit uint32) ([]*scribev1.Category, error) {
	t.Helper()
	res, err := c.ListDropped(t.Context(), &scribev1.ListDroppedRequest{After: after, Limit: limit})
	return res.GetCategories(), err
}
