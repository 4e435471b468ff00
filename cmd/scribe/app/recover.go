package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/cmd/scribe/recovery"
	"scribe/controlplane"
	"scribe/controlplane/group"
	"scribe/internal/base/config"
	"scribe/internal/base/durable"
	"scribe/internal/cell/catalog"
	"scribe/retention"
	"scribe/storage/blob"
	"scribe/storage/kv/pebblekv"
	"scribe/storage/metalog/pebblelog"
)

// ErrExists means that the folder to recover into exists and is not empty.
var ErrExists = errors.New("recovery never changes an existing folder")

// ErrNothing means that there is no blob to recover from.
var ErrNothing = errors.New("there are no blobs to recover from")

// RecoverOptions are the options of Recover.
type RecoverOptions struct {
	// To is the data folder to create. It must be missing or empty. Until it is complete, its name has the suffix ".recovering".
	To string
	// Catalog is a copy of the categories: a file that a role keeps, or the folder of a control store that no process uses. Empty for none.
	Catalog string
	// Backup is the name of a backup to begin with, or LatestBackup, where the configuration keeps backups; empty for none. It has the categories, so there is no
	// Catalog then.
	Backup string
	// Until, if it is not zero, is the moment to restore: what is later has placeholders.
	Until time.Time
	// DryRun builds nothing, and does not keep what it read.
	DryRun bool
	// Workers is how many footers are read at a time; 0 for the default.
	Workers int
	Logger  *slog.Logger
	// Host is the machine: its file system and its way to the blobs.
	Host Host
	// Progress and Found are those of recovery.Deps; either may be nil.
	Progress func(phase string, done int64)
	Found    func(recovery.Finding) error
	// Step is called before each step that is durable. Its error ends the recovery there, as a crash would.
	Step func(name string) error
}

// Recovered is the result of Recover.
type Recovered struct {
	recovery.Report
	// Backup is the backup with which the folder begins; nil without one.
	Backup *RestoredBackup
	// Boundary is the engine's: no older blob can be committed any more. Unix microseconds.
	Boundary int64
	// Claims are keys in the blob store that keep retention from working until it adopts them: the newest of each cell.
	Claims []string
}

// restoreSuffix is workSuffix where a recovery begins with a backup.
const restoreSuffix = ".restoring"

// workSuffix is the suffix of the folder in which a recovery works, next to the folder that it creates.
const workSuffix = ".recovering"

// Recover builds a data folder with metadata logs and categories from the blobs of c. It may be interrupted at any time and called again: only
// a complete folder gets its final name. If it was interrupted while it read blobs, it resumes there.
func Recover(ctx context.Context, c Config, o RecoverOptions) (_ *Recovered, err error) {
	if err := c.ValidateBlobs(); err != nil {
		return nil, err
	}
	if o.Step == nil {
		o.Step = func(string) error { return nil }
	}
	o.Host = o.Host.withDefaults()
	work, release, err := workFolder(o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, release()) }()
	known, err := readCatalog(ctx, o, filepath.Join(work, catalogWork))
	if err != nil {
		return nil, err
	}
	store, err := o.Host.OpenBlobs(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("blob store: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m := &folderBuilder{o: o, work: work, data: filepath.Join(work, "data"), store: store, known: known, source: c.blobSource()}
	m.lag = c.Retention.Grace + c.Retention.BoundaryStep + time.Hour
	if o.Backup != "" {
		if err := m.fetchBackup(ctx, &c); err != nil {
			return nil, fmt.Errorf("restore: %w", err)
		}
	}
	return m.buildFolder(ctx)
}

// catalogWork is the subfolder of the folder to work in with a copy of the control store.
const catalogWork = "catalog"

// blobSource names the store of payloads.
func (c *Config) blobSource() string {
	if c.Blobs.Kind == "file" {
		if abs, err := filepath.Abs(c.BlobPath()); err == nil {
			return abs
		}
		return c.BlobPath()
	}
	return fmt.Sprintf("%s/%s/%s", c.Blobs.S3.Endpoint, c.Blobs.S3.Bucket, c.Blobs.S3.Prefix)
}

// workFolder creates and locks the folder to work in.
func workFolder(o RecoverOptions) (work string, release func() error, err error) {
	fsys := o.Host.FS
	if o.DryRun {
		work = filepath.Join(os.TempDir(), "scribe-recover-"+o.Host.Random.Text())
		return work, func() error { return fsys.RemoveAll(work) }, recoverError(fsys.MkdirAll(work, 0o700))
	}
	switch names, err := fsys.List(o.To); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", nil, fmt.Errorf("recover into %s: %w", o.To, err)
	case len(names) > 0:
		return "", nil, fmt.Errorf("%s is not empty: %w: give another folder", o.To, ErrExists)
	}
	if work = filepath.Clean(o.To) + workSuffix; o.Backup != "" {
		work = filepath.Clean(o.To) + restoreSuffix
	}
	release, err = lockData(fsys, work)
	return work, release, err
}

// readCatalog reads a copy of the categories. A control store is copied first: to open one writes to it.
func readCatalog(ctx context.Context, o RecoverOptions, scratch string) (_ *recovery.Catalog, err error) {
	if o.Catalog == "" {
		return nil, nil
	}
	fsys := o.Host.FS
	info, err := fsys.Stat(o.Catalog)
	isFile := err == nil && !info.IsDir()
	if data := filepath.Dir(filepath.Clean(o.Catalog)); !isFile {
		// A control store beside the file of a node is from before the cell moved.
		if f, ferr := readNodeFile(fsys, data); ferr == nil && f != nil && f.Ready && !f.Detached {
			return nil, fmt.Errorf("catalog %s: %s is the folder of a cell whose categories are in etcd: give the newest file %s of any of its processes", o.Catalog, data, filepath.Join(data, "catalog"))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("catalog %s: %w", o.Catalog, WithoutPath(err))
	}
	if isFile {
		c, err := catalog.ReadCopy(fsys, o.Catalog)
		if err != nil {
			return nil, err
		}
		tenants, err := catalog.ReadTenants(fsys, o.Catalog)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("catalog %s: the quotas of owners and prefixes: %w: without the file, recovery leaves them out", o.Catalog, err)
		}
		return &recovery.Catalog{Categories: c.Categories, Tenants: tenants, SavedAt: c.SavedAt}, nil
	}
	if err = fsys.RemoveAll(scratch); err == nil {
		_, err = vfs.Clone(fsys, fsys, o.Catalog, scratch)
	}
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	store, err := pebblekv.Open(pebblekv.DefaultConfig(scratch), pebblekv.Deps{FS: fsys, Logger: o.Logger})
	if err != nil {
		return nil, fmt.Errorf("catalog: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	s, err := controlplane.ReadState(ctx, store)
	if err != nil {
		return nil, fmt.Errorf("catalog %s: %w", o.Catalog, err)
	}
	if s.NextID == 0 {
		return nil, fmt.Errorf("catalog %s: no control plane has ever written there", o.Catalog)
	}
	return &recovery.Catalog{Categories: s.Categories, Dropped: s.Dropped, NextID: s.NextID}, nil
}

// folderBuilder builds a data folder.
type folderBuilder struct {
	o          RecoverOptions
	work, data string
	source     string
	store      blob.Store
	known      *recovery.Catalog
	// backup is the one with which the folder begins, base its logs; nil without one.
	backup     *RestoredBackup
	base       *pebblelog.Copy
	quarantine []byte
	// lag is how long ago the boundary of retention's claim was the present at most, while retention runs. An hour is for clocks.
	lag time.Duration
}

func (m *folderBuilder) buildFolder(ctx context.Context) (_ *Recovered, err error) {
	defer func() { err = errors.Join(err, m.closeBase()) }()
	// The folder of an interrupted recovery is useless, but what it read is kept.
	if err := m.o.Host.FS.RemoveAll(m.data); err != nil {
		return nil, recoverError(err)
	}
	boundary, claims, err := m.listClaims(ctx)
	if err != nil {
		return nil, err
	}
	out := &Recovered{Claims: claims, Backup: m.backup}
	var sink recovery.Sink
	var logs *pebblelog.Restorer
	if !m.o.DryRun {
		if err := m.o.Step("logs"); err != nil {
			return nil, err
		}
		logs, err = pebblelog.NewRestorer(filepath.Join(m.data, "metalog"), pebblelog.Options{FS: m.o.Host.FS})
		if err != nil {
			return nil, err
		}
		defer logs.Close() //nolint:errcheck // Finish closes it, too, and its error counts
		sink = logs
	}
	report, err := m.runRecovery(ctx, boundary, sink)
	if err != nil {
		return nil, err
	}
	if err := m.closeBase(); err != nil {
		return nil, err
	}
	if m.backup == nil && report.Blobs == 0 && report.Damaged == 0 && report.Newer == 0 {
		return nil, fmt.Errorf("%s: %w", m.source, ErrNothing)
	}
	out.Report = *report
	// Nothing that was put before the recovery began can be committed by a writer that does not know of it.
	out.Boundary = max(boundary, report.Clock)
	if m.o.DryRun {
		return out, nil
	}
	return out, m.finishFolder(ctx, logs, out)
}

// runRecovery recovers into sink, with the boundary of the newest claim of retention; 0 without one.
func (m *folderBuilder) runRecovery(ctx context.Context, boundary int64, sink recovery.Sink) (*recovery.Report, error) {
	cfg := config.Defaults[recovery.Config]()
	if boundary != 0 {
		cfg.TrimmedUntil = boundary + m.lag.Microseconds()
	}
	cfg.Scratch, cfg.Source, cfg.Catalog = filepath.Join(m.work, "scratch"), m.source, m.known
	cfg.Workers = cmp.Or(m.o.Workers, cfg.Workers)
	deps := recovery.Deps{FS: m.o.Host.FS, Blobs: m.store, Now: m.o.Host.Now, Progress: m.o.Progress, Found: m.recordFinding}
	if m.backup != nil {
		cfg.Source += ", with backup " + m.backup.Name
		deps.Base, deps.Watermark = m.base, m.backup.Watermark
		if !m.o.Until.IsZero() {
			cfg.Until = m.o.Until.UnixMicro()
		}
	}
	return recovery.Run(ctx, cfg, deps, sink)
}

// recordFinding keeps the findings that people must look at, and passes each on.
func (m *folderBuilder) recordFinding(f recovery.Finding) error {
	if f.Kind != recovery.FindingCategory {
		const enough = 64 << 20
		line, err := json.Marshal(findingLine(f))
		if err != nil {
			return err
		}
		if len(m.quarantine) < enough {
			m.quarantine = append(append(m.quarantine, line...), '\n')
		}
	}
	if m.o.Found != nil {
		return m.o.Found(f)
	}
	return nil
}

// listClaims returns the newest claim of retention in the store of each cell, and the boundary up to which it deleted blobs.
func (m *folderBuilder) listClaims(ctx context.Context) (boundary int64, keys []string, err error) {
	for info, err := range m.store.List(ctx, retention.ClaimRoot) {
		if err != nil {
			return 0, nil, fmt.Errorf("list the claims of retention: %w", err)
		}
		if t, ok := retention.ClaimBoundary(info.Key); ok { // keys are in order
			boundary = max(boundary, t)
			if n := len(keys); n > 0 && path.Dir(keys[n-1]) == path.Dir(info.Key) {
				keys[n-1] = info.Key
			} else {
				keys = append(keys, info.Key)
			}
		}
	}
	return boundary, keys, nil
}

// finishFolder makes the folder durable, then gives it its final name.
func (m *folderBuilder) finishFolder(ctx context.Context, logs *pebblelog.Restorer, out *Recovered) error {
	for _, step := range []struct {
		name string
		run  func() error
	}{
		{"finish logs", func() error {
			return logs.Finish(out.Boundary, out.Clock, pebblelog.Origin{LSN: out.Origin, End: out.NextID})
		}},
		{"categories", func() error { return m.writeCategories(ctx, out) }},
		{"findings", func() error {
			return recoverError(durable.ReplaceFile(m.o.Host.FS, filepath.Join(m.data, "recovery.jsonl"), func(w io.Writer) error {
				_, err := w.Write(m.quarantine)
				return err
			}))
		}},
		{"rename", func() error { return recoverError(m.renameFolder()) }},
		{"clean", func() error { return m.o.Host.FS.RemoveAll(m.work) }},
	} {
		if err := m.o.Step(step.name); err != nil {
			return err
		}
		if err := step.run(); err != nil {
			return err
		}
	}
	return nil
}

// recoverError says for an error of the file system what it came of.
func recoverError(err error) error {
	if err != nil {
		err = fmt.Errorf("recover: %w", err)
	}
	return err
}

// renameFolder gives the folder its final name.
func (m *folderBuilder) renameFolder() error {
	fsys := m.o.Host.FS
	if err := fsys.Remove(m.o.To); err != nil && !errors.Is(err, fs.ErrNotExist) { // an empty folder
		return err
	}
	if err := errors.Join(durable.SyncFolder(fsys, m.data), fsys.Rename(m.data, m.o.To)); err != nil {
		return err
	}
	return durable.SyncFolder(fsys, filepath.Dir(filepath.Clean(m.o.To)))
}

// writeCategories writes the control store.
func (m *folderBuilder) writeCategories(ctx context.Context, out *Recovered) (err error) {
	store, err := pebblekv.Open(pebblekv.DefaultConfig(filepath.Join(m.data, "control")), pebblekv.Deps{FS: m.o.Host.FS, Logger: m.o.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	state := controlplane.StoredCategories{Categories: out.Categories, Dropped: out.Dropped, NextID: out.NextID}
	if m.known != nil {
		state.Tenants = m.known.Tenants
	}
	err = controlplane.WriteState(ctx, store, state)
	if err != nil || m.known == nil || m.known.NextID == 0 {
		return err
	}
	before, err := pebblekv.Open(pebblekv.DefaultConfig(filepath.Join(m.work, catalogWork)), pebblekv.Deps{FS: m.o.Host.FS, Logger: m.o.Logger})
	if err != nil {
		return fmt.Errorf("catalog: %w", err)
	}
	var edit func(key string, value []byte) []byte
	if m.backup != nil {
		edit = group.RestoreValue
	}
	return errors.Join(controlplane.CopyRest(ctx, before, store, edit), before.Close())
}

// recoveryLine is a finding of a recovery as JSON.
type recoveryLine struct {
	Kind     recovery.FindingKind `json:"kind"`
	Blob     string               `json:"blob,omitempty"`
	Bytes    int64                `json:"bytes,omitempty"`
	Category string               `json:"category,omitempty"`
	Shard    string               `json:"shard,omitempty"`
	From     uint64               `json:"from,omitempty"`
	To       uint64               `json:"to,omitempty"`
	Reason   string               `json:"reason,omitempty"`
	Contents []recovery.Contents  `json:"contents,omitempty"`
}

// findingLine returns the line of a finding.
func findingLine(f recovery.Finding) recoveryLine {
	line := recoveryLine{
		Kind: f.Kind, Blob: f.Key, Bytes: f.Size, Category: f.Category, From: uint64(f.From), To: uint64(f.To), Reason: f.Reason, Contents: f.Contents,
	}
	if f.From != 0 {
		line.Shard = f.Shard.String()
	}
	return line
}
