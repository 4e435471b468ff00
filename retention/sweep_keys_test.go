package retention

import (
	"errors"
	"slices"
	"testing"
	"time"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/blob/encryption"
	"scribe/storage/blob/encryption/encryptiontest"
)

// TestOrphanKeys: keys of retired categories are deleted, whoever left them there. Those of categories that exist stay, and so do those of which nobody
// knows whether they exist.
func TestOrphanKeys(t *testing.T) {
	w := newWorld(t.Context(), t, nil)
	defer w.close()
	live, idle, dropped, retired := w.cell.create(time.Hour, 1), w.cell.create(time.Hour, 1), w.cell.create(time.Hour, 1), w.cell.create(time.Hour, 1)
	const never, foreign = 500, 501 // ids that the cell never had; a recovery has retired the second one
	keys, err := encryption.NewKeys(encryption.Config{Store: w.blobs, Wrapper: encryptiontest.KeyFile(t, "k1"), Clock: w.now})
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	for _, id := range []uint32{live, idle, dropped, retired, never, foreign} {
		for err := encryption.ErrLoading; err != nil; {
			if _, err = keys.WritingKey(id, 1); err != nil && !errors.Is(err, encryption.ErrLoading) {
				t.Fatal(err)
			}
		}
	}
	w.write(1, 1, live, dropped)
	for _, id := range []uint32{retired, foreign} {
		if err := errors.Join(w.log.Retire(w.ctx, id), w.log.Erase(w.ctx, id)); err != nil {
			t.Fatal(err)
		}
	}
	w.cell.drop(retired)
	if _, err := w.cell.ForgetDropped(w.ctx, &scribev1.ForgetDroppedRequest{Ids: []uint32{retired}}); err != nil {
		t.Fatal(err)
	}
	w.cell.drop(dropped) // retired by nobody yet
	left := func() []uint32 {
		t.Helper()
		ids, err := encryption.ListCategories(w.ctx, w.blobs)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	l := w.mustLead("keeper")
	sweeper := newKeySweeper(l.t)
	if _, err := sweeper.runRound(w.ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := left(), []uint32{live, idle, dropped, never}; !slices.Equal(got, want) {
		t.Errorf("keys of %v are left, want those of %v", got, want)
	}
	// Erasing a category deletes the keys that its record tells of; what is made afterwards goes with the next listing, which is not due yet.
	if err := errors.Join(w.log.Retire(w.ctx, dropped), w.log.Erase(w.ctx, dropped)); err != nil {
		t.Fatal(err)
	}
	if _, err := sweeper.runRound(w.ctx); err != nil || !slices.Contains(left(), dropped) {
		t.Errorf("the keys were listed before that was due: %v", err)
	}
	sweeper.due = time.Time{}
	if _, err := sweeper.runRound(w.ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := left(), []uint32{live, idle, never}; !slices.Equal(got, want) {
		t.Errorf("keys of %v are left, want those of %v", got, want)
	}
}
