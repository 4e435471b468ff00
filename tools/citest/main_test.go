package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPlanted runs each test of test/planted, which fails in a way of its own, and wants it judged by that way.
func TestPlanted(t *testing.T) {
	for _, c := range []struct {
		test string
		runs int    // how often it is run in all
		want string // in the error; empty: the run passes
		race bool
	}{
		{test: "TestSlowOnce", runs: 2},
		{test: "TestSlowTwice", runs: 3},
		{test: "TestSlowAndLogs", runs: 2},
		{test: "TestSlowAlways", runs: 3, want: "failed 2 times more"},
		{test: "TestSlowThenUnsafe", runs: 2, want: "lost, duplicated or damaged data when it was run again"},
		{test: "TestSkipped", want: "skipped:"},
		{test: "TestHistoryViolation", runs: 1, want: "history violation: not run again"},
		{test: "TestLostLog", runs: 1, want: "lost, duplicated or damaged data: not run again"},
		{test: "TestLostData", runs: 1, want: "lost, duplicated or damaged data: not run again"},
		{test: "TestDuplicatedData", runs: 1, want: "lost, duplicated or damaged data: not run again"},
		{test: "TestDamagedData", runs: 1, want: "lost, duplicated or damaged data: not run again"},
		{test: "TestDataRace", runs: 1, want: "data race: not run again", race: true},
		{test: "TestPanic", runs: 1, want: "panic: not run again"},
		{test: "TestDeadlock", runs: 1, want: "deadlock: not run again"},
		{test: "TestLeak", runs: 1, want: "leak: not run again"},
		{test: "TestNone", want: "no test ran"},
	} {
		t.Run(c.test, func(t *testing.T) {
			folder := t.TempDir()
			t.Setenv("SCRIBE_PLANTED", folder)
			o := options{
				dir: "../..", tags: "planted", run: "^" + c.test + "$", packages: []string{"./test/planted"},
				timeout: "10s", race: c.race, report: filepath.Join(folder, "report"),
			}
			var out bytes.Buffer
			err := runSuite(t.Context(), o, &out)
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the run ended with %v, want %q\n%s", err, c.want, out.String())
			}
			if runs, _ := os.ReadFile(filepath.Join(folder, c.test)); len(runs) != c.runs {
				t.Errorf("it was run %d times, want %d\n%s", len(runs), c.runs, out.String())
			}
			report, _ := os.ReadFile(o.report)
			if flaky := c.want == ""; flaky != strings.Contains(string(report), c.test+" (passed when it was run again") {
				t.Errorf("report: %q", report)
			}
			if c.want == "" && !strings.Contains(string(report), "no answer within 5s") {
				t.Errorf("the report lacks the first output: %q", report)
			}
		})
	}
}

// TestBenchmark: a benchmark runs after the tests of its package, once, and fails the run if it fails.
func TestBenchmark(t *testing.T) {
	t.Setenv("SCRIBE_PLANTED", t.TempDir())
	o := options{
		dir: "../..", tags: "planted", run: "^TestNone$", bench: "^BenchmarkLosing$", packages: []string{"./test/planted"}, timeout: "10s",
	}
	var out bytes.Buffer
	err := runSuite(t.Context(), o, &out)
	if err == nil || !strings.Contains(err.Error(), "BenchmarkLosing (lost, duplicated or damaged data: not run again)") {
		t.Errorf("the run ended with %v\n%s", err, out.String())
	}
	if n := strings.Count(out.String(), "message 7 was lost"); n != 1 {
		t.Errorf("it was run %d times\n%s", n, out.String())
	}
}

// TestBrokenBuild: a package that doesn't build, or doesn't exist, fails the run.
func TestBrokenBuild(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":    "module broken\n\ngo 1.26\n",
		"a_test.go": "package broken\n\nimport \"testing\"\n\nfunc TestA(t *testing.T) { undefined() }\n",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	err := runSuite(t.Context(), options{dir: folder, timeout: "1m", packages: []string{"./..."}}, &out)
	if err == nil || !strings.Contains(out.String(), "undefined: undefined") {
		t.Errorf("%v\n%s", err, out.String())
	}
	if err := runSuite(t.Context(), options{dir: folder, timeout: "1m", packages: []string{"./nowhere"}}, &out); err == nil {
		t.Error("a package that does not exist passes")
	}
}

// TestSlowest: of the tests that passed, those that took the longest are listed, without their subtests, which may have run at the same time.
func TestSlowest(t *testing.T) {
	r, out := newResults(), new(bytes.Buffer)
	err := r.readEvents(strings.NewReader(`{"Action":"pass","Package":"p","Test":"TestQuick","Elapsed":0.5}
{"Action":"pass","Package":"p","Test":"TestSlow/part","Elapsed":30}
{"Action":"pass","Package":"p","Test":"TestSlow","Elapsed":31}
{"Action":"pass","Package":"q","Test":"TestTogether/one","Elapsed":20}
{"Action":"pass","Package":"q","Test":"TestTogether/other","Elapsed":19}
{"Action":"pass","Package":"q","Test":"TestTogether","Elapsed":0}
{"Action":"pass","Package":"q","Test":"TestMiddling","Elapsed":2}
{"Action":"pass","Package":"q","Elapsed":40}
`), out)
	r.printSlowest(out, 2)
	want := "The slowest tests, in seconds:\n    31.0  p TestSlow\n    20.0  q TestTogether\n"
	if err != nil || out.String() != want {
		t.Errorf("%v, %q, want %q", err, out.String(), want)
	}
}

// TestIndent: of a long output the beginning and the end are shown, and how much is between them.
func TestIndent(t *testing.T) {
	var lines []string
	for i := range maxShownLines + 600 {
		lines = append(lines, fmt.Sprint("line ", i))
	}
	got := indent(lines, maxShownLines)
	for _, want := range []string{"    line 0\n", "    line 199\n    ... 600 lines are left out\n    line 800\n", "    line 999\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("it lacks %q", want)
		}
	}
	if got := indent(lines[:2], maxShownLines); got != "    line 0\n    line 1\n" {
		t.Errorf("two lines are shown as %q", got)
	}
}
