package recovery

import (
	"fmt"
	"path/filepath"
	"testing"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/file"
	"scribe/storage/blob/layout"
	"scribe/storage/metalog/pebblelog"
)

// BenchmarkRecover recovers blobs on files, with their footers in the page cache: everything but the time of the store. An operation is one
// blob; entries are payloads of as many logs.
//
//	go test ./cmd/scribe/recovery -run '^$' -bench Recover -benchtime 20000x -count 6
func BenchmarkRecover(b *testing.B) {
	for _, entries := range []int{5, 100} {
		b.Run(fmt.Sprintf("payloads=%d", entries), func(b *testing.B) {
			dir := b.TempDir()
			store, err := file.New(filepath.Join(dir, "blobs"), file.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer store.Close()
			fillBlobs(b, store, b.N, entries)
			logs, err := pebblelog.NewRestorer(filepath.Join(dir, "metalog"), pebblelog.Options{})
			if err != nil {
				b.Fatal(err)
			}
			cfg := config.Defaults[Config]()
			cfg.Scratch = filepath.Join(dir, "scratch")
			b.ResetTimer()
			report, err := Run(b.Context(), cfg, Deps{Blobs: store}, logs)
			if err != nil || report.Records != int64(b.N*entries) {
				b.Fatalf("%+v, %v", report, err)
			}
			if err := logs.Finish(1, report.Clock, pebblelog.Origin{}); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "footers/s")
			b.ReportMetric(float64(b.N*entries)/b.Elapsed().Seconds(), "records/s")
		})
	}
}

// fillBlobs puts blobs, all of them committed, and tells so.
func fillBlobs(b *testing.B, store blob.Store, blobs, entries int) {
	b.Helper()
	raw := make([]byte, 100*entries)
	for n := range blobs {
		id := blobID(n)
		lb := layout.NewBuilder(id, 72, "", id.Time())
		lb.SetHistory(layout.History{Run: 1, Build: uint64(n + 1), Window: min(uint64(n), layout.MaxWindow-1)})
		block := lb.AddBlock(pointer.CodecNone, raw, len(raw))
		for i := range entries {
			lb.AddPayload(block, uint32(100*i), 100, layout.Entry{
				Shard: record.MakeShardID(uint32(i+1), 0, 1), Epoch: 1, Start: 1, LSN: record.LSN(n + 1), Category: fmt.Sprintf("category-%d", i+1),
				Pointer: pointer.Pointer{Frames: 1, Messages: 10, MinTime: created, MaxTime: created},
			})
		}
		parts, err := lb.Finish()
		if err != nil {
			b.Fatal(err)
		}
		if err := store.Put(b.Context(), pointer.Key(72, id), parts...); err != nil {
			b.Fatal(err)
		}
	}
}
