package etcdkv

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/kv"
)

// Commit implements kv.Store.
func (s *Store) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if err := kv.ValidateOps(ops); err != nil {
		return 0, err
	}
	if err := s.enterCall(ctx); err != nil {
		return 0, err
	}
	defer s.calls.Leave()
	if err := s.loadBase(ctx); err != nil {
		return 0, err
	}
	res, err := s.transact(ctx, s.conditionsOf(ops), s.changesOf(ops), s.looksOf(ops))
	switch {
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return 0, fmt.Errorf("%w: etcd's limits are too small for a transaction of %d operations, see docs/format/etcd.md: %w", kv.ErrInvalid, len(ops), err)
	case err != nil:
		return 0, s.explainError(ctx, "commit", err)
	case !res.Succeeded:
		return 0, s.refusalOf(ops, res)
	}
	return s.revisionOf(res.Header.Revision), nil
}

// conditionsOf, changesOf and looksOf are a transaction in etcd's terms; looks are at what does not have its expected revision.
func (s *Store) conditionsOf(ops []kv.Op) (conditions []clientv3.Cmp) {
	conditions = append(conditions, s.goesOn())
	for _, op := range ops {
		if op.Conditional {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(s.cfg.Prefix+op.Key), "=", s.etcdRevision(op.Revision)))
		}
	}
	return conditions
}

func (s *Store) changesOf(ops []kv.Op) (changes []clientv3.Op) {
	for _, op := range ops {
		switch op.Kind {
		case kv.OpPut:
			changes = append(changes, clientv3.OpPut(s.cfg.Prefix+op.Key, string(op.Value)))
		case kv.OpDelete:
			changes = append(changes, clientv3.OpDelete(s.cfg.Prefix+op.Key))
		case kv.OpCheck: // a condition alone
		}
	}
	return changes
}

func (s *Store) looksOf(ops []kv.Op) (looks []clientv3.Op) {
	looks = append(looks, clientv3.OpGet(s.cfg.baseKey()))
	for _, op := range ops {
		if op.Conditional {
			looks = append(looks, clientv3.OpGet(s.cfg.Prefix+op.Key, clientv3.WithKeysOnly()))
		}
	}
	return looks
}

// refusalOf says why a transaction was refused: the store has ended, or conditions do not hold, which it lists.
func (s *Store) refusalOf(ops []kv.Op, res *clientv3.TxnResponse) error {
	if len(res.Responses) == 0 {
		return errors.New("etcdkv: commit: etcd did not answer what it was asked about")
	}
	if err := endedError(res.Responses[0].GetResponseRange().GetKvs()); err != nil {
		return err
	}
	var conflicts []kv.KeyConflict
	look := 1
	for _, op := range ops {
		if !op.Conditional {
			continue
		}
		if look >= len(res.Responses) {
			return fmt.Errorf("etcdkv: commit: etcd answered %d of the keys that it was asked about", look-1)
		}
		actual := uint64(0)
		if kvs := res.Responses[look].GetResponseRange().GetKvs(); len(kvs) > 0 {
			actual = s.revisionOf(kvs[0].ModRevision)
		}
		if look++; actual != op.Revision {
			conflicts = append(conflicts, kv.KeyConflict{Key: op.Key, Expected: op.Revision, Actual: actual})
		}
	}
	return &kv.ConflictError{Conflicts: conflicts}
}
