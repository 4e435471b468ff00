package main

import (
	"regexp"
	"slices"
)

// unsafe are the failures that are never run again, by what a test or the runtime prints. A failure that none of these matches is one of
// time or place: something took longer than a test waited, a port was taken.
//
// The words of the last two count only in what a test reported (file.go:line: text), not in logs that it shows.
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

// reported begins a line that a test reported; subtests are indented.
const reported = `^\s+\S+\.go:\d+: `

// classifyFailure returns why a failure is a question of safety; empty if it is not, and the test may be run again.
func classifyFailure(f *failure) string {
	if f.inBuild {
		return "did not build"
	}
	if cause := classifyOutput(f.output); cause != "" {
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
