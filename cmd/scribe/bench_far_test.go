package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/minio/minio-go/v7"

	"scribe/cmd/scribe/bench"
	"scribe/internal/testkit/s3test"
)

// runFarBench runs the command on a store and returns its reports by scenario.
func runFarBench(t *testing.T, store *s3test.Server, args ...string) map[string]bench.FarReport {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := newBenchFar()
	cmd.SetArgs(append([]string{
		"--s3-endpoint", "http://" + store.Endpoint, "--s3-bucket", store.Bucket, "--s3-region", store.Region,
		"--s3-access-key", store.AccessKey, "--s3-secret-key", store.SecretKey, "--json",
	}, args...))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	reports := map[string]bench.FarReport{}
	for lines := bufio.NewScanner(&stdout); lines.Scan(); {
		var r bench.FarReport
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatalf("%v in %s", err, lines.Text())
		}
		reports[r.Scenario] = r
	}
	return reports
}

// TestBenchFar: every scenario reports what it did, as far as it does not depend on the machine, and nothing is left in the bucket.
func TestBenchFar(t *testing.T) {
	store := s3test.Start(t)
	reports := runFarBench(t, store, "--delay", "1ms..2ms", "--bytes", "1MB", "--duration", "3s", "--flush-floor", "10ms",
		"--rate", "1MB", "--categories", "50", "--active", "20")
	var table strings.Builder
	for _, name := range bench.FarScenarios() {
		r, ok := reports[name]
		if !ok {
			t.Errorf("%s is not reported", name)
			continue
		}
		if r.Delay != "1ms..2ms" || r.Workload != "access-log" || r.Bytes < 1 || r.Seconds <= 0 || r.MBPerSecond <= 0 || r.CPUNsPerByte <= 0 {
			t.Errorf("%s: %+v", name, r)
		}
		// Everything that is written is put, under some pointer. The counts of the cell and the proxy may differ by what is under way.
		stored := r.StoredBytes * float64(r.Bytes) / 1e9
		if name != "backlog" && (r.Requests.Put == 0 || r.Pointers == 0 || r.BlobBytes == 0 || 2*float64(r.Requests.SentBytes) < stored || stored > float64(r.Bytes) || r.RequestDollars == 0 || r.StorageDollars == 0) {
			t.Errorf("%s: wrote %+v", name, r)
		}
		if (r.Limit == "") != (r.LimitMBPerSecond == 0) || (r.LimitMBPerSecond == 0) != (r.SpeedRatio == 0) {
			t.Errorf("%s: limit %q of %g MB/s, ratio %g", name, r.Limit, r.LimitMBPerSecond, r.SpeedRatio)
		}
		if err := bench.FarTable(&table, []bench.FarReport{r}); err != nil {
			t.Error(err)
		}
	}
	for _, name := range []string{"write", "agent", "categories", "many"} {
		if r := reports[name]; r.Limit != "put" || name != "many" && r.Bytes < 1_000_000 || (r.Commit == nil) == (name == "many") {
			t.Errorf("%s: %+v", name, r)
		}
	}
	for _, name := range []string{"latency", "tail"} {
		if r := reports[name]; r.Commit == nil || r.Delivery == nil || r.OfferedMBPerSecond != 1 || r.PushedBytes == 0 || r.PushedReads == 0 || float64(r.Requests.Get) > r.PushedReads/2 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	if r := reports["backlog"]; r.Limit != "get" || r.Bytes < 1_000_000 || r.Requests.Get == 0 || r.StoredBytes == 0 || r.BlobBytes == 0 {
		t.Errorf("backlog: %+v", r)
	}
	if !strings.Contains(table.String(), "latency, 1 MB/s") {
		t.Error(table.String())
	}
	for object := range store.Client().ListObjectsIter(t.Context(), store.Bucket, minio.ListObjectsOptions{Recursive: true}) {
		t.Errorf("%s is left in the bucket, %v", object.Key, object.Err)
	}
}

// TestBenchFarUsage: what can't be measured is refused before anything starts, and without a store the error says how to start one.
func TestBenchFarUsage(t *testing.T) {
	for _, c := range []struct {
		want string
		args []string
	}{
		{"versitygw --port", nil},
		{"(--s3-endpoint): invalid value", []string{"--s3-endpoint", "127.0.0.1:7070"}},
		{"--delay", []string{"--delay", "90ms..30ms"}},
		{"--scenario", []string{"--scenario", "poems"}},
		{"poems", []string{"--workload", "poems"}},
		{"--bytes", []string{"--bytes", "0"}},
		{"--duration", []string{"--duration", "1ms"}},
		{"--count", []string{"--count", "0"}},
		{"--rate", []string{"--rate", "max"}},
		{"--rate", []string{"--rate", "", "--scenario", "tail"}},
		{"--active", []string{"--active", "0"}},
		{"--active", []string{"--categories", "10"}},
	} {
		root := newRoot()
		root.SetArgs(append([]string{"bench", "far"}, c.args...))
		coded := new(codedError)
		err := root.ExecuteContext(t.Context())
		if !errors.As(err, &coded) || coded.code != exitUsage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
