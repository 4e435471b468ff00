package controlplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// showMessage is a message of a watch: reset, +name#id.shards, -name, synced.
func showMessage(msg *scribev1.WatchCategoriesResponse) string {
	var out []string
	if msg.GetReset_() {
		out = append(out, "reset")
	}
	for _, c := range msg.GetUpdated() {
		out = append(out, fmt.Sprintf("+%s#%d.%d", c.GetName(), c.GetId(), c.GetShards()))
	}
	for _, n := range msg.GetDeleted() {
		out = append(out, "-"+n)
	}
	if msg.GetSynced() {
		out = append(out, "synced")
	}
	return strings.Join(out, " ")
}

// watchOf runs a watch whose messages go to a channel; sending blocks when gate is not nil and has nothing.
func watchOf(ctx context.Context, c *ControlPlane, gate <-chan struct{}) (<-chan *scribev1.WatchCategoriesResponse, <-chan error) {
	messages, done := make(chan *scribev1.WatchCategoriesResponse, 1000), make(chan error, 1)
	go func() {
		req := &scribev1.WatchCategoriesRequest{Heartbeat: durationpb.New(time.Second)}
		done <- c.WatchCategories(ctx, req, func(msg *scribev1.WatchCategoriesResponse) error {
			messages <- msg
			if gate != nil {
				<-gate
			}
			return nil
		})
	}()
	return messages, done
}

func wantMessages(t *testing.T, messages <-chan *scribev1.WatchCategoriesResponse, want ...string) {
	t.Helper()
	synctest.Wait()
	for _, w := range want {
		select {
		case msg := <-messages:
			if got := showMessage(msg); got != w {
				t.Fatalf("the watch sends %q, want %q", got, w)
			}
		default:
			t.Fatalf("the watch sends nothing, want %q", w)
		}
	}
	if len(messages) > 0 {
		t.Fatalf("the watch sends %q too", showMessage(<-messages))
	}
}

func TestWatchCategories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), withLogs(newLogs()))
		none, noneDone := watchOf(t.Context(), c, nil)
		wantMessages(t, none, "reset synced")
		create(t, c, "a")
		wantMessages(t, none, "+a#1.1")
		b := create(t, c, "b")
		wantMessages(t, none, "+b#2.1")

		ctx, cancel := context.WithCancel(t.Context())
		messages, done := watchOf(ctx, c, nil)
		synctest.Wait()
		first := <-messages
		if len(first.GetUpdated()) != 2 || !first.GetReset_() || !first.GetSynced() || first.GetRevision() < b.GetRevision() {
			t.Fatalf("the complete set is %v", first)
		}
		for _, cat := range first.GetUpdated() {
			resp, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: cat.GetName()})
			if err != nil || !proto.Equal(resp.GetCategory(), cat) {
				t.Errorf("the watch sends %v, Get %v, %v", cat, resp, err)
			}
		}
		if _, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Shards: new(uint32(2))}); err != nil {
			t.Fatal(err)
		}
		wantMessages(t, messages, "+a#1.2")
		if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		wantMessages(t, messages, "-a")
		create(t, c, "a")
		wantMessages(t, messages, "+a#3.1")
		advance(1500 * time.Millisecond)
		wantMessages(t, messages, "") // a heartbeat
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("after cancel: %v", err)
		}
		stop(t, c)
		wantReason(t, <-noneDone, scribev1.Reason_REASON_SHUTTING_DOWN)
	})
}

// TestWatchSlow: a watch that does not read gets the newest states when it does, and starts over when it missed deletions that
// are forgotten.
func TestWatchSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), func(c *Config, _ *Deps) { c.MaxDeletions = 4 })
		gate := make(chan struct{})
		messages, done := watchOf(t.Context(), c, gate)
		wantMessages(t, messages, "reset synced")
		create(t, c, "a")
		for i := range uint32(5) {
			if _, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "a", Shards: new(i + 2)}); err != nil {
				t.Fatal(err)
			}
		}
		create(t, c, "b")
		if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "b"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		gate <- struct{}{}
		wantMessages(t, messages, "+a#1.6 -b")
		for i := range 6 {
			create(t, c, fmt.Sprint(i))
			if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		create(t, c, "z")
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		msg := <-messages
		if got := showMessage(msg); got != "reset +a#1.6 +z#9.1 synced" {
			t.Errorf("a watch that is too far behind gets %q", got)
		}
		close(gate)
		stop(t, c)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
	})
}

// TestWatchBatches: a large set comes in bounded messages, the last of which says so.
func TestWatchBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), func(c *Config, _ *Deps) { c.BatchCategories = 3 })
		for i := range 8 {
			create(t, c, fmt.Sprint(i))
		}
		synctest.Wait()
		messages, done := watchOf(t.Context(), c, nil)
		wantMessages(t, messages, "reset +0#1.1 +1#2.1 +2#3.1", "+3#4.1 +4#5.1 +5#6.1", "+6#7.1 +7#8.1 synced")
		stop(t, c)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
	})
}

// cutStore ends watches of categories on demand, and says that the changes meanwhile are gone.
type cutStore struct {
	kv.Store
	cut chan struct{}
}

func (s *cutStore) Watch(ctx context.Context, prefix string, after uint64, fn func(kv.EventBatch) error) error {
	if prefix != categoryPrefix { // else another watch could take the cut
		return s.Store.Watch(ctx, prefix, after, fn)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.cut:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := s.Store.Watch(ctx, prefix, after, fn); err != nil && ctx.Err() == nil {
		return err
	}
	return &kv.CompactedError{After: after}
}

// TestResync: when the control plane loses track of its store it reads everything again, and watches see only what changed.
func TestResync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &cutStore{Store: memkv.New(), cut: make(chan struct{})}
		c := run(t, store, nil)
		create(t, c, "a")
		create(t, c, "b")
		create(t, c, "c")
		synctest.Wait()
		messages, done := watchOf(t.Context(), c, nil)
		wantMessages(t, messages, "reset +a#1.1 +b#2.1 +c#3.1 synced")
		store.cut <- struct{}{}
		synctest.Wait()
		if _, err := c.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		create(t, c, "d")
		if _, err := c.UpdateCategory(t.Context(), &scribev1.UpdateCategoryRequest{Name: "c", Shards: new(uint32(2))}); err != nil {
			t.Fatal(err)
		}
		wantMessages(t, messages)
		advance(100 * time.Millisecond)
		synctest.Wait()
		msg := <-messages
		if len(msg.GetUpdated()) != 2 || len(msg.GetDeleted()) != 1 || msg.GetDeleted()[0] != "a" || msg.GetReset_() {
			t.Errorf("after reading the store again a watch gets %q", showMessage(msg))
		}
		create(t, c, "e")
		wantMessages(t, messages, "+e#5.1")
		stop(t, c)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
	})
}

// TestDamagedCategory: one value that cannot be read does not take the others with it.
func TestDamagedCategory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		create(t, c, "a")
		create(t, c, "b")
		stop(t, c)
		if _, err := store.Commit(t.Context(), kv.Put(categoryKey("a"), []byte{0xff})); err != nil {
			t.Fatal(err)
		}
		c = run(t, store, nil)
		synctest.Wait()
		messages, done := watchOf(t.Context(), c, nil)
		wantMessages(t, messages, "reset +b#2.1 synced")
		_, err := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
		wantReason(t, err, scribev1.Reason_REASON_CORRUPT)
		stop(t, c)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
	})
}

// TestClose: closing ends watches, refuses calls, waits for those that run, and gives up waiting with its context.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := run(t, memkv.New(), nil)
		gate := make(chan struct{})
		messages, done := watchOf(t.Context(), c, gate)
		_, members := watchMembersOf(t.Context(), c, time.Second)
		wantMessages(t, messages, "reset synced")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close while a watch's send blocks: %v", err)
		}
		wantReason(t, <-members, scribev1.Reason_REASON_SHUTTING_DOWN)
		close(gate)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
		stop(t, c)
		_, gerr := c.GetCategory(t.Context(), &scribev1.GetCategoryRequest{Name: "a"})
		_, cerr := c.CreateCategory(t.Context(), &scribev1.CreateCategoryRequest{})
		_, lerr := c.ListCategories(t.Context(), nil)
		_, uerr := c.UpdateCategory(t.Context(), nil)
		_, derr := c.DeleteCategory(t.Context(), nil)
		_, jerr := c.Join(t.Context(), nil)
		_, herr := c.Heartbeat(t.Context(), nil)
		_, verr := c.Leave(t.Context(), nil)
		_, merr := c.ListMembers(t.Context(), nil)
		_, serr := c.GetStatus(t.Context(), nil)
		_, perr := c.ListDropped(t.Context(), &scribev1.ListDroppedRequest{})
		_, ferr := c.ForgetDropped(t.Context(), &scribev1.ForgetDroppedRequest{Ids: []uint32{1}})
		werr := c.WatchCategories(t.Context(), nil, nil)
		xerr := c.WatchMembers(t.Context(), nil, nil)
		for _, err := range []error{gerr, cerr, lerr, uerr, derr, jerr, herr, verr, merr, serr, perr, ferr, werr, xerr} {
			wantReason(t, err, scribev1.Reason_REASON_SHUTTING_DOWN)
		}
	})
}
