package syslog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"scribe/internal/base/backoff"
	"scribe/producer"
	"scribe/scribed/inputs"
)

// Input is an inputs.Input.
type Input struct {
	cfg   Config
	deps  inputs.Deps
	rules compiledConfig
	names *inputs.CategoryLimit

	metrics *inputs.NetworkMetrics // while it runs
	agent   *producer.Producer
	open    atomic.Int64 // TCP connections
}

var _ inputs.Input = (*Input)(nil)

// New returns an input. It fails on an invalid configuration.
func New(cfg Config, deps inputs.Deps) (*Input, error) {
	r, err := cfg.compile()
	if err != nil {
		return nil, err
	}
	return &Input{cfg: cfg, deps: deps.WithDefaults(cfg.Name), rules: r, names: inputs.NewCategoryLimit(cfg.MaxCategories, cfg.Fallback)}, nil
}

// Name implements inputs.Input.
func (i *Input) Name() string { return i.cfg.Name }

// Run implements inputs.Input.
func (i *Input) Run(ctx context.Context, agent *producer.Producer, open func()) (err error) {
	defer inputs.NameError(&err, "syslog", i.cfg.Name)
	if i.metrics, err = inputs.NewNetworkMetrics("syslog", i.cfg.Name, i.deps.Registerer); err != nil {
		return err
	}
	defer i.metrics.Unregister()
	i.agent = agent
	sockets, err := i.openSockets(ctx)
	if err != nil {
		return err
	}
	open()
	return i.serveSockets(ctx, sockets)
}

// openSockets are the open sockets; nil = not used.
type openSockets struct {
	udp, unix net.PacketConn
	tcp       net.Listener
}

func (s *openSockets) close() {
	for _, c := range []io.Closer{s.udp, s.unix, s.tcp} {
		if c != nil {
			_ = c.Close() // nothing more is read
		}
	}
}

func (i *Input) openSockets(ctx context.Context) (s openSockets, err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if i.cfg.UDP != "" {
		var lc net.ListenConfig
		if s.udp, err = lc.ListenPacket(ctx, "udp", i.cfg.UDP); err != nil {
			return s, err
		}
	}
	if i.cfg.Unix != "" {
		if s.unix, err = listenUnix(ctx, i.cfg.Unix); err != nil {
			return s, err
		}
	}
	if i.cfg.TCP.Address != "" {
		s.tcp, err = i.cfg.TCP.Open(ctx)
	}
	return s, err
}

// listenUnix listens on a Unix datagram socket. A socket left over from an earlier run is replaced; one that another process
// reads from is not.
func listenUnix(ctx context.Context, path string) (net.PacketConn, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == os.ModeSocket {
		var d net.Dialer
		if c, err := d.DialContext(ctx, "unixgram", path); err == nil {
			return nil, errors.Join(fmt.Errorf("unix %s: another process reads from that socket", path), c.Close())
		}
		_ = os.Remove(path) // if that fails, listening fails too
	}
	var lc net.ListenConfig
	return lc.ListenPacket(ctx, "unixgram", path)
}

// enlargeBuffer requests a larger receive buffer; the kernel may grant less.
func (i *Input) enlargeBuffer(c net.PacketConn) {
	if b, ok := c.(interface{ SetReadBuffer(int) error }); ok && i.cfg.ReceiveBuffer > 0 {
		if err := b.SetReadBuffer(int(i.cfg.ReceiveBuffer)); err != nil {
			i.deps.Logger.Warn("enlarging the receive buffer failed", "error", err)
		}
	}
}

func (i *Input) serveSockets(ctx context.Context, s openSockets) error {
	var group sync.WaitGroup
	errs := make([]error, 3)
	// Closing the sockets ends the goroutines that read from them.
	stop := context.AfterFunc(ctx, s.close)
	defer stop()
	if s.udp != nil {
		i.deps.Logger.Info("taking syslog", "udp", s.udp.LocalAddr().String())
		group.Go(func() { errs[0] = i.serveDatagrams(ctx, s.udp, "") })
	}
	if s.unix != nil {
		i.deps.Logger.Info("taking syslog", "unix", i.cfg.Unix)
		group.Go(func() { errs[1] = i.serveDatagrams(ctx, s.unix, i.deps.Host) })
	}
	if s.tcp != nil {
		i.deps.Logger.Info("taking syslog", "tcp", s.tcp.Addr().String())
		group.Go(func() { errs[2] = i.acceptConnections(ctx, s.tcp) })
	}
	group.Wait()
	s.close()
	return errors.Join(errs...)
}

// serveDatagrams reads a message from each datagram until the socket is closed.
func (i *Input) serveDatagrams(ctx context.Context, c net.PacketConn, localHost string) error {
	i.enlargeBuffer(c)
	p := newParser(&i.cfg, i.rules.location, i.deps.Clock, localHost)
	buf := make([]byte, int(i.cfg.MaxMessage)+1) // the extra byte shows that a message was cut
	one := make([]producer.Message, 1)
	agent := i.agent.WithCallAck(producer.AckNone)
	for {
		n, _, err := c.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil //nolint:nilerr // the socket was closed to end it
			}
			return err
		}
		if n > int(i.cfg.MaxMessage) {
			n = int(i.cfg.MaxMessage)
			i.metrics.Truncated.Inc()
		}
		if n == 0 {
			continue
		}
		p.reset() // the previous message was handed to the agent
		m, f, ok := p.parseMessage(buf[:n])
		if !ok {
			i.metrics.Dropped.WithLabelValues(inputs.DropInvalid).Inc()
			continue
		}
		one[0] = m
		if agent.WriteAsync(i.categoryOf(&f), &one[0]).Err() != nil {
			i.metrics.Dropped.WithLabelValues(inputs.DropFull).Inc()
			continue
		}
		i.metrics.CountWrite(one, nil)
	}
}

func (i *Input) categoryOf(f *messageFields) string {
	name, ok := i.rules.category.Fixed()
	if ok {
		return name
	}
	name = i.rules.category.Category(func(field string) string {
		switch field {
		case "facility":
			return f.Facility
		case "severity":
			return f.Severity
		case "host":
			return f.Host
		default:
			return f.App
		}
	})
	if name, ok = i.names.Allow(name); !ok {
		i.metrics.Stray.Inc()
	}
	return name
}

// acceptConnections accepts connections until the listener is closed, and waits for them to end.
func (i *Input) acceptConnections(ctx context.Context, l net.Listener) error {
	var running sync.WaitGroup
	defer running.Wait()
	places := make(chan struct{}, i.cfg.MaxConnections)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			i.metrics.Refused.WithLabelValues(inputs.RefuseBusy).Inc()
			_ = c.Close()
			continue
		}
		running.Go(func() {
			defer func() { <-places }()
			// A waiting reader is woken; the messages it has are delivered first.
			stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
			defer stop()
			i.serveConnection(ctx, c)
			_ = c.Close()
		})
	}
}

// stopPatience bounds the delivery of read messages at shutdown.
const stopPatience = 5 * time.Second

// serveConnection reads messages until the sender closes, is silent for too long, or ctx ends, and delivers them after each read.
func (i *Input) serveConnection(ctx context.Context, c net.Conn) {
	var (
		p   = newParser(&i.cfg, i.rules.location, i.deps.Clock, "")
		cut = streamFrames{limit: int(i.cfg.MaxMessage)}
		// Holds many usual messages. It grows up to the size of the largest one with its length prefix.
		buf     = make([]byte, firstBuffer)
		largest = int(i.cfg.MaxMessage) + 64<<10
		held    int
		b       = messageBatch{input: i, parser: p}
	)
	i.open.Add(1)
	defer i.open.Add(-1)
	for ended := false; !ended; {
		if held == len(buf) {
			buf = append(make([]byte, 0, min(2*len(buf), largest)), buf...)
			buf = buf[:cap(buf)]
		}
		if ctx.Err() == nil {
			_ = c.SetReadDeadline(time.Now().Add(i.cfg.IdleTimeout.Std()))
		}
		if ctx.Err() != nil { // ctx may have ended before the deadline was set
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}
		n, err := c.Read(buf[held:])
		held += n
		ended = err != nil
		at, before := 0, cut.truncated
		for at < held {
			message, n, ok := cut.nextMessage(buf[at:held], ended)
			at += n
			if ok && len(message) > 0 {
				b.addMessage(message)
			}
			if n == 0 {
				break
			}
		}
		i.metrics.Truncated.Add(float64(cut.truncated - before))
		if !b.writeToAgent(ctx) {
			return
		}
		full := held == len(buf)
		held = copy(buf, buf[at:held])
		if full && 2*len(buf) <= min(i.maxBuffer(), largest) {
			more := make([]byte, 2*len(buf))
			copy(more, buf[:held])
			buf = more
		}
	}
}

const (
	// firstBuffer is the initial read buffer of a connection. A busy connection gets more, as long as all of them together stay
	// below readAhead: bytes that are read and not yet delivered take about five times their size, in messages and frames.
	firstBuffer = 16 << 10
	readAhead   = 4 << 20
)

// maxBuffer is how many bytes a connection may read at once.
func (i *Input) maxBuffer() int { return readAhead / int(max(i.open.Load(), 1)) }

// messageBatch collects the messages of one read, by category, in order.
type messageBatch struct {
	input  *Input
	parser *messageParser
	parts  []categoryBatch
}

type categoryBatch struct {
	category string
	messages []producer.Message
}

func (b *messageBatch) addMessage(raw []byte) {
	m, f, ok := b.parser.parseMessage(raw)
	if !ok {
		b.input.metrics.Dropped.WithLabelValues(inputs.DropInvalid).Inc()
		return
	}
	category := b.input.categoryOf(&f)
	for j := range b.parts {
		if b.parts[j].category == category {
			b.parts[j].messages = append(b.parts[j].messages, m)
			return
		}
	}
	if len(b.parts) < cap(b.parts) {
		b.parts = b.parts[:len(b.parts)+1] // reuses the memory of an earlier one
	} else {
		b.parts = append(b.parts, categoryBatch{})
	}
	p := &b.parts[len(b.parts)-1]
	p.category, p.messages = category, append(p.messages[:0], m)
}

// writeToAgent writes all messages to the agent, retrying as needed, and reports whether to continue. When ctx ends, the write under
// way has stopPatience, and so has one more attempt if it fails.
func (b *messageBatch) writeToAgent(ctx context.Context) bool {
	i := b.input
	for j := range b.parts {
		p := &b.parts[j]
		for len(p.messages) > 0 {
			ended := ctx.Err() != nil
			wctx, cancel := outliveContext(ctx, stopPatience)
			err := i.agent.Write(wctx, p.category, p.messages...)
			cancel()
			lost, final := i.metrics.CountWrite(p.messages, err)
			switch {
			case final:
				if lost > 0 {
					i.metrics.Dropped.WithLabelValues(inputs.DropRefused).Add(float64(lost))
					i.deps.Logger.Warn("messages dropped: refused by the agent", "category", p.category, "messages", lost, "error", err)
				}
				p.messages = p.messages[:0]
			case ended:
				i.metrics.Dropped.WithLabelValues(inputs.DropFull).Add(float64(len(p.messages)))
				return false
			default:
				_ = backoff.Sleep(ctx, retryPause) // the next attempt notices the end of ctx
			}
		}
	}
	b.reset()
	return ctx.Err() == nil
}

// outliveContext returns a context that ends d after ctx. A write that ended with ctx would be repeated though the agent may have the
// messages.
func outliveContext(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = backoff.Sleep(longer, d)
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// keptParts bounds the categories whose memory a connection keeps between reads.
const keptParts = 8

// reset discards the delivered messages.
func (b *messageBatch) reset() {
	if len(b.parts) > keptParts {
		b.parts = nil
	}
	b.parts = b.parts[:0]
	b.parser.reset()
}

// retryPause is the pause between two attempts to deliver.
const retryPause = 250 * time.Millisecond
