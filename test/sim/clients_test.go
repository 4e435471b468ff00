package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/array"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/base/entropy"
	"scribe/producer"
	"scribe/test/follow"
	"scribe/test/history"
)

// writer is a producer that writes its source, message by message, and tells the history what it was told.
type writer struct {
	w    *world
	plan writerPlan
	c    *client
	rng  *rand.Rand
	// random is what the program draws from in all lives.
	random *entropy.Source
	p      *producer.Producer
	next   int // in the source
	// saved is where a writer that restarts goes back to.
	saved struct {
		identity producer.Identity
		next     int
	}
	// began is when the call under way began.
	began                  time.Time
	acked, failed, unknown atomic.Int64
}

func (x *writer) run(ctx context.Context) {
	if err := x.open(nil); err != nil {
		x.w.violation("writer %s: %v", x.plan.Name, err)
		return
	}
	for began := time.Now(); ctx.Err() == nil; {
		x.write(context.Background())
		sleep(ctx, time.Duration(x.rng.Int64N(int64(2*x.plan.Pace))))
		if x.plan.Rest > 0 && time.Since(began) > burst {
			sleep(ctx, x.plan.Rest/2+time.Duration(x.rng.Int64N(int64(x.plan.Rest))))
			began = time.Now()
		}
	}
	ending, cancel := context.WithTimeout(context.Background(), liveness)
	defer cancel()
	if err := x.p.Close(ending); err != nil {
		x.w.violation("writer %s: close: %v", x.plan.Name, err)
	}
	if s := x.p.Stats(); s.Accepted != s.Acked+s.Failed+s.Buffered || s.Buffered != 0 || s.Memory != 0 {
		x.w.violation("invariant 11: writer %s: its account does not balance: %+v", x.plan.Name, s)
	}
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

func (x *writer) open(id *producer.Identity) (err error) {
	level := map[string]producer.AckLevel{"none": producer.AckNone, "spooled": producer.AckSpooled, "committed": producer.AckCommitted}[x.plan.Level]
	options := []producer.Option{
		producer.WithAck(level), producer.WithHTTPClient(x.c.transport.HTTPClient()), producer.WithRequestTimeout(10 * time.Second),
		producer.WithLogger(x.w.logger(x.plan.Name)), producer.WithRandom(x.random),
	}
	if x.plan.Kind == "stream" {
		options = append(options, producer.WithBatchBytes(4<<10), producer.WithFramesPerRequest(3), producer.WithMaxInFlight(16)) // several requests are in flight
	}
	if x.w.category(x.plan.Category).Keys != nil {
		options = append(options, producer.WithCategoryRefresh(5*time.Second))
	}
	if x.plan.Patient {
		options = append(options, producer.WithDeliveryTimeout(0), producer.WithBackoff(10*time.Millisecond, time.Second))
	} else {
		options = append(options, producer.WithRetries(0))
	}
	if id != nil {
		options = append(options, producer.WithIdentity(*id))
	}
	if x.p, err = producer.New(x.w.process(x.plan.Via).url(), options...); err == nil {
		x.w.store.noteDrawn(x.plan.Name, fmt.Sprintf("%016x", x.p.Identity().ID))
	}
	if c := x.w.category(x.plan.Category); err == nil && c.Keys != nil && c.Delivery == "exactly_once" {
		err = x.p.Prepare(context.Background(), c.Name) // servers do not place what is numbered
	}
	return err
}

// source returns the next messages of the writer's source. Their bytes depend on the seed, the writer and the index alone.
func (x *writer) source(n int) []history.Message {
	msgs := make([]history.Message, n)
	for i := range msgs {
		id := history.ID{Writer: x.plan.Name, Index: x.next}
		rng := rngOf(x.w.plan.Seed, id.String())
		payload := history.Payload(id, 20+rng.IntN(x.plan.Size), rng)
		c := x.w.category(x.plan.Category)
		key := x.w.keyOf(c, id)
		switch {
		case c.Columns:
			payload = rowPayload(id, payload)
		case c.Keys != nil && c.Keys.Field:
			payload = fieldPayload(payload, key, rng)
		}
		msgs[i] = history.Message{ID: id, Payload: payload, Key: key}
		x.next++
	}
	return msgs
}

// rowSchema is the schema of categories with columns, whose rows are those of rowPayload; a later version has a column that no row has.
const rowSchema = `
format: csv
csv: {delimiter: " ", columns: [writer, n, rest]}
fields:
  - {name: writer, type: dictionary}
  - {name: n, type: int64}
`

// rowPayload makes a row of three columns of a payload: a writer, a number, and the rest.
func rowPayload(id history.ID, payload []byte) []byte {
	rest := payload[len(id.String())+1:]
	return append(append([]byte(id.String()), ' '), bytes.ReplaceAll(rest, []byte(" "), []byte("_"))...)
}

func (x *writer) messages(msgs []history.Message) []producer.Message {
	out := make([]producer.Message, len(msgs))
	for i := range msgs {
		out[i] = x.message(&msgs[i])
	}
	return out
}

// message returns a message as the library takes it.
func (x *writer) message(m *history.Message) producer.Message {
	out := producer.Message{Payload: m.Payload, Shard: x.plan.Shard}
	if k := x.w.category(x.plan.Category).Keys; k != nil && !k.Field {
		out.Key = []byte(m.Key)
	}
	return out
}

func (x *writer) tell(a *history.Attempt, i int, err error) {
	switch {
	case err == nil && x.plan.Level == "committed" && x.plan.Kind != "restarting": // which repeats what was committed long ago
		x.w.noteCommitted(x.plan.Category, a.ID(i), x.began)
		fallthrough
	case err == nil:
		a.Acked(i, map[string]history.Level{"none": history.None, "spooled": history.Spooled, "committed": history.Committed}[x.plan.Level])
		x.acked.Add(1)
	case errors.Is(err, producer.ErrUnknownOutcome):
		x.unknown.Add(1)
	default:
		a.Failed(i)
		x.failed.Add(1)
	}
}

func (x *writer) tellAll(a *history.Attempt, n int, err error) {
	failed := map[int]error{}
	if batch := new(producer.BatchError); errors.As(err, &batch) {
		for _, m := range batch.Messages {
			failed[m.Index] = m.Err
		}
		err = nil
	}
	for i := range n {
		if failed[i] != nil {
			x.tell(a, i, failed[i])
		} else {
			x.tell(a, i, err)
		}
	}
}

func (x *writer) write(ctx context.Context) {
	x.began = time.Now()
	switch x.plan.Kind {
	case "single":
		x.writeSome(ctx, 1)
	case "batch":
		x.writeSome(ctx, 1+x.rng.IntN(8))
	case "atomic":
		msgs := x.source(2 + x.rng.IntN(10))
		if msgs[0].Key != "" {
			// A batch is of one shard: the messages of one key, which may be one message.
			rest := msgs[1:]
			msgs = msgs[:1]
			for _, m := range rest {
				if m.Key == msgs[0].Key {
					msgs = append(msgs, m)
				}
			}
		}
		a := x.w.history.BeginAtomic(x.plan.Category, x.plan.Shard, msgs...)
		x.tellAll(a, len(msgs), x.p.WriteAtomic(ctx, x.plan.Category, x.plan.Shard, x.messages(msgs)...))
	case "async":
		x.writeAsync(ctx, 5)
	case "stream":
		x.writeAsync(ctx, 200)
	case "restarting":
		x.writeAndRestart(ctx)
	case "publish":
		x.publish(ctx)
	}
}

func (x *writer) writeSome(ctx context.Context, n int) {
	msgs := x.source(n)
	a := x.w.history.Begin(x.plan.Category, x.plan.Shard, msgs...)
	x.tellAll(a, n, x.p.Write(ctx, x.plan.Category, x.messages(msgs)...))
}

// writeAsync has several writes under way, and waits for all of them.
func (x *writer) writeAsync(ctx context.Context, n int) {
	msgs := x.source(n)
	results, attempts := make([]*producer.Result, n), make([]*history.Attempt, n)
	for i := range msgs {
		attempts[i] = x.w.history.Begin(x.plan.Category, x.plan.Shard, msgs[i])
		results[i] = x.p.WriteAsyncContext(ctx, x.plan.Category, new(x.message(&msgs[i])))
		if i%50 == 49 {
			sleep(ctx, time.Duration(x.rng.IntN(5))*time.Millisecond) // the first are in flight when the last are written
		}
	}
	for i, r := range results {
		x.tell(attempts[i], 0, r.Wait(ctx))
	}
}

// writeAndRestart saves its identity with its place in the source now and then, and crashes at times: then it goes on from what it saved,
// and writes again what it may have written.
func (x *writer) writeAndRestart(ctx context.Context) {
	switch luck := x.rng.IntN(30); {
	case luck == 0 && x.saved.identity.ID != 0:
		// Who has no identity to go on with writes as another producer, whom nothing keeps from repeating messages.
		gone, cancel := context.WithCancel(ctx)
		cancel()
		msgs := x.source(5) // in the middle of a write, whose outcome nobody waits for
		x.w.history.Begin(x.plan.Category, x.plan.Shard, msgs...)
		for i := range msgs {
			x.p.WriteAsync(x.plan.Category, &producer.Message{Payload: msgs[i].Payload, Shard: x.plan.Shard})
		}
		_ = x.p.Close(gone)
		x.next = x.saved.next
		if err := x.open(&x.saved.identity); err != nil {
			x.w.violation("writer %s: %v", x.plan.Name, err)
			return
		}
	case luck < 4 || x.saved.identity.ID == 0:
		x.saved.identity, x.saved.next = x.p.Identity(), x.next // every write before was acknowledged
	}
	x.writeSome(ctx, 1+x.rng.IntN(10))
}

// groupReader is a group of consumers. It delivers each message to one of its members, at least once.
type groupReader struct {
	w    *world
	plan groupPlan

	mu   sync.Mutex
	seen map[history.ID]bool
}

// member runs one member through its lives.
func (g *groupReader) member(ctx context.Context, i int) {
	name := fmt.Sprint(g.plan.Name, " member ", i)
	rng, random := rngOf(g.w.plan.Seed, name), g.w.randomOf(name)
	for life := 0; ctx.Err() == nil; life++ {
		c := g.w.newClient()
		sharing := consumer.SharePointers
		if g.plan.Shards {
			sharing = consumer.ShareShards
		}
		member, err := consumer.NewGroup(g.w.process(g.plan.Via[(i+life)%len(g.plan.Via)]).url(), g.plan.Category, g.plan.Name,
			consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithStart(consumer.Earliest()), consumer.WithSharing(sharing),
			consumer.WithMember(fmt.Sprintf("member%d-%d", i, life)), consumer.WithRequestTimeout(10*time.Second), consumer.WithGroupTTL(10*time.Second),
			consumer.WithRetryTimeout(0), consumer.WithBackoff(10*time.Millisecond, time.Second), consumer.WithLogger(g.w.logger(g.plan.Name)), consumer.WithRandom(random))
		if err != nil {
			g.w.violation("group %s: %v", g.plan.Name, err)
			return
		}
		for r, err := range member.Records(ctx) {
			if errors.Is(err, consumer.ErrGap) && g.w.recovery.count.Load() > 0 {
				continue // the category was sequenced anew
			}
			if err != nil {
				g.w.note("member %d of %s: %v", i, g.plan.Name, err)
				break
			}
			g.record(r.Payload)
			// In a healed cell they live on: killed members cost a TTL each, and after a recovery the group reads everything again.
			if g.plan.Lifetime > 0 && rng.IntN(g.plan.Lifetime) == 0 && !g.w.healed.Load() {
				break
			}
		}
		if rng.IntN(2) == 0 {
			c.kill() // it cannot leave: its lease must end
		}
		_ = member.Close()
		c.transport.Close()
		sleep(ctx, time.Second)
	}
}

func (g *groupReader) record(payload []byte) {
	id, err := history.ParseID(payload)
	if err != nil {
		g.w.violation("group %s: %v", g.plan.Name, err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen[id] = true
}

// batchReader reads a sequenced category in batches with identifiers, dies, and goes on from its checkpoint: an identifier always stands for
// the same messages.
type batchReader struct {
	w        *world
	plan     readerPlan
	mu       sync.Mutex
	batches  map[uint64]uint64 // identifier -> hash of the messages
	next     uint64            // after the last batch
	lastKept string            // the saved checkpoint
}

func (b *batchReader) run(ctx context.Context) {
	c, rng, random := b.w.newClient(), rngOf(b.w.plan.Seed, "reader "+b.plan.Name), b.w.randomOf("reader "+b.plan.Name)
	for life := 0; ctx.Err() == nil; life++ {
		if err := b.liveOnce(ctx, c, rng, random, b.w.process(b.plan.Via[life%len(b.plan.Via)]).url()); err != nil && ctx.Err() == nil {
			if b.lastKept == "" && b.w.recovery.hasLost(b.plan.Category) {
				sleep(ctx, time.Second)
				continue
			}
			b.w.violation("%s of %s: %v", b.plan.Name, b.plan.Category, err)
			return
		}
	}
}

// liveOnce reads until the reader dies, or returns the error that ended the reading.
func (b *batchReader) liveOnce(ctx context.Context, c *client, rng *rand.Rand, random *entropy.Source, server string) error {
	start := consumer.Earliest()
	if b.lastKept != "" {
		var err error
		if start, err = consumer.Checkpoint(b.lastKept); err != nil {
			return err
		}
	}
	reader, err := consumer.New(server, b.plan.Category, consumer.WithStart(start), consumer.WithHTTPClient(c.transport.HTTPClient()),
		consumer.WithRequestTimeout(10*time.Second), consumer.WithRetryTimeout(0), consumer.WithLogger(b.w.logger(b.plan.Name)), consumer.WithRandom(random))
	if err != nil {
		return err
	}
	defer func() { _ = reader.Close() }()
	following := uint64(0) // the identifier that must come next in this life; 0 = any
	for batch, err := range reader.SequencedBatches(ctx, consumer.BatchSize{Messages: 7, Span: 10 * time.Second}) {
		if errors.Is(err, consumer.ErrGap) && b.w.recovery.count.Load() > 0 {
			following = 0 // everything comes again, under other identifiers, or a source begins at the origin
			continue
		}
		if err != nil {
			return err
		}
		if following > 0 && batch.ID != following {
			return fmt.Errorf("invariant 12: batch %d follows one that ended before %d", batch.ID, following)
		}
		following = batch.ID + uint64(len(batch.Records))
		b.recordBatch(batch)
		if rng.IntN(5) == 0 {
			b.lastKept = reader.Checkpoint()
		}
		if b.plan.Lifetime > 0 && rng.IntN(b.plan.Lifetime/7+1) == 0 {
			return nil
		}
	}
	return nil
}

func (b *batchReader) recordBatch(batch *consumer.SequencedBatch) {
	sum := uint64(len(batch.Records))
	for _, r := range batch.Records {
		sum = sum*31 + hashOf(string(r.Payload))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if old, ok := b.batches[batch.ID]; ok && old != sum {
		b.w.violation("invariant 12: %s of %s got other messages for batch %d than in an earlier life", b.plan.Name, b.plan.Category, batch.ID)
	}
	b.batches[batch.ID] = sum
	b.next = max(b.next, batch.ID+uint64(len(batch.Records)))
}

// hasAll reports whether the reader has every message of a reading, from the first batch since the category was sequenced anew, if it was. A
// batch that is not full yet comes after its span.
func (b *batchReader) hasAll(r *history.Reading) bool {
	base := b.w.baseOf(b.plan.Category)
	b.mu.Lock()
	defer b.mu.Unlock()
	_, begun := b.batches[base]
	return r.Len() == 0 || begun && b.next >= base+uint64(r.Len()) //nolint:gosec // not negative
}

// queryReader is a query that follows a category. It counts its rows by what they say they are.
type queryReader struct {
	w    *world
	plan queryPlan
	mu   sync.Mutex
	rows map[history.ID]int
}

func (q *queryReader) run(ctx context.Context) {
	err := q.follow(ctx)
	for err != nil && ctx.Err() == nil && q.empty() && q.w.recovery.hasLost(q.plan.Category) {
		sleep(ctx, time.Second)
		err = q.follow(ctx)
	}
	if err != nil && ctx.Err() == nil {
		q.w.violation("%s: %v", q.plan.Name, err)
	}
}

// empty reports whether the query has given no rows.
func (q *queryReader) empty() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.rows) == 0
}

func (q *queryReader) follow(ctx context.Context) error {
	c, random := q.w.newClient(), q.w.randomOf(q.plan.Name)
	var query *columns.Query
	for {
		var err error
		query, err = columns.NewQuery(ctx, q.w.process(q.plan.Via).url(), fmt.Sprintf("SELECT writer, n FROM %s WHERE n %% %d = 0", q.plan.Category, q.plan.Modulus),
			columns.WithFollow(), consumer.WithStart(consumer.Earliest()), consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithRetryTimeout(0),
			consumer.WithRequestTimeout(10*time.Second), consumer.WithLogger(q.w.logger(q.plan.Name)), consumer.WithRandom(random))
		if err == nil || ctx.Err() != nil {
			break
		}
		q.w.note("%s: %v", q.plan.Name, err) // binding asks the control plane, once
		sleep(ctx, time.Second)
	}
	if query == nil {
		return ctx.Err()
	}
	defer func() { _ = query.Close() }()
	for batch, err := range query.Batches(ctx) {
		if q.w.leftGap(q.plan.Category, err) {
			continue
		}
		if err != nil {
			return err
		}
		writers, ok := batch.Column(0).(*array.Dictionary)
		numbers, ok2 := batch.Column(1).(*array.Int64)
		if !ok || !ok2 {
			return fmt.Errorf("columns of types %v and %v", batch.Column(0).DataType(), batch.Column(1).DataType())
		}
		q.mu.Lock()
		for row := range numbers.Len() {
			q.rows[history.ID{Writer: writers.ValueStr(row), Index: int(numbers.Value(row))}]++
		}
		q.mu.Unlock()
	}
	return nil
}

// compare says how the rows differ from those of a reading; lacking is whether only some have not come yet.
func (q *queryReader) compare(r *history.Reading) (difference string, lacking bool) {
	want := map[history.ID]int{}
	for _, id := range r.IDs() {
		if id.Index%q.plan.Modulus == 0 {
			want[id]++
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.w.compareCounts(q.w.category(q.plan.Category), q.rows, want)
}

// compareCounts says how often messages of a category came otherwise than a reader gets them; lacking is whether only some have not come
// yet.
func (w *world) compareCounts(c *categoryPlan, have, want map[history.ID]int) (difference string, lacking bool) {
	times := 1
	if c.Order == "sequenced" {
		times += int(w.recovery.count.Load()) // when it is sequenced anew, everything comes again
	}
	for id, n := range have {
		if n > times*want[id] {
			return fmt.Sprintf("%v came %d times, a reader gets it %d times", id, n, want[id]), false
		}
	}
	for id, n := range want {
		if have[id] < n {
			return fmt.Sprintf("%v came %d times, a reader gets it %d times", id, have[id], n), true
		}
	}
	return "", false
}

// follower makes a consumer with many lives for a plan.
func (w *world) follower(r readerPlan) *follow.Follower {
	c := w.newClient()
	var servers []string
	for _, name := range r.Via {
		servers = append(servers, w.process(name).url())
	}
	window := r.Window
	if window < 0 {
		window = history.Unbounded
	}
	recoveries := w.recovery.count.Load()
	return follow.New(w.history, follow.Config{
		Name: r.Name, Category: r.Category, Late: w.category(r.Category).Retention > 0, Window: window, Lifetime: r.Lifetime, Servers: servers, Rand: rngOf(w.plan.Seed, "reader "+r.Name),
		Rebuilt: func() bool { return w.recovery.count.Load() > recoveries }, Rest: w.restOf(r),
		Options: []consumer.Option{
			consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithRequestTimeout(10 * time.Second), consumer.WithRetryTimeout(0),
			consumer.WithHeartbeat(time.Second), consumer.WithLogger(w.logger(r.Name)), consumer.WithRandom(w.randomOf("reader " + r.Name)),
		},
	})
}

// read reads a category from its beginning to its end through one process.
func (w *world) read(ctx context.Context, category, via string, more ...consumer.Option) (*history.Reading, error) {
	c := w.newClient()
	defer c.transport.Close()
	r := w.history.Read(category)
	if w.category(category).Keys != nil {
		more = append(more, consumer.WithWindow(0)) // the messages of a key are in several logs
	}
	reader, err := consumer.New(w.process(via).url(), category, append(more, consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(),
		consumer.WithHTTPClient(c.transport.HTTPClient()), consumer.WithPrefetchBytes(1<<20), consumer.WithRequestTimeout(10*time.Second),
		consumer.WithBackoff(10*time.Millisecond, time.Second), consumer.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = reader.Close() }()
	base := uint64(0)
	for m, err := range reader.Records(ctx) {
		if gap := new(consumer.GapError); errors.As(err, &gap) && gap.Reason == consumer.GapTrimmed {
			continue // retention took them
		}
		if err != nil {
			return nil, err
		}
		if w.category(category).Order == "sequenced" {
			// The sequenced log is one: a message's number is its position.
			if r.Len() == 0 && m.Offset >= anew && w.recovery.count.Load() > 0 {
				base = m.Offset
				w.noteBase(category, base)
			}
			r.Record(m.Payload, m.LogicalShard, 1, m.Offset-base+1, 0, m.Persisted.UnixMicro())
			continue
		}
		r.Record(m.Payload, m.LogicalShard, uint64(m.Shard), m.LSN, m.Index, m.Persisted.UnixMicro())
	}
	return r, nil
}
