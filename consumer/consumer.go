package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"scribe/consumer/internal/payload"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
)

// Consumer reads a category. One iteration runs at a time. The other methods may be called concurrently from any goroutine.
type Consumer struct {
	category string
	cfg      consumerOptions
	streams  StreamService
	payloads PayloadService
	control  SchemaService // nil if the caller supplied services without it
	groups   GroupService  // nil if the caller supplied services without it
	decoder  *zstd.Decoder
	release  func() // closes the connections; may be nil
	repeats  func() uint64
	group    *Group // the group that the consumer reads for; nil = none
	// reads are the logical shards that are read; never nil.
	reads atomic.Pointer[shardSet]
	// eval evaluates payloads as they arrive; nil without an extension that evaluates any. It is set before the first session
	// begins.
	eval    *payload.Evaluation
	binding sync.Mutex  // held while the extension is bound
	noViews atomic.Bool // a server does not support views: no more are requested

	mu struct {
		sync.Mutex
		share     *categoryShare    // nil for a group member that has not joined yet
		watermark int64             // Unix microseconds; 0 = unknown
		// reached is like the watermark, but no later message of any log is older, also not of one that was unknown when the watermark came:
		// what checkpoints and commits say. known is the StreamStart.known_until of a stream that begins at the received positions, or less: a
		// group has it from its coordinator.
		reached, known int64
		session   *iterationSession // of the running iteration
		reopen    func()            // ends the running stream, to open one for what is to be read now; nil without one
		closed    bool
	}

	current *streamItem // the payload being delivered; guarded by mu

	stats struct {
		records, payloads, bytes, fetched, sampledOut, gaps, reconnects, retries atomic.Uint64
	}
}

// New returns a consumer of a category that reads from the server at a URL; "" means [DefaultServer]. Several addresses of one cell
// are separated by commas: one is used while it answers, then the next. It does not connect before the first iteration. The error
// reports every invalid option, and an invalid list of addresses.
func New(server, category string, opts ...Option) (*Consumer, error) {
	cfg := defaultConfig()
	for _, o := range opts {
		o(&cfg)
	}
	if x := cfg.extension; x != nil {
		l := payload.Limits{UntilEnd: cfg.untilEnd, PrefetchBytes: cfg.prefetchBytes}
		x.Adjust(&l)
		cfg.untilEnd, cfg.until, cfg.prefetchBytes = l.UntilEnd, l.Until, l.PrefetchBytes
	}
	if err := cfg.validate(category); err != nil {
		return nil, err
	}
	if err := errors.Join(rpc.CheckAddresses(server), rpc.CheckAddresses(cfg.readProxy)); err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	transport, err := cfg.openTransport()
	if err != nil {
		return nil, err
	}
	if err := transport.SetTokenFile(cfg.tokenFile, cfg.logger); err != nil {
		return nil, fmt.Errorf("consumer: WithTokenFile: %w", err)
	}
	decoder, err := newDecoder(min(cfg.concurrency, runtime.GOMAXPROCS(0)))
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	c := &Consumer{category: category, cfg: cfg, decoder: decoder}
	c.mu.share = newWholeShare(cfg.start.from)
	if cfg.start.from != nil {
		c.mu.watermark = cfg.start.from.Watermark
		c.mu.reached = c.mu.watermark
	}
	c.reads.Store(c.optionShards())
	c.connectServices(transport, server)
	c.cfg.renews, c.cfg.lapse = transport.RenewsTokens(), new(tokenLapse)
	return c, nil
}

// connectServices creates clients for the services that the options do not supply.
func (c *Consumer) connectServices(t *rpc.Transport, server string) {
	c.repeats = func() uint64 { return 0 }
	c.control = c.cfg.control
	if c.streams, c.payloads, c.groups = c.cfg.streams, c.cfg.payloads, c.cfg.group.service; c.streams != nil {
		return
	}
	t.SetToken(c.cfg.token)
	c.release = t.Close
	cell := discovery.New(t, cmp.Or(server, DefaultServer), c.cfg.random)
	if c.streams = cell.ReadStream(); c.groups == nil {
		c.groups = cell.Group()
	}
	if c.control == nil {
		c.control = cell.Control()
	}
	if c.cfg.readProxy != "" {
		cell = discovery.New(t, c.cfg.readProxy, c.cfg.random)
	}
	c.payloads, c.repeats = cell.ReadProxy(), func() uint64 { return cell.FetchStats().Repeats }
}

func (c *Consumer) beginIteration(ctx context.Context) (*iterationSession, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return nil, ErrClosed
	case c.mu.session != nil:
		return nil, ErrBusy
	}
	if c.mu.share != nil {
		c.mu.share.rewindToDelivered(c.cfg.untilEnd)
	}
	c.mu.session = c.newSession(ctx)
	return c.mu.session, nil
}

func (c *Consumer) endIteration(s *iterationSession) {
	s.stopAndFree()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.session = nil
}

// Close releases the consumer's resources and stops the iteration's goroutines before it returns. A running iteration yields
// [ErrClosed] at its next step. Repeated calls are harmless.
func (c *Consumer) Close() error {
	c.mu.Lock()
	c.mu.closed = true
	s, release := c.mu.session, c.release
	c.release = nil
	c.mu.Unlock()
	if s != nil {
		s.haltWith(ErrClosed)
	}
	if release != nil {
		release()
	}
	return nil
}

// Checkpoint returns the position after the last message, gap or batch that was yielded, as text without spaces for [Checkpoint].
// Inside the loop that includes the current item: store the checkpoint after handling the item. It is "" until positions are
// known: before the first stream of a consumer that does not begin with a checkpoint.
func (c *Consumer) Checkpoint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.share.opened {
		return ""
	}
	c.advancePosition()
	return c.mu.share.asCheckpoint(c.category, c.mu.reached).String()
}

// advancePosition updates the position of the payload being delivered. The mutex is held.
func (c *Consumer) advancePosition() {
	it := c.current
	if it == nil {
		return
	}
	if left := uint32(it.Left.Load()); left > 0 {
		it.pos.lsn, it.pos.skip = it.LSN, it.ptr.Messages-left
	} else {
		it.pos.lsn, it.pos.skip = it.LSN+1, 0
	}
}

// Stats counts events since the consumer was created.
type Stats struct {
	// Records and Bytes (payloads alone) were yielded; rows of batches count as records. They are updated when a payload is
	// finished.
	Records, Bytes uint64
	// Payloads is the number of fetched payloads, FetchedBytes the bytes received for them over the network.
	Payloads, FetchedBytes uint64
	// SampledOut is the number of messages that the category's quota for reading left out. See Record.SampleRate.
	SampledOut uint64
	// Gaps is the number of gaps yielded.
	Gaps uint64
	// Reconnects is the number of times that a stream was reopened.
	Reconnects uint64
	// Retries is the number of fetches repeated because a read proxy was overloaded or unavailable.
	Retries uint64
}

// Stats returns the counters.
func (c *Consumer) Stats() Stats {
	return Stats{
		Records: c.stats.records.Load(), Bytes: c.stats.bytes.Load(),
		Payloads: c.stats.payloads.Load(), FetchedBytes: c.stats.fetched.Load(),
		SampledOut: c.stats.sampledOut.Load(), Gaps: c.stats.gaps.Load(), Reconnects: c.stats.reconnects.Load(),
		Retries: c.stats.retries.Load() + c.repeats(),
	}
}

// iterationError returns the error that an iteration yields for the cause that ended its session.
func iterationError(err error) error {
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	return err
}
