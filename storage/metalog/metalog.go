package metalog

import (
	"context"
	"time"

	"scribe/internal/format/record"
)

// Limits of every engine. They bound one call, so that no request makes an engine use unbounded memory.
const (
	// MaxRecord is the largest record in bytes.
	MaxRecord = 64 << 10
	// MaxAppend is the largest transaction in bytes of record data.
	MaxAppend = 32 << 20
	// MaxAppendShards is how many shards one transaction may touch.
	MaxAppendShards = 100_000
	// MaxAppendRecords and MaxAppendSequences bound the records and the runs of sequences in one transaction.
	MaxAppendRecords   = 1_000_000
	MaxAppendSequences = 1_000_000
	// MaxConflicts bounds the refused shards or runs that an error of Append lists: the first ones, in the order of the
	// transaction.
	MaxConflicts = 1_000
	// MaxShards is how many shards Open, Tail, Seek, Subscribe and Remove take in one call.
	MaxShards = 10_000
	// MaxProducers is how many producers Sequences takes in one call.
	MaxProducers = 10_000
	// MaxOwner is the longest name of an owner in bytes.
	MaxOwner = 255
	// MaxReadRecords and MaxReadBytes bound an answer of Read. Zero and larger values mean these limits.
	MaxReadRecords = 10_000
	MaxReadBytes   = 4 << 20
	// DefaultHeartbeat is the interval at which an idle subscription gets the watermark, and MinHeartbeat the shortest one.
	DefaultHeartbeat = time.Second
	MinHeartbeat     = 10 * time.Millisecond
)

// Log is a metadata engine: many append-only logs ("physical shards") of small records. All methods are safe for concurrent
// use, and append, read and tail are linearizable per shard. Times are Unix microseconds.
//
// Errors that callers branch on: ErrFenced, ErrSealed and ErrConflict (as *RefusedError), ErrSequence (as
// *SequenceError), ErrStaleBlob, ErrTrimmed (as *TrimmedError), ErrInvalid, ErrClosed, ErrCorrupt (as *CorruptError), ErrNotLeader
// (as *NotLeaderError). They are definite: the call changed nothing. An Append that fails with any other error, the end of its
// context included, has an unknown outcome: it may have been applied.
type Log interface {
	// Open makes owner the writer of shards, and creates those that do not exist. Each shard gets an epoch above all earlier
	// ones; appends with an earlier epoch fail with ErrFenced from then on. A sealed shard keeps its epoch and is returned with
	// Sealed set. States are in the order of shards. The call is durable when it returns. If shards belong to a retired category,
	// Open opens none and fails with ErrSealed (as *RefusedError, which names them).
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]State, error)

	// Append adds records to several shards in one transaction, all or none, and returns when it is durable and visible. Results
	// are in the order of a.Shards. The engine does not keep a's memory after it returns. Violations are looked for in this
	// order: limits (ErrInvalid), a.OldestBlob (ErrStaleBlob), shards (sealed before fenced before conflict; an epoch that is not
	// the newest one of the shard is ErrFenced, also where the shard does not exist), sequences.
	Append(ctx context.Context, a *Append) ([]Appended, error)

	// Read returns records of a shard in order and without gaps, beginning with LSN from: at most maxRecords and, except for the
	// first record, maxBytes of data. The answer is empty at the tail, beyond it, and for a shard that does not exist. Positions
	// below the first record fail with ErrTrimmed (as *TrimmedError), position 0 with ErrInvalid. An answer ends before a damaged
	// record; if that is its first record, the call fails with ErrCorrupt (as *CorruptError). The entries' data belongs to the
	// caller.
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]Entry, error)

	// Tail returns the states of shards, in their order. A shard that does not exist has Epoch 0, and the LSN of its first record as
	// FirstLSN and NextLSN: 1, or a higher one if the metadata was recovered and the shard may have been lost. It is
	// Sealed if its category was retired: then it will never exist, or was erased.
	Tail(ctx context.Context, shards []record.ShardID) ([]State, error)

	// Subscribe follows shards, each at most once. It calls fn, never concurrently, with the records from the given positions on,
	// with new records as they commit (without polling), and with a watermark for each idle shard at once and then at every
	// heartbeat (0 means DefaultHeartbeat; values below MinHeartbeat mean MinHeartbeat). A slow fn delays only its own
	// subscription, whose memory stays bounded. Updates and everything they refer to are valid until fn returns, and must not be
	// changed. Subscribe returns when ctx ends (with its error), when fn returns an error (which is returned as it is), or when
	// the engine closes. A shard that does not exist yet is followed as soon as it appears.
	//
	// Within one subscription neither a shard's tail nor its watermark goes back. An erased shard ends at the latest tail that
	// this subscription reported: to a subscriber it was trimmed up to that tail and sealed. The tail of a shard that was erased
	// before the subscription is unknown, so that shard ends at the subscriber's position. A reader that knows a later tail, from
	// Tail or from an earlier subscription, treats the records between as trimmed; a Read of them is empty. A shard of a
	// retired category that never existed ends at the next heartbeat.
	Subscribe(ctx context.Context, from []Position, heartbeat time.Duration, fn func([]Update) error) error

	// Seek returns, for each shard, the LSN of the first record persisted at or after t, or the tail if no such record exists.
	Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error)

	// Trim removes records below before. A value above the tail is ErrInvalid. Repeating it, or trimming to a lower LSN, has no
	// effect.
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error

	// Seal ends a shard: no epoch can append to it any more. Repeating it is harmless. A shard that does not exist is ErrInvalid.
	Seal(ctx context.Context, shard record.ShardID) (State, error)

	// Retire ends a category's id for ever. Its shards are sealed, and from then on Open and Append of any shard of that id fail
	// with ErrSealed, including shards that never existed. Stored records can be read until they are trimmed. The call is durable
	// when it returns; repeating it is harmless. Its duration is proportional to the number of the category's shards.
	Retire(ctx context.Context, category uint32) error

	// Erase removes everything left of a retired category: its shards with their records and producer states. A category that is
	// not retired is ErrInvalid. The call is durable when it returns; repeating it is harmless.
	Erase(ctx context.Context, category uint32) error

	// Remove takes empty shards off the list of their category: Shards and WatchShards do not return them until they are opened again. It
	// passes over a shard that has records, is sealed or retired, or knows producers, and over one whose epoch is not the given one: it was
	// opened since. It returns how many it removed. For everybody else a removed shard is an empty one, whose identity goes on: it keeps its
	// NextLSN, its LastTime and its epoch, which removing raises, so appends of the writer that has it open fail with ErrFenced. Its Origin is
	// its NextLSN. The call is durable when it returns; repeating it is harmless.
	Remove(ctx context.Context, shards []Unused) (removed int, err error)

	// Shards returns the shards of a category by id, but for removed ones. Every shard is among them that had a record before their Watermark
	// and was not removed.
	Shards(ctx context.Context, category uint32) ([]State, error)

	// RemovedShards returns the removed shards of a category by id whose LastTime is at or after since. A shard without any record has the
	// LastTime 0.
	RemovedShards(ctx context.Context, category uint32, since int64) ([]State, error)

	// WatchShards calls fn, never concurrently, first with the existing shards of a category, even if there are none, then with
	// shards as they appear, or appear again after they were removed. The slice is valid until fn returns. WatchShards ends as Subscribe does.
	WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error

	// Sequences returns a shard's states of producers, in the order of producers.
	Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]ProducerState, error)

	// AdvanceBoundary raises the time below which blobs may be deleted: appends that refer to an older blob fail with
	// ErrStaleBlob from then on. It returns the boundary, which never goes back. A t of 0 only reads it.
	AdvanceBoundary(ctx context.Context, t int64) (int64, error)

	// Annotate keeps annotations beside records and returns how many it kept. Each replaces the record's earlier one of its kind;
	// annotations of trimmed or missing records are skipped. They are readable when Annotate returns, and are removed with their
	// records. A crash may lose them, and no reader may need them. The engine does not keep the memory of notes after it returns.
	Annotate(ctx context.Context, notes []Annotation) (kept int, err error)

	// Annotations returns the annotations of one kind beside the records [from, to) of a shard, by LSN: of at most MaxReadRecords
	// records and, except for the first, maxBytes of data (0 and values above MaxReadBytes mean MaxReadBytes). The answer is
	// complete for LSNs below until. Damaged annotations are left out. The data belongs to the caller.
	Annotations(ctx context.Context, shard record.ShardID, from, to record.LSN, kind AnnotationKind, maxBytes int) (notes []Annotation, until record.LSN, err error)

	// Close ends subscriptions with ErrClosed, waits for running calls, and releases the engine's resources. Repeating it is
	// harmless.
	Close() error
}

// State is the state of a shard.
type State struct {
	Shard record.ShardID
	// FirstLSN is the LSN of the oldest record, or NextLSN if the shard has no records.
	FirstLSN record.LSN
	// NextLSN is the LSN of the next record.
	NextLSN record.LSN
	// Epoch is the newest epoch; 0 for a shard that does not exist.
	Epoch  uint64
	Sealed bool
	// LastTime is the persisted time of the newest record ever appended; 0 if no record was appended.
	LastTime int64
	// Watermark: no later record will have a persisted time below it.
	Watermark int64
	// Origin is the LSN at which the shard began in a recovery of the metadata, or when it was removed last, at most FirstLSN; 0 if it began
	// at record.FirstLSN. What was below it is gone.
	//
	// After a removal that concerns each reader that was owed it: who knew the shard and stands below the origin, and who did not know the
	// shard and had seen the category as it was at OriginTime or before. After a recovery nobody knows what was below, and it does not concern
	// readers that have read nothing of the shard.
	Origin record.LSN
	// OriginTime is the persisted time of the newest record that was below Origin when the shard was removed; 0 if Origin is that of a
	// recovery.
	OriginTime int64
	// Removed: the shard is not listed until it is opened again, see Remove.
	Removed bool
}

// Unused is a shard to be removed, and the epoch that it had when it was found to be empty and unused.
type Unused struct {
	Shard record.ShardID
	Epoch uint64
}

// Append is one transaction.
type Append struct {
	// Shards, each at most once.
	Shards []ShardAppend
	// OldestBlob is the creation time of the oldest blob that the records refer to; 0 if they refer to no blob.
	OldestBlob int64
}

// ShardAppend adds records to one shard.
type ShardAppend struct {
	Shard record.ShardID
	// Epoch is the epoch that Open returned.
	Epoch uint64
	// ExpectLSN, when not 0, is the LSN that the first record must get; otherwise the append fails with ErrConflict. With it, a
	// retry of an append whose answer was lost does not store the records twice.
	ExpectLSN record.LSN
	// Records are stored in order.
	Records [][]byte
	// Sequences, when not empty, must continue the shard's state of each producer: the run's first sequence must be the next one
	// expected (any, for a new producer or epoch), and the epoch must not be older than the newest one. Runs of one producer must
	// be in order: each continues the earlier runs that are not refused. Otherwise the append fails with a *SequenceError and
	// nothing changes.
	Sequences []Sequence
}

// Sequence is a run of messages of one producer: [First, Last]. The largest uint64 is not a valid sequence.
type Sequence struct {
	Producer uint64
	Epoch    uint32
	First    uint64
	Last     uint64
}

// Appended is the location of a shard's appended records: LSNs from FirstLSN on, all with the persisted time Time.
type Appended struct {
	FirstLSN record.LSN
	Time     int64
}

// Entry is a stored record.
type Entry struct {
	LSN  record.LSN
	Time int64
	Data []byte
}

// Position is a reader's position in a shard: the LSN of the next record to read.
type Position struct {
	Shard record.ShardID
	LSN   record.LSN
}

// Update is the progress of one shard in a subscription.
type Update struct {
	Shard record.ShardID
	// TrimmedTo, when not 0, says that records below it were trimmed before they could be sent. Entries begin there.
	TrimmedTo record.LSN
	// Entries are new records in order. A heartbeat has no entries.
	Entries []Entry
	// NextLSN is the tail at the time of the update. It never goes back.
	NextLSN record.LSN
	// Watermark: no record after Entries will have a persisted time below it; 0 while Entries do not reach the tail.
	Watermark int64
	// Sealed says that no records follow Entries, because the shard was sealed or erased. It is the shard's last update.
	Sealed bool
}

// ProducerState is a shard's state of a producer: its newest epoch and the sequence expected next. It is zero for an unknown
// producer.
type ProducerState struct {
	Producer uint64
	Epoch    uint32
	Next     uint64
}
