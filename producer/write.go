package producer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"scribe/internal/format/record"
)

// errNoMemory says that memory is full for now. It does not leave the package.
var errNoMemory = errors.New("producer: no memory is free")

// Log takes a message for shard 0 of a category, and never waits: a message that can't be taken, or not delivered later, is
// dropped, counted by reason ([Stats]) and told to the hook of [WithOnDrop].
func (p *Producer) Log(category string, payload []byte) {
	c := p.sharedCore
	if len(payload) > c.maxMessage {
		c.refuseMessage(category, 0, int64(len(payload)), &MessageTooLargeError{Size: len(payload), Limit: c.maxMessage})
		return
	}
	var (
		m    = record.Message{Payload: payload}
		st   = c.stripeOf(category, 0)
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
	if err == nil && !s.addPayload(payload, p.ack, now) {
		_, err = c.addMessage(s, &m, len(payload)+encodedExtra, p.ack, now, &held)
	}
	st.mu.Unlock()
	if err != nil {
		c.refuseMessage(category, 0, int64(len(payload)), err)
	}
}

// LogMessage is Log for a message with more than a payload.
func (p *Producer) LogMessage(category string, m *Message) {
	w := messageAdder{sharedCore: p.sharedCore, category: category, ack: p.ack, now: p.clock.readTime()}
	if _, err := w.addWaiting(context.Background(), m); err != nil {
		p.refuseMessage(category, m.Shard, int64(m.Size()), err)
	}
}

// WriteAsync takes a message and returns its pending result. It never waits: when the buffer is full, the result has failed with
// [ErrBufferFull].
func (p *Producer) WriteAsync(category string, m *Message) *Result {
	return p.writeAsync(context.Background(), category, m, false)
}

// WriteAsyncContext is [Producer.WriteAsync], but waits for space in the buffer until ctx ends. It does not wait for the outcome.
func (p *Producer) WriteAsyncContext(ctx context.Context, category string, m *Message) *Result {
	return p.writeAsync(ctx, category, m, true)
}

func (p *Producer) writeAsync(ctx context.Context, category string, m *Message, wait bool) *Result {
	w := messageAdder{sharedCore: p.sharedCore, category: category, ack: p.ack, wait: wait, now: p.clock.readTime()}
	r, err := w.addWaiting(ctx, m)
	if err != nil {
		p.countRefused(1)
		return settledResult(err)
	}
	return r
}

// messageAdder is the adding of messages to one category by one call.
type messageAdder struct {
	*sharedCore
	category string
	ack      AckLevel
	wait     bool // for memory
	now      time.Time
	s        *shardStream // of the message before; streams are never removed
}

// tooLarge says that a message can't be sent however much memory is free, nil when it can.
func (w *messageAdder) tooLarge(m *Message) error {
	if size := m.Size(); size > w.maxMessage {
		return &MessageTooLargeError{Size: size, Limit: w.maxMessage}
	}
	if len(m.Attributes) > record.MaxAttributes {
		return fmt.Errorf("%w: %d attributes, the limit is %d", ErrTooLarge, len(m.Attributes), record.MaxAttributes)
	}
	return nil
}

// addWaiting adds a message.
func (w *messageAdder) addWaiting(ctx context.Context, m *Message) (*Result, error) {
	if err := w.tooLarge(m); err != nil {
		return nil, err
	}
	var (
		st    = w.stripeOf(w.category, m.Shard)
		bound = m.encodedBound()
		held  int64
	)
	defer func() {
		if held > 0 {
			w.memory.giveBack(held)
		}
	}()
	for {
		r, err := w.addLocked(st, m, bound, &held)
		if !errors.Is(err, errNoMemory) {
			return r, err
		}
		if !w.wait {
			w.sched.EndLingering()
			return nil, ErrBufferFull
		}
		if err := w.waitForMemory(ctx, record.HeaderLen+len(w.category)+bound, &held); err != nil {
			return nil, err
		}
		w.now = w.clock.readTime() // the wait may have been long
	}
}

// addLocked adds a message under the stripe's mutex.
func (w *messageAdder) addLocked(st *streamStripe, m *Message, bound int, held *int64) (*Result, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	return w.appendMessage(st, m, bound, held)
}

// maxRun bounds the bytes that are copied in one hold of a stripe's mutex, which others wait for.
const maxRun = 256 << 10

// addRun adds messages of one shard as far as nothing stands in the way, and returns how many. It takes the mutex once: that, and
// finding the stream, costs more than the copy of a small message.
func (w *messageAdder) addRun(msgs []Message, b *Batch) int {
	var (
		st   = w.stripeOf(w.category, msgs[0].Shard)
		held int64 // stays 0: nothing was waited for
		size int
	)
	st.mu.Lock()
	defer st.mu.Unlock()
	for i := 0; i < len(msgs); {
		if n, bytes := w.addPayloads(st, msgs[i:], maxRun-size); n > 0 {
			b.addResult(w.s.open.out, n)
			i += n
			size += bytes
			continue
		}
		m := &msgs[i]
		if m.Shard != msgs[0].Shard || size > maxRun || w.tooLarge(m) != nil {
			return i
		}
		bound := m.encodedBound()
		r, err := w.appendMessage(st, m, bound, &held)
		if err != nil {
			return i
		}
		size += bound
		b.addResult(r, 1)
		i++
	}
	return len(msgs)
}

// addPayloads adds messages that are nothing but a payload, of the shard that was written to last, as far as they fit the open frame
// and up to so many bytes. It returns how many, and their bytes. It is append for the usual case. The stripe's mutex is held.
func (w *messageAdder) addPayloads(st *streamStripe, msgs []Message, most int) (n, bytes int) {
	if st.mu.closed || w.s == nil || w.s.shard.Number != msgs[0].Shard { // another shard may be of another stripe
		return 0, 0
	}
	f := w.s.plainFrame(w.ack, w.now)
	if f == nil {
		return 0, 0
	}
	for ; n < len(msgs) && bytes <= most; n++ {
		m := &msgs[n]
		if m.Shard != w.s.shard.Number || m.Key != nil || len(m.Attributes) > 0 || !m.Time.IsZero() ||
			!f.hasSpace(len(m.Payload)+encodedExtra) || f.builder.AppendPayload(m.Payload) != nil {
			break
		}
		bytes += len(m.Payload)
	}
	w.s.countTaken(f, n, bytes)
	return n, bytes
}

// appendMessage adds a message. The stripe's mutex is held.
func (w *messageAdder) appendMessage(st *streamStripe, m *Message, bound int, held *int64) (*Result, error) {
	if st.mu.closed {
		return nil, ErrClosed
	}
	if w.s == nil || w.s.shard.Number != m.Shard {
		s, err := w.streamOf(st, w.category, m.Shard)
		if err != nil {
			return nil, err
		}
		w.s = s
	}
	rm := record.Message{Payload: m.Payload, Key: m.Key, Time: m.Time}
	if len(m.Attributes) > 0 {
		st.mu.scratch = m.appendAttributes(st.mu.scratch)
		rm.Attributes = st.mu.scratch
	}
	return w.addMessage(w.s, &rm, bound, w.ack, w.now, held)
}

// waitForMemory waits until a buffer of n bytes can be had, and takes its bytes into held. Callers are served in order, so a large
// message is not starved by small ones.
func (c *sharedCore) waitForMemory(ctx context.Context, n int, held *int64) error {
	charge := c.bufferSize(n) + frameOverhead
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.closing, func() { cancel(ErrClosed) })()
	if !c.memory.tryTake(charge) {
		c.sched.EndLingering()
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

// Write writes a batch and waits until every message is acknowledged or has failed: then the error is a *[BatchError] that names
// the failed ones. They are sent at once, without lingering; other messages of their categories go with them. When the
// buffer is full, Write waits for space.
//
// When ctx ends, messages that were taken are still sent; their errors match [ErrUnknownOutcome].
func (p *Producer) Write(ctx context.Context, category string, msgs ...Message) error {
	var b Batch
	p.addBatch(ctx, &b, category, msgs, true)
	return b.Wait(ctx)
}

// WriteBatchAsync takes a batch, like WriteAsyncContext each of its messages, for less: it is the way to write many small messages.
// It waits for space in the buffer until ctx ends, and not for the outcome; messages linger for company.
func (p *Producer) WriteBatchAsync(ctx context.Context, category string, msgs ...Message) *Batch {
	b := new(Batch)
	p.addBatch(ctx, b, category, msgs, false)
	return b
}

// addBatch adds messages; urgent ones do not linger.
func (p *Producer) addBatch(ctx context.Context, b *Batch, category string, msgs []Message, urgent bool) {
	w := messageAdder{sharedCore: p.sharedCore, category: category, ack: p.ack, wait: true, now: p.clock.readTime()}
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
		if urgent && (i == len(msgs) || msgs[i].Shard != msgs[i-1].Shard) {
			w.hurryStream(w.s)
		}
	}
}

// hurryStream sends what the stream has without lingering.
func (c *sharedCore) hurryStream(s *shardStream) {
	if s == nil {
		return
	}
	s.stripe.mu.Lock()
	defer s.stripe.mu.Unlock()
	if s.open != nil {
		s.urgent = true
		c.scheduleStream(s)
	}
}

// WriteAtomic writes a batch as one frame, which is stored and delivered contiguously or not at all, and waits for its
// acknowledgement. All messages go to the shard that the call names; those of the messages are not looked at. A batch that does
// not fit a frame, or this producer's memory, fails with a *[MessageTooLargeError].
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
		category: category, shard: shard, ack: p.ack, atomic: true, bound: bound, messages: len(msgs), size: size,
		fill: func(f *outFrame, _ record.Envelope) error {
			var scratch []record.Attribute
			for i := range msgs {
				m := &msgs[i]
				scratch = m.appendAttributes(scratch)
				if err := f.builder.Append(&record.Message{Payload: m.Payload, Key: m.Key, Time: m.Time, Attributes: scratch}); err != nil {
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

// frameContent is what a call fills a frame of its own with.
type frameContent struct {
	category string
	shard    uint32
	ack      AckLevel
	atomic   bool
	bound    int // bytes of body, at most
	messages int
	size     int64
	// fill encodes the body. It sets the frame's length, and its data when it does not use the builder.
	fill func(*outFrame, record.Envelope) error
}

// writeFrame builds the frame, queues it after what its stream has, and waits.
func (c *sharedCore) writeFrame(ctx context.Context, w frameContent) error {
	r, err := c.addFrame(ctx, w)
	if err != nil {
		c.countRefused(w.messages)
		return err
	}
	return r.Wait(ctx)
}

func (c *sharedCore) addFrame(ctx context.Context, w frameContent) (*Result, error) {
	env := record.Envelope{Category: w.category, Shard: w.shard, Atomic: w.atomic, BaseTime: c.clock.readTime().UnixMicro()}
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
	f.count, f.messages, f.size = w.messages, w.messages, w.size
	st := c.stripeOf(w.category, w.shard)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.mu.closed {
		c.recycleFrame(f)
		return nil, ErrClosed
	}
	s, err := c.streamOf(st, w.category, w.shard)
	if err != nil {
		c.recycleFrame(f)
		return nil, err
	}
	if s.open != nil {
		c.sealFrame(s, false)
	}
	s.pushFrame(f)
	st.mu.count.accepted += uint64(w.messages)
	st.mu.count.acceptedBytes += uint64(w.size)
	r := f.out // f is the sender's once it is scheduled and the mutex released
	c.scheduleStream(s)
	return r, nil
}
