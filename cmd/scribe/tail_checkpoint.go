package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/gofrs/flock"

	"scribe/cmd/scribe/app"
	"scribe/consumer"
	"scribe/internal/base/atomicfile"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
)

// outputPosition is the position after the last message that standard output accepted. It consists of a checkpoint that the consumer gave
// when all yielded messages were printed, and of the messages printed since.
type outputPosition struct {
	mu struct {
		sync.Mutex
		known bool
		base  checkpoint.Checkpoint
		since map[record.ShardID]checkpoint.Position
	}
}

// setBase sets the consumer's checkpoint. An invalid text changes nothing: the position is right without it.
func (p *outputPosition) setBase(text string) {
	base, err := checkpoint.Parse(text)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.known, p.mu.base, p.mu.since = true, base, make(map[record.ShardID]checkpoint.Position)
}

// advancePast moves the position past messages, which are in the order in which they were yielded.
func (p *outputPosition) advancePast(marks []recordMark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, m := range marks {
		if i+1 < len(marks) && marks[i+1].shard == m.shard {
			continue // only the last one counts
		}
		if p.mu.since != nil {
			p.mu.since[m.shard] = checkpoint.Position{Shard: m.shard, LSN: m.lsn, Skip: m.index + 1}
		}
	}
}

// hasAdvanced reports whether messages were printed since setBase.
func (p *outputPosition) hasAdvanced() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.since) > 0
}

// checkpointText returns the position as a checkpoint, or "" while it is unknown.
func (p *outputPosition) checkpointText() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.known {
		return ""
	}
	c := p.mu.base
	c.Positions = slices.Clone(c.Positions)
	for shard, pos := range p.mu.since {
		i, found := slices.BinarySearchFunc(c.Positions, shard, func(q checkpoint.Position, s record.ShardID) int {
			return cmp.Compare(q.Shard, s)
		})
		if found {
			c.Positions[i] = pos
		} else {
			c.Positions = slices.Insert(c.Positions, i, pos)
		}
	}
	return c.String()
}

// checkpointFile is the file that a tail resumes from and updates. While it is open, it holds a lock in a file beside it.
type checkpointFile struct {
	path string // as the user gave it
	real string // path after resolving symbolic links, which is replaced
	lock *flock.Flock
	// category is the id of the category that the file was of when it was loaded; 0 = none.
	category uint32
	mu       struct {
		sync.Mutex        // held during a save: one runs at a time
		held       string // what the file holds; "" = not known, or not there
	}
}

// openCheckpointFile locks a checkpoint file, which need not exist.
func openCheckpointFile(path string) (*checkpointFile, error) {
	f := &checkpointFile{path: path, real: path}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		f.real = target
	}
	if info, err := os.Stat(f.real); err == nil && !info.Mode().IsRegular() {
		return nil, usageError(fmt.Errorf("checkpoint file %s is not a regular file: the file is replaced at each save; give the path of a regular file", path))
	}
	f.lock = flock.New(f.real+".lock", flock.SetPermissions(0o600)) // the file itself is replaced, so a lock on it would be lost
	switch locked, err := f.lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("checkpoint file %s: lock it: %w", path, err)
	case !locked:
		return nil, fmt.Errorf("checkpoint file %s is in use by another scribe tail: stop that one, or use another file", path)
	}
	return f, nil
}

// Close releases the lock, if there is a file.
func (f *checkpointFile) Close() error {
	if f == nil {
		return nil
	}
	return f.lock.Close()
}

// loadStart reads the position to resume from. It returns false if there is no file.
func (f *checkpointFile) loadStart(category string) (consumer.Start, bool, error) {
	text, err := f.readText()
	if errors.Is(err, fs.ErrNotExist) {
		return consumer.Start{}, false, nil
	}
	if err != nil {
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s: %w", f.path, app.WithoutPath(err))
	}
	text = bytes.TrimSpace(text)
	cp, err := checkpoint.Parse(string(text))
	switch {
	case errors.Is(err, checkpoint.ErrVersion):
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s: %w; use the scribe that wrote it, or a newer one", f.path, err)
	case err != nil && len(text) == 0:
		return consumer.Start{}, false, f.unusableError(errors.New("it is empty"))
	case err != nil:
		return consumer.Start{}, false, f.unusableError(err)
	case cp.Category != category:
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s is of category %q, not of %q: use the file of this category, or a new file to start at --from", f.path, cp.Category, category)
	}
	start, err := consumer.Checkpoint(string(text))
	if err != nil {
		return start, false, f.unusableError(err)
	}
	f.mu.held, f.category = string(text), cp.CategoryID
	return start, true, nil
}

func (f *checkpointFile) readText() ([]byte, error) {
	in, err := os.Open(f.real)
	if err != nil {
		return nil, err
	}
	// Some bytes over the limit, for white space that is trimmed, make a larger file fail.
	text, err := io.ReadAll(io.LimitReader(in, checkpoint.MaxText+16))
	return text, errors.Join(err, in.Close())
}

// unusableError adds the remedy to the error of an unusable file.
func (f *checkpointFile) unusableError(err error) error {
	return fmt.Errorf("checkpoint file %s can't be resumed from: %w; restore it from a copy, or remove it to start at --from", f.path, err)
}

// saveText replaces the file atomically. After an error the file has its old or its new content.
func (f *checkpointFile) saveText(text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text == "" || text == f.mu.held {
		return nil
	}
	f.mu.held = ""
	if err := atomicfile.WriteBytes(f.real, []byte(text+"\n")); err != nil {
		return fmt.Errorf("checkpoint file %s can't be written, so messages printed since the last save are printed again: %w", f.path, err)
	}
	f.mu.held = text
	return nil
}
