package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/app"
	"scribe/cmd/scribe/doctor"
)

func newDoctor() *cobra.Command {
	cmd := newDoctorOf("up", "Check a machine before a process starts there", app.DefaultConfig())
	cmd.Use = "doctor"
	cmd.Long = `Check what a process needs before it starts: the configuration; the data folder (free, writable, fast enough, with space); the addresses;
the blob store, also S3 (it puts, refuses a second blob of a key, reads, lists and deletes; speed); the processes that it depends on, and
their versions; the clock; the limits of files and memory. Nothing is started, and nothing is left behind.

"scribe doctor" takes the flags of "scribe up", "scribe doctor serve" those of "scribe serve", and "scribe doctor agent" those of "scribe
agent"; settings in the environment and in --config count as well. A line says what there is; where something is wrong, the next one says
what to do.

Exit codes: 0 if the process would start and work (also with warnings), 1 if a check failed, 2 for mistakes in the flags.`
	cmd.Example = `  scribe doctor
  scribe doctor --data /var/lib/scribe --blobs s3 --s3-endpoint http://127.0.0.1:9000 --s3-bucket scribe
  scribe doctor serve --config /etc/scribe/writeproxy.yaml -o json
  scribe doctor agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool`
	ofServe := newDoctorOf("serve", "Check a machine before \"scribe serve\"", serveConfig())
	ofServe.Example = "  scribe doctor serve --roles batcher --control http://127.0.0.1:7421 --metalog http://127.0.0.1:7421 --blob-path ./blobs --data ./b1"
	ofAgent := newDoctorOf("agent", "Check a host before \"scribe agent\"", agentConfig())
	ofAgent.Example = "  scribe doctor agent --upstream http://scribe.internal:7420 --spool /var/lib/scribe/spool"
	cmd.AddCommand(ofServe, ofAgent)
	return cmd
}

// newDoctorOf makes the checks of a command, which takes the flags of that one.
func newDoctorOf(command, short string, d app.Config) *cobra.Command {
	var f serverFlags
	cmd := &cobra.Command{Use: command, Short: short, Args: refuseCommand}
	f.addFlags(cmd, command, d)
	format := tableFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := format()
		if err != nil {
			return err
		}
		c, err := f.configure(cmd)
		if err != nil {
			return err
		}
		results := doctor.Examine(cmd.Context(), c, doctor.Machine{Version: programVersion()})
		worst := doctor.Worst(results)
		if asJSON {
			err = printJSON(cmd.OutOrStdout(), struct {
				State   doctor.State    `json:"state"`
				Results []doctor.Result `json:"checks"`
			}{worst, results})
		} else {
			err = printChecks(cmd, results)
		}
		if err == nil && worst == doctor.Failed {
			err = fmt.Errorf("%s failed: correct them before the start", countText(countFailed(results), "check"))
		}
		return err
	}
	return cmd
}

func countFailed(results []doctor.Result) (n int) {
	for _, r := range results {
		if r.State == doctor.Failed {
			n++
		}
	}
	return n
}

// printChecks prints a line for each check, and one with the advice under those that need one.
func printChecks(cmd *cobra.Command, results []doctor.Result) error {
	width := 0
	for _, r := range results {
		width = max(width, len(r.Check))
	}
	for _, r := range results {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%-7s  %-*s  %s\n", r.State, width, r.Check, r.Found); err != nil {
			return err
		}
		if r.Advice != "" {
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s-> %s\n", strings.Repeat(" ", 9+width+2), r.Advice); err != nil {
				return err
			}
		}
	}
	return nil
}
