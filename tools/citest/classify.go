package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// unsafe are the failures that are never run again, by what a test or the runtime prints. A failure that none of these matches is one of
// time or place: something took longer than a test waited, a port was taken.
//
// The words of the last two count only in what a test reported (file.go:line: text), neither in what it logged nor in logs of processes
// that it shows.
var unsafe = []struct {
	cause string
	match *regexp.Regexp
}{
	{"data race", regexp.MustCompile(`WARNING: DATA RACE|race detected during execution of test`)},
	{"deadlock", regexp.MustCompile(`all goroutines are asleep|^panic: deadlock:|panic: test timed out after|main bubble goroutine has exited`)},
	{"leak", regexp.MustCompile(`found unexpected goroutines|` + reported + `.*\bleak(s|ed)?\b`)},
	{"panic", regexp.MustCompile(`^\s*panic: |^fatal error: |\[recovered\]|^\S*goroutine \d+ \[running\]:$`)},
	{"history violation", regexp.MustCompile(`\binvariant \d+, |` + reported + `.*(not linearizable|\bviolat(es|ed|ion)\b)`)},
	{"lost, duplicated or damaged data", regexp.MustCompile(reported + `.*(?i:\b(lost|lose|loses|missing|missed|duplicates?|duplicated|twice|damaged?|corrupt(ed|ion)?|torn|reordered|out of order|went back)\b)`)},
}

// reported begins a line that a test reported or logged; subtests are indented.
const reported = `^\s+\S+\.go:\d+: `

var reportedAt = regexp.MustCompile(`^\s+(\S+\.go):(\d+): `)

// logCall is a line of source that logs for a test, and reports nothing.
var logCall = regexp.MustCompile(`^\s*(\w+\.)+Logf?\(`)

// dropLogged returns the lines of a test's output but those that the test only logged. Both look the same there; the source, whose folder
// is dir, tells them apart.
func dropLogged(dir string, lines []string) []string {
	sources := map[string][]string{}
	return slices.DeleteFunc(slices.Clone(lines), func(line string) bool {
		at := reportedAt.FindStringSubmatch(line)
		if at == nil {
			return false
		}
		source, known := sources[at[1]]
		if !known {
			text, _ := os.ReadFile(filepath.Join(dir, at[1])) // of another package's helper: taken for a report
			source = strings.Split(string(text), "\n")
			sources[at[1]] = source
		}
		n, err := strconv.Atoi(at[2])
		return err == nil && n >= 1 && n <= len(source) && logCall.MatchString(source[n-1])
	})
}

// reports are the lines that a test reported.
func (f *failure) reports() []string {
	return slices.DeleteFunc(dropLogged(f.dir, f.output), func(line string) bool { return !reportedAt.MatchString(line) })
}

// classifyFailure returns why a failure is a question of safety; empty if it is not, and the test may be run again.
func classifyFailure(f *failure) string {
	if f.inBuild {
		return "did not build"
	}
	if cause := classifyOutput(dropLogged(f.dir, f.output)); cause != "" {
		return cause
	}
	if f.test == "" {
		return "failed outside of its tests"
	}
	return ""
}

func classifyOutput(lines []string) string {
	for _, u := range unsafe {
		if slices.ContainsFunc(lines, u.match.MatchString) {
			return u.cause
		}
	}
	return ""
}
