package pebblelog

import (
	"fmt"
	"maps"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// knownProducers bounds the producer states that the committer caches, about 150 bytes each.
const knownProducers = 1 << 16

// tickOp changes nothing: building its batch moves the clock's bound when that is due.
type tickOp struct{}

func (tickOp) stage(c *logCommitter) error {
	c.e.ticking.Store(false)
	return nil
}

type openOp struct {
	shards []record.ShardID
	out    []metalog.State
}

func (o *openOp) stage(c *logCommitter) error {
	if err := o.checkRetired(c); err != nil {
		return err
	}
	found, err := c.e.table.getShards(o.shards)
	if err != nil {
		return err
	}
	for i, sh := range found {
		id := o.shards[i]
		if sh == nil {
			sh = c.e.table.createShard(id)
		}
		if !sh.cur.Sealed {
			sh.cur.Epoch++
			sh.cur.Removed = false
			c.markDirty(sh)
		}
		o.out[i] = publicState(id, sh.cur, c.now)
	}
	return nil
}

// checkRetired refuses shards of retired categories.
func (o *openOp) checkRetired(c *logCommitter) error {
	var refusals []metalog.Refusal
	for _, id := range o.shards {
		if len(refusals) >= metalog.MaxConflicts || !c.retired.holds(id.Category()) {
			continue
		}
		_, st, err := c.e.table.currentState(id)
		if err != nil {
			return err
		}
		refusals = append(refusals, metalog.Refusal{Err: metalog.ErrSealed, State: publicState(id, st, c.now)})
	}
	return refusalError(refusals)
}

// refusalError returns the error of a call that shards refuse; nil for none.
func refusalError(refusals []metalog.Refusal) error {
	if len(refusals) == 0 {
		return nil
	}
	return &metalog.RefusedError{Refusals: refusals}
}

type appendOp struct {
	a   *metalog.Append
	out []metalog.Appended

	shards []*shardEntry
	// size bounds the bytes of the changes; only a replica uses it.
	size int
}

func (o *appendOp) stage(c *logCommitter) error {
	if o.a.OldestBlob != 0 && o.a.OldestBlob < c.boundary {
		return fmt.Errorf("%w: the oldest blob is of %d, the boundary is %d", metalog.ErrStaleBlob, o.a.OldestBlob, c.boundary)
	}
	if err := o.findShards(c); err != nil {
		return err
	}
	if err := c.checkSequences(o.a, o.shards); err != nil {
		return err
	}
	// From here on nothing can be refused.
	for i, sh := range o.shards {
		o.out[i] = metalog.Appended{FirstLSN: c.appendRecords(sh, o.a.Shards[i].Records), Time: c.now}
	}
	maps.Copy(c.producers, c.overlay)
	return nil
}

// findShards finds the shards and checks that each accepts records from this writer at this LSN.
func (o *appendOp) findShards(c *logCommitter) error {
	var refusals []metalog.Refusal
	for i := range o.a.Shards {
		s := &o.a.Shards[i]
		sh, st, err := c.e.table.currentState(s.Shard)
		if err != nil {
			return err
		}
		var why error
		switch {
		case st.Sealed, c.retired.holds(s.Shard.Category()):
			why = metalog.ErrSealed
		case s.Epoch != st.Epoch, st.Removed:
			why = metalog.ErrFenced
		case s.ExpectLSN != 0 && s.ExpectLSN != st.Next:
			why = metalog.ErrConflict
		}
		if why != nil && len(refusals) < metalog.MaxConflicts {
			refusals = append(refusals, metalog.Refusal{Err: why, State: publicState(s.Shard, st, c.now)})
		}
		o.shards[i] = sh
	}
	return refusalError(refusals)
}

// appendRecords adds records to the batch and to the shard's state after it.
func (c *logCommitter) appendRecords(sh *shardEntry, records [][]byte) record.LSN {
	first := sh.cur.Next
	for i, data := range records {
		op := c.batch.SetDeferred(schema.RecordKeyLen, schema.RecordOverhead+len(data))
		schema.AppendRecordKey(op.Key[:0], sh.id, first+record.LSN(i)) // op.Key has its length
		schema.PutRecord(op.Value, op.Key, c.now, data)
		_ = op.Finish() // fails only in indexed batches
	}
	sh.cur.Next += record.LSN(len(records))
	sh.cur.LastTime = c.now
	c.markDirty(sh)
	if c.e.watchers.follows(sh.id) {
		c.tails = append(c.tails, newTailChunk(sh.id, first, c.now, records))
	}
	return first
}

type trimOp struct {
	shard  record.ShardID
	before record.LSN
}

type trimmedRange struct {
	sh           *shardEntry
	from, before record.LSN
}

func (o *trimOp) stage(c *logCommitter) error {
	sh, st, err := c.e.table.currentState(o.shard)
	if err != nil {
		return err
	}
	if o.before > st.Next {
		return fmt.Errorf("%w: shard %v: can't trim below LSN %d, the tail is %d", metalog.ErrInvalid, o.shard, o.before, st.Next)
	}
	if o.before <= st.First {
		return nil
	}
	c.trims = append(c.trims, trimmedRange{sh: sh, from: sh.cur.First, before: o.before})
	sh.cur.First = o.before
	c.markDirty(sh)
	return nil
}

type sealOp struct {
	shard record.ShardID
	out   metalog.State
}

func (o *sealOp) stage(c *logCommitter) error {
	sh, st, err := c.e.table.currentState(o.shard)
	if err != nil {
		return err
	}
	if st.Epoch == 0 {
		return fmt.Errorf("%w: shard %v does not exist", metalog.ErrInvalid, o.shard)
	}
	if !sh.cur.Sealed {
		sh.cur.Sealed = true
		c.markDirty(sh)
	}
	o.out = publicState(o.shard, sh.cur, c.now)
	return nil
}

type boundaryOp struct {
	time int64
	out  int64
}

func (o *boundaryOp) stage(c *logCommitter) error {
	if o.time > c.boundary {
		c.boundary = o.time
		setNumber(c.batch, schema.MetaBoundary, o.time)
	}
	o.out = c.boundary
	return nil
}

// sequencesOp reads through the committer, the only owner of the durable producer states.
type sequencesOp struct {
	shard     record.ShardID
	producers []uint64
	out       []metalog.ProducerState
}

func (o *sequencesOp) stage(c *logCommitter) error {
	clear(c.overlay)
	if _, st, err := c.e.table.currentState(o.shard); err != nil || st.Epoch == 0 {
		// Do not cache states that Pebble still has of an erased shard.
		for i, p := range o.producers {
			o.out[i] = metalog.ProducerState{Producer: p}
		}
		return err
	}
	for i, p := range o.producers {
		known, _, err := c.producerState(producerKey{o.shard, p})
		if err != nil {
			return err
		}
		o.out[i] = known
	}
	return nil
}

type producerKey struct {
	shard    record.ShardID
	producer uint64
}

func (k producerKey) append(dst []byte) []byte {
	return schema.AppendProducerKey(dst, k.shard, k.producer)
}

// checkSequences checks the runs of an append and puts the resulting producer states into c.overlay. It collects all conflicts,
// up to their limit: a refused run changes nothing for later runs.
func (c *logCommitter) checkSequences(a *metalog.Append, shards []*shardEntry) error {
	clear(c.overlay)
	var conflicts []metalog.SequenceConflict
	for i := range a.Shards {
		s := &a.Shards[i]
		last := shards[i].cur.Next + record.LSN(len(s.Records)) - 1
		for _, run := range s.Sequences {
			k := producerKey{s.Shard, run.Producer}
			state, known, err := c.producerState(k)
			if err != nil {
				return err
			}
			next, kind := state.Continue(run)
			if kind == 0 {
				c.overlay[k] = schema.Producer{Epoch: next.Epoch, Next: next.Next, LSN: last, Time: c.now}
				continue
			}
			if len(conflicts) < metalog.MaxConflicts {
				conflicts = append(conflicts, metalog.SequenceConflict{Shard: s.Shard, Kind: kind, Run: run, Known: known})
			}
		}
	}
	if len(conflicts) > 0 {
		return &metalog.SequenceError{Conflicts: conflicts}
	}
	return nil
}

// producerState returns the state of a producer with and without the append being decided.
func (c *logCommitter) producerState(k producerKey) (now, before metalog.ProducerState, err error) {
	p, ok := c.producers[k]
	if !ok {
		p, ok = c.known.Get(k)
	}
	if !ok {
		p, err = c.loadProducer(k)
		if err != nil {
			return now, before, err
		}
		c.known.Add(k, p)
	}
	before = metalog.ProducerState{Producer: k.producer, Epoch: p.Epoch, Next: p.Next}
	if o, ok := c.overlay[k]; ok {
		return metalog.ProducerState{Producer: k.producer, Epoch: o.Epoch, Next: o.Next}, before, nil
	}
	return before, before, nil
}

// loadProducer reads a producer's state; it is zero for an unknown producer.
func (c *logCommitter) loadProducer(k producerKey) (p schema.Producer, err error) {
	c.key = k.append(c.key[:0])
	p, _, err = lookUp(c.e.db, c.key, schema.DecodeProducer)
	if err != nil {
		err = readError(k.shard, 0, fmt.Errorf("producer %d: %w", k.producer, err))
	}
	return p, err
}
