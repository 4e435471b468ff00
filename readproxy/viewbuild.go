package readproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"scribe/columnar"
	"scribe/columnar/transcode"
	"scribe/columnar/vector"
	"scribe/columnar/zone"
	"scribe/internal/format/loss"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// viewBuild is a payload that is being transcoded into a view. Of all requests for it, the first one makes it; if that request
// ends early, another one does.
type viewBuild struct {
	built chan struct{}
	// block and err are set when built is closed.
	block *checkedBlock
	err   error
}

// errAbandoned ends a build whose request ended. A request that waits for the build takes it over.
var errAbandoned = errors.New("readproxy: the request that made the view ended")

// makeViews makes the views of an answer's items that are not in memory. Concurrent requests for a view share one build. It fails
// only if ctx ends; a view that can't be made has an error of its own.
func (a *fetchAnswer) makeViews(ctx context.Context) error {
	for {
		var mine, others []*answerItem
		for i := range a.items {
			it := &a.items[i]
			if it.err != nil || it.made != nil {
				continue
			}
			var first bool
			if it.encoding, first = a.joinBuild(it); first {
				mine = append(mine, it)
			} else {
				others = append(others, it)
			}
		}
		if err := a.makeOwn(ctx, mine); err != nil {
			return err
		}
		if err := a.awaitBuilds(ctx, others); err != nil {
			return err
		}
		if len(mine)+len(others) == 0 {
			return nil
		}
	}
}

// joinBuild returns the build of an item's view. If first is set, the caller has to make it.
func (a *fetchAnswer) joinBuild(it *answerItem) (e *viewBuild, first bool) {
	v := a.s.views
	key := viewKeyOf(&it.pointer, it.view.ID, a.asked.codec)
	v.mu.Lock()
	defer v.mu.Unlock()
	if e := v.mu.building[key]; e != nil {
		return e, false
	}
	e = &viewBuild{built: make(chan struct{})}
	// A build may have ended after the caller looked into memory: it puts its block there before it leaves the map.
	if e.block, _ = a.keptView(it, it.view); e.block != nil {
		close(e.built)
		return e, false
	}
	v.mu.building[key] = e
	return e, true
}

// endBuild ends a build. Its block is in the cache before the build leaves the map, so no request misses both.
func (a *fetchAnswer) endBuild(it *answerItem, b *checkedBlock, err error) {
	key := viewKeyOf(&it.pointer, it.view.ID, a.asked.codec)
	if err == nil && a.rule.Memory != KeepNever {
		a.s.cache.addBlock(key, b, a.s.isYoung(&it.pointer))
	}
	v := a.s.views
	v.mu.Lock()
	delete(v.mu.building, key)
	v.mu.Unlock()
	e := it.encoding
	it.made, it.encoding = b, nil
	if err != nil && !errors.Is(err, errAbandoned) {
		it.err = err
	}
	e.block, e.err = b, err
	close(e.built)
}

// awaitBuilds waits for the builds of other requests.
func (a *fetchAnswer) awaitBuilds(ctx context.Context, items []*answerItem) error {
	for _, it := range items {
		e := it.encoding
		select {
		case <-e.built:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		it.encoding = nil
		switch {
		case errors.Is(e.err, errAbandoned): // the next round makes it
		case e.err != nil:
			it.err = e.err
		default:
			it.made, it.reused = e.block, true
			if a.rule.Shared == KeepReused {
				a.shareView(it, e.block)
			}
			it.view.Stats.Hits.Add(1)
			a.s.metrics.viewShared.Inc()
		}
	}
	return nil
}

// makeOwn makes views, several at a time. All of their builds have ended when it returns.
func (a *fetchAnswer) makeOwn(ctx context.Context, items []*answerItem) error {
	if len(items) == 0 {
		return nil
	}
	loaded := false
	defer func() {
		if loaded {
			return
		}
		for _, it := range items { // loading has panicked: the waiting requests make the views
			a.endBuild(it, nil, errAbandoned)
		}
	}()
	items = a.viewsFromShared(items)
	for i := range a.jobs {
		a.jobs[i].idle = true
	}
	for _, it := range items {
		a.jobs[it.job].idle = false
	}
	err := a.s.loadBlocks(ctx, a)
	loaded = true
	var g errgroup.Group
	g.SetLimit(cap(a.s.views.slots))
	for _, it := range items {
		if err != nil {
			a.endBuild(it, nil, errAbandoned)
			continue
		}
		g.Go(func() error {
			b, err := a.makeView(ctx, it)
			a.endBuild(it, b, err)
			if err == nil && a.rule.Shared == KeepAlways {
				a.shareView(it, b)
			}
			return nil
		})
	}
	_ = g.Wait() // each item has its own result
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// makeView makes the view of one item when a slot is free.
func (a *fetchAnswer) makeView(ctx context.Context, it *answerItem) (b *checkedBlock, err error) {
	if err := a.checkJob(it); err != nil {
		return nil, err
	}
	slots := a.s.views.slots
	select {
	case slots <- struct{}{}:
		defer func() { <-slots }()
	case <-ctx.Done():
		return nil, errAbandoned
	}
	begin := time.Now()
	err = a.withFrames(it, func(frames []byte) (err error) {
		if ctx.Err() != nil {
			return errAbandoned
		}
		if a.limited == nil && a.s.views.growing.Contains(a.asked.plan.ID) { // found in the meantime
			return errGrows()
		}
		b, err = a.transcodeView(it, frames)
		it.view.Stats.CPU.Add(int64(time.Since(begin)))
		a.s.metrics.viewSeconds.Add(time.Since(begin).Seconds())
		switch p := &it.pointer; {
		case err != nil && a.limited != nil:
			return a.limitError(p, err)
		case errors.Is(err, vector.ErrTooLarge):
			a.findGrowingQuery(it, frames)
			return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s takes too much memory as a view, fetch it RAW: %w", describePayload(p), err)
		case errors.Is(err, columnar.ErrTooLarge):
			return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "%s is too large as a view, fetch it RAW: %w", describePayload(p), err)
		case err != nil:
			return damagedError(p, err)
		}
		return nil
	})
	return b, err
}

// transcodeView transcodes a payload's frames into the block of a view.
func (a *fetchAnswer) transcodeView(it *answerItem, frames []byte) (*checkedBlock, error) {
	if a.limited != nil {
		return a.restrictedView(it, frames)
	}
	rows, losses, err := splitLosses(frames)
	if err != nil {
		return nil, err
	}
	var zones *zone.Builder
	columns := a.zonesOf(it, losses)
	if len(columns) > 0 {
		zones = zone.NewBuilder(a.asked.plan.Definitions)
	}
	t, err := it.view.Tool.transcoderFor(a.asked.plan.Schema, columns)
	if err != nil {
		return nil, fmt.Errorf("view %d: %w", it.view.ID, err)
	}
	batch, stats, err := t.Transcode(rows, zones)
	if err != nil {
		return nil, err
	}
	defer func() { batch.Release() }()
	if len(losses) > 0 {
		shifted := shiftIndex(batch, losses)
		batch.Release()
		batch = shifted
	}
	data, err := columnar.EncodeIPC(make([]byte, 0, roomOf(batch)), batch)
	if err != nil {
		return nil, err
	}
	if zones != nil {
		a.s.zones.addMap(it.position, it.encoded, zones.Map())
	}
	a.countView(it, len(frames), len(data), stats.Rows, stats.Kept)
	said := &scribev1.PayloadView{
		Rows: uint64(stats.Rows), Kept: uint64(stats.Kept), Rejected: uint64(stats.Rejected), Bad: uint64(stats.BadRows), //nolint:gosec // counts
		Errors: uint64(stats.Errors), View: it.view.ID, Losses: losses, //nolint:gosec // a count
	}
	return newViewBlock(data, a.asked.codec, said), nil
}

// countView counts a payload that was made into a view.
func (a *fetchAnswer) countView(it *answerItem, in, out int, rows, kept int64) {
	st := &it.view.Stats
	st.Payloads.Add(1)
	st.BytesIn.Add(uint64(in))   //nolint:gosec // a length
	st.BytesOut.Add(uint64(out)) //nolint:gosec // a length
	st.RowsIn.Add(uint64(rows))  //nolint:gosec // a count
	st.RowsOut.Add(uint64(kept)) //nolint:gosec // a count
	a.s.metrics.viewPayloads.Inc()
	a.s.metrics.viewBytesIn.Add(float64(in))
	a.s.metrics.viewBytesOut.Add(float64(out))
}

// roomOf estimates the length of a batch's IPC stream.
func roomOf(batch arrow.RecordBatch) int {
	n := 4096
	for _, c := range batch.Columns() {
		n += int(c.Data().SizeInBytes()) + 256 //nolint:gosec // of a batch in memory
	}
	return n
}

// worthCompressing is the greatest ratio of compressed to uncompressed length at which a view is sent compressed.
const worthCompressing = 0.9

// packers are encoders that start no goroutines.
var packers = sync.Pool{New: func() any {
	e, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithEncoderCRC(false))
	if err != nil {
		panic(err) // the options are constant
	}
	return e
}}

// newViewBlock returns the cached form of a view.
func newViewBlock(data []byte, codec uint32, said *scribev1.PayloadView) *checkedBlock {
	b := &checkedBlock{data: data, codec: codecPlain, rawLen: uint64(len(data)), view: said}
	var packed []byte
	switch codec {
	case codecS2:
		packed = s2.Encode(nil, data)
	case codecZstd:
		e := packers.Get().(*zstd.Encoder)
		packed = e.EncodeAll(data, nil)
		packers.Put(e)
	}
	if packed != nil && float64(len(packed)) <= worthCompressing*float64(len(data)) {
		b.data, b.codec = bytes.Clone(packed), codec
	}
	b.sums = sumPieces(b.data)
	b.crc = record.CRC(b.data)
	return b
}

// splitLosses separates the frames that report losses, which have no rows. It returns frames itself if there are none.
func splitLosses(frames []byte) (rows []byte, losses []*scribev1.LossFrame, err error) {
	index, end := uint32(0), 0
	for f, err := range record.Split(frames) {
		switch {
		case err != nil:
			return nil, nil, err
		case loss.IsReport(&f):
			if losses == nil {
				rows = bytes.Clone(frames[:end])
			}
			losses = append(losses, &scribev1.LossFrame{Index: index, Frame: bytes.Clone(f.Bytes)})
		case losses != nil:
			rows = append(rows, f.Bytes...)
		}
		index += uint32(f.Count) //nolint:gosec // bounded by the format
		end += len(f.Bytes)
	}
	if losses == nil {
		return frames, nil, nil
	}
	return rows, losses, nil
}

// shiftIndex corrects the indexes of messages to those in the payload, which include the removed loss reports.
func shiftIndex(batch arrow.RecordBatch, losses []*scribev1.LossFrame) arrow.RecordBatch {
	columns := make([]arrow.Array, batch.NumCols())
	for i := range columns {
		columns[i] = batch.Column(i)
		old, ok := columns[i].(*array.Uint32)
		if !ok || batch.ColumnName(i) != transcode.ColumnIndex {
			continue
		}
		b := array.NewUint32Builder(memory.DefaultAllocator)
		b.Reserve(old.Len())
		passed := uint32(0)
		for r := range old.Len() {
			for int(passed) < len(losses) && losses[passed].GetIndex() <= old.Value(r)+passed {
				passed++
			}
			b.UnsafeAppend(old.Value(r) + passed)
		}
		columns[i] = b.NewArray()
		b.Release()
	}
	return array.NewRecordBatch(batch.Schema(), columns, batch.NumRows())
}
