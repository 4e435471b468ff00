package app

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sync/atomic"

	"connectrpc.com/connect"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/batcher"
	"scribe/controlplane"
	"scribe/controlplane/group"
	"scribe/internal/base/config"
	"scribe/internal/cell/access"
	"scribe/internal/cell/catalog"
	"scribe/internal/cell/membership"
	"scribe/internal/transport/discovery"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream"
	"scribe/retention"
	"scribe/scribed"
	"scribe/sequencer"
	"scribe/sqlserver"
	"scribe/storage/blob"
	"scribe/storage/blob/encryption"
	"scribe/storage/kv"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/writeproxy"
)

// module is a part of a process: a role, or something that several roles share.
type module struct {
	name   string
	wanted func(*Config) bool
	start  func(*App, context.Context) error
}

// firstRole is the module from which on modules accept work, and have some to drain when they stop.
const firstRole = "batcher"

// modules are in start order: each after the modules whose parts it uses. They stop in reverse order, which loses nothing: first the process
// leaves the cell, so that no new work is routed to it; then the write path stops from front to back, each role draining into the next; then
// the shared parts.
var modules = []module{
	{"node", (*Config).replicates, (*App).startReplication},
	{"control plane", func(c *Config) bool { return c.Has(ControlPlane) }, (*App).startControlPlane},
	{"access", (*Config).needsControl, (*App).startAccess},
	{"control gateway", func(*Config) bool { return true }, (*App).startControlGateway},
	{"blob store", (*Config).needsBlobs, (*App).startBlobs},
	{"metalog", (*Config).usesMetalog, (*App).startMetalog},
	{"backups", (*Config).makesBackups, (*App).startBackups},
	{"catalog", (*Config).needsCategories, (*App).startCatalog},
	{"member list", func(c *Config) bool { return c.hasAny(WriteProxy, Batcher, ReadStream, ReadProxy, Sequencer) }, (*App).startMembers},
	{firstRole, func(c *Config) bool { return c.Has(Batcher) }, (*App).startBatcher},
	{"write proxy", func(c *Config) bool { return c.Has(WriteProxy) }, (*App).startWriteProxy},
	{"scribed", func(c *Config) bool { return c.Has(Scribed) }, (*App).startScribed},
	{"read stream", func(c *Config) bool { return c.Has(ReadStream) }, (*App).startReadStream},
	{"read proxy", func(c *Config) bool { return c.Has(ReadProxy) }, (*App).startReadProxy},
	{"retention", func(c *Config) bool { return c.Has(Retention) }, (*App).startRetention},
	{"sequencer", func(c *Config) bool { return c.Has(Sequencer) }, (*App).startSequencer},
	{"SQL server", func(c *Config) bool { return c.Has(SQLServer) }, (*App).startSQLServer},
	{"health", func(*Config) bool { return true }, (*App).watchHealth},
	{"membership", (*Config).needsControl, (*App).joinCell},
	{"administrator", func(c *Config) bool { return c.Secure }, (*App).startAdministrator},
	{"write service", func(c *Config) bool { return c.hasAny(WriteProxy, Scribed) }, (*App).serveWrites},
	{"audit trail", (*Config).audits, (*App).startTrail},
	{"inputs", func(c *Config) bool { return c.Has(Scribed) }, (*App).startInputs},
}

// sharedParts are the parts that modules provide to modules that start later.
type sharedParts struct {
	// loopback goes to this process's own services; set only when Wiring is InMemory.
	loopback *rpc.Transport

	gateway *controlGateway

	node *node            // this process among the nodes of its cell; nil if it is none
	etcd *clientv3.Client // where replicated metadata is; nil if the process has none

	replication *Replication // what the processes of a cell with replicated metadata share; nil in others
	// replica says how the process's replica of the metadata logs is, and the members of etcd where that leads; nil without one.
	replica func() (*scribev1.ReplicaStatus, []*scribev1.EtcdMember)

	nextID  uint64             // from which on the control plane of this process gives out ids of categories; 0 without one
	retirer *lateMetalog       // the control plane's, if it waits for log; else nil
	groups  rpc.GroupService   // the cell's consumer groups; nil where control is
	control rpc.ControlService // the cell's control plane; nil for an agent and a process that needs none
	access  rpc.AccessService  // where who may do what is kept; nil for an agent alone
	rights  *access.View       // what the process knows of that; nil for an agent alone
	log     metalog.Log
	// engine and controlStore are this process's own: its engine or replica of the logs, and the store of its control plane; nil without the role.
	engine       *pebblelog.Engine
	controlStore kv.Store
	backups      *backupMaker // nil where none can be made
	blobs        blob.Store
	// keys are those of encrypted categories, by the region of the store that has them, "" for this cell's.
	keys map[string]*encryption.Keys
	// observedBlobs is blobs, of which is known whether it fails; nil without a store.
	observedBlobs *observedBlobs
	lags          func() []readstream.CategoryLag // of the read stream; nil without one
	regions       otherRegions
	catalog       *catalog.View
	members       *membership.View
	batcher       rpc.BatchService
	loads         []*advertisedLoad // of the roles that callers choose among
	writeProxy    *writeproxy.Proxy
	write         rpc.WriteService      // the write proxy; nil without one
	readStream    rpc.ReadStreamService // nil without one
	// push takes blocks for this process's read proxy. The batcher starts before it.
	push  atomic.Pointer[rpc.PushService]
	agent *scribed.Scribed
}

// overLoopback reports whether roles of this process call each other over in-memory HTTP.
func (a *App) overLoopback() bool { return a.parts.loopback != nil }

// loopbackURL may be any URL: the loopback transport always reaches this process.
const loopbackURL = "http://loopback"

// provideServices serves a role's service to other processes, and to those of this one that call over the loopback.
func (a *App) provideServices(s rpc.Services) {
	s.Logger = a.log
	served := a.enforced(s)
	if a.trail != nil {
		served.Intercept = []connect.Interceptor{a.trail.Interceptor()}
	}
	served.Register(a.mux)
	if a.overLoopback() {
		s.Register(a.loopMux)
	}
}

func (a *App) startControlPlane(ctx context.Context) error {
	store, err := a.openControlStore()
	if err != nil {
		return err
	}
	a.parts.controlStore = store
	// Others take ids from a shared store at any time, so there is nothing to compare the logs with.
	if a.cfg.replicates() {
		err = a.checkRevision(ctx, store)
	} else {
		a.parts.nextID, err = controlplane.NextID(ctx, store)
	}
	if err != nil {
		return err
	}
	cfg := config.Defaults[controlplane.Config]()
	cfg.Version, cfg.StartedAt, cfg.Roles = a.opts.Version, a.started, a.protoRoles()
	cfg.MembersProven = a.cfg.enforcesAccess()
	a.shareControl(&cfg)
	cfg.MicroShardBytes, cfg.MicroShardMessages = a.cfg.WriteProxy.MicroShardBytes, a.cfg.WriteProxy.MicroShardMessages
	// The metadata engine starts later and stops earlier. Without it, retiring categories is retried until the control plane stops.
	logs := &lateMetalog{ready: make(chan struct{}), transport: a.transport, replicated: a.cfg.replicates()}
	cp, err := controlplane.New(cfg, controlplane.Deps{
		Store: store, Retirer: logs, Peer: a.controlPeer, Probe: a.probeProcess, Random: a.opts.Host.Random.Named("control plane"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	if !a.cfg.usesMetalog() {
		logs.searchMembers(cp)
	} else {
		a.parts.retirer = logs
	}
	a.onStop("control plane", cp.Close)
	a.onStandAside("control plane", scribev1.Role_ROLE_CONTROLPLANE, cp.StandAside)
	a.parts.control, a.parts.access = cp, cp
	if a.parts.node != nil {
		a.parts.node.leadsControl.Store(new(cp.Leads))
	}
	sharing := config.Defaults[group.Config]()
	sharing.Shared = a.cfg.replicates()
	groups, err := group.NewCoordinator(sharing, group.Deps{
		Store: store, Control: cp, Log: logs, Holder: a.id + "/groups", Random: a.opts.Host.Random.Named("groups"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("consumer groups", groups.Close)
	a.parts.groups = groups
	return nil
}

// startControlGateway serves ControlService in every process, so that clients can use the address of any process.
func (a *App) startControlGateway(context.Context) error {
	upstream := a.parts.control
	switch {
	case upstream != nil:
	case a.cfg.Control != "":
		upstream = rpc.NewControlClient(a.transport, a.cfg.Control)
		a.parts.control, a.parts.groups = upstream, rpc.NewGroupClient(a.transport, a.cfg.Control)
	default:
		upstream = rpc.NewControlClient(a.transport, a.cfg.Upstream) // an agent forwards the calls, but is not a member
		a.parts.groups = rpc.NewGroupClient(a.transport, a.cfg.Upstream)
	}
	if a.enforcer != nil && !a.cfg.needsCategories() {
		a.enforcer.SetCategories(controlCategories{upstream})
	}
	g := newControlGateway(upstream, a.opts.Version, a.started, a.id, a.protoRoles())
	a.parts.gateway = g
	a.onStop("control gateway", g.close)
	g.lastKnown = a.lastKnown
	a.provideServices(rpc.Services{Control: g, Group: a.parts.groups, Process: processService{a}})
	a.mux.HandleFunc(statusPattern, a.serveStatus)
	a.mux.HandleFunc(trafficPattern, a.serveTraffic)
	if a.overLoopback() {
		a.parts.control = rpc.NewControlClient(a.parts.loopback, loopbackURL)
	}
	return nil
}

func (a *App) startMetalog(ctx context.Context) error {
	if err := a.openMetalog(); err != nil {
		return err
	}
	if a.parts.nextID > 0 && a.cfg.Has(Metalog) {
		if err := a.checkCategoryIDs(ctx, a.parts.log, a.parts.nextID); err != nil {
			return err
		}
	}
	if a.parts.retirer != nil {
		a.parts.retirer.setEngine(a.parts.log)
	}
	return nil
}

// checkCategoryIDs fails if the control plane would give out the id of a category that has records: its store was lost, or is older than the
// logs. Another category would then get them. It looks at as many ids as are taken at once.
func (a *App) checkCategoryIDs(ctx context.Context, log metalog.Log, next uint64) error {
	for id := next; id < next+uint64(config.Defaults[controlplane.Config]().IDBlock) && id <= math.MaxUint32; id++ {
		logs, err := log.Shards(ctx, uint32(id))
		if err != nil {
			return err
		}
		if slices.ContainsFunc(logs, func(st metalog.State) bool { return st.FirstLSN < st.NextLSN }) {
			control := a.controlFolder()
			return fmt.Errorf("the control store %s is lost or older than the logs: it gives out category ids from %d on, and there are records of category %d, "+
				"which another category would get. Put the newest %s back, or rebuild it with scribe recover (docs/operations.md, A lost control store)",
				control, next, id, control)
		}
	}
	return nil
}

func (a *App) startBlobs(ctx context.Context) error {
	store, err := a.opts.Host.OpenBlobs(ctx, a.cfg)
	if err != nil {
		return err
	}
	a.parts.observedBlobs = observeBlobs(store, a.log)
	a.parts.blobs = a.parts.observedBlobs
	a.onStop("blob store", func(context.Context) error { return a.parts.blobs.Close() })
	keys, err := a.openKeys(&a.cfg, a.parts.blobs, "encryption keys")
	if err != nil {
		return err
	}
	a.parts.keys = map[string]*encryption.Keys{"": keys}
	return a.learnIdentity(ctx)
}

// checkRevision fails if the shared control store is at an earlier revision than the process's copy of the categories: etcd was set back, or is another one.
// While processes run they notice it themselves; one that starts knows nothing else of before.
func (a *App) checkRevision(ctx context.Context, store kv.Store) error {
	known, err := catalog.ReadCopy(a.opts.Host.FS, a.catalogFile())
	if err != nil {
		return nil //nolint:nilerr // without a copy, or with a damaged one, there is nothing to compare; the catalog says what is wrong with it
	}
	page, err := store.Range(ctx, kv.KeyRange{Limit: 1})
	if err != nil {
		return err
	}
	if known.Revision <= page.Revision {
		return nil
	}
	return fmt.Errorf("etcd has the categories at revision %d, and %s has them at revision %d: etcd was restored from a backup, or is not the one of this cell. "+
		"What came after the backup is missing there: see docs/operations.md, Etcd restored or lost", page.Revision, a.catalogFile(), known.Revision)
}

// catalogFile is where the process keeps a copy of the categories.
func (a *App) catalogFile() string { return filepath.Join(a.cfg.Data, "catalog") }

func (a *App) startCatalog(ctx context.Context) error {
	cfg := catalog.DefaultViewConfig()
	cfg.File, cfg.FS, cfg.Now = a.catalogFile(), a.opts.Host.FS, a.opts.Host.Now
	cfg.Random = a.opts.Host.Random.Named("catalog")
	view, err := catalog.New(cfg, catalog.ViewDeps{Source: a.parts.control, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return err
	}
	a.runView(ctx, "catalog", view)
	a.parts.catalog = view
	a.enforcer.SetCategories(view)
	select {
	case <-view.Ready():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("no categories from the control plane at %s: %w", a.cfg.Control, context.Cause(ctx))
	}
}

// runView keeps a watched view current until the process stops.
func (a *App) runView(ctx context.Context, name string, view interface {
	Run(ctx context.Context) error
	Close(ctx context.Context) error
},
) {
	ended := make(chan error, 1)
	go func() { ended <- view.Run(context.WithoutCancel(ctx)) }()
	a.onStop(name, func(ctx context.Context) error { return errors.Join(view.Close(ctx), <-ended) })
}

func (a *App) startBatcher(context.Context) error {
	proxies := &pushRoutes{app: a}
	b, err := batcher.New(a.cfg.batcherConfig(), batcher.Deps{
		ReadProxies: proxies.readProxies, Blobs: admittedStore{a.parts.blobs, &a.store}, Keys: a.parts.keys[""], Log: a.parts.log, Categories: a.parts.catalog, Owner: a.id, Provision: a.provision(),
		Random: a.opts.Host.Random.Named("batcher"), Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
		Slot: func() uint16 { return uint16(a.slot.Load()) }, //nolint:gosec // slots are below 65,000
	})
	if err != nil {
		return err
	}
	a.onStop("batcher", b.Close)
	a.provideServices(rpc.Services{Batch: b, AdmitBatch: b.Admit})
	a.parts.batcher = b
	a.advertiseLoad(scribev1.Role_ROLE_BATCHER, b.Load)
	if a.overLoopback() {
		a.parts.batcher = rpc.NewBatchClient(a.parts.loopback, loopbackURL)
	}
	return nil
}

func (a *App) startWriteProxy(context.Context) error {
	routes := &batcherRoutes{app: a}
	p, err := writeproxy.New(a.cfg.WriteProxy, writeproxy.Deps{
		Categories: a.parts.catalog, Tenants: a.parts.catalog.Tenants, Creator: a.parts.control, Batchers: routes.routableBatchers, Proxies: func() int { return a.countSharers(scribev1.Role_ROLE_WRITEPROXY) }, Plan: a.parts.catalog.PlanOf,
		Traffic: a.traffic, Random: a.opts.Host.Random.Named("write proxy"), Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("write proxy", p.Close)
	if err := a.startQuotaReports(p.Quotas(), scribev1.Role_ROLE_WRITEPROXY, "scribe_writeproxy_"); err != nil {
		return err
	}
	a.parts.writeProxy, a.parts.write = p, p
	a.advertiseLoad(scribev1.Role_ROLE_WRITEPROXY, p.Load)
	return nil
}

// serveWrites accepts writes last, when all roles that they need have started: through the agent if the process has one, else through the
// write proxy.
func (a *App) serveWrites(context.Context) error {
	if a.opts.Drain {
		return nil
	}
	s := rpc.Services{Logger: a.log, Write: a.parts.write}
	if a.parts.writeProxy != nil {
		s.Admit = a.parts.writeProxy.Admit
	}
	if a.parts.agent != nil {
		s.Write, s.Admit = a.parts.agent, a.parts.agent.Admit
	}
	s = a.enforced(s)
	s.Register(a.mux)
	return nil
}

func (a *App) startReadStream(context.Context) error {
	s, err := readstream.New(a.cfg.readStreamConfig(), readstream.Deps{
		Log: a.parts.log, Categories: a.parts.catalog, Random: a.opts.Host.Random.Named("read stream"), Clock: a.opts.Host.Now, Logger: a.log, Registerer: a.registry, Peers: a.readStreamPeers,
	})
	if err != nil {
		return err
	}
	a.onStop("read stream", s.Close)
	a.parts.lags = s.Lags
	a.advertiseLoad(scribev1.Role_ROLE_READSTREAM, s.Load)
	a.provideServices(rpc.Services{ReadStream: s})
	if a.parts.readStream = s; a.overLoopback() {
		a.parts.readStream = rpc.NewReadStreamClient(a.parts.loopback, loopbackURL)
	}
	return a.startPins(s.Needs)
}

func (a *App) startRetention(context.Context) error {
	c, err := retention.New(a.cfg.retentionConfig(), retention.Deps{
		Log: a.parts.log, Blobs: a.parts.blobs, Control: a.parts.control, Categories: a.parts.catalog, Owner: a.id,
		Random: a.opts.Host.Random.Named("retention"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("retention", c.Close)
	return nil
}

func (a *App) startSequencer(context.Context) error {
	streams := a.parts.readStream
	if streams == nil {
		streams = discovery.New(a.transport, a.controlURL(), a.opts.Host.Random.Named("streams")).ReadStream()
	}
	s, err := sequencer.New(a.cfg.Sequencer, sequencer.Deps{
		Log: a.parts.log, Streams: streams, Categories: a.parts.catalog, Members: a.sequencerIDs, ID: a.id,
		Random: a.opts.Host.Random.Named("sequencer"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("sequencer", s.Close)
	return nil
}

// controlURL is where the control plane is reached: at this process when it has it.
func (a *App) controlURL() string {
	switch {
	case a.cfg.Control != "":
		return a.cfg.Control
	case a.cfg.servesTLS():
		return a.advertisedURL() // the certificate is for that name
	}
	return a.url
}

// sequencerIDs are the members that share the sequenced categories.
func (a *App) sequencerIDs() []string {
	members := a.parts.members.Members(scribev1.Role_ROLE_SEQUENCER)
	ids := make([]string, 0, len(members))
	for _, m := range members {
		ids = append(ids, m.GetId())
	}
	return ids
}

func (a *App) startSQLServer(ctx context.Context) error {
	g, err := sqlserver.New(a.cfg.SQLServer, sqlserver.Deps{
		Server: a.controlURL(), Transport: a.transport, Categories: a.parts.catalog, Rights: a.enforcer, Version: a.opts.Version,
		Random: a.opts.Host.Random.Named("SQL server"), Now: a.opts.Host.Now, Logger: a.log, Registerer: a.registry,
	})
	if err != nil {
		return err
	}
	a.onStop("SQL server", g.Close)
	a.advertiseLoad(scribev1.Role_ROLE_GATEWAY, g.Load)
	a.mux.Handle(sqlserver.Path, g)
	a.mux.HandleFunc(sqlserver.TailPattern, g.ServeTail)
	overHTTP, err := g.FlightHandler()
	if err != nil {
		return err
	}
	a.mux.Handle(sqlserver.FlightPath, overHTTP)
	if a.cfg.Flight == "" {
		return nil
	}
	l, err := a.listenTCP(ctx, "--flight", a.cfg.Flight)
	if err != nil {
		return err
	}
	failed, err := g.ServeFlight(l, a.flightSecurity())
	if err != nil {
		return err
	}
	watchFailure(a, failed, func(err error) error { return err })
	a.log.Info("serving Flight SQL", "url", a.flightScheme()+callableAddress(l.Addr()))
	return nil
}
