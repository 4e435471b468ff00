// Citest runs go test for CI, so that a sound change passes at its first try on a busy machine, and an unsound one never does.
//
//	go run -C tools ./citest -dir .. [-race] [-short] [-bench REGEXP] [-timeout 20m] [-run REGEXP] [-p N] [-report FILE] PACKAGE...
//
// Packages start in the order in which they are given, each once: name those first that take longest.
//
// A test that fails is run again by itself, up to twice, after everything else. One that then passes is flaky: it is listed with its
// first output, here and in the report, and doesn't fail the run. A test that failed over a question of safety is not run again: a
// violation of a history, lost, duplicated or damaged data, a data race, a panic, a deadlock or a leak. Nor is a package that failed
// outside of its tests, or didn't build. See classify.go for how they are told apart.
//
// A skipped test fails the run, unless it runs with -short.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
)

// maxReruns is how often a failed test is run again.
const maxReruns = 2

// maxShownLines bounds what is printed of one failed test.
const maxShownLines = 400

// maxReports bounds what is told again, at the end, of what a failed test reported.
const maxReports = 20

// slowestShown is how many of the slowest tests are listed.
const slowestShown = 20

type options struct {
	dir, run, bench, timeout, tags, report string
	race, short                            bool
	parallel                               int
	packages                               []string
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", ".", "folder of the module under test")
	flag.StringVar(&o.run, "run", "", "run only tests that match this expression")
	flag.StringVar(&o.bench, "bench", "", "after the tests of a package, run its benchmarks that match this expression, each once")
	flag.StringVar(&o.timeout, "timeout", "20m", "time limit of each package")
	flag.IntVar(&o.parallel, "p", 0, "packages that are tested at the same time (default: as many as there are processors)")
	flag.StringVar(&o.tags, "tags", "", "build tags")
	flag.StringVar(&o.report, "report", "", "file to which flaky tests are appended")
	flag.BoolVar(&o.race, "race", false, "use the race detector")
	flag.BoolVar(&o.short, "short", false, "run the short form of tests")
	flag.Parse()
	if o.packages = flag.Args(); len(o.packages) == 0 {
		fmt.Fprintln(os.Stderr, "citest: no packages given; try: citest ./...")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := runSuite(ctx, o, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "citest:", err)
		os.Exit(1)
	}
}

// runSuite runs all packages, then what failed by itself, and prints what came of it.
func runSuite(ctx context.Context, o options, out io.Writer) error {
	first, err := runTests(ctx, o, o.run, o.packages, out)
	if err != nil {
		return err
	}
	var broken, flaky []string
	for _, p := range first.failedPackages() {
		dir := sourceFolder(ctx, o, p.path)
		for _, f := range p.failures() {
			printFailure(out, "FAILED", f)
			f.dir = dir
			if cause := classifyFailure(f); cause != "" {
				broken = append(broken, fmt.Sprintf("%s (%s: not run again)\n%s", f.name(), cause, indent(f.reports(), maxReports)))
				continue
			}
			attempt, err := rerunTest(ctx, o, f, out)
			if err != nil {
				broken = append(broken, fmt.Sprintf("%s (%v)\n%s", f.name(), err, indent(f.reports(), maxReports)))
				continue
			}
			flaky = append(flaky, fmt.Sprintf("%s (passed when it was run again, try %d)\n%s", f.name(), attempt, indent(f.lines(), maxShownLines)))
		}
	}
	first.printSlowest(out, slowestShown)
	fmt.Fprintf(out, "%d tests and subtests passed, %d benchmarks ran, in %d packages\n", first.passed, first.benchmarks, len(first.packages))
	if len(flaky) > 0 {
		text := "flaky: " + strings.Join(flaky, "flaky: ")
		fmt.Fprint(out, text)
		if err := appendReport(o.report, text); err != nil {
			return err
		}
	}
	switch {
	case len(broken) > 0:
		return errors.New("failed:\n  " + strings.Join(broken, "\n  "))
	case len(first.skipped) > 0 && !o.short:
		return errors.New("skipped:\n  " + strings.Join(first.skipped, "\n  "))
	case first.passed+first.benchmarks+len(flaky) == 0:
		return errors.New("no test ran")
	}
	return nil
}

// rerunTest runs a failed test by itself until it passes, and returns at which try that was. It is an error if it fails maxReruns
// times, or once over a question of safety.
func rerunTest(ctx context.Context, o options, f *failure, out io.Writer) (try int, err error) {
	o.bench = ""
	for try = range maxReruns {
		fmt.Fprintf(out, "== again: %s, try %d\n", f.name(), try+1)
		again, err := runTests(ctx, o, "^"+f.test+"$", []string{f.pkg}, out)
		if err != nil {
			return 0, err
		}
		failed := again.failedPackages()
		if len(failed) == 0 {
			if again.passed == 0 {
				return 0, errors.New("did not run when it was run again")
			}
			return try + 1, nil
		}
		for _, g := range failed[0].failures() {
			printFailure(out, "FAILED AGAIN", g)
			g.dir = f.dir
			if cause := classifyFailure(g); cause != "" {
				return 0, fmt.Errorf("%s when it was run again", cause)
			}
		}
	}
	return 0, fmt.Errorf("failed %d times more when it was run again by itself", maxReruns)
}

// sourceFolder is the folder of a package's source, or empty if go list does not tell: then nothing counts as only logged.
func sourceFolder(ctx context.Context, o options, pkg string) string {
	cmd := exec.CommandContext(ctx, "go", "list", "-e", "-tags", o.tags, "-f", "{{.Dir}}", pkg)
	cmd.Dir = o.dir
	dir, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(dir))
}

// runTests runs go test once and reads its events.
func runTests(ctx context.Context, o options, run string, packages []string, out io.Writer) (*results, error) {
	args := []string{"test", "-json", "-vet=off", "-count=1", "-timeout", o.timeout} // CI vets in a step of its own
	if o.race {
		args = append(args, "-race")
	}
	if o.short {
		args = append(args, "-short")
	}
	if o.parallel > 0 {
		args = append(args, "-p", strconv.Itoa(o.parallel))
	}
	if o.tags != "" {
		args = append(args, "-tags", o.tags)
	}
	if run != "" {
		args = append(args, "-run", run)
	}
	args = append(args, packages...)
	if o.bench != "" {
		args = append(args, "-args", "-test.bench", o.bench, "-test.benchtime", "1x") // go test would test one package at a time if it knew
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Stderr = o.dir, out
	if o.race {
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1") // the race detector is written in C
	}
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	r := newResults()
	readErr := r.readEvents(events, out)
	err = cmd.Wait()
	if readErr != nil {
		return nil, fmt.Errorf("reading what go test printed: %w", readErr)
	}
	if err != nil && len(r.failedPackages()) == 0 {
		return nil, fmt.Errorf("go test failed, and no package did: %w", err)
	}
	return r, nil
}

func printFailure(out io.Writer, title string, f *failure) {
	fmt.Fprintf(out, "== %s: %s\n%s", title, f.name(), indent(f.lines(), maxShownLines))
}

// indent shows the first lines and the last: what failed is often said at the end of a long transcript.
func indent(lines []string, most int) string {
	var b strings.Builder
	left := max(len(lines)-most, 0)
	for i, line := range lines {
		switch from := most / 2; {
		case left > 0 && i == from:
			fmt.Fprintf(&b, "    ... %d lines are left out\n", left)
		case i < from || i >= from+left:
			b.WriteString("    " + line + "\n")
		}
	}
	return b.String()
}

func appendReport(file, text string) error {
	if file == "" {
		return nil
	}
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}
