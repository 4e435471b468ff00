package kv

import "context"

// CopyAll stores every entry of a store in another one, which nobody else uses, and returns the number of entries. Entries get new revisions. The other
// store must have no keys that the first has not. After an error the call may be repeated, if the first store has not changed.
func CopyAll(ctx context.Context, from, to Store) (entries int, err error) {
	var ops []Op
	store := func() error {
		for _, part := range SplitOps(ops, 0) {
			if _, err := to.Commit(ctx, part...); err != nil {
				return err
			}
		}
		entries += len(ops)
		ops = ops[:0]
		return nil
	}
	for e, err := range All(ctx, from, "") {
		if err != nil {
			return entries, err
		}
		if ops = append(ops, Put(e.Key, e.Value)); len(ops) == MaxOps {
			if err := store(); err != nil {
				return entries, err
			}
		}
	}
	return entries, store()
}
