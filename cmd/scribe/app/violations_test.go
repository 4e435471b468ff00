package app

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/base/config"
	"scribe/internal/testkit/testsize"
	"scribe/readproxy"
	"scribe/scribed"
	"scribe/scribed/inputs/follow"
	"scribe/scribed/inputs/lines"
	"scribe/scribed/inputs/otlp"
	"scribe/scribed/inputs/syslog"
)

// TestViolationsOfRoles: what a role finds wrong in its settings is said in the words of the file that people wrote.
func TestViolationsOfRoles(t *testing.T) {
	c := DefaultConfig()
	c.WriteProxy.MemoryBytes, c.Scribed.MemoryBytes = 1<<10, 1<<10
	disk := c.Scribed.Spool
	disk.MaxBytes, disk.SegmentBytes, disk.BallastBytes, c.Scribed.BackfillBytesPerSecond, c.Scribed.DeadLetter.MaxBytes = 1000, 1, 2<<40, 2<<40, 2<<50
	c.Scribed.Rules = []scribed.Rule{{Pattern: "["}, {Pattern: "a", MaxAge: time.Millisecond}}
	c.Retention.Grace, c.Retention.StoreRequests = 31*24*time.Hour, 0
	c.ReadStream.MaxStreams, c.ReadStream.TotalBytes, c.ReadStream.MaxStreamAge = 0, 2<<40, 10000*time.Hour
	c.SQLServer.MaxQueries, c.SQLServer.QueryMemory, c.SQLServer.StallTimeout = 0, 1, 0
	c.ReadProxy.CoalesceGap, c.ReadProxy.Memcached.Servers, c.ReadProxy.Memcached.ItemBytes, c.ReadProxy.FillBytes = 2<<30, []string{"a:1"}, 1, 2<<50
	want := []string{
		"limits.write_memory (--write-memory): invalid value 1KiB: want at least 8MiB",
		"read_proxy.coalesce_gap: invalid value 2GiB: want 0 to 1GiB",
		"read_proxy.memcached.fill_bytes: invalid value 2048TiB: want 0 to 1024TiB",
		"read_proxy.memcached.item_bytes: invalid value 1B: want 1KiB to 1GiB",
		"read_proxy.memcached.value_bytes: invalid value 16MiB: want less than 1000 times the bytes of an item",
		"retention.grace (--retention-grace): invalid value 31d: want 0s to 30d",
		"retention.store_requests: invalid value 0: want more than 0",
		"spool.backfill: invalid value 2TiB: want 0 to 1TiB",
		"spool.ballast: invalid value 2TiB: want 0 to 1TiB",
		`spool.categories[0].match: invalid value "[": want a pattern as in "web.*"`,
		"spool.categories[1].max_age: invalid value 1ms: want 0 or at least 1s",
		"spool.dead_letters: invalid value 2048TiB: want 1B to 1024TiB",
		"spool.max_bytes (--spool-bytes): invalid value 1000B: want 128KiB to 1024TiB",
		"spool.segment: invalid value 1B: want 4KiB to 1GiB",
		"sqlserver.max_follows: invalid value 24: want 0 to 0",
		"sqlserver.max_queries (--max-queries): invalid value 0: want 1 to 100000",
		"sqlserver.query_memory (--query-memory): invalid value 1B: want 1MiB to 1TiB",
		"sqlserver.stall_timeout: invalid value 0s: want 10ms to 1h",
		"streams.max: invalid value 0: want 1 to 1000000",
		"streams.max_age: invalid value 416d16h: want 0s to 365d",
		"streams.memory: invalid value 2TiB: want 8MiB to 1TiB",
	}
	err := c.Validate()
	if err == nil {
		t.Fatal("valid")
	}
	got := strings.Split(err.Error(), "\n")
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			t.Errorf("and %q", got[i])
		case i >= len(got):
			t.Errorf("it lacks %q", want[i])
		case got[i] != want[i]:
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}

// TestViolationsHaveNames: whatever one field of a configuration holds, what is wrong is said under a name that stands in the file, and
// what nobody finds wrong is nothing that a role refuses when it starts.
func TestViolationsHaveNames(t *testing.T) {
	known := map[string]bool{}
	base := full()
	if err := base.Validate(); err != nil {
		t.Fatal(err)
	}
	for s := range config.Settings(&base) {
		known[index.ReplaceAllString(s.Name, "")] = true
		if list, _, ok := strings.Cut(s.Name, "["); ok {
			known[list] = true
		}
	}
	bads := []string{"", "0", "4611686018427387904", "-1", "NaN", "[", strings.Repeat("a", 1000), "1", "1073741824", "1e-9", "1e300", "+Inf", "1ns", "1B"}
	bads = bads[:testsize.Test(len(bads), 5, 2)]
	refused := 0
	for target := range known {
		for _, bad := range bads {
			c, changed := full(), false
			for s := range config.Settings(&c) {
				if index.ReplaceAllString(s.Name, "") == target && s.Name != "" {
					changed = s.Set(bad) == nil || changed
				}
			}
			if !changed {
				continue
			}
			err := c.Validate()
			if err == nil {
				for field, role := range c.roleConfigs() {
					if err := role.config.Validate(); err != nil {
						t.Errorf("%s = %q: nothing is wrong, but %v says %v", target, bad, field, err)
					}
				}
				continue
			}
			refused++
			lines := strings.Split(err.Error(), "\n")
			if once := slices.Compact(slices.Clone(lines)); len(once) < len(lines) {
				t.Errorf("%s = %q: the same is said twice: %v", target, bad, err)
			}
			for _, line := range lines {
				name, _, _ := strings.Cut(line, " ")
				if !known[index.ReplaceAllString(strings.TrimSuffix(name, ":"), "")] {
					t.Errorf("%s = %q: %q names no field of the configuration", target, bad, line)
				}
			}
		}
	}
	if refused < 100 {
		t.Errorf("%d of the values were refused", refused)
	}
}

var index = regexp.MustCompile(`\[\d+\]`)

// full is a configuration in which everything is there.
func full() Config {
	c := DefaultConfig()
	c.FlushFloor = new(time.Duration)
	c.Scribed.Rules = []scribed.Rule{{Pattern: "a"}}
	c.ReadProxy.Rules = []readproxy.Rule{{Pattern: "a"}}
	c.ReadProxy.Memcached.Servers = []string{"a:1"}
	c.Regions = []RegionConfig{{Name: "x", Blobs: &BlobConfig{Kind: "file", Path: "x"}}}
	c.Flight = "localhost:0"
	files, logs, traces, text := follow.DefaultConfig(), syslog.DefaultConfig(), otlp.DefaultConfig(), lines.DefaultConfig()
	files.Name, files.Paths, files.Category = "x", []string{"/x"}, "x"
	logs.UDP, traces.Listen.Address, text.Listen.Address = "localhost:0", "localhost:0", "localhost:0"
	c.Inputs = InputsConfig{Follow: []follow.Config{files}, Syslog: []syslog.Config{logs}, OTLP: []otlp.Config{traces}, Lines: []lines.Config{text}}
	return c
}

// TestSettings: the names, defaults and flags of all settings. They are a contract with those who wrote files and scripts.
func TestSettings(t *testing.T) {
	datadriven.RunTest(t, "testdata/settings.txt", func(*testing.T, *datadriven.TestData) string {
		c := DefaultConfig()
		var lines []string
		for s := range config.Settings(&c) {
			if s.Name == "" {
				continue
			}
			lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s: %s %q %s", s.Name, s.Type(), s, s.FlagName()))+"\n")
		}
		slices.Sort(lines)
		return strings.Join(slices.Compact(lines), "")
	})
}

// TestLoadRenamed: a section by an earlier name is refused with the name of today.
func TestLoadRenamed(t *testing.T) {
	file := t.TempDir() + "/old.yaml"
	if err := os.WriteFile(file, []byte("collector: {grace: 1h}\ngateway: {max_rows: 1}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := DefaultConfig()
	err := c.Load(file)
	if err == nil || !strings.Contains(err.Error(), "line 1: collector is called retention now") || !strings.Contains(err.Error(), "line 2: gateway is called sqlserver now") {
		t.Errorf("got %v", err)
	}
}
