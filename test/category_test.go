package test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCategories: what is created is described, listed and updated as asked, survives a restart, and is gone when deleted.
func TestCategories(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		schema := filepath.Join(t.TempDir(), "schema.yaml")
		if err := os.WriteFile(schema, []byte("columns: []\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		run := func(args ...string) []byte { return ok(t, nil, append(args, "--server", c.read)...) }
		run("category", "create", "orders", "--retention", "7d", "--shards", "4", "--delivery", "exactly_once", "--owner", "shop", "--quota", "10MB",
			"--window", "30s", "--max-message", "1MiB", "--schema", schema)
		run("category", "create", "other")
		run("category", "update", "orders", "--retention", "1w1d", "--shards", "8")
		c.restart(t, c)
		var got map[string]any
		if err := json.Unmarshal(run("category", "describe", "orders"), &got); err != nil {
			t.Fatal(err)
		}
		for field, want := range map[string]any{
			"name": "orders", "retention": "8d", "shards": 8.0, "delivery": "exactly_once", "owner": "shop", "quota_per_second": "10000000", "window": "30s",
			"max_message": "1MiB", "schema": "columns: []\n",
		} {
			if got[field] != want {
				t.Errorf("%s is %v, want %v", field, got[field], want)
			}
		}
		if list := string(run("category", "list", "--prefix", "o")); !strings.Contains(list, "orders") || !strings.Contains(list, "other") {
			t.Errorf("listed as %s", list)
		}
		if r := cli(t, nil, "category", "update", "orders", "--shards", "2", "--server", c.read); r.Code != 2 {
			t.Errorf("fewer shards: exit code %d, want 2\n%s", r.Code, r.Stderr)
		}
		if r := cli(t, nil, "category", "update", "orders", "--owner", "x", "--revision", "1", "--server", c.read); r.Code != 1 {
			t.Errorf("an old revision: exit code %d, want 1\n%s", r.Code, r.Stderr)
		}
		run("category", "delete", "orders")
		if r := cli(t, nil, "category", "describe", "orders", "--server", c.read); r.Code != 3 {
			t.Errorf("after the deletion: exit code %d, want 3\n%s", r.Code, r.Stderr)
		}
	})
}

// TestRecreatedCategory: a category that was deleted and created again under its name does not show the old messages.
func TestRecreatedCategory(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		produce(t, c, "again", []byte("old\n"))
		ok(t, nil, "category", "delete", "again", "--server", c.read)
		ok(t, nil, "category", "create", "again", "--server", c.read)
		produce(t, c, "again", []byte("new\n"))
		sameBytes(t, "the category of the same name", tail(t, c, "again"), []byte("new\n"))
	})
}
