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

// ErrNotSequenced means that batches with identifiers were asked for of a category that is not sequenced.
var ErrNotSequenced = errors.New("consumer: the category is not sequenced")

// DefaultSequencedBytes bounds the payloads of a batch that has no other bound of bytes.
const DefaultSequencedBytes = 64 << 20

// BatchSize says where the batches of [Consumer.SequencedBatches] end: as soon as one of these is reached. All of them depend on what is in
// the category and on nothing else, so the same size cuts the same batches however often, and whenever, they are read. Zero is no bound, but
// for Bytes; Messages, Pointers or Span must be set.
type BatchSize struct {
	// Messages is how many messages a batch has. Atomic batches of producers are not cut: a batch goes on to their end.
	Messages int
	// Pointers is how many payloads a batch has, or the rest of the one that it begins in.
	Pointers int
	// Bytes is how many bytes of messages (payloads and keys) a batch has at least when it is ended by them; the default is
	// [DefaultSequencedBytes]. Together with the prefetch it bounds the memory of a consumer.
	Bytes int64
	// Span is how far apart in persisted time ([Record.Persisted]) the messages of a batch may be. A batch that is not full is yielded when it
	// is certain that nothing more of its span will come, so this bounds how long messages wait.
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

// SequencedBatch is a row of messages of a sequenced category.
type SequencedBatch struct {
	// ID is the number of the first message ([Record.Offset]): it is unique, grows from batch to batch, and is the same whenever a batch
	// is read from the same position. With the same [BatchSize] (and logical shards) the messages are the same, too.
	ID uint64
	// Records are the messages, in order. They and their memory are the caller's to keep, and must not be changed.
	Records []Record
}

// SequencedBatches yields the messages of a sequenced category in batches with identifiers, so that who processes them can tell what was
// processed before: read, process, write what came of it under [producer, identifier], keep the [Consumer.Checkpoint]. After a crash the batches
// behind the last checkpoint come again, as they were, and what was written of them is recognised. Change the size only when everything that
// was written is behind a checkpoint.
//
// It is otherwise as [Consumer.Records], but that nothing is yielded which does not fill a batch: with [WithUntilEnd] the rest stays for the next
// iteration, and with it the checkpoint. A gap ends the batch before it. Other categories fail with [ErrNotSequenced].
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
		s, err := c.beginIteration(ctx)
		if err != nil {
			refuse(err)
			return
		}
		defer c.endIteration(s)
		b := &batchBuilder{c: c, size: size, yield: yield, refuse: refuse}
		for goOn := true; goOn; {
			if c.cfg.onPause != nil && s.queue.wouldWait() {
				c.cfg.onPause()
			}
			it, err := s.queue.waitItem(s.ctx)
			if err != nil {
				refuse(iterationError(err))
				return
			}
			if goOn = b.takeItem(it); goOn {
				s.queue.popItem()
				s.startFetches()
			}
		}
	}
}

// batchBuilder puts batches together.
type batchBuilder struct {
	c      *Consumer
	size   BatchSize
	yield  func(*SequencedBatch, error) bool
	refuse func(error) bool

	records  []Record
	pointers int
	bytes    int64
	began    int64 // persisted time of the first message, Unix microseconds
	// pos, lsn and skip are the place behind the last of the records. The consumer's own place is in front of the first one until they are
	// yielded.
	pos  *shardPosition
	lsn  record.LSN
	skip uint32
}

// takeItem takes the next item of the queue; it is false when the iteration is over.
func (b *batchBuilder) takeItem(it *streamItem) bool {
	switch it.kind {
	case itemPayload:
		return b.addPayload(it)
	case itemGap:
		return b.yieldBatch() && b.c.tellGapAt(it, it.gap, b.refuse)
	case itemPassed:
		if len(b.records) == 0 {
			b.c.passItem(it)
		}
	case itemWatermark:
		b.c.mu.Lock()
		b.c.mu.watermark = max(b.c.mu.watermark, it.Time)
		b.c.mu.Unlock()
		return !b.spanEnded(it.Time) || b.yieldBatch()
	case itemSkipped: // only with a filter, which is refused
	case itemOpened:
		if b.c.cfg.onPause != nil {
			b.c.cfg.onPause()
		}
	case itemEnd:
		if it.Err != nil {
			b.refuse(it.Err)
		}
		return false
	}
	return true
}

// spanEnded reports whether what is persisted at a time is behind the batch's span.
func (b *batchBuilder) spanEnded(at int64) bool {
	return len(b.records) > 0 && b.size.Span > 0 && at >= b.began+b.size.Span.Microseconds()
}

// yieldBatch yields the batch, if there is one.
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

// addPayload takes a payload.
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
	it.Keep = true // batches point into it
	it.Left.Store(int64(it.Messages - min(b.c.skipOf(it), it.Messages)))
	goOn := b.c.deliverRecords(it, func(r Record, _ error) bool { return b.addMessage(it, &r) }, func(gap error) bool { return b.tellLoss(it, gap) })
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

// handleDamage deals with a payload that can't be delivered, or not further. A batch that it would be in is yielded only if the damage is passed
// over, else it stays to be read again.
func (b *batchBuilder) handleDamage(it *streamItem) bool {
	if b.c.cfg.damage == DamageSkip && errors.Is(it.Err, ErrDamaged) && !b.yieldBatch() {
		return false
	}
	return b.c.handleDamage(it, it.Err, b.refuse)
}

// addMessage adds a message, and yields the batch if that fills it.
func (b *batchBuilder) addMessage(it *streamItem, r *Record) bool {
	if len(b.records) == 0 {
		b.began, b.pos = it.Time, it.pos
	}
	b.records = append(b.records, *r)
	b.bytes += int64(len(r.Payload) + len(r.Key))
	b.lsn, b.skip = it.placeAfter(r.Index + 1)
	full := b.size.Messages > 0 && len(b.records) >= b.size.Messages || b.bytes >= b.size.Bytes
	return !full || r.BatchLeft > 0 || b.yieldBatch()
}

// tellLoss yields what an upstream says of messages that it dropped: a gap, which ends the batch before it.
func (b *batchBuilder) tellLoss(it *streamItem, gap error) bool {
	if !b.yieldBatch() {
		return false
	}
	b.c.mu.Lock()
	it.pos.lsn, it.pos.skip = it.placeAfter(int(int64(it.Messages) - it.Left.Load()))
	b.c.mu.Unlock()
	return b.refuse(gap)
}

// placeAfter is the place behind so many messages of an item's payload.
func (it *streamItem) placeAfter(messages int) (record.LSN, uint32) {
	if messages >= int(it.ptr.Messages) {
		return it.LSN + 1, 0
	}
	return it.LSN, uint32(messages) //nolint:gosec // a payload's messages are counted in 32 bits
}

// newRecord is what all messages of the item's payload have.
func (it *streamItem) newRecord() Record {
	return Record{
		Time: time.UnixMicro(0), Persisted: time.UnixMicro(it.Time),
		LogicalShard: uint32(it.Source.Logical()), Shard: it.pos.shard, LSN: uint64(it.LSN),
	}
}

// offsetOf is that of a message in a sequenced category.
func (it *streamItem) offsetOf(index int) uint64 {
	if it.Source == it.pos.shard {
		return 0
	}
	return it.offset + uint64(index) //nolint:gosec // not negative
}

// setSource takes where an entry of a category, in shard q, was written.
func (it *streamItem) setSource(category string, q *shardPosition, e *scribev1.StreamEntry) {
	it.Category, it.Shard = category, q.shard
	if it.Source, it.SourceLSN = q.shard, it.LSN; sequenced.IsLog(q.shard) {
		it.Source, it.SourceLSN, it.offset = record.ShardID(e.GetSourceShard()), record.LSN(e.GetSourceLsn()), e.GetOffset()
	}
}

// wantsSource reports whether the messages of a source are wanted.
func (c *Consumer) wantsSource(source record.ShardID) bool {
	return c.wanted == nil || c.wanted[uint32(source.Logical())]
}

// passItem moves the place behind an item of which nothing is delivered.
func (c *Consumer) passItem(it *streamItem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it.pos.lsn, it.pos.skip = it.LSN+1, 0
}
