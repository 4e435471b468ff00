package app

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
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
	engine, err := pebblelog.Open(filepath.Join(a.cfg.Data, "metalog"), pebblelog.Options{
		FS: a.opts.Host.FS, Clock: a.opts.Host.unixMicro, Logger: a.log, Metrics: a.registry, CacheBytes: a.cfg.MetadataCache,
		Journal: j, URL: a.advertisedURL(), Name: engineName, Snapshots: a.parts.blobs, SnapshotEvery: a.parts.replication.SnapshotEvery,
		Random: a.opts.Host.Random.Named("metalog"),
	})
	if err != nil {
		return err
	}
	a.onStop("metalog", func(context.Context) error { return engine.Close() })
	// A replica whose folder failed, or whose journal went back, refuses all calls: only a new process can reopen it.
	watchFailure(a, engine.Failed(), func(struct{}) error { return fmt.Errorf("metalog: %w", engine.Err()) })
	a.readinessChecks = append(a.readinessChecks, engine.Err)
	a.provideServices(rpc.Services{Metalog: remote.NewServer(engine)})
	if a.parts.node != nil {
		a.parts.node.replica.Store(new(func() *scribev1.ReplicaStatus { return replicaStatus(engine) }))
	}
	return a.joinReplicas(engine)
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
	return nil
}

// otherReplicas returns the URLs of the replicas in other processes.
func (a *App) otherReplicas() []string {
	var urls []string
	for _, p := range a.cfg.nodes() {
		if p != a.cfg.nodePlace() {
			urls = append(urls, p.url())
		}
	}
	if a.cfg.Node == "" && a.cfg.Metalog != "" {
		list, _ := rpc.ParseAddresses(a.cfg.Metalog) // validated
		urls = append(urls, list...)
	}
	return slices.DeleteFunc(urls, func(u string) bool { return strings.TrimRight(u, "/") == strings.TrimRight(a.advertisedURL(), "/") })
}

// replicaStatus describes a replica for NodeService.
func replicaStatus(engine *pebblelog.Engine) *scribev1.ReplicaStatus {
	at := engine.Position()
	leads, term := engine.Leading()
	s := &scribev1.ReplicaStatus{Leads: leads, Leader: at.Leader, Term: term, Applied: at.Applied, Newest: at.Head}
	if err := engine.Err(); err != nil {
		s.Error = err.Error()
	}
	return s
}
