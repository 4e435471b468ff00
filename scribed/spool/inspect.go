package spool

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/keyring"
	"scribe/scribed/spool/layout"
	"scribe/storage/blob/encryption"
)

// Report describes the contents of a spool's folder.
type Report struct {
	Dir string
	// State is nil when there is no valid state; then every record counts as held.
	State    *StateReport
	Segments []SegmentReport
	// Categories are those with records in a segment, in order of name.
	Categories []CategoryReport
	// Keys are those that records are encrypted with, by run and category.
	Keys []keyring.Stored
	// Unchecked are the encrypted records of which only the checksums were checked, since their keys were deleted, or can't be used: KeyErr says why.
	Unchecked int64
	KeyErr    error
	// Quarantined is the number of copies of damaged ranges, QuarantinedBytes their size.
	Quarantined      int
	QuarantinedBytes int64
	Ballast          bool
	// Damage lists everything that is not as it was written.
	Damage []Damage
}

// StateReport describes the state file.
type StateReport struct {
	Generation uint64
	Saved      time.Time
	Dropped    map[string]Amount
}

// SegmentReport describes one segment file.
type SegmentReport struct {
	File string
	// First and Last are the numbers of the first and last segment whose records the file holds.
	First, Last, Generation uint32
	Bytes                   int64
	// Sealed says that the file has a footer. Superseded says that another file holds its records; it is removed when the spool
	// is opened.
	Sealed, Superseded bool
	// Encrypted says that it may have encrypted records.
	Encrypted      bool
	Total, Held    Amount
	Oldest, Newest time.Time
	// Tail is how many bytes after or between the records are not known to have been synced. They are not damage: a spool in use
	// has them, and so has one after a crash.
	Tail int64
}

// CategoryReport describes the records of a category.
type CategoryReport struct {
	Category string
	Segments int
	// Total counts the records in the files, Held those that are neither done nor dropped.
	Total, Held Amount
	// Oldest and Newest are times of held records, to the resolution of a segment.
	Oldest, Newest time.Time
}

// Damage is a range of a file that is not as it was written.
type Damage struct {
	File     string
	From, To int64
	// Category is the category of a record whose header is readable.
	Category string
	Err      error
}

// Inspect reads a folder without changing it. The spool may be in use; concurrent changes may be missing. With verify, it reads
// every record and checks its checksums, and if it is encrypted and the wrapper has its key, decrypts it; otherwise it relies on the footers. fsys
// nil is the real file system, wrapper nil has no key.
func Inspect(fsys vfs.FS, dir string, verify bool, wrapper encryption.Wrapper) (*Report, error) {
	if fsys == nil {
		fsys = vfs.Default
	}
	in, err := readFolder(fsys, dir)
	if err != nil {
		return nil, fmt.Errorf("spool: inspect %s: %w", dir, err)
	}
	keys, err := keyring.Open(keyring.Config{Dir: fsys.PathJoin(dir, keysName), FS: fsys, Wrapper: wrapper})
	if err != nil {
		return nil, fmt.Errorf("spool: inspect %s: %w", dir, err)
	}
	i := &inspectionRun{fs: fsys, dir: dir, verify: verify, keys: keys, report: &Report{Dir: dir, Ballast: in.ballast, Keys: keys.List()}, categories: map[string]*CategoryReport{}}
	if err := i.inspectFiles(in); err != nil {
		return nil, fmt.Errorf("spool: inspect %s: %w", dir, err)
	}
	return i.report, nil
}

type inspectionRun struct {
	fs         vfs.FS
	keys       *keyring.Keyring
	dir        string
	verify     bool
	report     *Report
	state      *layout.SpoolState
	categories map[string]*CategoryReport
}

func (i *inspectionRun) inspectFiles(in *folderListing) error {
	if in.state {
		if err := i.readState(); err != nil {
			return err
		}
	}
	for _, id := range in.segments {
		if err := i.inspectSegment(id); err != nil && !isNotExist(err) { // removed meanwhile
			return err
		}
	}
	for _, id := range in.superseded {
		i.report.Segments = append(i.report.Segments, SegmentReport{File: id.Name(), First: id.First, Last: id.Last, Generation: id.Generation, Superseded: true})
	}
	for _, c := range i.categories {
		i.report.Categories = append(i.report.Categories, *c)
	}
	slices.SortFunc(i.report.Categories, func(a, b CategoryReport) int { return strings.Compare(a.Category, b.Category) })
	q := newQuarantine(i.fs, i.dir, math.MaxInt64) // nothing is removed
	if err := q.openFolder(); err != nil {
		return err
	}
	i.report.Quarantined, i.report.QuarantinedBytes = q.CountFiles()
	return nil
}

func (i *inspectionRun) addDamage(file string, r layout.FileRange, category string, err error) {
	i.report.Damage = append(i.report.Damage, Damage{File: file, From: r.From, To: r.To, Category: category, Err: err})
}

func (i *inspectionRun) readState() error {
	f, err := i.fs.Open(i.fs.PathJoin(i.dir, stateName))
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	st, err := layout.ReadState(f)
	if err != nil {
		return err
	}
	for _, err := range st.Damage {
		i.addDamage(stateName, layout.FileRange{}, "", err)
	}
	if i.state = st.State; i.state == nil {
		return nil
	}
	i.report.State = &StateReport{Generation: i.state.Generation, Saved: time.UnixMicro(i.state.Saved), Dropped: map[string]Amount{}}
	for _, d := range i.state.Dropped {
		i.report.State.Dropped[d.Category] = Amount(d.Amount)
	}
	return nil
}

func (i *inspectionRun) inspectSegment(id layout.SegmentID) error {
	l, err := loadSegment(i.fs, i.dir, id)
	if err != nil {
		return err
	}
	// A segment that was never rewritten may lack a footer because it is not sealed yet.
	if l.footer == nil && (!errors.Is(l.footerErr, layout.ErrNoFooter) || id.Generation > 1) {
		i.addDamage(id.Name(), layout.FileRange{From: l.end, To: l.size}, "", l.footerErr)
	}
	for _, d := range l.damage {
		category := ""
		if d.record != nil {
			category = d.record.Category
		}
		i.addDamage(id.Name(), d.FileRange, category, d.err)
	}
	done, err := l.finishedIn(i.state, func(c *loadedCategory) ([]layout.IndexEntry, error) { return l.readIndex(i.fs, c) })
	if err != nil {
		return err
	}
	r := SegmentReport{
		File: id.Name(), First: id.First, Last: id.Last, Generation: id.Generation, Bytes: l.size, Sealed: l.footer != nil, Tail: l.torn, Encrypted: l.encrypted,
	}
	for k := range l.categories {
		c := &l.categories[k]
		total := Amount(c.SumRecords())
		held := total
		held.minus(done[k].amount)
		first, last := time.UnixMicro(c.FirstTime), time.UnixMicro(c.LastTime)
		r.Total.plus(total)
		r.Held.plus(held)
		extendTimes(&r.Oldest, &r.Newest, first, last)
		i.addCategory(c.Name, total, held, first, last)
	}
	i.report.Segments = append(i.report.Segments, r)
	switch {
	case i.verify && l.footer != nil:
		return i.verifySealed(l)
	case i.verify && l.encrypted: // its checksums were checked when it was loaded
		return i.decryptUnsealed(l)
	}
	return nil
}

// decryptUnsealed decrypts the records of a segment without a footer.
func (i *inspectionRun) decryptUnsealed(l *loadedSegment) error {
	f, err := i.fs.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	_, err = layout.ScanSegment(salvageReader{f}, l.end, l.id, func(rec *layout.ScannedRecord) {
		if rec.Err == nil {
			i.decryptRecord(l.id.Name(), rec)
		}
	})
	return err
}

// decryptRecord checks that a record was encrypted as it stands there.
func (i *inspectionRun) decryptRecord(file string, rec *layout.ScannedRecord) {
	if !rec.Encrypted {
		return
	}
	_, err := i.keys.Decrypt(rec.Category, slices.Clone(rec.Stored), rec.AppendBound(nil))
	switch {
	case errors.Is(err, keyring.ErrNotAuthentic):
		i.addDamage(file, layout.FileRange{From: rec.Offset, To: rec.End()}, rec.Category, fmt.Errorf("%w: %w", layout.ErrDamaged, err))
	case err != nil:
		i.report.Unchecked++
		i.report.KeyErr = cmp.Or(i.report.KeyErr, err)
	}
}

func (i *inspectionRun) addCategory(name string, total, held Amount, first, last time.Time) {
	c := i.categories[name]
	if c == nil {
		c = &CategoryReport{Category: name}
		i.categories[name] = c
	}
	c.Segments++
	c.Total.plus(total)
	c.Held.plus(held)
	if held.Records > 0 {
		extendTimes(&c.Oldest, &c.Newest, first, last)
	}
}

func extendTimes(oldest, newest *time.Time, first, last time.Time) {
	if oldest.IsZero() || first.Before(*oldest) {
		*oldest = first
	}
	if last.After(*newest) {
		*newest = last
	}
}

// verifySealed reads a sealed segment, and compares it with its indexes.
func (i *inspectionRun) verifySealed(l *loadedSegment) error {
	f, err := i.fs.Open(l.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	name := l.id.Name()
	found := map[layout.Position]layout.IndexEntry{}
	scan, err := layout.ScanSegment(salvageReader{f}, l.footer.DataEnd, l.id, func(rec *layout.ScannedRecord) {
		if rec.Err != nil {
			i.addDamage(name, layout.FileRange{From: rec.Offset, To: rec.End()}, rec.Category, rec.Err)
		} else {
			i.decryptRecord(name, rec)
		}
		found[rec.Position] = rec.Entry()
	})
	if err != nil {
		return err
	}
	if scan.HeaderErr != nil {
		i.addDamage(name, layout.FileRange{From: 0, To: layout.SegmentHeaderLen}, "", scan.HeaderErr)
	}
	if scan.Tail {
		scan.Unreadable = append(scan.Unreadable, layout.FileRange{From: scan.End, To: l.footer.DataEnd})
	}
	for _, r := range scan.Unreadable {
		i.addDamage(name, r, "", fmt.Errorf("%w: no record's header", layout.ErrDamaged))
	}
	for k := range l.categories {
		c := &l.categories[k].FooterCategory
		entries, err := layout.ReadIndex(salvageReader{f}, l.footer, c)
		if errors.Is(err, layout.ErrDamaged) {
			at := l.footer.Offset + int64(c.IndexOffset)
			i.addDamage(name, layout.FileRange{From: at, To: at + int64(c.IndexLen)}, c.Name, err)
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			if found[e.Position] != e {
				i.addDamage(name, layout.FileRange{From: int64(e.Offset), To: int64(e.Offset) + int64(e.Size)}, c.Name, fmt.Errorf("%w: record %s is not there", layout.ErrDamaged, e.Position))
			}
		}
	}
	return nil
}
