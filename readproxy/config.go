package readproxy

import (
	"context"
	"errors"
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
	CacheBytes int64 `yaml:"/limits.read_cache" default:"256MiB" min:"0B" max:"1024TiB" flag:"read-cache" help:"most bytes that a read proxy caches"`
	// TailAge is the age up to which a block is taken for one that several will read. Older ones have to be asked for twice before
	// they are kept as long.
	TailAge time.Duration `yaml:"tail_age" default:"10m" min:"0s" max:"3650d"`
	// FetchBytes bounds the blocks that are being fetched or wait for it.
	FetchBytes int64 `yaml:"/limits.read_memory" default:"256MiB" min:"LeastFetchBytes" max:"1024TiB" flag:"read-memory" help:"most bytes of requests with their answers in a read proxy, and of payloads that it fetches, each"`
	// Fetches is how many requests to stores run at a time, and how many to peers.
	Fetches int `yaml:"fetches" default:"64" min:"1" max:"100000"`
	// FetchTimeout bounds the read of a block, and the time that it waits for its turn; beside it PeerTimeout a request to a peer.
	FetchTimeout time.Duration `yaml:"fetch_timeout" default:"30s" min:"1ms" max:"1h"`
	PeerTimeout  time.Duration `yaml:"peer_timeout" default:"10s" min:"1ms" max:"1h"`
	// CoalesceBytes is the longest range of a blob that is read at once for several blocks, CoalesceGap how many bytes between two of
	// them may be read in vain. 0 reads each block by itself.
	CoalesceBytes int64 `yaml:"coalesce_bytes" default:"8MiB" min:"0B" max:"1GiB"`
	CoalesceGap   int64 `yaml:"coalesce_gap" default:"256KiB" min:"0B" max:"1GiB"`
	// ReadsPerSecond bounds the requests to stores, ReadBurst how many may have been saved up; 0 = no bound.
	ReadsPerSecond float64 `yaml:"reads_per_second" min:"0" max:"1000000000000000"`
	ReadBurst      int     `yaml:"read_burst" default:"1000" min:"1" max:"1073741824"`

	// Memcached is the shared tier; nil = none.
	Memcached *memcached.Config `yaml:"memcached"`
	// SharedAge is the age up to which blocks are kept in memcached and asked for there, unless a category or a rule says something else.
	SharedAge time.Duration `yaml:"memcached.shared_age" default:"2h" min:"0s" max:"3650d"`
	// FillBytes bounds the blocks that wait to be put into memcached.
	FillBytes int64 `yaml:"memcached.fill_bytes" default:"64MiB" min:"0B" max:"1024TiB"`
	// Rules say for categories which tiers keep their blocks.
	Rules []Rule `yaml:"rules"`

	// Views says how many views are made for the queries that run.
	Views view.Config `yaml:"views"`

	// RequestBytes bounds what the requests being served need: the blocks, what is made of them, and the answers until they are sent. One
	// that needs more than all is served alone. A quarter as much bounds requests as they are read.
	RequestBytes int64 `yaml:"/limits.read_memory" default:"256MiB" min:"1MiB" max:"1024TiB" flag:"read-memory"`
	// Queue bounds the requests queued or in service, and sets the utilisation to keep to.
	Queue admission.ControllerConfig `yaml:",inline"`
	// QueueTimeout is how long a request waits for others' bytes.
	QueueTimeout time.Duration `yaml:"queue_timeout" default:"2s" min:"1ms" max:"1h"`
	// NetworkBytesPerSecond is what the host's network takes, for its utilisation; 0 = it is never the bottleneck.
	NetworkBytesPerSecond float64 `yaml:"network_bytes_per_second" default:"0B" min:"0B" max:"1000TB"`
	// RequestsPerSecond bounds requests, RequestBurst how many may come at once; 0 = no bound.
	RequestsPerSecond float64 `yaml:"requests_per_second" default:"20000" min:"0" max:"1000000000000000"`
	RequestBurst      int     `yaml:"request_burst" default:"10000" min:"1" max:"1073741824"`
	// AnswerBytes is where an answer is cut, at most 32 MiB.
	AnswerBytes int `default:"32MiB" min:"1B" max:"maxAnswerBytes"`
	// RetryAfter is the hint given with refusals, give or take a half of it.
	RetryAfter time.Duration `yaml:"retry_after" default:"200ms" min:"0s" max:"1h"`
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config { return config.Defaults[Config]() }

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
