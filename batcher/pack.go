package batcher

import (
	"cmp"
	"slices"
)

// maxBlockFactor bounds a block that payloads of one category share, as a multiple of Config.BlockBytes. More data of one
// category in a block compresses better, but a reader of one shard fetches more bytes that it does not need.
const maxBlockFactor = 4

// packBlocks packs payloads of one flush into blocks. To compress similar data together, it sorts payloads by category, and
// begins a new block with a new category unless that makes blocks small, or either is encrypted: a block has one key. A payload of target bytes
// or more has a block of its own. It reorders payloads.
func packBlocks(payloads []*payload, target int) (blocks []*block) {
	slices.SortStableFunc(payloads, func(x, y *payload) int { return cmp.Compare(x.batch.shard, y.batch.shard) })
	from, raw, encrypted := 0, 0, false // start and size of the open block, and whether a payload in it is
	end := func(to int) {
		if to > from {
			blocks = append(blocks, newBlock(payloads[from:to:to]))
		}
		from, raw, encrypted = to, 0, false
	}
	for i, pl := range payloads {
		switch {
		case pl.bytes >= target:
			end(i)
			end(i + 1)
			continue
		case raw+pl.bytes > maxBlockFactor*target,
			raw >= target && payloads[i-1].batch.shard.Category() != pl.batch.shard.Category(),
			(encrypted || pl.key != nil) && payloads[from].batch.shard.Category() != pl.batch.shard.Category():
			end(i)
		}
		raw += pl.bytes
		encrypted = encrypted || pl.key != nil
	}
	end(len(payloads))
	return blocks
}
