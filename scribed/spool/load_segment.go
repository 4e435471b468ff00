package spool

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/scribed/spool/layout"
)

// loadedSegment is a segment's file as it was found.
type loadedSegment struct {
	id   layout.SegmentID
	path string
	size int64
	// footer is nil when it is missing or damaged; footerErr says why.
	footer    *layout.Footer
	footerErr error
	// categories are those of the footer, or those found by scanning the file, which then include their indexes.
	categories []loadedCategory
	// end is where the records end. torn is how many bytes after it, or between records, were never known to be on disk.
	end, torn int64
	tail      bool
	damage    []foundDamage
	// encrypted: there may be encrypted records.
	encrypted bool
}

type loadedCategory struct {
	layout.FooterCategory
	entries []layout.IndexEntry // nil: the index is in the footer
}

// foundDamage is a range that differs from what was written and synced.
type foundDamage struct {
	layout.FileRange
	record *layout.ScannedRecord // nil: its header is unreadable
	err    error
}

// loadSegment reads the footer of a segment, or scans a segment without a valid footer.
func loadSegment(fsys vfs.FS, dir string, id layout.SegmentID) (l *loadedSegment, err error) {
	l = &loadedSegment{id: id, path: fsys.PathJoin(dir, id.Name())}
	f, err := fsys.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	l.size = info.Size()
	footer, err := layout.ReadFooter(salvageReader{f}, l.size, id)
	switch {
	case err == nil:
		l.footer, l.end, l.encrypted = footer, footer.DataEnd, footer.Encrypted
		for _, c := range footer.Categories {
			l.categories = append(l.categories, loadedCategory{FooterCategory: c})
		}
		return l, nil
	case !errors.Is(err, layout.ErrDamaged):
		return nil, fmt.Errorf("%s: %w", l.path, err)
	}
	l.footerErr = err
	// A footer with a valid trailer says where the records end, and that all of them were synced.
	size, durable := l.size, int64(0)
	if footer != nil {
		size, durable = footer.DataEnd, footer.DataEnd
	}
	if err := l.scanRecords(salvageReader{f}, size, durable); err != nil {
		return nil, fmt.Errorf("%s: %w", l.path, err)
	}
	return l, nil
}

// scanRecords finds the records of a segment without a footer, and distinguishes damage from torn writes: a range is damaged if
// later records say that it was on disk before they were written.
func (l *loadedSegment) scanRecords(r salvageReader, size, durable int64) error {
	entries := map[string][]layout.IndexEntry{}
	var bad []layout.ScannedRecord
	scan, err := layout.ScanSegment(r, size, l.id, func(rec *layout.ScannedRecord) {
		l.encrypted = l.encrypted || rec.Encrypted
		if rec.Err == nil {
			entries[rec.Category] = append(entries[rec.Category], rec.Entry())
		} else {
			bad = append(bad, *rec)
		}
	})
	if err != nil {
		return err
	}
	durable = max(durable, scan.Durable)
	note := func(r layout.FileRange, rec *layout.ScannedRecord, err error) {
		if r.From >= durable {
			l.torn += r.To - r.From
			return
		}
		l.damage = append(l.damage, foundDamage{r, rec, err})
	}
	for i := range bad {
		note(layout.FileRange{From: bad[i].Offset, To: min(bad[i].End(), size)}, &bad[i], bad[i].Err)
	}
	for _, r := range scan.Unreadable {
		note(r, nil, fmt.Errorf("%w: no record's header", layout.ErrDamaged))
	}
	l.end, l.tail = scan.End, scan.Tail || l.size > size
	if scan.Tail {
		if size < l.size { // the footer follows the records, so this range held records
			note(layout.FileRange{From: scan.End, To: size}, nil, fmt.Errorf("%w: no record's header", layout.ErrDamaged))
		} else {
			l.torn += size - scan.End
		}
	}
	if scan.HeaderErr != nil && len(entries) > 0 {
		l.damage = append(l.damage, foundDamage{layout.FileRange{From: 0, To: layout.SegmentHeaderLen}, &layout.ScannedRecord{}, scan.HeaderErr})
	}
	for name, list := range entries {
		l.categories = append(l.categories, loadedCategory{layout.NewCategory(name, list), list})
	}
	slices.SortFunc(l.categories, func(a, b loadedCategory) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// finishedRecords are the records of a category in a segment that are finished according to the state.
type finishedRecords struct {
	spans  positionSet
	amount Amount
}

// finishedIn determines the finished records of a segment. index reads the index of a category; it is called only when the
// amounts in the state are not those of this file, because it was sealed, rewritten, or scanned since the state was saved.
func (l *loadedSegment) finishedIn(st *layout.SpoolState, index func(c *loadedCategory) ([]layout.IndexEntry, error)) ([]finishedRecords, error) {
	out := make([]finishedRecords, len(l.categories))
	if st == nil {
		return out, nil
	}
	exact := false
	for i := range st.Segments {
		g := &st.Segments[i]
		if g.Last < l.id.First || g.First > l.id.Last {
			continue
		}
		exact = g.SegmentID == l.id && l.footer != nil && g.Footer == l.footer.Sum
		for _, d := range g.Done {
			k, ok := slices.BinarySearchFunc(l.categories, d.Category, func(c loadedCategory, name string) int { return strings.Compare(c.Name, name) })
			if !ok {
				continue
			}
			out[k].spans = out[k].spans.union(d.Spans)
			out[k].amount.plus(Amount(d.Amount))
		}
	}
	for k := range out {
		c := &l.categories[k]
		whole := c.SumRecords()
		a := out[k].amount
		if len(out[k].spans) == 0 || exact && a.Records <= whole.Records && a.Messages <= whole.Messages && a.Bytes <= whole.Bytes {
			continue
		}
		entries := c.entries
		if entries == nil {
			var err error
			if entries, err = index(c); err != nil {
				return nil, err
			}
		}
		out[k].amount = Amount{}
		for i := range entries {
			if e := &entries[i]; out[k].spans.contains(e.Position) {
				out[k].amount.plus(amountOf(c.Name, e))
			}
		}
	}
	return out, nil
}

// readIndex reads the index of a category from the footer. A damaged index is rebuilt by scanning the segment.
func (l *loadedSegment) readIndex(fsys vfs.FS, c *loadedCategory) ([]layout.IndexEntry, error) {
	f, err := fsys.Open(l.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // it was only read
	entries, err := layout.ReadIndex(salvageReader{f}, l.footer, &c.FooterCategory)
	if !errors.Is(err, layout.ErrDamaged) {
		return entries, err
	}
	entries, _, err = scanCategory(salvageReader{f}, l.footer.DataEnd, l.id, c.Name)
	return entries, err
}

// scanCategory finds the records of a category by scanning a segment. entries is not nil: nil means that an index is not in memory.
func scanCategory(r io.ReaderAt, end int64, id layout.SegmentID, name string) (entries []layout.IndexEntry, scan *layout.SegmentScan, err error) {
	entries = []layout.IndexEntry{}
	scan, err = layout.ScanSegment(r, end, id, func(rec *layout.ScannedRecord) {
		if rec.Category == name {
			entries = append(entries, rec.Entry())
		}
	})
	return entries, scan, err
}

// folderListing lists the files of a spool's folder.
type folderListing struct {
	segments   []layout.SegmentID // in order
	superseded []layout.SegmentID // replaced by others
	temporary  []string
	state      bool
	ballast    bool
}

func readFolder(fsys vfs.FS, dir string) (*folderListing, error) {
	names, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	l := &folderListing{}
	var all []layout.SegmentID
	for _, name := range names {
		id, ok := layout.ParseSegmentName(name)
		switch {
		case ok:
			all = append(all, id)
		case name == stateName:
			l.state = true
		case name == ballastName:
			l.ballast = true
		case strings.HasSuffix(name, tempSuffix):
			l.temporary = append(l.temporary, name)
		}
	}
	for _, id := range all {
		if slices.ContainsFunc(all, func(o layout.SegmentID) bool { return o.Covers(id) }) {
			l.superseded = append(l.superseded, id)
		} else {
			l.segments = append(l.segments, id)
		}
	}
	slices.SortFunc(l.segments, func(a, b layout.SegmentID) int { return int(int64(a.First) - int64(b.First)) })
	return l, nil
}
