package pebblelog

import (
	"slices"
	"sync"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// tailCache holds the newest records of subscribed shards, so that a thousand subscribers of a shard do not each read from Pebble
// after every commit. It is filled when a batch is published, and drops the oldest chunks above its limit. Chunks never change,
// so entries may refer to their bytes.
type tailCache struct {
	limit int64
	mu    struct {
		sync.RWMutex
		runs map[record.ShardID][]*tailChunk // without gaps, in order
		fifo []*tailChunk                    // all chunks from head on, oldest first, also those whose run was dropped
		head int
		size int64 // of all chunks in fifo
	}
}

// tailChunk is the data of one append to a shard.
type tailChunk struct {
	shard record.ShardID
	first record.LSN
	time  int64
	data  []byte
	ends  []uint32 // ends of the records in data
}

// chunkOverhead is the approximate memory of a chunk beyond its records.
const chunkOverhead = 160

func newTailChunk(shard record.ShardID, first record.LSN, time int64, records [][]byte) *tailChunk {
	c := &tailChunk{shard: shard, first: first, time: time, ends: make([]uint32, 0, len(records))}
	size := 0
	for _, r := range records {
		size += len(r)
	}
	c.data = make([]byte, 0, size)
	for _, r := range records {
		c.data = append(c.data, r...)
		c.ends = append(c.ends, uint32(len(c.data)))
	}
	return c
}

func (c *tailChunk) next() record.LSN { return c.first + record.LSN(len(c.ends)) }

func (c *tailChunk) size() int64 { return int64(len(c.data) + 4*len(c.ends) + chunkOverhead) }

func (c *tailChunk) entry(lsn record.LSN) metalog.Entry {
	i, from := int(lsn-c.first), uint32(0)
	if i > 0 {
		from = c.ends[i-1]
	}
	return metalog.Entry{LSN: lsn, Time: c.time, Data: c.data[from:c.ends[i]:c.ends[i]]}
}

// addChunks adds chunks, which must be in the order of their commits.
func (t *tailCache) addChunks(chunks []*tailChunk) {
	if len(chunks) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.runs == nil {
		t.mu.runs = make(map[record.ShardID][]*tailChunk)
	}
	for _, c := range chunks {
		run := t.mu.runs[c.shard]
		if n := len(run); n > 0 && run[n-1].next() != c.first {
			run = nil // nobody followed the shard in the meantime
		}
		t.mu.runs[c.shard] = append(run, c)
		t.mu.fifo = append(t.mu.fifo, c)
		t.mu.size += c.size()
	}
	for ; t.mu.size > t.limit; t.mu.head++ {
		c := t.mu.fifo[t.mu.head]
		t.mu.fifo[t.mu.head] = nil
		t.mu.size -= c.size()
		run := t.mu.runs[c.shard]
		switch {
		case len(run) == 0 || run[0] != c: // its run was dropped before
		case len(run) == 1:
			delete(t.mu.runs, c.shard)
		default:
			run[0] = nil
			t.mu.runs[c.shard] = run[1:]
		}
	}
	if t.mu.head > len(t.mu.fifo)/2 {
		t.mu.fifo = slices.Delete(t.mu.fifo, 0, t.mu.head)
		t.mu.head = 0
	}
}

// forgetChunks empties the cache.
func (t *tailCache) forgetChunks() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.mu.runs)
	t.mu.fifo, t.mu.head, t.mu.size = nil, 0, 0
}

// readCached appends the shard's entries [from, next), as far as the budget allows. It returns false, and appends nothing, if the
// record at from is not cached.
func (t *tailCache) readCached(dst []metalog.Entry, shard record.ShardID, from, next record.LSN, b *readBudget) ([]metalog.Entry, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	run := t.mu.runs[shard]
	if len(run) == 0 || from < run[0].first || from >= run[len(run)-1].next() {
		return dst, false
	}
	i, _ := slices.BinarySearchFunc(run, from, func(c *tailChunk, lsn record.LSN) int {
		if c.next() <= lsn {
			return -1
		}
		return 1
	})
	for lsn := from; lsn < next && i < len(run); lsn++ {
		e := run[i].entry(lsn)
		if !b.takeRecord(len(e.Data)) {
			break
		}
		dst = append(dst, e)
		if lsn+1 == run[i].next() {
			i++
		}
	}
	return dst, true
}
