package spool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/buffers"
	"scribe/internal/base/durable"
	"scribe/internal/base/lifecycle"
	"scribe/scribed/keyring"
)

// Spool is a durable queue of records for any number of categories, in one log of segments. It is safe for concurrent use.
//
// A record is held until Done or Drop. While it is held, it is either claimed, by its appender or by Claim, or part of its
// category's backlog. Claims belong to this process: after a restart every held record is available again, so a record whose Done
// was not yet saved is given out again.
type Spool struct {
	cfg     Config
	fs      vfs.FS
	logger  *slog.Logger
	clock   func() time.Time
	metrics *spoolMetrics
	lock    io.Closer
	// keys encrypt records, if they encrypt anything.
	keys *keyring.Keyring

	// tail orders appends. It is held while an append is written and while the active segment changes.
	tail struct{ sync.Mutex }
	// chunks is the memory of unsynced bytes.
	chunks buffers.Pool

	// slots is the state file. Only the keeper uses it; Open and Close use it while the keeper is not running.
	slots      stateSlots
	quarantine *quarantineFolder

	// kickSync and kickKeeper wake their goroutines; armSync starts the syncer's timer.
	kickSync, kickKeeper, armSync lifecycle.WakeChannel
	stop                          chan struct{}
	running                       sync.WaitGroup  // the syncer and the keeper
	calls                         lifecycle.Calls // calls that read files

	// ballasting is held while the ballast is created or removed, and while mu.ballast and mu.diskFull are updated for it: mu may
	// be taken under it.
	ballasting sync.Mutex

	mu struct {
		sync.Mutex
		recordBook
		// segments are all files with records, in order. active is the last of them while it is appended to, spare the next one.
		segments    []*segmentFile
		active      *segmentFile
		spare       *segmentFile
		next        uint32
		trash       []*segmentFile // segments to be removed
		used        int64          // charged for all files
		rewriting   int64          // part of used: charged for the file that is being rewritten
		sequence    uint64         // sequence number of the last Append
		unsynced    int64          // bytes
		failures    uint64         // failed syncs, and failed attempts to repair them
		changed     chan struct{}
		diskFull    bool
		ballast     bool
		stateSaved  uint64    // recordBook.changes when the state was last saved
		stateDirty  time.Time // since when there are unsaved changes; zero = none
		stateBroken bool
	}
}

// Open opens the spool of a folder, which it creates if needed, and recovers its records. The time depends on the number of
// segments, not on their content: Open reads the state and the footers of sealed segments, and scans the segment that was not
// sealed. Damage is quarantined, counted and logged.
func Open(cfg Config, deps Deps) (*Spool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Spool{
		cfg: cfg, fs: deps.FS, logger: deps.Logger, clock: deps.Clock,
		kickSync: lifecycle.NewWakeChannel(), kickKeeper: lifecycle.NewWakeChannel(), armSync: lifecycle.NewWakeChannel(), stop: make(chan struct{}),
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
	s.quarantine = newQuarantine(s.fs, cfg.Dir, cfg.QuarantineBytes)
	if err := s.openFolder(deps); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: open %s: %w", cfg.Dir, err), s.releaseFiles())
	}
	if err := s.metrics.set.Register(deps.Registerer); err != nil {
		return nil, errors.Join(fmt.Errorf("spool: metrics: %w", err), s.releaseFiles())
	}
	s.running.Go(s.syncLoop)
	s.running.Go(s.keepLoop)
	return s, nil
}

// openFolder locks the folder and recovers it.
func (s *Spool) openFolder(deps Deps) error {
	if err := durable.CreateFolder(s.fs, s.cfg.Dir, 0o750); err != nil {
		return err
	}
	lock, err := LockFolder(s.fs, s.cfg.Dir)
	if err != nil {
		return err
	}
	s.lock = lock
	s.keys, err = keyring.Open(keyring.Config{Dir: s.fs.PathJoin(s.cfg.Dir, keysName), FS: s.fs, Wrapper: deps.Wrapper, Random: deps.Random})
	if err != nil {
		return err
	}
	return s.recoverSegments()
}

// LockFolder locks a spool's folder against other processes until the lock is closed.
func LockFolder(fsys vfs.FS, dir string) (io.Closer, error) {
	lock, err := fsys.Lock(fsys.PathJoin(dir, lockName))
	if err != nil {
		if errors.Is(err, syscall.EAGAIN) {
			err = errors.New("stop the other process, or give this one a folder of its own")
		}
		return nil, fmt.Errorf("the folder is in use: %w", err)
	}
	return lock, nil
}

// releaseFiles closes what Open acquired. No goroutine of the spool runs.
func (s *Spool) releaseFiles() error {
	var errs []error
	for _, g := range s.mu.segments {
		if g.file != nil {
			errs = append(errs, g.file.Close())
			g.file = nil
		}
	}
	errs = append(errs, s.slots.close())
	if s.lock != nil {
		errs = append(errs, s.lock.Close())
	}
	return errors.Join(errs...)
}

// Names in the folder, besides those of segments.
const (
	lockName       = "LOCK"
	stateName      = "state"
	ballastName    = "ballast"
	quarantineName = "quarantine"
	keysName       = keyring.FolderName
	tempSuffix     = ".tmp"
)

// broadcastChange wakes all that wait for a change. The mutex is held.
func (s *Spool) broadcastChange() {
	close(s.mu.changed)
	s.mu.changed = make(chan struct{})
}

// markDirty notes that the state has unsaved changes. The mutex is held.
func (s *Spool) markDirty() {
	if s.mu.stateDirty.IsZero() && s.mu.changes != s.mu.stateSaved {
		s.mu.stateDirty = time.Now()
		s.kickKeeper.WakeUp()
	}
}

// Release returns claimed records to the backlog, at their old positions. Records found damaged meanwhile are gone. References
// that are not claimed are ignored.
func (s *Spool) Release(refs ...Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range refs {
		s.mu.releaseClaim(ref)
	}
}

// Done marks claimed records as delivered; their space is reclaimed. It is saved to disk lazily. References that are not claimed,
// such as records that were dropped or found damaged meanwhile, are ignored.
func (s *Spool) Done(refs ...Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls.Closed() { // the saved state must stay the final one, or its counters and the caller's would differ
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

// offerReclaim wakes the keeper if a segment has no held records left. The mutex is held.
func (s *Spool) offerReclaim(g *segmentFile) {
	if g.held == 0 && g.state != active {
		s.kickKeeper.WakeUp()
	}
}

// Drop drops the oldest unclaimed records of a category until at least atLeast bytes of frames are dropped and no record is older
// than olderThan (zero = no age limit). It returns the amount dropped, which Account reports as gone for the reason. It may have
// to read an index; if that fails, it drops less.
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
			s.kickKeeper.WakeUp()
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

// Queues returns the amounts of each category with held records, in no particular order.
func (s *Spool) Queues() []CategorySums {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]CategorySums, 0, len(s.mu.categories))
	for name := range s.mu.categories {
		out = append(out, s.mu.describeQueue(name))
	}
	return out
}

// Held returns the amounts held of a category and of all categories, including copies of frames in memory.
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

// Reached reports whether all records of a category up to a position, inclusive, are claimed or finished.
func (s *Spool) Reached(category string, upTo Position) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.isReached(category, upTo)
}

// Account returns the backlog of all categories, and the amounts gone since Open or the last call. Together they equal the
// backlog of that time, plus the records released since, minus the records done since.
func (s *Spool) Account() (backlog Amount, gone []GoneRecords) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, a := range s.mu.gone {
		gone = append(gone, GoneRecords{Category: key.category, Reason: key.reason, Amount: a})
	}
	clear(s.mu.gone)
	return s.mu.backlog(), gone
}

// Used returns the bytes charged for the files, including preallocated space, and MaxBytes.
func (s *Spool) Used() (bytes, limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.used, s.cfg.MaxBytes
}

// addLoss counts a loss. If the records were unclaimed, they are gone from the backlog. The mutex is held.
func (s *Spool) addLoss(l *damageLoss, a Amount, unclaimed bool) {
	reason := Damaged
	if errors.Is(l.Err, keyring.ErrDeleted) {
		reason = KeyDeleted
	}
	if unclaimed && l.Records > 0 {
		s.mu.noteGone(l.Category, reason, Amount{Records: l.Records, Messages: l.Messages, Bytes: l.Bytes})
	}
	if reason == KeyDeleted {
		s.metrics.dropped.add(a)
		return
	}
	s.metrics.lost.add(a)
	s.metrics.damage.Inc()
}

func (s *Spool) logLoss(l damageLoss) {
	if errors.Is(l.Err, keyring.ErrDeleted) {
		return // it was asked for, and is counted
	}
	s.logger.Error("damaged range in a segment", "segment", l.Segment, "from", l.From, "to", l.To, "records", l.Records,
		"category", l.Category, "quarantine", l.QuarantineFile, "error", l.Err)
}

// Close refuses new appends and claims, syncs and seals the segments, saves the state, and unlocks the folder. It waits for
// running calls. After an error the folder is as after a crash. A second call returns ErrClosed.
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

	s.mu.Lock()
	if g := s.mu.active; g != nil {
		g.state, s.mu.active = sealing, nil
	}
	if g := s.mu.spare; g != nil {
		s.mu.spare = nil
		s.discardSegment(g)
	}
	s.mu.Unlock()
	err := errors.Join(syncErr, s.sealAll(), s.reclaimSegments(true))
	s.metrics.set.Unregister()
	return errors.Join(err, s.releaseFiles())
}
