package file_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"scribe/storage/blob/file"
)

// parts is a blob of about 10 MB as a batcher makes it: a header, blocks, a footer.
func parts(blocks, size int) (out [][]byte, total int64) {
	out = append(out, make([]byte, 128))
	for range blocks {
		out = append(out, make([]byte, size))
	}
	out = append(out, make([]byte, 20<<10))
	for i, p := range out {
		for j := range p {
			p[j] = byte(i + j*7)
		}
		total += int64(len(p))
	}
	return out, total
}

// BenchmarkPut compares Put with what the disk must do at least: write and sync one file.
//
//	go test ./storage/blob/file -run '^$' -bench 'Put$' -count 6
func BenchmarkPut(b *testing.B) {
	for _, shape := range []struct{ blocks, size int }{{5, 2 << 20}, {320, 32 << 10}, {1, 100 << 10}} {
		blob, total := parts(shape.blocks, shape.size)
		name := fmt.Sprintf("blocks=%dx%dK", shape.blocks, shape.size>>10)
		b.Run(name+"/store", func(b *testing.B) {
			s := open(b, b.TempDir(), file.Options{})
			b.SetBytes(total)
			for i := range b.N {
				key := fmt.Sprintf("blobs/72h/%d", i)
				if err := s.Put(b.Context(), key, blob...); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := s.Delete(b.Context(), key); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
		b.Run(name+"/plain", func(b *testing.B) {
			dir := b.TempDir()
			b.SetBytes(total)
			for i := range b.N {
				path := filepath.Join(dir, fmt.Sprint(i))
				f, err := os.Create(path)
				if err != nil {
					b.Fatal(err)
				}
				for _, p := range blob {
					if _, err := f.Write(p); err != nil {
						b.Fatal(err)
					}
				}
				if err := f.Sync(); err != nil {
					b.Fatal(err)
				}
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := os.Remove(path); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkReadAt shows what opening the file for each call costs: the difference to a file that stays open.
//
//	go test ./storage/blob/file -run '^$' -bench ReadAt -count 6
func BenchmarkReadAt(b *testing.B) {
	dir := b.TempDir()
	s := open(b, dir, file.Options{})
	blob, _ := parts(5, 2<<20)
	const key = "blobs/72h/a"
	if err := s.Put(b.Context(), key, blob...); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, filepath.FromSlash(key)))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for _, size := range []int{4 << 10, 256 << 10, 2 << 20} {
		dst := make([]byte, size)
		b.Run(fmt.Sprintf("size=%dK/store", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if err := s.ReadAt(b.Context(), key, dst, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("size=%dK/kept-open", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			for b.Loop() {
				if _, err := f.ReadAt(dst, 1<<20); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
