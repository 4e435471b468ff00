package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"scribe/internal/base/entropy"
	"scribe/internal/transport/rpc"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

func (a *App) openMetalog() error {
	if !a.cfg.Has(Metalog) {
		return a.connectMetalog()
	}
	if a.cfg.replicates() {
		return a.openReplica()
	}
	o := a.ownLogOptions()
	o.Metrics = a.registry
	engine, err := pebblelog.Open(a.metalogFolder(), o)
	if err != nil {
		return err
	}
	a.onStop("metalog", func(context.Context) error { return engine.Close() })
	// An engine that failed to write refuses all calls: only a new process can reopen its folder.
	watchFailure(a, engine.Failed(), func(struct{}) error { return fmt.Errorf("metalog: %w", engine.Err()) })
	a.readinessChecks = append(a.readinessChecks, engine.Err)
	a.parts.log, a.parts.engine = engine, engine
	a.provideServices(rpc.Services{Metalog: remote.NewServer(engine)})
	if a.overLoopback() {
		client := remote.NewClient(rpc.NewMetalogClient(a.parts.loopback, loopbackURL))
		a.onStop("metalog client", func(context.Context) error { return client.Close() })
		a.parts.log = client
	}
	return nil
}

// connectMetalog makes a client of the engine of other processes.
func (a *App) connectMetalog() error {
	log, err := newMetalogClient(a.transport, strings.Split(a.cfg.Metalog, ","), a.opts.Host.Random.Named("metalog"))
	if err != nil {
		return err
	}
	a.onStop("metalog client", func(context.Context) error { return log.Close() })
	a.parts.log = log
	return nil
}

// newMetalogClient returns a client of an engine; with several URLs, of its replicas.
func newMetalogClient(t *rpc.Transport, urls []string, random *entropy.Source) (metalog.Log, error) {
	if len(urls) == 1 {
		return remote.NewClient(rpc.NewMetalogClient(t, urls[0])), nil
	}
	return newReplicaSet(nil, t, urls, random)
}

// replicaSet is an engine's replicas, with the clients of those in other processes.
type replicaSet struct {
	*replicated.Log

	transport *rpc.Transport
	own       *replicated.Replica // of this process; nil if it has none

	mu      sync.Mutex
	clients map[string]metalog.Log // by URL, also of replicas that were removed
}

// newReplicaSet returns an engine of replicas: the one of this process, if there is one, and those at URLs. It closes only the latter.
func newReplicaSet(own *replicated.Replica, t *rpc.Transport, urls []string, random *entropy.Source) (*replicaSet, error) {
	s := &replicaSet{transport: t, own: own, clients: map[string]metalog.Log{}}
	var err error
	if s.Log, err = replicated.New(s.replicasAt(urls), replicated.Options{Random: random, Connect: s.connect}); err != nil {
		return nil, errors.Join(err, s.closeClients())
	}
	return s, nil
}

// replicasAt are the replica of this process, and those at URLs.
func (s *replicaSet) replicasAt(urls []string) (replicas []replicated.Replica) {
	if s.own != nil {
		replicas = append(replicas, *s.own)
	}
	for _, u := range urls {
		u = strings.TrimSpace(u)
		replicas = append(replicas, replicated.Replica{URL: u, Log: s.connect(u)})
	}
	return replicas
}

// connect returns a client of a replica, which is closed with the set.
func (s *replicaSet) connect(url string) metalog.Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.clients[url] == nil {
		s.clients[url] = remote.NewClient(rpc.NewMetalogClient(s.transport, url))
	}
	return s.clients[url]
}

// Close implements metalog.Log.
func (s *replicaSet) Close() error { return errors.Join(s.Log.Close(), s.closeClients()) }

func (s *replicaSet) closeClients() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range s.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
