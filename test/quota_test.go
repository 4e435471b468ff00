package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"scribe/test/program"
)

// TestTenantQuota: what the categories of an owner write counts together, through the real program: set by who may, refused by name, shown, in the trail,
// kept over a restart, and gone when it is removed.
func TestTenantQuota(t *testing.T) {
	data := filepath.Join(t.TempDir(), "data")
	up := serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	defer func() { up.Stop() }()
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	admin := os.Getenv("SCRIBE_TOKEN")
	for _, name := range []string{"shop.orders", "shop.clicks"} {
		program.OK(t, nil, "category", "create", name, "--owner", "shop")
	}
	program.OK(t, nil, "category", "create", "other")
	manager := strings.TrimSpace(string(program.OK(t, nil, "token", "issue", "--name", "manager", "--can", "write,read,manage:owner=shop")))

	t.Setenv("SCRIBE_TOKEN", manager)
	wantCode(t, program.Run(t, nil, "quota", "set", "--owner", "shop", "--write", "1GiB"), 4, "quotas of owners")
	t.Setenv("SCRIBE_TOKEN", admin)
	// A frame passes while there is anything left, and is owed for: the first one uses up what the owner has for minutes.
	wantCode(t, program.Run(t, nil, "quota", "set", "--owner", "shop", "--write", "1B"), 0, "owner shop", "1B/s")
	wantCode(t, program.Run(t, nil, "quota", "set", "--prefix", "shop.", "--read-requests", "1000"), 0)

	write := func(name string) program.Result {
		return program.Run(t, strings.NewReader(strings.Repeat("x", 1000)+"\n"), "produce", name, "--timeout", "1s")
	}
	refused := func(name string) bool {
		r := write(name)
		return r.Code != 0 && strings.Contains(string(r.Stderr), "category "+name+" is over the quota of its owner shop")
	}
	eventually(t, waitLimit, "the owner's quota is in force", func() bool { return refused("shop.orders") })
	if !refused("shop.clicks") {
		t.Error("the quota of the owner is not that of all of its categories")
	}
	if r := write("other"); r.Code != 0 {
		t.Errorf("another owner's category: exit code %d\n%s", r.Code, r.Stderr)
	}

	t.Setenv("SCRIBE_TOKEN", manager) // who sees all of the tenant sees its quota, and no other's
	if out := string(program.OK(t, nil, "quota", "list")); !strings.Contains(out, "1B/s") || strings.Contains(out, "shop.") {
		t.Errorf("the manager of the owner sees:\n%s", out)
	}
	t.Setenv("SCRIBE_TOKEN", admin)
	eventually(t, waitLimit, "top shows the owner's quota", func() bool {
		var v struct {
			Categories []struct {
				Owner string
				Quota float64 `json:"quota_bytes_per_second"`
			}
		}
		if err := json.Unmarshal(program.OK(t, nil, "top", "--by", "owner", "--interval", "100ms", "-o", "json"), &v); err != nil {
			t.Fatal(err)
		}
		for _, row := range v.Categories {
			if row.Owner == "shop" {
				return row.Quota == 1
			}
		}
		return false
	})
	eventually(t, waitLimit, "the trail has who set it and who may not", func() bool {
		out := string(program.Run(t, nil, "query", "SELECT action, target, outcome, principal FROM _audit", "-o", "jsonl").Stdout)
		has := func(texts ...string) bool {
			return slices.ContainsFunc(strings.Split(out, "\n"), func(line string) bool {
				return !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) })
			})
		}
		return has("SetTenantQuota", "owner=shop", "done", "admin") && has("SetTenantQuota", "shop.*", "done") && has("denied", "manager", "quotas of owners")
	})

	up.Stop()
	up = serve(t, nil, "up", "--secure", "--data", data, "--listen", "127.0.0.1:0")
	sourceFile(t, filepath.Join(data, "secure", "admin.env"))
	t.Setenv("SCRIBE_SERVER", up.URL)
	eventually(t, waitLimit, "the owner's quota is in force after a restart", func() bool { return refused("shop.clicks") })
	program.OK(t, nil, "quota", "remove", "--owner", "shop")
	wantCode(t, program.Run(t, nil, "quota", "remove", "--owner", "shop"), 3, "it has none")
	eventually(t, waitLimit, "nothing is refused without the quota", func() bool { return write("shop.clicks").Code == 0 })
}
