package moving_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/moving"
	"scribe/storage/metalog/pebblelog"
)

// BenchmarkMoveLog moves one log after another between two engines on folders, with fsync, and reports for how long writers are refused:
//
//	go test ./storage/metalog/moving -run '^$' -bench MoveLog -benchtime 200x -count 6
func BenchmarkMoveLog(b *testing.B) {
	for _, producers := range []int{1, 1_000, 100_000} {
		b.Run(fmt.Sprintf("producers=%d", producers), func(b *testing.B) {
			engines := map[string]metalog.Log{}
			for _, name := range []string{"a", "b"} {
				e, err := pebblelog.Open(b.TempDir(), pebblelog.Options{FS: vfs.Default})
				if err != nil {
					b.Fatal(err)
				}
				defer e.Close() //nolint:errcheck // of a benchmark
				engines[name] = e
			}
			runs := make([]metalog.Sequence, producers)
			for i := range runs {
				runs[i] = metalog.Sequence{Producer: uint64(i) + 1, Epoch: 1}
			}
			var pauses []time.Duration
			for i := range b.N {
				b.StopTimer()
				shard := record.MakeShardID(uint32(i)+1, 0, 1)
				states, err := engines["a"].Open(b.Context(), "bench", []record.ShardID{shard})
				if err == nil {
					_, err = engines["a"].Append(b.Context(), &metalog.Append{Shards: []metalog.ShardAppend{{
						Shard: shard, Epoch: states[0].Epoch, Records: [][]byte{[]byte("record")}, Sequences: runs,
					}}})
				}
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				done, err := moving.MoveLog(b.Context(), moving.Move{Shard: shard, From: "a", To: "b", Source: engines["a"], Destination: engines["b"]}, moving.Options{})
				if err != nil {
					b.Fatal(err)
				}
				pauses = append(pauses, done.Pause)
			}
			slices.Sort(pauses)
			for name, at := range map[string]int{"p50": len(pauses) / 2, "p99": len(pauses) * 99 / 100} {
				b.ReportMetric(float64(pauses[at].Microseconds())/1000, name+"-pause-ms")
			}
		})
	}
}
