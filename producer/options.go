package producer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options.
const (
	DefaultServer           = "http://127.0.0.1:7420"
	DefaultLinger           = 5 * time.Millisecond
	DefaultMaxLinger        = 3 * time.Second
	DefaultBatchBytes       = 1 << 20
	DefaultMaxBufferedBytes = 64 << 20
	DefaultMaxInFlight      = 8
	DefaultRequestTimeout   = 30 * time.Second
	DefaultDeliveryTimeout  = 2 * time.Minute
	DefaultBackoff          = 50 * time.Millisecond
	DefaultLongestBackoff   = 5 * time.Second
	DefaultMaxMessageBytes  = record.DefaultMaxMessageSize
	DefaultCategoryRefresh  = 30 * time.Second
)

// minBuffered is the smallest valid memory bound: all requests in flight share it.
const minBuffered = 256 << 10

// Service accepts write requests: an RPC client, or the role itself in the same process. It must not use the bytes of a request
// after Write returns.
type Service interface {
	Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error)
}

// Option configures a Producer.
type Option func(*producerConfig)

// producerConfig holds the values of the options. The zero value of a field is invalid unless its comment says otherwise.
type producerConfig struct {
	ack              AckLevel
	linger           time.Duration // 0 = send at once
	maxLinger        time.Duration // at most linger = never longer than that
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
	now              func() time.Time // the caller's clock; nil = the system's
	ownClock         bool
	random           *entropy.Source
	logger           *slog.Logger
	httpClient       *http.Client          // may be nil
	tls              *TLS                  // may be nil
	token            string                // may be empty
	tokenFile        string                // may be empty
	service          Service               // may be nil
	onDrop           func(Drop)            // may be nil
	onAck            func(Acked)           // may be nil
	registerer       prometheus.Registerer // may be nil
	onSampled        func(Sampled)         // may be nil
	reportLosses     time.Duration         // 0 = never
	countDelivery    time.Duration         // 0 = never
	host             string                // in reports; empty = the machine's name
	partitioner      Partitioner           // may be nil
	categories       CategorySource        // may be nil
	categoryRefresh  time.Duration
}

func defaultConfig() producerConfig {
	return producerConfig{
		ack:             AckCommitted,
		linger:          DefaultLinger,
		maxLinger:       DefaultMaxLinger,
		batchBytes:      DefaultBatchBytes,
		maxBuffered:     DefaultMaxBufferedBytes,
		maxInFlight:     DefaultMaxInFlight,
		requestTimeout:  DefaultRequestTimeout,
		deliveryTimeout: DefaultDeliveryTimeout,
		retries:         -1,
		backoffMin:      DefaultBackoff,
		backoffMax:      DefaultLongestBackoff,
		maxMessage:      DefaultMaxMessageBytes,
		categoryRefresh: DefaultCategoryRefresh,
		random:          new(entropy.Source),
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
	check(c.maxLinger >= 0 && c.maxLinger <= MaxLinger, "invalid duration %v for WithMaxLinger: want 0 to %v", c.maxLinger, MaxLinger)
	check(c.batchBytes >= 4<<10 && c.batchBytes <= record.MaxFrameLen, "invalid size %d for WithBatchBytes: want %d to %d", c.batchBytes, 4<<10, record.MaxFrameLen)
	check(c.maxBuffered >= minBuffered, "invalid size %d for WithMaxBufferedBytes: want at least %d", c.maxBuffered, minBuffered)
	check(c.maxInFlight >= 1 && c.maxInFlight <= 1024, "invalid number %d for WithMaxInFlight: want 1 to 1024", c.maxInFlight)
	check(c.framesPerRequest >= 0, "invalid number %d for WithFramesPerRequest: want 0 or more", c.framesPerRequest)
	check(c.requestTimeout > 0, "invalid duration %v for WithRequestTimeout: want more than 0", c.requestTimeout)
	check(c.deliveryTimeout >= 0, "invalid duration %v for WithDeliveryTimeout: want 0 or more", c.deliveryTimeout)
	check(c.backoffMin > 0 && c.backoffMax >= c.backoffMin, "invalid durations %v and %v for WithBackoff: want more than 0, and the first at most the second", c.backoffMin, c.backoffMax)
	check(c.maxMessage >= 1 && c.maxMessage <= record.MaxFrameLen, "invalid size %d for WithMaxMessageBytes: want 1 to %d", c.maxMessage, record.MaxFrameLen)
	check(c.categoryRefresh >= 10*time.Millisecond, "invalid duration %v for WithCategoryRefresh: want at least 10ms", c.categoryRefresh)
	check(!c.ownClock || c.now != nil, "WithClock needs a function")
	check(c.reportLosses == 0 || c.reportLosses >= 10*time.Millisecond, "invalid duration %v for WithLossReports: want at least 10ms, or 0", c.reportLosses)
	check(c.countDelivery == 0 || c.countDelivery >= 10*time.Millisecond, "invalid duration %v for WithDeliveryReports: want at least 10ms, or 0", c.countDelivery)
	check(c.random != nil, "WithRandom needs a source")
	check(c.logger != nil, "WithLogger needs a logger")
	if c.identity != nil {
		errs = append(errs, c.identity.validateIdentity())
	}
	return errors.Join(errs...)
}

// WithAck sets the acknowledgement level that writes wait for; the default is [AckCommitted]. [Producer.WithCallAck] changes it
// for single calls.
func WithAck(level AckLevel) Option { return func(c *producerConfig) { c.ack = level } }

// WithLinger sets how long messages of Log and WriteAsync wait for others to share their frame; the default is [DefaultLinger], 0
// sends at once. Calls that wait for their outcome never linger.
func WithLinger(d time.Duration) Option { return func(c *producerConfig) { c.linger = d } }

// WithMaxLinger bounds how long messages linger whose writers do not wait, while the producer writes to many (category, shard) pairs: then
// frames would be small, and each costs every server on its way about as much as a large one. The linger grows with the number of pairs,
// to send about 2,000 small frames a second. The default is [DefaultMaxLinger], which 6,000 pairs reach; 0 never lingers longer than
// [WithLinger] says. Somebody waits once [Result.Wait] or [Result.Done] is called. Messages linger so only at [AckCommitted]: at other
// levels an agent is to have them soon. A category's own linger takes precedence. Neither is longer than half of the delivery timeout, and
// with WithLinger(0) nothing lingers. Messages that linger are lost with the process, like all without an acknowledgement.
func WithMaxLinger(d time.Duration) Option { return func(c *producerConfig) { c.maxLinger = d } }

// WithBatchBytes sets the size at which a frame is sent without lingering further; the default is [DefaultBatchBytes].
func WithBatchBytes(n int) Option { return func(c *producerConfig) { c.batchBytes = n } }

// WithMaxBufferedBytes bounds the memory of messages that are queued or in flight, for all categories together; the default is
// [DefaultMaxBufferedBytes]. When it is used up, Log drops and counts messages, WriteAsync fails with [ErrBufferFull], and calls
// with a context wait for space.
func WithMaxBufferedBytes(n int64) Option { return func(c *producerConfig) { c.maxBuffered = n } }

// WithMaxInFlight bounds concurrent requests; the default is [DefaultMaxInFlight]. Frames of one (category, shard) are in several
// of them only if the server keeps their order. 1 turns that off.
func WithMaxInFlight(requests int) Option {
	return func(c *producerConfig) { c.maxInFlight = requests }
}

// WithFramesPerRequest bounds the frames of one (category, shard) in a request; the default, 0, is as many as fit. In a category
// that is not exactly_once, a server may refuse one frame of a request and accept a later one. With 1 there is no later one, so
// the order within a (category, shard) is strict even then, at the price of one frame per round trip.
func WithFramesPerRequest(n int) Option { return func(c *producerConfig) { c.framesPerRequest = n } }

// WithRequestTimeout bounds the duration of one request; the default is [DefaultRequestTimeout]. Servers receive it as their
// deadline.
func WithRequestTimeout(d time.Duration) Option {
	return func(c *producerConfig) { c.requestTimeout = d }
}

// WithDeliveryTimeout bounds the time from the acceptance of a message until it fails; the default is [DefaultDeliveryTimeout], 0
// is unlimited. It is checked between attempts: a running attempt ends first.
func WithDeliveryTimeout(d time.Duration) Option {
	return func(c *producerConfig) { c.deliveryTimeout = d }
}

// WithRetries bounds the retries of a frame after transient failures. Below 0, the default, only the delivery timeout bounds
// them. 0 does not retry.
func WithRetries(n int) Option { return func(c *producerConfig) { c.retries = n } }

// WithBackoff sets the pause before the first retry, which doubles with every failure, and the longest one. Pauses are jittered,
// and never shorter than the server's retry hint. The defaults are [DefaultBackoff] and [DefaultLongestBackoff].
func WithBackoff(first, longest time.Duration) Option {
	return func(c *producerConfig) { c.backoffMin, c.backoffMax = first, longest }
}

// WithMaxMessageBytes bounds a message's [Message.Size]; the default is [DefaultMaxMessageBytes].
func WithMaxMessageBytes(n int) Option { return func(c *producerConfig) { c.maxMessage = n } }

// WithIdentity continues the producer that had this identity, so that servers recognise messages that are written again. See
// [Identity].
func WithIdentity(id Identity) Option { return func(c *producerConfig) { c.identity = &id } }

// WithClock sets the clock for event times; it is then read for each message. The default is the system's clock, which is read
// once a millisecond under load. Timeouts always use the system's clock.
func WithClock(now func() time.Time) Option {
	return func(c *producerConfig) { c.now, c.ownClock = now, true }
}

// WithRandom sets where random numbers come from: the producer's id, jitter, the choice of an instance. The default is the machine's randomness. The source
// must be safe for concurrent use.
func WithRandom(of rand.Source) Option {
	return func(c *producerConfig) { c.random = entropy.FromSource(of) }
}

// WithLogger sets the logger for retries; by default nothing is logged. Requests that fail are logged at once and then once a minute,
// and when they succeed again.
func WithLogger(l *slog.Logger) Option { return func(c *producerConfig) { c.logger = l } }

// WithHTTPClient sets the HTTP client, for example for tracing; the default speaks HTTP/1.1, and TLS as [WithTLS] says.
func WithHTTPClient(hc *http.Client) Option { return func(c *producerConfig) { c.httpClient = hc } }

// WithToken sends a token of the cell with every request ("scribe token issue"). Beside [WithHTTPClient] it is added to that client's
// requests.
func WithToken(text string) Option { return func(c *producerConfig) { c.token = text } }

// WithTokenFile is [WithToken] with the token in a file, which may be replaced while the program runs: tokens of an OpenID Connect issuer end soon, and are
// renewed by somebody else. The file is looked at before requests, at most once a second. That a server refuses the token is a failure to wait out then, for as
// long as [WithDeliveryTimeout] allows: it may have ended a moment before the next one comes.
func WithTokenFile(path string) Option { return func(c *producerConfig) { c.tokenFile = path } }

// WithService writes to s instead of a server's address. It is for a role in the same process.
func WithService(s Service) Option { return func(c *producerConfig) { c.service = s } }

// WithOnDrop sets a function that is called for every loss: messages that Log refused, and messages of any call that failed
// later. The goroutine that noticed the loss calls it, possibly concurrently with others. It must not block and must not call the
// producer.
func WithOnDrop(fn func(Drop)) Option { return func(c *producerConfig) { c.onDrop = fn } }

// WithOnAck sets a function that is called for every acknowledged frame, for metrics. The rules of [WithOnDrop] apply.
func WithOnAck(fn func(Acked)) Option { return func(c *producerConfig) { c.onAck = fn } }

// WithOnSampled sets a function that is called for every frame that a server left out by sampling. The rules of [WithOnDrop]
// apply.
func WithOnSampled(fn func(Sampled)) Option { return func(c *producerConfig) { c.onSampled = fn } }

// hostName returns the name of the host in reports; empty if it is unknown.
func (c *producerConfig) hostName() string {
	if c.host != "" {
		return c.host
	}
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}

// WithDeliveryReports counts what the producer takes and what becomes of it, by category and minute, and writes the counts in each interval to the
// category _delivery, from which "scribe audit" says how complete a category is (docs/format/delivery.md). An agent counts as well, what comes to it;
// the producer's counts say what did not. What a crash of the program takes is at most what it had counted since the last interval. The default, 0,
// writes none.
func WithDeliveryReports(every time.Duration) Option {
	return func(c *producerConfig) { c.countDelivery = every }
}

// WithHost sets the name of the host in reports of the producer ([WithLossReports], [WithDeliveryReports]); the default is the machine's name.
func WithHost(name string) Option { return func(c *producerConfig) { c.host = name } }

// WithLossReports tells the readers of a category which messages the producer dropped ([Drop]). It writes loss reports, sums by
// shard and reason, at most once in each interval; consumers yield them as gaps (docs/format/loss.md). A report is retried until
// it is stored. Messages that may have been stored ([DropUnknownOutcome]) are not reported. The default, 0, writes no reports.
func WithLossReports(every time.Duration) Option {
	return func(c *producerConfig) { c.reportLosses = every }
}
