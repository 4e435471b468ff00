package etcdkv

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/kv"
)

// The base of a store: docs/format/etcd.md.
const (
	baseVersion = 1
	// endedVersion is that of the base of a store that has ended. Programs that know only baseVersion refuse it.
	endedVersion = 2
	baseBytes    = 1 + 8 + 4
	// maxBase leaves room for the revisions of etcd.
	maxBase = 1 << 62
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func encodeBase(version byte, base uint64) []byte {
	b := binary.LittleEndian.AppendUint64([]byte{version}, base)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeBase returns a base and whether the store has ended, or an error that wraps kv.ErrCorrupt. The checksum is compared first, so damage is not taken
// for a newer version.
func decodeBase(b []byte) (base uint64, ended bool, err error) {
	end := len(b) - 4
	if end < 1 || crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return 0, false, fmt.Errorf("%w: the base of revisions: %x", kv.ErrCorrupt, b[:min(len(b), 2*baseBytes)])
	}
	if b[0] != baseVersion && b[0] != endedVersion {
		return 0, false, fmt.Errorf("%w: the base of revisions has version %d, this program knows %d and %d: use a newer one", kv.ErrCorrupt, b[0], baseVersion, endedVersion)
	}
	if len(b) != baseBytes {
		return 0, false, fmt.Errorf("%w: the base of revisions has %d bytes, want %d", kv.ErrCorrupt, len(b), baseBytes)
	}
	base = binary.LittleEndian.Uint64(b[1:end])
	if base > maxBase {
		return 0, false, fmt.Errorf("%w: the base of revisions is %d, the limit %d", kv.ErrCorrupt, base, uint64(maxBase))
	}
	return base, b[0] == endedVersion, nil
}

// baseKey is beside the entries, where no key of the store can be.
func (c *Config) baseKey() string { return strings.TrimSuffix(c.Prefix, "/") + "base" }

// CreateBase begins a store whose revisions are all above base, the last revision of the store that is moved to it. The store must be empty
// and never have been used; after an error the call may be repeated with the same base.
func CreateBase(ctx context.Context, cfg Config, base uint64) error {
	s, err := New(cfg)
	if err != nil {
		return err
	}
	if base > maxBase {
		return fmt.Errorf("%w: a base of revisions of %d, the limit is %d", kv.ErrInvalid, base, uint64(maxBase))
	}
	empty := clientv3.Compare(clientv3.CreateRevision(cfg.Prefix), "=", 0).WithPrefix()
	if err := s.beginBase(ctx, base, empty); err != nil {
		return err
	}
	if found := s.base.Load(); *found != base {
		return fmt.Errorf("%w: the store at %s was begun with base %d, not %d", kv.ErrInvalid, cfg.Prefix, *found, base)
	}
	return nil
}

// HasBegun reports whether anybody has used the store.
func (s *Store) HasBegun(ctx context.Context) (bool, error) {
	base, err := s.getKeys(ctx, s.cfg.baseKey(), clientv3.WithCountOnly())
	if err != nil || base.Count > 0 {
		return err == nil, err
	}
	entries, err := s.getKeys(ctx, s.cfg.Prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && entries.Count > 0, err
}

// EndStore ends a store for good, because another one goes on with its content: nobody's transactions are carried out any more, however long they were on
// their way; they fail with ErrEnded. Reads go on. Repeating the call is harmless.
func EndStore(ctx context.Context, cfg Config) error {
	s, err := New(cfg)
	if err != nil {
		return err
	}
	if err := s.loadBase(ctx); err != nil {
		return err
	}
	_, err = s.transact(ctx, []clientv3.Cmp{s.goesOn()}, []clientv3.Op{clientv3.OpPut(cfg.baseKey(), string(encodeBase(endedVersion, *s.base.Load())))}, nil)
	if err != nil {
		return s.explainError(ctx, "end", err)
	}
	return nil
}

// goesOn is the condition of every transaction that the store has not ended.
func (s *Store) goesOn() clientv3.Cmp {
	return clientv3.Compare(clientv3.Value(s.cfg.baseKey()), "=", string(encodeBase(baseVersion, *s.base.Load())))
}

// endedError returns ErrEnded if a value of the base's key says so.
func endedError(kvs []*mvccpb.KeyValue) error {
	if len(kvs) == 0 {
		return fmt.Errorf("%w: there is no base of revisions any more", ErrWentBack)
	}
	_, ended, err := decodeBase(kvs[0].Value)
	if err == nil && ended {
		err = ErrEnded
	}
	return err
}

// loadBase makes s.base known. Who uses an empty store first fixes that its base is 0: it must not change while processes know it.
func (s *Store) loadBase(ctx context.Context) error {
	if s.base.Load() != nil {
		return nil
	}
	return s.beginBase(ctx, 0)
}

// beginBase stores the base if there is none and the conditions hold, and takes the one that there is.
func (s *Store) beginBase(ctx context.Context, base uint64, conditions ...clientv3.Cmp) error {
	key := s.cfg.baseKey()
	conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(key), "=", 0))
	res, err := s.transact(ctx, conditions, []clientv3.Op{clientv3.OpPut(key, string(encodeBase(baseVersion, base)))}, []clientv3.Op{clientv3.OpGet(key)})
	if err != nil {
		return s.explainError(ctx, "read the base of revisions", err)
	}
	if !res.Succeeded {
		kvs := res.Responses[0].GetResponseRange().GetKvs()
		if len(kvs) == 0 {
			return fmt.Errorf("%w: the store at %s has entries, and no base of revisions", kv.ErrInvalid, s.cfg.Prefix)
		}
		if base, _, err = decodeBase(kvs[0].Value); err != nil {
			return err
		}
	}
	s.base.CompareAndSwap(nil, &base)
	return nil
}

// revisionOf is the store's revision at one of etcd. The base is known.
func (s *Store) revisionOf(revision int64) uint64 {
	return uint64(revision) + *s.base.Load() //nolint:gosec // etcd's revisions are not negative
}

// etcdRevision is etcd's revision at one of the store; 0 stays 0. What can't be a revision of this store is -1, which no key has.
func (s *Store) etcdRevision(revision uint64) int64 {
	base := *s.base.Load()
	switch {
	case revision == 0:
		return 0
	case revision <= base || revision-base > maxRevision:
		return -1
	}
	return int64(revision - base) //nolint:gosec // bounded
}
