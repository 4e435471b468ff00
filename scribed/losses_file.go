package scribed

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/durable"
	"scribe/internal/format/loss"
)

// lossFile is the name of the file, in the spool's folder, of losses that readers were not told of: loss reports, one frame after another
// (docs/format/loss.md). What was dropped while the upstream was away is known after a restart, whether scribed was closed or killed; killed, it
// forgets at most what it dropped within ReportLosses.
const lossFile = "losses"

// maxLossFile bounds what is read of it: more than a ledger may have pending.
const maxLossFile = 2 * loss.MaxSums * loss.MaxPayload

// lossKeeper writes the file. The semaphore Scribed.reporting guards it.
type lossKeeper struct {
	path  string // empty = none
	saved string // its content
}

// restoreLosses makes pending what an earlier run could not report. A damaged file costs what is damaged.
func (s *Scribed) restoreLosses() {
	if s.spool == nil || s.mu.queue.losses == nil {
		return
	}
	s.keeper.path = s.fs().PathJoin(s.cfg.Spool.Dir, lossFile)
	kept, err := readLossFile(s.fs(), s.keeper.path)
	if err == nil && len(kept) > 0 {
		err = s.mu.queue.losses.Restore(kept)
	}
	if err != nil {
		s.deps.Logger.Error("losses of an earlier run can't be reported as a whole", slog.String("file", s.keeper.path), slog.Any("error", err))
	}
	s.keeper.saved = string(kept)
}

func readLossFile(fsys vfs.FS, path string) (kept []byte, err error) {
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if kept, err = io.ReadAll(io.LimitReader(f, maxLossFile+1)); err == nil && len(kept) > maxLossFile {
		return nil, fmt.Errorf("it has more than %d bytes", maxLossFile)
	}
	return kept, err
}

// keepLosses brings the file up to date. The caller has the semaphore.
func (s *Scribed) keepLosses() {
	if s.keeper.path == "" {
		return
	}
	s.mu.Lock()
	s.readBacklog()
	kept := s.mu.queue.losses.AppendKept(nil, s.now())
	s.mu.Unlock()
	if string(kept) == s.keeper.saved {
		return
	}
	err := durable.ReplaceFile(s.fs(), s.keeper.path, func(w io.Writer) error {
		_, err := w.Write(kept)
		return err
	})
	if err != nil {
		s.throttled.warn(s.ctx, "losses", "losses not kept: a restart forgets them", slog.String("file", s.keeper.path), slog.Any("error", err))
		return
	}
	s.keeper.saved = string(kept)
}

// keepLastLosses brings the file up to date when nothing is reported any more.
func (s *Scribed) keepLastLosses() {
	if s.mu.queue.losses == nil {
		return
	}
	s.reporting <- struct{}{}
	s.keepLosses()
	<-s.reporting
}

// fs is the file system of the spool.
func (s *Scribed) fs() vfs.FS {
	if s.deps.FS == nil {
		return vfs.Default
	}
	return s.deps.FS
}
