package test

import (
	"bytes"
	"encoding/json"
	"testing"

	"scribe/internal/bench"
)

// TestBench: each measurement runs, counts what it did, and puts it beside its limit. What it measures is not looked at.
func TestBench(t *testing.T) {
	for _, c := range []struct {
		args  []string
		limit string
	}{
		{[]string{"bench", "produce", "--bytes", "1MiB", "--json"}, "zstd"},
		{[]string{"bench", "consume", "--bytes", "1MiB", "--json"}, "unzstd"},
		{[]string{"bench", "e2e", "--messages", "20", "--rate", "1000", "--json"}, ""},
	} {
		reports := 0
		dec := json.NewDecoder(bytes.NewReader(ok(t, nil, c.args...)))
		for dec.More() {
			var r bench.Report
			if err := dec.Decode(&r); err != nil {
				t.Fatalf("%v: %v", c.args, err)
			}
			reports++
			switch {
			case r.Messages == 0 || r.Bytes == 0 || r.MBPerSecond <= 0 || !r.InProcess:
				t.Errorf("%v: nothing was measured: %+v", c.args, r)
			case c.limit != r.Limit || c.limit != "" && (r.LimitNsPerByte <= 0 || r.Ratio <= 0):
				t.Errorf("%v: without its limit: %+v", c.args, r)
			case c.limit == "" && (r.Commit == nil || r.Delivery == nil || r.Commit.P50 <= 0 || r.Delivery.P99 < r.Delivery.P50):
				t.Errorf("%v: without latencies: %+v", c.args, r)
			}
		}
		if reports == 0 {
			t.Errorf("%v: no report", c.args)
		}
	}
	if r := cli(t, nil, "bench", "produce", "--workload", "nonsense"); r.Code != 2 {
		t.Errorf("an unknown workload: exit code %d, want 2\n%s", r.Code, r.Stderr)
	}
}
