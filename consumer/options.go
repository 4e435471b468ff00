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
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	"scribe/internal/transport/retry"
	scribev1 "scribe/proto/scribe/v1"
)

// Defaults of the options.
const (
	DefaultServer         = "http://127.0.0.1:7420"
	DefaultPrefetchBytes  = 32 << 20
	DefaultConcurrency    = 4
	DefaultRequestTimeout = 30 * time.Second
	DefaultHeartbeat      = time.Second
	DefaultBackoff        = 50 * time.Millisecond
	DefaultLongestBackoff = 5 * time.Second
)

// Unbounded is the window of a consumer that takes messages as they come, see [WithWindow].
const Unbounded time.Duration = math.MaxInt64

// StreamService merges the shards of a category into a stream of pointers: an RPC client, or in one process the role itself. recv
// blocks for the consumer's next step until its context ends.
type StreamService interface {
	Stream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error
	// Bounds tells what there is to read of shards.
	Bounds(ctx context.Context, req *scribev1.BoundsRequest) (*scribev1.BoundsResponse, error)
}

// PayloadService serves the payloads that pointers stand for. Answers belong to the consumer.
type PayloadService interface {
	Fetch(ctx context.Context, req *scribev1.FetchRequest) (*scribev1.FetchResponse, error)
}

// Start says where a consumer begins.
type Start struct {
	kind scribev1.StartAt
	time time.Time
	from *checkpoint.Checkpoint // instead of a kind
}

// Earliest begins with the oldest message that is readable.
func Earliest() Start { return Start{kind: scribev1.StartAt_START_AT_EARLIEST} }

// Latest begins with what is persisted after the first iteration began. It is the default.
func Latest() Start { return Start{kind: scribev1.StartAt_START_AT_LATEST} }

// At begins with what was persisted at or after t.
func At(t time.Time) Start { return Start{kind: scribev1.StartAt_START_AT_TIME, time: t} }

// Checkpoint continues where [Consumer.Checkpoint] returned the text: nothing is repeated and nothing skipped. Shards that
// appeared since are read from their beginning. The error matches [ErrCheckpoint].
func Checkpoint(text string) (Start, error) {
	cp, err := checkpoint.Parse(text)
	if err != nil {
		return Start{}, fmt.Errorf("%w: %w", ErrCheckpoint, err)
	}
	return Start{from: &cp}, nil
}

// Damage is what a consumer does when it meets damaged data.
type Damage uint8

const (
	// DamageStop ends the iteration with a *[DamageError]. The position stays in front of the damage.
	DamageStop Damage = 1
	// DamageSkip tells of what is lost in a *[GapError] and goes on behind it.
	DamageSkip Damage = 2
)

// Option changes how a Consumer works.
type Option interface{ apply(*options) }

type option func(*options)

func (o option) apply(c *options) { o(c) }

type options struct {
	start          Start
	window         *time.Duration // nil = the category's
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
	random         func() float64
	logger         *slog.Logger
	httpClient     *http.Client   // may be nil
	readProxy      string         // may be empty
	streams        StreamService  // may be nil, with payloads
	payloads       PayloadService // may be nil, with streams
	control        SchemaService  // may be nil
	extension      Extension      // may be nil
	until          time.Time      // an end; the zero Time: none
	onGap          func(*GapError)
	onPause        func()      // may be nil
	group          groupConfig // of members of a group
}

func defaultConfig() options {
	return options{
		start:          Latest(),
		prefetchBytes:  DefaultPrefetchBytes,
		concurrency:    DefaultConcurrency,
		requestTimeout: DefaultRequestTimeout,
		heartbeat:      DefaultHeartbeat,
		backoffMin:     DefaultBackoff,
		backoffMax:     DefaultLongestBackoff,
		damage:         DamageStop,
		now:            time.Now,
		random:         rand.Float64,
		logger:         slog.New(slog.DiscardHandler),
	}
}

// validate reports every violation.
func (c *options) validate(category string) error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("consumer: "+format, args...))
		}
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
func WithStart(s Start) Option { return option(func(c *options) { c.start = s }) }

// WithWindow bounds how far out of order of persisted time messages are delivered, by merging the category's shards so far: 0 is
// the strict order, [Unbounded] none. The default is what the category says. A shard that falls behind holds the others back by no
// more than that.
func WithWindow(d time.Duration) Option { return option(func(c *options) { c.window = &d }) }

// WithLogicalShards reads only these logical shards; the default is all.
func WithLogicalShards(shards ...uint32) Option {
	return option(func(c *options) { c.logicalShards = slices.Clone(shards) })
}

// WithPrefetchBytes bounds the memory of what is ahead of the loop, in whatever form it is: pointers that wait (an eighth at most), answers
// while they arrive, and decompressed payloads, the one being delivered included. The default is [DefaultPrefetchBytes]. A payload that is
// larger by itself is fetched when no other is held: at most 80 MiB. Decompression takes some 130 KiB for each fetch that runs
// ([WithConcurrency]) beside it.
func WithPrefetchBytes(n int64) Option { return option(func(c *options) { c.prefetchBytes = n }) }

// WithConcurrency sets how many fetches, with the decompression behind them, run at the same time; the default is
// [DefaultConcurrency].
func WithConcurrency(n int) Option { return option(func(c *options) { c.concurrency = n }) }

// WithUntilEnd ends an iteration at the tails that the shards had when it began.
func WithUntilEnd() Option { return option(func(c *options) { c.untilEnd = true }) }

// WithRequestTimeout bounds one fetch; the default is [DefaultRequestTimeout].
func WithRequestTimeout(d time.Duration) Option {
	return option(func(c *options) { c.requestTimeout = d })
}

// WithHeartbeat sets how often the server says that it lives when there is nothing else to say; the default is
// [DefaultHeartbeat]. A stream that is silent for ten times as long, and at least 10 s, is taken for broken.
func WithHeartbeat(d time.Duration) Option { return option(func(c *options) { c.heartbeat = d }) }

// WithRetryTimeout bounds how long servers may be unavailable at a stretch until the iteration ends with [ErrUnavailable]; 0,
// the default, tries for ever.
func WithRetryTimeout(d time.Duration) Option { return option(func(c *options) { c.retryTimeout = d }) }

// WithBackoff sets the pause before the first retry, which doubles with every failure, and the longest one. Pauses are jittered.
// The defaults are [DefaultBackoff] and [DefaultLongestBackoff].
func WithBackoff(first, longest time.Duration) Option {
	return option(func(c *options) { c.backoffMin, c.backoffMax = first, longest })
}

// WithDamage sets what happens with damaged data; the default is [DamageStop].
func WithDamage(d Damage) Option { return option(func(c *options) { c.damage = d }) }

// WithName says who reads, for the servers' logs and status.
func WithName(name string) Option { return option(func(c *options) { c.name = name }) }

// WithClock sets the clock that [Consumer.Lag] compares with; the default is [time.Now].
func WithClock(now func() time.Time) Option { return option(func(c *options) { c.now = now }) }

// WithRandom sets the source of jitter: numbers in [0, 1). It is called by several goroutines at the same time.
func WithRandom(random func() float64) Option { return option(func(c *options) { c.random = random }) }

// WithLogger sets where the consumer reports reconnects and retries; the default is nowhere.
func WithLogger(l *slog.Logger) Option { return option(func(c *options) { c.logger = l }) }

// WithHTTPClient sets the HTTP client, for TLS or authentication. It must speak HTTP/2 to the server, since streams go both ways;
// the default speaks HTTP/2 for the stream and HTTP/1.1 for payloads, without TLS.
func WithHTTPClient(hc *http.Client) Option { return option(func(c *options) { c.httpClient = hc }) }

// WithReadProxy has payloads fetched through another address than the stream's: any process of the region in which the consumer runs,
// whose read proxies keep what several consumers there read of another region's categories. The default is the consumer's server.
func WithReadProxy(server string) Option { return option(func(c *options) { c.readProxy = server }) }

// WithServices reads from these instead of a server's address: roles in the same process.
func WithServices(streams StreamService, payloads PayloadService) Option {
	return option(func(c *options) { c.streams, c.payloads = streams, payloads })
}

// WithControl asks this for categories and their schemas instead of a server's address: beside [WithServices], for queries and filters.
func WithControl(control SchemaService) Option {
	return option(func(c *options) { c.control = control })
}

// WithOnGap sets a function that is told of every gap before the iteration yields it, by the goroutine that iterates.
func WithOnGap(fn func(*GapError)) Option { return option(func(c *options) { c.onGap = fn }) }

// WithOnPause sets a function that the goroutine that iterates calls when a stream was opened, and whenever all that is there has
// been yielded, before it waits for more: at least at every heartbeat. It is the moment to hand on what was collected:
// [Consumer.Checkpoint] is behind all that was yielded, and no message is being looked at.
func WithOnPause(fn func()) Option { return option(func(c *options) { c.onPause = fn }) }

// pause is how long to wait after that many failures in a row, the last of which may have brought a retry hint.
func (c *options) pause(failures int, err error) time.Duration {
	pauses := backoff.Backoff{Min: c.backoffMin, Max: c.backoffMax, Random: c.random}
	return max(pauses.Pause(failures), retry.Classify(err).After)
}
