package app

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/controlplane"
	"scribe/internal/base/durable"
	"scribe/internal/format/pointer"
	"scribe/internal/format/sequenced"
	"scribe/storage/blob"
	"scribe/storage/kv"
	"scribe/storage/kv/etcdkv"
	"scribe/storage/kv/pebblekv"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog"
)

// A cell of one process becomes one of nodes, or one over an etcd that others run (etcdcell.go), in these steps (docs/adr/0052-moving-to-nodes-and-back.md). The
// cell of one process starts again after a crash before the third, the nodes go on after a later one, and nobody else can begin the journal in between:
//
//  1. All nodes begin, and know whose folder the cell begins with: the others wait for the journal's head.
//  2. The node that adopts checks the folder, and stores a snapshot of it.
//  3. It writes down, in DATA/node, where the journal begins: from then on the folder is refused without --node.
//  4. It makes the folder that of a replica, copies the categories and all else of the control plane to etcd, and begins the journal.
//  5. It writes down that the cell is ready.

// hasMetadata reports whether a data folder has metadata logs or categories.
func hasMetadata(fsys vfs.FS, data string) (bool, error) {
	return hasFolder(fsys, data, "metalog", "control")
}

// hasFolder reports whether a data folder has one of some folders.
func hasFolder(fsys vfs.FS, data string, names ...string) (bool, error) {
	for _, name := range names {
		_, err := fsys.Stat(filepath.Join(data, name))
		switch {
		case err == nil:
			return true, nil
		case !errors.Is(err, fs.ErrNotExist):
			return false, fmt.Errorf("data folder %s: %w", data, WithoutPath(err))
		}
	}
	return false, nil
}

// checkFolderUse fails if a process keeps metadata, and that of its data folder is kept in another way: by itself, by nodes, or in an etcd that others run.
func (a *App) checkFolderUse() error {
	if !a.cfg.hasAny(ControlPlane, Metalog) {
		return nil
	}
	f, err := readNodeFile(a.opts.Host.FS, a.cfg.Data)
	switch {
	case err != nil || f == nil:
		return err
	case f.Detached && (a.cfg.Adopt || !a.cfg.replicates()):
		return a.forgetNode()
	case f.Detached: // who replicates says what to do about it
	case a.cfg.replicates() && f.isEtcd() == (a.cfg.Node == ""):
	case f.isUnmoved() && !a.cfg.replicates(): // it may still stay
	default:
		return f.useError(a.cfg.Data)
	}
	return nil
}

// forgetNode removes the node's own files from a folder that was detached.
func (a *App) forgetNode() error {
	fsys, data := a.opts.Host.FS, a.cfg.Data
	err := fsys.RemoveAll(etcdFolder(data))
	if err == nil {
		err = errors.Join(fsys.Remove(filepath.Join(data, nodeFileName)), durable.SyncFolder(fsys, data))
	}
	if err != nil {
		return fmt.Errorf("remove the files of the detached node in %s: %w", data, WithoutPath(err))
	}
	return nil
}

// adopts is the node whose folder has what the cell begins with; n.mu is held.
func (n *node) adopts() string {
	switch {
	case n.mu.file != nil:
		return n.mu.file.Adopts
	case n.app.cfg.Adopt:
		return n.place.name
	}
	return ""
}

// metadataPause is the pause before it is looked again whether the cell's metadata is there, or has left.
const metadataPause = 500 * time.Millisecond

// awaitMetadata returns when the journal is there that the node takes part in, if another node begins it; who adopts begins it here. It fails, once nobody needs
// this node's etcd any more, if the metadata has left the nodes.
func (n *node) awaitMetadata(ctx context.Context, file nodeFile) (_ *nodeFile, err error) {
	j, err := n.app.openJournal()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, j.Close()) }()
	defer n.setWaiting("")
	for {
		head, err := n.app.readHead(ctx, j)
		switch {
		case err != nil:
			return nil, err
		case head.Detached != "" && n.app.detaching:
			return &file, nil
		case head.Detached != "":
			return nil, n.awaitDetached(ctx, journal.CheckDetached(head))
		case head.Revision > 0, file.Ready, file.Adopts == "":
			return &file, nil
		case file.Adopts == n.place.name:
			n.setWaiting("its own metadata to become that of the nodes")
			return n.app.adoptFolder(ctx, file, j, n.app.checkUnused)
		}
		n.setWaiting("node " + file.Adopts + ", whose folder has the metadata that the cell begins with")
		if err := n.app.pause(ctx); err != nil {
			return nil, err
		}
	}
}

// readHead reads the journal's head. One that this program can't read is empty: the replica says what it is.
func (a *App) readHead(ctx context.Context, j journal.Journal) (head journal.Head, err error) {
	err = a.repeatRead(ctx, func(ctx context.Context) (err error) {
		head, err = j.Head(ctx)
		if errors.Is(err, journal.ErrVersion) || errors.Is(err, journal.ErrCorrupt) {
			return nil
		}
		return err
	})
	return head, err
}

// pause waits a little, unless the process ends.
func (a *App) pause(ctx context.Context) error {
	wait := time.NewTimer(metadataPause)
	defer wait.Stop()
	select {
	case <-wait.C:
		return nil
	case err := <-a.failed:
		return err
	case <-ctx.Done():
		return fmt.Errorf("process %s waits for the cell's metadata: %w", a.id, context.Cause(ctx))
	}
}

// adoptFolder makes the folder's metadata that of the nodes, or that in etcd, in which claim requires that the cell has none, before the folder changes. It goes on
// where an earlier process ended.
func (a *App) adoptFolder(ctx context.Context, file nodeFile, j journal.Journal, claim func(context.Context) error) (*nodeFile, error) {
	start := time.Now()
	if file.Moved == nil {
		at, err := a.exportMetadata(ctx, claim)
		if err == nil {
			err = claim(ctx) // the export may have taken long
		}
		if err != nil {
			return nil, fmt.Errorf("adopt %s (it was not changed, and starts without %s as before): %w", a.cfg.Data, file.target().flags, err)
		}
		file.Moved = &movedMetadata{Entry: at.Seq, Chain: hex.EncodeToString(at.Chain[:]), Time: at.Time}
		if err := a.takeStep("mark", func() error { return writeNodeFile(a.opts.Host.FS, a.cfg.Data, file) }); err != nil {
			return nil, err
		}
		a.log.InfoContext(ctx, "the folder's metadata has moved", "to", file.target().name, "name", file.Name, "entry", at.Seq, "after", time.Since(start))
	}
	if err := a.moveMetadata(ctx, file.Moved, j); err != nil {
		return nil, fmt.Errorf("adopt %s (go on with the same command; if another process has begun an empty cell in etcd meanwhile, stop it and remove that cell's keys first: etcdctl del --prefix %s): %w", a.cfg.Data, a.etcdPrefix(), err)
	}
	a.log.InfoContext(ctx, "the cell has the folder's metadata", "in", file.target().name, "name", file.Name, "entry", file.Moved.Entry, "after", time.Since(start))
	return &file, nil
}

// exportMetadata claims the cell, checks the folder, and stores a snapshot of it. It changes nothing there.
func (a *App) exportMetadata(ctx context.Context, claim func(context.Context) error) (at pebblelog.Adoption, err error) {
	if err := claim(ctx); err != nil {
		return at, err
	}
	blobs, err := a.opts.Host.OpenBlobs(ctx, a.cfg)
	if err != nil {
		return at, err
	}
	defer func() { err = errors.Join(err, blobs.Close()) }()
	if err := a.checkMetadata(ctx, blobs); err != nil {
		return at, err
	}
	o := a.ownLogOptions()
	o.Name, o.Snapshots, o.Random = engineName, blobs, a.opts.Host.Random.Named("adoption")
	err = a.takeStep("export", func() (err error) {
		at, err = pebblelog.ExportFolder(ctx, a.metalogFolder(), o)
		return err
	})
	return at, err
}

// ExportTables stores most of what the move of a cell of one process to nodes stores, while that cell runs. It returns how many tables there are, and their bytes.
func ExportTables(ctx context.Context, cfg Config, host Host) (tables int, bytes int64, err error) {
	if err := cfg.ValidateBlobs(); err != nil {
		return 0, 0, err
	}
	host = host.withDefaults()
	blobs, err := host.OpenBlobs(ctx, cfg)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, blobs.Close()) }()
	return pebblelog.ExportTables(ctx, filepath.Join(cfg.Data, "metalog"), pebblelog.Options{FS: host.FS, Name: engineName, Snapshots: blobs})
}

// checkUnused fails if etcd has metadata of the cell: nobody can have begun it, but in a cell that was one before.
func (a *App) checkUnused(ctx context.Context) error {
	store, err := etcdkv.New(a.sharedControl())
	if err != nil {
		return err
	}
	begun, err := store.HasBegun(ctx)
	if err == nil && begun {
		err = fmt.Errorf("etcd has categories of cell %s already: only a new cell can begin with what is in a folder", a.cfg.Cell)
	}
	return errors.Join(err, store.Close())
}

// checkMetadata fails unless logs, categories and payloads of a cell of one process can be read, and belong together.
func (a *App) checkMetadata(ctx context.Context, blobs blob.Store) (err error) {
	store, err := pebblekv.Open(pebblekv.DefaultConfig(a.controlFolder()), pebblekv.Deps{FS: a.opts.Host.FS, Logger: a.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	log, err := pebblelog.Open(a.metalogFolder(), a.ownLogOptions())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	next, err := controlplane.NextID(ctx, store)
	if err != nil {
		return err
	}
	if err := a.checkCategoryIDs(ctx, log, next); err != nil {
		return err
	}
	state, err := controlplane.ReadState(ctx, store)
	if err != nil {
		return err
	}
	var ids []uint32
	for _, c := range state.Categories {
		ids = append(ids, c.GetId())
	}
	return a.checkPayloads(ctx, log, ids, blobs)
}

// enoughMissing is how many of the newest payloads must be missing, and none be there, before a store of blobs is taken for another cell's.
const enoughMissing = 10

// checkPayloads fails if the store of blobs is not that of the logs, as far as some of their newest pointers tell.
func (a *App) checkPayloads(ctx context.Context, log metalog.Log, categories []uint32, blobs blob.Store) error {
	missing := ""
	for count, i := 0, 0; i < len(categories) && count < enoughMissing; i++ {
		states, err := log.Shards(ctx, categories[i])
		if err != nil {
			return err
		}
		for _, st := range states {
			if st.FirstLSN == st.NextLSN || sequenced.Reserved(st.Shard) {
				continue
			}
			entries, err := log.Read(ctx, st.Shard, st.NextLSN-1, 1, 0)
			if err != nil || len(entries) == 0 {
				continue // damage of one log is not a reason to stay
			}
			p, err := pointer.Decode(entries[0].Data)
			if err != nil {
				continue
			}
			switch _, err := blobs.Stat(ctx, p.Key()); {
			case err == nil:
				return nil
			case !errors.Is(err, blob.ErrNotFound):
				return err
			}
			missing = p.Key()
			count++
		}
	}
	if missing != "" {
		return fmt.Errorf("none of the newest payloads is in %s, for example %s: give the --blobs or --blob-path of the cell that is to move", a.cfg.blobSource(), missing)
	}
	return nil
}

// moveMetadata gives the nodes, or etcd, what the folder has. Each step may be repeated.
func (a *App) moveMetadata(ctx context.Context, moved *movedMetadata, j journal.Journal) error {
	at, err := moved.adoption()
	if err != nil {
		return err
	}
	if err := a.takeStep("logs", func() error { return pebblelog.AdoptFolder(a.metalogFolder(), a.ownLogOptions(), at) }); err != nil {
		return err
	}
	if err := a.takeStep("control", func() error { return a.moveControl(ctx) }); err != nil {
		return err
	}
	return a.takeStep("journal", func() error { return at.BeginJournal(ctx, j) })
}

// takeStep takes a step that is durable.
func (a *App) takeStep(name string, step func() error) error {
	if err := a.opts.Step(name); err != nil {
		return err
	}
	return step()
}

// moveControl copies the control store to etcd. Its revisions go on there.
func (a *App) moveControl(ctx context.Context) (err error) {
	own, err := pebblekv.Open(pebblekv.DefaultConfig(a.controlFolder()), pebblekv.Deps{FS: a.opts.Host.FS, Logger: a.log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	page, err := own.Range(ctx, kv.KeyRange{Limit: 1})
	if err != nil {
		return err
	}
	if err := etcdkv.CreateBase(ctx, a.sharedControl(), page.Revision); err != nil {
		return err
	}
	shared, err := etcdkv.New(a.sharedControl())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shared.Close()) }()
	entries, err := kv.CopyAll(ctx, own, shared)
	if err == nil {
		a.log.InfoContext(ctx, "control store copied to etcd", "entries", entries, "revision", page.Revision)
	}
	return err
}
