package readproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/admission"
	"scribe/readproxy/memcached"
	"scribe/readproxy/view"
	"scribe/storage/blob"
)

// Limits of the protocol (proto/scribe/v1/readproxy.proto).
const (
	maxPointers    = 1000
	maxAnswerBytes = 32 << 20
)

// LeastFetchBytes is what the largest block takes while it is fetched: as stored, and decompressed.
const LeastFetchBytes = pointer.MaxBlockLen + pointer.MaxBlockRaw

// maxTranscoded bounds the JSON or the Arrow of one payload: an answer must fit a message of the transport.
const maxTranscoded = 64 << 20

// Config of the role.
type Config struct {
	// Region is this server's, as pointers name it; empty where there is one.
	Region string

	// CacheBytes bounds the blocks that are kept in memory; 0 keeps none.
	CacheBytes int64
	// TailAge is the age up to which a block is taken for one that several will read. Older ones have to be asked for twice before
	// they are kept as long.
	TailAge time.Duration
	// FetchBytes bounds the blocks that are being fetched or wait for it.
	FetchBytes int64
	// Fetches is how many requests to stores run at a time, and how many to peers.
	Fetches int
	// FetchTimeout bounds the read of a block, and the time that it waits for its turn; beside it PeerTimeout a request to a peer.
	FetchTimeout time.Duration
	PeerTimeout  time.Duration
	// CoalesceBytes is the longest range of a blob that is read at once for several blocks, CoalesceGap how many bytes between two of
	// them may be read in vain. 0 reads each block by itself.
	CoalesceBytes int64
	CoalesceGap   int64
	// ReadsPerSecond bounds the requests to stores, ReadBurst how many may have been saved up; 0 = no bound.
	ReadsPerSecond float64
	ReadBurst      int

	// Memcached is the shared tier; nil = none.
	Memcached *memcached.Config
	// SharedAge is the age up to which blocks are kept in memcached and asked for there, unless a category or a rule says something else.
	SharedAge time.Duration
	// FillBytes bounds the blocks that wait to be put into memcached.
	FillBytes int64
	// Rules say for categories which tiers keep their blocks.
	Rules []Rule

	// Views says how many views are made for the queries that run.
	Views view.Config

	// RequestBytes bounds what the requests being served need: the blocks, what is made of them, and the answers until they are sent. One
	// that needs more than all is served alone. A quarter as much bounds requests as they are read.
	RequestBytes int64
	// Queue is bounds the requests queued or in service, and sets the utilisation to keep to.
	Queue admission.ControllerConfig
	// QueueTimeout is how long a request waits for others' bytes.
	QueueTimeout time.Duration
	// NetworkBytesPerSecond is what the host's network takes, for its utilisation; 0 = it is never the bottleneck.
	NetworkBytesPerSecond float64
	// RequestsPerSecond bounds requests, RequestBurst how many may come at once; 0 = no bound.
	RequestsPerSecond float64
	RequestBurst      int
	// AnswerBytes is where an answer is cut, at most 32 MiB.
	AnswerBytes int
	// RetryAfter is the hint given with refusals, give or take a half of it.
	RetryAfter time.Duration
}

// DefaultConfig returns the configuration that is used unless told otherwise.
func DefaultConfig() Config {
	return Config{
		CacheBytes:    256 << 20,
		TailAge:       10 * time.Minute,
		FetchBytes:    256 << 20,
		Fetches:       64,
		FetchTimeout:  30 * time.Second,
		PeerTimeout:   10 * time.Second,
		CoalesceBytes: 8 << 20,
		CoalesceGap:   256 << 10,
		ReadBurst:     1000,
		SharedAge:     2 * time.Hour,
		FillBytes:     64 << 20,
		Views:         view.DefaultConfig(),
		RequestBytes:  256 << 20,
		Queue:         admission.ControllerConfig{Target: 0.9, Least: 64, Most: 4096},
		QueueTimeout:  2 * time.Second,
		// About what two processors can do when every request is for a block in memory.
		RequestsPerSecond: 20_000,
		RequestBurst:      10_000,
		AnswerBytes:       maxAnswerBytes,
		RetryAfter:        200 * time.Millisecond,
	}
}

// Validate reports every field that is out of range, joined.
func (c *Config) Validate() error {
	f := config.Of("readproxy")
	if err := pointer.ValidateRegion(c.Region); err != nil {
		f.Add("Region", "%v", err)
	}
	f.Bytes("CacheBytes", c.CacheBytes, 0, 1<<50)
	f.Duration("TailAge", c.TailAge, 0, 10*365*24*time.Hour)
	f.Bytes("FetchBytes", c.FetchBytes, LeastFetchBytes, 1<<50)
	f.Int("Fetches", c.Fetches, 1, 100_000)
	f.Duration("FetchTimeout", c.FetchTimeout, time.Millisecond, time.Hour)
	f.Duration("PeerTimeout", c.PeerTimeout, time.Millisecond, time.Hour)
	f.Bytes("CoalesceBytes", c.CoalesceBytes, 0, 1<<30)
	f.Bytes("CoalesceGap", c.CoalesceGap, 0, 1<<30)
	f.Float("ReadsPerSecond", c.ReadsPerSecond, 0, 1e15)
	f.Int("ReadBurst", c.ReadBurst, 1, 1<<30)
	if c.Memcached != nil {
		f.Join(c.Memcached.Validate())
	}
	f.Duration("SharedAge", c.SharedAge, 0, 10*365*24*time.Hour)
	f.Bytes("FillBytes", c.FillBytes, 0, 1<<50)
	for i := range c.Rules {
		c.Rules[i].validate(f, fmt.Sprintf("Rules[%d]", i))
	}
	f.Join(c.Views.Validate())
	f.Bytes("RequestBytes", c.RequestBytes, 1<<20, 1<<50)
	f.Join(c.Queue.Validate())
	f.Duration("QueueTimeout", c.QueueTimeout, time.Millisecond, time.Hour)
	f.Float("NetworkBytesPerSecond", c.NetworkBytesPerSecond, 0, 1e15)
	f.Float("RequestsPerSecond", c.RequestsPerSecond, 0, 1e15)
	f.Int("RequestBurst", c.RequestBurst, 1, 1<<30)
	f.Bytes("AnswerBytes", int64(c.AnswerBytes), 1, maxAnswerBytes)
	f.Duration("RetryAfter", c.RetryAfter, 0, time.Hour)
	return f.Err()
}

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. It is not changed.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are what the role works with. They outlive it.
type Deps struct {
	// Blobs returns the store of a region, "" for this one, and an error for a region without one here.
	Blobs func(region string) (blob.Store, error)
	// Peers returns the read proxies of another region, and nil for a region without. Where both are known, the store is for what the
	// peer does not deliver. Nil = none.
	Peers func(region string) Peer
	// Categories is the view of categories.
	Categories Categories
	// Annotations is where zone maps are kept beside pointers; nil = they are not learned.
	Annotations Annotator
	// CPUTime is what the process has used so far, for its utilisation; nil = what the system says.
	CPUTime func() time.Duration
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer gets the metrics; nil keeps none. Close unregisters them.
	Registerer prometheus.Registerer
}

func (d *Deps) validate() error {
	var errs []error
	if d.Blobs == nil {
		errs = append(errs, errors.New("readproxy: Deps.Blobs is missing"))
	}
	if d.Categories == nil {
		errs = append(errs, errors.New("readproxy: Deps.Categories is missing"))
	}
	return errors.Join(errs...)
}
