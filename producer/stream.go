package producer

import (
	"cmp"
	"fmt"
	"hash/maphash"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/internal/base/inflight"
	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/producer/internal/schedule"
)

// MaxStreams bounds the (category, shard) pairs that a producer writes to. It keeps the sequences of each until it is closed, in
// about 300 bytes.
const MaxStreams = 1 << 20

// Shard names a logical shard of a category.
type Shard struct {
	Category string
	Number   uint32
}

// String returns "category/number".
func (s Shard) String() string { return fmt.Sprintf("%s/%d", s.Category, s.Number) }

// stripes is the number of locks that streams share, so that writers to different categories rarely contend.
const stripes = 16

// streamStripe holds the streams that share one mutex.
type streamStripe struct {
	mu struct {
		sync.Mutex
		streams map[Shard]*shardStream
		closed  bool // no messages are accepted
		count   messageCounts
		_       [64]byte // keeps the next stripe's mutex off this one's cache line
	}
}

// messageCounts counts messages and their bytes since the start. Accepted messages in none of the other counts are buffered, so
// the sum holds at all times.
type messageCounts struct {
	accepted, acked, sampled, failed messageCount
	// Of the failed ones, those that Close could not deliver, and the number of these with an unknown outcome.
	unsent        messageCount
	unsentUnknown uint64
}

type messageCount struct{ messages, bytes uint64 }

func (n *messageCount) addFrame(f *outFrame) { n.addMessages(f.messages, f.size) }

func (n *messageCount) addMessages(messages int, bytes int64) {
	n.messages += uint64(messages)
	n.bytes += uint64(bytes)
}

// shardStream is the queue of one (category, shard): its messages are sent in the order in which they were accepted. Its stripe's
// mutex guards it.
type shardStream struct {
	shard    Shard
	stripe   *streamStripe
	category *categoryState // nil if callers place the messages

	open       *outFrame // the frame that takes messages; nil if there is none
	head, tail *outFrame // sealed frames that are not in flight, in order
	bufferSize int64     // of the next frame; adapts to the traffic

	// urgent: the open frame is due, and is sent as soon as the stream may send.
	urgent bool
	// due is when the open frame is due. wake is the earliest time at which the scheduler returns the stream to see whether it is; zero
	// if none is set.
	due, wake time.Time
	// lingersLong: the last frame that was opened may linger longer than [WithLinger] says.
	lingersLong bool
	// phase decides when in each linger the stream's frames are due: see lingerPlan.
	phase uint64
	// period is the last one of lingerPlan in which the stream was counted.
	period int64
	// flights are the parts of requests that carry frames of this stream, in order. There are several only if the server keeps
	// their order, within window.
	flights []*streamFlight
	window  inflight.Window
	// windowAck is the level of the last answer: a server may keep the order at one and not at another.
	windowAck AckLevel
	// queued is the length of the frames from head to tail, in bytes.
	queued int
	// ready: the stream is in the scheduler's queue of a lane. parked: it waits in the scheduler until a time.
	ready, parked bool
	lane          schedule.Lane
	failures      int // attempts in a row without progress

	// Sequences: next is the sequence of the next message to number; acked is the sequence after the last acknowledged message. A
	// frame is numbered when it is first sent, with the epoch of that time. When a numbered frame fails, the sequences have a gap
	// that a server would wait for. A new epoch may begin with any sequence, and fences late copies of the failed frame.
	epoch uint32
	next  uint64
	acked uint64
	// known is the newest epoch with an acknowledged frame. A server accepts any first sequence in an epoch that it does not
	// know. If a request had two frames of a new epoch and the server refused the first for lack of memory, the second would
	// begin the epoch, and the first would look like a duplicate for ever. So the first frame of an epoch is the only one of its
	// stream in its request.
	known uint32
}

// streamFlight is a stream's frames in one request.
type streamFlight struct {
	// frames are those in flight. Once answered, those to send again: they go back to the queue when all flights of the stream are
	// answered, since only then is it known what goes before them.
	frames   []*outFrame
	answered bool
	bytes    int64
	ack      AckLevel
	alone    bool
	epoch    uint32
	// follows: another flight of the stream had no answer when it was sent.
	follows bool
	// used: it makes use of the window.
	used bool
}

// stripeOf returns the stripe of a shard.
func (c *sharedCore) stripeOf(category string, shard uint32) *streamStripe {
	h := maphash.String(c.seed, category) + uint64(shard)*0x9e3779b97f4a7c15
	return &c.stripes[h>>32%stripes]
}

// findStream returns the stream of a shard; nil if it is new.
func (st *streamStripe) findStream(category string, shard uint32) *shardStream {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.mu.streams[Shard{category, shard}]
}

// streamOf returns the stream of a shard, and creates it if it is new. The stripe's mutex is held.
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
	id := Shard{strings.Clone(category), shard} // the caller's string may be part of a large one
	s := &shardStream{
		shard: id, stripe: st, phase: phaseOf(id), epoch: c.epoch, category: c.categories.stateOf(category),
		window: inflight.Window{First: inflight.WindowParts * int64(c.largestBuffer)},
	}
	if q, ok := c.resume[id]; ok {
		s.epoch, s.next, s.acked = q.Epoch, q.Next, q.Next
	}
	if st.mu.streams == nil {
		st.mu.streams = make(map[Shard]*shardStream)
	}
	st.mu.streams[id] = s
	c.categories.addStream(s.category, s)
	return s, nil
}

// stampAfter is the distance of the clock from a frame's base time from which messages carry a time of their own. Under load a
// frame is open for a few milliseconds, so none of its messages carries one: a time takes at least three bytes for each message
// and makes payloads compress less well.
const stampAfter = 5 * time.Millisecond

// plainFrame returns the open frame if messages added now need only their payload in it; otherwise nil. The stripe's mutex is
// held.
func (s *shardStream) plainFrame(p *placing, ack AckLevel, now time.Time) *outFrame {
	f := s.open
	if f == nil || f.ack != ack || f.placing != p {
		return nil
	}
	if d := now.Sub(f.base); d >= stampAfter || d <= -stampAfter {
		return nil
	}
	return f
}

// countTaken counts messages that were added to the open frame.
func (s *shardStream) countTaken(f *outFrame, messages, bytes int) {
	f.size += int64(bytes)
	s.stripe.mu.count.accepted.addMessages(messages, int64(bytes))
}

// addPayload is the fast path of addMessage, for a message that has only a payload and fits the open frame. It reports whether it
// added the message. The stripe's mutex is held.
func (s *shardStream) addPayload(payload []byte, p *placing, ack AckLevel, now time.Time) bool {
	f := s.plainFrame(p, ack, now)
	if f == nil || !f.hasSpace(len(payload)+encodedExtra) || f.builder.AppendPayload(payload) != nil {
		return false
	}
	s.countTaken(f, 1, len(payload))
	return true
}

// addMessage appends a message to the stream's open frame, and opens one if there is none or it is full. *held is the memory that
// a wait has charged; addMessage sets it to 0 if it uses it. The stripe's mutex is held.
//
// The error errNoMemory means that the message fits once memory is free.
func (c *sharedCore) addMessage(s *shardStream, m *record.Message, p *placing, bound int, ack AckLevel, now time.Time, held *int64) (*Result, error) {
	for range 2 {
		f := s.open
		if f != nil && (f.ack != ack || f.placing != p || !f.hasSpace(bound) && !c.growFrame(s, bound)) {
			c.sealFrame(s, true)
			c.scheduleStream(s)
			f = nil
		}
		if f == nil {
			var err error
			env := record.Envelope{Category: s.shard.Category, Shard: s.shard.Number, BaseTime: now.UnixMicro(), Placement: tagOf(p)}
			if f, err = c.newFrame(s.bufferSize, &env, bound, ack, held); err != nil {
				return nil, err
			}
			f.base, f.placing = now, p
			c.openFrame(s, f)
		}
		if m.Time.IsZero() {
			// Truncated to stampAfter, so that messages that arrive close together have equal times. Equal times take one
			// constant byte each; times in microseconds are noise that makes payloads compress less well.
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
			c.detachOpen(s)
			c.recycleFrame(f)
			return nil, fromRecord(err)
		case err != record.ErrFrameFull: //nolint:errorlint // a sentinel, returned as it is
			return nil, fromRecord(err)
		}
		c.sealFrame(s, true) // the frame has the maximum number of messages
		c.scheduleStream(s)
	}
	return nil, fmt.Errorf("%w: message does not fit an empty frame", ErrTooLarge)
}

// newFrame returns an empty frame with a buffer for n bytes of messages, or of the wanted size if memory allows. held is as in
// addMessage.
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
		// The traffic determines the useful size of a buffer, free memory the possible size. Scarce memory is given to few frames
		// that are as large as possible: many small frames would slow down everyone.
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

// recycleFrame releases a frame with its buffer and memory. There must be no other references to it.
func (c *sharedCore) recycleFrame(f *outFrame) {
	charge := f.capacity + frameOverhead
	c.buffers.Put(f.buf)
	*f = outFrame{}
	c.frames.Put(f)
	c.memory.giveBack(charge)
}

// openFrame makes f the stream's open frame, and schedules the end of its linger.
func (c *sharedCore) openFrame(s *shardStream, f *outFrame) {
	s.open = f
	c.open.Add(f.capacity + frameOverhead)
	c.noteShortage(0)
	c.categories.refresh(s.category, f.taken)
	if c.cfg.linger == 0 {
		s.urgent = true
		c.scheduleStream(s)
		return
	}
	if s.due = c.linger.endOf(s, f); s.lingersLong {
		f.lingered = true
		f.out.stream, f.out.core = s, c
	}
	c.setWake(s)
}

// growFrame makes space for n more bytes of messages in the open frame of a stream, if it is to linger on. Frames that linger long begin
// small, since most remain so.
func (c *sharedCore) growFrame(s *shardStream, n int) bool {
	f := s.open
	size := c.bufferSize(f.builder.Len() + n)
	if !s.lingersLong || s.urgent || size > min(enoughBytes, int64(c.largestBuffer)) || !c.memory.tryTake(size-f.capacity) {
		return false
	}
	c.open.Add(size - f.capacity)
	buf := c.buffers.Get(int(size))
	f.builder.Move(buf.B[:0:size])
	c.buffers.Put(f.buf)
	f.buf, f.capacity = buf, size
	return true
}

// detachOpen makes the stream have no open frame.
func (c *sharedCore) detachOpen(s *shardStream) {
	c.open.Add(-s.open.capacity - frameOverhead)
	s.open, s.urgent = nil, false
}

// sealFrame seals the open frame and queues it. full reports that the frame was full: the next one gets a larger buffer.
func (c *sharedCore) sealFrame(s *shardStream, full bool) {
	f := s.open
	c.detachOpen(s)
	f.length, f.count = f.builder.Len(), f.builder.Count()
	f.messages = f.count
	c.counts.noteFrame(s.shard.Category, f.base, delivery.Counts{Produced: int64(f.messages)})
	largest, growth := int64(c.largestBuffer), int64(bufferGrowth)
	if s.lingersLong { // there are many frames: what they do not use is much
		largest, growth = min(largest, enoughBytes), 2
	}
	switch {
	case f.capacity > largest:
		s.bufferSize = min(s.bufferSize, largest)
	case full && f.capacity >= s.bufferSize: // a smaller buffer was due to lack of memory
		s.bufferSize = min(f.capacity*growth, largest)
	case !full && int64(f.length) < s.bufferSize/growth/2:
		s.bufferSize = max(s.bufferSize/growth, smallestBuffer)
	}
	s.pushFrame(f)
}

// pushFrame queues a sealed frame.
func (s *shardStream) pushFrame(f *outFrame) {
	s.queued += f.length
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
	s.queued -= f.length
	if s.head = f.next; s.head == nil {
		s.tail = nil
	}
	f.next = nil
	return f
}

// returnFrames puts frames of a request back at the head of the queue, in their order.
func (s *shardStream) returnFrames(frames []*outFrame) {
	for _, f := range slices.Backward(frames) {
		s.queued += f.length
		if f.next = s.head; s.head == nil {
			s.tail = f
		}
		s.head = f
	}
}

// scheduleStream queues the stream in the scheduler if it has something to send and may send. The stripe's mutex is held.
func (c *sharedCore) scheduleStream(s *shardStream) {
	lane := s.nextLane()
	if s.ready && s.lane <= lane || s.parked || !s.maySend() {
		return
	}
	if s.head != nil && !s.mayPass(s.head) { // the end of the switch schedules it
		return
	}
	s.ready, s.lane = true, lane
	c.sched.PushReady(lane, s)
}

// nextLane returns the lane of the frame that is sent next. The stripe's mutex is held.
func (s *shardStream) nextLane() schedule.Lane {
	if f := cmp.Or(s.head, s.open); f != nil && f.lingered {
		return schedule.Lingered
	}
	return schedule.Awaited
}

// noteAwaited notes that somebody waits for the open frame, and so for what goes before it. The stripe's mutex is held.
func (s *shardStream) noteAwaited() {
	if s.open != nil {
		s.open.lingered = false
	}
	for f := s.head; f != nil; f = f.next {
		f.lingered = false
	}
}

// maySend reports whether the stream has something that may be sent now. While a request is in flight, only sealed frames are:
// what is added meanwhile shares the next frame. The stripe's mutex is held.
func (s *shardStream) maySend() bool {
	if len(s.flights) == 0 {
		return s.head != nil || s.open != nil && s.urgent
	}
	return s.head != nil && s.mayFollow(s.head)
}

// mayFollow reports whether a frame may be sent while others of the stream are in flight. The server must keep their order, and
// none of the others may have failed: it would have to be sent first. The stripe's mutex is held.
func (s *shardStream) mayFollow(f *outFrame) bool {
	if f.alone || s.window.IsClosed() || slices.ContainsFunc(s.flights, func(fl *streamFlight) bool { return fl.answered }) {
		return false
	}
	epoch := s.epoch
	if f.numbered {
		epoch = f.epoch
	}
	// Requests of other levels are answered by other rules. For the epochs see mayJoin.
	if last := s.flights[len(s.flights)-1]; f.ack != last.ack || f.ack != s.windowAck || last.alone || epoch != last.epoch || epoch > s.known {
		return false
	}
	// A request that follows is worth its cost if it is large.
	worth := s.window.WorthSending(maxRequest)
	return int64(s.queued) >= worth && s.window.Space() >= max(int64(f.length), worth)
}

// endFlight ends a flight with the frames that are to be sent again. After the last one, all of these return to the queue, in
// order. The stripe's mutex is held.
func (s *shardStream) endFlight(fl *streamFlight, again []*outFrame) {
	if fl.frames, fl.answered = again, true; len(again) == 0 {
		s.flights = slices.DeleteFunc(s.flights, func(other *streamFlight) bool { return other == fl })
	}
	if slices.ContainsFunc(s.flights, func(fl *streamFlight) bool { return !fl.answered }) {
		return
	}
	var left []*outFrame
	for _, fl := range s.flights {
		// What follows a frame that is certainly not stored is not stored either, and never will be once that frame has another epoch.
		certain := fl.follows && slices.ContainsFunc(left, func(f *outFrame) bool { return !f.maybe })
		for _, f := range fl.frames {
			if f.numbered && f.epoch != s.epoch { // one in another flight failed meanwhile
				f.maybe = f.maybe && !certain
				f.clearSequences()
			}
			left = append(left, f)
		}
	}
	s.flights = nil
	s.returnFrames(left)
}

// renumberAfter is called when a frame fails: if it had sequences, later frames need new ones. Frames that may have been stored
// keep theirs, since with new ones they could be stored twice; the frames that follow get a newer epoch and wait for them.
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

// noteMissing is called when a server expects an earlier sequence than that of a frame: it has stored neither the frame nor what comes after
// it in the epoch, whatever attempts without an answer left open.
func (s *shardStream) noteMissing(f *outFrame, later []*outFrame) {
	f.maybe = false
	for _, r := range later {
		r.maybe = r.maybe && r.epoch != f.epoch
	}
	for r := s.head; r != nil; r = r.next {
		r.maybe = r.maybe && r.epoch != f.epoch
	}
}

// clearSequences makes the frame get new sequences when it is sent again, if no attempt can have been stored with the old ones.
func (f *outFrame) clearSequences() {
	if !f.maybe {
		f.numbered = false
	}
}
