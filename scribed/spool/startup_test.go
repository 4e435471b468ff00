package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/testkit/testsize"
	"scribe/scribed/spool/layout"
)

// backlog makes a folder of sealed segments as a long outage leaves them, without the data: the files are sparse but for headers and
// footers. It returns how many bytes the footers have.
func backlog(tb testing.TB, dir string, segments, records, categories int, segmentBytes int64) (footers int64) {
	tb.Helper()
	names := make([]string, categories)
	for i := range names {
		names[i] = fmt.Sprintf("category-%05d", i)
	}
	size := segmentBytes * 9 / 10 / int64(records) &^ (layout.Align - 1)
	for n := range segments {
		id := layout.SegmentID{First: uint32(n + 1), Last: uint32(n + 1), Generation: 1}
		entries := make([][]layout.IndexEntry, categories)
		end := int64(layout.SegmentHeaderLen)
		for i := range records {
			e := layout.IndexEntry{Position: layout.At(id.First, uint32(end)), Time: int64(n*records + i), Offset: uint32(end), Size: uint32(size), Messages: 100}
			entries[i%categories] = append(entries[i%categories], e)
			end += layout.Padded(size)
		}
		f := &layout.Footer{SegmentID: id, DataEnd: end, Offset: end}
		for i, name := range names {
			f.Categories = append(f.Categories, layout.NewCategory(name, entries[i]))
		}
		footer := layout.AppendFooter(nil, f, func(i int) []layout.IndexEntry { return entries[i] })
		file, err := os.Create(filepath.Join(dir, id.Name()))
		if err != nil {
			tb.Fatal(err)
		}
		header := layout.AppendSegmentHeader(nil, &layout.SegmentHeader{SegmentID: id}, false)
		if _, err := file.WriteAt(header, 0); err != nil {
			tb.Fatal(err)
		}
		if _, err := file.WriteAt(footer, end); err != nil {
			tb.Fatal(err)
		}
		if n == 0 { // one record is real
			e, data := entries[categories-1][0], make([]byte, size-layout.RecordSize(len(names[0]), 0))
			h := layout.RecordHeader{
				Category: names[categories-1], DataLen: uint32(len(data)), Messages: e.Messages, Position: e.Position, Time: e.Time, DataCRC: layout.Checksum(data),
			}
			if _, err := file.WriteAt(append(layout.AppendRecordHeader(nil, &h), data...), int64(e.Offset)); err != nil {
				tb.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			tb.Fatal(err)
		}
		footers += int64(len(footer))
	}
	return footers
}

// TestStartupReads: Open of 10 GB reads the ends of the footers, and no data. How long it takes is told, and not asserted.
func TestStartupReads(t *testing.T) {
	dir := t.TempDir()
	const segments, records, categories, segmentBytes = 320, 1000, 50, 32 << 20
	footers := backlog(t, dir, segments, records, categories, segmentBytes)
	c := DefaultConfig()
	c.Dir, c.MaxBytes, c.BallastBytes = dir, 16<<30, 0
	d := newDisk(vfs.Default)
	start := time.Now()
	s, err := Open(c, Deps{FS: d, Logger: newLossLog()})
	took := time.Since(start)
	if err != nil {
		t.Fatal(err)
	}
	reads, bytes := d.reads.Load(), d.readBytes.Load()
	used, _ := s.Used()
	t.Logf("%d MB of backlog: ready in %v with %d reads of %d bytes", used>>20, took, reads, bytes)
	if q := s.Queue("category-00049"); q.Unclaimed.Records != segments*records/categories {
		t.Errorf("the backlog is %+v", q)
	}
	if bytes > footers+segments*(8<<10) || reads > 4*segments {
		t.Errorf("%d reads of %d bytes; the footers have %d", reads, bytes, footers)
	}
	// The first claim reads one index, and the data.
	if got, err := s.Claim("category-00049", 1, ^Position(0), nil); err != nil || len(got) != 1 || len(s.Losses()) > 0 {
		t.Fatalf("%d records, %v", len(got), err)
	}
	if n := d.readBytes.Load() - bytes; n > 128<<10 {
		t.Errorf("a claim of one record read %d bytes", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Run with: go test ./scribed/spool -run - -bench Open -count 6
func BenchmarkOpen(b *testing.B) {
	for _, categories := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("10GB/categories=%d", categories), func(b *testing.B) {
			dir := b.TempDir()
			backlog(b, dir, testsize.Benchmark(320, 2), 2000, categories, 32<<20)
			c := DefaultConfig()
			c.Dir, c.MaxBytes, c.BallastBytes = dir, 16<<30, 0
			for b.Loop() {
				s, err := Open(c, Deps{})
				if err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}
