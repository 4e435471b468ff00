package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
)

func newBenchQuery() *cobra.Command {
	var (
		o                   = bench.QueryOptions{Queries: bench.QueryCount()}
		readers             = []int{1, 20, 100}
		rate    units.Bytes = 4_000_000
		length              = units.Duration(10 * time.Second)
		history units.Bytes = 1_000_000_000
		profile string
		asJSON  bool
	)
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Cost of many queries over one live category, and the time to the first row of a history",
		Long: `Write an access log of JSON objects at a fixed rate while 1, 20 and 100 readers follow it, each with one of 20 queries. Report the bytes
fetched from the store, the payloads computed for one reader and served to others, and the CPU time per reader, which excludes the cost of
the same traffic without readers. Then write a history and search it for its only matching row, first without zone maps and then with
them. Each measurement runs a new cell in this process.`,
		Example: `  scribe bench query
  scribe bench query --readers 100 --rate 2MB --duration 30s --history 0 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if rate < 1 || length < units.Duration(time.Second) {
				return usageError(errors.New("--rate must be above zero, --duration a second or more"))
			}
			for _, n := range readers {
				if n < 1 || n > 10_000 {
					return usageError(fmt.Errorf("--readers %d is outside 1 to 10000", n))
				}
			}
			if o.Queries < 1 || o.Queries > bench.QueryCount() {
				return usageError(fmt.Errorf("--queries %d is outside 1 to %d", o.Queries, bench.QueryCount()))
			}
			o.BytesPerSecond, o.Duration = float64(rate), length.Std()
			if profile != "" {
				stop, err := startProfile(profile)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, stop()) }()
			}
			var reports []bench.QueryReport
			measure := func(o bench.QueryOptions) error {
				return withCell(cmd, nil, func(server string) error {
					o.Server = server
					r, err := bench.Queries(cmd.Context(), o)
					reports = append(reports, r)
					return err
				})
			}
			for _, o.Readers = range append([]int{0}, readers...) {
				if err := measure(o); err != nil {
					return fmt.Errorf("%d readers: %w", o.Readers, err)
				}
			}
			writing := reports[0]
			reports = reports[1:]
			for i := range reports {
				reports[i].Beside(writing)
			}
			if history > 0 {
				o.History = int64(history)
				if err := measure(o); err != nil {
					return fmt.Errorf("the first row of a history: %w", err)
				}
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.QueryTable)
		},
	}
	fs := cmd.Flags()
	fs.IntSliceVar(&readers, "readers", readers, "readers that follow at the same time, a measurement each")
	fs.IntVar(&o.Queries, "queries", o.Queries, "different queries among them")
	fs.Var(&rate, "rate", "payload a second that is written")
	fs.Var(&length, "duration", "how long is written in each measurement")
	fs.Var(&history, "history", "payload that is there when the first row is looked for; 0 leaves that out")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the measurements to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}
