package recovery

import (
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/base/config"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob"
	"scribe/storage/metalog"
)

// EpochMargin is added to the newest epoch in the blobs to get a recovered log's epoch. A writer may have opened the log several
// times since then, and must not be taken for one from after the recovery.
const EpochMargin = 1 << 20

// IDMargin is the number of category ids that are skipped above the highest known one, for categories that left no trace.
const IDMargin = 10_000

// Config configures a recovery.
type Config struct {
	// Scratch is the folder of the scratch database. It is created if necessary, and reused after a crash.
	Scratch string `required:"a folder"`
	// Source names the store of blobs, so that a scratch database of another store is refused.
	Source string
	// Workers is the number of footers that are read concurrently.
	Workers int `default:"16" min:"1" max:"1024"`
	// MaxFill bounds the consecutive missing records that are filled with placeholders. If a gap is longer, the log begins after
	// it.
	MaxFill uint64 `default:"1000000"`
	// Catalog is a copy of the categories; nil if there is none.
	Catalog *Catalog
	// TrimmedUntil is a time after which retention trimmed nothing unless there are newer blobs, Unix microseconds: what had not expired by
	// then is in the blobs. 0 means that it never deleted a blob.
	TrimmedUntil int64
	// Until, if it is not 0, is the moment to restore, Unix microseconds: later records have placeholders.
	Until int64
}

// Validate reports every violation.
func (c *Config) Validate() error { return config.Check("recovery", c, nil).Err() }

// Catalog is a copy of the categories from before the loss.
type Catalog struct {
	Categories []*scribev1.Category
	// Dropped are deleted categories whose logs were not yet removed.
	Dropped []*scribev1.Category
	// Tenants are the quotas of tenants where the copy is of a process; a control store is copied with them.
	Tenants *scribev1.TenantQuotas
	// NextID is above every id assigned when the copy was made; 0 if unknown.
	NextID uint64
	// SavedAt is the time of the copy, Unix microseconds: older categories that are not in it were deleted. It is not needed with
	// NextID, unless the copy is Older.
	SavedAt int64
	// Older says that blobs may be newer than the copy although that has NextID: of ids below it, categories may have been created since.
	Older bool
}

// Sink receives recovered logs, one shard after another: first its records in the order of LSNs, then its state. With a nil Sink,
// Run only counts.
type Sink interface {
	Record(s record.ShardID, lsn record.LSN, time int64, data []byte) error
	Producer(s record.ShardID, p metalog.ProducerState, lsn record.LSN, time int64) error
	Shard(st metalog.State) error
	Retire(category uint32)
}

// Deps are the dependencies of a recovery.
type Deps struct {
	// FS holds the scratch database; nil means the operating system's.
	FS    vfs.FS
	Blobs blob.Store
	// Now is the time of the recovery; defaults to time.Now.
	Now func() time.Time
	// Base is a copy of the logs from before the loss; nil if there is none. Every record that it lacks has a persisted time of at least Watermark, Unix
	// microseconds.
	Base      Base
	Watermark int64
	// Progress, if set, is called with the progress of a phase, several times a second, by one goroutine at a time.
	Progress func(phase string, done int64)
	// Found, if set, is called with every finding, by one goroutine at a time.
	Found func(Finding) error
}

// FindingKind is the kind of a finding.
type FindingKind string

// Kinds of findings.
const (
	// FindingDamaged: a blob's footer can't be read. The blob's messages are in no log, but may still be in the blob.
	FindingDamaged FindingKind = "damaged"
	// FindingNewer: a blob has a format that this build does not support.
	FindingNewer FindingKind = "newer"
	// FindingForeign: an object under the key prefix of blobs is not a blob.
	FindingForeign FindingKind = "foreign"
	// FindingVoid: a blob was not committed: its pointers are in no log.
	FindingVoid FindingKind = "void"
	// FindingUncertain: no footer tells whether the blob was committed. It is treated as committed.
	FindingUncertain FindingKind = "uncertain"
	// FindingConflict: two blobs claim the same position, and both appear to be committed.
	FindingConflict FindingKind = "conflict"
	// FindingContradiction: footers disagree about whether a blob was committed.
	FindingContradiction FindingKind = "contradiction"
	// FindingGap: records of a log are in no blob. They are lost.
	FindingGap FindingKind = "gap"
	// FindingRestart: a log begins after a gap, since the records before it have expired or the gap is too long to fill.
	FindingRestart FindingKind = "restart"
	// FindingCut: records of a log are later than the moment to restore. They have placeholders.
	FindingCut FindingKind = "cut"
	// FindingCategory: a property of a category had to be assumed.
	FindingCategory FindingKind = "category"
)

// Finding is a defect, or a fact that the blobs do not determine.
type Finding struct {
	Kind FindingKind
	// Key and Size are the blob's.
	Key  string
	Size int64
	// Category, Shard, From and To are the position, with the LSNs [From, To).
	Category string
	Shard    record.ShardID
	From, To record.LSN
	// Reason explains the finding to people.
	Reason string
	// Contents are the messages that a scan found in a damaged blob.
	Contents []Contents
}

// Contents summarises the messages of a logical shard in a damaged blob.
type Contents struct {
	Category string `json:"category"`
	Shard    uint32 `json:"shard"`
	Frames   int    `json:"frames"`
	Messages int    `json:"messages"`
}

// Report is the result of a recovery.
type Report struct {
	BlobCounts
	LogCounts

	// Oldest and Newest are the times of the oldest and the newest blob, Unix microseconds; 0 without blobs.
	Oldest, Newest int64
	// Clock is the least time of later records, Unix microseconds.
	Clock int64
	// Origin is the LSN at which logs begin that were not found, or whose end is unknown. It is the time of the recovery in microseconds,
	// above all LSNs that these logs can have given out, even if they began at the origin of an earlier recovery.
	Origin record.LSN
	// Categories, Dropped and NextID are the state of a control plane.
	Categories, Dropped []*scribev1.Category
	NextID              uint64
}

// BlobCounts counts what was in the store.
type BlobCounts struct {
	// Blobs is the number of blobs whose footers were read, or need not be; Bytes is the size of all listed ones.
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
	// Read is the number of blobs read by this run; the others were read by an earlier, interrupted run.
	Read int64 `json:"footers_read"`
	// Committed, Void and Uncertain count the blobs by outcome. Uncertain ones are treated as committed.
	Committed int64 `json:"blobs_committed"`
	Void      int64 `json:"blobs_not_committed"`
	Uncertain int64 `json:"blobs_uncertain"`
	// Damaged, Newer and Foreign count the skipped objects, Gone those that were deleted meanwhile.
	Damaged int64 `json:"blobs_damaged"`
	Newer   int64 `json:"blobs_newer"`
	Gone    int64 `json:"blobs_gone"`
	Foreign int64 `json:"foreign_objects"`
	// Settled counts the blobs that are too old to have been committed after the base, whose footers are not read.
	Settled int64 `json:"blobs_of_backup,omitempty"`
}

// LogCounts counts what became of it.
type LogCounts struct {
	Logs     int64 `json:"logs"`
	Records  int64 `json:"records"`
	Messages int64 `json:"messages"`
	// UncertainRecords counts the records of uncertain blobs.
	UncertainRecords int64 `json:"records_uncertain"`
	// Lost counts the missing records; each has a placeholder in its log. Gaps counts the runs of missing records.
	Lost int64 `json:"records_lost"`
	Gaps int64 `json:"gaps"`
	// Restarts counts the logs that begin after a gap, Expired the skipped records before the gap.
	Restarts int64 `json:"logs_begun_behind_a_gap"`
	Expired  int64 `json:"records_expired"`
	// Deleted counts the records of deleted categories.
	Deleted int64 `json:"records_of_deleted_categories"`
	// Conflicts and Contradictions count what footers could not decide.
	Conflicts      int64 `json:"conflicts"`
	Contradictions int64 `json:"contradictions"`
	// Copied counts the records of the base, Cut those that have placeholders because they are later than the moment to restore.
	Copied int64 `json:"records_of_backup,omitempty"`
	Cut    int64 `json:"records_cut,omitempty"`
}

// Whole reports whether the recovery is complete: nothing is damaged, lost or contradictory.
func (r *Report) Whole() bool {
	return r.Damaged == 0 && r.Newer == 0 && r.Lost == 0 && r.Conflicts == 0 && r.Contradictions == 0
}

// recoveryRun is one recovery.
type recoveryRun struct {
	cfg     Config
	deps    Deps
	scratch *scratchDB
	now     int64
	report  Report
	sink    Sink
	// lastBlob is the answer of the last hasBlob.
	lastBlob struct {
		id    pointer.BlobID
		there bool
	}
}

// Run recovers metadata from the blobs of a store. The caller makes the sink's logs and the categories of the report durable.
func Run(ctx context.Context, cfg Config, deps Deps, sink Sink) (_ *Report, err error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.FS == nil {
		deps.FS = vfs.Default
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Progress == nil {
		deps.Progress = func(string, int64) {}
	}
	if deps.Found == nil {
		deps.Found = func(Finding) error { return nil }
	}
	if sink == nil {
		sink = discardSink{}
	}
	s, err := openScratch(deps.FS, cfg.Scratch, cfg.Source)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	r := &recoveryRun{cfg: cfg, deps: deps, scratch: s, now: deps.Now().UnixMicro(), sink: sink}
	r.report.Clock = r.now
	if deps.Base != nil {
		r.report.Clock = max(r.now, deps.Base.Clock())
	}
	for _, step := range []func(context.Context) error{r.scanBlobs, r.resolveBlobs, r.buildLogs} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return &r.report, nil
}

// discardSink discards recovered logs.
type discardSink struct{}

func (discardSink) Record(record.ShardID, record.LSN, int64, []byte) error { return nil }

func (discardSink) Producer(record.ShardID, metalog.ProducerState, record.LSN, int64) error {
	return nil
}

func (discardSink) Shard(metalog.State) error { return nil }

func (discardSink) Retire(uint32) {}
