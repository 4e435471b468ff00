package sim

import (
	"fmt"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
)

// BenchmarkCell runs cells of 1, 3 and 10 processes without faults, with ten committed writes a second and two readers, and says how many
// virtual hours they make in a minute of one processor.
func BenchmarkCell(b *testing.B) {
	solo := []processPlan{{Name: "up", Roles: app.AllRoles}}
	for _, processes := range [][]processPlan{solo, layouts["one"], layouts["wide"]} {
		b.Run(fmt.Sprintf("processes=%d", len(processes)), func(b *testing.B) {
			p := plan{
				Seed: 1, Length: 5 * time.Minute, Quiet: time.Minute, Processes: processes,
				Categories: []categoryPlan{{Name: "a", Delivery: "at_least_once", Order: "none", Shards: 2}},
			}
			for i, via := range []string{p.with(app.WriteProxy)[0], p.with(app.Scribed)[0]} {
				p.Writers = append(p.Writers, writerPlan{
					Name: fmt.Sprint("writer", i), Category: "a", Shard: uint32(i), Level: "committed", Kind: "single", Via: via, //nolint:gosec // 0 and 1
					Patient: true, Pace: 200 * time.Millisecond, Size: 500,
				})
				p.Readers = append(p.Readers, readerPlan{Name: fmt.Sprint("reader", i), Category: "a", Window: time.Second, Via: p.with(app.ReadStream)})
			}
			var virtual, spent time.Duration
			for b.Loop() {
				r, err := runPlan(b.Context(), b.TempDir(), p)
				if why := r.failure(err); why != "" {
					b.Fatal(why)
				}
				virtual, spent = virtual+r.Virtual, spent+r.Real
			}
			b.ReportMetric(virtual.Hours()/spent.Minutes(), "virtual-h/min")
		})
	}
}
