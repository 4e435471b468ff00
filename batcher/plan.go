package batcher

import (
	"cmp"
	"slices"
)

// maxBlockFactor bounds a block that payloads of one category share, in multiples of Config.BlockBytes: the more of one category
// a block holds the better it compresses, and the more a reader of one of its shards fetches in vain.
const maxBlockFactor = 4

// pack puts payloads into blocks. Those of a category are neighbours, and blocks begin with a category where that does not make
// them small: like is compressed with like. A payload of target bytes or more has a block of its own. It reorders payloads.
func pack(payloads []*payload, target int) []*block {
	slices.SortStableFunc(payloads, func(x, y *payload) int {
		return cmp.Or(cmp.Compare(x.class, y.class), cmp.Compare(x.group.shard, y.group.shard))
	})
	var (
		blocks []*block
		b      *block // takes more; nil when the next payload begins one
	)
	for _, pl := range payloads {
		if pl.bytes >= target {
			blocks = append(blocks, &block{class: pl.class, payloads: []*payload{pl}, raw: pl.bytes})
			continue
		}
		if b != nil {
			before := b.payloads[len(b.payloads)-1]
			switch {
			case b.class != pl.class,
				b.raw+pl.bytes > maxBlockFactor*target,
				b.raw >= target && before.group.shard.Category() != pl.group.shard.Category():
				b = nil
			}
		}
		if b == nil {
			b = &block{class: pl.class}
			blocks = append(blocks, b)
		}
		b.payloads = append(b.payloads, pl)
		b.raw += pl.bytes
	}
	return blocks
}
