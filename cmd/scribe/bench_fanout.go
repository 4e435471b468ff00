package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"scribe/cmd/scribe/bench"
	"scribe/internal/base/units"
)

func newBenchFanout() *cobra.Command {
	var (
		o         bench.FanoutOptions
		consumers             = []int{1, 10, 100}
		rate      units.Bytes = 8_000_000
		length                = units.Duration(10 * time.Second)
		workload              = "access-log"
		profile   string
		asJSON    bool
	)
	cmd := &cobra.Command{
		Use:   "fanout",
		Short: "Store requests and CPU time of many consumers of one live category",
		Long: `Write one category at a fixed rate while 1, 10 and 100 consumers follow it, each reading everything. Report the bytes delivered per byte
fetched from the store, and the CPU time per byte delivered: the total, and that of reading alone, which excludes the cost of the same
traffic without readers. Each measurement runs a new cell in this process.`,
		Example: `  scribe bench fanout
  scribe bench fanout --consumers 1,300 --rate 2MB --duration 30s --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if rate < 1 || length < units.Duration(time.Second) {
				return usageError(errors.New("--rate must be above zero, --duration a second or more"))
			}
			for _, n := range consumers {
				if n < 1 || n > 10_000 {
					return usageError(fmt.Errorf("--consumers %d is outside 1 to 10000", n))
				}
			}
			o.BytesPerSecond, o.Duration = float64(rate), length.Std()
			if o.Workload, err = bench.NewWorkload(workload); err != nil {
				return usageError(err)
			}
			limit, err := bench.DecoderNsPerByte(o.Workload)
			if err != nil {
				return err
			}
			if profile != "" {
				stop, err := startProfile(profile)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, stop()) }()
			}
			var reports []bench.FanoutReport
			for _, o.Consumers = range append([]int{0}, consumers...) {
				err := withCell(cmd, nil, func(server string) error {
					o.Server = server
					r, err := bench.Fanout(cmd.Context(), o)
					reports = append(reports, r)
					return err
				})
				if err != nil {
					return fmt.Errorf("%d consumers: %w", o.Consumers, err)
				}
			}
			writing := reports[0]
			reports = reports[1:]
			for i := range reports {
				reports[i].Beside(writing, limit)
			}
			return printReports(cmd.OutOrStdout(), asJSON, reports, bench.FanoutTable)
		},
	}
	fs := cmd.Flags()
	fs.IntSliceVar(&consumers, "consumers", consumers, "consumers that follow at the same time, a measurement each")
	fs.Var(&rate, "rate", "payload a second that is written")
	fs.Var(&length, "duration", "how long is written in each measurement")
	fs.StringVar(&workload, "workload", workload, "messages: 100b, access-log, 10kb")
	fs.StringVar(&profile, "cpuprofile", "", "write a CPU profile of the measurements to this file")
	fs.BoolVar(&asJSON, "json", false, "print a JSON object a line")
	return cmd
}
