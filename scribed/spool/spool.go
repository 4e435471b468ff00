package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/buffers"
	"scribe/internal/base/lifecycle"
)

// Spool is a durable queue of records for each of any number of categories, in one log of segments. It is safe for concurrent use.
//
// A record is held until Done or Drop. While it is held it is either claimed, by whoever appended it or by Claim, or part of its
// category's backlog. Claims are of this process: after a restart everything held is available againlog, so a record whose Done was not yet
// saved is given out again.
type Spool struct {
	cfg     Config
	fs      vfs.FS
	logger  *slog.Logger
	clock   func() time.Time
	metrics *spoolMetrics
	lock    io.Closer

	// tail orders appends: it is held while one is written, and while the segment changes that is appended to.
	tail struct{ sync.Mutex }
	// chunks is the memory of what is not synced.
	chunks buffers.Pool

	// slots is the state file. The keeper uses it alone, Open and Close when it does not run.
	slots      stateSlots
	quarantine quarantineFolder

	// kickSync and kickKeeper wake their goroutines; armSync starts the syncer's timer. Each holds one wake-up, more are the same.
	kickSync, kickKeeper, armSync chan struct{}
	stop                          chan struct{}
	running                       sync.WaitGroup  // the goroutines
	calls                         lifecycle.Calls // that read files

	// ballasting is held while the ballast is made or removed, and by who says in mu that it was: mu may be taken under it.
	ballasting sync.Mutex

	mu struct {
		sync.Mutex
		recordBook
		// segments are all files with records, in order. tail is the last of them while it is appended to, spare the next one.
		segments    []*segmentFile
		active      *segmentFile
		spare       *segmentFile
		next        uint32
		trash       []*segmentFile // to be removed
		used        int64          // charged for all files
		rewriting   int64          // of used: charged for the file that is being rewritten
		sequence    uint64         // of the last Append
		unsynced    int64          // bytes
		failures    uint64         // failed syncs, and failed attempts to put that right
		changed     chan struct{}
		diskFull    bool
		ballast     bool
		failed      error
		losses      []DamageLoss
		lost        Amount
		stateSaved  uint64    // book.changes when the state was saved last
		stateDirty  time.Time // since when there is something to save
		stateBroken bool
	}
}

// maxLosses bounds what Losses keeps; of more, the oldest are left out.
const maxLosses = 1000

const folderMode = 0o750

// Open opens the spool of a folder, which is made if it is not there, and recovers what it holds. That takes time for the number of
// segments, not for what is in them: it reads the state and the footers of sealed segments, and scans the one that was not sealed.
// Damage is quarantined, counted, logged, and told by Losses.
func Open(cfg Config, deps Deps) (*Spool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, fs: deps.FS, logger: deps.Logger, clock: deps.Clock,
		kickSync: make(chan struct{}, 1), kickKeeper: make(chan struct{}, 1), armSync: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	if s.fs == nil {
		s.fs = vfs.Default
	}
	if s.logger == nil {
		s.logger = slog.New(slog.DiscardHandler)
	}
	if s.clock == nil {
		s.clock = time.Now
	}
	s.logger = s.logger.With("spool", cfg.Dir)
	s.metrics = newMetrics(s)
	s.mu.recordBook = newBook(cfg.IndexBytes)
	s.mu.changed = make(chan struct{})
	s.quarantine = quarantineFolder{fs: s.fs, dir: s.fs.PathJoin(cfg.Dir, quarantineName), limit: cfg.QuarantineBytes}
	if err := s.openFolder(); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: open %s: %w", cfg.Dir, err), s.abandonOpen())
	}
	if err := s.metrics.set.Register(deps.Registerer); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: metrics: %w", err), s.abandonOpen())
	}
	s.running.Go(s.syncLoop)
	s.running.Go(s.keepLoop)
	return s, nil
}

// openFolder takes the folder and recovers it.
func (s *Spool) openFolder() error {
	if err := makeFolder(s.fs, s.cfg.Dir); err != nil {
		return err
	}
	lock, err := s.fs.Lock(s.fs.PathJoin(s.cfg.Dir, lockName))
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			err = errors.New("stop the other process, or give this one a folder of its own")
		}
		return fmt.Errorf("the folder is in use: %w", err)
	}
	s.lock = lock
	return s.recoverSegments()
}

// abandonOpen gives back what a failed Open took.
func (s *Spool) abandonOpen() error {
	var errs []error
	for _, g := range s.mu.segments {
		if g.file != nil {
			errs = append(errs, g.file.Close())
		}
	}
	errs = append(errs, s.slots.close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Names in the folder, beside those of segments.
const (
	lockName       = "LOCK"
	stateName      = "state"
	ballastName    = "ballast"
	quarantineName = "quarantine"
	tempSuffix     = ".tmp"
)

// makeFolder makes a folder, with its parents, and syncs what it made into them.
func makeFolder(fsys vfs.FS, dir string) error {
	var made []string
	for d := fsys.PathJoin(dir); ; {
		if _, err := fsys.Stat(d); err == nil {
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		made = append(made, d)
		parent := fsys.PathDir(d)
		if parent == d {
			break
		}
		d = parent
	}
	if err := fsys.MkdirAll(dir, folderMode); err != nil {
		return err
	}
	for _, d := range made {
		if err := syncFolder(fsys, fsys.PathDir(d)); err != nil {
			return err
		}
	}
	return nil
}

// syncFolder makes names that were added to a folder, or removed from it, durable.
func syncFolder(fsys vfs.FS, dir string) error {
	f, err := fsys.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // it is on its way
	}
}

// broadcastChange wakes all who wait for something to change. The mutex is held.
func (s *Spool) broadcastChange() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// markDirty notes that there is state to save. The mutex is held.
func (s *Spool) markDirty() {
	if s.mu.stateDirty.IsZero() && s.mu.changes != s.mu.stateSaved {
		s.mu.stateDirty = time.Now()
		wake(s.kickKeeper)
	}
}

// Release gives claimed records to the backlog, in their place. Those that were found damaged meanwhile are gone. References that are
// not claimed are ignored.
func (s *Spool) Release(refs ...Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		s.mu.releaseClaim(ref)
	}
}

// Done says that claimed records are delivered; their space is reclaimed. It is saved to disk lazily. References that are not
// claimed, such as those of records that were dropped or found damaged meanwhile, are ignored.
func (s *Spool) Done(refs ...Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Closed() { // what was saved last must be what is true, or the counters of the two would differ
		return
	}
	for _, ref := range refs {
		if at, c, ok := s.mu.claimOf(ref); ok {
			s.mu.finishClaim(at, c)
			s.offerReclaim(c.part.seg)
		} else {
			s.mu.endStray(ref)
		}
	}
	s.markDirty()
}

// offerReclaim tells the keeper if a segment has nothing left. The mutex is held.
func (s *Spool) offerReclaim(g *segmentFile) {
	if g.held == 0 && g.state != active {
		wake(s.kickKeeper)
	}
}

// Drop takes the oldest unclaimed records of a category away until atLeast bytes of frames are gone and none is older than olderThan
// (zero = no age limit), and returns what it took, which is Gone for that reason. It may have to read an index; if that fails it takes
// less.
func (s *Spool) Drop(category string, atLeast int64, olderThan time.Time, reason string) Amount {
	var sum Amount
	limit := int64(-1 << 63)
	if !olderThan.IsZero() {
		limit = olderThan.UnixMicro()
	}
	if !s.calls.Enter() {
		return sum
	}
	defer s.calls.Leave()
	for {
		s.mu.Lock()
		some, need := s.mu.dropRecords(category, atLeast-sum.Bytes, limit, reason)
		s.markDirty()
		s.mu.Unlock()
		sum.plus(some)
		if some.Records > 0 {
			wake(s.kickKeeper)
			s.metrics.dropped.add(some)
		}
		if need == nil {
			return sum
		}
		if err := s.loadIndex(need); err != nil {
			s.logger.Error("dropping records failed: index unreadable", "category", category, "error", err)
			return sum
		}
	}
}

// Queues returns what is held of each category of which anything is, in no order.
func (s *Spool) Queues() []CategorySums {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]CategorySums, 0, len(s.mu.categories))
	for name := range s.mu.categories {
		out = append(out, s.mu.describeQueue(name))
	}
	return out
}

// Queue returns what is held of a category.
func (s *Spool) Queue(category string) CategorySums {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.describeQueue(category)
}

// Held returns what is held of a category, and of all, copies of what is in memory included.
func (s *Spool) Held(category string) (its, all Amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.categories[category]; c != nil {
		its = c.held
	}
	return its, s.mu.sums.held
}

// Backlog returns the backlog of a category.
func (s *Spool) Backlog(category string) (a Amount) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.mu.categories[category]; c != nil {
		a = c.backlog()
	}
	return a
}

// Reached reports whether no unclaimed record of a category stands at or before a position.
func (s *Spool) Reached(category string, upTo Position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.isReached(category, upTo)
}

// Account returns the backlog of all categories, and what is gone since Open or since the last call: together they are the backlog of
// then, with what was released since and without what was done.
func (s *Spool) Account() (backlog Amount, gone []GoneRecords) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, a := range s.mu.gone {
		gone = append(gone, GoneRecords{Category: key.category, Reason: key.reason, Amount: a})
	}
	clear(s.mu.gone)
	return s.mu.backlog(), gone
}

// Used returns what the files count, what is preallocated included, and MaxBytes.
func (s *Spool) Used() (bytes, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used, s.cfg.MaxBytes
}

// Losses returns what was found damaged since Open or since the last call: the last thousand of it.
func (s *Spool) Losses() []DamageLoss {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.mu.losses
	s.mu.losses = nil
	return out
}

// Lost sums what was found damaged since Open. Of a range without a readable header only the bytes are known, as they stand in the
// file.
func (s *Spool) Lost() Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.lost
}

// Dropped sums what Drop took of each category since the folder was made. A crash may forget the last calls, and then brings their
// records back.
func (s *Spool) Dropped() map[string]Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.mu.dropped)
}

// Failed says why nothing can be appended for another reason than space; nil otherwise, and again after a later try succeeded.
func (s *Spool) Failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.failed
}

// addGone counts a loss of records that nobody had claimed. The mutex is held.
func (s *Spool) addGone(l DamageLoss, a Amount) {
	if l.Records > 0 {
		s.mu.noteGone(l.Category, Damaged, Amount{Records: l.Records, Messages: l.Messages, Bytes: l.Bytes})
	}
	s.addLoss(l, a)
}

// addLoss counts a loss. The mutex is held.
func (s *Spool) addLoss(l DamageLoss, a Amount) {
	if len(s.mu.losses) == maxLosses {
		s.mu.losses = s.mu.losses[1:]
	}
	s.mu.losses = append(s.mu.losses, l)
	s.mu.lost.plus(a)
	s.metrics.lost.add(a)
	s.metrics.damage.Inc()
}

func (s *Spool) logLoss(l DamageLoss) {
	s.logger.Error("damaged range in a segment", "segment", l.Segment, "from", l.From, "to", l.To, "records", l.Records,
		"category", l.Category, "quarantine", l.QuarantineFile, "error", l.Err)
}

// Close refuses new appends and claims, syncs and seals, saves the state, and gives the folder back. Calls that are running are
// waited for. After an error the folder is as after a crash.
func (s *Spool) Close() error {
	s.tail.Lock()
	s.mu.Lock()
	first := s.calls.Drain()
	s.mu.Unlock()
	s.tail.Unlock()
	if !first {
		return ErrClosed
	}

	syncErr := s.waitDurable(context.Background(), false)
	close(s.stop)
	s.running.Wait()
	<-s.calls.Idle()

	errs := []error{syncErr}
	s.mu.Lock()
	if g := s.mu.active; g != nil {
		g.state, s.mu.active = sealing, nil
	}
	if g := s.mu.spare; g != nil {
		s.mu.spare = nil
		s.discardSegment(g)
	}
	s.mu.Unlock()
	errs = append(errs, s.sealAll(), s.reclaimSegments(true))
	s.mu.Lock()
	for _, g := range s.mu.segments {
		if g.file != nil {
			errs = append(errs, g.file.Close())
			g.file = nil
		}
	}
	s.mu.Unlock()
	s.metrics.set.Unregister()
	return errors.Join(append(errs, s.slots.close(), s.lock.Close())...)
}
