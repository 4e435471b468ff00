package sequencer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/cell/positions"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
)

// patience is how long a test waits for what must come.
const patience = 2 * time.Minute

const testCategory, testID = "orders", 7

// tester is what a world needs of a test: *testing.T, or *rapid.T.
type tester interface {
	Helper()
	Fatalf(format string, args ...any)
}

// world is an engine with writers, and everything around a sequencer.
type world struct {
	tester
	ctx    context.Context
	engine *pebblelog.Engine
	cats   *categories
	epochs map[record.ShardID]uint64
	wrote  map[record.ShardID]int
	// first are the numbers of messages of the pointers that were written, by place.
	messages map[place]uint32
}

type place struct {
	shard record.ShardID
	lsn   record.LSN
}

func newWorld(ctx context.Context, t tester) *world {
	t.Helper()
	engine, err := pebblelog.Open("log", pebblelog.Options{FS: vfs.NewMem()})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return &world{
		tester: t, ctx: ctx, engine: engine, cats: newCategories(), epochs: map[record.ShardID]uint64{}, wrote: map[record.ShardID]int{},
		messages: map[place]uint32{},
	}
}

func (w *world) close() {
	w.Helper()
	if err := w.engine.Close(); err != nil {
		w.Fatalf("%v", err)
	}
}

// categories is a view of categories.
type categories struct {
	mu       sync.Mutex
	all      map[uint32]*scribev1.Category
	revision uint64
}

func newCategories() *categories {
	c := &categories{all: map[uint32]*scribev1.Category{}}
	c.put(&scribev1.Category{Id: testID, Name: testCategory, Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED})
	return c
}

func (c *categories) put(cat *scribev1.Category) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[cat.GetId()] = cat
	c.revision++
}

func (c *categories) remove(id uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.all, id)
	c.revision++
}

func (c *categories) All() iter.Seq[*scribev1.Category] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Values(maps.Clone(c.all))
}

func (c *categories) Revision() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.revision
}

func sourceID(logical, writer int) record.ShardID {
	return record.MakeShardID(testID, uint16(logical), uint16(writer))
}

// write appends a pointer to each of the sources, in transactions of their own.
func (w *world) write(shards ...record.ShardID) {
	w.Helper()
	for _, shard := range shards {
		if _, ok := w.epochs[shard]; !ok {
			states, err := w.engine.Open(w.ctx, "writer", []record.ShardID{shard})
			if err != nil {
				w.Fatalf("%v", err)
			}
			w.epochs[shard] = states[0].Epoch
		}
		w.wrote[shard]++
		p := pointer.Pointer{
			Blob: pointer.NewBlobID(), Class: 72, Codec: pointer.CodecNone, BlockLen: 9, BlockRawLen: 9, Length: 9, Frames: 1,
			Messages: uint32(1 + w.wrote[shard]%5), Sequences: []pointer.Sequence{{Producer: 1, Epoch: 1, First: 1, Last: 1}},
		}
		done, err := w.engine.Append(w.ctx, &metalog.Append{Shards: []metalog.ShardAppend{{Shard: shard, Epoch: w.epochs[shard], Records: [][]byte{pointer.Append(nil, &p)}}}})
		if err != nil {
			w.Fatalf("%v", err)
		}
		w.messages[place{shard, done[0].FirstLSN}] = p.Messages
	}
}

// writeAll writes n pointers to each of so many sources in turn.
func (w *world) writeAll(sources, n int) {
	w.Helper()
	for range n {
		for i := range sources {
			w.write(sourceID(i/2, 1+i%2))
		}
	}
}

// sources are the states of the sources.
func (w *world) sources() []metalog.State {
	w.Helper()
	states, err := w.engine.Shards(w.ctx, testID)
	if err != nil {
		w.Fatalf("%v", err)
	}
	return slices.DeleteFunc(states, func(v metalog.State) bool { return sequenced.Reserved(v.Shard) })
}

// log reads the sequenced log, and checks that it can be one: every source's pointers are there without a repeat or an omission, as far as
// they are there at all, in the order of their times, with dense numbers, and the positions speak of just this log.
func (w *world) log() []sequenced.Record {
	w.Helper()
	var out []sequenced.Record
	at := map[record.ShardID]record.LSN{}
	offset, horizon := uint64(0), int64(0)
	for next := record.FirstLSN; ; {
		entries, err := w.engine.Read(w.ctx, sequenced.Log(testID), next, 0, 0)
		if err != nil {
			w.Fatalf("%v", err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			rec, err := sequenced.Decode(testID, e.Data)
			if err != nil {
				w.Fatalf("%v", err)
			}
			if want := max(at[rec.Source], record.FirstLSN); rec.LSN != want {
				w.Fatalf("LSN %d: source %v goes on at %d, want %d", e.LSN, rec.Source, rec.LSN, want)
			}
			at[rec.Source] = rec.Next()
			if rec.Offset != offset {
				w.Fatalf("LSN %d: message %d, want %d", e.LSN, rec.Offset, offset)
			}
			if rec.Kind == sequenced.KindPointer {
				if rec.Time < horizon || rec.Horizon != rec.Time {
					w.Fatalf("LSN %d: time %d and horizon %d behind %d", e.LSN, rec.Time, rec.Horizon, horizon)
				}
				p, err := pointer.Decode(rec.Pointer)
				if err != nil || p.Sequences != nil || p.Messages != w.messages[place{rec.Source, rec.LSN}] {
					w.Fatalf("LSN %d: pointer %+v, %v", e.LSN, p, err)
				}
				offset += uint64(p.Messages)
				horizon = rec.Horizon
			}
			out = append(out, rec)
			next = e.LSN + 1
		}
	}
	st, err := positions.Read(w.ctx, w.engine, testID)
	if err != nil {
		w.Fatalf("%v", err)
	}
	// What was appended meanwhile is in these alone.
	if st.Next < record.FirstLSN+record.LSN(len(out)) {
		w.Fatalf("the positions end at LSN %d, the log has %d", st.Next, len(out))
	}
	if st.Next == record.FirstLSN+record.LSN(len(out)) && (st.Offset != offset || st.Horizon != horizon || !maps.Equal(st.At, at)) {
		w.Fatalf("positions %+v, want offset %d, horizon %d, %v", st, offset, horizon, at)
	}
	return out
}

// complete waits until everything that was written is sequenced, and returns the log. It gives up when nothing comes for a while.
func (w *world) complete() []sequenced.Record {
	w.Helper()
	deadline, most := time.Now().Add(patience), 0
	for {
		began := time.Now()
		want := 0
		for _, n := range w.wrote {
			want += n
		}
		recs := w.log()
		got := 0
		for i := range recs {
			got++
			if recs[i].Kind == sequenced.KindGap {
				got += int(recs[i].To-recs[i].LSN) - 1
			}
		}
		if got == want {
			return recs
		}
		if got > most {
			deadline, most = time.Now().Add(patience), got
		}
		if got > want || time.Now().After(deadline) {
			w.Fatalf("%d of %d pointers were sequenced", got, want)
		}
		<-time.After(time.Millisecond + 4*time.Since(began)) // all of the log is read each time
	}
}

// streams is a read stream: strict, from what the engine holds.
type streams struct {
	w *world
	// fault, if not nil, is asked before each message is sent; its error ends the stream.
	fault func() error
	mu    struct {
		sync.Mutex
		opened, running, most int
	}
}

var errStreamFault = errors.New("the stream broke")

// Stream implements Streams.
func (s *streams) Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
	req, err := recv(ctx)
	if err != nil {
		return err
	}
	start := req.GetStart()
	if !start.GetUnsequenced() || start.GetWindow() == nil || start.GetStartAt() != scribev1.StartAt_START_AT_EARLIEST {
		return fmt.Errorf("not a sequencer's stream: %v", start)
	}
	s.mu.Lock()
	s.mu.opened++
	s.mu.running++
	s.mu.most = max(s.mu.most, s.mu.running)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.mu.running--
		s.mu.Unlock()
	}()
	ctx, cancel := context.WithCancel(ctx)
	credits := make(chan uint32, 1024)
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer cancel()
	receiving.Go(func() {
		for {
			r, err := recv(ctx)
			if err != nil {
				return
			}
			credits <- r.GetCredits().GetPointers()
		}
	})
	m := &merging{streams: s, send: send, at: map[record.ShardID]record.LSN{}, left: start.GetCredits().GetPointers(), credits: credits}
	for _, p := range start.GetResume() {
		m.at[record.ShardID(p.GetShard())] = record.LSN(p.GetLsn())
	}
	return m.run(ctx)
}

type merging struct {
	*streams
	send    func(*scribev1.StreamResponse) error
	at      map[record.ShardID]record.LSN
	known   map[record.ShardID]bool
	left    uint32
	credits chan uint32
}

func (m *merging) say(r *scribev1.StreamResponse) error {
	if m.fault != nil {
		if err := m.fault(); err != nil {
			return err
		}
	}
	return m.send(r)
}

func (m *merging) run(ctx context.Context) error {
	m.known = map[record.ShardID]bool{}
	opened := &scribev1.StreamOpened{
		Category: &scribev1.Category{Id: testID, Name: testCategory, Repeatable: scribev1.Repeatability_REPEATABILITY_SEQUENCED}, Window: durationpb.New(0),
	}
	for shard, lsn := range m.at {
		m.known[shard] = true
		opened.Shards = append(opened.Shards, &scribev1.StreamShard{Shard: uint64(shard), Lsn: uint64(lsn)})
	}
	if err := m.say(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Opened{Opened: opened}}); err != nil {
		return err
	}
	for {
		if err := m.round(); err != nil {
			return err
		}
		select {
		case n := <-m.credits:
			m.left += n
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// round sends what there is, as far as no shard can bring anything before it.
func (m *merging) round() error {
	// What was promised before the shards were listed: one that is made in between may bring something older than what is promised after.
	bound := int64(1<<63 - 1)
	for _, v := range m.w.sources() {
		bound = min(bound, v.Watermark)
	}
	states := m.w.sources()
	var entries []*scribev1.StreamEntry
	for _, v := range states {
		if !m.known[v.Shard] {
			m.known[v.Shard] = true
			m.at[v.Shard] = v.FirstLSN
			if err := m.say(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_ShardAdded{ShardAdded: &scribev1.StreamShard{Shard: uint64(v.Shard), Lsn: uint64(v.FirstLSN)}}}); err != nil {
				return err
			}
		}
		if at := m.at[v.Shard]; at < v.FirstLSN {
			m.at[v.Shard] = v.FirstLSN
			if err := m.say(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Gap{Gap: &scribev1.StreamGap{
				Shard: uint64(v.Shard), From: uint64(at), To: uint64(v.FirstLSN), Reason: scribev1.Reason_REASON_TRIMMED,
			}}}); err != nil {
				return err
			}
		}
		found, err := m.w.engine.Read(m.w.ctx, v.Shard, m.at[v.Shard], 0, 0)
		if err != nil && !errors.Is(err, metalog.ErrTrimmed) {
			return err
		}
		for _, e := range found {
			entries = append(entries, &scribev1.StreamEntry{Shard: uint64(v.Shard), Lsn: uint64(e.LSN), Time: e.Time, Pointer: e.Data})
		}
	}
	slices.SortFunc(entries, func(a, b *scribev1.StreamEntry) int {
		return cmp.Or(cmp.Compare(a.GetTime(), b.GetTime()), cmp.Compare(a.GetShard(), b.GetShard()), cmp.Compare(a.GetLsn(), b.GetLsn()))
	})
	n := 0
	for n < len(entries) && bound < 1<<63-1 && entries[n].GetTime() < bound && uint32(n) < m.left {
		n++
	}
	for part := range slices.Chunk(entries[:n], 3) {
		for _, e := range part {
			m.at[record.ShardID(e.GetShard())] = record.LSN(e.GetLsn()) + 1
			m.left--
		}
		if err := m.say(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Entries{Entries: &scribev1.StreamEntries{Entries: part}}}); err != nil {
			return err
		}
	}
	if n == len(entries) && bound < 1<<63-1 {
		return m.say(&scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: &scribev1.StreamHeartbeat{Watermark: bound}}})
	}
	return nil
}

// eager is a configuration of somebody who does not want to wait.
func eager() Config {
	cfg := DefaultConfig()
	cfg.Interval, cfg.MinBackoff, cfg.MaxBackoff, cfg.Contest = time.Millisecond, time.Millisecond, 5*time.Millisecond, 5*time.Millisecond
	cfg.ChangeBytes = 200
	return cfg
}

func (w *world) deps(id string, log Log, s ReadStreams) Deps {
	return Deps{Log: log, Streams: s, Categories: w.cats, Members: func() []string { return []string{id} }, ID: id}
}

func (w *world) start(cfg Config, deps Deps) *Sequencer {
	w.Helper()
	s, err := New(cfg, deps)
	if err != nil {
		w.Fatalf("%v", err)
	}
	return s
}

func (w *world) stop(s *Sequencer) {
	w.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		w.Fatalf("%v", err)
	}
}

// crashing is the engine as a sequencer sees it that is about to crash: the n-th call of a kind, and each one after it, fails, before it is
// carried out or, for the n-th, after.
type crashing struct {
	Log
	kind  string
	after bool
	mu    struct {
		sync.Mutex
		left int
	}
	crashed chan struct{}
}

var errCrash = errors.New("crashed")

func newCrashing(log Log, kind string, n int, after bool) *crashing {
	c := &crashing{Log: log, kind: kind, after: after, crashed: make(chan struct{})}
	c.mu.left = n
	return c
}

// step counts a call: whether it is carried out, and whether its answer is given.
func (c *crashing) step(kind string) (carryOut, answer bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.left == 0 {
		return false, false
	}
	if kind != c.kind {
		return true, true
	}
	if c.mu.left--; c.mu.left > 0 {
		return true, true
	}
	close(c.crashed)
	return c.after, false
}

func crash[T any](c *crashing, kind string, call func() (T, error)) (T, error) {
	var zero T
	carryOut, answer := c.step(kind)
	if carryOut {
		v, err := call()
		if answer {
			return v, err
		}
	}
	return zero, errCrash
}

func (c *crashing) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return crash(c, "open", func() ([]metalog.State, error) { return c.Log.Open(ctx, owner, shards) })
}

func (c *crashing) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return crash(c, "append", func() ([]metalog.Appended, error) { return c.Log.Append(ctx, a) })
}

func (c *crashing) Read(ctx context.Context, shard record.ShardID, from record.LSN, records, bytes int) ([]metalog.Entry, error) {
	return crash(c, "read", func() ([]metalog.Entry, error) { return c.Log.Read(ctx, shard, from, records, bytes) })
}

func (c *crashing) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return crash(c, "tail", func() ([]metalog.State, error) { return c.Log.Tail(ctx, shards) })
}

func (c *crashing) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := crash(c, "trim", func() (struct{}, error) { return struct{}{}, c.Log.Trim(ctx, shard, before) })
	return err
}

var _ tester = (*testing.T)(nil)
