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

	"scribe/consumer"
	"scribe/internal/base/atomicfile"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
)

// place is the position behind the last message that standard output has taken: what the consumer said at a moment when everything
// it had yielded was printed, and the messages since.
type place struct {
	mu struct {
		sync.Mutex
		known bool
		base  checkpoint.Checkpoint
		since map[record.ShardID]checkpoint.Position
	}
}

// rebase takes the consumer's own text. One that can't be read changes nothing: the place is right without it.
func (p *place) rebase(text string) {
	base, err := checkpoint.Parse(text)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mu.known, p.mu.base, p.mu.since = true, base, make(map[record.ShardID]checkpoint.Position)
}

// pass moves behind messages, which are in the order in which they were yielded.
func (p *place) pass(marks []mark) {
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

// moved reports whether messages were printed since the consumer was asked.
func (p *place) moved() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.mu.since) > 0
}

// text is the place as a checkpoint; "" while it is not known.
func (p *place) text() string {
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

// checkpointFile is the file that a tail resumes from and keeps current. Its lock, in a file beside it, is held as long as it is open.
type checkpointFile struct {
	path string // as the user gave it
	real string // behind symbolic links: what is replaced
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
		return nil, usage(fmt.Errorf("checkpoint file %s is not a regular file: it is replaced again and again, so it can't be kept there", path))
	}
	f.lock = flock.New(f.real+".lock", flock.SetPermissions(0o600)) // the file itself is replaced, and a lock with it
	switch locked, err := f.lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("checkpoint file %s: lock it: %w", path, err)
	case !locked:
		return nil, fmt.Errorf("checkpoint file %s is in use by another scribe tail: end that one, or give each a file of its own", path)
	}
	return f, nil
}

// Close gives the lock back.
func (f *checkpointFile) Close() error { return f.lock.Close() }

// load reads where to go on; it is false when there is no file.
func (f *checkpointFile) load(category string) (consumer.Start, bool, error) {
	text, err := f.read()
	if errors.Is(err, fs.ErrNotExist) {
		return consumer.Start{}, false, nil
	}
	if err != nil {
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s: %w", f.path, pathless(err))
	}
	text = bytes.TrimSpace(text)
	cp, err := checkpoint.Parse(string(text))
	switch {
	case errors.Is(err, checkpoint.ErrVersion):
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s: %w; use the scribe that wrote it, or a newer one", f.path, err)
	case err != nil && len(text) == 0:
		return consumer.Start{}, false, f.unusable(errors.New("it is empty"))
	case err != nil:
		return consumer.Start{}, false, f.unusable(err)
	case cp.Category != category:
		return consumer.Start{}, false, fmt.Errorf("checkpoint file %s is of category %q, not of %q: give the file of this one, or another name to begin at --from", f.path, cp.Category, category)
	}
	start, err := consumer.Checkpoint(string(text))
	if err != nil {
		return start, false, f.unusable(err)
	}
	f.mu.held, f.category = string(text), cp.CategoryID
	return start, true, nil
}

func (f *checkpointFile) read() ([]byte, error) {
	in, err := os.Open(f.real)
	if err != nil {
		return nil, err
	}
	// One byte over the limit is enough to be refused, beside what is trimmed.
	text, err := io.ReadAll(io.LimitReader(in, checkpoint.MaxText+16))
	return text, errors.Join(err, in.Close())
}

// unusable says what to do about a file that does not help.
func (f *checkpointFile) unusable(err error) error {
	return fmt.Errorf("checkpoint file %s can't be resumed from: %w; restore it from a copy, or remove it to begin at --from", f.path, err)
}

// save replaces the file as a whole. When it fails the file is what it was, or what it should be.
func (f *checkpointFile) save(text string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if text == "" || text == f.mu.held {
		return nil
	}
	f.mu.held = ""
	if err := atomicfile.WriteBytes(f.real, []byte(text+"\n")); err != nil {
		return fmt.Errorf("checkpoint file %s can't be written and stays as it was, so what was printed since comes again: %w", f.path, err)
	}
	f.mu.held = text
	return nil
}
