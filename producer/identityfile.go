package producer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/gofrs/flock"

	"scribe/internal/base/atomicfile"
	"scribe/internal/format/record"
)

var (
	// ErrIdentityInUse means that the identity file is already open, in this process or another one.
	ErrIdentityInUse = errors.New("producer: identity is in use")
	// ErrIdentityDamaged means that the identity file is damaged, or was written by a newer version.
	ErrIdentityDamaged = errors.New("producer: identity file is damaged")
)

// IdentityFile stores an [Identity] together with the matching position in the source, across restarts:
//
//	f, err := producer.OpenIdentity("/var/lib/app/producer", producer.KeepEpochForReplay())
//	...
//	p, err := producer.New(server, producer.WithIdentity(f.Identity()))
//	source.Seek(f.Position())
//	...
//	err = p.Flush(ctx)                         // everything up to here is acknowledged
//	err = f.Save(p.Identity(), source.Position())
//	...
//	err = p.Close(ctx)                         // nil: nothing is left
//	err = f.Close(p.Identity(), source.Position())
//
// The file is locked while it is open, so that two processes of a host never share an identity. It is replaced atomically: after
// a crash it has the last saved state. Its methods are safe for concurrent use.
type IdentityFile struct {
	path string
	lock *flock.Flock

	mu struct {
		sync.Mutex
		id       Identity
		position []byte
		closed   bool
	}
}

// IdentityOption configures [OpenIdentity].
type IdentityOption func(*identityConfig)

type identityConfig struct{ replay bool }

// KeepEpochForReplay keeps the epoch after a stop without [IdentityFile.Close]. It is for programs that replay the messages after
// the last Save: servers recognise duplicates only in the epoch in which they were stored. Then only the lock excludes an earlier
// process that still runs: do not open a copy of the file elsewhere. After an orderly stop there is no replay, and the epoch is
// raised even with this option.
func KeepEpochForReplay() IdentityOption { return func(c *identityConfig) { c.replay = true } }

// OpenIdentity opens an identity file, or creates one with a new identity; the folder must exist. Unless [KeepEpochForReplay]
// applies, it raises all epochs and syncs the file before it returns. This fences producers that still run with an earlier epoch:
// they fail with [ErrStaleProducer] in every shard that the new producer has written to. OpenIdentity fails with
// [ErrIdentityInUse] or [ErrIdentityDamaged]; it does not change a damaged file.
func OpenIdentity(path string, opts ...IdentityOption) (*IdentityFile, error) {
	var cfg identityConfig
	for _, o := range opts {
		o(&cfg)
	}
	lock := flock.New(path + ".lock") // a lock on the file itself would be lost when it is replaced
	switch locked, err := lock.TryLock(); {
	case err != nil:
		return nil, fmt.Errorf("producer: lock identity: %w", err)
	case !locked:
		return nil, fmt.Errorf("%w: %s", ErrIdentityInUse, path)
	}
	f := &IdentityFile{path: path, lock: lock}
	if err := f.loadFile(cfg.replay); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return f, nil
}

func (f *IdentityFile) loadFile(replay bool) error {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f.writeIdentity(Identity{ID: randomID(nil), Epoch: 1}, nil, false)
	}
	if err != nil {
		return fmt.Errorf("producer: read identity: %w", err)
	}
	id, position, clean, err := decodeIdentity(data)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrIdentityDamaged, f.path, err)
	}
	if clean || !replay {
		if id, err = id.raiseEpochs(); err != nil {
			return err
		}
	}
	return f.writeIdentity(id, position, false)
}

// raiseEpochs returns the identity with a new epoch, above all earlier ones, for all shards.
func (id Identity) raiseEpochs() (Identity, error) {
	newest := id.Epoch
	for _, q := range id.Sequences {
		newest = max(newest, q.Epoch)
	}
	if newest == math.MaxUint32 {
		return id, fmt.Errorf("%w: all epochs are used up: take a new identity", ErrInvalid)
	}
	out := Identity{ID: id.ID, Epoch: newest + 1, Sequences: make(map[Shard]Sequence, len(id.Sequences))}
	for s, q := range id.Sequences {
		out.Sequences[s] = Sequence{Epoch: newest + 1, Next: q.Next}
	}
	return out, nil
}

// Identity returns the saved identity, for [WithIdentity].
func (f *IdentityFile) Identity() Identity {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := f.mu.id
	id.Sequences = maps.Clone(id.Sequences)
	return id
}

// Position returns the position that was saved with the identity; nil if there is none.
func (f *IdentityFile) Position() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return bytes.Clone(f.mu.position)
}

// Save replaces the saved identity and position, and syncs the file. The position is any bytes; all messages of the source up to
// it must be acknowledged in id.
func (f *IdentityFile) Save(id Identity, position []byte) error {
	return f.writeIdentity(id, position, false)
}

// Close saves id and position as those of an orderly stop, after which nothing is replayed, and releases the file. If messages
// were not delivered, call Release instead: the identity and position of the last Save then stay valid.
func (f *IdentityFile) Close(id Identity, position []byte) error {
	if err := f.writeIdentity(id, position, true); err != nil {
		return err
	}
	return f.Release()
}

// Release unlocks the file without saving: the last saved state stays valid. Repeated calls do nothing.
func (f *IdentityFile) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return nil
	}
	f.mu.closed = true
	return f.lock.Close()
}

func (f *IdentityFile) writeIdentity(id Identity, position []byte, clean bool) error {
	data, err := encodeIdentity(id, position, clean)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.mu.closed {
		return fmt.Errorf("%w: the identity file was released", ErrClosed)
	}
	if f.mu.id.ID != 0 && f.mu.id.ID != id.ID {
		return fmt.Errorf("%w: identity %#x in the file of %#x", ErrInvalid, id.ID, f.mu.id.ID)
	}
	if err := atomicfile.WriteBytes(f.path, data); err != nil {
		return fmt.Errorf("producer: save identity: %w", err)
	}
	f.mu.id = Identity{ID: id.ID, Epoch: id.Epoch, Sequences: maps.Clone(id.Sequences)}
	f.mu.position = bytes.Clone(position)
	return nil
}

// The file is a line of text and a JSON object:
//
//	scribe-identity <version> <CRC32C of the object, 8 hex digits>
//
// 64-bit numbers are strings, since JSON numbers are not exact.
const identityHeader = "scribe-identity 1 %08x\n"

const identityHeaderLen = len("scribe-identity 1 00000000\n")

type identityJSON struct {
	ID        uint64         `json:"id,string"`
	Epoch     uint32         `json:"epoch"`
	Clean     bool           `json:"clean"` // orderly stop: nothing is replayed
	Position  []byte         `json:"position,omitempty"`
	Sequences []sequenceJSON `json:"sequences,omitempty"`
}

type sequenceJSON struct {
	Category string `json:"category"`
	Shard    uint32 `json:"shard"`
	Epoch    uint32 `json:"epoch"`
	Next     uint64 `json:"next,string"`
}

func encodeIdentity(id Identity, position []byte, clean bool) ([]byte, error) {
	if err := id.validateIdentity(); err != nil {
		return nil, err
	}
	out := identityJSON{ID: id.ID, Epoch: id.Epoch, Clean: clean, Position: position}
	shards := slices.SortedFunc(maps.Keys(id.Sequences), func(a, b Shard) int {
		return cmp.Or(strings.Compare(a.Category, b.Category), cmp.Compare(a.Number, b.Number))
	})
	for _, s := range shards {
		q := id.Sequences[s]
		out.Sequences = append(out.Sequences, sequenceJSON{s.Category, s.Number, q.Epoch, q.Next})
	}
	body, err := json.Marshal(out)
	if err != nil {
		return nil, fmt.Errorf("producer: encode identity: %w", err)
	}
	return append(fmt.Appendf(nil, identityHeader, record.CRC(body)), body...), nil
}

func decodeIdentity(data []byte) (id Identity, position []byte, clean bool, err error) {
	var sum uint32
	if len(data) < identityHeaderLen {
		return id, nil, false, fmt.Errorf("the file has %d bytes, which is too few", len(data))
	}
	if n, err := fmt.Sscanf(string(data[:identityHeaderLen]), identityHeader, &sum); n != 1 || err != nil {
		return id, nil, false, fmt.Errorf("the first line is %.30q, want that of version 1", data[:identityHeaderLen])
	}
	body := data[identityHeaderLen:]
	if got := record.CRC(body); got != sum {
		return id, nil, false, fmt.Errorf("checksum is %08x, want %08x", got, sum)
	}
	var in identityJSON
	if err := json.Unmarshal(body, &in); err != nil {
		return id, nil, false, err
	}
	id = Identity{ID: in.ID, Epoch: in.Epoch, Sequences: make(map[Shard]Sequence, len(in.Sequences))}
	for _, q := range in.Sequences {
		id.Sequences[Shard{q.Category, q.Shard}] = Sequence{Epoch: q.Epoch, Next: q.Next}
	}
	return id, in.Position, in.Clean, id.validateIdentity()
}

// validateIdentity reports every violation.
func (id Identity) validateIdentity() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("producer: "+format, args...))
		}
	}
	check(id.ID != 0, "invalid ID 0 for WithIdentity: want any other number")
	check(id.Epoch != 0, "invalid epoch 0 for WithIdentity: the first is 1")
	for s, q := range id.Sequences {
		check(record.ValidateCategory(s.Category) == nil && s.Number <= record.MaxLogicalShard, "invalid shard %v for WithIdentity", s)
		check(q.Epoch != 0, "invalid epoch 0 of shard %v for WithIdentity: the first is 1", s)
	}
	return errors.Join(errs...)
}
