package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/internal/base/durable"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv/etcdkv"
	"scribe/storage/kv/pebblekv"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog"
)

// A cell of nodes, or one over an etcd that others run, becomes one of one process in these steps (docs/adr/0052-moving-to-nodes-and-back.md). The nodes go on
// after a crash before the first; after a later one the node that detaches goes on with the same command, for which the others keep their etcd up:
//
//  1. The leader of the metadata logs writes the last head of the journal, which names the node. No node does anything from then on.
//  2. The node ends the control store in etcd, and copies it to its folder; it makes its replica an engine without a journal.
//  3. It writes down, in DATA/node, that it is detached: the folder starts without --node.
//  4. It tells the others, which end.

// DetachNode makes the folder of a node, or of a process over an etcd that others run, that of a cell of one process, with all that the cell has, and ends the
// former cell. The process must not run. The other nodes must, or a majority of them with this one; other processes over an etcd must not. After an error, or a
// crash, it may be called again, and goes on.
func DetachNode(ctx context.Context, cfg Config, opts Options) (err error) {
	cfg.Insecure = true // it serves nothing
	a, err := newApp(cfg, opts)
	if err != nil {
		return err
	}
	a.detaching = true
	defer func() {
		err = errors.Join(err, a.stopNow(ctx))
	}()
	if err := a.startProcess(ctx); err != nil {
		return err
	}
	file, err := readNodeFile(a.opts.Host.FS, a.cfg.Data)
	switch {
	case err != nil:
		return err
	case file == nil || !file.Ready:
		return fmt.Errorf("%s is not the folder of a node, or of a process with --etcd, whose cell was ready: there is nothing to detach", a.cfg.Data)
	}
	if err := a.startReplication(ctx); err != nil {
		return err
	}
	if err := a.startBlobs(ctx); err != nil {
		return err
	}
	askEnd := func(ctx context.Context, engine *pebblelog.Engine) error { return a.awaitEnd(ctx, engine, file.Name) }
	if n := a.parts.node; n != nil {
		askEnd = n.askEnd
	}
	if err := a.detachFolder(ctx, *file, askEnd); err != nil {
		return err
	}
	if n := a.parts.node; n != nil {
		n.dismissOthers(ctx)
	}
	return nil
}

// detachFolder takes the cell's metadata along. askEnd has the leader of the metadata logs end the journal.
func (a *App) detachFolder(ctx context.Context, file nodeFile, askEnd func(context.Context, *pebblelog.Engine) error) error {
	start := time.Now()
	var head journal.Head
	err := a.takeStep("journal", func() (err error) {
		head, err = a.endJournal(ctx, file.Name, askEnd)
		return err
	})
	if err != nil {
		return err
	}
	a.log.InfoContext(ctx, "the cell's metadata is this folder's from now on", "name", file.Name, "entry", head.Seq, "after", time.Since(start))
	if err := a.takeStep("logs", func() error { return a.finishLogs(ctx, head) }); err != nil {
		return fmt.Errorf("detach %s (go on with the same command): %w", a.cfg.Data, err)
	}
	if err := a.takeStep("end", func() error { return etcdkv.EndStore(ctx, a.sharedControl()) }); err != nil {
		return fmt.Errorf("detach %s (go on with the same command): %w", a.cfg.Data, err)
	}
	if err := a.finishControl(ctx); err != nil {
		return fmt.Errorf("detach %s (go on with the same command): %w", a.cfg.Data, err)
	}
	file.Detached = true
	if err := a.takeStep("mark", func() error { return writeNodeFile(a.opts.Host.FS, a.cfg.Data, file) }); err != nil {
		return err
	}
	a.log.InfoContext(ctx, "the folder is that of a cell of one process", "name", file.Name, "after", time.Since(start))
	return nil
}

// endJournal ends the journal in order, if that has not happened, and returns its last head, which names who goes on.
func (a *App) endJournal(ctx context.Context, name string, askEnd func(context.Context, *pebblelog.Engine) error) (head journal.Head, err error) {
	j, err := a.openJournal()
	if err != nil {
		return head, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	if head, err = a.readEnd(ctx, j, name); err != nil || head.Detached != "" {
		return head, err
	}
	engine, err := pebblelog.Open(a.metalogFolder(), a.replicaOptions(j))
	if err != nil {
		return head, err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	for {
		asking, cancel := context.WithTimeout(ctx, changeTimeout)
		aerr := askEnd(asking, engine)
		cancel()
		if head, err = a.readEnd(ctx, j, name); err != nil || head.Detached != "" {
			return head, err
		}
		if errors.Is(aerr, errOtherLeads) {
			return head, aerr
		}
		a.log.InfoContext(ctx, "the metadata logs have not ended yet: trying again", "error", aerr)
		if err := a.pause(ctx); err != nil {
			return head, err
		}
	}
}

// readEnd returns the journal's head. It fails if another process than the one of a name has detached it.
func (a *App) readEnd(ctx context.Context, j journal.Journal, name string) (head journal.Head, err error) {
	err = a.repeatRead(ctx, func(ctx context.Context) (err error) {
		head, err = j.Head(ctx)
		return err
	})
	if err == nil && head.Detached != "" && head.Detached != name {
		err = journal.CheckDetached(head)
	}
	return head, err
}

// askEnd has the leader end the journal. It is this replica if no other leads: it has caught up in any case.
func (n *node) askEnd(ctx context.Context, engine *pebblelog.Engine) error {
	leads, err := engine.AwaitLeader(ctx)
	if err != nil {
		return err
	}
	if leads {
		return engine.DetachTo(ctx, n.place.name)
	}
	url := engine.Position().Leader
	_, err = rpc.NewNodeClient(n.app.transport, url).DetachCell(ctx, &scribev1.DetachCellRequest{Node: n.place.name})
	return err
}

// finishLogs makes the replica's folder that of an engine without a journal, once it has applied all of it.
func (a *App) finishLogs(ctx context.Context, head journal.Head) (err error) {
	first := pebblelog.DetachFolder(a.metalogFolder(), a.ownLogOptions(), head)
	if first == nil {
		return nil
	}
	j, err := a.openJournal()
	if err != nil {
		return err
	}
	engine, err := pebblelog.Open(a.metalogFolder(), a.replicaOptions(j))
	if err != nil {
		return errors.Join(first, err, j.Close())
	}
	select {
	case <-engine.Failed():
	case <-ctx.Done():
	}
	if failed := engine.Err(); !errors.Is(failed, journal.ErrDetached) {
		err = failed
	}
	if err := errors.Join(err, context.Cause(ctx), engine.Close(), j.Close()); err != nil {
		return err
	}
	return pebblelog.DetachFolder(a.metalogFolder(), a.ownLogOptions(), head)
}

// finishControl copies the control store in etcd, which has ended, to the folder.
func (a *App) finishControl(ctx context.Context) (err error) {
	fsys := a.opts.Host.FS
	shared, err := etcdkv.New(a.sharedControl())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	folder := a.controlFolder()
	copied := folder + ".detaching"
	if err := fsys.RemoveAll(copied); err != nil {
		return err
	}
	err = a.takeStep("copy", func() error {
		return pebblekv.RestoreFrom(ctx, pebblekv.DefaultConfig(copied), pebblekv.Deps{FS: fsys, Logger: a.log}, shared)
	})
	if err != nil {
		return err
	}
	// What is there is from before the folder was a node's.
	if err := a.takeStep("remove", func() error { return fsys.RemoveAll(folder) }); err != nil {
		return err
	}
	if err := a.takeStep("rename", func() error { return fsys.Rename(copied, folder) }); err != nil {
		return err
	}
	return durable.SyncFolder(fsys, filepath.Dir(folder))
}

// dismissLimit bounds how long a node that has detached keeps its etcd up for the others, which need it to learn of that.
const dismissLimit = 10 * time.Second

// dismissOthers tells the other nodes that nobody needs them any more, and waits until they have ended. They hold nothing: what fails costs an operator a look.
func (n *node) dismissOthers(ctx context.Context) {
	a := n.app
	ctx, cancel := context.WithTimeout(ctx, dismissLimit)
	defer cancel()
	if _, err := a.parts.etcd.Put(ctx, n.detachedKey(), n.place.name); err != nil {
		a.log.WarnContext(ctx, "the other nodes may not learn that they can end: stop them", "error", err)
		return
	}
	for n.countOthers(ctx) > 0 {
		if a.pause(ctx) != nil {
			a.log.WarnContext(ctx, "some of the other nodes still run: stop them", "nodes", listNodes(n.cluster))
			return
		}
	}
}

// countOthers returns how many other nodes answer.
func (n *node) countOthers(ctx context.Context) (up int) {
	var mu sync.Mutex
	var asking sync.WaitGroup
	for _, p := range n.cluster {
		if p == n.place {
			continue
		}
		asking.Go(func() {
			if _, err := n.describe(ctx, p); err == nil {
				mu.Lock()
				defer mu.Unlock()
				up++
			}
		})
	}
	asking.Wait()
	return up
}

// detachedKey is the key in etcd that says that a node has taken all of the cell's metadata along.
func (n *node) detachedKey() string { return n.app.etcdPrefix() + "detached" }

// awaitDetached keeps this node's etcd up until the node that detaches has everything, and returns why the node ends.
func (n *node) awaitDetached(ctx context.Context, why error) error {
	n.setWaiting("another node to take the cell's metadata along, which needs this one's etcd")
	n.app.log.WarnContext(ctx, "the cell of nodes has ended: this node keeps its etcd up until its metadata was taken along", "error", why)
	for {
		// Its own member knows it, also when it is the last one.
		asking, cancel := context.WithTimeout(ctx, askTimeout)
		res, err := n.app.parts.etcd.Get(asking, n.detachedKey(), clientv3.WithSerializable())
		cancel()
		if err == nil && res.Count > 0 {
			return fmt.Errorf("%w: the folder of node %s is of no use any more", why, n.place.name)
		}
		if err := n.app.pause(ctx); err != nil {
			return errors.Join(why, err)
		}
	}
}

// dismissedTimeout is how long a process that was dismissed waits for its parts: writers repeat what it holds where the metadata is now.
const dismissedTimeout = time.Second

// limitStop bounds how long the parts of the process may take to stop.
func (a *App) limitStop(ctx context.Context) (context.Context, context.CancelFunc) {
	if a.dismissed.Load() {
		return context.WithTimeout(ctx, dismissedTimeout)
	}
	return context.WithCancel(ctx)
}

// explainHalt returns why a replica that halted ends the process, once that may end.
func (a *App) explainHalt(err error) error {
	err = fmt.Errorf("metalog: %w", err)
	if a.parts.node == nil || !errors.Is(err, journal.ErrDetached) {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-a.ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer a.dismissed.Store(true)
	return a.parts.node.awaitDetached(ctx, err)
}
