package pebblelog

import (
	"bytes"
	"context"
	"errors"

	"github.com/cockroachdb/pebble/v2"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// Annotate implements metalog.Log.
func (e *Engine) Annotate(ctx context.Context, notes []metalog.Annotation) (int, error) {
	o := &annotateOp{notes: notes}
	if err := e.runOp(ctx, metalog.ValidateAnnotations(notes), o); err != nil {
		return 0, err
	}
	e.metrics.annotations.Add(float64(o.kept))
	return o.kept, nil
}

// annotateOp keeps annotations. They are not in the synced batch, because nobody waits until they are durable.
type annotateOp struct {
	notes []metalog.Annotation
	kept  int
}

// pendingNote is an encoded annotation that will be written.
type pendingNote struct {
	sh    *shardEntry
	lsn   record.LSN
	key   []byte
	value []byte
}

func (o *annotateOp) stage(c *logCommitter) error {
	for i := range o.notes {
		n := &o.notes[i]
		sh, st, err := c.e.table.currentState(n.Shard)
		if err != nil {
			return err
		}
		if n.LSN < st.First || n.LSN >= st.Next {
			continue
		}
		key := schema.AppendAnnotationKey(make([]byte, 0, schema.AnnotationKeyLen), n.Shard, uint8(n.Kind), n.LSN)
		value := schema.AppendAnnotation(make([]byte, 0, schema.AnnotationOverhead+len(n.Data)), key, n.Data)
		c.notes = append(c.notes, pendingNote{sh, n.LSN, key, value})
		c.noteBytes += len(key) + len(value)
		o.kept++
	}
	return nil
}

// writeNotes writes the annotations of the group after its batch. It skips records that the group trimmed or erased.
func (c *logCommitter) writeNotes() error {
	if len(c.notes) == 0 {
		return nil
	}
	b := c.e.db.NewBatch()
	var err error
	for _, n := range c.notes {
		if n.lsn >= n.sh.cur.First && n.lsn < n.sh.cur.Next {
			err = errors.Join(err, b.Set(n.key, n.value, nil))
		}
	}
	clear(c.notes)
	c.notes, c.noteBytes = c.notes[:0], 0
	return errors.Join(err, b.Commit(pebble.NoSync), b.Close())
}

// Annotations implements metalog.Log.
func (e *Engine) Annotations(
	ctx context.Context, shard record.ShardID, from, to record.LSN, kind metalog.AnnotationKind, maxBytes int,
) (notes []metalog.Annotation, until record.LSN, err error) {
	if err := e.enterCall(); err != nil {
		return nil, 0, err
	}
	defer e.leaveCall()
	to, maxBytes, err = metalog.ValidateAnnotationRange(shard, from, to, kind, maxBytes)
	if err != nil {
		return nil, 0, err
	}
	if err := ctx.Err(); err != nil {
		return nil, 0, err
	}
	st, err := e.table.stateOf(shard)
	if err != nil {
		return nil, 0, err
	}
	low, high := max(from, oldestLSN(st)), min(to, st.Next)
	if low >= high {
		return nil, to, nil
	}
	first, last := schema.AppendAnnotationKey(nil, shard, uint8(kind), low), schema.AppendAnnotationKey(nil, shard, uint8(kind), high)
	for it, err := range keysBetween(e.db, first, last, (*pebble.Iterator).Next) {
		var value []byte
		if err == nil {
			low = schema.AnnotationKeyLSN(it.Key(), shard, uint8(kind))
			value, err = it.ValueAndErr()
		}
		if err != nil {
			return nil, 0, readError(shard, low, err)
		}
		data, err := schema.Annotation(it.Key(), value)
		if err != nil {
			e.metrics.badAnnotations.Inc() // a damaged annotation counts as missing
			continue
		}
		if len(notes) > 0 && len(data) > maxBytes {
			return notes, low, nil
		}
		maxBytes -= len(data)
		notes = append(notes, metalog.Annotation{Shard: shard, LSN: low, Kind: kind, Data: bytes.Clone(data)})
	}
	return notes, to, nil
}
