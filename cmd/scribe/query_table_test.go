package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestListings: SHOW TABLES and DESCRIBE are answered without reading messages, in every format.
func TestListings(t *testing.T) {
	mux := http.NewServeMux()
	(&rpc.Services{Control: &categories{category: &scribev1.Category{Name: "web.access", Id: 1}}}).Register(mux)
	server := httptest.NewServer(mux)
	defer server.Close()
	run := func(args ...string) (string, string, error) {
		cmd := newRoot()
		var out, stderr bytes.Buffer
		cmd.SetOut(&out)
		cmd.SetErr(&stderr)
		cmd.SetArgs(append(append([]string{"query"}, args...), "--server", server.URL))
		err := cmd.ExecuteContext(t.Context())
		return out.String(), stderr.String(), err
	}
	for _, c := range []struct {
		args      []string
		out, said string
	}{
		{[]string{"SHOW TABLES", "-o", "jsonl"}, "{\"name\":\"web.access\"}\n", ""},
		{[]string{"show tables"}, "name\nstring\n----------\nweb.access\n", ""},
		{[]string{"describe web.access", "-o", "csv", "-n", "1"}, "column_name,column_type,null\r\npayload,binary,YES\r\n", ""},
		{[]string{"describe web.access", "--width", "12", "--rows", "1"}, "column_name…\nstring…\n-----------…\npayload…\n", "7 rows and 2 columns not shown, 4 lines cut: use --rows 0, --width 0 or -o jsonl"},
	} {
		out, said, err := run(c.args...)
		if err != nil || out != c.out || !strings.Contains(said, c.said) || c.said == "" && said != "" {
			t.Errorf("%q: got %q and %q, %v", c.args, out, said, err)
		}
	}
	for says, args := range map[string][]string{
		"reads no messages: remove --follow": {"SHOW TABLES", "--follow"}, "has no value": {"SELECT a FROM t WHERE b = ?"},
		"1 parameters, but 2 values": {"SELECT a FROM t WHERE b = ?", "--param", "1", "--param", "2"}, "invalid --width": {"SHOW TABLES", "--width", "-1"},
		"remove one of them": {"SELECT a FROM t OFFSET 1", "--checkpoint", t.TempDir() + "/cp"},
	} {
		if _, _, err := run(args...); exitCode(err) != exitUsage || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v", args, err)
		}
	}
}
