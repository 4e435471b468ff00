package app

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"scribe/internal/base/config"
	"scribe/readproxy"
	"scribe/readproxy/view"
)

// TestReadProxyViolations: what is wrong with a read proxy and with regions is told by its place in the file.
func TestReadProxyViolations(t *testing.T) {
	file := filepath.Join(t.TempDir(), "readproxy.yaml")
	text := `
region: "e u"
regions:
  - {name: us, read_proxies: nowhere}
  - {name: us, blobs: {kind: file}}
  - {name: "", blobs: {kind: s3, s3: {endpoint: x}}}
  - {name: asia}
limits: {read_memory: 10MiB}
read_proxy:
  fetches: 0
  utilisation: 2
  requests_per_second: -1
  views: {most: 65, queries: 0, expiry: 1ms, rebalance: 2h}
  memcached: {servers: [nowhere], timeout: 0s, prefix: "a b"}
  rules: [{match: "["}, {match: a, memory: reused}]
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
		"region (--region): ", "regions[0].read_proxies: ", `regions[1].name: "us" is given twice`, "regions[1].blobs.path: missing", "regions[2].name: missing",
		"regions[2].blobs.s3.endpoint", "regions[2].blobs.s3.access_key", "regions[3]: missing: want read_proxies or blobs", "limits.read_memory (--read-memory): invalid value 10MiB",
		"read_proxy.fetches: invalid value 0: want 1 to 100000", "read_proxy.utilisation: invalid value 2: want more than 0, and at most 1",
		"read_proxy.requests_per_second: invalid value -1", `read_proxy.memcached.servers (--memcached): invalid value "nowhere"`,
		"read_proxy.memcached.timeout: invalid value 0s", "read_proxy.memcached.prefix: ", `read_proxy.rules[0].match: invalid value "["`,
		`read_proxy.rules[1].memory: invalid value "reused": want always or never`, "read_proxy.views.most (--max-views): invalid value 65",
		"read_proxy.views.queries: invalid value 0", "read_proxy.views.expiry: invalid value 1ms", "read_proxy.views.rebalance: invalid value 2h",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %s:\n%v", want, err)
		}
	}
	c.Roles = []Role{WriteProxy}
	if err := c.Validate(); err == nil || strings.Contains(err.Error(), "read_proxy") {
		t.Errorf("a process without the role: %v", err)
	}
	if err := os.WriteFile(file, []byte("read_proxy: {rules: [{match: a, memcached: sometimes}]}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := new(Config).Load(file); err == nil || !strings.Contains(err.Error(), "sometimes") {
		t.Errorf("loaded with %v", err)
	}
}

// TestReadProxyConfig: the role gets what the configuration says, and its own defaults where that says nothing.
func TestReadProxyConfig(t *testing.T) {
	c := DefaultConfig()
	d := config.Defaults[readproxy.Config]()
	got := c.readProxyConfig()
	if got.Memcached != nil || len(got.Rules) > 0 || got.CacheBytes != d.CacheBytes || got.FetchBytes != d.FetchBytes || got.RequestBytes != d.RequestBytes ||
		got.Queue != d.Queue || got.FetchTimeout != d.FetchTimeout || got.CoalesceGap != d.CoalesceGap || got.RequestsPerSecond != d.RequestsPerSecond || got.Views != d.Views {
		t.Errorf("the default is %+v, the role's own %+v", got, d)
	}
	file := filepath.Join(t.TempDir(), "readproxy.yaml")
	text := `
region: eu
limits: {read_cache: 1GiB, read_memory: 512MiB}
read_proxy:
  views: {most: 3, queries: 40, expiry: 5s}
  memcached: {servers: ["10.0.0.8:11211"], shared_age: 1h}
  rules: [{match: "audit.*", memory: never, memcached: reused, age: 4h}]
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Load(file); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	got = c.readProxyConfig()
	want := readproxy.Rule{Pattern: "audit.*", Memory: readproxy.KeepNever, Shared: readproxy.KeepReused, SharedAge: 4 * time.Hour}
	if got.Region != "eu" || got.CacheBytes != 1<<30 || got.FetchBytes != 512<<20 || got.SharedAge != time.Hour || got.Memcached.Servers[0] != "10.0.0.8:11211" ||
		got.Views != (view.Config{Views: 3, Queries: 40, Expiry: 5 * time.Second, Rebalance: d.Views.Rebalance}) ||
		got.Memcached.Timeout != 100*time.Millisecond || len(got.Rules) != 1 || got.Rules[0] != want {
		t.Errorf("%+v", got)
	}
}

func TestParseRegions(t *testing.T) {
	var got RegionList
	if err := got.UnmarshalText([]byte("us=http://a:1, asia=http://b:1")); err != nil || len(got) != 2 || got[1].Name != "asia" || got[1].ReadProxies != "http://b:1" {
		t.Errorf("%v, %v", got, err)
	}
	if err := got.UnmarshalText([]byte("us,=http://a:1,eu=")); err == nil || strings.Count(err.Error(), "NAME=URL") != 3 {
		t.Errorf("got %v", err)
	}
}
