package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker in releases (tools/release.sh). Other builds use what Go recorded of the repository.
var (
	version    = ""
	commit     = ""
	commitDate = ""
)

// buildVersion says which program this is.
type buildVersion struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`
	Date     string `json:"date"` // of the commit: a build has no time of its own, so that the same sources give the same bytes
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// describeBuild joins what the linker set with what Go recorded; info may be nil.
func describeBuild(info *debug.BuildInfo) buildVersion {
	v := buildVersion{Version: version, Commit: commit, Date: commitDate, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info != nil && v.Commit == "" {
		for _, s := range info.Settings {
			switch s.Key {
			case "vcs.revision":
				v.Commit = s.Value
			case "vcs.time":
				v.Date = s.Value
			case "vcs.modified":
				v.Modified = s.Value == "true"
			}
		}
	}
	if v.Version == "" {
		v.Version = "devel"
		if len(v.Commit) >= 12 {
			v.Version += "-" + v.Commit[:12]
		}
	}
	return v
}

func readBuild() buildVersion {
	info, _ := debug.ReadBuildInfo() // nil without one
	return describeBuild(info)
}

func programVersion() string { return readBuild().Version }

func newVersion() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program, its commit, and the Go version that built it",
		Long: `Show the version of this program, the commit that it was built from with its date, the Go version, and the platform.
Processes tell their version to the cell: "scribe status" shows all of them, and warns where they differ.`,
		Example: `  scribe version
  scribe version -o json`,
		Args: cobra.NoArgs,
	}
	format := outputFlag(cmd, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		output, err := format()
		if err != nil {
			return err
		}
		v, w := readBuild(), cmd.OutOrStdout()
		if output == "json" {
			return printJSON(w, v)
		}
		fmt.Fprintf(w, "scribe %s\n", v.Version)
		note := ""
		if v.Modified {
			note = " (with changes that are not committed)"
		}
		if v.Commit == "" {
			v.Commit, v.Date = "not recorded", "not recorded"
		}
		fmt.Fprintf(w, "commit:   %s%s\ndate:     %s\ngo:       %s\nplatform: %s\n", v.Commit, note, v.Date, v.Go, v.Platform)
		return nil
	}
	return cmd
}
