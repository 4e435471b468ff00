package main

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
)

const (
	testCommit = "0123456789abcdef0123456789abcdef01234567"
	testDate   = "2026-01-02T03:04:05Z"
)

// TestDescribeBuild: what the linker set wins over what Go recorded, and without either the program is a development build.
func TestDescribeBuild(t *testing.T) {
	recorded := &debug.BuildInfo{Settings: []debug.BuildSetting{
		{Key: "vcs.revision", Value: testCommit}, {Key: "vcs.time", Value: testDate}, {Key: "vcs.modified", Value: "true"},
	}}
	if v := describeBuild(nil); v.Version != "devel" || v.Commit != "" || v.Go != runtime.Version() {
		t.Errorf("without a record: %+v", v)
	}
	if v := describeBuild(recorded); v.Version != "devel-0123456789ab" || v.Commit != testCommit || v.Date != testDate || !v.Modified {
		t.Errorf("with a record: %+v", v)
	}
	version, commit, commitDate = "1.2.3", "feed", "2026-02-03T04:05:06Z"
	t.Cleanup(func() { version, commit, commitDate = "", "", "" })
	if v := describeBuild(recorded); v.Version != "1.2.3" || v.Commit != "feed" || v.Date != commitDate || v.Modified {
		t.Errorf("a release: %+v", v)
	}
}

// TestVersionCommand: both outputs have the facts that a report of a defect needs.
func TestVersionCommand(t *testing.T) {
	version, commit, commitDate = "1.2.3", testCommit, testDate
	t.Cleanup(func() { version, commit, commitDate = "", "", "" })
	run := func(args ...string) string {
		t.Helper()
		var out strings.Builder
		root := newRoot()
		root.SetOut(&out)
		root.SetArgs(append([]string{"version"}, args...))
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	text := run()
	for _, want := range []string{"scribe 1.2.3\n", testCommit, testDate, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH} {
		if !strings.Contains(text, want) {
			t.Errorf("%q does not have %q", text, want)
		}
	}
	var v buildVersion
	if err := json.Unmarshal([]byte(run("-o", "json")), &v); err != nil || v.Version != "1.2.3" || v.Commit != testCommit || v.Date != testDate {
		t.Errorf("%+v, %v", v, err)
	}
}
