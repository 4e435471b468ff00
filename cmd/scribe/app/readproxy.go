package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readproxy"
	"scribe/storage/blob"
)

// RegionConfig is another region, as pointers name it: where its read proxies are, and its store where that can be reached from here.
type RegionConfig struct {
	Name string `yaml:"name"`
	// ReadProxies is the base URL of any process of its cell.
	ReadProxies string `yaml:"read_proxies"`
	// Blobs is its store. Beside read proxies it is for what they do not deliver. Keys that it does not name are those of this cell's.
	Blobs *BlobConfig `yaml:"blobs"`
}

// RegionList are other regions.
type RegionList []RegionConfig

// UnmarshalText reads regions as NAME=URL, separated by commas, URL that of any process of the region's cell.
func (l *RegionList) UnmarshalText(text []byte) error {
	var regions RegionList
	var errs []error
	for item := range strings.SplitSeq(string(text), ",") {
		name, u, ok := strings.Cut(strings.TrimSpace(item), "=")
		if !ok || name == "" || u == "" {
			errs = append(errs, fmt.Errorf("invalid region %q: want NAME=URL", item))
		}
		regions = append(regions, RegionConfig{Name: name, ReadProxies: u})
	}
	*l = regions
	return errors.Join(errs...)
}

func (c *Config) checkRegion(v *config.Violations, i int) {
	r, field := &c.Regions[i], fmt.Sprintf("Regions[%d]", i)
	switch err := pointer.ValidateRegion(r.Name); {
	case err != nil:
		v.Add(field+".Name", "%w", err)
	case r.Name == "":
		v.Add(field+".Name", "missing: want the name of a region")
	case r.Name == c.Region:
		v.Add(field+".Name", "%q is this process's own region", r.Name)
	case slices.ContainsFunc(c.Regions[:i], func(other RegionConfig) bool { return other.Name == r.Name }):
		v.Add(field+".Name", "%q is given twice", r.Name)
	}
	if r.ReadProxies == "" && r.Blobs == nil {
		v.Add(field, "missing: want read_proxies or blobs")
	}
	if err := checkURLList(r.ReadProxies); err != nil {
		v.Add(field+".ReadProxies", "%w", err)
	}
	if b := c.regionBlobs(r); b != nil {
		if b.Kind == "file" && b.Path == "" {
			v.Add(field+".Blobs.Path", "missing: want a folder")
		}
		v.Join(field+".Blobs", b.Validate())
	}
}

// regionBlobs is the store of another region with the keys that it leaves to this cell's; nil = none.
func (c *Config) regionBlobs(r *RegionConfig) *BlobConfig {
	if r.Blobs == nil {
		return nil
	}
	b := *r.Blobs
	if b.S3.AccessKey == "" && b.S3.SecretKey == "" && !b.S3.IAM {
		b.S3.AccessKey, b.S3.SecretKey, b.S3.IAM = c.Blobs.S3.AccessKey, c.Blobs.S3.SecretKey, c.Blobs.S3.IAM
	}
	return &b
}

// otherRegions are the other regions that a read proxy reaches.
type otherRegions struct {
	stores map[string]blob.Store
	peers  map[string]readproxy.Peer
}

func (a *App) startReadProxy(ctx context.Context) error {
	if err := a.openRegions(ctx); err != nil {
		return err
	}
	p, err := readproxy.New(a.cfg.readProxyConfig(), readproxy.Deps{
		Blobs: a.regionStore, Keys: a.regionKeys, Peers: func(name string) readproxy.Peer { return a.parts.regions.peers[name] },
		Sharers: func() int { return a.countSharers(scribev1.Role_ROLE_READPROXY) }, Categories: a.parts.catalog, Tenants: a.parts.catalog.Tenants, Annotations: a.parts.log, CPUTime: a.opts.Host.CPUTime,
		Traffic: a.traffic, Random: a.opts.Host.Random.Named("read proxy"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("read proxy", p.Close)
	if err := a.startQuotaReports(p.Quotas(), scribev1.Role_ROLE_READPROXY, "scribe_readproxy_"); err != nil {
		return err
	}
	a.provideServices(rpc.Services{ReadProxy: p, Views: p, Push: p, AdmitFetch: p.Admit, AdmitPush: p.AdmitPush})
	a.advertiseLoad(scribev1.Role_ROLE_READPROXY, p.Load)
	push := rpc.PushService(p)
	if a.overLoopback() {
		push = rpc.NewPushClient(a.parts.loopback, loopbackURL)
	}
	a.parts.push.Store(&push)
	return nil
}

// openRegions opens the stores of other regions. One that can't be reached is an error at the start, as this cell's own is; their read
// proxies may come later.
func (a *App) openRegions(ctx context.Context) error {
	a.parts.regions = otherRegions{stores: map[string]blob.Store{}, peers: map[string]readproxy.Peer{}}
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
		store, err := a.opts.Host.OpenBlobs(ctx, cfg)
		if err != nil {
			return fmt.Errorf("region %q: %w", r.Name, err)
		}
		a.onStop("blob store of region "+r.Name, func(context.Context) error { return store.Close() })
		a.parts.regions.stores[r.Name] = store
		if a.parts.keys[r.Name], err = a.openKeys(&cfg, store, "encryption keys of region "+r.Name); err != nil {
			return fmt.Errorf("region %q: %w", r.Name, err)
		}
	}
	return nil
}

// addPeer makes a region's read proxies known by the address of any process of its cell.
func (a *App) addPeer(name, url string) error {
	cell := discovery.New(a.transport, url, a.opts.Host.Random.Named("region "+name))
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

// regionStore returns the store of a region; "" is this process's own.
func (a *App) regionStore(name string) (blob.Store, error) {
	if name == "" {
		return a.parts.blobs, nil
	}
	if store, ok := a.parts.regions.stores[name]; ok {
		return store, nil
	}
	return nil, fmt.Errorf("region %q has no store in this process's configuration (regions)", name)
}
