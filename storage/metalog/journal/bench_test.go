package journal_test

import (
	"fmt"
	"testing"

	"scribe/internal/base/entropy"
	"scribe/internal/testkit/etcdtest"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
	"scribe/storage/metalog/journal/memjournal"
)

// BenchmarkAppend appends groups of several sizes, which compress to about half, one in flight.
//
//	go test -run '^$' -bench BenchmarkAppend -count 6 ./storage/metalog/journal
func BenchmarkAppend(b *testing.B) {
	b.Run("engine=memory", func(b *testing.B) {
		benchAppend(b, func() journal.Journal { return memjournal.New().Open() })
	})
	for _, members := range []int{1, 3} {
		b.Run(fmt.Sprintf("engine=etcd/members=%d", members), func(b *testing.B) {
			client := etcdtest.Start(b, members).Client(b)
			benchAppend(b, func() journal.Journal {
				j, err := etcdjournal.Open(etcdjournal.Config{Client: client, Prefix: fmt.Sprintf("scribe/bench/m/%d/", etcdPrefixes.Add(1))})
				if err != nil {
					b.Fatal(err)
				}
				return j
			})
		})
	}
}

// trimAt is how many bytes a benchmark appends between trims.
const trimAt = 64 << 20

func benchAppend(b *testing.B, open func() journal.Journal) {
	for _, size := range []int{1 << 10, 16 << 10, 128 << 10, 1 << 20, 8 << 20} {
		b.Run(fmt.Sprintf("group=%d", size), func(b *testing.B) {
			j := open()
			defer j.Close()
			l, err := journal.Lead(b.Context(), j, journal.Head{}, journal.Position{}, journal.Options{URL: "http://bench"})
			if err != nil {
				b.Fatal(err)
			}
			payload := make([]byte, size)
			entropy.NewSeeded(1, "bench").Read(payload[:size/2])
			b.SetBytes(int64(size))
			untrimmed := 0
			for b.Loop() {
				if err := l.Append(b.Context(), payload, journal.Times{}); err != nil {
					b.Fatal(err)
				}
				if untrimmed += size; untrimmed >= trimAt {
					untrimmed = 0
					trimAll(b, j, l)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "appends/s")
		})
	}
}

func trimAll(b *testing.B, j journal.Journal, l *journal.Leader) {
	b.Helper()
	seq := l.Head().Seq
	if err := l.RecordSnapshot(b.Context(), seq); err != nil {
		b.Fatal(err)
	}
	if err := j.Trim(b.Context(), seq+1); err != nil {
		b.Fatal(err)
	}
}
