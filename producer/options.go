package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options.
const (
	DefaultServer           = "http://127.0.0.1:7420"
	DefaultLinger           = 5 * time.Millisecond
	DefaultBatchBytes       = 1 << 20
	DefaultMaxBufferedBytes = 64 << 20
	DefaultMaxInFlight      = 4
	DefaultRequestTimeout   = 30 * time.Second
	DefaultDeliveryTimeout  = 2 * time.Minute
	DefaultBackoff          = 50 * time.Millisecond
	DefaultLongestBackoff   = 5 * time.Second
	DefaultMaxMessageBytes  = record.DefaultMaxMessageSize
)

// minBuffered is the smallest buffer that is worth the name: each request in flight needs a part of it.
const minBuffered = 256 << 10

// Service takes requests: an RPC client, or in one process the role itself. The bytes of a request are used only until the call
// returns.
type Service interface {
	Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error)
}

// Option changes how a Producer works.
type Option interface{ applyTo(*producerConfig) }

type optionFunc func(*producerConfig)

func (o optionFunc) applyTo(c *producerConfig) { o(c) }

// producerConfig is what the options set. A field at its zero value is not valid unless it says so.
type producerConfig struct {
	ack              AckLevel
	linger           time.Duration // 0 = send at once
	batchBytes       int
	maxBuffered      int64
	maxInFlight      int
	framesPerRequest int // of one (category, shard); 0 = as many as fit
	requestTimeout   time.Duration
	deliveryTimeout  time.Duration // 0 = none
	retries          int           // below 0 = no limit
	backoffMin       time.Duration
	backoffMax       time.Duration
	maxMessage       int
	identity         *Identity        // nil = a random one
	now              func() time.Time // of the caller; nil = the system's
	ownClock         bool
	random           func() float64 // in [0, 1), for jitter
	logger           *slog.Logger
	httpClient       *http.Client          // may be nil
	service          Service               // may be nil
	onDrop           func(Drop)            // may be nil
	onAck            func(Acked)           // may be nil
	registerer       prometheus.Registerer // may be nil
	onSampled        func(Sampled)         // may be nil
	reportLosses     time.Duration         // 0 = never
}

func defaultConfig() producerConfig {
	return producerConfig{
		ack:             AckCommitted,
		linger:          DefaultLinger,
		batchBytes:      DefaultBatchBytes,
		maxBuffered:     DefaultMaxBufferedBytes,
		maxInFlight:     DefaultMaxInFlight,
		requestTimeout:  DefaultRequestTimeout,
		deliveryTimeout: DefaultDeliveryTimeout,
		retries:         -1,
		backoffMin:      DefaultBackoff,
		backoffMax:      DefaultLongestBackoff,
		maxMessage:      DefaultMaxMessageBytes,
		random:          rand.Float64,
		logger:          slog.New(slog.DiscardHandler),
	}
}

// validateOptions reports every violation.
func (c *producerConfig) validateOptions() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("producer: "+format, args...))
		}
	}
	check(c.ack.isValid(), "invalid level %v for WithAck: want AckNone, AckSpooled or AckCommitted", c.ack)
	check(c.linger >= 0, "invalid duration %v for WithLinger: want 0 or more", c.linger)
	check(c.batchBytes >= 4<<10 && c.batchBytes <= record.MaxFrameLen, "invalid size %d for WithBatchBytes: want %d to %d", c.batchBytes, 4<<10, record.MaxFrameLen)
	check(c.maxBuffered >= minBuffered, "invalid size %d for WithMaxBufferedBytes: want at least %d", c.maxBuffered, minBuffered)
	check(c.maxInFlight >= 1 && c.maxInFlight <= 1024, "invalid number %d for WithMaxInFlight: want 1 to 1024", c.maxInFlight)
	check(c.framesPerRequest >= 0, "invalid number %d for WithFramesPerRequest: want 0 or more", c.framesPerRequest)
	check(c.requestTimeout > 0, "invalid duration %v for WithRequestTimeout: want more than 0", c.requestTimeout)
	check(c.deliveryTimeout >= 0, "invalid duration %v for WithDeliveryTimeout: want 0 or more", c.deliveryTimeout)
	check(c.backoffMin > 0 && c.backoffMax >= c.backoffMin, "invalid durations %v and %v for WithBackoff: want more than 0, and the first at most the second", c.backoffMin, c.backoffMax)
	check(c.maxMessage >= 1 && c.maxMessage <= record.MaxFrameLen, "invalid size %d for WithMaxMessageBytes: want 1 to %d", c.maxMessage, record.MaxFrameLen)
	check(!c.ownClock || c.now != nil, "WithClock needs a function")
	check(c.reportLosses == 0 || c.reportLosses >= 10*time.Millisecond, "invalid duration %v for WithLossReports: want at least 10ms, or 0", c.reportLosses)
	check(c.random != nil, "WithRandom needs a function")
	check(c.logger != nil, "WithLogger needs a logger")
	if c.identity != nil {
		errs = append(errs, c.identity.validateIdentity())
	}
	return errors.Join(errs...)
}

// WithAck sets what a write waits for; the default is [AckCommitted]. [Producer.WithCallAck] changes it for single calls.
func WithAck(level AckLevel) Option { return optionFunc(func(c *producerConfig) { c.ack = level }) }

// WithLinger sets how long messages of Log and WriteAsync wait for company; the default is [DefaultLinger], 0 sends at once.
// Calls that wait for their outcome never linger.
func WithLinger(d time.Duration) Option { return optionFunc(func(c *producerConfig) { c.linger = d }) }

// WithBatchBytes sets how large a frame of a (category, shard) may become before it is sent without lingering; the default is
// [DefaultBatchBytes].
func WithBatchBytes(n int) Option { return optionFunc(func(c *producerConfig) { c.batchBytes = n }) }

// WithMaxBufferedBytes bounds the memory of messages that wait or are being sent, of all categories together; the default is
// [DefaultMaxBufferedBytes]. When it is full, Log drops and counts, WriteAsync fails with [ErrBufferFull], and the calls with a
// context wait for space.
func WithMaxBufferedBytes(n int64) Option {
	return optionFunc(func(c *producerConfig) { c.maxBuffered = n })
}

// WithMaxInFlight sets how many requests run at the same time; the default is [DefaultMaxInFlight]. One (category, shard) is
// never in two of them, which keeps its order.
func WithMaxInFlight(requests int) Option {
	return optionFunc(func(c *producerConfig) { c.maxInFlight = requests })
}

// WithFramesPerRequest bounds how many frames of one (category, shard) a request carries; the default, 0, is as many as fit. In
// a category that is not exactly_once, a server may refuse one frame of a request and take a later one; with 1 there is no later
// one, and the order within a (category, shard) is strict even then, at the price of one frame per round trip.
func WithFramesPerRequest(n int) Option {
	return optionFunc(func(c *producerConfig) { c.framesPerRequest = n })
}

// WithRequestTimeout bounds one request; the default is [DefaultRequestTimeout]. It travels to the servers as their deadline.
func WithRequestTimeout(d time.Duration) Option {
	return optionFunc(func(c *producerConfig) { c.requestTimeout = d })
}

// WithDeliveryTimeout bounds how long a message is kept and tried, from when it was taken; the default is
// [DefaultDeliveryTimeout], 0 is for ever. It is noticed between attempts: an attempt that is under way ends first.
func WithDeliveryTimeout(d time.Duration) Option {
	return optionFunc(func(c *producerConfig) { c.deliveryTimeout = d })
}

// WithRetries bounds how often a frame is sent again after a failure that may pass; below 0, the default, only the delivery
// timeout bounds it. 0 does not retry.
func WithRetries(n int) Option { return optionFunc(func(c *producerConfig) { c.retries = n }) }

// WithBackoff sets the pause before the first retry, which doubles with every failure, and the longest one. Pauses are jittered,
// and never shorter than a server asked for. The defaults are [DefaultBackoff] and [DefaultLongestBackoff].
func WithBackoff(first, longest time.Duration) Option {
	return optionFunc(func(c *producerConfig) { c.backoffMin, c.backoffMax = first, longest })
}

// WithMaxMessageBytes bounds a message's [Message.Size]; the default is [DefaultMaxMessageBytes].
func WithMaxMessageBytes(n int) Option {
	return optionFunc(func(c *producerConfig) { c.maxMessage = n })
}

// WithIdentity continues the producer that had this identity, so that messages that it wrote already are recognised when they
// are written again. See [Identity].
func WithIdentity(id Identity) Option {
	return optionFunc(func(c *producerConfig) { c.identity = &id })
}

// WithClock sets the clock of event times, which is then asked for each message; the default is the system's, read once in a
// millisecond when messages come close together. Timeouts always follow the real one.
func WithClock(now func() time.Time) Option {
	return optionFunc(func(c *producerConfig) { c.now, c.ownClock = now, true })
}

// WithRandom sets the source of jitter: numbers in [0, 1). It is called by several goroutines at the same time.
func WithRandom(random func() float64) Option {
	return optionFunc(func(c *producerConfig) { c.random = random })
}

// WithLogger sets where the producer reports retries and losses; the default is nowhere.
func WithLogger(l *slog.Logger) Option { return optionFunc(func(c *producerConfig) { c.logger = l }) }

// WithHTTPClient sets the HTTP client, for TLS or authentication; the default speaks HTTP/1.1 without TLS.
func WithHTTPClient(hc *http.Client) Option {
	return optionFunc(func(c *producerConfig) { c.httpClient = hc })
}

// WithService writes to s instead of a server's address: a role in the same process.
func WithService(s Service) Option { return optionFunc(func(c *producerConfig) { c.service = s }) }

// WithOnDrop sets a function that is told of every loss: messages that Log did not take, and those that were given up later,
// whoever wrote them. It is called by the goroutine that noticed, maybe concurrently, and must not block nor call the producer.
func WithOnDrop(fn func(Drop)) Option { return optionFunc(func(c *producerConfig) { c.onDrop = fn }) }

// WithOnAck sets a function that is told of every acknowledged frame, for metrics. It is called as [WithOnDrop]'s is.
func WithOnAck(fn func(Acked)) Option { return optionFunc(func(c *producerConfig) { c.onAck = fn }) }

// WithOnSampled sets a function that is told of every frame that a server left out on purpose. It is called as [WithOnDrop]'s is.
func WithOnSampled(fn func(Sampled)) Option {
	return optionFunc(func(c *producerConfig) { c.onSampled = fn })
}

// WithLossReports tells the readers of a category what the producer had to drop of it ([Drop]): sums by shard and reason, at most so often, as
// reports that consumers yield as gaps (docs/format/loss.md). A report is sent until it is stored; what may have been stored
// ([DropUnknownOutcome]) is not reported. The default, 0, tells nobody.
func WithLossReports(every time.Duration) Option {
	return optionFunc(func(c *producerConfig) { c.reportLosses = every })
}
