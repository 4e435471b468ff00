package main

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/cmd/scribe/survey"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// tenantQuotas is a control plane that notes what it is asked of quotas.
type tenantQuotas struct {
	rpc.ControlService
	set     *scribev1.TenantQuota
	removed *scribev1.RemoveTenantQuotaRequest
}

func (q *tenantQuotas) SetTenantQuota(_ context.Context, req *scribev1.SetTenantQuotaRequest) (*scribev1.SetTenantQuotaResponse, error) {
	q.set = req.GetQuota()
	return &scribev1.SetTenantQuotaResponse{Quota: q.set}, nil
}

func (q *tenantQuotas) RemoveTenantQuota(_ context.Context, req *scribev1.RemoveTenantQuotaRequest) (*scribev1.RemoveTenantQuotaResponse, error) {
	q.removed = req
	return &scribev1.RemoveTenantQuotaResponse{}, nil
}

func (q *tenantQuotas) ListTenantQuotas(context.Context, *scribev1.ListTenantQuotasRequest) (*scribev1.ListTenantQuotasResponse, error) {
	return &scribev1.ListTenantQuotasResponse{Quotas: []*scribev1.TenantQuota{
		{Owner: "shop", WriteBytesPerSecond: 10 << 20, ReadBytesPerSecond: 50 << 20, ReadRequestsPerSecond: 100, Mode: scribev1.QuotaMode_QUOTA_MODE_BLOCK},
		{Prefix: "web.", WriteBytesPerSecond: 1 << 20, Mode: scribev1.QuotaMode_QUOTA_MODE_THROTTLE},
	}}, nil
}

// TestQuotaCommands: quotas of tenants are set, listed and removed by the names that people use; what can't be meant is not sent.
func TestQuotaCommands(t *testing.T) {
	q := &tenantQuotas{}
	server := serveProcess(t, rpc.Services{Control: q})
	run := func(args ...string) (string, error) {
		return runCommand(t, append([]string{"quota"}, append(args, "--server", server)...)...)
	}
	if _, err := run("set", "--owner", "shop", "--write", "10MiB", "--read", "50MiB", "--read-requests", "100"); err != nil {
		t.Fatal(err)
	}
	want := &scribev1.TenantQuota{Owner: "shop", WriteBytesPerSecond: 10 << 20, ReadBytesPerSecond: 50 << 20, ReadRequestsPerSecond: 100, Mode: scribev1.QuotaMode_QUOTA_MODE_BLOCK}
	if !proto.Equal(q.set, want) {
		t.Errorf("set %v, want %v", q.set, want)
	}
	if _, err := run("set", "--prefix", "web.", "--write", "1MiB", "--mode", "throttle"); err != nil || q.set.GetPrefix() != "web." || q.set.GetMode() != scribev1.QuotaMode_QUOTA_MODE_THROTTLE {
		t.Errorf("set %v, %v", q.set, err)
	}
	out, err := run("list")
	for _, text := range []string{"OWNER", "shop", "10MiB/s", "50MiB/s, 100 requests/s", "web.", "throttle"} {
		if err != nil || !strings.Contains(out, text) {
			t.Errorf("the list has no %q: %v\n%s", text, err, out)
		}
	}
	out, err = run("list", "-o", "json")
	first, _, _ := strings.Cut(out, "\n")
	var line map[string]any
	if err != nil || json.Unmarshal([]byte(first), &line) != nil || line["owner"] != "shop" || line["write_per_second"] != "10MiB" || line["read_requests_per_second"] != 100.0 || line["mode"] != "block" {
		t.Errorf("as JSON: %s, %v", out, err)
	}
	if _, err := run("remove", "--prefix", "web."); err != nil || q.removed.GetPrefix() != "web." || q.removed.GetOwner() != "" {
		t.Errorf("removed %v, %v", q.removed, err)
	}
	q.set, q.removed = nil, nil
	for _, args := range [][]string{
		{"set", "--write", "1MiB"},
		{"set", "--owner", "a", "--prefix", "b", "--write", "1MiB"},
		{"set", "--owner", "a"},
		{"set", "--owner", "a", "--write", "0"},
		{"set", "--owner", "a", "--write", "10"},
		{"set", "--owner", "a", "--write", "1MiB", "--mode", "drop"},
		{"remove"},
		{"remove", "--owner", "a", "--prefix", "b"},
	} {
		if _, err := run(args...); exitCode(err) != exitUsage {
			t.Errorf("%q: exit code %d, %v", args, exitCode(err), err)
		}
	}
	if q.set != nil || q.removed != nil {
		t.Errorf("sent %v, %v", q.set, q.removed)
	}
}

// TestTopByTenant: the use of a tenant's quota is that of all of its categories, and a line says whose quota refused.
func TestTopByTenant(t *testing.T) {
	writer := &countingProcess{perAsk: []*scribev1.CategoryTraffic{
		{Category: "web.a", Owner: "shop", WrittenBytes: 300, OverQuotaMessages: 5, OverOwnerQuotaMessages: 5, OwnerQuotaBytesPerSecond: 1 << 20, QuotaPrefix: "web.", PrefixQuotaBytesPerSecond: 1 << 10},
		{Category: "web.b", Owner: "ads", WrittenBytes: 100, OverQuotaMessages: 5, OverPrefixQuotaMessages: 5, QuotaPrefix: "web.", PrefixQuotaBytesPerSecond: 1 << 10},
		{Category: "own", Owner: "ads", WrittenBytes: 50, OverQuotaMessages: 5, QuotaBytesPerSecond: 1 << 10},
		{Category: "more", Owner: "shop", WrittenBytes: 100, OwnerQuotaBytesPerSecond: 1 << 20},
	}}
	cell := &listedMembers{status: &scribev1.GetStatusResponse{Members: []*scribev1.Member{
		{Id: "w", Roles: []scribev1.Role{scribev1.Role_ROLE_WRITEPROXY}, Url: serveProcess(t, rpc.Services{Process: writer})},
	}}}
	server := serveProcess(t, rpc.Services{Control: cell})
	for _, tc := range []struct {
		by   string
		want map[string]float64 // bytes of the line that count, and the quota
	}{
		{"owner", map[string]float64{"shop": 400.0 / (1 << 20), "ads": 50.0 / (1 << 10)}}, // of ads, the quota of a category is used most
		{"prefix", map[string]float64{"web.": 400.0 / (1 << 10), "(no quota)": 50.0 / (1 << 10)}},
	} {
		out, err := runCommand(t, "top", "-o", "json", "--interval", "100ms", "--by", tc.by, "--server", server)
		if err != nil {
			t.Fatal(err)
		}
		var v survey.TrafficView
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatal(err)
		}
		for _, row := range v.Categories {
			want, ok := tc.want[row.Owner+row.Prefix]
			if got := row.QuotaUsed * v.Seconds; !ok || math.Abs(got-want) > want/1e6 {
				t.Errorf("by %s, of %s%s: %v of the quota is used, want %v", tc.by, row.Owner, row.Prefix, got, want)
			}
		}
		if len(v.Categories) != len(tc.want) {
			t.Errorf("by %s: %d lines", tc.by, len(v.Categories))
		}
	}
	out, err := runCommand(t, "top", "--interval", "100ms", "--server", server)
	marks := map[string]string{}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) > 8 {
			marks[f[0]] = strings.TrimLeft(f[7], "0123456789%")
		}
	}
	if err != nil || marks["web.a"] != "+owner" || marks["web.b"] != "+prefix" || marks["own"] != "+" || marks["more"] != "-" {
		t.Errorf("%v, marks %q:\n%s", err, marks, out)
	}
}
