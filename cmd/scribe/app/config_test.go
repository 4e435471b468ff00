package app

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	scribev1 "scribe/proto/scribe/v1"
)

func TestDefaultConfigIsValid(t *testing.T) {
	c := DefaultConfig()
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidateReportsEveryViolation(t *testing.T) {
	c := DefaultConfig()
	c.Roles, c.Data, c.Listen, c.Advertise = []Role{Batcher, ReadStream, "baker", "gateway"}, "", "nowhere", "ftp://x"
	c.Blobs = BlobConfig{Kind: "s3", S3: S3Config{Endpoint: "host:1", Encryption: "rot13"}}
	c.WriteProxy.MemoryBytes, c.Batcher.MemoryBytes, c.ReadProxy.CacheBytes, c.MetadataCache, c.ReadStream.MaxStreams = 0, 0, 0, 0, 0
	c.ShutdownTimeout, c.LeaseTTL, c.Log = 0, time.Hour, LogConfig{Level: "loud", Format: "xml"}
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{
		`"baker"`, `the role "gateway" is called "sqlserver" now`, "data (--data):", "listen (--listen):", "advertise (--advertise):", "control (--control):", "metalog (--metalog):", "blobs.s3.endpoint", "blobs.s3.bucket", "blobs.s3.access_key", "blobs.s3.encryption (--s3-encryption):",
		"limits.write_memory", "limits.batch_memory", "limits.read_cache", "limits.metadata_cache", "streams.max: invalid value 0", "shutdown_timeout", "lease_ttl", "log.level", "log.format",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
}

func TestParseRoles(t *testing.T) {
	var got RoleList
	if err := got.UnmarshalText([]byte(" batcher , writeproxy")); err != nil || !slices.Equal(got, []Role{Batcher, WriteProxy}) {
		t.Errorf("%v, %v", got, err)
	}
	if err := got.UnmarshalText([]byte("all")); err != nil || !slices.Equal(got, AllRoles) {
		t.Errorf("all: %v, %v", got, err)
	}
	if err := got.UnmarshalText([]byte("batcher,baker,brewer")); err == nil || !strings.Contains(err.Error(), `"baker"`) || !strings.Contains(err.Error(), `"brewer"`) {
		t.Errorf("unknown roles: %v", err)
	}
	if err := got.UnmarshalText([]byte("gateway")); err == nil || !strings.Contains(err.Error(), `the role "gateway" is called "sqlserver" now`) {
		t.Errorf("an earlier name: %v", err)
	}
}

// TestRoleNames: a cell calls roles what --roles does.
func TestRoleNames(t *testing.T) {
	a := &App{cfg: Config{Roles: AllRoles}}
	for i, name := range scribev1.RoleNames(a.protoRoles()) {
		if Role(name) != AllRoles[i] {
			t.Errorf("%s is called %s", AllRoles[i], name)
		}
	}
}

// TestOperationsGuide: the configuration that the guide shows is one that is read.
func TestOperationsGuide(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(guide), "```yaml\n")
	text, _, closed := strings.Cut(rest, "```")
	if !found || !closed {
		t.Fatal("the guide shows no YAML")
	}
	file := filepath.Join(t.TempDir(), "guide.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	if err := c.Load(file); err != nil {
		t.Fatal(err)
	}
	c.Blobs.S3.AccessKey, c.Blobs.S3.SecretKey = "from", "the environment"
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestFlushFloor(t *testing.T) {
	c := DefaultConfig()
	if got := c.batcherConfig().FlushFloor; got != 0 {
		t.Errorf("on files: %v, want 0", got)
	}
	c.Blobs.Kind = "s3"
	if got := c.batcherConfig().FlushFloor; got != 80*time.Millisecond {
		t.Errorf("on S3: %v, want 80ms", got)
	}
	c.FlushFloor = new(time.Second)
	if got := c.batcherConfig().FlushFloor; got != time.Second {
		t.Errorf("configured: %v, want 1s", got)
	}
}

// TestInputViolations: what is wrong with an input is told by its place in the file.
func TestInputViolations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	text := `
inputs:
  follow: [{name: a, paths: ["["], exclude: ["["], category: "{nope}"}, {name: a, paths: [x], category: c}]
  syslog: [{tcp: {address: nowhere, token_file: x}, max_connections: -1}, {name: none}]
  otlp: [{listen: {address: "127.0.0.1:0", tls_cert: x}, format: xml}]
  lines: [{name: agent, listen: {address: "127.0.0.1:0"}, patience: 0s}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	if err := c.Load(file); err != nil {
		t.Fatal(err)
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	for _, want := range []string{
		"inputs.follow[0].paths[0]:", "inputs.follow[0].exclude[0]:", "inputs.follow[0].category:", "inputs.follow[1].name:",
		"inputs.syslog[0].tcp.address:", "inputs.syslog[0].tcp.token_file:", "inputs.syslog[0].max_connections:", "inputs.syslog[1].udp: missing",
		"inputs.otlp[0].listen.tls_key: missing", "inputs.otlp[0].format:", "inputs.lines[0].patience:", "inputs.lines[0].name:",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
	if err := os.WriteFile(file, []byte("inputs:\n  syslog:\n  - udp: \"127.0.0.1:0\"\n    prot: auto\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(file); err == nil || !strings.Contains(err.Error(), "line 4") || !strings.Contains(err.Error(), "prot") {
		t.Errorf("an unknown field: %v", err)
	}
}

// TestInputsGuide: the example of an agent, and the configurations that the guide shows, are ones that are read.
func TestInputsGuide(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/inputs.md")
	if err != nil {
		t.Fatal(err)
	}
	files := []string{"../../../docs/agent.example.yaml"}
	for i, block := range strings.Split(string(guide), "```yaml\n")[1:] {
		text, _, closed := strings.Cut(block, "```")
		if !closed {
			t.Fatal("a block of YAML is not closed")
		}
		if strings.HasPrefix(text, "exporters:") {
			continue // a collector's
		}
		file := filepath.Join(t.TempDir(), strconv.Itoa(i)+".yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	if len(files) != 5 {
		t.Errorf("%d configurations, want the example and one for each input", len(files))
	}
	for _, file := range files {
		c := DefaultConfig()
		c.Roles, c.Upstream, c.Scribed.Spool.Dir = []Role{Scribed}, "http://127.0.0.1:7420", "spool"
		if err := c.Load(file); err != nil {
			t.Fatal(err)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if n := len(c.Inputs.Follow) + len(c.Inputs.Syslog) + len(c.Inputs.OTLP) + len(c.Inputs.Lines); n == 0 {
			t.Errorf("%s has no inputs", file)
		}
	}
}
