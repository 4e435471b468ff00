package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"scribe/producer"
	"scribe/scribed/inputs"
)

// followedFile is a file that is followed.
type followedFile struct {
	id fileID
	readState

	at       string // its current path; "" if it has no known name
	category string
	extra    []producer.Attribute
	// skipping says that the position is inside a line whose rest is discarded.
	skipping bool

	file *os.File // nil while it is closed
	// size and modified are from the last scan, changed is when a scan last found a change.
	size     int64
	modified time.Time
	changed  time.Time
	// matched says that the last scan found it under a name that the globs match. Without one, it is read to its end and then
	// left.
	matched bool
	removed bool // it has no name left
	seen    time.Time

	// failures counts consecutive failures; notBefore is when the next attempt may be.
	failures  int
	notBefore time.Time
}

// readState says how far a file was read.
type readState struct {
	// path is where the file was first seen: category and attributes come from it.
	path string
	// position is where the next message begins: everything before it is delivered. prints are the fingerprints up to it.
	position int64
	prints   fingerprints
}

// noteInfo updates the source from the file system's information.
func (s *followedFile) noteInfo(info os.FileInfo, now time.Time) {
	if info.Size() != s.size || !info.ModTime().Equal(s.modified) {
		s.size, s.modified, s.changed = info.Size(), info.ModTime(), now
	}
	s.removed = linkCount(info) == 0
	s.seen = now
}

func (s *followedFile) positionEntry() savedPosition {
	return savedPosition{File: s.id, Path: s.path, Position: s.position, Skipping: s.skipping, Prints: s.prints, Seen: s.seen.UnixMicro()}
}

// openFile opens a file at its current path. It fails if another file has taken its place, which the next scan finds.
func (f *Follower) openFile(s *followedFile) error {
	if s.file != nil {
		return nil
	}
	if s.at == "" {
		return fmt.Errorf("%s has no name any more", s.path)
	}
	file, id, err := openRegular(s.at)
	if err != nil {
		return err
	}
	if id != s.id {
		return errors.Join(fmt.Errorf("%s is another file now", s.at), file.Close())
	}
	s.file = file
	f.opened++
	return nil
}

func (f *Follower) closeFile(s *followedFile) {
	if s.file != nil {
		_ = s.file.Close() // read only
		s.file = nil
		f.opened--
	}
}

// pending reports whether there are bytes to read.
func (s *followedFile) pending() bool { return s.size > s.position }

// deliverTimeout bounds one delivery: other files are read while the agent has no capacity for this file's category.
const deliverTimeout = 30 * time.Second

// readFollowed delivers the next messages of a file, at most a buffer of them, and reports whether it made progress.
func (f *Follower) readFollowed(ctx context.Context, s *followedFile, now time.Time) (progress bool) {
	if now.Before(s.notBefore) {
		return false
	}
	progress, err := f.readOnce(ctx, s, now)
	if f.opened > f.cfg.MaxOpen && s.matched { // a file without a matching name would not be found again
		f.closeFile(s)
	}
	if err == nil {
		s.failures = 0
		return progress
	}
	if ctx.Err() != nil {
		return false
	}
	f.metrics.failures.Inc()
	s.failures++
	s.notBefore = now.Add(min(firstPause<<min(s.failures-1, 10), longestPause))
	if s.failures == 1 {
		f.log.WarnContext(ctx, "reading a file failed: retrying", "path", s.path, "error", err)
	}
	return false
}

// Pauses of a file after failures.
const (
	firstPause   = 250 * time.Millisecond
	longestPause = 30 * time.Second
)

func (f *Follower) readOnce(ctx context.Context, s *followedFile, now time.Time) (progress bool, err error) {
	if err := f.openFile(s); err != nil {
		return false, err
	}
	n, err := s.file.ReadAt(f.buf, s.position)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	b := f.buf[:n]
	// Silence completes a multi-line message, and the last line of a file that is no longer written to.
	quiet := n < len(f.buf) && now.Sub(s.changed) >= f.cfg.MultilineWait.Std()
	last := quiet && !s.matched || s.removed && n < len(f.buf)
	c := f.splitter.nextMessages(f.messages[:0], b, s.skipping, quiet, last)
	f.messages = c.messages
	if c.consumed == 0 {
		return false, nil
	}
	if err := f.writeMessages(ctx, s, c.messages); err != nil {
		return false, err
	}
	f.countLines(c)
	s.position += int64(c.consumed)
	s.skipping = c.skipping
	f.dirty = true
	return true, f.updateFingerprints(s, b[:c.consumed])
}

// updateFingerprints updates the fingerprints of a source; read are the last bytes before its position.
func (f *Follower) updateFingerprints(s *followedFile, read []byte) (err error) {
	n := int64(f.cfg.Fingerprint)
	if want := min(s.position, n); s.prints.Head.Len != want {
		if s.prints.Head, err = takeFingerprint(s.file, 0, want, f.scratch); err != nil {
			return f.ignoreTruncation(s, err)
		}
	}
	if int64(len(read)) >= n {
		// Taken from memory: the file may be truncated at any time.
		s.prints.Tail, err = takeFingerprint(strings.NewReader(string(read[int64(len(read))-n:])), 0, n, f.scratch)
		s.prints.Tail.Offset = s.position - n
		return err
	}
	from := max(s.position-n, 0)
	s.prints.Tail, err = takeFingerprint(s.file, from, s.position-from, f.scratch)
	return f.ignoreTruncation(s, err)
}

// ignoreTruncation ignores the early end of a file that was truncated while it was read: the next scan finds it.
func (f *Follower) ignoreTruncation(s *followedFile, err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) {
		s.prints = fingerprints{Tail: fingerprint{Offset: s.position - 1, Len: 1}} // matches no existing content
		return nil
	}
	return err
}

// writeMessages writes messages to the agent.
func (f *Follower) writeMessages(ctx context.Context, s *followedFile, messages []producer.Message) error {
	if len(messages) == 0 {
		return nil
	}
	for i := range messages {
		messages[i].Attributes = s.extra
	}
	ctx, cancel := context.WithTimeout(ctx, deliverTimeout)
	defer cancel()
	err := f.agent.Write(ctx, s.category, messages...)
	lost, final := f.metrics.CountWrite(messages, err)
	if !final {
		return err
	}
	if lost > 0 {
		f.metrics.Dropped.WithLabelValues(inputs.DropRefused).Add(float64(lost))
		f.log.WarnContext(ctx, "messages dropped: refused by the agent", "path", s.path, "category", s.category, "messages", lost, "error", err)
	}
	return nil
}

func (f *Follower) countLines(c cutLines) {
	f.metrics.long.WithLabelValues(longSplit).Add(float64(c.split))
	f.metrics.long.WithLabelValues(longTruncate).Add(float64(c.truncated))
	f.metrics.long.WithLabelValues(longDrop).Add(float64(c.dropped))
	f.metrics.Dropped.WithLabelValues(dropLong).Add(float64(c.dropped))
}

// baseStem returns a file's base name without its extension.
func baseStem(path string) string {
	base := filepath.Base(path)
	return strings.TrimSuffix(base, filepath.Ext(base))
}
