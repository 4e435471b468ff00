package follow

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/bmatcuk/doublestar/v4"

	"scribe/producer"
)

// foundFile is a file that the globs match.
type foundFile struct {
	path string
	id   fileID
	info os.FileInfo
}

// findFiles returns the matching files, each once. Files that cannot be examined are logged and left out.
func (f *Follower) findFiles(ctx context.Context) []foundFile {
	var (
		out   []foundFile
		known = map[fileID]int{}
		names = map[string]struct{}{}
	)
	for _, pattern := range f.cfg.Paths {
		paths, err := doublestar.FilepathGlob(pattern)
		if err != nil {
			f.metrics.failures.Inc()
			f.log.WarnContext(ctx, "expanding a path pattern failed", "pattern", pattern, "error", err)
		}
		for _, path := range paths {
			if _, again := names[path]; again || f.isExcluded(path) {
				continue
			}
			names[path] = struct{}{}
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue // removed meanwhile, a folder, or a dangling link
			}
			id := idOf(info)
			if i, twice := known[id]; twice {
				// A file with several names keeps its current one.
				if s := f.sources[id]; s != nil && s.at == path {
					out[i] = foundFile{path, id, info}
				}
				continue
			}
			known[id] = len(out)
			out = append(out, foundFile{path, id, info})
		}
	}
	slices.SortFunc(out, func(a, b foundFile) int { return cmp.Compare(a.path, b.path) })
	return out
}

func (f *Follower) isExcluded(path string) bool {
	for _, pattern := range f.cfg.Exclude {
		if ok, _ := doublestar.PathMatch(pattern, path); ok { // validated
			return true
		}
	}
	return f.rules.pattern != nil && !f.rules.pattern.MatchString(path)
}

// lookAtFiles updates the sources from the file system, reads the known ones to their ends, and then follows new files. In this
// order, a copy is recognised as one, and is read from the position of its original.
func (f *Follower) lookAtFiles(ctx context.Context, now time.Time) {
	all := f.findFiles(ctx)
	missing := maps.Clone(f.sources)
	var (
		cut   []readState // of files before they were truncated: a copy is read from its position
		fresh []foundFile
	)
	for _, x := range all {
		s := f.sources[x.id]
		if s == nil {
			fresh = append(fresh, x)
			continue
		}
		delete(missing, x.id)
		if s.at != x.path {
			if s.at != "" {
				f.metrics.rotations.Inc()
			}
			s.at = x.path
		}
		s.matched = true
		if was, ok := f.lookAgain(ctx, s, x.info, now); ok {
			cut = append(cut, was)
		}
	}
	f.lookForMissing(ctx, missing, now)
	f.readAll(ctx, now)
	for _, x := range fresh {
		f.followFile(ctx, x, cut, now)
	}
	f.first = false
	f.forgetGone(now)
}

// lookAgain examines a source at the path where the globs find it. If it was truncated, or another file has its number, it starts
// anew, and its earlier state is returned.
func (f *Follower) lookAgain(ctx context.Context, s *followedFile, info os.FileInfo, now time.Time) (was readState, replaced bool) {
	unchanged := info.Size() == s.size && info.ModTime().Equal(s.modified) && !s.seen.IsZero()
	s.noteInfo(info, now)
	if unchanged {
		return readState{}, false
	}
	same, err := f.hasSameContent(s)
	if err != nil {
		f.metrics.failures.Inc()
		return readState{}, false // the next scan decides
	}
	if same {
		return readState{}, false
	}
	return f.startAnew(ctx, s), true
}

// startAnew restarts a file that was truncated or overwritten, and returns its earlier state.
func (f *Follower) startAnew(ctx context.Context, s *followedFile) readState {
	f.metrics.truncations.Inc()
	f.log.InfoContext(ctx, "file truncated or overwritten: reading it from its beginning", "path", s.path, "position", s.position, "size", s.size)
	was := s.readState
	s.position, s.prints, s.skipping = 0, fingerprints{}, false
	f.dirty = true
	return was
}

// hasSameContent reports whether the file still has the bytes that were read from it.
func (f *Follower) hasSameContent(s *followedFile) (bool, error) {
	if s.position == 0 || s.size < s.position {
		return s.position == 0, nil
	}
	if err := f.openFile(s); err != nil {
		return false, err
	}
	return s.prints.matchFile(s.file, f.scratch)
}

// lookForMissing handles sources that no glob matches any more: they were renamed or removed.
func (f *Follower) lookForMissing(ctx context.Context, missing map[fileID]*followedFile, now time.Time) {
	folders := map[string][]*followedFile{}
	for _, s := range missing {
		if s.matched {
			f.metrics.rotations.Inc()
			s.changed = now
		}
		wasMatched := s.matched
		s.matched = false
		if s.file == nil {
			if wasMatched || s.seen.IsZero() { // once, when it is first missing
				folders[filepath.Dir(s.path)] = append(folders[filepath.Dir(s.path)], s)
			}
			continue
		}
		info, err := s.file.Stat()
		if err != nil {
			f.metrics.failures.Inc()
			continue
		}
		s.noteInfo(info, now)
		if same, err := f.hasSameContent(s); err == nil && !same {
			f.startAnew(ctx, s)
		}
	}
	for folder, lost := range folders {
		f.findRenamed(ctx, folder, lost, now)
	}
}

// maxSiblings bounds how many files of a folder are searched for renamed ones.
const maxSiblings = 100_000

// findRenamed searches the folder of lost sources for them: they were rotated between scans, to names that no glob matches.
func (f *Follower) findRenamed(ctx context.Context, folder string, lost []*followedFile, now time.Time) {
	dir, err := os.Open(folder)
	if err != nil {
		return // the folder is gone
	}
	entries, err := dir.ReadDir(maxSiblings)
	_ = dir.Close()
	if err != nil && len(entries) == 0 {
		return
	}
	for _, s := range lost {
		s.at, s.seen = "", now
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() || idOf(info) != s.id {
				continue
			}
			s.at = filepath.Join(folder, e.Name())
			s.noteInfo(info, now)
			same, err := f.hasSameContent(s)
			switch {
			case err == nil && same:
			case err == nil && maybeCopy(s.path, s.at):
				f.startAnew(ctx, s) // truncated, and renamed before that was seen
			default: // another file has its number
				s.at, s.size = "", s.position
				f.closeFile(s)
			}
			break
		}
		if s.at != "" {
			f.log.InfoContext(ctx, "file renamed: reading the rest of it", "path", s.path, "now", s.at)
		}
	}
}

// followFile starts to follow a file: from the position of the file that it is a copy of, or from its beginning, or its end.
func (f *Follower) followFile(ctx context.Context, x foundFile, cut []readState, now time.Time) {
	if f.cfg.IgnoreOlder > 0 && now.Sub(x.info.ModTime()) > f.cfg.IgnoreOlder.Std() {
		return
	}
	if len(f.sources) >= f.cfg.MaxFiles {
		if !f.full {
			f.full = true
			f.log.WarnContext(ctx, "too many files: ignoring those above max_files", "limit", f.cfg.MaxFiles, "first", x.path)
		}
		return
	}
	s := &followedFile{id: x.id, readState: readState{path: x.path}, at: x.path, matched: true}
	if err := f.findStart(s, x, cut, now); err != nil {
		f.metrics.failures.Inc()
		if !errors.Is(err, fs.ErrNotExist) {
			f.log.WarnContext(ctx, "opening a file failed", "path", x.path, "error", err)
		}
		f.closeFile(s)
		return
	}
	f.setCategory(s)
	f.sources[s.id] = s
	f.dirty, f.fresh = true, true
}

func (f *Follower) findStart(s *followedFile, x foundFile, cut []readState, now time.Time) error {
	if err := f.openFile(s); err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	s.noteInfo(info, now)
	s.changed = now
	if f.first && f.cfg.Start == startEnd {
		s.position = s.size
		s.prints, err = fingerprinted(s.file, s.position, int64(f.cfg.Fingerprint), f.scratch)
		return err
	}
	for _, was := range append(cut, f.followedParts()...) {
		if was.position > s.size || was.position < int64(f.cfg.Fingerprint) || !maybeCopy(was.path, x.path) {
			continue
		}
		same, err := was.prints.matchFile(s.file, f.scratch)
		if err != nil {
			return err
		}
		if same {
			s.readState = was
			return nil
		}
	}
	return nil
}

// followedParts returns the current state of the sources.
func (f *Follower) followedParts() []readState {
	out := make([]readState, 0, len(f.sources))
	for _, s := range f.sources {
		out = append(out, s.readState)
	}
	return out
}

// maybeCopy reports whether a file may be a copy of another by its name: it is in the same folder, and its name begins with the
// other's stem.
func maybeCopy(original, copied string) bool {
	return filepath.Dir(original) == filepath.Dir(copied) && strings.HasPrefix(filepath.Base(copied), baseStem(original))
}

// setCategory sets the category and attributes of a source.
func (f *Follower) setCategory(s *followedFile) {
	values := map[string]string{"file": baseStem(s.path), "dir": filepath.Base(filepath.Dir(s.path))}
	if p := f.rules.pattern; p != nil {
		if m := p.FindStringSubmatch(s.path); m != nil {
			for i, group := range p.SubexpNames() {
				if group != "" {
					values[group] = m[i]
				}
			}
		}
	}
	s.category = f.rules.category.Category(func(field string) string { return values[field] })
	s.extra = nil
	if f.cfg.PathAttribute != "" {
		s.extra = append(s.extra, producer.Attribute{Name: f.cfg.PathAttribute, Value: []byte(s.path)})
	}
	if f.cfg.HostAttribute != "" {
		s.extra = append(s.extra, producer.Attribute{Name: f.cfg.HostAttribute, Value: []byte(f.deps.Host)})
	}
}

// rest is how long a file without a matching name stays open after its last change: its writer may not have noticed.
const rest = time.Minute

// forgetGone closes files that need not be open, and forgets those that are gone.
func (f *Follower) forgetGone(now time.Time) {
	for id, s := range f.sources {
		if s.matched {
			continue
		}
		if s.file != nil && !s.pending() && (s.removed || now.Sub(s.changed) >= rest) {
			f.closeFile(s)
		}
		// The number of a removed file may be reused from now on.
		if s.file == nil && (s.removed || now.Sub(s.seen) >= f.cfg.Forget.Std()) {
			delete(f.sources, id)
			f.dirty = true
		}
	}
}
