package readproxy

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/base/entropy"
	"scribe/internal/format/pointer"
	"scribe/internal/role/admission"
	"scribe/internal/role/quota"
	"scribe/internal/role/traffic"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy/memcached"
	"scribe/readproxy/view"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/layout"
)

// Limits of the protocol (proto/scribe/v1/readproxy.proto).
const (
	maxPointers    = 1000
	maxAnswerBytes = 32 << 20
)

// LeastFetchBytes is the memory for fetching the largest block, in bytes: stored and decompressed.
const LeastFetchBytes = pointer.MaxBlockLen + pointer.MaxBlockRaw

// maxTranscoded bounds the JSON or Arrow encoding of one payload, in bytes: an answer must fit a message of the transport.
const maxTranscoded = 64 << 20

// Config bounds a read proxy's memory and requests. Sizes are in bytes.
type Config struct {
	// Region is the name of this server's region in pointers; empty if there is only one region.
	Region string

	// CacheBytes bounds the cached blocks in memory; 0 disables the cache.
	CacheBytes int64 `yaml:"/limits.read_cache" default:"256MiB" min:"0B" max:"1024TiB" flag:"read-cache" help:"most bytes that a read proxy caches"`
	// TailAge is the age below which a block is assumed to have several readers. Older blocks get the same priority in the cache
	// only when they are requested a second time.
	TailAge time.Duration `yaml:"tail_age" default:"10m" min:"0s" max:"3650d"`
	// PushInterest is how long after a read at its tail a category's blocks are wanted from batchers; 0 means never.
	PushInterest time.Duration `yaml:"push_interest" default:"5m" min:"0s" max:"24h"`
	// PushWait bounds how long a fetch of a new block waits for a batcher to push it, if blocks of its category are pushed. Then it
	// goes to the next tier.
	PushWait time.Duration `yaml:"push_wait" default:"20ms" min:"0s" max:"1s"`
	// FetchBytes bounds the blocks that are being fetched or queued for it.
	FetchBytes int64 `yaml:"/limits.read_memory" default:"256MiB" min:"LeastFetchBytes" max:"1024TiB" flag:"read-memory" help:"most bytes of requests with their answers in a read proxy, and of payloads that it fetches, each"`
	// Fetches bounds the concurrent requests to stores, and separately those to peers.
	Fetches int `yaml:"fetches" default:"64" min:"1" max:"100000"`
	// FetchTimeout bounds the read of a block, and its time in the queue. PeerTimeout bounds a request to a peer.
	FetchTimeout time.Duration `yaml:"fetch_timeout" default:"30s" min:"1ms" max:"1h"`
	PeerTimeout  time.Duration `yaml:"peer_timeout" default:"10s" min:"1ms" max:"1h"`
	// CoalesceBytes bounds the range of a blob that one request reads for several blocks; 0 reads each block separately.
	// CoalesceGap bounds the unneeded bytes between two of them.
	CoalesceBytes int64 `yaml:"coalesce_bytes" default:"8MiB" min:"0B" max:"1GiB"`
	CoalesceGap   int64 `yaml:"coalesce_gap" default:"256KiB" min:"0B" max:"1GiB"`
	// ReadsPerSecond bounds the rate of requests to stores, 0 means no bound. ReadBurst is the size of its token bucket.
	ReadsPerSecond float64 `yaml:"reads_per_second" min:"0" max:"1000000000000000"`
	ReadBurst      int     `yaml:"read_burst" default:"1000" min:"1" max:"1073741824"`

	// Memcached configures the shared tier; nil means none.
	Memcached *memcached.Config `yaml:"memcached"`
	// SharedAge is the age up to which blocks are stored in memcached and looked up there, unless a category or a rule overrides
	// it.
	SharedAge time.Duration `yaml:"memcached.shared_age" default:"2h" min:"0s" max:"3650d"`
	// FillBytes bounds the blocks queued for memcached.
	FillBytes int64 `yaml:"memcached.fill_bytes" default:"64MiB" min:"0B" max:"1024TiB"`
	// Rules determine by category which tiers keep blocks.
	Rules []Rule `yaml:"rules"`

	// Views bounds the views that are made for running queries.
	Views view.Config `yaml:"views"`

	// RequestBytes bounds the memory of requests in service: their blocks, the encoded payloads, and the answers until they are
	// sent. A request that needs more than the bound is served alone. A quarter of it bounds requests while they are read.
	RequestBytes int64 `yaml:"/limits.read_memory" default:"256MiB" min:"1MiB" max:"1024TiB" flag:"read-memory"`
	// Queue bounds the requests queued or in service, and sets the utilisation to keep to.
	Queue admission.ControllerConfig `yaml:",inline"`
	// QueueTimeout bounds how long a request waits for other requests to release memory.
	QueueTimeout time.Duration `yaml:"queue_timeout" default:"2s" min:"1ms" max:"1h"`
	// NetworkBytesPerSecond is the capacity of the host's network, from which its utilisation is computed; 0 means that the
	// network is never the bottleneck.
	NetworkBytesPerSecond float64 `yaml:"network_bytes_per_second" default:"0B" min:"0B" max:"1000TB"`
	// RequestsPerSecond bounds the rate of requests, 0 means no bound. RequestBurst is the size of its token bucket.
	RequestsPerSecond float64 `yaml:"requests_per_second" default:"20000" min:"0" max:"1000000000000000"`
	RequestBurst      int     `yaml:"request_burst" default:"10000" min:"1" max:"1073741824"`
	// AnswerBytes bounds the payloads of an answer; at most 32 MiB.
	AnswerBytes int `default:"32MiB" min:"1B" max:"maxAnswerBytes"`
	// RetryAfter is the mean retry hint of refusals, jittered by half of it.
	RetryAfter time.Duration `yaml:"retry_after" default:"200ms" min:"0s" max:"1h"`
}

// Validate reports every violation.
func (c *Config) Validate() error {
	v := config.Check("readproxy", c, config.Bounds{"LeastFetchBytes": LeastFetchBytes, "maxAnswerBytes": maxAnswerBytes})
	if err := pointer.ValidateRegion(c.Region); err != nil {
		v.Add("Region", "%v", err)
	}
	return v.Err()
}

// Categories is the view of categories.
type Categories interface {
	// Lookup returns a category from the local view. The category is immutable.
	Lookup(name string) (*scribev1.Category, bool)
	// Resolve asks the control plane. Its error has REASON_UNKNOWN_CATEGORY when there is none.
	Resolve(ctx context.Context, name string) (*scribev1.Category, error)
}

// Deps are the dependencies of a server. They outlive it.
type Deps struct {
	// Blobs returns the store of a region, "" for this one, and an error for a region without one here.
	Blobs func(region string) (blob.Store, error)
	// Keys returns the keys of a region's store, an encryption.Keys; nil means that encrypted payloads can't be read.
	Keys func(region string) (layout.Decrypter, error)
	// Peers returns the read proxies of another region; nil for a region without any. If a region has both peers and a store, the
	// store serves the blocks that the peers do not deliver. A nil function means no peers.
	Peers func(region string) Peer
	// Categories is the view of categories.
	Categories Categories
	// Sharers returns the number of read proxies in the cell, including this one: they share each quota for reading. Nil
	// means one. It is called often.
	Sharers func() int
	// Tenants returns the quotas of tenants; nil means that there are none.
	Tenants func() *quota.Tenants
	// Annotations stores zone maps with their pointers; nil disables them.
	Annotations Annotator
	// CPUTime returns the CPU time that the process has used, from which utilisation is computed; nil means the system's counter.
	CPUTime func() time.Duration
	// Traffic counts what is read by category; nil = it is not counted.
	Traffic *traffic.Counter
	// Logger defaults to none.
	Logger *slog.Logger
	// Registerer registers the metrics, until Close; nil means no metrics.
	Registerer prometheus.Registerer
	// Now is the wall clock, with which the times of blobs are compared; nil means time.Now.
	Now func() time.Time
	// Random draws jitter, and where versions begin; nil means the machine's randomness.
	Random *entropy.Source
}

func (d *Deps) keysOf(region string) (layout.Decrypter, error) {
	if d.Keys == nil {
		return nil, encryption.ErrWrapped
	}
	return d.Keys(region)
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
