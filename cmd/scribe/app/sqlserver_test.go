package app

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestQueryOverHTTP: a process with all roles answers queries on its address, and says what is wrong with them.
func TestQueryOverHTTP(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Data, cfg.Listen = t.TempDir(), "127.0.0.1:0"
	a, err := Start(t.Context(), cfg, Options{Logger: slog.New(slog.DiscardHandler), Version: "test"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := a.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	control := rpc.NewControlClient(transport, a.URL())
	if _, err := control.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: "access"}}); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	ask := func(sql, more string) (int, string) {
		t.Helper()
		res, err := client.Get(a.URL() + "/v1/query?sql=" + url.QueryEscape(sql) + more)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := ask("SELECT payload FROM access", "&format=csv"); status != http.StatusOK || strings.TrimSpace(body) != "payload" {
		t.Errorf("an empty category: %d, %q", status, body)
	}
	for _, c := range []struct {
		sql, more, code, hint string
		status                int
	}{
		{"SELECT pyload FROM access", "", "invalid", "payload", 400},
		{"SELECT * FROM acces", "", "unknown_category", `did you mean "access"?`, 404},
		{"SELECT count(*) FROM access", "&follow=1", "invalid", "", 400},
	} {
		status, body := ask(c.sql, c.more)
		var e struct {
			Error struct{ Code, Hint, Caret string }
		}
		if err := json.Unmarshal([]byte(body), &e); err != nil || status != c.status || e.Error.Code != c.code || !strings.Contains(e.Error.Hint, c.hint) {
			t.Errorf("%s: %d, %v\n%s", c.sql, status, err, body)
		}
		if strings.Contains(c.sql, "pyload") && !strings.HasSuffix(e.Error.Caret, "SELECT pyload FROM access\n               ^") {
			t.Errorf("the place is shown as\n%s", e.Error.Caret)
		}
	}
}

func TestSQLServerViolations(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Config)
		says   string
	}{
		"flight alone":  {func(c *Config) { c.Roles, c.Flight = []Role{ControlPlane, Metalog}, "127.0.0.1:0" }, "sqlserver.flight (--flight): the process has no sqlserver role"},
		"flight":        {func(c *Config) { c.Flight = "7424" }, "want host:port"},
		"queries":       {func(c *Config) { c.SQLServer.MaxQueries = 0 }, "sqlserver.max_queries (--max-queries): invalid value 0"},
		"more follow":   {func(c *Config) { c.SQLServer.MaxFollows = c.SQLServer.MaxQueries + 1 }, "sqlserver.max_follows"},
		"little memory": {func(c *Config) { c.SQLServer.QueryMemory = 1 }, "sqlserver.query_memory"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			c.change(&cfg)
			if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v", err)
			}
		})
	}
}
