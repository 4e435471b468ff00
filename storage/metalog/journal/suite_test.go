package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"scribe/storage/metalog/journal"
)

// journalStore is an empty journal of an engine under test.
type journalStore struct {
	// Open returns a handle, which the test closes.
	Open func() journal.Journal
	// Drop makes an entry disappear from the store behind the engine's back.
	Drop func(seq uint64) error
	// SetFull makes the engine refuse entries, or accept them again.
	SetFull func(full bool)
	// GoBack makes the store what it was when its last head was another one, as a restored backup is. It is nil for engines whose
	// own tests do this.
	GoBack func() error
	// Rounds is how much the longer checks do.
	Rounds int
}

// suiteCheck is one check of the acceptance suite. It returns an error instead of failing a test, so that engines that are wrong on
// purpose can be shown to fail it.
type suiteCheck struct {
	name  string
	check func(ctx context.Context, s journalStore) error
}

// suiteChecks is the acceptance suite: every engine must pass it.
func suiteChecks() []suiteCheck {
	return []suiteCheck{
		{"Swaps", checkSwaps},
		{"Limits", checkLimits},
		{"Ownership", checkOwnership},
		{"LargeEntries", checkLargeEntries},
		{"Waits", checkWaits},
		{"Trims", checkTrims},
		{"Holes", checkHoles},
		{"StalledWriter", checkStalledWriter},
		{"Full", checkFull},
		{"WentBack", checkWentBack},
		{"Contenders", checkContenders},
		{"History", checkHistory},
		{"Closed", checkClosed},
	}
}

// runSuite runs the suite over an engine.
func runSuite(t *testing.T, open func(t *testing.T) journalStore) {
	t.Helper()
	for _, c := range suiteChecks() {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
			defer cancel()
			if err := c.check(ctx, open(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// appendNext appends an entry to known.
func appendNext(ctx context.Context, j journal.Journal, known journal.Head, entry string) (journal.Head, error) {
	next := known
	next.Seq, next.Term = known.Seq+1, max(known.Term, 1)
	next.Entry = journal.ID{byte(next.Seq), byte(next.Seq >> 8), 1}
	return j.Swap(ctx, known, next, []byte(entry))
}

// appendMany appends entries until the head is at seq, on top of known.
func appendMany(ctx context.Context, j journal.Journal, known journal.Head, seq uint64) (journal.Head, error) {
	for known.Seq < seq {
		next, err := appendNext(ctx, j, known, fmt.Sprintf("entry %d", known.Seq+1))
		if err != nil {
			return known, fmt.Errorf("append entry %d: %w", known.Seq+1, err)
		}
		known = next
	}
	return known, nil
}

// nameSnapshot sets the head's snapshot.
func nameSnapshot(ctx context.Context, j journal.Journal, known journal.Head, seq uint64) (journal.Head, error) {
	next := known
	next.Snapshot, next.Beat = seq, known.Beat+1
	return j.Swap(ctx, known, next, nil)
}

// wantEntries reads entries and compares them with what appendMany wrote.
func wantEntries(ctx context.Context, j journal.Journal, from, to uint64) error {
	next := from
	err := j.Read(ctx, from, to, func(seq uint64, b []byte) error {
		if want := fmt.Sprintf("entry %d", next); seq != next || string(b) != want {
			return fmt.Errorf("read entry %d %q, want entry %d %q", seq, b, next, want)
		}
		next++
		return nil
	})
	if err == nil && next != to+1 {
		err = fmt.Errorf("read ends before entry %d without an error, want %d", next, to+1)
	}
	return err
}

// wantErr returns an error unless err is the one wanted.
func wantErr(what string, err, want error) error {
	if !errors.Is(err, want) {
		return fmt.Errorf("%s: error %w, want %q", what, err, want.Error())
	}
	return nil
}

func checkSwaps(ctx context.Context, s journalStore) error {
	a, b := s.Open(), s.Open()
	defer a.Close()
	defer b.Close()
	zero, err := a.Head(ctx)
	if err != nil || zero != (journal.Head{}) {
		return fmt.Errorf("head of an empty journal: %+v, %w", zero, err)
	}
	first, err := appendMany(ctx, a, zero, 1)
	if err != nil {
		return err
	}
	beat := first
	beat.Beat, beat.Leader, beat.Owner, beat.Time, beat.Bound = 7, "http://a", journal.ID{1}, 5, 9
	second, err := a.Swap(ctx, first, beat, nil)
	if err != nil {
		return err
	}
	if beat.Revision = second.Revision; second != beat || second.Revision <= first.Revision {
		return fmt.Errorf("a swap from %+v to %+v returned %+v", first, beat, second)
	}
	if got, err := b.Head(ctx); err != nil || got != second {
		return fmt.Errorf("head %+v, %w, want %+v", got, err, second)
	}
	// Every head but the present one loses, and changes nothing.
	for _, known := range []journal.Head{zero, first} {
		_, err := appendNext(ctx, b, known, "lost")
		var lost *journal.LostError
		if !errors.As(err, &lost) || lost.Head != second {
			return fmt.Errorf("a swap of revision %d: %w, want a LostError with %+v", known.Revision, err, second)
		}
	}
	if got, err := b.Head(ctx); err != nil || got != second {
		return fmt.Errorf("head after lost swaps %+v, %w, want %+v", got, err, second)
	}
	last := second
	for last.Seq < 10 {
		if last, err = appendMany(ctx, b, last, last.Seq+1); err != nil {
			return err
		}
		if got, err := a.Head(ctx); err != nil || got != last {
			return fmt.Errorf("another handle sees %+v, %w, after a swap to %+v", got, err, last)
		}
	}
	if last, err = appendMany(ctx, b, last, 300); err != nil {
		return err
	}
	return errors.Join(wantEntries(ctx, a, 1, last.Seq), wantEntries(ctx, b, 123, 124), wantEntries(ctx, b, 300, 300), wantEntries(ctx, a, 5, 4))
}

func checkLimits(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	known, err := appendMany(ctx, j, journal.Head{}, 3)
	if err != nil {
		return err
	}
	for what, c := range map[string]struct {
		change func(next *journal.Head)
		entry  []byte
	}{
		"a gap":             {func(h *journal.Head) { h.Seq += 2 }, []byte("a")},
		"no entry":          {func(h *journal.Head) { h.Seq++ }, nil},
		"an empty entry":    {func(h *journal.Head) { h.Seq++ }, []byte{}},
		"the same number":   {func(*journal.Head) {}, []byte("a")},
		"an older term":     {func(h *journal.Head) { h.Term-- }, nil},
		"a snapshot beyond": {func(h *journal.Head) { h.Snapshot = 4 }, nil},
		"a large entry":     {func(h *journal.Head) { h.Seq++ }, make([]byte, journal.MaxPayload+2<<10)},
	} {
		next := known
		c.change(&next)
		_, err := j.Swap(ctx, known, next, c.entry)
		if err := wantErr(what, err, journal.ErrInvalid); err != nil {
			return err
		}
	}
	if got, err := j.Head(ctx); err != nil || got != known {
		return fmt.Errorf("head after invalid swaps %+v, %w", got, err)
	}
	return nil
}

func checkOwnership(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	entry := []byte("entry 1")
	next := journal.Head{Term: 1, Seq: 1}
	if _, err := j.Swap(ctx, journal.Head{}, next, entry); err != nil {
		return err
	}
	entry[0] = 'X'
	overwrite := func(_ uint64, b []byte) error { b[0] = 'Y'; return nil }
	if err := j.Read(ctx, 1, 1, overwrite); err != nil {
		return err
	}
	stop := errors.New("stop")
	return errors.Join(wantEntries(ctx, j, 1, 1), wantErr("a Read whose fn fails", j.Read(ctx, 1, 1, func(uint64, []byte) error { return stop }), stop))
}

func checkLargeEntries(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	var known journal.Head
	sizes := []int{1, 1 << 20, 1<<20 + 1, 5 << 20, 33 << 20}
	content := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1), 0, byte(i)}, sizes[i]/3+1)[:sizes[i]] }
	for i := range sizes {
		next := known
		next.Seq, next.Term = known.Seq+1, 1
		head, err := j.Swap(ctx, known, next, content(i))
		if err != nil {
			return fmt.Errorf("append %d bytes: %w", sizes[i], err)
		}
		known = head
	}
	n := 0
	err := j.Read(ctx, 1, known.Seq, func(seq uint64, b []byte) error {
		if n++; !bytes.Equal(b, content(int(seq)-1)) {
			return fmt.Errorf("entry %d came back as other %d bytes", seq, len(b))
		}
		return nil
	})
	if err == nil && n != len(sizes) {
		err = fmt.Errorf("%d entries, want %d", n, len(sizes))
	}
	return err
}

func checkWaits(ctx context.Context, s journalStore) error {
	a, b := s.Open(), s.Open()
	defer a.Close()
	defer b.Close()
	known, err := appendMany(ctx, a, journal.Head{}, 2)
	if err != nil {
		return err
	}
	var seen journal.Head
	for seen.Revision != known.Revision {
		if seen, err = b.Wait(ctx, seen); err != nil {
			return fmt.Errorf("wait for what happened already: %w", err)
		}
	}
	if seen != known {
		return fmt.Errorf("waited for %+v, want %+v", seen, known)
	}
	result := make(chan error, 1)
	go func() {
		var err error
		for seen.Seq < 20 && err == nil {
			seen, err = b.Wait(ctx, seen)
		}
		result <- err
	}()
	if known, err = appendMany(ctx, a, known, 20); err != nil {
		return err
	}
	if err := <-result; err != nil || seen != known {
		return fmt.Errorf("followed up to %+v, %w, want %+v", seen, err, known)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = b.Wait(ended, known)
	return wantErr("wait in a context that ended", err, context.Canceled)
}

func checkTrims(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	known, err := appendMany(ctx, j, journal.Head{}, 60)
	if err != nil {
		return err
	}
	if err := wantErr("trim without a snapshot", j.Trim(ctx, 2), journal.ErrInvalid); err != nil {
		return err
	}
	if known, err = nameSnapshot(ctx, j, known, 50); err != nil {
		return err
	}
	if err := wantErr("trim above the snapshot", j.Trim(ctx, 52), journal.ErrInvalid); err != nil {
		return err
	}
	if err := wantEntries(ctx, j, 1, 60); err != nil {
		return fmt.Errorf("after refused trims: %w", err)
	}
	for _, below := range []uint64{40, 40, 10, 0, 51} {
		if err := j.Trim(ctx, below); err != nil {
			return fmt.Errorf("trim below %d: %w", below, err)
		}
		first := min(max(below, 40), 51)
		if err := wantEntries(ctx, j, first, 60); err != nil {
			return fmt.Errorf("after a trim below %d: %w", below, err)
		}
		for _, from := range []uint64{1, first - 1} {
			if err := wantErr("read trimmed entries", j.Read(ctx, from, 60, func(uint64, []byte) error { return nil }), journal.ErrTrimmed); err != nil {
				return err
			}
		}
	}
	if _, err := appendMany(ctx, j, known, 70); err != nil {
		return err
	}
	return wantEntries(ctx, j, 51, 70)
}

func checkHoles(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	known, err := appendMany(ctx, j, journal.Head{}, 40)
	if err == nil {
		_, err = nameSnapshot(ctx, j, known, 10)
	}
	if err == nil {
		err = s.Drop(30)
	}
	if err != nil {
		return err
	}
	for _, from := range []uint64{1, 29, 30} {
		last := from - 1
		err := j.Read(ctx, from, 40, func(seq uint64, _ []byte) error { last = seq; return nil })
		if err := wantErr("read over a lost entry", err, journal.ErrCorrupt); err != nil {
			return err
		}
		if last != 29 {
			return fmt.Errorf("read up to entry %d, 30 is lost", last)
		}
	}
	return wantEntries(ctx, j, 31, 40)
}

// checkStalledWriter: a writer that slept while others appended, named a snapshot and trimmed, finds its number gone and free, and
// must lose all the same.
func checkStalledWriter(ctx context.Context, s journalStore) error {
	stalled, other := s.Open(), s.Open()
	defer stalled.Close()
	defer other.Close()
	known, err := appendMany(ctx, stalled, journal.Head{}, 2)
	if err != nil {
		return err
	}
	head, err := appendMany(ctx, other, known, 8)
	if err != nil {
		return err
	}
	if head, err = nameSnapshot(ctx, other, head, 7); err != nil {
		return err
	}
	if err := other.Trim(ctx, 8); err != nil {
		return err
	}
	_, err = appendNext(ctx, stalled, known, "of the stalled writer")
	var lost *journal.LostError
	if !errors.As(err, &lost) || lost.Head != head {
		return fmt.Errorf("a stalled writer's swap: %w, want a LostError with %+v", err, head)
	}
	if got, err := other.Head(ctx); err != nil || got != head {
		return fmt.Errorf("head after it %+v, %w, want %+v", got, err, head)
	}
	return wantErr("read the stalled writer's number", other.Read(ctx, 3, 3, func(uint64, []byte) error { return nil }), journal.ErrTrimmed)
}

func checkFull(ctx context.Context, s journalStore) error {
	j := s.Open()
	defer j.Close()
	known, err := appendMany(ctx, j, journal.Head{}, 10)
	if err != nil {
		return err
	}
	s.SetFull(true)
	_, err = appendNext(ctx, j, known, "refused")
	if err := wantErr("append to a full journal", err, journal.ErrFull); err != nil {
		return err
	}
	if got, err := j.Head(ctx); err != nil || got != known {
		return fmt.Errorf("head after a refused append %+v, %w", got, err)
	}
	if known, err = nameSnapshot(ctx, j, known, 9); err != nil {
		return fmt.Errorf("name a snapshot while the journal is full: %w", err)
	}
	if err := j.Trim(ctx, 10); err != nil {
		return fmt.Errorf("trim a full journal: %w", err)
	}
	s.SetFull(false)
	if _, err = appendMany(ctx, j, known, 12); err != nil {
		return err
	}
	return wantEntries(ctx, j, 10, 12)
}

func checkWentBack(ctx context.Context, s journalStore) error {
	if s.GoBack == nil {
		return nil
	}
	j := s.Open()
	defer j.Close()
	known, err := appendMany(ctx, j, journal.Head{}, 5)
	if err == nil {
		err = s.GoBack()
	}
	if err != nil {
		return err
	}
	_, headErr := j.Head(ctx)
	_, swapErr := appendNext(ctx, j, known, "on what is gone")
	return errors.Join(wantErr("head", headErr, journal.ErrWentBack), wantErr("swap", swapErr, journal.ErrWentBack))
}

// checkContenders: of those who swap the same head, one wins.
func checkContenders(ctx context.Context, s journalStore) error {
	const contenders = 4
	each := 5 * s.Rounds
	var won [contenders][]string
	errs := make([]error, contenders)
	var wg sync.WaitGroup
	for i := range contenders {
		j := s.Open()
		wg.Go(func() {
			won[i], errs[i] = contend(ctx, j, i, each)
			_ = j.Close()
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	j := s.Open()
	defer j.Close()
	head, err := j.Head(ctx)
	if err != nil {
		return err
	}
	var got []string
	if err := j.Read(ctx, 1, head.Seq, func(_ uint64, b []byte) error { got = append(got, string(b)); return nil }); err != nil {
		return err
	}
	want := slices.Concat(won[:]...)
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("%d entries are in the journal, %d were acknowledged, or they differ", len(got), len(want))
	}
	return nil
}

// contend appends entries, each to the head as it sees it.
func contend(ctx context.Context, j journal.Journal, who, count int) (won []string, err error) {
	for len(won) < count {
		known, err := j.Head(ctx)
		if err != nil {
			return nil, err
		}
		entry := fmt.Sprintf("%d of %d", len(won), who)
		_, err = appendNext(ctx, j, known, entry)
		switch {
		case err == nil:
			won = append(won, entry)
		case !errors.Is(err, journal.ErrLost):
			return nil, err
		}
	}
	return won, nil
}

func checkClosed(ctx context.Context, s journalStore) error {
	j := s.Open()
	known, err := appendMany(ctx, j, journal.Head{}, 1)
	if err != nil {
		return err
	}
	waited := make(chan error, 1)
	go func() {
		var err error
		for head := known; err == nil; {
			head, err = j.Wait(ctx, head)
		}
		waited <- err
	}()
	if err := errors.Join(j.Close(), j.Close()); err != nil {
		return err
	}
	_, headErr := j.Head(ctx)
	_, swapErr := appendNext(ctx, j, known, "closed")
	return errors.Join(wantErr("wait", <-waited, journal.ErrClosed), wantErr("head", headErr, journal.ErrClosed),
		wantErr("swap", swapErr, journal.ErrClosed), wantErr("trim", j.Trim(ctx, 0), journal.ErrClosed),
		wantErr("read", j.Read(ctx, 1, 1, func(uint64, []byte) error { return nil }), journal.ErrClosed))
}
