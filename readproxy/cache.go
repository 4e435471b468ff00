package readproxy

import (
	"encoding/binary"
	"math"
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"scribe/internal/pointer"
)

// blockKey names a block in one of its two forms. It holds everything that the pointer says of the block, so a pointer that says
// something else of the same place is another key, and its block fails the checks of its own fetch.
type blockKey struct {
	region string
	blob   pointer.BlobID
	class  uint32
	offset uint64
	length uint32
	rawLen uint32
	crc    uint32
	codec  pointer.Codec
	// raw: the decompressed block.
	raw bool
}

func keyOf(p *pointer.Pointer, raw bool) blockKey {
	return blockKey{
		region: p.Region, blob: p.Blob, class: p.Class, offset: p.BlockOffset, length: p.BlockLen, rawLen: p.BlockRawLen,
		crc: p.BlockCRC, codec: p.Codec, raw: raw,
	}
}

// flight is the key's name among the fetches that are going on.
func (k *blockKey) flight() string {
	b := make([]byte, 0, 64)
	b = append(b, k.blob[:]...)
	b = binary.LittleEndian.AppendUint64(b, k.offset)
	for _, v := range []uint32{k.class, k.length, k.rawLen, k.crc} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	b = append(b, byte(k.codec), 0)
	if k.raw {
		b[len(b)-1] = 1
	}
	return string(append(b, k.region...))
}

// block is a block that was checked. It is immutable.
type block struct {
	data []byte
	// category is the first frame's; empty for a decompressed block, which has many.
	category string
}

// blockOverhead is counted for a block in the cache beside its data.
const blockOverhead = 256

func (b *block) size() int64 { return int64(len(b.data)) + blockOverhead }

// cache keeps the blocks that were used last, within a bound of bytes.
type cache struct {
	limit int64
	mu    struct {
		sync.Mutex
		lru   *simplelru.LRU[blockKey, *block]
		bytes int64
	}
}

func newCache(limit int64) (*cache, error) {
	c := &cache{limit: limit}
	var err error
	// The bound is on bytes; the callback runs under mu, in the calls below.
	c.mu.lru, err = simplelru.NewLRU(math.MaxInt, func(_ blockKey, b *block) { c.mu.bytes -= b.size() })
	return c, err
}

func (c *cache) get(k blockKey) *block {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, _ := c.mu.lru.Get(k)
	return b
}

// add keeps a block, unless it is larger than the whole cache. Others make room first, so the bound holds at any time.
func (c *cache) add(k blockKey, b *block) {
	if b.size() > c.limit {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lru.Remove(k)
	for c.mu.bytes+b.size() > c.limit {
		c.mu.lru.RemoveOldest()
	}
	c.mu.lru.Add(k, b)
	c.mu.bytes += b.size()
}

func (c *cache) stats() (blocks int, bytes int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.lru.Len(), c.mu.bytes
}

func (c *cache) clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.lru.Purge()
}
