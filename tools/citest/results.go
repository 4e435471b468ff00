package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// event is what go test -json prints; see go doc test2json.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // of build-output and build-fail
	FailedBuild                   string
	Elapsed                       float64
}

// results is what became of one go test.
type results struct {
	packages           map[string]*packageResult
	builds             map[string][]string // output of failed builds, by import path
	passed, benchmarks int
	skipped            []string
	slowest            []testTime
}

// testTime is the seconds that a top-level test took.
type testTime struct {
	seconds float64
	name    string
}

type packageResult struct {
	path   string
	failed bool
	// output by top-level test; "" is what the package printed outside of its tests.
	output      map[string][]string
	failedTests []string
	buildOutput []string
	// longest is the seconds that the longest subtest of each top-level test took: go test counts those that run at the same time for none
	// of the tests above them.
	longest map[string]float64
}

// failure is a test that failed. test is empty if a package failed outside of its tests.
type failure struct {
	pkg, test string
	dir       string // of the package's source
	output    []string
	inBuild   bool
}

func newResults() *results {
	return &results{packages: map[string]*packageResult{}, builds: map[string][]string{}}
}

// readEvents reads until go test ends, and prints each package's closing line when it is done.
func (r *results) readEvents(in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.apply(e, out)
			} else {
				fmt.Fprintf(out, "%s", line)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (r *results) apply(e event, out io.Writer) {
	switch e.Action {
	case "build-output":
		r.builds[e.ImportPath] = append(r.builds[e.ImportPath], strings.TrimRight(e.Output, "\n"))
		return
	case "build-fail":
		return
	}
	p := r.packages[e.Package]
	if p == nil {
		p = &packageResult{path: e.Package, output: map[string][]string{}, longest: map[string]float64{}}
		r.packages[e.Package] = p
	}
	test, _, isSubtest := strings.Cut(e.Test, "/")
	switch e.Action {
	case "output":
		p.output[test] = append(p.output[test], strings.TrimRight(e.Output, "\n"))
		if strings.HasPrefix(e.Output, "Benchmark") && strings.Contains(e.Output, "ns/op") {
			r.benchmarks++
		}
		if e.Test == "" && (strings.HasPrefix(e.Output, "ok ") || strings.HasPrefix(e.Output, "FAIL\t")) {
			fmt.Fprint(out, e.Output)
		}
	case "pass":
		if e.Test == "" {
			return
		}
		r.passed++
		p.longest[test] = max(p.longest[test], e.Elapsed)
		if !isSubtest {
			delete(p.output, test) // only what failed is shown
			r.slowest = append(r.slowest, testTime{p.longest[test], e.Package + " " + test})
		}
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, e.Package+" "+e.Test)
		}
		if !isSubtest && test != "" {
			delete(p.output, test)
		}
	case "fail":
		switch {
		case e.Test == "":
			p.failed = true
			p.buildOutput = r.builds[e.FailedBuild]
		case !isSubtest:
			p.failedTests = append(p.failedTests, test)
		}
	}
}

// printSlowest prints the tests that took the longest, and are worth a look when CI does.
func (r *results) printSlowest(out io.Writer, n int) {
	slices.SortFunc(r.slowest, func(a, b testTime) int { return cmp.Compare(b.seconds, a.seconds) })
	fmt.Fprintln(out, "The slowest tests, in seconds:")
	for _, t := range r.slowest[:min(n, len(r.slowest))] {
		fmt.Fprintf(out, "%8.1f  %s\n", t.seconds, t.name)
	}
}

func (r *results) failedPackages() []*packageResult {
	var failed []*packageResult
	for _, path := range slices.Sorted(maps.Keys(r.packages)) {
		if r.packages[path].failed {
			failed = append(failed, r.packages[path])
		}
	}
	return failed
}

// failures are the package's failed tests. A package that failed outside of them, or that said something about safety there, has one
// more without a name.
func (p *packageResult) failures() []*failure {
	if len(p.buildOutput) > 0 {
		return []*failure{{pkg: p.path, output: p.buildOutput, inBuild: true}}
	}
	var failures []*failure
	for _, test := range p.failedTests {
		failures = append(failures, &failure{pkg: p.path, test: test, output: p.output[test]})
	}
	outside := &failure{pkg: p.path, output: p.output[""]}
	for _, test := range slices.Sorted(maps.Keys(p.output)) {
		if !slices.Contains(p.failedTests, test) && test != "" { // it never ended: the package's time was over, or it exited
			outside.output = append(outside.output, p.output[test]...)
		}
	}
	if len(failures) == 0 || classifyOutput(outside.output) != "" {
		failures = append(failures, outside)
	}
	return failures
}

func (f *failure) name() string { return strings.TrimSpace(f.pkg + " " + f.test) }

// lines is the output without the chatter of tests that go on.
func (f *failure) lines() []string {
	return slices.DeleteFunc(slices.Clone(f.output), func(line string) bool {
		return strings.HasPrefix(line, "=== RUN") || strings.HasPrefix(line, "=== PAUSE") || strings.HasPrefix(line, "=== CONT") ||
			strings.HasPrefix(line, "=== NAME") || strings.HasPrefix(strings.TrimSpace(line), "--- PASS")
	})
}
