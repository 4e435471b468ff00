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

// The names of the files, in the spool's folder, of what nobody was told of: loss reports (docs/format/loss.md) and rows of delivery counts
// (docs/format/delivery.md), one frame after another. What happened while the upstream was away is known after a restart, whether scribed was
// closed or killed; killed, it forgets at most what happened within ReportLosses.
const (
	lossFile     = "losses"
	deliveryFile = "delivery"
)

// maxLossFile and maxDeliveryFile bound what is read of them: more than a ledger may have pending.
const (
	maxLossFile     = 2 * loss.MaxSums * loss.MaxPayload
	maxDeliveryFile = 64 << 20
)

// reportKeeper writes one of the files. The semaphore Scribed.reporting guards it.
type reportKeeper struct {
	path  string // empty = none
	saved string // its content
}

// restoreReports makes pending what an earlier run could not report. A damaged file costs what is damaged.
func (s *Scribed) restoreReports() {
	if l := s.mu.queue.losses; l != nil {
		s.restoreFile(&s.kept, lossFile, maxLossFile, l.Restore)
	}
	if l := s.mu.queue.delivery; l != nil {
		s.restoreFile(&s.keptDelivery, deliveryFile, maxDeliveryFile, l.Restore)
	}
}

func (s *Scribed) restoreFile(k *reportKeeper, name string, most int64, restore func([]byte) error) {
	k.path = s.fs().PathJoin(s.cfg.Spool.Dir, name)
	kept, err := readReportFile(s.fs(), k.path, most)
	if err == nil && len(kept) > 0 {
		err = restore(kept)
	}
	if err != nil {
		s.deps.Logger.Error("reports of an earlier run can't be sent as a whole", slog.String("file", k.path), slog.Any("error", err))
	}
	k.saved = string(kept)
}

func readReportFile(fsys vfs.FS, path string, most int64) (kept []byte, err error) {
	f, err := fsys.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if kept, err = io.ReadAll(io.LimitReader(f, most+1)); err == nil && int64(len(kept)) > most {
		return nil, fmt.Errorf("it has more than %d bytes", most)
	}
	return kept, err
}

// keepLosses brings the file of loss reports up to date, if there is one.
func (s *Scribed) keepLosses() {
	if s.kept.path == "" {
		return
	}
	s.mu.Lock()
	s.readBacklog()
	kept := s.mu.queue.losses.AppendKept(nil, s.now())
	s.mu.Unlock()
	s.keepFile(&s.kept, kept)
}

// keepDelivery is keepLosses for delivery counts.
func (s *Scribed) keepDelivery() {
	if s.keptDelivery.path == "" {
		return
	}
	s.mu.Lock()
	s.readBacklog()
	kept := s.mu.queue.delivery.AppendKept(nil, s.now())
	s.mu.Unlock()
	s.keepFile(&s.keptDelivery, kept)
}

func (s *Scribed) keepFile(k *reportKeeper, kept []byte) {
	if string(kept) == k.saved {
		return
	}
	err := durable.ReplaceFile(s.fs(), k.path, func(w io.Writer) error {
		_, err := w.Write(kept)
		return err
	})
	if err != nil {
		s.throttled.warn(s.ctx, "reports", "reports not kept: a restart forgets them", slog.String("file", k.path), slog.Any("error", err))
		return
	}
	k.saved = string(kept)
}

// keepReports brings both files up to date. It is called before anything is sent, which may take as long as the time between two reports. The caller
// has the semaphore.
func (s *Scribed) keepReports() {
	s.keepLosses()
	s.keepDelivery()
}

// keepLastReports brings the files up to date when nothing is reported any more.
func (s *Scribed) keepLastReports() {
	s.reporting <- struct{}{}
	s.keepReports()
	<-s.reporting
}

// fs is the file system of the spool.
func (s *Scribed) fs() vfs.FS {
	if s.deps.FS == nil {
		return vfs.Default
	}
	return s.deps.FS
}
