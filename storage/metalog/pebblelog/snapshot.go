package pebblelog

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/lifecycle"
	"scribe/storage/blob"
	"scribe/storage/metalog/journal"
	"scribe/storage/metalog/pebblelog/schema"
)

// Names within the folder.
const (
	// checkpointName is the subfolder in which a snapshot is made.
	checkpointName = "checkpoint"
	// seedName is the subfolder into which a snapshot is fetched.
	seedName = "seed"
)

// maxListed bounds the content of a file that a snapshot's list has itself; larger ones are blobs.
const maxListed = 4 << 10

// snapshotter makes snapshots while this replica leads.
type snapshotter struct {
	e     *Engine
	store blob.Store
	// wake asks for a snapshot at once, because the journal is full.
	wake lifecycle.WakeChannel
	// stored are the tables that were stored of the folder while its calls are counted by folder, by name: tables never change, and no name is
	// used again.
	stored map[string]schema.SnapshotFile
	folder *lifecycle.Calls
}

func newSnapshotter(e *Engine) *snapshotter {
	return &snapshotter{e: e, store: e.opts.Snapshots, wake: lifecycle.NewWakeChannel(), stored: map[string]schema.SnapshotFile{}}
}

// snapshotCheck is how often it is looked whether a snapshot is due.
const snapshotCheck = 20

// urgentPause is the least time between snapshots for a full journal.
const urgentPause = 2 * time.Second

// makeSnapshots makes a snapshot when one is due, until the engine stops.
func (s *snapshotter) makeSnapshots() {
	r := s.e.replica
	ticks := time.NewTicker(s.e.opts.SnapshotEvery / snapshotCheck)
	defer ticks.Stop()
	last, tried := time.Now(), time.Time{}
	for {
		urgent := false
		select {
		case <-r.life.Done():
			return
		case <-s.e.failed:
			return
		case <-ticks.C:
		case <-s.wake:
			urgent = true
		}
		if urgent && time.Since(tried) < urgentPause {
			continue
		}
		bytes := r.journaled.Load()
		if !r.leads() || !urgent && bytes < s.e.opts.SnapshotBytes && (bytes == 0 || time.Since(last) < s.e.opts.SnapshotEvery) {
			continue
		}
		tried = time.Now()
		if err := s.snapshotFolder(); err != nil && r.life.Err() == nil {
			s.e.metrics.snapshots.WithLabelValues("failed").Inc()
			s.e.opts.Logger.Warn("snapshot failed: the journal is not trimmed", "error", err)
			continue
		}
		last = time.Now()
		r.journaled.Add(-bytes)
	}
}

// snapshotFolder makes a snapshot of the folder as it is: it ends when that is replaced.
func (s *snapshotter) snapshotFolder() error {
	r := s.e.replica
	folder := r.folder.Load()
	if !folder.Enter() {
		return r.notServing()
	}
	defer folder.Leave()
	if folder != s.folder {
		clear(s.stored)
		s.folder = folder
	}
	ctx, cancel := context.WithCancel(r.life)
	defer cancel()
	left := make(chan struct{})
	defer close(left)
	r.work.Go(func() {
		select {
		case <-folder.Draining():
			cancel()
		case <-left:
		}
	})
	return s.makeSnapshot(ctx)
}

// makeSnapshot uploads what the folder has, tells the others, and trims the journal up to the snapshot before: the others have had the
// time between the two to apply what is removed. If the journal is still full then, the next snapshot makes room.
func (s *snapshotter) makeSnapshot(ctx context.Context) error {
	e, start := s.e, time.Now()
	leader, before := e.replica.leaderOf()
	if leader == nil {
		return errors.New("this replica does not lead any more")
	}
	dir := e.guard.PathJoin(e.dir, checkpointName)
	defer func() { _ = e.opts.FS.RemoveAll(dir) }() // the next one removes it too
	list, err := s.uploadCheckpoint(ctx, dir)
	if err != nil {
		return err
	}
	if err := leader.RecordSnapshot(ctx, list.Seq); err != nil {
		return fmt.Errorf("tell of the snapshot at entry %d: %w", list.Seq, err)
	}
	e.metrics.snapshots.WithLabelValues("ok").Inc()
	e.opts.Logger.Info("snapshot made", "entry", list.Seq, "files", len(list.Files), "took", time.Since(start))
	if err := e.replica.journal.Trim(ctx, before.Snapshot+1); err != nil {
		return fmt.Errorf("trim the journal up to entry %d: %w", before.Snapshot, err)
	}
	s.removeOld(ctx, min(before.Snapshot, list.Seq))
	return nil
}

// uploadCheckpoint makes a checkpoint in dir, and stores its files and then their list.
func (s *snapshotter) uploadCheckpoint(ctx context.Context, dir string) (list schema.Snapshot, err error) {
	if err := s.checkpoint(ctx, dir); err != nil {
		return list, err
	}
	return s.storeFolder(ctx, dir)
}

// storeFolder stores the files of a replica's folder that nobody uses, and then their list.
func (s *snapshotter) storeFolder(ctx context.Context, dir string) (list schema.Snapshot, err error) {
	if list.Applied, err = appliedIn(s.e.opts, dir); err != nil {
		return list, fmt.Errorf("read the checkpoint: %w", err)
	}
	names, err := s.e.opts.FS.List(dir)
	if err != nil {
		return list, err
	}
	for _, name := range names {
		f, err := s.storeFile(ctx, dir, name)
		if err != nil {
			return list, fmt.Errorf("file %s of the checkpoint: %w", name, err)
		}
		list.Files = append(list.Files, f)
	}
	maps.DeleteFunc(s.stored, func(name string, _ schema.SnapshotFile) bool { return !slices.Contains(names, name) })
	err = s.store.Put(ctx, snapshotKey(s.e.opts.Name, list.Seq), schema.AppendSnapshot(nil, list))
	if errors.Is(err, blob.ErrExists) {
		err = s.replaceList(ctx, list)
	}
	return list, err
}

// replaceList makes sure that the list that is stored at an entry's number is that of this journal. One of another leader is: it has the same content. One that is
// damaged, or of another journal, before etcd was set back or begun anew, is replaced: nobody could be seeded from it.
func (s *snapshotter) replaceList(ctx context.Context, list schema.Snapshot) error {
	key := snapshotKey(s.e.opts.Name, list.Seq)
	info, err := s.store.Stat(ctx, key)
	if err != nil {
		return err
	}
	info.Key = key
	stored, err := readList(ctx, s.store, info)
	switch {
	case err == nil && stored.Applied == list.Applied:
		return nil
	case err != nil && !errors.Is(err, schema.ErrCorrupt):
		return err
	}
	s.e.opts.Logger.Warn("snapshot of another journal is replaced", "snapshot", key, "error", err)
	if err := s.store.Delete(ctx, key); err != nil {
		return err
	}
	return s.store.Put(ctx, key, schema.AppendSnapshot(nil, list))
}

// checkpoint links the tables of the folder, with everything that was applied until now, into dir.
func (s *snapshotter) checkpoint(ctx context.Context, dir string) error {
	e := s.e
	if err := e.opts.FS.RemoveAll(dir); err != nil {
		return err
	}
	flushed, err := e.db.AsyncFlush()
	if err != nil {
		return err
	}
	select {
	case <-flushed:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.failed:
		return e.failedError()
	}
	return e.db.Checkpoint(dir)
}

// appliedIn reads how far the database in a folder has applied the journal, which also proves that it can be opened.
func appliedIn(opts Options, dir string) (a schema.Applied, err error) {
	o := pebbleOptions(&opts)
	o.FS, o.Logger, o.ReadOnly, o.DisableWAL = opts.FS, quietLogger{}, true, true
	db, err := pebble.Open(dir, o)
	if err != nil {
		return a, err
	}
	a, found, err := lookUp(db, schema.MetaKey(schema.MetaApplied), schema.DecodeApplied)
	if err == nil && !found {
		err = errors.New("it has applied nothing")
	}
	return a, errors.Join(err, db.Close())
}

// storeFile stores a file as a blob named by its content, unless that is there, or describes it with its content if it is small.
func (s *snapshotter) storeFile(ctx context.Context, dir, name string) (f schema.SnapshotFile, err error) {
	fs := s.e.opts.FS
	info, err := fs.Stat(fs.PathJoin(dir, name))
	if err != nil {
		return f, err
	}
	if f, ok := s.stored[name]; ok && f.Size == uint64(info.Size()) && s.hasBlob(ctx, f) == nil {
		return f, nil
	}
	data, err := readFile(fs, fs.PathJoin(dir, name), info.Size())
	if err != nil {
		return f, err
	}
	f = schema.SnapshotFile{Name: name, Size: uint64(len(data)), CRC: crc32.Checksum(data, castagnoli)}
	if len(data) <= maxListed {
		f.Data = data
		return f, nil
	}
	sum := sha256.Sum256(data)
	copy(f.ID[:], sum[:])
	if err = s.hasBlob(ctx, f); errors.Is(err, blob.ErrNotFound) {
		s.e.metrics.snapshotBytes.Add(float64(len(data)))
		if err = s.store.Put(ctx, tableKey(s.e.opts.Name, f.ID), data); errors.Is(err, blob.ErrExists) {
			err = s.hasBlob(ctx, f)
		}
	}
	if err == nil && strings.HasSuffix(name, ".sst") {
		s.stored[name] = f
	}
	return f, err
}

// hasBlob returns nil if a file is stored.
func (s *snapshotter) hasBlob(ctx context.Context, f schema.SnapshotFile) error {
	key := tableKey(s.e.opts.Name, f.ID)
	info, err := s.store.Stat(ctx, key)
	if err == nil && uint64(info.Size) != f.Size {
		err = fmt.Errorf("blob %s has %d bytes, not %d: remove it", key, info.Size, f.Size)
	}
	return err
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// readFile reads a file of a known size.
func readFile(fs vfs.FS, path string, size int64) (data []byte, err error) {
	file, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	data = make([]byte, size)
	if size > 0 {
		_, err = file.ReadAt(data, 0)
	}
	return data, errors.Join(err, file.Close())
}

// Keys of a snapshot's blobs.

func tableKey(engine string, id [16]byte) string { return fmt.Sprintf("meta/%s/sst/%x", engine, id) }

func snapshotPrefix(engine string) string { return fmt.Sprintf("meta/%s/snap/", engine) }

func snapshotKey(engine string, seq uint64) string {
	return fmt.Sprintf("%s%020d", snapshotPrefix(engine), seq)
}

// tableAge is how old a table must be before it is removed: a snapshot that is being made may refer to one that no list has yet.
const tableAge = 24 * time.Hour

// removeOld removes snapshots before one, and tables that no snapshot refers to.
func (s *snapshotter) removeOld(ctx context.Context, oldest uint64) {
	if err := s.tryRemoveOld(ctx, oldest); err != nil && ctx.Err() == nil {
		s.e.opts.Logger.Warn("old snapshots are not removed: trying again after the next one", "error", err)
	}
}

func (s *snapshotter) tryRemoveOld(ctx context.Context, oldest uint64) error {
	used := map[string]bool{}
	for info, err := range s.store.List(ctx, snapshotPrefix(s.e.opts.Name)) {
		if err != nil {
			return err
		}
		if info.Key < snapshotKey(s.e.opts.Name, oldest) {
			if err := s.store.Delete(ctx, info.Key); err != nil {
				return err
			}
			continue
		}
		list, err := readList(ctx, s.store, info)
		if err != nil {
			return err
		}
		for _, f := range list.Files {
			used[tableKey(s.e.opts.Name, f.ID)] = true
		}
	}
	for info, err := range s.store.List(ctx, strings.TrimSuffix(tableKey(s.e.opts.Name, [16]byte{}), strings.Repeat("0", 32))) {
		if err != nil {
			return err
		}
		if used[info.Key] || time.Since(info.Modified) < tableAge {
			continue
		}
		if err := s.store.Delete(ctx, info.Key); err != nil {
			return err
		}
	}
	return nil
}

// leaderOf returns the leader that this replica is, with its head; nil if it does not lead.
func (r *replica) leaderOf() (*journal.Leader, journal.Head) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.mu.leading {
		return nil, journal.Head{}
	}
	return r.mu.leader, r.mu.leader.Head()
}
