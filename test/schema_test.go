package test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"scribe/cmd/scribe/app"
	"scribe/internal/testkit/sample"
)

// TestSchemas: a schema is inferred from samples, checked, set, changed compatibly, refused or forced otherwise, and shown in any version; the
// exit codes say which.
func TestSchemas(t *testing.T) {
	c := inProcess(t, app.Direct)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	run := func(args ...string) string { return string(ok(t, nil, append(args, "--server", c.read)...)) }
	fails := func(code int, texts []string, args ...string) {
		t.Helper()
		r := cli(t, nil, append(args, "--server", c.read)...)
		if r.Code != code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", args, r.Code, code, r.Stdout, r.Stderr)
		}
		for _, text := range texts {
			if !strings.Contains(string(r.Stdout)+string(r.Stderr), text) {
				t.Errorf("%v: %q is not in\n%s%s", args, text, r.Stdout, r.Stderr)
			}
		}
	}

	rows := sample.AccessJSON()
	samples := file("access.jsonl", string(rows))
	inferred := run("schema", "infer", samples)
	for _, want := range []string{
		"{name: ts, type: timestamp, nullable: false}", "{name: status, type: int64, nullable: false}", "{name: bytes, type: int64}",
		"{name: method, type: dictionary, nullable: false}", "{name: path, type: string, nullable: false}", "{name: referrer, type: dictionary}",
	} {
		if !strings.Contains(inferred, want) {
			t.Errorf("%s is not in what was inferred:\n%s", want, inferred)
		}
	}
	access := file("access.yaml", inferred)
	if out := run("schema", "check", access, samples); !strings.Contains(out, "9999 of 9999 rows fit") {
		t.Errorf("checked: %s", out)
	}
	fails(1, []string{"message 2: n at byte 5: ", "1 of 2 rows fit"}, "schema", "check", file("n.yaml", "fields: [{name: n, type: int32}]"), file("n.jsonl", "{\"n\":1}\n{\"n\":\"x\"}\n"))
	nginx := file("nginx_status.jsonl", string(sample.NginxStatus()))
	status := run("schema", "infer", nginx)
	for _, want := range []string{"{name: timestamp, type: timestamp(unix_ms)", "type: map<struct>", "type: list<struct>", "{name: 4xx, type: int64", "{name: last_passed, type: bool}"} {
		if !strings.Contains(status, want) {
			t.Errorf("%s is not in what was inferred:\n%s", want, status)
		}
	}
	if out := run("schema", "check", file("nginx.yaml", status), nginx); !strings.Contains(out, "500 of 500 rows fit") {
		t.Errorf("checked: %s", out)
	}
	fails(2, []string{"line 1, column 26", `did you mean "int64" or`}, "schema", "check", file("bad.yaml", "fields: [{name: n, type: itn64}]"))
	fails(1, []string{"no such file"}, "schema", "check", filepath.Join(dir, "none.yaml"))

	run("category", "create", "access", "--schema", access)
	if out := run("category", "describe", "access"); !strings.Contains(out, `"schema": "version 1: json, 9 fields"`) {
		t.Errorf("described as %s", out)
	}
	wider := file("wider.json", strings.Replace(run("schema", "show", "access", "-o", "json"), `"name":"status","type":"int64"`, `"name":"status","type":"decimal(20,0)"`, 1))
	narrow := file("narrow.yaml", strings.Replace(inferred, "{name: status, type: int64, nullable: false}", "{name: status, type: int32}", 1))
	if out := run("schema", "check", wider, "--against", "access"); !strings.Contains(out, `+ field "status": becomes wider, from int64 to decimal(20,0)`) {
		t.Errorf("compared: %s", out)
	}
	fails(1, []string{`! field "status": the type changes from int64 to int32`, `+ field "status": becomes nullable`}, "schema", "check", narrow, "--against", "access")
	run("schema", "set", "access", wider, "--dry-run")
	run("schema", "set", "access", access) // the same
	if out := run("schema", "show", "access", "--versions"); strings.Contains(out, "\n2") {
		t.Errorf("there is a version 2 of nothing: %s", out)
	}
	run("schema", "set", "access", wider)
	fails(1, []string{"--force", `! field "status"`}, "schema", "set", "access", narrow)
	fails(1, []string{"not compatible", "version 2"}, "category", "update", "access", "--schema", narrow)
	run("schema", "set", "access", narrow, "--force")
	if out := run("schema", "show", "access", "--versions"); !strings.Contains(out, "becomes wider") || !strings.Contains(out, "\n3 ") {
		t.Errorf("versions: %s", out)
	}
	if out := run("schema", "show", "access", "--version", "2", "-o", "arrow"); !strings.Contains(out, "status: decimal(20, 0) not null") || !strings.Contains(out, "_time: timestamp[us, tz=UTC]") {
		t.Errorf("version 2: %s", out)
	}
	fails(3, []string{"want 1 to 3"}, "schema", "show", "access", "--version", "4")
	fails(3, []string{"does not exist"}, "schema", "show", "nothing")
	fails(2, []string{"invalid value \"xml\" for -o: want yaml, json or arrow"}, "schema", "show", "access", "-o", "xml")
	fails(2, []string{"line 1"}, "category", "create", "x", "--schema", file("bad.json", `{"fields": {}}`))
	run("category", "create", "plain")
	fails(3, []string{"has no schema"}, "schema", "show", "plain")
}

// TestInferredSchema: a category that is created with its schema to be inferred has one as soon as somebody wants it and there are messages, the
// same for all; a category without one is given what its messages say.
func TestInferredSchema(t *testing.T) {
	eachKind(t, func(t *testing.T, c *cell) {
		ok(t, nil, "category", "create", "events", "--schema", "infer", "--server", c.read)
		if r := cli(t, nil, "schema", "show", "events", "--server", c.read); r.Code != 3 || !strings.Contains(string(r.Stderr), "to be inferred") {
			t.Errorf("without messages: exit code %d\n%s", r.Code, r.Stderr)
		}
		if out := ok(t, nil, "category", "describe", "events", "--server", c.read); !bytes.Contains(out, []byte(`"schema": "infer"`)) {
			t.Errorf("described as %s", out)
		}
		produce(t, c, "events", []byte("{\"n\":1,\"at\":\"2024-01-02T03:04:05Z\"}\n{\"n\":2.5}\n"))
		var wg sync.WaitGroup
		outputs := make([]string, 3)
		for i := range outputs {
			wg.Go(func() {
				r := cli(t, nil, "schema", "show", "events", "--server", c.read)
				outputs[i] = string(r.Stdout) + string(r.Stderr)
			})
		}
		wg.Wait()
		const want = "version: 1\nformat: json\non_error: \"null\"\nfields:\n  - {name: n, type: float64}\n  - {name: at, type: timestamp}\n"
		for _, out := range outputs {
			if out != want {
				t.Errorf("shown as\n%s, want\n%s", out, want)
			}
		}
		produce(t, c, "other", []byte("{\"a\":true}\n"))
		ok(t, nil, "schema", "infer", "--category", "other", "--set", "--server", c.read)
		if out := ok(t, nil, "schema", "show", "other", "--server", c.read); !bytes.Contains(out, []byte("{name: a, type: bool}")) {
			t.Errorf("shown as %s", out)
		}
	})
}
