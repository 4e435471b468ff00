package app

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"scribe/internal/base/units"
	"scribe/scribed/inputs/follow"
	"scribe/scribed/inputs/lines"
	"scribe/scribed/inputs/otlp"
	"scribe/scribed/inputs/syslog"
)

// TestFaultsAreOfTheConfiguration: what a role finds wrong in the configuration that it was given is said in the words of the file that
// people wrote.
func TestFaultsAreOfTheConfiguration(t *testing.T) {
	c := DefaultConfig()
	c.Limits.WriteMemory = 1 << 10
	c.Spool.MaxBytes, c.Spool.Segment, c.Spool.Ballast, c.Spool.Backfill, c.Spool.DeadLetters = 1000, 1, 2<<40, 2<<40, 2<<50
	c.Spool.Categories = []SpoolRule{{Match: "["}, {Match: "a", MaxAge: units.Duration(time.Millisecond)}}
	c.Collector.Grace, c.Collector.StoreRequests = units.Duration(31*24*time.Hour), 0
	c.Streams = StreamsConfig{Max: 0, Memory: 2 << 40, MaxAge: units.Duration(10000 * time.Hour)}
	c.Gateway.MaxQueries, c.Gateway.QueryMemory, c.Gateway.StallTimeout = 0, 1, 0
	c.ReadProxy.CoalesceGap, c.ReadProxy.Memcached.Servers, c.ReadProxy.Memcached.ItemBytes, c.ReadProxy.Memcached.FillBytes = 2<<30, []string{"a:1"}, 1, 2<<50
	want := []string{
		"collector.grace is 31d, it must be 0s to 30d",
		"collector.store_requests is 0, it must be above 0",
		"gateway.max_follows is 24, it must be 0 to 0",
		"gateway.max_queries is 0, it must be 1 to 100000",
		"gateway.query_memory is 1B, it must be 1MiB to 1TiB",
		"gateway.stall_timeout is 0s, it must be 10ms to 1h",
		"limits.write_memory: 1KiB is too little, the least is 8MiB",
		"read_proxy.coalesce_gap is 2GiB, it must be 0 to 1GiB",
		"read_proxy.memcached.fill_bytes is 2048TiB, it must be 0 to 1024TiB",
		"read_proxy.memcached.item_bytes is 1B, it must be 1KiB to 1GiB",
		"read_proxy.memcached.value_bytes is 16MiB, it must be 1B to 1000 times the bytes of an item",
		"spool.backfill is 2TiB, it must be 0 to 1TiB",
		"spool.ballast is 2TiB, it must be 0 to 1TiB",
		"spool.categories[0]: pattern \"[\" is not a glob",
		"spool.categories[1].max_age is 1ms, it must be 0 or at least 1s",
		"spool.dead_letters is 2048TiB, it must be 1B to 1024TiB",
		"spool.max_bytes is 1000B, it must be 128KiB to 1024TiB",
		"spool.segment is 1B, it must be 4KiB to 1GiB",
		"streams.max is 0, it must be 1 to 1000000",
		"streams.max_age is 416d16h, it must be 0s to 365d",
		"streams.memory is 2TiB, it must be 8MiB to 1TiB",
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
	if faults := translated(nil); faults != nil {
		t.Errorf("of none: %v", faults)
	}
}

// TestFaultsHaveTheirNames: whatever one field of a configuration holds, what is wrong is said under a name that stands in the file, and
// what nobody finds wrong is nothing that a role refuses when it starts.
func TestFaultsHaveTheirNames(t *testing.T) {
	known := map[string]bool{}
	base := full()
	fields(reflect.ValueOf(&base).Elem(), "", func(path string, _ reflect.Value) { known[index.ReplaceAllString(path, "")] = true })
	for _, fields := range fieldNames {
		for field, name := range fields {
			if !known[strings.ReplaceAll(name, "[]", "")] {
				t.Errorf("%s is to be called %s, which is no field of the configuration", field, name)
			}
		}
	}
	if err := base.Validate(); err != nil {
		t.Fatal(err)
	}
	var paths []string
	fields(reflect.ValueOf(&base).Elem(), "", func(path string, _ reflect.Value) { paths = append(paths, path) })
	refused := 0
	for _, target := range paths {
		for which := 0; ; which++ {
			c, left := full(), false
			fields(reflect.ValueOf(&c).Elem(), "", func(path string, v reflect.Value) {
				if path == target {
					left = spoil(v, which)
				}
			})
			if !left {
				break
			}
			err := c.Validate()
			if err == nil {
				for role, config := range c.roleConfigs() {
					if err := config.Validate(); err != nil {
						t.Errorf("%s, value %d: nothing is wrong, but %v says %v", target, which, role, err)
					}
				}
				continue
			}
			refused++
			lines := strings.Split(err.Error(), "\n")
			if once := slices.Compact(slices.Clone(lines)); len(once) < len(lines) {
				t.Errorf("%s, value %d: the same is said twice: %v", target, which, err)
			}
			for _, line := range lines {
				name, _, _ := strings.Cut(line, " ")
				if !known[index.ReplaceAllString(strings.TrimSuffix(name, ":"), "")] {
					t.Errorf("%s, value %d: %q names no field of the configuration", target, which, line)
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
	c.FlushFloor = new(units.Duration)
	c.Spool.Categories = []SpoolRule{{Match: "a"}}
	c.ReadProxy.Rules = []CacheRule{{Match: "a"}}
	c.ReadProxy.Memcached.Servers = []string{"a:1"}
	c.Regions = []RegionConfig{{Name: "x", Blobs: &BlobConfig{Kind: "file", Path: "x"}}}
	c.Gateway.Flight = "localhost:0"
	files, logs, traces, text := follow.DefaultConfig(), syslog.DefaultConfig(), otlp.DefaultConfig(), lines.DefaultConfig()
	files.Name, files.Paths, files.Category = "x", []string{"/x"}, "x"
	logs.UDP, traces.Listen.Address, text.Listen.Address = "localhost:0", "localhost:0", "localhost:0"
	c.Inputs = InputsConfig{Follow: []follow.Config{files}, Syslog: []syslog.Config{logs}, OTLP: []otlp.Config{traces}, Lines: []lines.Config{text}}
	return c
}

// fields calls f with each field, and the elements of lists, with its name in YAML.
func fields(v reflect.Value, path string, f func(path string, v reflect.Value)) {
	if path != "" {
		f(path, v)
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() && v.Elem().Kind() == reflect.Struct {
			fields(v.Elem(), path, f)
		}
	case reflect.Slice:
		for i := range v.Len() {
			fields(v.Index(i), fmt.Sprintf("%s[%d]", path, i), f)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
				fields(v.Field(i), strings.TrimPrefix(path+"."+name, "."), f)
			}
		}
	default:
	}
}

// spoil gives a field one of the values that nobody would choose; false = there is no such value.
func spoil(v reflect.Value, which int) bool {
	if v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	set := func(n int, to func(i int)) bool {
		if which < n {
			to(which)
		}
		return which < n
	}
	switch {
	case v.CanInt():
		values := []int64{0, 1, 1 << 30, 1 << 62, -1}
		return set(len(values), func(i int) { v.SetInt(values[i]) })
	case v.CanUint():
		return set(2, func(i int) { v.SetUint([]uint64{2, 99}[i]) })
	case v.CanFloat():
		values := []float64{0, 1e-9, 1e300, -1, math.NaN(), math.Inf(1)}
		return set(len(values), func(i int) { v.SetFloat(values[i]) })
	case v.Kind() == reflect.String:
		values := []string{"", "[", strings.Repeat("a", 1000)}
		return set(len(values), func(i int) { v.SetString(values[i]) })
	case v.Kind() == reflect.Slice:
		return set(1, func(int) { v.SetZero() })
	}
	return false
}
