package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	"scribe/internal/base/durable"
	"scribe/internal/base/entropy"
	"scribe/internal/base/metrics"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/backup"
	"scribe/storage/blob"
	"scribe/storage/kv"
	"scribe/storage/metalog"
)

// backupMaker makes backups of the cell's metadata: of the logs of this process's engine or replica first, and of the control store then. So every category whose
// messages are in the logs is in the categories, or was deleted.
type backupMaker struct {
	a      *App
	random *entropy.Source
	// turn is held by the one backup that is made.
	turn chan struct{}
	// life ends when the process stops.
	life context.Context //nolint:containedctx // of calls that go on when their callers have left
	end  context.CancelFunc
	work sync.WaitGroup

	newest   prometheus.Gauge
	bytes    prometheus.Gauge
	interval prometheus.Gauge
	made     *prometheus.CounterVec
	set      *metrics.Set
}

var _ rpc.BackupService = (*backupMaker)(nil)

// Results of a backup, in metrics.
const (
	backupMade   = "ok"
	backupFailed = "failed"
)

// startBackups serves BackupService, and makes backups when they are due.
func (a *App) startBackups(context.Context) error {
	m := &backupMaker{a: a, random: a.opts.Host.Random.Named("backups"), turn: make(chan struct{}, 1), set: metrics.NewSet("scribe_backup_")}
	m.newest = m.set.Gauge("newest_time_seconds", "When the newest backup was made, Unix time; 0 while none is known.")
	m.bytes = m.set.Gauge("newest_bytes", "The size of the newest backup that this process made.")
	m.interval = m.set.Gauge("interval_seconds", "How often the process makes a backup; 0 = only when it is asked to.")
	m.made = m.set.CounterOf("made_total", "Backups by result.", "result", backupMade, backupFailed)
	m.interval.Set(a.cfg.Backup.Every.Seconds())
	if err := m.set.Register(a.registry); err != nil {
		return err
	}
	if err := a.removeBackupWork(); err != nil {
		return fmt.Errorf("remove what is left of an unfinished backup: %w", err)
	}
	m.life, m.end = context.WithCancel(context.Background())
	a.onStop("backups", func(context.Context) error {
		m.end()
		m.work.Wait()
		m.set.Unregister()
		return nil
	})
	if a.cfg.Backup.Every > 0 {
		m.work.Go(m.keepSchedule)
	}
	a.parts.backups = m
	a.provideServices(rpc.Services{Backup: m})
	return nil
}

// CreateBackup implements rpc.BackupService.
func (m *backupMaker) CreateBackup(ctx context.Context, _ *scribev1.CreateBackupRequest) (*scribev1.CreateBackupResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(m.life, cancel)()
	info, err := m.makeBackup(ctx)
	switch {
	case err == nil:
	case errors.Is(err, errNoBackups):
		return nil, rpc.Errorf(scribev1.Reason_REASON_MISSING, "no backup was made: %v", err)
	case errors.Is(err, blob.ErrUnavailable), errors.Is(err, backup.ErrBusy), errors.Is(err, metalog.ErrNotLeader), ctx.Err() != nil, errors.Is(err, context.DeadlineExceeded):
		return nil, rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "no backup was made: %v", err)
	default:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("no backup was made: %w", err))
	}
	return &scribev1.CreateBackupResponse{
		Name: info.Name, Location: m.a.cfg.backupPlace(), Created: info.Manifest.Created, Files: uint64(len(info.Manifest.Logs) + len(info.Manifest.Control)),
		Bytes: info.Manifest.Bytes(), StoredBytes: info.Stored,
	}, nil
}

// openBackups opens where backups are kept; the caller closes it with done.
func (m *backupMaker) openBackups(ctx context.Context) (b *backup.Backups, done func() error, err error) {
	a, store := m.a, m.a.parts.blobs
	done = func() error { return nil }
	if a.cfg.Backup.To != "" {
		to, err := a.cfg.BackupBlobs()
		if err != nil {
			return nil, nil, err
		}
		if store, err = a.opts.Host.OpenBlobs(ctx, to); err != nil {
			return nil, nil, fmt.Errorf("store of backups %s: %w", a.cfg.backupPlace(), err)
		}
		done = store.Close
	}
	if store == nil {
		return nil, nil, errNoBackups
	}
	return backup.New(store, backup.Options{FS: a.opts.Host.FS, Now: a.opts.Host.Now, Random: m.random}), done, nil
}

// makeBackup makes a backup, after the one that is being made.
func (m *backupMaker) makeBackup(ctx context.Context) (info backup.Info, err error) {
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return info, ctx.Err()
	}
	defer func() { <-m.turn }()
	start := time.Now()
	defer func() {
		if err != nil {
			m.made.WithLabelValues(backupFailed).Inc()
		}
	}()
	b, done, err := m.openBackups(ctx)
	if err != nil {
		return info, err
	}
	defer func() { err = errors.Join(err, done()) }()
	if info, err = m.copyMetadata(ctx, b); err != nil {
		return info, err
	}
	m.made.WithLabelValues(backupMade).Inc()
	m.newest.Set(float64(info.Manifest.Created) / 1e6)
	m.bytes.Set(float64(info.Manifest.Bytes()))
	m.a.log.InfoContext(ctx, "backup made", "name", info.Name, "bytes", info.Manifest.Bytes(), "stored_bytes", info.Stored, "took", time.Since(start))
	return info, nil
}

// copyMetadata copies logs and control store, and stores the copies.
func (m *backupMaker) copyMetadata(ctx context.Context, b *backup.Backups) (info backup.Info, err error) {
	a := m.a
	control := filepath.Join(a.cfg.Data, backupWork)
	defer func() { err = errors.Join(err, a.opts.Host.FS.RemoveAll(control)) }()
	err = a.parts.engine.WithCopy(ctx, func(logs string, watermark int64) error {
		revision, err := copyControl(ctx, a.parts.controlStore, a.opts.Host.FS, control)
		if err != nil {
			return fmt.Errorf("copy the control store: %w", err)
		}
		info, err = b.Create(ctx, backup.Manifest{
			Created: a.opts.Host.unixMicro(), Watermark: watermark, Revision: revision, Store: a.store.identity(), Program: a.opts.Version,
		}, logs, control)
		return err
	})
	return info, err
}

// controlTries is how often the control store is read again when etcd has forgotten the revision meanwhile.
const controlTries = 5

// copyControl writes the entries of a control store, all of one revision, into files of a folder, which it makes.
func copyControl(ctx context.Context, store kv.Store, fsys vfs.FS, dir string) (revision uint64, err error) {
	for try := 1; ; try++ {
		if err := errors.Join(fsys.RemoveAll(dir), fsys.MkdirAll(dir, 0o700)); err != nil {
			return 0, err
		}
		files := 0
		w := backup.EntriesWriter{Write: func(content []byte) error {
			files++
			f, err := fsys.Create(filepath.Join(dir, fmt.Sprintf("control-%08d", files)), vfs.WriteCategoryUnspecified)
			if err != nil {
				return err
			}
			_, err = f.Write(content)
			return errors.Join(err, f.Close())
		}}
		revision, err := kv.ReadAll(ctx, store, w.Add)
		if err == nil {
			return revision, w.Flush()
		}
		if !errors.Is(err, kv.ErrCompacted) || try == controlTries {
			return 0, err
		}
	}
}

const (
	// backupLook is how often it is looked whether a backup is due, and how long after a failure the next try is.
	backupLook = 5 * time.Minute
	// backupSpread is how long processes of a cell wait at most so that not all make the backup that is due.
	backupSpread = time.Minute
)

// keepSchedule makes a backup whenever the newest one is old enough, and deletes old ones then.
func (m *backupMaker) keepSchedule() {
	random := m.a.opts.Host.Random.Named("schedule of backups")
	wait := random.Duration(min(backupSpread, m.a.cfg.Backup.Every/10))
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-m.life.Done():
			timer.Stop()
			return
		}
		due, err := m.makeDue(m.life)
		if err != nil && m.life.Err() == nil {
			m.a.log.Warn("no backup was made: trying again", "error", err, "after", backupLook)
		}
		wait = min(backupLook, max(due, 0)) + random.Duration(min(backupSpread, m.a.cfg.Backup.Every/10))
		if err != nil {
			wait += backupLook
		}
	}
}

// makeDue makes a backup if one is due, and returns in how long the next one is. Other processes of the cell do the same: who looks finds the newest of all.
func (m *backupMaker) makeDue(ctx context.Context) (due time.Duration, err error) {
	b, done, err := m.openBackups(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, done()) }()
	every, identity := m.a.cfg.Backup.Every, m.a.store.identity()
	newest, _, err := b.Latest(ctx, identity, 0)
	switch {
	case err == nil:
		m.newest.Set(float64(newest.Manifest.Created) / 1e6)
		if age := m.a.opts.Host.Now().Sub(time.UnixMicro(newest.Manifest.Created)); age < every {
			return every - age, nil
		}
	case !errors.Is(err, blob.ErrNotFound):
		return 0, err
	}
	if _, err := m.makeBackup(ctx); err != nil {
		return 0, err
	}
	deleted, err := b.Prune(ctx, identity, m.a.cfg.Backup.Keep)
	if len(deleted) > 0 {
		m.a.log.Info("old backups deleted", "names", deleted, "kept", m.a.cfg.Backup.Keep)
	}
	if errors.Is(err, backup.ErrBusy) { // another process makes one: the next time
		err = nil
	}
	return every, err
}

// backupWork is the folder in the data folder in which a backup of the control store is made.
const backupWork = "backup.making"

// removeBackupWork removes what a process left in its data folder when it was killed while it made a backup.
func (a *App) removeBackupWork() error {
	dir := filepath.Join(a.cfg.Data, backupWork)
	if _, err := a.opts.Host.FS.Stat(dir); err != nil {
		return nil //nolint:nilerr // it is not there
	}
	return errors.Join(a.opts.Host.FS.RemoveAll(dir), durable.SyncFolder(a.opts.Host.FS, a.cfg.Data))
}
