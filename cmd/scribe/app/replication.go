package app

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"scribe/controlplane"
	"scribe/internal/transport/rpc"
	"scribe/storage/etcd"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
	"scribe/storage/kv/pebblekv"
)

// startReplication provides what the processes of the cell share.
func (a *App) startReplication(ctx context.Context) error {
	if a.parts.replication = a.opts.Host.Replication; a.parts.replication != nil {
		return nil
	}
	if err := a.startEtcd(ctx); err != nil {
		return err
	}
	a.parts.replication = &Replication{
		OpenControl: func() (kv.Store, error) { return etcdkv.New(a.sharedControl()) },
		OpenJournal: a.openJournal,
	}
	return nil
}

// startEtcd makes the process a node, or connects to an etcd that others run.
func (a *App) startEtcd(ctx context.Context) error {
	if a.cfg.Node != "" {
		return a.startNode(ctx)
	}
	cfg := etcd.Config{Endpoints: a.cfg.Etcd.URLs, User: a.cfg.Etcd.User, Password: a.cfg.Etcd.Password}
	var err error
	if cfg.TLS, err = a.externalEtcdTLS(); err != nil {
		return err
	}
	if err := a.connectEtcd(cfg); err != nil {
		return err
	}
	// A wrong address or password is an error at the start, not one of each call.
	checking, cancel := context.WithTimeout(ctx, membersTimeout)
	defer cancel()
	res, err := a.parts.etcd.Get(checking, a.etcdPrefix())
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return fmt.Errorf("etcd at %v refuses keys below %s to user %q: grant it a role that may read and write them, or another --cell: %w", a.cfg.Etcd.URLs, a.etcdPrefix(), a.cfg.Etcd.User, err)
	}
	if err != nil {
		return fmt.Errorf("etcd at %v does not answer: %w", a.cfg.Etcd.URLs, err)
	}
	return a.startEtcdCell(ctx, fmt.Sprintf("etcd-%016x", res.Header.GetClusterId()))
}

// etcdPrefix is before all keys of the cell in etcd.
func (a *App) etcdPrefix() string { return "scribe/" + a.cfg.Cell + "/" }

// sharedControl is the control planes' store in etcd.
func (a *App) sharedControl() etcdkv.Config {
	return etcdkv.Config{Client: a.parts.etcd, Prefix: a.etcdPrefix() + "kv/"}
}

// openControlStore opens what the control plane keeps: in the cell's etcd, or in the data folder.
func (a *App) openControlStore() (kv.Store, error) {
	if a.cfg.replicates() {
		store, err := a.parts.replication.OpenControl()
		if err != nil {
			return nil, err
		}
		a.onStop("control store", func(context.Context) error { return store.Close() })
		return store, nil
	}
	store, err := pebblekv.Open(pebblekv.DefaultConfig(a.controlFolder()), pebblekv.Deps{FS: a.opts.Host.FS, Logger: a.log, Registerer: a.registry})
	if err != nil {
		return nil, err
	}
	a.onStop("control store", func(context.Context) error { return store.Close() })
	a.readinessChecks = append(a.readinessChecks, store.Err)
	// A store that failed to write refuses all changes: only a new process can reopen its folder.
	watchFailure(a, store.Failed(), func(struct{}) error { return fmt.Errorf("control plane: %w", store.Err()) })
	return store, nil
}

// shareControl makes the control plane one of several that share the store, if it is.
func (a *App) shareControl(cfg *controlplane.Config) {
	if a.cfg.replicates() {
		cfg.Shared, cfg.Instance, cfg.URL = true, a.id, a.advertisedURL()
	}
}

// controlPeer returns a client for another control plane.
func (a *App) controlPeer(url string) rpc.ControlService {
	return rpc.NewControlClient(a.transport, url)
}
