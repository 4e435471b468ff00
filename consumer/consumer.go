package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"

	"scribe/consumer/internal/payload"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
)

// Consumer reads a category. One iteration runs at a time; the other methods may be called from any goroutine meanwhile.
type Consumer struct {
	category string
	cfg      options
	streams  StreamService
	payloads PayloadService
	control  SchemaService // nil with services of the caller's alone
	groups   GroupService  // nil when there are services of the caller's without one
	decoder  *zstd.Decoder
	release  func() // gives back the connections; may be nil
	repeats  func() uint64
	wanted   map[uint32]bool
	group    *Group // that the consumer reads for; nil = none
	// eval is what is made of payloads as they come; nil without an extension that makes something. It is set before the first session begins.
	eval    *payload.Evaluation
	binding sync.Mutex  // held while the extension is bound
	noViews atomic.Bool // a server has shown that it knows of no views: none is asked for any more

	mu struct {
		sync.Mutex
		positions *shardPositions
		watermark int64    // Unix microseconds; 0 = unknown
		session   *session // of the iteration that runs
		closed    bool
	}

	current *streamItem // the payload being delivered; guarded by mu

	stats struct {
		records, payloads, bytes, fetched, gaps, reconnects, retries atomic.Uint64
	}
}

// New returns a consumer of a category that reads from the server at a URL, for example [DefaultServer], which "" stands for. It
// does not connect before the first iteration. The error reports every option that is not valid.
func New(server, category string, opts ...Option) (*Consumer, error) {
	cfg := defaultConfig()
	for _, o := range opts {
		o.apply(&cfg)
	}
	if x := cfg.extension; x != nil {
		l := payload.Limits{UntilEnd: cfg.untilEnd, PrefetchBytes: cfg.prefetchBytes}
		x.Adjust(&l)
		cfg.untilEnd, cfg.until, cfg.prefetchBytes = l.UntilEnd, l.Until, l.PrefetchBytes
	}
	if err := cfg.validate(category); err != nil {
		return nil, err
	}
	decoder, err := newDecoder(cfg.concurrency)
	if err != nil {
		return nil, fmt.Errorf("consumer: %w", err)
	}
	c := &Consumer{category: category, cfg: cfg, decoder: decoder}
	c.mu.positions = newPositions(cfg.start.from)
	if cfg.start.from != nil {
		c.mu.watermark = cfg.start.from.Watermark
	}
	if len(cfg.logicalShards) > 0 {
		c.wanted = make(map[uint32]bool)
		for _, s := range cfg.logicalShards {
			c.wanted[s] = true
		}
	}
	c.connectServices(server)
	return c, nil
}

// connectServices makes the services of an address unless they were given.
func (c *Consumer) connectServices(server string) {
	c.repeats = func() uint64 { return 0 }
	c.control = c.cfg.control
	if c.streams, c.payloads, c.groups = c.cfg.streams, c.cfg.payloads, c.cfg.group.service; c.streams != nil {
		return
	}
	if server == "" {
		server = DefaultServer
	}
	var t *rpc.Transport
	if hc := c.cfg.httpClient; hc != nil {
		t = rpc.OverClient(hc)
	} else {
		t = rpc.NewTransport(nil)
		c.release = t.Close
	}
	cell := discovery.New(t, server)
	if c.streams = cell.ReadStream(); c.groups == nil {
		c.groups = cell.Group()
	}
	if c.control == nil {
		c.control = cell.Control()
	}
	if c.cfg.readProxy != "" {
		cell = discovery.New(t, c.cfg.readProxy)
	}
	c.payloads, c.repeats = cell.ReadProxy(), func() uint64 { return cell.FetchStats().Repeats }
}

// wantsLogical reports whether the logs of a logical shard are read. A sequenced log holds all of them.
func (c *Consumer) wantsLogical(logical uint32) bool {
	return c.wanted == nil || c.wanted[logical] || logical == uint32(sequenced.Logical)
}

// beginIteration starts an iteration.
func (c *Consumer) beginIteration(ctx context.Context) (*session, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.mu.closed:
		return nil, ErrClosed
	case c.mu.session != nil:
		return nil, ErrBusy
	}
	c.mu.positions.rewindToDelivered()
	if sh := c.shareLocked(); sh != nil {
		sh.rewindToDelivered(c.cfg.untilEnd)
	}
	c.mu.session = c.newSession(ctx)
	return c.mu.session, nil
}

// endIteration ends it.
func (c *Consumer) endIteration(s *session) {
	s.stopAndFree()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.session = nil
}

// Close releases what the consumer holds. An iteration that runs yields [ErrClosed] at its next step; the goroutines behind it
// have ended when Close returns. Repeating it is harmless.
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

// Checkpoint is the position after the last message, gap or batch that was yielded, as a text without spaces that [Checkpoint]
// takes. Inside the loop that is the one being looked at: keep the checkpoint when it was dealt with. It is "" as long as nothing
// is known: before the first stream of a consumer that does not begin with a checkpoint.
func (c *Consumer) Checkpoint() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.mu.positions.opened {
		return ""
	}
	c.advancePosition()
	return c.mu.positions.asCheckpoint(c.category, c.mu.watermark).String()
}

// advancePosition brings the position of the payload being delivered up to date. The mutex is held.
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

// Stats counts what happened since the consumer was made.
type Stats struct {
	// Records and Bytes (payloads alone) were yielded; rows of batches count as records. They are brought up to date when a
	// payload is done with.
	Records, Bytes uint64
	// Payloads were fetched, FetchedBytes is what came over the network for them.
	Payloads, FetchedBytes uint64
	// Gaps were yielded.
	Gaps uint64
	// Reconnects is how often a stream was opened again.
	Reconnects uint64
	// Retries is how often a fetch was made again, because a read proxy was busy or away.
	Retries uint64
}

// Stats returns the counters.
func (c *Consumer) Stats() Stats {
	return Stats{
		Records: c.stats.records.Load(), Bytes: c.stats.bytes.Load(),
		Payloads: c.stats.payloads.Load(), FetchedBytes: c.stats.fetched.Load(),
		Gaps: c.stats.gaps.Load(), Reconnects: c.stats.reconnects.Load(),
		Retries: c.stats.retries.Load() + c.repeats(),
	}
}

// iterationError tells why an iteration ended from what ended its session.
func iterationError(err error) error {
	if errors.Is(err, ErrClosed) {
		return ErrClosed
	}
	return err
}
