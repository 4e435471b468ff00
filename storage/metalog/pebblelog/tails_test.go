package pebblelog

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// TestTails compares the cache with everything that was ever added: what it returns is right, it holds the newest, and it keeps to
// its limit.
func TestTails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := tailCache{limit: rapid.Int64Range(0, 3000).Draw(t, "limit")}
		all := map[record.ShardID][]metalog.Entry{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				var chunks []*tailChunk
				for range rapid.IntRange(1, 4).Draw(t, "chunks") {
					s := record.ShardID(rapid.Uint64Range(1, 3).Draw(t, "shard"))
					first := record.LSN(len(all[s]) + 1)
					var records [][]byte
					for range rapid.IntRange(1, 4).Draw(t, "records") {
						r := fmt.Appendf(nil, "%d/%d", s, len(all[s]))
						records = append(records, r)
						all[s] = append(all[s], metalog.Entry{LSN: record.LSN(len(all[s]) + 1), Time: int64(len(all)), Data: r})
					}
					if rapid.IntRange(0, 5).Draw(t, "unfollowed") == 0 {
						continue // nobody followed the shard: a gap
					}
					chunks = append(chunks, newTailChunk(s, first, int64(len(all)), records))
				}
				c.addChunks(chunks)
				size := int64(0)
				for _, chunk := range c.mu.fifo[c.mu.head:] {
					size += chunk.size()
				}
				if size != c.mu.size || size > c.limit {
					t.Fatalf("the cache holds %d bytes, counts %d, may hold %d", size, c.mu.size, c.limit)
				}
				runs := 0
				for _, run := range c.mu.runs {
					runs += len(run)
				}
				if runs > len(c.mu.fifo)-c.mu.head {
					t.Fatalf("%d chunks can be read, but only %d are counted", runs, len(c.mu.fifo)-c.mu.head)
				}
				if n := len(chunks); n > 0 && chunks[n-1].size() <= c.limit {
					last := chunks[n-1]
					if _, ok := c.readCached(nil, last.shard, last.next()-1, last.next(), &readBudget{records: 1, bytes: 1}); !ok {
						t.Fatal("the newest record is not there")
					}
				}
			},
			"read": func(t *rapid.T) {
				s := record.ShardID(rapid.Uint64Range(1, 3).Draw(t, "shard"))
				from := record.LSN(rapid.IntRange(1, len(all[s])+2).Draw(t, "from"))
				next := record.LSN(rapid.IntRange(int(from), len(all[s])+2).Draw(t, "next"))
				b := readBudget{records: rapid.IntRange(1, 5).Draw(t, "records"), bytes: rapid.IntRange(1, 30).Draw(t, "bytes")}
				limit, bytesLeft := b.records, b.bytes
				got, ok := c.readCached(nil, s, from, next, &b)
				if !ok {
					if len(got) != 0 {
						t.Fatal("records came with a refusal")
					}
					return
				}
				for i, en := range got {
					want := all[s][int(from)-1+i]
					if en.LSN != want.LSN || !bytes.Equal(en.Data, want.Data) || en.LSN >= next {
						t.Fatalf("read %+v, want %+v, below %d", en, want, next)
					}
					if limit--; limit < 0 || i > 0 && len(en.Data) > bytesLeft {
						t.Fatal("the budget was passed")
					}
					bytesLeft -= len(en.Data)
				}
				if len(got) == 0 && from < next {
					t.Fatal("nothing came although the record is there")
				}
			},
		})
	})
}
