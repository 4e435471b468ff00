package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
)

// withFleet runs fn with a cell whose nodes are processes of this program, in a folder that is removed afterwards.
func withFleet(cmd *cobra.Command, data string, nodes int, fn func(*bench.Fleet) error) (err error) {
	dir, err := os.MkdirTemp(data, "scribe-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	fleet, err := bench.StartFleet(cmd.Context(), program, dir, nodes)
	if err != nil {
		return fmt.Errorf("start the cell: %w", err)
	}
	defer func() { err = errors.Join(err, fleet.Close()) }()
	return fn(fleet)
}

func newBenchFailover() *cobra.Command {
	var (
		o      = bench.FailoverOptions{Kills: 30, Stops: 30, Every: units.Duration(5 * time.Millisecond), Settle: 5 * second}
		nodes  = 3
		data   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "failover",
		Short: "Gaps of writes and deliveries when the node that leads ends",
		Long: `Run a cell of nodes, each a process of its own on this machine, and end the one that leads the metadata logs again and again: killed, and then
stopped in order. Each time the longest gap between two acknowledgements of committed writes is measured, and between two deliveries. There is
a writer and a reader for each node, which name that node first and the others after it; the longest gap of any of them counts. At the end what
was acknowledged and not delivered is counted.`,
		Example: `  scribe bench failover
  scribe bench failover --kills 0 --stops 10
  scribe bench failover --kills 3 --stops 3 --settle 3s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Kills < 0 || o.Stops < 0 || o.Kills+o.Stops == 0 || o.Every <= 0 || o.Settle < second {
				return usageError(errors.New("want --kills or --stops above zero, --every above zero, and --settle of a second or more"))
			}
			if nodes != 3 && nodes != 5 {
				return usageError(fmt.Errorf("--nodes %d: want 3 or 5", nodes))
			}
			return withFleet(cmd, data, nodes, func(fleet *bench.Fleet) error {
				r, err := bench.Failover(cmd.Context(), fleet, o)
				if err != nil {
					return err
				}
				return printReport(cmd.OutOrStdout(), asJSON, &r)
			})
		},
	}
	fs := cmd.Flags()
	fs.IntVar(&o.Kills, "kills", o.Kills, "times that the leading node is killed")
	fs.IntVar(&o.Stops, "stops", o.Stops, "times that it is stopped in order")
	fs.IntVar(&nodes, "nodes", nodes, "nodes of the cell: 3 or 5")
	fs.Var(&o.Every, "every", "pause of each writer between two writes")
	fs.Var(&o.Settle, "settle", "how long is measured after each end, and how long all nodes run before the next")
	fs.StringVar(&data, "data", "", "folder in which the cell's folder is made (default: that of temporary files)")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object")
	return cmd
}

func newBenchMetalog() *cobra.Command {
	var (
		o      = bench.MetalogOptions{Writers: 64, PointerBytes: 120, Duration: 10 * second}
		groups = []int{1, 10, 100, 500}
		nodes  = []int{0, 1, 3}
		count  = 1
		data   string
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "metalog",
		Short: "Appends to the metadata logs: the embedded engine, and nodes that replicate it",
		Long: `Append pointers to the metadata logs of a cell over TCP, as batchers do, with several writers that each wait for their answer. The cell is one
process with the embedded engine (--nodes 0), one node, or three, each a process of its own on this machine, in the same run. An append has
as many pointers as the group, over as many logs, at most 100. A quarter of a pointer's bytes is random.

Beside it each replica is asked for the end of a log ten times a second: "barrier" is how long it takes until it answers by itself. As often a record is appended to a log
of its own: "visible" is the time from there until a replica that follows has told a subscriber of it. "lag" is how many entries of the journal such a
replica knows of and does not show yet, also asked for ten times a second.

--rate holds the writers to so many pointers a second, --keep trims the logs behind them, and with --every there is a line for each such time: how a
cell does over hours. With --seed a node that does not lead loses its copy of the logs in the end, and gets another. What was measured before an error is
printed as well.`,
		Example: `  scribe bench metalog
  scribe bench metalog --nodes 0,3 --group 100 --writers 16
  scribe bench metalog --nodes 3 --group 500 --rate 50000 --keep 10000 --duration 1h --every 5m
  scribe bench metalog --nodes 3 --group 500 --duration 1m --seed
  scribe bench metalog --duration 3s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(checkRange("--group", 4096, groups...), checkRange("--writers", 1024, o.Writers),
				checkRange("--pointer-bytes", 4096, o.PointerBytes), checkRange("--count", 1000, count)); err != nil {
				return err
			}
			if o.Duration < second || o.Every != 0 && o.Every < second {
				return usageError(errors.New("--duration and --every must be a second or more"))
			}
			if o.Rate < 0 || o.Keep < 0 {
				return usageError(errors.New("--rate and --keep can't be negative"))
			}
			if g := slices.IndexFunc(groups, func(g int) bool { return g > 100 && g%100 != 0 }); o.Keep > 0 && g >= 0 {
				return usageError(fmt.Errorf("--group %d with --keep: want up to 100, or hundreds, so that all logs grow alike", groups[g]))
			}
			var reports []bench.MetalogReport
			for _, n := range nodes {
				if n != 0 && n != 1 && n != 3 && n != 5 {
					return usageError(fmt.Errorf("--nodes %d: want 0, 1, 3 or 5", n))
				}
			}
			for range count {
				for _, n := range nodes {
					err := withFleet(cmd, data, n, func(fleet *bench.Fleet) error {
						for _, o.Group = range groups {
							r, err := bench.Metalog(cmd.Context(), fleet, o)
							reports = append(reports, r...)
							if err != nil {
								return fmt.Errorf("%d nodes, groups of %d: %w", n, o.Group, err)
							}
						}
						return nil
					})
					if err != nil {
						if len(reports) == 0 {
							return err
						}
						return errors.Join(err, printReports(cmd.OutOrStdout(), asJSON, reports, bench.MetalogTable))
					}
				}
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.MetalogTable)
		},
	}
	fs := cmd.Flags()
	fs.IntSliceVar(&groups, "group", groups, "pointers of an append; several, separated by commas")
	fs.IntSliceVar(&nodes, "nodes", nodes, "nodes of the cell; 0 is one process with the embedded engine")
	fs.IntVar(&o.Writers, "writers", o.Writers, "writers that append at a time")
	fs.IntVar(&o.PointerBytes, "pointer-bytes", o.PointerBytes, "size of a pointer")
	fs.Var(&o.Duration, "duration", "how long each is measured")
	fs.Var(&o.Every, "every", "a line for each such part of the duration (default: one for all of it)")
	fs.IntVar(&o.Rate, "rate", 0, "pointers a second of all writers together (default: as many as they can)")
	fs.IntVar(&o.Keep, "keep", 0, "records that each log keeps; older ones are trimmed (default: all)")
	fs.BoolVar(&o.Seed, "seed", false, "measure how long a node takes to get its logs anew, with 3 nodes or more")
	fs.IntVar(&count, "count", count, "runs of everything")
	fs.StringVar(&data, "data", "", "folder in which the cell's folder is made (default: that of temporary files)")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object for each")
	return cmd
}
