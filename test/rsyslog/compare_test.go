package rsyslog

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// producers is how many applications of the host write at the same time, each with a connection of its own.
const producers = 200

// every is the pause between two lines of a producer that writes each at its time: 50,000 lines a second in all.
const every = 4 * time.Millisecond

// TestForward: every line of every producer arrives exactly once, as it was written, whichever daemon forwards it.
func TestForward(t *testing.T) {
	c := newCorpus(producers * 5)
	for _, s := range setups {
		t.Run(s.name, func(t *testing.T) {
			d := s.start(t, c)
			forward(t, d, c, 0)
			if faults := d.check(); len(faults) > 0 {
				t.Error(faults)
			}
		})
	}
}

// BenchmarkForward reports what the daemon that forwards took: CPU time for a byte of payload, and the most memory that it had.
func BenchmarkForward(b *testing.B) {
	for _, load := range []struct {
		name     string
		pause    time.Duration
		linesFor int // each producer
	}{{"burst", 0, 1000}, {"trickle", every, 500}} {
		b.Run(load.name, func(b *testing.B) {
			c := newCorpus(producers * load.linesFor)
			for _, s := range setups {
				b.Run(s.name, func(b *testing.B) {
					var cpu, wall time.Duration
					peak := int64(0)
					for b.Loop() {
						d := s.start(b, c)
						before, begin := d.process.CPUTime(), time.Now()
						forward(b, d, c, load.pause)
						cpu, wall = cpu+d.process.CPUTime()-before, wall+time.Since(begin)
						peak = max(peak, d.process.PeakMemory())
						if faults := d.check(); len(faults) > 0 {
							b.Fatal(faults)
						}
						d.process.Kill()
					}
					size := float64(c.bytes()) * float64(b.N)
					b.ReportMetric(float64(cpu)/size, "cpu-ns/B")
					b.ReportMetric(float64(peak)/1e6, "peak-MB")
					b.ReportMetric(size/1e6/wall.Seconds(), "MB/s")
				})
			}
		})
	}
}

// forward lets every producer write its part of a corpus at the same time, with a pause after each line, and returns when all lines are
// behind the daemon.
func forward(t testing.TB, d daemon, c corpus, pause time.Duration) {
	t.Helper()
	var group sync.WaitGroup
	errs := make([]error, producers)
	part := len(c) / producers
	for p := range producers {
		group.Go(func() {
			w, err := d.dial(t.Context(), p)
			if err != nil {
				errs[p] = err
				return
			}
			errs[p] = errors.Join(produce(t.Context(), w, c[p*part:(p+1)*part], pause), w.close(t.Context()))
		})
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("%v\n%s", err, d.process.Log)
	}
	await(t, func() bool { return d.arrived() >= int64(len(c)) })
}

func produce(ctx context.Context, w writer, lines corpus, pause time.Duration) error {
	if pause == 0 {
		for _, line := range lines {
			if err := w.write(ctx, line, false); err != nil {
				return err
			}
		}
		return nil
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for _, line := range lines {
		<-tick.C
		if err := w.write(ctx, line, true); err != nil {
			return err
		}
	}
	return nil
}
