package spool

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/testkit/testsize"
	"scribe/storage/blob/encryption"
)

// benchForms are the forms in which records are written.
var benchForms = map[string]encryption.Wrapper{"spool": nil, "encrypted": wrapper{"k1"}}

func benchSpool(b *testing.B, w encryption.Wrapper) (*Spool, *disk) {
	c := DefaultConfig()
	c.Dir, c.MaxBytes, c.BallastBytes = b.TempDir(), 4<<30, 0
	d := newDisk(vfs.Default)
	s, err := Open(c, Deps{FS: d, Wrapper: w})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s, d
}

// BenchmarkAppendSync is a spooled write: appended, synced, and done. plain is a write and an fsync of the same bytes, for each.
//
// Run with: go test ./scribed/spool -run - -bench AppendSync -count 6
func BenchmarkAppendSync(b *testing.B) {
	data := make([]byte, 16<<10)
	for _, writers := range []int{1, 64} {
		b.Run(fmt.Sprintf("writers=%d/spool", writers), func(b *testing.B) {
			s, d := benchSpool(b, nil)
			b.SetBytes(int64(len(data)))
			before := d.syncs.Load()
			each(b, writers, func() error {
				refs, err := appendRecords(s, []Record{{Category: "bench", Messages: 100, Data: data}}, true)
				if err != nil {
					return err
				}
				if err := s.Sync(b.Context()); err != nil {
					return err
				}
				s.Done(refs...)
				return nil
			})
			b.ReportMetric(float64(d.syncs.Load()-before)/float64(b.N), "syncs/op")
		})
	}
	b.Run("writers=1/plain", func(b *testing.B) {
		f, err := os.Create(filepath.Join(b.TempDir(), "plain"))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(len(data)))
		each(b, 1, func() error {
			if _, err := f.Write(data); err != nil {
				return err
			}
			return f.Sync()
		})
		if err := f.Close(); err != nil {
			b.Fatal(err)
		}
	})
}

// each runs an operation b.N times in a number of goroutines.
func each(b *testing.B, writers int, op func() error) {
	b.Helper()
	var wg sync.WaitGroup
	tickets := make(chan struct{}, writers)
	b.ResetTimer()
	for range writers {
		wg.Go(func() {
			for range tickets {
				if err := op(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for range b.N {
		tickets <- struct{}{}
	}
	close(tickets)
	wg.Wait()
	b.StopTimer()
}

// BenchmarkAppend is the throughput of appends with a sync every 8 MiB, as they are and encrypted; plain writes and syncs the same bytes.
//
// Run with: go test ./scribed/spool -run - -bench 'Append$' -count 6
func BenchmarkAppend(b *testing.B) {
	for _, size := range []int{1 << 10, 64 << 10, 1 << 20} {
		data := make([]byte, size)
		every := max(1, (8<<20)/size)
		for form, w := range benchForms {
			b.Run(fmt.Sprintf("bytes=%d/%s", size, form), func(b *testing.B) {
				s, _ := benchSpool(b, w)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					refs, err := appendRecords(s, []Record{{Category: "bench", Messages: 100, Data: data}}, true)
					if err != nil {
						b.Fatal(err)
					}
					s.Done(refs...)
					if n++; n%every == 0 {
						if err := s.Sync(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
		b.Run(fmt.Sprintf("bytes=%d/plain", size), func(b *testing.B) {
			dir := b.TempDir()
			var f *os.File
			b.SetBytes(int64(size))
			n, written := 0, 0
			for b.Loop() {
				if f == nil {
					var err error
					if f, err = os.Create(filepath.Join(dir, "plain")); err != nil {
						b.Fatal(err)
					}
				}
				if _, err := f.Write(data); err != nil {
					b.Fatal(err)
				}
				if n++; n%every == 0 {
					if err := f.Sync(); err != nil {
						b.Fatal(err)
					}
				}
				if written += size; written >= 32<<20 {
					if err := f.Close(); err != nil {
						b.Fatal(err)
					}
					f, written = nil, 0
				}
			}
		})
	}
}

// BenchmarkClaim reads a backlog of 256 MiB of one category among eight, as it is and encrypted; plain reads the same records' bytes from the files.
//
// Run with: go test ./scribed/spool -run - -bench Claim -count 6
func BenchmarkClaim(b *testing.B) {
	for form, w := range benchForms {
		benchClaim(b, form, w)
	}
}

func benchClaim(b *testing.B, form string, w encryption.Wrapper) {
	const size = 64 << 10
	records := testsize.Benchmark(4096, 256)
	s, _ := benchSpool(b, w)
	data := make([]byte, size)
	for i := range records {
		if _, err := appendRecords(s, []Record{{Category: fmt.Sprint(i / 8 % 8), Messages: 100, Data: data}}, false); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Sync(b.Context()); err != nil {
		b.Fatal(err)
	}
	buf := make([]byte, 5<<20)
	b.Run(form, func(b *testing.B) {
		b.SetBytes(int64(records / 8 * size))
		b.ReportAllocs()
		for b.Loop() {
			var all []Ref
			for {
				got, err := s.Claim("3", 4<<20, ^Position(0), buf)
				if err != nil {
					b.Fatal(err)
				}
				if len(got) == 0 {
					break
				}
				all = append(all, refsOfClaimed(got)...)
			}
			if len(all) != records/8 {
				b.Fatal(len(all))
			}
			s.Release(all...)
		}
	})
	if w != nil {
		return
	}
	b.Run("plain", func(b *testing.B) {
		paths, err := filepath.Glob(filepath.Join(s.cfg.Dir, "*.segment"))
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(int64(records / 8 * size))
		for b.Loop() {
			left := records / 8
			for _, path := range paths {
				f, err := os.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				for off := int64(0); left > 0; off += 64 * size {
					n, err := f.ReadAt(buf[:8*size], off)
					if n == 0 || err != nil {
						break
					}
					left -= 8
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}
