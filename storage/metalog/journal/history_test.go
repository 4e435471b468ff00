package journal_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"scribe/internal/base/entropy"
	"scribe/storage/metalog/journal"
)

// history is what contenders were told, and what a follower has applied.
type history struct {
	mu struct {
		sync.Mutex
		// acked and failed are payloads that were acknowledged, and that were definitely refused.
		acked, failed []string
		unknown       int
		// takeovers counts terms.
		takeovers int
		// applied are the payloads in the order of the journal, snapshot how many of them a snapshot has.
		applied  []string
		position journal.Position
	}
}

// checkHistory: leaders depose each other while a share of their calls fails before or after it took effect, or takes effect later,
// and entries are trimmed right behind a follower. No acknowledged entry is lost, none is there twice, and none that was refused.
func checkHistory(ctx context.Context, s journalStore) error {
	var h history
	var contenders sync.WaitGroup
	stopFollower := make(chan struct{})
	followed := make(chan error, 1)
	follower := s.Open()
	defer follower.Close()
	go func() { followed <- h.follow(ctx, follower, stopFollower) }()
	errs := make([]error, 3)
	for i := range errs {
		j := &flakyJournal{Journal: s.Open(), random: entropy.NewSeeded(uint64(i)+1, "journal faults")}
		contenders.Go(func() {
			errs[i] = h.runContender(ctx, j, i, 6*s.Rounds)
			j.late.Wait()
			_ = j.Close()
		})
	}
	contenders.Wait()
	close(stopFollower)
	// A last entry, behind every late call, ends the wait of the follower.
	last := s.Open()
	defer last.Close()
	errs = append(errs, h.runContender(ctx, last, len(errs), 1), <-followed)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return h.check()
}

// check compares what was told with what is there.
func (h *history) check() error {
	count := map[string]int{}
	for _, p := range h.mu.applied {
		count[p]++
	}
	for p, n := range count {
		if n > 1 {
			return fmt.Errorf("%q is in the journal %d times", p, n)
		}
	}
	for _, p := range h.mu.acked {
		if count[p] == 0 {
			return fmt.Errorf("%q was acknowledged, and is lost (%d acknowledged, %d terms)", p, len(h.mu.acked), h.mu.takeovers)
		}
	}
	for _, p := range h.mu.failed {
		if count[p] > 0 {
			return fmt.Errorf("%q was refused, and is in the journal", p)
		}
	}
	if len(h.mu.acked) == 0 {
		return errors.New("nothing was acknowledged")
	}
	return nil
}

// follow applies everything until the last entry after stop.
func (h *history) follow(ctx context.Context, j journal.Journal, stop <-chan struct{}) error {
	reader, err := journal.NewReader(j)
	if err != nil {
		return err
	}
	var head journal.Head
	for {
		stopping := false
		select {
		case <-stop:
			stopping = true
		default:
		}
		if stopping {
			if head, err = j.Head(ctx); err != nil {
				return err
			}
		}
		if _, err := reader.ReadEntries(ctx, h.at(), head, h.apply); err != nil {
			return fmt.Errorf("follow: %w", err)
		}
		if stopping && len(h.mu.applied) > 0 && h.mu.applied[len(h.mu.applied)-1] == "0 of 3" {
			return nil
		}
		if head, err = j.Wait(ctx, head); err != nil {
			return err
		}
	}
}

func (h *history) at() journal.Position {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.mu.position
}

func (h *history) apply(e journal.Entry, p journal.Position) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.applied, h.mu.position = append(h.mu.applied, string(e.Payload)), p
	return nil
}

// runContender takes over and appends until count of its entries have an outcome.
func (h *history) runContender(ctx context.Context, j journal.Journal, who, count int) error {
	for n := 0; n < count; {
		if err := ctx.Err(); err != nil {
			return err
		}
		l, err := h.lead(ctx, j)
		if err != nil {
			if errors.Is(err, journal.ErrWentBack) || errors.Is(err, journal.ErrCorrupt) {
				return err
			}
			continue
		}
		for range 4 {
			if n == count || h.appendOne(ctx, l, fmt.Sprintf("%d of %d", n, who)) != nil {
				break
			}
			n++
			if err := h.trimBehind(ctx, j, l); err != nil {
				break
			}
		}
		n++ // the one that failed is not repeated: it has an outcome, if only an unknown one
	}
	return nil
}

// lead takes over with what the follower has applied, as a replica that began from its snapshot would.
func (h *history) lead(ctx context.Context, j journal.Journal) (*journal.Leader, error) {
	head, err := j.Head(ctx)
	if err != nil {
		return nil, err
	}
	reader, err := journal.NewReader(j)
	if err != nil {
		return nil, err
	}
	position, err := reader.ReadEntries(ctx, h.at(), head, func(journal.Entry, journal.Position) error { return nil })
	if errors.Is(err, journal.ErrWentBack) && h.at().Seq > head.Seq {
		return nil, errors.New("the follower is ahead of this head")
	}
	if err != nil {
		return nil, err
	}
	l, err := journal.Lead(ctx, j, head, position, journal.Options{URL: "http://leader", TryTimeout: 200 * time.Millisecond, GiveUpAfter: time.Second})
	if err == nil {
		h.mu.Lock()
		h.mu.takeovers++
		h.mu.Unlock()
	}
	return l, err
}

func (h *history) appendOne(ctx context.Context, l *journal.Leader, payload string) error {
	err := l.Append(ctx, []byte(payload), journal.Times{})
	if errors.Is(err, journal.ErrUnknown) && !errors.Is(err, journal.ErrDeposed) {
		applied, resolveErr := l.Resolve(ctx)
		if applied {
			err = nil
		} else {
			err = errors.Join(err, resolveErr)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.mu.acked = append(h.mu.acked, payload)
	case errors.Is(err, journal.ErrUnknown):
		h.mu.unknown++
	default:
		h.mu.failed = append(h.mu.failed, payload)
	}
	return err
}

// trimBehind names what the follower has applied as the snapshot, and trims all of it.
func (h *history) trimBehind(ctx context.Context, j journal.Journal, l *journal.Leader) error {
	seq := min(h.at().Seq, l.Head().Seq)
	if err := l.RecordSnapshot(ctx, seq); err != nil {
		return err
	}
	return j.Trim(ctx, seq+1)
}

// flakyJournal fails a share of its swaps: before they take effect, after it, or while they take effect later.
type flakyJournal struct {
	journal.Journal
	random *entropy.Source
	late   sync.WaitGroup
}

var errFlaky = errors.New("planted fault")

// Swap implements journal.Journal.
func (f *flakyJournal) Swap(ctx context.Context, known, next journal.Head, entry []byte) (journal.Head, error) {
	switch f.random.IntN(10) {
	case 0:
		return journal.Head{}, errFlaky
	case 1:
		_, _ = f.Journal.Swap(ctx, known, next, entry)
		return journal.Head{}, errFlaky
	case 2:
		f.late.Go(func() {
			later := context.WithoutCancel(ctx)
			for range f.random.IntN(4) {
				_, _ = f.Head(later)
			}
			_, _ = f.Journal.Swap(later, known, next, entry)
		})
		return journal.Head{}, errFlaky
	}
	return f.Journal.Swap(ctx, known, next, entry)
}
