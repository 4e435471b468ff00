package metalog

import (
	"context"
	"time"

	"scribe/internal/format/record"
)

// Limits of every engine. They bound what one call may ask for, so that no request makes an engine spend unbounded memory.
const (
	// MaxRecord is the largest record in bytes.
	MaxRecord = 64 << 10
	// MaxAppend is the largest transaction in bytes of record data.
	MaxAppend = 32 << 20
	// MaxAppendShards is how many shards one transaction may touch.
	MaxAppendShards = 100_000
	// MaxAppendRecords and MaxAppendSequences are how many records and runs of sequences one transaction may hold.
	MaxAppendRecords   = 1_000_000
	MaxAppendSequences = 1_000_000
	// MaxConflicts is how many refused shards or runs an error of Append lists: the first ones, in the order of the transaction.
	MaxConflicts = 1_000
	// MaxShards is how many shards Open, Tail, Seek and Subscribe take in one call.
	MaxShards = 10_000
	// MaxProducers is how many producers Sequences takes in one call.
	MaxProducers = 10_000
	// MaxOwner is the longest name of an owner in bytes.
	MaxOwner = 255
	// MaxReadRecords and MaxReadBytes bound an answer of Read; zero or more than that means that.
	MaxReadRecords = 10_000
	MaxReadBytes   = 4 << 20
	// DefaultHeartbeat and MinHeartbeat bound how often an idle subscription is told the watermark.
	DefaultHeartbeat = time.Second
	MinHeartbeat     = 10 * time.Millisecond
)

// Log is a metadata engine: many append-only logs ("physical shards") of small records. All methods are safe for concurrent
// use, and append, read and tail are linearizable per shard. Times are Unix microseconds.
//
// Errors that callers branch on: ErrFenced, ErrSealed and ErrConflict (as *RefusedError), ErrSequence (as
// *SequenceError), ErrStaleBlob, ErrTrimmed (as *TrimmedError), ErrInvalid, ErrClosed, ErrCorrupt (as *CorruptError). They are
// definite: the call changed nothing. An Append that fails with any other error, the end of its context included, has an unknown
// outcome: it may have been applied.
type Log interface {
	// Open makes owner the writer of shards, creating those that do not exist. Each gets an epoch above all earlier ones;
	// appends with an earlier epoch fail with ErrFenced from then on. A sealed shard keeps its epoch and comes back with Sealed
	// set. States are in the order of shards. The call is durable when it returns. Where shards are of a category that was retired
	// it opens none, and fails with ErrSealed (as *RefusedError, which names them).
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]State, error)

	// Append adds records to several shards in one transaction, all or none, and returns when it is durable and visible. Results
	// are in the order of a.Shards. The engine does not keep a's memory after it returns. Whatever is wrong is found in this
	// order: limits (ErrInvalid), a.OldestBlob (ErrStaleBlob), shards (sealed before fenced before conflict; an epoch that is not
	// the newest one of the shard is ErrFenced, also where the shard does not exist), sequences.
	Append(ctx context.Context, a *Append) ([]Appended, error)

	// Read returns records of a shard in order and without gaps from LSN from on: at most maxRecords and, but for the first
	// record, maxBytes of data. It is empty at the tail, beyond it, and for a shard that does not exist. Positions below the
	// first record fail with ErrTrimmed (as *TrimmedError), position 0 with ErrInvalid. A damaged record ends an answer, and fails
	// the one that it would be the first of with ErrCorrupt (as *CorruptError). The entries' data belongs to the caller.
	Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]Entry, error)

	// Tail returns the states of shards, in their order. One that does not exist has Epoch 0, FirstLSN 1 and NextLSN 1, and is Sealed
	// if its category was retired: then it will never exist, or was erased.
	Tail(ctx context.Context, shards []record.ShardID) ([]State, error)

	// Subscribe follows shards, each at most once: fn is called, never concurrently, with the records from the positions on, with
	// new ones as they commit (without polling), and with a watermark for each idle shard at once and then at every heartbeat
	// (0 = DefaultHeartbeat; anything below MinHeartbeat means that). A slow fn holds back only its own subscription, whose
	// memory stays bounded. Updates and all that they refer to are valid until fn returns, and are not to be changed. It ends
	// when ctx does (with its error), when fn returns an error (which is returned as it is), or when the engine closes. A shard
	// that does not exist yet is followed from when it appears.
	//
	// Within one subscription a shard's tail never goes back, nor does its watermark. A shard that is erased ends, at the latest tail
	// that this subscription told: to a subscriber it was trimmed up to there and sealed. Nobody knows the tail of a shard that was
	// erased before, so that one ends at the subscriber's position. A reader that knows a later tail, from Tail or from an earlier
	// subscription, treats the records between as trimmed; a Read of them is empty. A shard that never existed ends at the next heartbeat.
	Subscribe(ctx context.Context, from []Position, heartbeat time.Duration, fn func([]Update) error) error

	// Seek returns, for each shard, the LSN of the first record persisted at or after t, and the tail when there is none.
	Seek(ctx context.Context, shards []record.ShardID, t int64) ([]record.LSN, error)

	// Trim removes records below before, which may be up to the tail; above that it is ErrInvalid. Repeating it, or trimming less
	// than before, is harmless.
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error

	// Seal ends a shard: no epoch can append any more. Repeating it is harmless. A shard that does not exist is ErrInvalid.
	Seal(ctx context.Context, shard record.ShardID) (State, error)

	// Retire ends a category's id for ever: its shards are sealed, and from then on Open and Append of any shard of that id, also
	// of one that never existed, fail with ErrSealed. What is stored can be read until it is trimmed. The call is durable when it
	// returns; repeating it is harmless. It takes time in proportion to the category's shards.
	Retire(ctx context.Context, category uint32) error

	// Erase removes all that is left of a retired category: its shards with their records, and what they know of producers. What is not
	// retired is ErrInvalid. The call is durable when it returns; repeating it is harmless.
	Erase(ctx context.Context, category uint32) error

	// Shards returns the shards of a category by id.
	Shards(ctx context.Context, category uint32) ([]State, error)

	// WatchShards calls fn, never concurrently, with the shards of a category, once even if there are none, then with those that
	// appear. The slice is valid until fn returns. It ends as Subscribe does.
	WatchShards(ctx context.Context, category uint32, fn func([]record.ShardID) error) error

	// Sequences returns what a shard knows of producers, in their order.
	Sequences(ctx context.Context, shard record.ShardID, producers []uint64) ([]ProducerState, error)

	// AdvanceBoundary raises the time below which blobs may be deleted: appends that refer to an older blob fail with
	// ErrStaleBlob from then on. It returns the boundary, which never goes back; 0 only reads it.
	AdvanceBoundary(ctx context.Context, t int64) (int64, error)

	// Annotate keeps annotations beside records, each in place of the one before of its kind, and returns how many it kept: those of
	// records that were trimmed, or do not exist, are left out. They can be read when it returns, and go with their records; a crash
	// may lose them, and no reader may need them. The engine does not keep the memory of notes after it returns.
	Annotate(ctx context.Context, notes []Annotation) (kept int, err error)

	// Annotations returns the annotations of a kind beside the records of a shard from an LSN to below another, by LSN: of at most
	// MaxReadRecords records and, but for the first, maxBytes of data (0, and anything above MaxReadBytes, means that). until is the LSN
	// up to which the answer is complete. What is damaged is left out. Data belongs to the caller.
	Annotations(ctx context.Context, shard record.ShardID, from, to record.LSN, kind AnnotationKind, maxBytes int) (notes []Annotation, until record.LSN, err error)

	// Close ends subscriptions with ErrClosed, waits for running calls, and releases what the engine holds. Repeating it is
	// harmless.
	Close() error
}

// State is what an engine knows of a shard.
type State struct {
	Shard record.ShardID
	// FirstLSN is the oldest record's; NextLSN when there is none.
	FirstLSN record.LSN
	// NextLSN is what the next record will get.
	NextLSN record.LSN
	// Epoch is the newest one; 0 for a shard that does not exist.
	Epoch  uint64
	Sealed bool
	// LastTime is the persisted time of the newest record ever appended; 0 when there was none.
	LastTime int64
	// Watermark: no later record will have a persisted time below it.
	Watermark int64
}

// Append is one transaction.
type Append struct {
	// Shards, each at most once.
	Shards []ShardAppend
	// OldestBlob is the creation time of the oldest blob that the records refer to; 0 when they refer to none.
	OldestBlob int64
}

// ShardAppend adds records to one shard.
type ShardAppend struct {
	Shard record.ShardID
	// Epoch is the one that Open returned.
	Epoch uint64
	// ExpectLSN, when not 0, is what the first record must get, else the append fails with ErrConflict: so an append that was
	// applied although its answer was lost is not stored twice when it is repeated.
	ExpectLSN record.LSN
	// Records are stored in order.
	Records [][]byte
	// Sequences, when not empty, must continue what the shard knows of each producer: the run's first sequence must be the next
	// one expected (any, for a producer or an epoch that is new), and the epoch not older than the newest one. Runs of one
	// producer must be in order: each continues the ones before it that are not refused. Else the append fails with a
	// *SequenceError and nothing changes.
	Sequences []Sequence
}

// Sequence is a run of messages of one producer: [First, Last]. The largest uint64 is no sequence.
type Sequence struct {
	Producer uint64
	Epoch    uint32
	First    uint64
	Last     uint64
}

// Appended says where a shard's records are: FirstLSN and the ones after it, all with the persisted time Time.
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

// Position is where a reader stands in a shard: the LSN of the next record to read.
type Position struct {
	Shard record.ShardID
	LSN   record.LSN
}

// Update brings a subscriber forward in one shard.
type Update struct {
	Shard record.ShardID
	// TrimmedTo, when not 0, says that records below it were trimmed before they could be sent: Entries begin there.
	TrimmedTo record.LSN
	// Entries are new records in order; none in a heartbeat.
	Entries []Entry
	// NextLSN is the tail at that moment. It never goes back.
	NextLSN record.LSN
	// Watermark: no record after Entries will have a persisted time below it; 0 while Entries do not reach the tail.
	Watermark int64
	// Sealed says that nothing follows Entries, since the shard was sealed or erased. It is the shard's last update.
	Sealed bool
}

// ProducerState is a shard's memory of a producer: its newest epoch and the sequence expected next. Zero when not known.
type ProducerState struct {
	Producer uint64
	Epoch    uint32
	Next     uint64
}
