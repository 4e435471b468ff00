package bench

import (
	"context"

	"golang.org/x/sync/errgroup"

	"scribe/storage/blob"
)

// deletions is how many objects are deleted at the same time.
const deletions = 32

// DeleteBlobs deletes everything in a store.
func DeleteBlobs(ctx context.Context, s blob.Store) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletions)
	for info, err := range s.List(ctx, "") {
		if err != nil {
			group.Go(func() error { return err })
			break
		}
		group.Go(func() error { return s.Delete(ctx, info.Key) })
	}
	return group.Wait()
}
