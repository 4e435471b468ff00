package etcdkv

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"scribe/storage/kv"
)

// Commit implements kv.Store.
func (s *Store) Commit(ctx context.Context, ops ...kv.Op) (uint64, error) {
	if err := kv.ValidateOps(ops); err != nil {
		return 0, err
	}
	ctx, leave, err := s.enterCall(ctx)
	if err != nil {
		return 0, err
	}
	defer leave()
	conditions, changes, looks := s.transactionOf(ops)
	before := s.seen.Load()
	asked, cancel := context.WithTimeout(ctx, s.cfg.RequestTimeout)
	defer cancel()
	res, err := s.cfg.Client.Txn(asked).If(conditions...).Then(changes...).Else(looks...).Commit()
	if err != nil {
		return 0, s.explainError(ctx, "commit", err)
	}
	if err := s.checkRevision(before, res.Header.Revision); err != nil {
		return 0, err
	}
	if !res.Succeeded {
		return 0, conflictOf(ops, res)
	}
	return uint64(res.Header.Revision), nil //nolint:gosec // revisions are not negative
}

// transactionOf is a transaction in etcd's terms: conditions, changes, and what to look at if a condition does not hold.
func (s *Store) transactionOf(ops []kv.Op) (conditions []clientv3.Cmp, changes, looks []clientv3.Op) {
	for _, op := range ops {
		key := s.cfg.Prefix + op.Key
		if op.Conditional {
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", int64(op.Revision))) //nolint:gosec // it was etcd's
			looks = append(looks, clientv3.OpGet(key, clientv3.WithKeysOnly()))
		}
		switch op.Kind {
		case kv.OpPut:
			changes = append(changes, clientv3.OpPut(key, string(op.Value)))
		case kv.OpDelete:
			changes = append(changes, clientv3.OpDelete(key))
		case kv.OpCheck: // a condition alone
		}
	}
	return conditions, changes, looks
}

// conflictOf lists the conditions of a refused transaction that do not hold.
func conflictOf(ops []kv.Op, res *clientv3.TxnResponse) error {
	var conflicts []kv.KeyConflict
	look := 0
	for _, op := range ops {
		if !op.Conditional {
			continue
		}
		if look >= len(res.Responses) {
			return fmt.Errorf("etcdkv: commit: etcd answered %d of the keys that it was asked about", look)
		}
		actual := uint64(0)
		if kvs := res.Responses[look].GetResponseRange().GetKvs(); len(kvs) > 0 {
			actual = uint64(kvs[0].ModRevision) //nolint:gosec // revisions are not negative
		}
		if look++; actual != op.Revision {
			conflicts = append(conflicts, kv.KeyConflict{Key: op.Key, Expected: op.Revision, Actual: actual})
		}
	}
	return &kv.ConflictError{Conflicts: conflicts}
}
