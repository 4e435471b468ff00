package test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"scribe/cmd/scribe/bench"
)

// TestBench: each measurement runs, counts what it did, and puts it beside its limit. What it measures is not looked at.
func TestBench(t *testing.T) {
	for _, c := range []struct {
		args  []string
		limit string
	}{
		{[]string{"bench", "produce", "--bytes", "1MiB", "--json"}, "zstd"},
		{[]string{"bench", "consume", "--bytes", "1MiB", "--json"}, "unzstd"},
		{[]string{"bench", "catchup", "--bytes", "1MiB", "--count", "2", "--json"}, "read+unzstd"},
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
			case r.What == "consume" && (r.WarmNsPerByte <= 0 || r.WarmRatio <= 0):
				t.Errorf("%v: without what a warm decoder takes: %+v", c.args, r)
			case r.What == "catchup" && (r.LimitMBPerSecond <= 0 || r.SpeedRatio <= 0 || r.StoredBytes <= 0 || r.StoredBytes > r.Bytes || r.CompressionRate <= 1):
				t.Errorf("%v: without the speed of its limit, or not of this backlog: %+v", c.args, r)
			case c.limit == "" && (r.Commit == nil || r.Delivery == nil || r.Commit.P50 <= 0 || r.Delivery.P99 < r.Delivery.P50):
				t.Errorf("%v: without latencies: %+v", c.args, r)
			}
		}
		if reports == 0 {
			t.Errorf("%v: no report", c.args)
		}
	}
	for _, args := range [][]string{
		{"produce", "--workload", "nonsense"},
		{"consume", "--workload", ""},
		{"consume", "--bytes", "0"},
		{"consume", "--count", "0"},
		{"consume", "--rate", "1"},
		{"catchup", "--bytes", "0"},
		{"catchup", "--server", "http://127.0.0.1:1"},
		{"e2e", "--messages", "0"},
		{"e2e", "--rate", "1000001"},
		{"e2e", "--bytes", "1MiB"},
		{"consume", "more"},
	} {
		if r := cli(t, nil, append([]string{"bench"}, args...)...); r.Code != 2 || len(r.Stdout) > 0 {
			t.Errorf("%v: exit code %d, want 2\n%s", args, r.Code, r.Stderr)
		}
	}
}

// TestBenchProfile: a profile begins with what is measured.
func TestBenchProfile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cpu.out")
	ok(t, nil, "bench", "consume", "--bytes", "1MiB", "--workload", "access-log", "--count", "2", "--cpuprofile", file)
	profile, err := os.ReadFile(file)
	if err != nil || !bytes.HasPrefix(profile, []byte{0x1f, 0x8b}) { // gzip
		t.Errorf("%d bytes, %v", len(profile), err)
	}
}

// TestBenchFanout: every consumer gets everything, the store is read once for all of them, and the costs are told.
func TestBenchFanout(t *testing.T) {
	dec := json.NewDecoder(bytes.NewReader(ok(t, nil, "bench", "fanout", "--consumers", "1,5", "--rate", "2MB", "--duration", "1s", "--json")))
	for _, consumers := range []int{1, 5} {
		var r bench.FanoutReport
		if err := dec.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Consumers != consumers || r.Written == 0 || r.Delivered != int64(consumers)*r.Written || r.StoreBytes == 0 {
			t.Errorf("%+v", r)
		}
		// Whoever asks late may find a block in memory or on its way, but never reads it again.
		if r.ServedPerFetched < float64(consumers)*0.99 || r.CPUNsPerByte <= 0 || r.WriteSeconds <= 0 || r.LimitNsPerByte <= 0 {
			t.Errorf("%+v", r)
		}
	}
	for _, args := range [][]string{{"--consumers", "0"}, {"--rate", "0"}, {"--duration", "1ms"}, {"--workload", "nonsense"}} {
		if r := cli(t, nil, append([]string{"bench", "fanout"}, args...)...); r.Code != 2 {
			t.Errorf("%v: exit code %d, want 2\n%s", args, r.Code, r.Stderr)
		}
	}
}
