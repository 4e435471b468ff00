package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog"
)

// Processes whose metadata is in an etcd that others run (--etcd) are one cell. The folder of a cell of one process is adopted there in the steps of nodeadopt.go, and
// detached in those of nodedetach.go. What differs from nodes: any process may begin a cell that etcd does not have, so who adopts first claims it there, and the
// others wait until its journal has begun; and no process asks another one to end the journal, so that all but the one that detaches must have been stopped.

// maxEtcdName bounds the name of a process in DATA/node and in the journal's last head, in bytes.
const maxEtcdName = 63

// etcdName is the name of a process for its cell in etcd: the end of its id, which tells it from others.
func etcdName(id string) string { return strings.ToValidUTF8(id[max(0, len(id)-maxEtcdName):], "") }

// claimKey is the key in etcd that names the process whose folder has what the cell begins with.
func (a *App) claimKey() string { return a.etcdPrefix() + "adopts" }

// startEtcdCell makes the process one of a cell in an etcd that others run, and that token names. It adopts the folder's metadata, if it is to.
func (a *App) startEtcdCell(ctx context.Context, token string) error {
	fsys := a.opts.Host.FS
	known, err := readNodeFile(fsys, a.cfg.Data)
	if err != nil {
		return err
	}
	if known != nil && a.cfg.Adopt && known.isUnmoved() {
		known = nil // an earlier try may have been refused, and this one name another cell
	}
	if err := a.checkEtcdFolder(known, token); err != nil {
		return err
	}
	file := nodeFile{Name: etcdName(a.id), Cell: a.cfg.Cell, Token: token, Etcd: a.cfg.Etcd.URLs}
	switch {
	case known != nil:
		file = *known
	case a.cfg.Adopt:
		file.Adopts = file.Name
		if err := writeNodeFile(fsys, a.cfg.Data, file); err != nil {
			return err
		}
	}
	j, err := a.openJournal()
	if err != nil {
		return err
	}
	moved, err := a.awaitEtcdMetadata(ctx, file, j)
	if err := errors.Join(err, j.Close()); err != nil {
		return err
	}
	if moved.Ready {
		return nil
	}
	moved.Ready = true
	return a.takeStep("ready", func() error { return writeNodeFile(fsys, a.cfg.Data, *moved) })
}

// checkEtcdFolder fails unless the folder's metadata is in the etcd that token names, or is to be. A folder from before such folders had a file has no categories.
func (a *App) checkEtcdFolder(f *nodeFile, token string) error {
	folders := []string{"control"}
	if a.cfg.Adopt {
		folders = append(folders, "metalog")
	}
	has, err := hasFolder(a.opts.Host.FS, a.cfg.Data, folders...)
	if err != nil {
		return err
	}
	name := etcdName(a.id)
	if f != nil {
		name = f.Name // whatever the process is called now
	}
	if err := checkAdoption(toEtcd, a.cfg.Data, name, f, has, a.cfg.Adopt); err != nil || f == nil {
		return err
	}
	switch {
	case f.Cell != a.cfg.Cell:
		return fmt.Errorf("%s is the folder of a process of cell %s, and --cell says %s: under that name etcd has other metadata, or none; give the former --cell", a.cfg.Data, f.Cell, a.cfg.Cell)
	case f.Moved != nil && !f.Ready && f.Token != token:
		return fmt.Errorf("%s began to move to another etcd, at %s: go on there", a.cfg.Data, strings.Join(f.Etcd, ","))
	}
	return nil
}

// awaitEtcdMetadata returns when the process may use what the cell has in etcd. A cell that another process is to begin with its folder it awaits.
func (a *App) awaitEtcdMetadata(ctx context.Context, file nodeFile, j journal.Journal) (*nodeFile, error) {
	var said time.Time
	for {
		head, err := a.readHead(ctx, j)
		if err != nil {
			return nil, err
		}
		claim, err := a.readClaim(ctx)
		adopts := file.Adopts == file.Name && !file.Ready
		switch {
		case err != nil:
			return nil, err
		case head.Detached != "" && a.detaching:
			return &file, nil
		case head.Detached != "":
			return nil, fmt.Errorf("cell %s in etcd has ended: %w. A new cell wants another --cell, or none of its keys there: etcdctl del --prefix %s", a.cfg.Cell, journal.CheckDetached(head), a.etcdPrefix())
		case adopts && (file.Moved == nil || head.Revision == 0):
			return a.adoptFolder(ctx, file, j, func(ctx context.Context) error { return a.claimCell(ctx, file.Name) })
		case head.Revision > 0, file.Ready, claim == "":
			return &file, nil
		}
		if now := time.Now(); said.IsZero() || now.Sub(said) >= waitingInterval {
			said = now
			a.log.InfoContext(ctx, "waiting", "for", "process "+claim+", whose folder has the metadata that the cell begins with, or for an etcd without the key "+a.claimKey())
		}
		if err := a.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// readClaim returns the process whose folder has what the cell begins with; empty if there is none.
func (a *App) readClaim(ctx context.Context) (name string, err error) {
	err = a.repeatRead(ctx, func(ctx context.Context) error {
		res, err := a.parts.etcd.Get(ctx, a.claimKey())
		if err == nil && len(res.Kvs) > 0 {
			name = string(res.Kvs[0].Value)
		}
		return err
	})
	return name, err
}

// claimCell makes the process of a name the one that begins the cell, and fails if etcd has anything of the cell. It may be repeated.
func (a *App) claimCell(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	unused := clientv3.Compare(clientv3.CreateRevision(a.etcdPrefix()), "=", 0).WithPrefix()
	res, err := a.parts.etcd.Txn(ctx).If(unused).Then(clientv3.OpPut(a.claimKey(), name)).Else(clientv3.OpGet(a.etcdPrefix(), clientv3.WithPrefix(), clientv3.WithLimit(2))).Commit()
	if err != nil {
		return fmt.Errorf("claim cell %s in etcd: %w", a.cfg.Cell, err)
	}
	if res.Succeeded {
		return nil
	}
	found := res.Responses[0].GetResponseRange().GetKvs()
	if len(found) == 1 && string(found[0].Key) == a.claimKey() && string(found[0].Value) == name {
		return nil // an earlier try did it
	}
	return fmt.Errorf("etcd has metadata of cell %s already: only a new cell can begin with what is in a folder. Give another --cell, or, if nobody needs what is there, "+
		"stop all of that cell and remove its keys: etcdctl del --prefix %s", a.cfg.Cell, a.etcdPrefix())
}

// errOtherLeads means that another process leads the metadata logs, which has to be stopped.
var errOtherLeads = errors.New("all other processes with --etcd have to be stopped")

// awaitEnd ends the journal as its leader. One that was killed before is silent until this replica takes over.
func (a *App) awaitEnd(ctx context.Context, engine *pebblelog.Engine, name string) error {
	for {
		leads, err := engine.AwaitLeader(ctx)
		if err == nil && leads {
			return engine.DetachTo(ctx, name)
		}
		if err == nil {
			err = a.pause(ctx)
		}
		switch url := engine.Position().Leader; {
		case err == nil:
		case ctx.Err() != nil && url != "" && url != a.advertisedURL():
			return fmt.Errorf("detach %s (nothing has changed): the process at %s leads the metadata logs of cell %s: %w", a.cfg.Data, url, a.cfg.Cell, errOtherLeads)
		default:
			return err
		}
	}
}
