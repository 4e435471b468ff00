package producer

import (
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/internal/format/record"
)

// MaxStreams is how many different (category, shard) a producer writes to. It remembers the sequences of each, in about 300
// bytes, for as long as it lives.
const MaxStreams = 1 << 20

// Shard names a logical shard of a category.
type Shard struct {
	Category string
	Number   uint32
}

// String is "category/number".
func (s Shard) String() string { return fmt.Sprintf("%s/%d", s.Category, s.Number) }

// stripes is the number of locks that streams share, so that producing to different categories rarely meets at one.
const stripes = 16

// streamStripe holds some of the streams.
type streamStripe struct {
	mu struct {
		sync.Mutex
		streams map[Shard]*shardStream
		scratch []record.Attribute // of the message being added
		closed  bool               // takes no more messages
		count   messageCounts
		_       [64]byte // keeps the next stripe's mutex off this one's cache line
	}
}

// messageCounts are messages and their bytes since the start. What was accepted and is in neither of the others is buffered, so the sum
// holds at all times.
type messageCounts struct {
	accepted, acceptedBytes uint64
	acked, ackedBytes       uint64
	sampled, sampledBytes   uint64
	failed, failedBytes     uint64
	// Of the failed ones, those that Close left.
	unsent, unsentBytes, unsentUnknown uint64
}

// shardStream is one (category, shard): its messages are sent in the order in which they were taken. Its stripe's mutex guards it.
type shardStream struct {
	shard  Shard
	stripe *streamStripe

	open       *outFrame // takes messages; nil when none wait for company
	head, tail *outFrame // sealed frames that no request carries, in order
	bufferSize int64     // of the next frame: it follows the traffic

	// opens counts frames that were opened, to tell whether the open one is the one that a timer was set for.
	opens uint64
	// urgent says that the open frame is to be sent as soon as the stream may send.
	urgent bool
	// inFlight says that a request carries frames of this stream. There is never a second one, which keeps the order, and makes
	// numbering and renumbering frames safe.
	inFlight bool
	flight   []*outFrame // those frames
	// ready says that it is in the scheduler's queue, parked that it waits there for a time.
	ready, parked bool
	failures      int // attempts in a row without progress

	// Sequences: next is that of the next message to be numbered, acked follows the last acknowledged one. A frame is numbered
	// when it is first sent, with the epoch at that time. After a numbered frame was given up, the numbers have a hole that a
	// server would wait for; a new epoch may begin with any number, and shuts out late copies of what was given up.
	epoch uint32
	next  uint64
	acked uint64
	// known is the newest epoch of which a frame was acknowledged. A server takes any first number in an epoch that it does not
	// know: if two frames went out and it refused the first for lack of memory, the second would begin the epoch, and the first
	// look like a repetition for ever. So an epoch's first frame goes without company of its own stream.
	known uint32
}

// stripeOf returns the stripe of a shard.
func (c *sharedCore) stripeOf(category string, shard uint32) *streamStripe {
	h := maphash.String(c.seed, category) + uint64(shard)*0x9e3779b97f4a7c15
	return &c.stripes[h>>32%stripes]
}

// streamOf returns the stream of a shard, and makes it when it is new. The stripe's mutex is held.
func (c *sharedCore) streamOf(st *streamStripe, category string, shard uint32) (*shardStream, error) {
	if s, ok := st.mu.streams[Shard{category, shard}]; ok {
		return s, nil
	}
	if err := record.ValidateCategory(category); err != nil {
		return nil, fromRecord(err)
	}
	if shard > record.MaxLogicalShard {
		return nil, fmt.Errorf("%w: logical shard %d, the highest is %d", ErrInvalid, shard, record.MaxLogicalShard)
	}
	if len(st.mu.streams) >= MaxStreams/stripes*2 || c.streams.Add(1) > MaxStreams {
		return nil, ErrTooManyStreams
	}
	id := Shard{strings.Clone(category), shard} // the caller's string may be a part of a large one
	s := &shardStream{shard: id, stripe: st, epoch: c.epoch}
	if q, ok := c.resume[id]; ok {
		s.epoch, s.next, s.acked = q.Epoch, q.Next, q.Next
	}
	if st.mu.streams == nil {
		st.mu.streams = make(map[Shard]*shardStream)
	}
	st.mu.streams[id] = s
	return s, nil
}

// stampAfter is how far the clock may be from a frame's base time until messages carry a time of their own.
// Within a frame under load, which lasts for a few milliseconds, they are all alike: a time is three bytes or more beside a
// message, which the compression of payloads pays for.
const stampAfter = 5 * time.Millisecond

// plainFrame returns the open frame if messages that come now need nothing but their payload in it; else nil. The stripe's mutex is held.
func (s *shardStream) plainFrame(ack AckLevel, now time.Time) *outFrame {
	f := s.open
	if f == nil || f.ack != ack {
		return nil
	}
	if d := now.Sub(f.base); d >= stampAfter || d <= -stampAfter {
		return nil
	}
	return f
}

// countTaken counts messages that the open frame took.
func (s *shardStream) countTaken(f *outFrame, messages, bytes int) {
	f.size += int64(bytes)
	n := &s.stripe.mu.count
	n.accepted += uint64(messages)
	n.acceptedBytes += uint64(bytes)
}

// addPayload is add for a message that is nothing but a payload, when the open frame takes it as it is. The stripe's mutex is held.
func (s *shardStream) addPayload(payload []byte, ack AckLevel, now time.Time) bool {
	f := s.plainFrame(ack, now)
	if f == nil || !f.hasSpace(len(payload)+encodedExtra) || f.builder.AppendPayload(payload) != nil {
		return false
	}
	s.countTaken(f, 1, len(payload))
	return true
}

// addMessage appends a message to the stream's open frame, and opens one when there is none or it is full. held is what a wait for
// memory has taken; what is used of it is set to 0. The stripe's mutex is held.
//
// The error errNoMemory means that the message fits when memory becomes free.
func (c *sharedCore) addMessage(s *shardStream, m *record.Message, bound int, ack AckLevel, now time.Time, held *int64) (*Result, error) {
	for range 2 {
		f := s.open
		if f != nil && (f.ack != ack || !f.hasSpace(bound)) {
			c.sealFrame(s, true)
			c.scheduleStream(s)
			f = nil
		}
		if f == nil {
			var err error
			env := record.Envelope{Category: s.shard.Category, Shard: s.shard.Number, BaseTime: now.UnixMicro()}
			if f, err = c.newFrame(s.bufferSize, &env, bound, ack, held); err != nil {
				return nil, err
			}
			f.base = now
			c.openFrame(s, f)
		}
		if m.Time.IsZero() {
			// Cut to stampAfter, so that messages that come close together differ by nothing from one another: that is a byte each,
			// and always the same, where times to the microsecond are noise that the compression of payloads pays for.
			if d := now.Sub(f.base).Truncate(stampAfter); d != 0 {
				m.Time = f.base.Add(d)
			}
		}
		err := f.builder.Append(m)
		switch {
		case err == nil:
			s.countTaken(f, 1, m.Size())
			return f.out, nil
		case f.builder.Count() == 0:
			s.open, s.urgent = nil, false
			c.recycleFrame(f)
			return nil, fromRecord(err)
		case err != record.ErrFrameFull: //nolint:errorlint // a sentinel, returned as it is
			return nil, fromRecord(err)
		}
		c.sealFrame(s, true) // the frame has as many messages as a frame may have
		c.scheduleStream(s)
	}
	return nil, fmt.Errorf("%w: message does not fit an empty frame", ErrTooLarge)
}

// newFrame makes an empty frame with a buffer for n bytes of messages, and of the wanted size if memory allows. held is as in add.
func (c *sharedCore) newFrame(wanted int64, env *record.Envelope, n int, ack AckLevel, held *int64) (*outFrame, error) {
	need := record.HeaderLen + len(env.Category) + n
	size := c.bufferSize(need)
	switch {
	case size+frameOverhead > c.memory.total:
		return nil, &MessageTooLargeError{Size: n, Limit: int(c.memory.total) - frameOverhead - record.HeaderLen - record.MaxCategoryName}
	case *held >= size+frameOverhead:
		c.memory.giveBack(*held - size - frameOverhead)
		*held = 0
	default:
		// Traffic says how large a buffer is useful; a shortage of memory, how large it can be. What is left of it goes to few frames,
		// each as large as it can be: many small ones would be a burden for everyone who waits.
		least := size
		for size = max(size, wanted); !c.memory.tryTake(size + frameOverhead); size = max(size/bufferGrowth, least) {
			if size == least {
				return nil, errNoMemory
			}
		}
	}
	f := c.frames.Get().(*outFrame)
	*f = outFrame{builder: f.builder, capacity: size, ack: ack, out: newResult(), taken: time.Now(), buf: c.buffers.Get(int(size))}
	f.builder.MaxMessageSize = c.maxMessage
	if err := f.builder.Reset(f.buf.B[:0:size], *env); err != nil {
		c.recycleFrame(f)
		return nil, fromRecord(err)
	}
	return f, nil
}

// recycleFrame gives back what a frame holds. Nothing may refer to it any more.
func (c *sharedCore) recycleFrame(f *outFrame) {
	charge := f.capacity + frameOverhead
	c.buffers.Put(f.buf)
	*f = outFrame{}
	c.frames.Put(f)
	c.memory.giveBack(charge)
}

// openFrame makes f the frame that takes messages, and sees to it that it is sent in time.
func (c *sharedCore) openFrame(s *shardStream, f *outFrame) {
	s.open = f
	s.opens++
	if c.cfg.linger == 0 {
		s.urgent = true
		c.scheduleStream(s)
		return
	}
	c.sched.AddLingering(s, s.opens, f.taken.Add(c.cfg.linger))
}

// sealFrame ends the open frame and queues it. full says that it was full: the next one gets more.
func (c *sharedCore) sealFrame(s *shardStream, full bool) {
	f := s.open
	s.open, s.urgent = nil, false
	f.length, f.count = f.builder.Len(), f.builder.Count()
	f.messages = f.count
	switch largest := int64(c.largestBuffer); {
	case f.capacity > largest:
	case full && f.capacity >= s.bufferSize: // a smaller one was for lack of memory
		s.bufferSize = min(f.capacity*bufferGrowth, largest)
	case !full && int64(f.length) < s.bufferSize/bufferGrowth/2:
		s.bufferSize = max(s.bufferSize/bufferGrowth, smallestBuffer)
	}
	s.pushFrame(f)
}

// pushFrame queues a sealed frame.
func (s *shardStream) pushFrame(f *outFrame) {
	f.next = nil
	if s.tail == nil {
		s.head = f
	} else {
		s.tail.next = f
	}
	s.tail = f
}

// popFrame removes the first queued frame.
func (s *shardStream) popFrame() *outFrame {
	f := s.head
	if s.head = f.next; s.head == nil {
		s.tail = nil
	}
	f.next = nil
	return f
}

// returnFrames puts frames that a request carried back in front of the queue, in their order.
func (s *shardStream) returnFrames(frames []*outFrame) {
	for _, f := range slices.Backward(frames) {
		if f.next = s.head; s.head == nil {
			s.tail = f
		}
		s.head = f
	}
}

// scheduleStream queues the stream for sending if it has something to send and may. The stripe's mutex is held.
func (c *sharedCore) scheduleStream(s *shardStream) {
	if s.ready || s.inFlight || s.parked || s.head == nil && (s.open == nil || !s.urgent) {
		return
	}
	s.ready = true
	c.sched.PushReady(s)
}

// renumberAfter is called when a frame is given up: if it had numbers, those after it need others. Frames that may have been stored
// keep theirs, since under new ones they could be stored twice; those that follow have a newer epoch and wait for them.
func (s *shardStream) renumberAfter(f *outFrame, rest []*outFrame) {
	if !f.numbered {
		return
	}
	if s.epoch < math.MaxUint32 {
		s.epoch++
	}
	for _, r := range rest {
		r.clearSequences()
	}
	for r := s.head; r != nil; r = r.next {
		r.clearSequences()
	}
}

// clearSequences lets the frame have new numbers when it is sent again, if no attempt can have been stored under the old ones.
func (f *outFrame) clearSequences() {
	if !f.maybe {
		f.numbered = false
	}
}
