package recovery

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"

	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/blob"
	"scribe/storage/blob/layout"
)

// maxScan bounds the length of damaged blobs that are inspected, since they are read as a whole.
const maxScan = 256 << 20

// scanning limits the damaged blobs in memory to one.
var scanning sync.Mutex

// inspectDamaged inspects a blob whose footer is lost. The header and the blocks are still there, and frames describe themselves,
// except for their pointer's position in a log. Unreadable parts are skipped. The error is the store's.
func inspectDamaged(ctx context.Context, store blob.Store, info blob.Info) ([]Contents, error) {
	if info.Size < layout.HeaderLen || info.Size > maxScan {
		return nil, nil
	}
	scanning.Lock()
	defer scanning.Unlock()
	data := make([]byte, info.Size)
	err := store.ReadAt(ctx, info.Key, data, 0)
	switch {
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrRange):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look into %s: %w", info.Key, err)
	}
	if string(data[:8]) != "SCRBLOB1" {
		return nil, nil
	}
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(pointer.MaxBlockRaw))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return lookInto(d, data[layout.HeaderLen:]), nil
}

var zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

type contentsKey struct {
	category string
	shard    uint32
}

// lookInto finds the frames in consecutive blocks. A frame may continue in the next zstd frame of its block.
func lookInto(d *zstd.Decoder, data []byte) []Contents {
	found := map[contentsKey]*Contents{}
	var raw []byte // decompressed bytes that are not divided into frames yet
	for len(data) > 0 {
		if n := zstdFrame(data); n > 0 {
			if out, err := d.DecodeAll(data[:n], nil); err == nil {
				raw = countFrames(found, append(raw, out...))
			} else {
				raw = nil
			}
			data = data[n:]
			continue
		}
		raw = nil
		if rest := countFrames(found, data); len(rest) < len(data) {
			data = rest // an uncompressed block
			continue
		}
		next := bytes.Index(data[1:], zstdMagic)
		if next < 0 {
			break
		}
		data = data[1+next:]
	}
	return slices.SortedFunc(func(yield func(Contents) bool) {
		for c := range maps.Values(found) {
			if !yield(*c) {
				return
			}
		}
	}, func(a, b Contents) int {
		return cmp.Or(cmp.Compare(a.Category, b.Category), cmp.Compare(a.Shard, b.Shard))
	})
}

// countFrames counts the frames at the front of b, and returns the rest.
func countFrames(found map[contentsKey]*Contents, b []byte) []byte {
	for len(b) > 0 {
		h, err := record.Check(b)
		if err != nil {
			break
		}
		k := contentsKey{h.CategoryName(), h.Shard}
		if found[k] == nil {
			found[k] = &Contents{Category: k.category, Shard: k.shard}
		}
		found[k].Frames++
		found[k].Messages += h.Count
		b = b[h.Len:]
	}
	return b
}

// zstdFrame returns the length of the zstd frame at the front of b (RFC 8878); 0 if there is no complete one.
func zstdFrame(b []byte) int {
	var h zstd.Header
	if !bytes.HasPrefix(b, zstdMagic) || h.Decode(b) != nil || h.Skippable {
		return 0
	}
	at := h.HeaderSize
	for last := false; !last; {
		if at+3 > len(b) {
			return 0
		}
		block := uint32(b[at]) | uint32(binary.LittleEndian.Uint16(b[at+1:]))<<8
		last = block&1 != 0
		size := int(block >> 3)
		if block>>1&3 == 1 { // one repeated byte
			size = 1
		}
		at += 3 + size
	}
	if h.HasCheckSum {
		at += 4
	}
	if at > len(b) {
		return 0
	}
	return at
}
