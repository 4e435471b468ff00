package batcher

import (
	"cmp"
	"slices"
)

// maxBlockFactor bounds a block that payloads of one category share, as a multiple of Config.BlockBytes. More data of one
// category in a block compresses better, but a reader of one shard fetches more bytes that it does not need.
const maxBlockFactor = 4

// mustPart reports whether neighbours are in different blocks. full: the block before is large enough.
func mustPart(before, after *payload, full bool) bool {
	return before.batch.shard.Category() != after.batch.shard.Category() && (full || before.key != nil || after.key != nil)
}

// packBlocks packs payloads of one flush into blocks. To compress similar data together, it sorts payloads by category, and
// begins a new block with a new category unless that makes blocks small, or either is encrypted: a block has one key. A payload of target bytes
// or more has a block of its own. It reorders payloads.
func packBlocks(payloads []*payload, target int) (blocks []*block) {
	slices.SortStableFunc(payloads, func(x, y *payload) int { return cmp.Compare(x.batch.shard, y.batch.shard) })
	from, raw := 0, 0 // start and size of the open block
	end := func(to int) {
		if to > from {
			blocks = append(blocks, newBlock(payloads[from:to:to]))
		}
		from, raw = to, 0
	}
	for i, pl := range payloads {
		switch {
		case pl.bytes >= target:
			end(i)
			end(i + 1)
			continue
		case raw+pl.bytes > maxBlockFactor*target, i > from && mustPart(payloads[i-1], pl, raw >= target):
			end(i)
		}
		raw += pl.bytes
	}
	end(len(payloads))
	return blocks
}
