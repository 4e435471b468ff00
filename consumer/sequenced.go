package consumer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
)

// ErrNotSequenced means that [Consumer.SequencedBatches] was called for a category that is not sequenced.
var ErrNotSequenced = errors.New("consumer: the category is not sequenced")

// DefaultSequencedBytes is the default of [BatchSize].Bytes.
const DefaultSequencedBytes = 64 << 20

// BatchSize sets where the batches of [Consumer.SequencedBatches] end: as soon as one of its bounds is reached. The bounds depend
// only on the content of the category, so the same size always cuts the same batches, however often and whenever they are read.
// Zero means no bound, except for Bytes; Messages, Pointers or Span must be set.
type BatchSize struct {
	// Messages is the number of messages in a batch. Atomic batches of producers are not cut: a batch extends to their end.
	Messages int
	// Pointers is the number of payloads in a batch. The rest of the payload that a batch begins in counts as one.
	Pointers int
	// Bytes ends a batch that has at least as many bytes of messages (payloads and keys); the default is [DefaultSequencedBytes].
	// Together with the prefetch it bounds the memory of a consumer.
	Bytes int64
	// Span is the greatest distance in persisted time ([Record.Persisted]) between messages of a batch. A batch that is not full
	// is yielded when no more messages of its span can come, so Span bounds how long messages wait.
	Span time.Duration
}

func (s BatchSize) validate() error {
	var errs []error
	if s.Messages < 0 || s.Pointers < 0 || s.Bytes < 0 || s.Span < 0 {
		errs = append(errs, fmt.Errorf("consumer: SequencedBatches: %+v: a bound is negative", s))
	}
	if s.Messages == 0 && s.Pointers == 0 && s.Span == 0 {
		errs = append(errs, errors.New("consumer: SequencedBatches: Messages, Pointers or Span must be above 0"))
	}
	return errors.Join(errs...)
}

// SequencedBatch is a run of messages of a sequenced category.
type SequencedBatch struct {
	// ID is the number of the first message ([Record.Offset]): it is unique, increases from batch to batch, and is the same
	// whenever a batch is read from the same position. With the same [BatchSize] (and logical shards), the messages are the same,
	// too.
	ID uint64
	// Records are the messages, in order. The caller may keep them and their memory, but must not change them.
	Records []Record
}

// SequencedBatches yields the messages of a sequenced category in batches with identifiers, by which a program detects what it
// has already processed: read, process, write the results under [producer, identifier], store the [Consumer.Checkpoint]. After a
// crash the batches after the last checkpoint come again unchanged, and their results are recognized. Change the size only when a
// checkpoint covers everything that was written.
//
// It is otherwise like [Consumer.Records], except that it yields only full batches: with [WithUntilEnd] the rest stays for the
// next iteration, and the checkpoint stays before it. A gap ends the batch before it. Other categories fail with
// [ErrNotSequenced].
func (c *Consumer) SequencedBatches(ctx context.Context, size BatchSize) iter.Seq2[*SequencedBatch, error] {
	return func(yield func(*SequencedBatch, error) bool) {
		refuse := func(err error) bool { return yield(nil, err) }
		if err := size.validate(); err != nil {
			refuse(err)
			return
		}
		if c.hasFilter() {
			refuse(ErrFiltered)
			return
		}
		if size.Bytes == 0 {
			size.Bytes = DefaultSequencedBytes
		}
		b := &batchBuilder{c: c, size: size, yield: yield, refuse: refuse}
		c.runIteration(ctx, refuse, b.takeItem)
	}
}

// batchBuilder builds batches.
type batchBuilder struct {
	c      *Consumer
	size   BatchSize
	yield  func(*SequencedBatch, error) bool
	refuse func(error) bool

	records  []Record
	pointers int
	bytes    int64
	began    int64 // persisted time of the first message, Unix microseconds
	// pos, lsn and skip are the position after the last of the records. The consumer's own position stays before the first record
	// until the batch is yielded.
	pos  *shardPosition
	lsn  record.LSN
	skip uint32
}

// takeItem handles the next item of the queue; it is false when the iteration is over.
func (b *batchBuilder) takeItem(it *streamItem) bool {
	switch {
	case it.kind == itemPayload:
		return b.addPayload(it)
	case it.kind == itemGap && !b.yieldBatch():
		return false
	case it.kind == itemPassed && len(b.records) > 0:
		return true
	}
	goOn := b.c.takeItem(it, b.refuse, nil)
	if it.kind == itemWatermark && b.spanEnded(it.Time) {
		return b.yieldBatch()
	}
	return goOn
}

// spanEnded reports whether a persisted time is after the batch's span.
func (b *batchBuilder) spanEnded(at int64) bool {
	return len(b.records) > 0 && b.size.Span > 0 && at >= b.began+b.size.Span.Microseconds()
}

// yieldBatch yields the batch, unless it is empty.
func (b *batchBuilder) yieldBatch() bool {
	if len(b.records) == 0 {
		return true
	}
	out := &SequencedBatch{ID: b.records[0].Offset, Records: b.records}
	b.c.mu.Lock()
	b.pos.lsn, b.pos.skip = b.lsn, b.skip
	b.c.mu.Unlock()
	b.c.stats.records.Add(uint64(len(out.Records)))
	b.records, b.pointers, b.bytes = nil, 0, 0
	return b.yield(out, nil)
}

// addPayload adds the messages of a payload.
func (b *batchBuilder) addPayload(it *streamItem) bool {
	switch {
	case !sequenced.IsLog(it.pos.shard):
		b.refuse(fmt.Errorf("%w: %s", ErrNotSequenced, b.c.category))
		return false
	case it.gap != nil:
		return b.yieldBatch() && b.c.tellGapAt(it, it.gap, b.refuse)
	case it.Err != nil:
		return b.handleDamage(it)
	case b.spanEnded(it.Time) && !b.yieldBatch():
		return false
	}
	b.c.stats.payloads.Add(1)
	it.Keep = true // batches refer to its memory
	it.Left.Store(int64(it.Messages - min(b.c.skipOf(it), it.Messages)))
	goOn := b.c.deliverRecords(it, func(r Record, _ error) bool { return b.addRecord(it, &r) }, nil, func(gap error) bool { return b.tellLoss(it, gap) })
	if goOn && it.Err != nil {
		return b.handleDamage(it)
	}
	if goOn && len(b.records) > 0 {
		b.lsn, b.skip = it.LSN+1, 0
		if b.pointers++; b.size.Pointers > 0 && b.pointers >= b.size.Pointers {
			return b.yieldBatch()
		}
	} else if goOn {
		b.c.passItem(it)
	}
	return goOn
}

// handleDamage handles a payload that can't be delivered, or only in part. The batch that it would belong to is yielded only if
// the damage is skipped; otherwise it is read again later.
func (b *batchBuilder) handleDamage(it *streamItem) bool {
	if b.c.cfg.damage == DamageSkip && errors.Is(it.Err, ErrDamaged) && !b.yieldBatch() {
		return false
	}
	return b.c.handleDamage(it, it.Err, b.refuse)
}

// addRecord adds a message, and yields the batch if it is full.
func (b *batchBuilder) addRecord(it *streamItem, r *Record) bool {
	if len(b.records) == 0 {
		b.began, b.pos = it.Time, it.pos
	}
	b.records = append(b.records, *r)
	b.bytes += int64(len(r.Payload) + len(r.Key))
	b.lsn, b.skip = it.placeAfter(r.Index + 1)
	full := b.size.Messages > 0 && len(b.records) >= b.size.Messages || b.bytes >= b.size.Bytes
	return !full || r.BatchLeft > 0 || b.yieldBatch()
}

// tellLoss yields the gap of a loss report, which ends the batch before it.
func (b *batchBuilder) tellLoss(it *streamItem, gap error) bool {
	if !b.yieldBatch() {
		return false
	}
	b.c.mu.Lock()
	it.pos.lsn, it.pos.skip = it.placeAfter(int(int64(it.Messages) - it.Left.Load()))
	b.c.mu.Unlock()
	return b.refuse(gap)
}

// placeAfter returns the position after a number of messages of an item's payload.
func (it *streamItem) placeAfter(messages int) (record.LSN, uint32) {
	if messages >= int(it.Messages) {
		return it.LSN + 1, 0
	}
	return it.LSN, uint32(messages) //nolint:gosec // a payload's messages are counted in 32 bits
}

// newRecord returns a Record with the fields that all messages of the item's payload share.
func (it *streamItem) newRecord() Record {
	return Record{
		Time: time.UnixMicro(0), Persisted: time.UnixMicro(it.Time),
		LogicalShard: uint32(it.Source.Logical()), Shard: it.pos.shard, LSN: uint64(it.LSN),
	}
}

// offsetOf returns the number of a message in a sequenced category; 0 in others.
func (it *streamItem) offsetOf(index int) uint64 {
	if it.Source == it.pos.shard {
		return 0
	}
	return it.offset + uint64(index) //nolint:gosec // not negative
}

// setSource sets where an entry of the category, in shard q, was written.
func (it *streamItem) setSource(category string, q *shardPosition, e *scribev1.StreamEntry) {
	it.Category, it.Shard = category, q.shard
	if it.Source, it.SourceLSN = q.shard, it.LSN; sequenced.IsLog(q.shard) {
		it.Source, it.SourceLSN, it.offset = record.ShardID(e.GetSourceShard()), record.LSN(e.GetSourceLsn()), e.GetOffset()
	}
}

// wantsSource reports whether the set has the messages of a source.
func (s *shardSet) wantsSource(source record.ShardID) bool { return s.has(uint32(source.Logical())) }

// wantsLog reports whether messages of a log are read. A sequenced log holds all logical shards.
func (s *shardSet) wantsLog(id record.ShardID) bool {
	return sequenced.Reserved(id) || s.wantsSource(id)
}

// passItem moves the position after an item that is not delivered.
func (c *Consumer) passItem(it *streamItem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it.pos.lsn, it.pos.skip = it.LSN+1, 0
}
