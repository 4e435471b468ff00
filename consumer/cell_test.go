package consumer_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"

	"scribe/internal/format/bucket"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	categoryName = "web.access"
	categoryID   = 7
)

// cell is a small cell in memory: logs of pointers, merged by persisted time into streams, and the payloads behind them.
type cell struct {
	// onStream, when set, may change what the n-th stream sends, or end it with an error.
	onStream func(n int, m *scribev1.StreamResponse) ([]*scribev1.StreamResponse, error)
	// onFetch, when set, may change the answer of the n-th fetch, or fail it.
	onFetch func(n int, req *scribev1.FetchRequest, res *scribev1.FetchResponse) error
	// perMessage is how many entries a message of the stream holds at most; 0 = 10.
	perMessage int
	encoder    *zstd.Encoder
	sequences  []pointer.Sequence // of the pointers that are added
	// schema is the category's. views, when set, answers for views of a payload's frames; else they are refused. skips, when set, says which
	// payloads a stream with a filter leaves out.
	schema string
	// describe, when set, says more of the category, each time that somebody asks.
	describe func(*scribev1.Category)
	views    func(q *scribev1.Query, frames []byte) (*scribev1.Payload, error)
	skips    func(q *scribev1.Query, frames []byte) bool

	mu       sync.Mutex
	changed  chan struct{} // closed at every change
	logs     map[record.ShardID]*shardLog
	payloads map[string]*stored // by pointer
	clock    int64
	streams  int
	fetches  int
	fetched  int // pointers that were asked for
	starts   []*scribev1.StreamStart
	wrong    []string
	most     uint64 // bytes of payloads that a stream was ahead of its reader
	ids      uint32 // id of the category; 0 = categoryID
}

type shardLog struct {
	id      record.ShardID
	first   record.LSN
	entries []entry // from LSN 1
	sealed  bool
}

type entry struct {
	time    int64
	pointer []byte
	length  uint64
}

type stored struct {
	codec pointer.Codec
	data  []byte
	raw   int
}

func newCell() *cell {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(64<<10))
	if err != nil {
		panic(err)
	}
	return &cell{encoder: encoder, changed: make(chan struct{}), logs: map[record.ShardID]*shardLog{}, payloads: map[string]*stored{}, clock: time.Now().UnixMicro()}
}

func (c *cell) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

func shardID(logical, writer uint16) record.ShardID {
	return record.MakeShardID(categoryID, logical, writer)
}

// frame makes a frame of texts.
func frame(logical uint32, texts ...string) []byte {
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: categoryName, Shard: logical, BaseTime: 1000}); err != nil {
		panic(err)
	}
	for _, t := range texts {
		if err := b.AppendPayload([]byte(t)); err != nil {
			panic(err)
		}
	}
	out, err := b.Finish()
	if err != nil {
		panic(err)
	}
	return out
}

// create makes an empty shard.
func (c *cell) create(shard record.ShardID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log(shard)
}

func (c *cell) log(shard record.ShardID) *shardLog {
	l := c.logs[shard]
	if l == nil {
		l = &shardLog{id: shard, first: 1}
		c.logs[shard] = l
		c.change()
	}
	return l
}

// add stores one payload of texts, in one frame, and returns its LSN.
func (c *cell) add(shard record.ShardID, texts ...string) record.LSN {
	return c.addFrames(shard, frame(uint32(shard.Logical()), texts...))
}

// addFrames stores one payload.
func (c *cell) addFrames(shard record.ShardID, frames ...[]byte) record.LSN {
	c.mu.Lock()
	defer c.mu.Unlock()
	payload := slices.Concat(frames...)
	p := pointer.Pointer{
		Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecZstd, BlockRawLen: uint32(len(payload)),
		Length: uint32(len(payload)), Frames: uint32(len(frames)), MinTime: 1000, MaxTime: 1000,
	}
	for f, err := range record.Split(payload) {
		if err == nil {
			p.Messages += uint32(f.Count)
		}
	}
	l := c.log(shard)
	c.clock += 1000
	st := &stored{codec: pointer.CodecZstd, data: c.encoder.EncodeAll(payload, nil), raw: len(payload)}
	if len(l.entries)%3 == 2 { // not everything is worth compressing
		st.codec, st.data = pointer.CodecNone, payload
	}
	p.Codec, p.BlockLen = st.codec, uint32(len(st.data))
	p.Sequences = c.sequences
	raw := pointer.Append(nil, &p)
	l.entries = append(l.entries, entry{time: c.clock, pointer: raw, length: uint64(len(payload))})
	// What is asked for has no sequences: a reader does not keep them.
	p.Sequences = nil
	c.payloads[string(pointer.Append(nil, &p))] = st
	c.change()
	return record.LSN(len(l.entries))
}

// trim removes what is before an LSN.
func (c *cell) trim(shard record.ShardID, before record.LSN) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[shard].first = before
	c.change()
}

// expire removes what is before an LSN, as retention does: the log first, then the objects.
func (c *cell) expire(shard record.ShardID, before record.LSN) {
	c.trim(shard, before)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.logs[shard].entries[:before-1] {
		delete(c.payloads, string(e.pointer))
	}
}

func (c *cell) seal(shard record.ShardID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.logs[shard].sealed = true
	c.change()
}

// Bounds implements the read stream.
func (c *cell) Bounds(_ context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	res := &scribev1.BoundsResponse{}
	for _, id := range req.GetShards() {
		b := &scribev1.ShardBounds{Shard: id, FirstLsn: 1, NextLsn: 1}
		if l := c.logs[record.ShardID(id)]; l != nil {
			b.FirstLsn, b.NextLsn, b.Sealed = uint64(l.first), uint64(len(l.entries))+1, l.sealed
		}
		res.Shards = append(res.Shards, b)
	}
	return res, nil
}

// Stream implements the read stream.
func (c *cell) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	first, err := recv(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.streams++
	n := c.streams
	c.starts = append(c.starts, first.GetStart())
	limit := int64(c.starts[0].GetCredits().GetBytes())
	c.mu.Unlock()
	if name := first.GetStart().GetCategory(); name != categoryName {
		return rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category %q", name)
	}
	r := &reading{c: c, start: first.GetStart(), at: map[record.ShardID]record.LSN{}, ended: map[record.ShardID]bool{}}
	r.send = func(m *scribev1.StreamResponse) error {
		all := []*scribev1.StreamResponse{m}
		if c.onStream != nil {
			var err error
			if all, err = c.onStream(n, m); err != nil {
				return err
			}
		}
		for _, m := range all {
			if err := send(m); err != nil {
				return err
			}
		}
		return nil
	}
	r.pointers, r.bytes = int64(r.start.GetCredits().GetPointers()), int64(r.start.GetCredits().GetBytes())
	r.limit = limit
	ctx, cancel := context.WithCancel(ctx)
	credits := make(chan *scribev1.StreamCredits)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			req, err := recv(ctx)
			if err != nil {
				return
			}
			select {
			case credits <- req.GetCredits():
			case <-ctx.Done():
				return
			}
		}
	})
	defer wg.Wait()
	defer cancel()
	return r.run(ctx, credits)
}

// reading is one stream.
type reading struct {
	c               *cell
	start           *scribev1.StreamStart
	send            func(*scribev1.StreamResponse) error
	at              map[record.ShardID]record.LSN
	ended           map[record.ShardID]bool
	pointers, bytes int64
	limit           int64
}

func (r *reading) run(ctx context.Context, credits <-chan *scribev1.StreamCredits) error {
	if err := r.send(r.open()); err != nil {
		return err
	}
	beat := time.NewTicker(r.start.GetHeartbeat().AsDuration())
	defer beat.Stop()
	for {
		msgs, changed := r.next()
		for _, m := range msgs {
			if err := r.send(m); err != nil {
				return err
			}
		}
		if len(msgs) > 0 {
			continue
		}
		select {
		case cr := <-credits:
			r.pointers += int64(cr.GetPointers())
			r.bytes += int64(cr.GetBytes())
			if r.bytes > r.limit {
				r.c.fault("the reader gave %d bytes of credits in all, it may give %d", r.bytes, r.limit)
			}
		case <-changed:
		case <-beat.C:
			r.c.mu.Lock()
			beat := &scribev1.StreamHeartbeat{Watermark: r.c.clock, Pending: r.pending()}
			if len(r.c.logs) == 0 {
				beat.Watermark = 0
			}
			r.c.mu.Unlock()
			if err := r.send(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: beat}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *cell) fault(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

func (r *reading) wants(id record.ShardID) bool {
	return len(r.start.GetLogicalShards()) == 0 || sequenced.IsLog(id) || slices.Contains(r.start.GetLogicalShards(), uint32(id.Logical()))
}

func (r *reading) open() *scribev1.StreamResponse {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	id := cmp.Or(r.c.ids, categoryID)
	o := &scribev1.StreamOpened{Category: &scribev1.Category{Name: categoryName, Id: id}}
	for _, l := range r.c.sorted() {
		if r.wants(l.id) {
			o.Shards = append(o.Shards, r.join(l, r.start.GetStartAt()))
		}
	}
	return &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Opened{Opened: o}}
}

func (r *reading) join(l *shardLog, at scribev1.StartAt) *scribev1.StreamShard {
	next := record.LSN(len(l.entries) + 1)
	lsn := l.first
	switch at {
	case scribev1.StartAt_START_AT_LATEST:
		lsn = next
	case scribev1.StartAt_START_AT_TIME:
		for ; lsn < next && l.entries[lsn-1].time < r.start.GetStartTime(); lsn++ {
		}
	default:
	}
	for _, p := range r.start.GetResume() {
		if p.GetShard() == uint64(l.id) {
			lsn = record.LSN(p.GetLsn())
		}
	}
	r.at[l.id] = lsn
	return &scribev1.StreamShard{Shard: uint64(l.id), Lsn: uint64(lsn), NextLsn: uint64(next)}
}

func (c *cell) sorted() []*shardLog {
	var out []*shardLog
	for _, l := range c.logs {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *shardLog) int { return cmp.Compare(a.id, b.id) })
	return out
}

// next is what can be sent now, or what to wait for.
func (r *reading) next() ([]*scribev1.StreamResponse, <-chan struct{}) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var msgs []*scribev1.StreamResponse
	batch := &scribev1.StreamEntries{}
	for len(batch.Entries) < cmp.Or(c.perMessage, 10) {
		var head *shardLog
		for _, l := range c.sorted() {
			at, ok := r.at[l.id]
			switch {
			case !r.wants(l.id) || len(msgs) > 0:
				continue
			case !ok:
				s := r.join(l, scribev1.StartAt_START_AT_EARLIEST)
				msgs = append(msgs, &scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardAdded{ShardAdded: s}})
			case at < l.first:
				r.at[l.id] = l.first
				msgs = append(msgs, &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{
					Shard: uint64(l.id), From: uint64(at), To: uint64(l.first), Reason: scribev1.Reason_REASON_TRIMMED,
				}}})
			case int(at) > len(l.entries):
				if l.sealed && !r.ended[l.id] {
					r.ended[l.id] = true
					msgs = append(msgs, &scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardEnded{ShardEnded: &scribev1.StreamShard{Shard: uint64(l.id), Lsn: uint64(at)}}})
				}
			case head == nil || l.entries[at-1].time < head.entries[r.at[head.id]-1].time:
				head = l
			}
		}
		if len(msgs) > 0 || head == nil || r.pointers <= 0 || r.bytes <= 0 {
			break
		}
		lsn := r.at[head.id]
		e := head.entries[lsn-1]
		if b := r.start.GetBuckets(); b != nil {
			f := bucket.Filter{Scheme: bucket.Scheme{Sharing: bucket.Sharing(b.GetSharing()), Buckets: b.GetBuckets()}, Set: b.GetSet()}
			if !f.Has(head.id, lsn) {
				r.at[head.id]++
				continue
			}
		}
		if f := r.start.GetFilter(); f != nil && c.skips != nil && c.skips(f, c.frames(e.pointer)) {
			batch.Skipped = append(batch.Skipped, &scribev1.StreamSkip{
				Shard: uint64(head.id), From: uint64(lsn), To: uint64(lsn) + 1, After: uint32(len(batch.Entries)), Messages: 1, Bytes: e.length, Time: e.time,
			})
			r.at[head.id]++
			continue
		}
		batch.Entries = append(batch.Entries, &scribev1.StreamEntry{Shard: uint64(head.id), Lsn: uint64(lsn), Time: e.time, Pointer: e.pointer})
		batch.Watermark = e.time
		r.at[head.id]++
		r.pointers--
		r.bytes -= int64(e.length)
		c.most = max(c.most, uint64(r.limit-r.bytes))
	}
	if len(batch.Entries)+len(batch.Skipped) > 0 {
		batch.Pending = r.pending()
		msgs = append([]*scribev1.StreamResponse{{Step: &scribev1.StreamResponse_Entries{Entries: batch}}}, msgs...)
	}
	return msgs, c.changed
}

// pending is how many entries were not sent. The mutex is held.
func (r *reading) pending() (n uint64) {
	for id, at := range r.at {
		n += uint64(max(len(r.c.logs[id].entries)+1-int(at), 0))
	}
	return n
}

// Fetch implements the read proxy.
func (c *cell) Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error) {
	c.mu.Lock()
	c.fetches++
	n := c.fetches
	c.fetched += len(req.GetPointers())
	res := &scribev1.FetchResponse{}
	for _, raw := range req.GetPointers() {
		p := &scribev1.Payload{}
		if req.GetView() != nil && c.payloads[string(raw)] != nil {
			p = c.view(req.GetView().GetQuery(), raw)
		} else if st := c.payloads[string(raw)]; st != nil {
			p.Codec, p.Data, p.RawLength, p.Crc = uint32(st.codec), slices.Clone(st.data), uint64(st.raw), record.CRC(st.data)
		} else {
			p.Error = &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_MISSING, Message: "no such object"}
		}
		res.Payloads = append(res.Payloads, p)
	}
	c.mu.Unlock()
	if len(req.GetPointers()) > 1000 || req.GetCategory() != categoryName || req.GetView() == nil && req.GetEncoding() != scribev1.PayloadEncoding_PAYLOAD_ENCODING_RAW {
		c.fault("a fetch of %d pointers of %q as %v", len(req.GetPointers()), req.GetCategory(), req.GetEncoding())
	}
	if c.onFetch != nil {
		if err := c.onFetch(n, req, res); err != nil {
			return nil, err
		}
	}
	return res, ctx.Err()
}

// view is the answer for one pointer of a request for views.
func (c *cell) view(q *scribev1.Query, raw []byte) *scribev1.Payload {
	refused := &scribev1.Payload{Error: &scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_INVALID, Message: "no views here"}}
	if c.views == nil {
		return refused
	}
	p, err := c.views(q, c.frames(raw))
	if err != nil {
		c.wrong = append(c.wrong, err.Error())
		return refused
	}
	return p
}

// frames are the frames of a payload. The mutex is held.
func (c *cell) frames(raw []byte) []byte {
	ptr, err := pointer.Decode(raw)
	if err != nil {
		panic(err)
	}
	ptr.Sequences = nil
	st := c.payloads[string(pointer.Append(nil, &ptr))]
	if st.codec == pointer.CodecNone {
		return st.data
	}
	frames, err := decoder.DecodeAll(st.data, nil)
	if err != nil {
		panic(err)
	}
	return frames
}

var decoder, _ = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))

// GetCategory implements the control plane.
func (c *cell) GetCategory(_ context.Context, req *scribev1.GetCategoryRequest) (*scribev1.GetCategoryResponse, error) {
	if req.GetName() != categoryName {
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_CATEGORY, "no category %q", req.GetName())
	}
	c.mu.Lock()
	category := &scribev1.Category{Name: categoryName, Id: cmp.Or(c.ids, categoryID), Schema: c.schema}
	c.mu.Unlock()
	if c.describe != nil {
		c.describe(category)
	}
	return &scribev1.GetCategoryResponse{Category: category}, nil
}

// UpdateCategory implements the control plane, which has nothing to change here.
func (c *cell) UpdateCategory(context.Context, *scribev1.UpdateCategoryRequest) (*scribev1.UpdateCategoryResponse, error) {
	return nil, rpc.Errorf(scribev1.Reason_REASON_INVALID, "the category stays as it is")
}

func (c *cell) check(t testing.TB) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range c.wrong {
		t.Error(w)
	}
}

// The types of a stream's parameters, which are long.
type (
	ctxt     = context.Context
	recvFunc = func(context.Context) (*scribev1.StreamRequest, error)
)
