package app

import (
	"strings"
	"testing"
	"time"

	"scribe/internal/units"
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
		"gateway.query_memory is 1, it must be 1MiB to 1TiB",
		"gateway.stall_timeout is 0s, it must be 10ms to 1h",
		"limits.write_memory: 1KiB is too little, the least is 8MiB",
		"read_proxy.coalesce_gap is 2GiB, it must be 0 to 1GiB",
		"read_proxy.memcached.fill_bytes is 2048TiB, it must be 0 to 1024TiB",
		"read_proxy.memcached.item_bytes is 1, it must be 1 KiB to 1 GiB",
		"read_proxy.memcached.value_bytes is 16777216, it must be 1 to 1000 times ItemBytes",
		"spool.backfill is 2TiB, want 0 to 1TiB",
		"spool.ballast is 2TiB, want 0 to 1TiB",
		"spool.categories[0]: pattern \"[\" is not a glob",
		"spool.categories[1]: MaxAge is 1ms, want 0 or at least 1s",
		"spool.dead_letters is 2048TiB, want 1 to 1024TiB",
		"spool.max_bytes is 1000B, want 128KiB to 1024TiB",
		"spool.segment is 1, want ",
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
		case !strings.HasPrefix(got[i], want[i]):
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
	if faults := translated(nil); faults != nil {
		t.Errorf("of none: %v", faults)
	}
}
