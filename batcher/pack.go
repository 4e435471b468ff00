package batcher

import (
	"cmp"
	"slices"
)

// maxBlockFactor bounds a block that payloads of one category share, in multiples of Config.BlockBytes: the more of one category
// a block holds the better it compresses, and the more a reader of one of its shards fetches in vain.
const maxBlockFactor = 4

// packBlocks puts payloads of one flush into blocks. Those of a category are neighbours, and blocks begin with a category where that does
// not make them small: like is compressed with like. A payload of target bytes or more has a block of its own. It reorders payloads.
func packBlocks(payloads []*payload, target int) (blocks []*block) {
	slices.SortStableFunc(payloads, func(x, y *payload) int { return cmp.Compare(x.batch.shard, y.batch.shard) })
	from, raw := 0, 0 // the block that takes more
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
		case raw+pl.bytes > maxBlockFactor*target,
			raw >= target && payloads[i-1].batch.shard.Category() != pl.batch.shard.Category():
			end(i)
		}
		raw += pl.bytes
	}
	end(len(payloads))
	return blocks
}
