package app

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/journal/etcdjournal"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

// engineName is the name of the cell's one metadata engine, in etcd and in the blob store.
const engineName = "main"

// openReplica opens this process's replica of the metadata logs, serves it, and makes one engine of all replicas for the roles: the own one
// first.
func (a *App) openReplica() error {
	j, err := a.parts.replication.OpenJournal()
	if err != nil {
		return err
	}
	a.onStop("metalog journal", func(context.Context) error { return j.Close() })
	a.watchNeglect(j)
	engine, err := pebblelog.Open(a.metalogFolder(), a.replicaOptions(j))
	if err != nil {
		return err
	}
	a.onStop("metalog", func(context.Context) error { return engine.Close() })
	a.onStandAside("metalog", scribev1.Role_ROLE_METALOG, func(ctx context.Context) error {
		if err := engine.HandOver(ctx); !errors.Is(err, metalog.ErrNotLeader) {
			return err
		}
		return nil
	})
	// A replica whose folder failed, or whose journal went back or has ended, refuses all calls: only a new process can reopen it.
	watchFailure(a, engine.Failed(), func(struct{}) error { return a.explainHalt(engine.Err()) })
	a.readinessChecks = append(a.readinessChecks, engine.Err)
	a.parts.engine = engine
	a.provideServices(rpc.Services{Metalog: remote.NewServer(engine)})
	a.parts.replica = func() (*scribev1.ReplicaStatus, []*scribev1.EtcdMember) { return replicaStatus(engine), etcdMembers(j) }
	if a.parts.node != nil {
		a.parts.node.replica.Store(new(func() *scribev1.ReplicaStatus { return replicaStatus(engine) }))
		a.parts.node.engine.Store(engine)
	}
	return a.joinReplicas(engine)
}

// metalogFolder is where the process keeps metadata logs.
func (a *App) metalogFolder() string { return filepath.Join(a.cfg.Data, "metalog") }

// controlFolder is where a control plane that shares its store with none keeps it.
func (a *App) controlFolder() string { return filepath.Join(a.cfg.Data, "control") }

// openJournal opens the journal of the metadata logs in etcd.
func (a *App) openJournal() (journal.Journal, error) {
	return etcdjournal.Open(etcdjournal.Config{Client: a.parts.etcd, Prefix: a.etcdPrefix() + "m/" + engineName + "/", Logger: a.log})
}

// watchNeglect adds the condition that somebody does the upkeep of what the journal is kept in.
func (a *App) watchNeglect(j journal.Journal) {
	if kept, ok := j.(interface{ Neglected() error }); ok {
		a.watchCondition("etcd", scribev1.Severity_SEVERITY_DEGRADED, kept.Neglected)
	}
}

// ownLogOptions are those of an engine that has its folder for itself.
func (a *App) ownLogOptions() pebblelog.Options {
	return pebblelog.Options{FS: a.opts.Host.FS, Clock: a.opts.Host.unixMicro, Logger: a.log, CacheBytes: a.cfg.MetadataCache}
}

// replicaOptions are those of a replica.
func (a *App) replicaOptions(j journal.Journal) pebblelog.Options {
	o := a.ownLogOptions()
	o.Metrics, o.Journal, o.URL, o.Name, o.Snapshots, o.Random = a.registry, j, a.advertisedURL(), engineName, a.parts.blobs, a.opts.Host.Random.Named("metalog")
	o.SnapshotEvery = cmp.Or(a.parts.replication.SnapshotEvery, a.cfg.SnapshotEvery)
	return o
}

// joinReplicas makes one engine of this process's replica and the others: those of the other nodes, or those that --metalog lists.
func (a *App) joinReplicas(engine *pebblelog.Engine) error {
	own := replicated.Replica{URL: a.advertisedURL(), Log: engine}
	if a.overLoopback() {
		client := remote.NewClient(rpc.NewMetalogClient(a.parts.loopback, loopbackURL))
		a.onStop("metalog client", func(context.Context) error { return client.Close() })
		own.Log = client
	}
	log, err := newReplicaSet(&own, a.transport, a.otherReplicas(), a.opts.Host.Random.Named("metalog replicas"))
	if err != nil {
		return err
	}
	a.onStop("metalog replicas", func(context.Context) error { return log.Close() })
	a.parts.log = log
	if n := a.parts.node; n != nil {
		n.followNodes(func(nodes []nodePlace) error {
			a.parts.etcd.SetEndpoints(n.etcdEndpoints(nodes)...)
			return log.SetReplicas(log.replicasAt(a.urlsBut(nodes)))
		})
	}
	return nil
}

// otherReplicas returns the URLs of the replicas in other processes.
func (a *App) otherReplicas() []string {
	urls := a.urlsBut(a.cfg.nodes())
	if a.cfg.Node == "" && a.cfg.Metalog != "" {
		list, _ := rpc.ParseAddresses(a.cfg.Metalog) // validated
		urls = append(urls, list...)
	}
	return slices.DeleteFunc(urls, func(u string) bool { return strings.TrimRight(u, "/") == strings.TrimRight(a.advertisedURL(), "/") })
}

// urlsBut returns the URLs of nodes but this one.
func (a *App) urlsBut(nodes []nodePlace) (urls []string) {
	for _, p := range nodes {
		if p.address != a.cfg.nodePlace().address {
			urls = append(urls, p.url(a.cfg.servesTLS()))
		}
	}
	return urls
}

// etcdMembers describes the members of the etcd that a journal is kept in, if it is in one, and its handle is the leader's.
func etcdMembers(j journal.Journal) (members []*scribev1.EtcdMember) {
	kept, ok := j.(*etcdjournal.Journal)
	if !ok {
		return nil
	}
	for _, m := range kept.Members() {
		member := &scribev1.EtcdMember{Url: m.URL}
		if m.Err != nil {
			member.Error = m.Err.Error()
		} else {
			member.Status = &scribev1.EtcdStatus{Member: m.ID, Leader: m.Leader, Term: m.Term, Bytes: m.Bytes}
		}
		members = append(members, member)
	}
	return members
}

// replicaStatus describes a replica.
func replicaStatus(engine *pebblelog.Engine) *scribev1.ReplicaStatus {
	at := engine.Position()
	leads, term := engine.Leading()
	s := &scribev1.ReplicaStatus{Leads: leads, Leader: at.Leader, Term: term, Applied: at.Applied, Newest: at.Head}
	if err := engine.Err(); err != nil {
		s.Error = err.Error()
	}
	return s
}
