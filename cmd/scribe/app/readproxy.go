package app

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/units"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	"scribe/readproxy"
	"scribe/readproxy/memcached"
	"scribe/readproxy/view"
	"scribe/storage/blob"
)

// ReadProxyConfig says how payloads are fetched and kept, and how many requests are let in; see readproxy.Config, whose fields have the
// same names. Its memory is in Limits.
type ReadProxyConfig struct {
	// TailAge is the age up to which a block is taken for one that several will read.
	TailAge units.Duration `yaml:"tail_age"`
	// Fetches is how many requests to stores run at a time, and how many to other regions.
	Fetches int `yaml:"fetches"`
	// FetchTimeout bounds the read of a block, PeerTimeout a request to another region's read proxies.
	FetchTimeout units.Duration `yaml:"fetch_timeout"`
	PeerTimeout  units.Duration `yaml:"peer_timeout"`
	// CoalesceBytes is the longest range that is read at once for several blocks, CoalesceGap how many bytes between two of them may be
	// read in vain.
	CoalesceBytes units.Bytes `yaml:"coalesce_bytes"`
	CoalesceGap   units.Bytes `yaml:"coalesce_gap"`
	// ReadsPerSecond bounds the requests to stores, ReadBurst how many may have been saved up; 0 = no bound.
	ReadsPerSecond float64 `yaml:"reads_per_second"`
	ReadBurst      int     `yaml:"read_burst"`
	// Utilisation is how busy the host may get, above 0 and at most 1; QueueLeast and QueueMost are how many requests may be in the house
	// when it is busier, and when it is idle. QueueTimeout is how long a request waits for others' bytes.
	Utilisation  float64        `yaml:"utilisation"`
	QueueLeast   int            `yaml:"queue_least"`
	QueueMost    int            `yaml:"queue_most"`
	QueueTimeout units.Duration `yaml:"queue_timeout"`
	// NetworkBytesPerSecond is what the host's network takes; 0 = it is never the bottleneck.
	NetworkBytesPerSecond units.Bytes `yaml:"network_bytes_per_second"`
	// RequestsPerSecond bounds requests, RequestBurst how many may come at once; 0 = no bound.
	RequestsPerSecond float64 `yaml:"requests_per_second"`
	RequestBurst      int     `yaml:"request_burst"`
	// RetryAfter is the hint given with refusals, give or take a half of it.
	RetryAfter units.Duration `yaml:"retry_after"`
	// Views is how many views are made for the queries of one version of a category's schema.
	Views ViewsConfig `yaml:"views"`
	// Memcached is the tier that read proxies share.
	Memcached MemcachedConfig `yaml:"memcached"`
	// Rules say for categories that say nothing themselves which tiers keep them. The first match holds.
	Rules []CacheRule `yaml:"rules"`
}

// ViewsConfig bounds the views that are made of payloads for running queries; see view.Config, whose fields have the same names but for
// Most.
type ViewsConfig struct {
	// Most is how many views a version of a category's schema has.
	Most int `yaml:"most"`
	// Queries is how many running queries of a version are known: beyond it the one that asked longest ago is forgotten.
	Queries int `yaml:"queries"`
	// Expiry is how long after its last question a query is running no more.
	Expiry units.Duration `yaml:"expiry"`
	// Rebalance is the least time between two divisions of a version's queries into views.
	Rebalance units.Duration `yaml:"rebalance"`
}

// MemcachedConfig names memcached servers; without any the other fields say nothing.
type MemcachedConfig struct {
	// Servers are addresses, host:port, the same ones for all read proxies of a region.
	Servers []string `yaml:"servers"`
	// SharedAge is the age up to which blocks are kept there and asked for.
	SharedAge units.Duration `yaml:"shared_age"`
	// Timeout bounds a call, Connections the connections to a server.
	Timeout     units.Duration `yaml:"timeout"`
	Connections int            `yaml:"connections"`
	// ItemBytes is what is kept under one key, below what the servers take as an item (memcached -I); ValueBytes is the largest block.
	ItemBytes  units.Bytes `yaml:"item_bytes"`
	ValueBytes units.Bytes `yaml:"value_bytes"`
	// FillBytes bounds the blocks that wait to be put there.
	FillBytes units.Bytes `yaml:"fill_bytes"`
	// Prefix stands before every key.
	Prefix string `yaml:"prefix"`
}

// CacheRule says how categories are cached.
type CacheRule struct {
	// Match is a pattern for the whole name of a category: * any text, ? one character, [a-z] one of them.
	Match string `yaml:"match"`
	// Memory is always or never, Memcached always, never or reused.
	Memory    readproxy.Keep `yaml:"memory"`
	Memcached readproxy.Keep `yaml:"memcached"`
	// Age is the age up to which memcached is used; 0 = memcached.shared_age.
	Age units.Duration `yaml:"age"`
}

// RegionConfig is another region, as pointers name it: where its read proxies are, and its store where that can be reached from here.
type RegionConfig struct {
	Name string `yaml:"name"`
	// ReadProxies is the base URL of any process of its cell.
	ReadProxies string `yaml:"read_proxies"`
	// Blobs is its store. Beside read proxies it is for what they do not deliver. Keys that it does not name are those of this cell's.
	Blobs *BlobConfig `yaml:"blobs"`
}

func defaultReadProxy() ReadProxyConfig {
	d, m := readproxy.DefaultConfig(), memcached.DefaultConfig()
	return ReadProxyConfig{
		TailAge: units.Duration(d.TailAge), Fetches: d.Fetches, FetchTimeout: units.Duration(d.FetchTimeout), PeerTimeout: units.Duration(d.PeerTimeout),
		CoalesceBytes: units.Bytes(d.CoalesceBytes), CoalesceGap: units.Bytes(d.CoalesceGap),
		ReadsPerSecond: d.ReadsPerSecond, ReadBurst: d.ReadBurst,
		Utilisation: d.Queue.Target, QueueLeast: d.Queue.Least, QueueMost: d.Queue.Most, QueueTimeout: units.Duration(d.QueueTimeout),
		NetworkBytesPerSecond: units.Bytes(d.NetworkBytesPerSecond), RequestsPerSecond: d.RequestsPerSecond, RequestBurst: d.RequestBurst,
		RetryAfter: units.Duration(d.RetryAfter),
		Views: ViewsConfig{
			Most: d.Views.Views, Queries: d.Views.Queries, Expiry: units.Duration(d.Views.Expiry), Rebalance: units.Duration(d.Views.Rebalance),
		},
		Memcached: MemcachedConfig{
			SharedAge: units.Duration(d.SharedAge), Timeout: units.Duration(m.Timeout), Connections: m.Connections,
			ItemBytes: units.Bytes(m.ItemBytes), ValueBytes: units.Bytes(m.ValueBytes), FillBytes: units.Bytes(d.FillBytes), Prefix: m.Prefix,
		},
	}
}

// readProxy is what the role is made with.
func (c *Config) readProxy() readproxy.Config {
	p := &c.ReadProxy
	cfg := readproxy.DefaultConfig()
	cfg.Region = c.Region
	cfg.CacheBytes, cfg.FetchBytes, cfg.RequestBytes = int64(c.Limits.ReadCache), int64(c.Limits.ReadMemory), int64(c.Limits.ReadMemory)
	cfg.TailAge, cfg.Fetches, cfg.FetchTimeout, cfg.PeerTimeout = p.TailAge.Std(), p.Fetches, p.FetchTimeout.Std(), p.PeerTimeout.Std()
	cfg.CoalesceBytes, cfg.CoalesceGap = int64(p.CoalesceBytes), int64(p.CoalesceGap)
	cfg.ReadsPerSecond, cfg.ReadBurst = p.ReadsPerSecond, p.ReadBurst
	cfg.Queue.Target, cfg.Queue.Least, cfg.Queue.Most, cfg.QueueTimeout = p.Utilisation, p.QueueLeast, p.QueueMost, p.QueueTimeout.Std()
	cfg.NetworkBytesPerSecond = float64(p.NetworkBytesPerSecond)
	cfg.RequestsPerSecond, cfg.RequestBurst, cfg.RetryAfter = p.RequestsPerSecond, p.RequestBurst, p.RetryAfter.Std()
	cfg.Views = view.Config{Views: p.Views.Most, Queries: p.Views.Queries, Expiry: p.Views.Expiry.Std(), Rebalance: p.Views.Rebalance.Std()}
	for _, r := range p.Rules {
		cfg.Rules = append(cfg.Rules, readproxy.Rule{Pattern: r.Match, Memory: r.Memory, Shared: r.Memcached, SharedAge: r.Age.Std()})
	}
	if m := &p.Memcached; len(m.Servers) > 0 {
		cfg.SharedAge, cfg.FillBytes = m.SharedAge.Std(), int64(m.FillBytes)
		cfg.Memcached = &memcached.Config{
			Servers: m.Servers, Timeout: m.Timeout.Std(), Connections: m.Connections, ItemBytes: int(m.ItemBytes), ValueBytes: int(m.ValueBytes), Prefix: m.Prefix,
		}
	}
	return cfg
}

// readProxyFaults are those of its memory, and of the regions.
func (c *Config) readProxyFaults() []error {
	var faults []error
	if !c.Has(ReadProxy) {
		return nil
	}
	if c.Limits.ReadMemory < readproxy.LeastFetchBytes {
		faults = append(faults, fmt.Errorf("limits.read_memory: %v is too little for one block of the largest size, the least is %v", c.Limits.ReadMemory, units.Bytes(readproxy.LeastFetchBytes)))
	}
	for i := range c.Regions {
		faults = append(faults, c.regionFaults(i)...)
	}
	return faults
}

func (c *Config) regionFaults(i int) (faults []error) {
	r, place := &c.Regions[i], fmt.Sprintf("regions[%d]", i)
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(place+format, args...)) }
	switch err := pointer.ValidateRegion(r.Name); {
	case err != nil:
		fault(".name: %w", err)
	case r.Name == "":
		fault(".name: needed")
	case r.Name == c.Region:
		fault(".name: %q is this process's own region", r.Name)
	case slices.ContainsFunc(c.Regions[:i], func(other RegionConfig) bool { return other.Name == r.Name }):
		fault(".name: %q is there twice", r.Name)
	}
	if r.ReadProxies == "" && r.Blobs == nil {
		fault(": read_proxies or blobs are needed")
	}
	if r.ReadProxies != "" && !isURL(r.ReadProxies) {
		fault(".read_proxies: %q is not a URL of the form http://host:port", r.ReadProxies)
	}
	if b := c.regionBlobs(r); b != nil {
		if b.Kind == "file" && b.Path == "" {
			fault(".blobs.path: needed")
		}
		for _, err := range b.faults() {
			fault(".%w", err)
		}
	}
	return faults
}

func isURL(s string) bool {
	u, err := url.Parse(s)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != ""
}

// regionBlobs is the store of another region with the keys that it leaves to this cell's; nil = none.
func (c *Config) regionBlobs(r *RegionConfig) *BlobConfig {
	if r.Blobs == nil {
		return nil
	}
	b := *r.Blobs
	if b.S3.AccessKey == "" && b.S3.SecretKey == "" {
		b.S3.AccessKey, b.S3.SecretKey = c.Blobs.S3.AccessKey, c.Blobs.S3.SecretKey
	}
	return &b
}

// ParseRegions reads other regions as NAME=URL, URL that of any process of the region's cell.
func ParseRegions(texts []string) ([]RegionConfig, error) {
	var regions []RegionConfig
	var errs []error
	for _, text := range texts {
		name, u, ok := strings.Cut(text, "=")
		if !ok || name == "" || u == "" {
			errs = append(errs, fmt.Errorf("region %q is not of the form NAME=URL", text))
		}
		regions = append(regions, RegionConfig{Name: name, ReadProxies: u})
	}
	return regions, errors.Join(errs...)
}

// regions are the other regions that a read proxy reaches.
type regions struct {
	stores map[string]blob.Store
	peers  map[string]readproxy.Peer
}

func (a *App) startReadProxy(ctx context.Context) error {
	if err := a.openRegions(ctx); err != nil {
		return err
	}
	p, err := readproxy.New(a.cfg.readProxy(), readproxy.Deps{
		Blobs: a.region, Peers: func(name string) readproxy.Peer { return a.parts.regions.peers[name] },
		Categories: a.parts.catalog, Annotations: a.annotator(), Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("read proxy", p.Close)
	a.provide(rpc.Services{ReadProxy: p, Views: p, AdmitFetch: p.Admit})
	return nil
}

// annotator is where the read proxy keeps what it learns of payloads; nil in a process that knows no metadata engine.
func (a *App) annotator() readproxy.Annotator {
	if a.parts.log == nil {
		return nil
	}
	return a.parts.log
}

// openRegions opens the stores of other regions. One that can't be reached is an error at the start, as this cell's own is; their read
// proxies may come later.
func (a *App) openRegions(ctx context.Context) error {
	a.parts.regions = regions{stores: map[string]blob.Store{}, peers: map[string]readproxy.Peer{}}
	for i := range a.cfg.Regions {
		r := &a.cfg.Regions[i]
		if r.ReadProxies != "" {
			if err := a.addPeer(r.Name, r.ReadProxies); err != nil {
				return err
			}
		}
		b := a.cfg.regionBlobs(r)
		if b == nil {
			continue
		}
		cfg := a.cfg
		cfg.Blobs = *b
		store, err := OpenBlobs(ctx, cfg)
		if err != nil {
			return fmt.Errorf("region %q: %w", r.Name, err)
		}
		a.onStop("blob store of region "+r.Name, func(context.Context) error { return store.Close() })
		a.parts.regions.stores[r.Name] = store
	}
	return nil
}

// addPeer makes a region's read proxies known by the address of any process of its cell.
func (a *App) addPeer(name, url string) error {
	cell := discovery.New(a.transport, url)
	a.parts.regions.peers[name] = cell.ReadProxy()
	counter := func(metric, help string, of func(discovery.FetchStats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "scribe", Subsystem: "readproxy", Name: metric, Help: help, ConstLabels: prometheus.Labels{"region": name},
		}, func() float64 { return float64(of(cell.FetchStats())) })
	}
	return errors.Join(
		a.registry.Register(counter("region_retries_total", "Requests to another region's read proxies that were made again, at the same one or another.",
			func(s discovery.FetchStats) uint64 { return s.Repeats })),
		a.registry.Register(counter("region_retries_denied_total", "Requests to another region's read proxies that were not made again since too many were.",
			func(s discovery.FetchStats) uint64 { return s.Exhausted })),
	)
}

// region returns the store of a region; "" is this process's own.
func (a *App) region(name string) (blob.Store, error) {
	if name == "" {
		return a.parts.blobs, nil
	}
	if store, ok := a.parts.regions.stores[name]; ok {
		return store, nil
	}
	return nil, fmt.Errorf("region %q has no store in this process's configuration (regions)", name)
}
