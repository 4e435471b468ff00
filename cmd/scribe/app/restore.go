package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"scribe/cmd/scribe/recovery"
	"scribe/controlplane"
	"scribe/storage/backup"
	"scribe/storage/blob"
	"scribe/storage/kv"
	"scribe/storage/kv/pebblekv"
	"scribe/storage/metalog/pebblelog"
)

// LatestBackup in RecoverOptions is the newest backup that can be read of the cell, and is not later than the moment to restore.
const LatestBackup = "latest"

// ErrWrongBackup means that a backup can't be restored with these payloads, or to this moment.
var ErrWrongBackup = errors.New("the backup does not fit")

// RestoredBackup is the backup with which a restored folder begins.
type RestoredBackup struct {
	Name string
	// Created is when everything in it had been read, Watermark its time of the metadata engine; Unix microseconds.
	Created, Watermark int64
	// Skipped are newer backups that can't be read.
	Skipped []string
}

// OpenBackups opens where a configuration keeps backups. The caller closes the store.
func OpenBackups(ctx context.Context, c Config, host Host, progress func(bytes uint64)) (*backup.Backups, blob.Store, error) {
	host = host.withDefaults()
	to, err := c.BackupBlobs()
	if err == nil {
		err = to.ValidateBlobs()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("store of backups: %w", err)
	}
	store, err := host.OpenBlobs(ctx, to)
	if err != nil {
		return nil, nil, fmt.Errorf("store of backups %s: %w", to.blobSource(), err)
	}
	return backup.New(store, backup.Options{FS: host.FS, Now: host.Now, Random: host.Random.Named("backups"), Progress: progress}), store, nil
}

// fetchBackup fetches the backup with which the folder is to begin: its logs become the base of the recovery, its control store the copy of the categories.
func (m *folderBuilder) fetchBackup(ctx context.Context, c *Config) (err error) {
	progress := func(bytes uint64) {
		if m.o.Progress != nil {
			m.o.Progress("bytes of the backup", int64(bytes)) //nolint:gosec // far below
		}
	}
	b, store, err := OpenBackups(ctx, *c, m.o.Host, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	manifest, err := m.chooseBackup(ctx, b)
	if err != nil {
		return err
	}
	if err := m.o.Step("fetch"); err != nil {
		return err
	}
	logs := filepath.Join(m.work, "backup", m.backup.Name)
	if err := b.Fetch(ctx, manifest.Logs, logs); err != nil {
		return err
	}
	if err := m.fetchControl(ctx, b, manifest); err != nil {
		return fmt.Errorf("the control store of backup %s: %w", m.backup.Name, err)
	}
	m.base, err = pebblelog.OpenCopy(logs, pebblelog.Options{FS: m.o.Host.FS})
	return err
}

// chooseBackup finds the backup, which must be of the cell whose payloads these are, and not be later than the moment to restore.
func (m *folderBuilder) chooseBackup(ctx context.Context, b *backup.Backups) (manifest *backup.Manifest, err error) {
	identity, err := blob.ReadIdentity(ctx, m.store)
	if err != nil {
		return nil, err
	}
	until := int64(0)
	if !m.o.Until.IsZero() {
		until = m.o.Until.UnixMicro()
	}
	m.backup = &RestoredBackup{Name: m.o.Backup}
	if m.o.Backup == LatestBackup {
		found, skipped, err := b.Latest(ctx, identity, until)
		if err != nil {
			return nil, fmt.Errorf("no backup of the cell whose payloads are in %s, or none that is old enough: %w", m.source, err)
		}
		for _, s := range skipped {
			m.backup.Skipped = append(m.backup.Skipped, fmt.Sprintf("%s: %v", s.Name, s.Err))
		}
		m.backup.Name, manifest = found.Name, found.Manifest
	} else if manifest, err = b.Read(ctx, m.o.Backup); err != nil {
		return nil, err
	}
	m.backup.Created, m.backup.Watermark = manifest.Created, manifest.Watermark
	switch {
	case identity != "" && manifest.Store != "" && identity != manifest.Store:
		return nil, fmt.Errorf("%w: %s is of the cell with the store of payloads %s, and %s is the store %s", ErrWrongBackup, m.backup.Name, manifest.Store, m.source, identity)
	case until != 0 && manifest.Created > until:
		return nil, fmt.Errorf("%w: %s is of %s, which is later than the moment to restore: choose an older one", ErrWrongBackup, m.backup.Name, time.UnixMicro(manifest.Created).UTC().Format(time.RFC3339))
	}
	return manifest, nil
}

// fetchControl writes the entries of the backup's control store into a control store to work with, and reads the categories.
func (m *folderBuilder) fetchControl(ctx context.Context, b *backup.Backups, manifest *backup.Manifest) (err error) {
	dir := filepath.Join(m.work, catalogWork)
	if err := m.o.Host.FS.RemoveAll(dir); err != nil {
		return err
	}
	store, err := pebblekv.Open(pebblekv.DefaultConfig(dir), pebblekv.Deps{FS: m.o.Host.FS, Logger: m.o.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	var ops []kv.Op
	write := func() error {
		for _, part := range kv.SplitOps(ops, 0) {
			if _, err := store.Commit(ctx, part...); err != nil {
				return err
			}
		}
		ops = ops[:0]
		return nil
	}
	err = b.ReadEntries(ctx, manifest, func(e kv.Entry) error {
		if ops = append(ops, kv.Put(e.Key, append([]byte(nil), e.Value...))); len(ops) < kv.MaxOps {
			return nil
		}
		return write()
	})
	if err == nil {
		err = write()
	}
	if err != nil {
		return err
	}
	state, err := controlplane.ReadState(ctx, store)
	if err != nil {
		return err
	}
	if state.NextID == 0 {
		state.NextID = 1 // no category was ever made
	}
	// The logs were copied first, at the watermark or later. A category that was there before, and is not in the control store, was deleted.
	m.known = &recovery.Catalog{Categories: state.Categories, Dropped: state.Dropped, NextID: state.NextID, SavedAt: manifest.Watermark, Older: true}
	return nil
}

// closeBase closes the logs of the backup. Repeating it is harmless.
func (m *folderBuilder) closeBase() error {
	if m.base == nil {
		return nil
	}
	err := m.base.Close()
	m.base = nil
	return err
}
