package producer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"scribe/internal/base/backoff"
	"scribe/internal/base/buffers"
	"scribe/internal/base/entropy"
	"scribe/internal/base/lifecycle"
	"scribe/internal/base/logthrottle"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	"scribe/producer/internal/schedule"
)

// Producer writes messages. It is safe for concurrent use. [Producer.Close] must be called to release it.
type Producer struct {
	*sharedCore
	ack AckLevel
}

// sharedCore is the state that a Producer and its views share.
type sharedCore struct {
	cfg     producerConfig
	service Service
	pieces  rpc.PieceWriter // the service, if it accepts frames in pieces; else nil
	release func()          // closes the connections; may be nil
	// categories knows how the categories place messages.
	categories *categoryDirectory

	id        uint64
	epoch     uint32             // of streams without an entry in resume
	resume    map[Shard]Sequence // read only
	continued bool               // the identity was given

	maxMessage int // limit of a message in bytes: the configured one, or less if the memory bound is small

	seed    maphash.Seed
	stripes [stripes]streamStripe
	streams atomic.Int64
	memory  *memoryBound
	open    atomic.Int64 // bytes of memory that open frames have
	// shortage is the most bytes that a call lacks while open frames have much of the memory; 0 if there is none. See relieveMemory.
	shortage atomic.Int64
	linger   lingerPlan
	// overdue is when a frame that waits to be sent again may be overdue, in nanoseconds since clock.zero; 0 if none waits.
	overdue       atomic.Int64
	copies        copyMemory
	buffers       buffers.Pool // of frames
	largestBuffer int          // size of the largest pooled buffer: a full batch
	frames        sync.Pool    // of *frame
	requests      sync.Pool    // of *request
	sched         *schedule.Scheduler[shardStream]
	clock         eventClock
	backoff       backoff.Backoff // pauses in the absence of a retry hint
	renews        bool            // somebody renews the token: a lapse is waited out

	// outage limits the log lines of failed requests, of which several may end at a time.
	outage struct {
		sync.Mutex
		throttle logthrottle.Throttle
	}
	metrics *producerMetrics
	losses  *lossReporter
	counts  *deliveryReporter
	refused atomic.Uint64 // messages that were not accepted
	drops   [len(dropReasons)]atomic.Uint64

	ctx     context.Context //nolint:containedctx // of the requests: it ends when Close stops waiting
	cancel  context.CancelCauseFunc
	running chan struct{}   // closed when sendLoop has returned
	senders sync.WaitGroup  // requests
	calls   lifecycle.Calls // for Close
	// closing is canceled when Close begins.
	closing      context.Context //nolint:containedctx // ends waits of calls
	beginClosing context.CancelFunc
}

// New returns a producer that writes to a server. The address is a URL, or unix:/path for the socket of the host's agent; ""
// means [DefaultServer]. Several addresses of one cell are separated by commas: one is used while it answers, then the next. New does
// not connect: the first request does. The error reports every invalid option, and an invalid list of addresses.
func New(server string, opts ...Option) (*Producer, error) {
	cfg := defaultConfig()
	for _, o := range opts {
		o(&cfg)
	}
	if err := cfg.validateOptions(); err != nil {
		return nil, err
	}
	if err := rpc.CheckAddresses(server); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	transport, err := cfg.openTransport()
	if err != nil {
		return nil, err
	}
	if err := transport.SetTokenFile(cfg.tokenFile, cfg.logger); err != nil {
		return nil, fmt.Errorf("producer: WithTokenFile: %w", err)
	}
	c := &sharedCore{
		cfg:     cfg,
		id:      randomID(cfg.random),
		epoch:   1,
		seed:    maphash.MakeSeed(), //nolint:forbidigo // it decides only which streams share a lock
		sched:   schedule.New[shardStream](time.Now()),
		backoff: backoff.Backoff{Min: cfg.backoffMin, Max: cfg.backoffMax, Random: cfg.random},
		running: make(chan struct{}),
	}
	if id := cfg.identity; id != nil {
		c.id, c.epoch, c.resume, c.continued = id.ID, id.Epoch, maps.Clone(id.Sequences), true
	}
	// A request of several frames copies them. A quarter of the memory bound is reserved for these copies.
	aside := min(cfg.maxBuffered/4, int64(cfg.maxInFlight)*maxRequest)
	c.copies.free.Store(aside)
	frames := cfg.maxBuffered - aside
	c.memory = &memoryBound{total: frames, free: semaphore.NewWeighted(frames)}
	c.largestBuffer = min(cfg.batchBytes, int(frames/4))
	c.maxMessage = min(cfg.maxMessage, int(frames)-24<<10) // frame header, and the bound of 1,024 attributes' lengths
	c.frames.New = func() any { return new(outFrame) }
	c.requests.New = func() any { return new(outRequest) }
	c.linger.setDurations(&c.cfg)
	c.clock.exact, c.clock.zero, c.clock.wake = cfg.now, time.Now(), c.sched.SignalLoop
	c.closing, c.beginClosing = context.WithCancel(context.Background())
	p := &Producer{sharedCore: c, ack: cfg.ack}
	c.metrics = newMetrics(p.Stats)
	if err := c.metrics.set.Register(cfg.registerer); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	c.connectService(transport, server)
	c.renews = transport.RenewsTokens()
	c.categories = newDirectory(c, c.cfg.categories)
	c.pieces, _ = c.service.(rpc.PieceWriter)
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	if c.losses = newLossReporter(c, cfg.reportLosses); c.losses != nil {
		go c.losses.reportLoop()
	}
	if c.counts = newDeliveryReporter(c, cfg.countDelivery); c.counts != nil {
		go c.counts.reportLoop()
	}
	go func() {
		defer close(c.running)
		c.sendLoop()
	}()
	return p, nil
}

// connectService makes a client for the server's address unless the options supply a service.
func (c *sharedCore) connectService(t *rpc.Transport, server string) {
	if c.service = c.cfg.service; c.service != nil {
		return
	}
	t.SetToken(c.cfg.token)
	cell := discovery.New(t, cmp.Or(server, DefaultServer), c.cfg.random)
	c.service, c.release = cell.Write(), t.Close
	if c.cfg.categories == nil {
		c.cfg.categories = cell.Control()
	}
}

// randomID returns a random id. It is never 0, which means no id.
func randomID(random *entropy.Source) uint64 { return max(random.Uint64(), 1) }

// WithCallAck returns a view of the producer whose calls wait for another acknowledgement level:
//
//	p.WithCallAck(producer.AckSpooled).Write(ctx, "web.access", m)
//
// It shares everything with p. Messages of one (category, shard) keep their order across levels, so a change of level ends a
// frame and a request: do not alternate between messages. An invalid level leaves that of p.
func (p *Producer) WithCallAck(level AckLevel) *Producer {
	if !level.isValid() {
		level = p.ack
	}
	return &Producer{sharedCore: p.sharedCore, ack: level}
}

// Flush sends all messages accepted before the call, without lingering, and waits until each is acknowledged or has failed.
// Failures are reported by the results and the hook of [WithOnDrop]. Flush returns an error only when ctx ends first; it wraps
// the cause of ctx.
func (p *Producer) Flush(ctx context.Context) error {
	var pending []*Result
	for i := range p.stripes {
		pending = p.stripes[i].hurryStripe(p.sharedCore, pending)
	}
	for _, r := range pending {
		select {
		case <-r.done:
		case <-ctx.Done():
			return fmt.Errorf("producer: flush: %w", context.Cause(ctx))
		}
	}
	return nil
}

// hurryStripe makes all frames of the stripe due, and appends their results to pending.
func (st *streamStripe) hurryStripe(c *sharedCore, pending []*Result) []*Result {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, s := range st.mu.streams {
		for _, fl := range s.flights {
			for _, f := range fl.frames {
				pending = append(pending, f.out)
			}
		}
		for f := s.head; f != nil; f = f.next {
			pending = append(pending, f.out)
		}
		if s.open != nil {
			pending = append(pending, s.open.out)
			s.urgent = true
		}
		c.scheduleStream(s)
	}
	return pending
}

// Close refuses further messages, sends the buffered ones until ctx ends, and releases connections and memory. Its error is an
// *[UnsentError] if messages were not delivered. Repeated calls wait for the first one and return its error.
func (p *Producer) Close(ctx context.Context) error {
	c := p.sharedCore
	return c.calls.Close(context.WithoutCancel(ctx), func() error {
		for i := range c.stripes {
			st := &c.stripes[i]
			st.mu.Lock()
			st.mu.closed = true
			st.mu.Unlock()
		}
		c.beginClosing()
		cause := p.Flush(ctx)
		c.losses.reportLast(ctx)
		c.cancel(ErrClosed)
		c.sched.Stop()
		c.categories.close()
		<-c.running
		if c.losses != nil {
			<-c.losses.stopped
		}
		c.senders.Wait()
		err := c.giveUpUnsent(cause)
		c.counts.reportLast()
		c.metrics.set.Unregister()
		if c.release != nil {
			c.release()
		}
		return err
	})
}

// giveUpUnsent fails all buffered messages and reports how many they were; nil if there were none.
func (c *sharedCore) giveUpUnsent(cause error) error {
	e := &UnsentError{Cause: cause}
	for i := range c.stripes {
		st := &c.stripes[i]
		var left []finishedFrame
		st.mu.Lock()
		for _, s := range st.mu.streams {
			if s.open != nil {
				c.sealFrame(s, false)
			}
			for s.head != nil {
				f := s.popFrame()
				left = append(left, c.failFrame(s, f, nil, attemptOutcome{cause: ErrClosed, detail: f.last}))
			}
		}
		e.Messages += st.mu.count.unsent.messages
		e.Bytes += st.mu.count.unsent.bytes
		e.Unknown += st.mu.count.unsentUnknown
		st.mu.Unlock()
		c.concludeFrames(left)
	}
	if e.Messages == 0 {
		return nil
	}
	if e.Cause == nil {
		e.Cause = errors.New("a request failed while closing")
	}
	return e
}

// Identity is a producer's id with its epochs and sequences. Another producer continues it with [WithIdentity].
//
// To write each message of a source once in an exactly_once category, store the identity together with the position in the
// source, when all messages up to that position are acknowledged (after Flush, for example). After a crash, continue from both:
// messages that are written again get the same sequences, and the server drops those that it already stored. This requires an
// unchanged Epoch. To fence an earlier producer that may still be alive, raise Epoch instead, with any sequences; the server then
// no longer recognises messages of earlier epochs as duplicates. [OpenIdentity] stores both in a file.
type Identity struct {
	// ID is a random, unique number, not 0.
	ID uint64
	// Epoch applies to shards that are not in Sequences; the first epoch is 1.
	Epoch uint32
	// Sequences has an entry for each shard written to.
	Sequences map[Shard]Sequence
}

// Sequence is a producer's progress in one shard.
type Sequence struct {
	// Epoch is raised by the producer when messages fail, since the server would otherwise wait for their sequences.
	Epoch uint32
	// Next is the sequence after the last acknowledged message. Each message has one number.
	Next uint64
}

// Identity returns the producer's identity, with the sequences acknowledged so far.
func (p *Producer) Identity() Identity {
	c := p.sharedCore
	id := Identity{ID: c.id, Epoch: c.epoch, Sequences: maps.Clone(c.resume)}
	if id.Sequences == nil {
		id.Sequences = make(map[Shard]Sequence)
	}
	for i := range c.stripes {
		st := &c.stripes[i]
		st.mu.Lock()
		for shard, s := range st.mu.streams {
			id.Sequences[shard] = Sequence{Epoch: s.epoch, Next: s.acked}
		}
		st.mu.Unlock()
	}
	return id
}

// Stats counts messages since the start. Accepted = Acked + Sampled + Failed + Buffered at all times, in messages and in bytes
// ([Message.Size]).
type Stats struct {
	Accepted, AcceptedBytes uint64
	Acked, AckedBytes       uint64
	// Sampled are messages that servers left out by sampling, see [Position].
	Sampled, SampledBytes   uint64
	Failed, FailedBytes     uint64
	Buffered, BufferedBytes uint64
	// Refused are messages that were not accepted, because the buffer was full or the message is invalid, for example.
	Refused uint64
	// Dropped counts lost messages by reason: those that Log refused, and all that failed.
	Dropped map[DropReason]uint64
	// Memory is the used part of the memory bound, in bytes. Streams is the number of (category, shard) pairs written to.
	Memory  int64
	Streams int
	// Linger is how long messages linger that nobody waits for, in categories without a linger of their own.
	Linger time.Duration
}

// Stats returns the counters.
func (p *Producer) Stats() Stats {
	c := p.sharedCore
	s := Stats{Refused: c.refused.Load(), Memory: c.memory.used.Load(), Dropped: make(map[DropReason]uint64), Linger: c.linger.planned()}
	for i := range c.stripes {
		st := &c.stripes[i]
		st.mu.Lock()
		n := st.mu.count
		s.Streams += len(st.mu.streams)
		st.mu.Unlock()
		s.Accepted, s.AcceptedBytes = s.Accepted+n.accepted.messages, s.AcceptedBytes+n.accepted.bytes
		s.Acked, s.AckedBytes = s.Acked+n.acked.messages, s.AckedBytes+n.acked.bytes
		s.Sampled, s.SampledBytes = s.Sampled+n.sampled.messages, s.SampledBytes+n.sampled.bytes
		s.Failed, s.FailedBytes = s.Failed+n.failed.messages, s.FailedBytes+n.failed.bytes
	}
	s.Buffered = s.Accepted - s.Acked - s.Sampled - s.Failed
	s.BufferedBytes = s.AcceptedBytes - s.AckedBytes - s.SampledBytes - s.FailedBytes
	for i, r := range dropReasons {
		if n := c.drops[i].Load(); n > 0 {
			s.Dropped[r.reason] = n
		}
	}
	return s
}

// refuseMessage counts a message that Log refused.
func (c *sharedCore) refuseMessage(category string, shard uint32, size int64, err error) {
	if errors.Is(err, errNoMemory) {
		c.noteShortage(0)
		err = ErrBufferFull
	}
	c.countRefused(1)
	c.counts.noteRefused(category, reasonOf(err), c.clock.readTime())
	c.countLost(Drop{Shard: Shard{category, shard}, Messages: 1, Bytes: size, Reason: reasonOf(err), Err: err})
}

func (c *sharedCore) countRefused(n int) { c.refused.Add(uint64(n)) }

// countLost counts a loss, and passes it to the loss reporter and the hook.
func (c *sharedCore) countLost(d Drop) {
	for i, r := range dropReasons {
		if r.reason == d.Reason {
			c.drops[i].Add(uint64(d.Messages))
		}
	}
	c.losses.noteDrop(&d, c.clock.readTime())
	if c.cfg.onDrop != nil {
		c.cfg.onDrop(d)
	}
}
