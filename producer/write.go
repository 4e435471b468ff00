package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/delivery"
	"scribe/internal/format/placement"
	"scribe/internal/format/record"
)

// errNoMemory means that the memory bound is used up for now. It is internal to the package.
var errNoMemory = errors.New("producer: no memory is free")

// Log writes a message to a category. It never waits: a message that is refused, or that fails later, is dropped,
// counted by reason ([Stats]) and passed to the hook of [WithOnDrop].
func (p *Producer) Log(category string, payload []byte) {
	c := p.sharedCore
	if len(payload) > c.maxMessage {
		c.refuseMessage(category, 0, int64(len(payload)), &MessageTooLargeError{Size: len(payload), Limit: c.maxMessage})
		return
	}
	var (
		m    = record.Message{Payload: payload}
		st   = c.stripeOf(category, 0)
		how  *placing
		now  = c.clock.readTime()
		held int64
		err  error
	)
	st.mu.Lock()
	s := st.mu.streams[Shard{category, 0}]
	switch {
	case st.mu.closed:
		err = ErrClosed
	case s == nil:
		s, err = c.streamOf(st, category, 0)
	}
	if err == nil && s.category != nil {
		if how = s.category.placing.Load(); how.choosesShard() || c.cfg.partitioner != nil {
			st.mu.Unlock()
			p.LogMessage(category, &Message{Payload: payload})
			return
		}
	}
	if err == nil && !s.addPayload(payload, how, p.ack, now) {
		_, err = c.addMessage(s, &m, how, len(payload)+encodedExtra, p.ack, now, &held)
	}
	st.mu.Unlock()
	if err != nil {
		c.refuseMessage(category, 0, int64(len(payload)), err)
	}
}

// LogMessage is [Producer.Log] for a message with a key, a time, attributes or a shard.
func (p *Producer) LogMessage(category string, m *Message) {
	w := p.newAdder(category, false)
	if _, err := w.addWaiting(context.Background(), m); err != nil {
		p.refuseMessage(category, m.Shard, int64(m.Size()), err)
	}
}

// WriteAsync accepts a message and returns its pending result. It never waits: if the buffer is full, the result has failed with
// [ErrBufferFull].
func (p *Producer) WriteAsync(category string, m *Message) *Result {
	return p.writeAsync(context.Background(), category, m, false)
}

// WriteAsyncContext is [Producer.WriteAsync], but waits for space in the buffer until ctx ends. It does not wait for the outcome. Of a new
// category it waits until it is known how its messages are placed, unless there are hundreds of them a second: see [Producer.Prepare].
func (p *Producer) WriteAsyncContext(ctx context.Context, category string, m *Message) *Result {
	return p.writeAsync(ctx, category, m, true)
}

func (p *Producer) writeAsync(ctx context.Context, category string, m *Message, wait bool) *Result {
	w := p.newAdder(category, wait)
	if wait && w.cat != nil && !w.cat.known.Load() && p.categories.waits.Allow() { // else who writes to thousands would wait for each
		p.categories.await(ctx, w.cat)
	}
	r, err := w.addWaiting(ctx, m)
	if err != nil {
		p.countRefused(1)
		return settledResult(err)
	}
	return r
}

// messageAdder adds the messages of one call to one category.
type messageAdder struct {
	*sharedCore
	category string
	ack      AckLevel
	wait     bool // for memory
	now      time.Time
	s        *shardStream       // of the message before, or of shard 0; nil if that is new. Streams are never removed
	cat      *categoryState     // nil if callers place the messages
	scratch  *placement.Scratch // nil until a message is placed by its value
	// urgent has the streams with messages of the call, where it needs several.
	urgent map[*shardStream]struct{}
}

// newAdder returns a messageAdder for one call.
func (p *Producer) newAdder(category string, wait bool) messageAdder {
	w := messageAdder{sharedCore: p.sharedCore, category: category, ack: p.ack, wait: wait, now: p.clock.readTime()}
	// Most messages go to shard 0, whose stream is needed below: who looks for it first need not look for the category.
	if w.s = p.stripeOf(category, 0).findStream(category, 0); w.s != nil {
		w.cat = w.s.category
	} else {
		w.cat = p.categories.stateOf(category)
	}
	return w
}

// choosePlace returns the shard of a message, and how it was placed.
func (w *messageAdder) choosePlace(m *Message) (shard uint32, p *placing, err error) {
	if w.scratch == nil && w.cat != nil && w.cat.placing.Load().placesByValue() {
		w.scratch = new(placement.Scratch)
	}
	return w.placeMessage(w.cat, m, w.scratch, w.now)
}

// stripeFor returns the stripe of a shard.
func (w *messageAdder) stripeFor(shard uint32) *streamStripe {
	if w.s != nil && w.s.shard.Number == shard {
		return w.s.stripe
	}
	return w.stripeOf(w.category, shard)
}

// tooLarge returns an error if a message exceeds a limit that does not depend on free memory.
func (w *messageAdder) tooLarge(m *Message) error {
	if size := m.Size(); size > w.maxMessage {
		return &MessageTooLargeError{Size: size, Limit: w.maxMessage}
	}
	if len(m.Attributes) > record.MaxAttributes {
		return fmt.Errorf("%w: %d attributes, the limit is %d", ErrTooLarge, len(m.Attributes), record.MaxAttributes)
	}
	return nil
}

// addWaiting adds a message. With w.wait it waits for memory, otherwise it fails with ErrBufferFull.
func (w *messageAdder) addWaiting(ctx context.Context, m *Message) (*Result, error) {
	if err := w.tooLarge(m); err != nil {
		return nil, err
	}
	var (
		bound = m.encodedBound()
		held  int64
	)
	defer func() {
		if held > 0 {
			w.memory.giveBack(held)
		}
	}()
	for {
		shard, p, err := w.choosePlace(m)
		if err != nil {
			return nil, err
		}
		st := w.stripeFor(shard)
		st.mu.Lock()
		r, err := w.appendMessage(st, m, shard, p, bound, &held)
		st.mu.Unlock()
		if errors.Is(err, errMoved) {
			continue
		}
		if !errors.Is(err, errNoMemory) {
			return r, err
		}
		if !w.wait {
			w.noteShortage(0)
			w.sched.DepartNow()
			return nil, ErrBufferFull
		}
		if err := w.waitForMemory(ctx, record.HeaderLen+len(w.category)+bound, &held); err != nil {
			return nil, err
		}
		w.now = w.clock.readTime() // the wait may have been long
	}
}

// maxRun bounds the bytes that are copied during one hold of a stripe's mutex.
const maxRun = 256 << 10

// addRun adds leading messages of one shard until one needs a wait or an error, and returns their number. It locks the mutex and
// finds the stream once: for small messages that costs more than the copy.
func (w *messageAdder) addRun(msgs []Message, b *Batch) int {
	shard, p, err := w.choosePlace(&msgs[0])
	if err != nil {
		return 0
	}
	var (
		st   = w.stripeFor(shard)
		held int64 // stays 0: no memory was reserved by a wait
		size int
	)
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := 0; i < len(msgs); {
		if !p.choosesShard() {
			if n, bytes := w.addPayloads(st, msgs[i:], p, maxRun-size); n > 0 {
				b.addResult(w.s.open.out, n)
				i += n
				size += bytes
				continue
			}
		}
		m := &msgs[i]
		if m.Shard != msgs[0].Shard || size > maxRun || w.tooLarge(m) != nil {
			return i
		}
		if i > 0 && p.choosesShard() {
			if at, now, err := w.choosePlace(m); err != nil || at != shard || now != p {
				return i
			}
		}
		bound := m.encodedBound()
		r, err := w.appendMessage(st, m, shard, p, bound, &held)
		if err != nil {
			return i
		}
		size += bound
		b.addResult(r, 1)
		i++
	}
	return len(msgs)
}

// addPayloads is the fast path of appendMessage: it adds leading messages that have only a payload, for the shard of the previous
// message, while they fit the open frame and the limit of most bytes. It returns their number and bytes. The stripe's mutex is
// held.
func (w *messageAdder) addPayloads(st *streamStripe, msgs []Message, p *placing, most int) (n, bytes int) {
	if st.mu.closed || w.s == nil || w.s.shard.Number != msgs[0].Shard { // another shard may be in another stripe
		return 0, 0
	}
	if w.isMoved(p) {
		return 0, 0
	}
	f := w.s.plainFrame(p, w.ack, w.now)
	if f == nil {
		return 0, 0
	}
	number := w.s.shard.Number
	for ; n < len(msgs) && bytes <= most; n++ {
		m := &msgs[n]
		if m.Shard != number || m.Key != nil || len(m.Attributes) > 0 || !m.Time.IsZero() ||
			!f.hasSpace(len(m.Payload)+encodedExtra) || f.builder.AppendPayload(m.Payload) != nil {
			break
		}
		bytes += len(m.Payload)
	}
	w.s.countTaken(f, n, bytes)
	return n, bytes
}

// appendMessage adds a message. The stripe's mutex is held.
func (w *messageAdder) appendMessage(st *streamStripe, m *Message, shard uint32, p *placing, bound int, held *int64) (*Result, error) {
	if st.mu.closed {
		return nil, ErrClosed
	}
	if w.isMoved(p) {
		return nil, errMoved
	}
	if w.s == nil || w.s.shard.Number != shard {
		s, err := w.streamOf(st, w.category, shard)
		if err != nil {
			return nil, err
		}
		w.s = s
	}
	rm := record.Message{Payload: m.Payload, Key: m.Key, Time: m.Time, Attributes: m.Attributes}
	return w.addMessage(w.s, &rm, p, bound, w.ack, w.now, held)
}

// isMoved reports whether the category places messages differently than a message was placed. A stripe's mutex is held: the answer
// holds for as long, see switchPlacing.
func (w *messageAdder) isMoved(p *placing) bool { return w.cat != nil && w.cat.placing.Load() != p }

// waitForMemory waits until memory for a buffer of n bytes is free, charges it and sets held to the charge. Callers are served in
// order, so that small messages do not starve a large one.
func (c *sharedCore) waitForMemory(ctx context.Context, n int, held *int64) error {
	charge := c.bufferSize(n) + frameOverhead
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	if !c.memory.tryTake(charge) {
		c.noteShortage(charge)
		c.sched.DepartNow() // it takes memory
		if c.memory.takeWhenFree(ctx, charge) != nil {
			if err := context.Cause(ctx); !errors.Is(err, ErrClosed) {
				return fmt.Errorf("%w: no memory came free: %w", ErrBufferFull, err)
			}
			return ErrClosed
		}
	}
	*held = charge
	return nil
}

// Write writes a batch and waits until every message is acknowledged or has failed. Its error is a *[BatchError] that lists the
// failed messages. The batch is sent without lingering, together with other buffered messages of its shards. If the buffer is
// full, Write waits for space.
//
// If ctx ends first, the producer continues to send accepted messages; their errors match [ErrUnknownOutcome].
func (p *Producer) Write(ctx context.Context, category string, msgs ...Message) error {
	var b Batch
	p.addBatch(ctx, &b, category, msgs, true)
	return b.Wait(ctx)
}

// WriteBatchAsync accepts a batch. It is equivalent to WriteAsyncContext for each message, but cheaper: use it for many small
// messages. It waits for space in the buffer until ctx ends, but not for the outcome. Messages linger.
func (p *Producer) WriteBatchAsync(ctx context.Context, category string, msgs ...Message) *Batch {
	b := new(Batch)
	p.addBatch(ctx, b, category, msgs, false)
	return b
}

// addBatch adds messages; urgent ones do not linger.
func (p *Producer) addBatch(ctx context.Context, b *Batch, category string, msgs []Message, urgent bool) {
	w := p.newAdder(category, true)
	p.categories.await(ctx, w.cat)
	b.spans, b.total = b.few[:0], len(msgs)
	for i := 0; i < len(msgs); {
		n := w.addRun(msgs[i:], b)
		if n == 0 {
			r, err := w.addWaiting(ctx, &msgs[i])
			if err != nil {
				w.countRefused(1)
				r = settledResult(err)
			}
			b.addResult(r, 1)
			n = 1
		}
		i += n
		switch {
		case !urgent || w.s == nil:
		case w.s.category != nil && w.s.category.placing.Load().choosesShard(): // messages of many shards alternate
			if w.urgent == nil {
				w.urgent = make(map[*shardStream]struct{})
			}
			w.urgent[w.s] = struct{}{}
		case i == len(msgs) || msgs[i].Shard != msgs[i-1].Shard:
			w.hurryStream(w.s)
		}
	}
	for s := range w.urgent {
		w.hurryStream(s)
	}
}

// hurryStream makes the stream's open frame due: somebody waits for it.
func (c *sharedCore) hurryStream(s *shardStream) {
	if s == nil {
		return
	}
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	s.noteAwaited()
	if s.open != nil {
		s.urgent = true
	}
	c.scheduleStream(s)
}

// WriteAtomic writes an atomic batch as one frame, and waits for its acknowledgement. All messages go to the shard of the call, which
// is as [Message.Shard]; their own Shard fields are ignored. Where the category places messages, they must all belong to one shard. A batch that does not fit a frame or the producer's memory fails with [ErrTooLarge].
func (p *Producer) WriteAtomic(ctx context.Context, category string, shard uint32, msgs ...Message) error {
	if len(msgs) == 0 {
		return nil
	}
	c := p.sharedCore
	bound, size := 0, int64(0)
	for i := range msgs {
		if n := msgs[i].Size(); n > c.maxMessage {
			c.countRefused(len(msgs))
			return &BatchError{Messages: []MessageError{{i, &MessageTooLargeError{Size: n, Limit: c.maxMessage}}}, Total: len(msgs)}
		}
		bound += msgs[i].encodedBound()
		size += int64(msgs[i].Size())
	}
	return c.writeFrame(ctx, frameContent{
		category: category, ack: p.ack, atomic: true, bound: bound, messages: len(msgs), size: size,
		place: func(cat *categoryState, how *placing) (uint32, error) {
			return c.placeTogether(cat, how, shard, msgs, c.clock.readTime())
		},
		fill: func(f *outFrame, _ record.Envelope) error {
			for i := range msgs {
				m := &msgs[i]
				if err := f.builder.Append(&record.Message{Payload: m.Payload, Key: m.Key, Time: m.Time, Attributes: m.Attributes}); err != nil {
					if errors.Is(err, record.ErrFrameFull) {
						return fmt.Errorf("%w: %d messages of %d bytes do not fit one frame", ErrTooLarge, len(msgs), size)
					}
					return &BatchError{Messages: []MessageError{{i, fromRecord(err)}}, Total: len(msgs)}
				}
			}
			f.length = f.builder.Len()
			return nil
		},
	})
}

// WriteArrow writes the Arrow frame whose body encode returns (docs/format/frame.md), and waits for its acknowledgement. It
// writes nothing if rows is 0. Package producer/columns uses it to write record batches, so that this package does not link
// Arrow.
func (p *Producer) WriteArrow(ctx context.Context, category string, shard uint32, rows int, encode func() ([]byte, error)) error {
	err := p.WriteArrowRows(ctx, category, ArrowRows{Shard: shard, Rows: rows}, encode)
	if errors.Is(err, errMoved) {
		return fmt.Errorf("%w: category %s places rows by a column: use columns.Write", ErrInvalid, category)
	}
	return err
}

// ArrowRows are rows for one shard.
type ArrowRows struct {
	Shard uint32
	Rows  int
	// Layout is the layout by which the rows were placed in the shard; nil if they were not.
	Layout *placement.Layout
}

// Layout returns the layout by which rows have to be placed before they are written with WriteArrowRows; nil if they need not be. It
// waits for the category like a write.
func (p *Producer) Layout(ctx context.Context, category string) *placement.Layout {
	cat := p.categories.stateOf(category)
	if cat == nil {
		return nil
	}
	p.categories.await(ctx, cat)
	if how := cat.placing.Load(); how != nil && how.layout != nil && how.layout.Kind() == placement.ByField {
		return how.layout
	}
	return nil
}

// IsMoved reports whether WriteArrowRows wrote nothing because the category has another layout now.
func IsMoved(err error) bool { return errors.Is(err, errMoved) }

// WriteArrowRows is [Producer.WriteArrow] for rows that were placed, for package producer/columns.
func (p *Producer) WriteArrowRows(ctx context.Context, category string, part ArrowRows, encode func() ([]byte, error)) error {
	rows := part.Rows
	if rows == 0 {
		return nil
	}
	body, err := encode()
	if err == nil && rows > record.MaxMessagesPerFrame {
		err = fmt.Errorf("%w: %d rows, the limit is %d", ErrTooLarge, rows, record.MaxMessagesPerFrame)
	}
	if err != nil {
		p.countRefused(rows)
		return err
	}
	return p.writeFrame(ctx, frameContent{
		category: category, ack: p.ack, bound: len(body), messages: rows, size: int64(len(body)),
		place: func(cat *categoryState, how *placing) (uint32, error) {
			return p.placeRows(cat, how, part, len(body), p.clock.readTime())
		},
		fill: func(f *outFrame, env record.Envelope) error {
			data, err := record.AppendArrowFrame(f.buf.B[:0], env, rows, body)
			if err != nil {
				return fromRecord(err)
			}
			f.builder = record.Builder{} // newFrame began a frame of rows in the same buffer
			f.data, f.length = data, len(data)
			return nil
		},
	})
}

// frameContent describes a frame that one call fills: an atomic batch or an Arrow frame.
type frameContent struct {
	category string
	ack      AckLevel
	atomic   bool
	// place returns the shard, if the category, which may be nil, places messages so.
	place    func(*categoryState, *placing) (uint32, error)
	bound    int // upper bound of the body in bytes
	messages int
	size     int64
	// fill encodes the body. It sets the frame's length, and also its data if it does not use the builder.
	fill func(*outFrame, record.Envelope) error
}

// writeFrame builds a frame, queues it after the stream's other frames, and waits for its outcome.
func (c *sharedCore) writeFrame(ctx context.Context, w frameContent) error {
	cat := c.categories.stateOf(w.category)
	c.categories.await(ctx, cat)
	var (
		r   *Result
		err = errMoved
	)
	for errors.Is(err, errMoved) {
		var (
			how   *placing
			shard uint32
		)
		if cat != nil {
			how = cat.placing.Load()
		}
		if shard, err = w.place(cat, how); err != nil {
			break // it may be errMoved: then the caller places the rows again
		}
		r, err = c.addFrame(ctx, w, cat, how, shard)
	}
	if err != nil {
		c.countRefused(w.messages)
		return err
	}
	return r.Wait(ctx)
}

func (c *sharedCore) addFrame(ctx context.Context, w frameContent, cat *categoryState, how *placing, shard uint32) (*Result, error) {
	env := record.Envelope{Category: w.category, Shard: shard, Atomic: w.atomic, BaseTime: c.clock.readTime().UnixMicro(), Placement: tagOf(how)}
	var (
		held int64
		f    *outFrame
		err  error
	)
	for f == nil {
		if f, err = c.newFrame(0, &env, w.bound, w.ack, &held); errors.Is(err, errNoMemory) {
			err = c.waitForMemory(ctx, record.HeaderLen+len(w.category)+w.bound, &held)
		}
		if err != nil {
			return nil, err
		}
	}
	if err := w.fill(f, env); err != nil {
		c.recycleFrame(f)
		return nil, err
	}
	f.count, f.messages, f.size, f.placing = w.messages, w.messages, w.size, how
	st := c.stripeOf(w.category, shard)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.closed {
		c.recycleFrame(f)
		return nil, ErrClosed
	}
	if cat != nil && cat.placing.Load() != how {
		c.recycleFrame(f)
		return nil, errMoved
	}
	s, err := c.streamOf(st, w.category, shard)
	if err != nil {
		c.recycleFrame(f)
		return nil, err
	}
	c.categories.refresh(cat, f.taken)
	if s.open != nil {
		c.sealFrame(s, false)
	}
	s.pushFrame(f)
	f.base = time.UnixMicro(env.BaseTime)
	c.counts.noteFrame(w.category, f.base, delivery.Counts{Produced: int64(f.messages)})
	st.mu.count.accepted.addFrame(f)
	r := f.out // the sender owns f once it is scheduled and the mutex is unlocked
	c.scheduleStream(s)
	return r, nil
}
