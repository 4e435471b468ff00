package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options.
const (
	DefaultServer         = "http://127.0.0.1:7420"
	DefaultPrefetchBytes  = 64 << 20
	DefaultConcurrency    = 16
	DefaultRequestTimeout = 30 * time.Second
	DefaultHeartbeat      = time.Second
	DefaultBackoff        = 50 * time.Millisecond
	DefaultLongestBackoff = 5 * time.Second
)

// Unbounded is the window of a consumer that accepts messages in any order, see [WithWindow].
const Unbounded time.Duration = math.MaxInt64

// StreamService merges the shards of a category into a stream of pointers: an RPC client, or, in one process, the role itself.
// recv blocks until the consumer's next step or until its context ends.
type StreamService interface {
	Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
	// Bounds returns the readable range of shards.
	Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error)
}

// PayloadService serves the payloads that pointers refer to. The consumer owns the answers.
type PayloadService interface {
	Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error)
}

// Start is where a consumer begins.
type Start struct {
	kind scribev1.StartAt
	time int64                  // Unix microseconds; 0 for other kinds
	from *checkpoint.Checkpoint // set instead of kind
}

// Earliest begins with the oldest readable message.
func Earliest() Start { return Start{kind: scribev1.StartAt_START_AT_EARLIEST} }

// Latest begins with messages persisted after the first iteration began. It is the default.
func Latest() Start { return Start{kind: scribev1.StartAt_START_AT_LATEST} }

// At begins with messages persisted at or after t.
func At(t time.Time) Start { return Start{kind: scribev1.StartAt_START_AT_TIME, time: t.UnixMicro()} }

// Checkpoint continues from a text that [Consumer.Checkpoint] returned: no message is repeated or skipped. Shards that appeared
// since are read from their beginning. The error matches [ErrCheckpoint].
func Checkpoint(text string) (Start, error) {
	cp, err := checkpoint.Parse(text)
	if err != nil {
		return Start{}, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	return Start{from: &cp}, nil
}

// Damage is the policy for damaged data.
type Damage uint8

const (
	// DamageStop ends the iteration with a *[DamageError]. The position stays before the damage.
	DamageStop Damage = 1
	// DamageSkip yields a *[GapError] for the lost messages and continues after it.
	DamageSkip Damage = 2
)

// Option configures a Consumer.
type Option func(*consumerOptions)

type consumerOptions struct {
	start          Start
	window         *time.Duration // nil = the category's window
	logicalShards  []uint32       // none = all
	prefetchBytes  int64
	concurrency    int
	untilEnd       bool
	requestTimeout time.Duration
	heartbeat      time.Duration
	retryTimeout   time.Duration // 0 = none
	backoffMin     time.Duration
	backoffMax     time.Duration
	damage         Damage
	name           string
	now            func() time.Time
	random         *entropy.Source
	logger         *slog.Logger
	httpClient     *http.Client   // may be nil
	tls            *TLS           // may be nil
	token          string         // may be empty
	tokenFile      string         // may be empty
	renews         bool           // somebody renews the token: a lapse is waited out
	lapse          *tokenLapse    // of all that share the token
	readProxy      string         // may be empty
	streams        StreamService  // may be nil, with payloads
	payloads       PayloadService // may be nil, with streams
	control        SchemaService  // may be nil
	extension      Extension      // may be nil
	until          time.Time      // end time; the zero Time means none
	onGap          func(*GapError)
	onPause        func()      // may be nil
	member         bool        // of a group
	group          groupConfig // of a member
	countDelivery  time.Duration // 0 = never
	writes         WriteService  // may be nil
}

func defaultConfig() consumerOptions {
	return consumerOptions{
		start:          Latest(),
		prefetchBytes:  DefaultPrefetchBytes,
		concurrency:    DefaultConcurrency,
		requestTimeout: DefaultRequestTimeout,
		heartbeat:      DefaultHeartbeat,
		backoffMin:     DefaultBackoff,
		backoffMax:     DefaultLongestBackoff,
		damage:         DamageStop,
		now:            time.Now,
		random:         new(entropy.Source),
		logger:         slog.New(slog.DiscardHandler),
	}
}

// validate reports every violation.
func (c *consumerOptions) validate(category string) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("consumer: "+format, args...))
		}
	}
	if c.member {
		err := record.ValidateName("group name", c.group.name)
		check(err == nil, "%w", err)
		c.validateGroup(check)
	}
	if err := record.ValidateCategory(category); err != nil {
		errs = append(errs, fmt.Errorf("consumer: %w", err))
	}
	if cp := c.start.from; cp != nil {
		if cp.Category != category {
			errs = append(errs, fmt.Errorf("%w: it is of category %q, not of %q", ErrCheckpoint, cp.Category, category))
		}
	} else {
		check(c.start.kind != scribev1.StartAt_START_AT_UNSPECIFIED, "WithStart: the zero Start is not valid: use Earliest, Latest, At or Checkpoint")
	}
	if c.window != nil {
		check(*c.window >= 0, "WithWindow: %v is negative: want 0 or more", *c.window)
	}
	for _, s := range c.logicalShards {
		check(s <= record.MaxLogicalShard, "WithLogicalShards: invalid shard %d: the highest is %d", s, record.MaxLogicalShard)
	}
	check(c.prefetchBytes >= 64<<10, "WithPrefetchBytes: %d is below the least, %d", c.prefetchBytes, 64<<10)
	check(c.concurrency >= 1 && c.concurrency <= 256, "WithConcurrency: invalid value %d: want 1 to 256", c.concurrency)
	check(c.requestTimeout > 0, "WithRequestTimeout: %v is not above 0", c.requestTimeout)
	check(c.heartbeat >= 50*time.Millisecond, "WithHeartbeat: %v is below 50ms", c.heartbeat)
	check(c.retryTimeout >= 0, "WithRetryTimeout: %v is negative", c.retryTimeout)
	check(c.backoffMin > 0 && c.backoffMax >= c.backoffMin, "WithBackoff: want 0 < %v <= %v", c.backoffMin, c.backoffMax)
	check(c.damage == DamageStop || c.damage == DamageSkip, "WithDamage: invalid value %d: want DamageStop or DamageSkip", c.damage)
	check(len(c.name) <= 255, "WithName: %d bytes, the limit is 255", len(c.name))
	check(c.now != nil, "WithClock: nil")
	check(c.random != nil, "WithRandom: nil")
	check(c.logger != nil, "WithLogger: nil")
	check(c.countDelivery == 0 || c.countDelivery >= 10*time.Millisecond, "WithDeliveryReports: %v is below 10ms", c.countDelivery)
	check((c.streams == nil) == (c.payloads == nil), "WithServices: want both services or none")
	if c.extension != nil {
		if err := c.extension.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	check(c.readProxy == "" || c.payloads == nil, "WithReadProxy: beside WithServices, which has the payloads' service already")
	return errors.Join(errs...)
}

// WithStart sets where the first iteration begins; the default is [Latest].
func WithStart(s Start) Option { return func(c *consumerOptions) { c.start = s } }

// WithWindow sets the ordering window, in persisted time, within which the category's shards are merged: 0 means strict order,
// [Unbounded] no order. The default is the category's window. A lagging shard holds the others back by no more than the window.
func WithWindow(d time.Duration) Option { return func(c *consumerOptions) { c.window = &d } }

// WithLogicalShards reads only these logical shards; the default is all.
func WithLogicalShards(shards ...uint32) Option {
	return func(c *consumerOptions) { c.logicalShards = slices.Clone(shards) }
}

// WithPrefetchBytes bounds the memory used ahead of the loop: queued pointers (at most an eighth), answers while they arrive, and
// decompressed payloads, including the one being delivered. The default is [DefaultPrefetchBytes]. A payload that is larger than
// the bound is fetched when no other is held: at most 80 MiB. Decompression uses another 130 KiB or so for each processor.
func WithPrefetchBytes(n int64) Option { return func(c *consumerOptions) { c.prefetchBytes = n } }

// WithConcurrency bounds the concurrent fetches, each including its decompression; the default is [DefaultConcurrency]. Their number
// times the delay of the store bounds the speed of a backlog.
func WithConcurrency(n int) Option { return func(c *consumerOptions) { c.concurrency = n } }

// WithUntilEnd ends an iteration at the tails that the shards had when the iteration began.
func WithUntilEnd() Option { return func(c *consumerOptions) { c.untilEnd = true } }

// WithRequestTimeout bounds one fetch; the default is [DefaultRequestTimeout].
func WithRequestTimeout(d time.Duration) Option {
	return func(c *consumerOptions) { c.requestTimeout = d }
}

// WithHeartbeat sets how often the server sends a heartbeat when it has nothing else to send; the default is [DefaultHeartbeat].
// A stream that is silent for ten heartbeats, and at least 10 s, is treated as broken.
func WithHeartbeat(d time.Duration) Option { return func(c *consumerOptions) { c.heartbeat = d } }

// WithRetryTimeout bounds how long servers may be continuously unavailable before the iteration ends with [ErrUnavailable]; 0,
// the default, retries forever.
func WithRetryTimeout(d time.Duration) Option { return func(c *consumerOptions) { c.retryTimeout = d } }

// WithBackoff sets the pause before the first retry, which doubles with every failure, and the longest pause. Pauses are
// jittered. The defaults are [DefaultBackoff] and [DefaultLongestBackoff].
func WithBackoff(first, longest time.Duration) Option {
	return func(c *consumerOptions) { c.backoffMin, c.backoffMax = first, longest }
}

// WithDamage sets the policy for damaged data; the default is [DamageStop].
func WithDamage(d Damage) Option { return func(c *consumerOptions) { c.damage = d } }

// WithName names the consumer in the servers' logs and status.
func WithName(name string) Option { return func(c *consumerOptions) { c.name = name } }

// WithClock sets the clock that [Consumer.Lag] compares with; the default is [time.Now].
func WithClock(now func() time.Time) Option { return func(c *consumerOptions) { c.now = now } }

// WithRandom sets where random numbers come from: jitter, the choice of an instance, the name of a group's member. The default is the machine's randomness. The source
// must be safe for concurrent use.
func WithRandom(of rand.Source) Option {
	return func(c *consumerOptions) { c.random = entropy.FromSource(of) }
}

// WithLogger sets the logger for reconnects and retries; the default discards them.
func WithLogger(l *slog.Logger) Option { return func(c *consumerOptions) { c.logger = l } }

// WithHTTPClient sets the HTTP client, for example for tracing. It must speak HTTP/2 to the server, since streams are
// bidirectional. The default uses HTTP/2 for the stream and HTTP/1.1 for payloads, and TLS as [WithTLS] says.
func WithHTTPClient(hc *http.Client) Option { return func(c *consumerOptions) { c.httpClient = hc } }

// WithToken sends a token of the cell with every request ("scribe token issue"). Beside [WithHTTPClient] it is added to that client's
// requests.
func WithToken(text string) Option { return func(c *consumerOptions) { c.token = text } }

// WithTokenFile is [WithToken] with the token in a file, which may be replaced while the program runs: tokens of an OpenID Connect issuer end soon, and are
// renewed by somebody else. The file is looked at before requests, at most once a second. That a server refuses the token is a failure to wait out then, for as
// long as [WithRetryTimeout] allows, or two minutes without it: it may have ended a moment before the next one comes.
func WithTokenFile(path string) Option { return func(c *consumerOptions) { c.tokenFile = path } }

// WithReadProxy fetches payloads through a different address than the stream's: any process in the consumer's region. The read
// proxies of that region cache what several consumers there read of another region's categories. The default is the consumer's
// server.
func WithReadProxy(server string) Option { return func(c *consumerOptions) { c.readProxy = server } }

// WithServices reads from these services, roles in the same process, instead of a server's address.
func WithServices(streams StreamService, payloads PayloadService) Option {
	return func(c *consumerOptions) { c.streams, c.payloads = streams, payloads }
}

// WithControl sets the service for categories and their schemas, instead of a server's address. Queries and filters need it
// together with [WithServices].
func WithControl(control SchemaService) Option {
	return func(c *consumerOptions) { c.control = control }
}

// WithOnGap sets a function that the iterating goroutine calls with every gap, before the iteration yields it.
func WithOnGap(fn func(*GapError)) Option { return func(c *consumerOptions) { c.onGap = fn } }

// WithOnPause sets a function that the iterating goroutine calls when a stream was opened, and whenever everything available has
// been yielded, before it waits for more: at least at every heartbeat. Use it to hand on collected results: [Consumer.Checkpoint]
// then covers everything that was yielded, and the loop is not handling a message.
func WithOnPause(fn func()) Option { return func(c *consumerOptions) { c.onPause = fn } }

// pause returns the backoff after a number of consecutive failures. The last error may carry a retry hint.
func (c *consumerOptions) pause(failures int, err error) time.Duration {
	pauses := backoff.Backoff{Min: c.backoffMin, Max: c.backoffMax, Random: c.random}
	return max(pauses.Pause(failures), retry.Classify(err).After)
}
