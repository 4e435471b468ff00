package controlplane

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// follower keeps a copy of the categories from one instance, and checks what the instance sends: revisions go up, and after the
// first message nothing starts over.
type follower struct {
	mu       sync.Mutex
	known    map[string]uint64 // revisions by name
	revision uint64
	resets   int
	wrong    error
}

func (f *follower) apply(msg *scribev1.WatchCategoriesResponse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if msg.GetReset_() {
		f.resets++
	}
	last := uint64(0)
	for _, cat := range msg.GetUpdated() {
		if cat.GetRevision() < last || cat.GetRevision() <= f.known[cat.GetName()] {
			f.wrong = errors.Join(f.wrong, fmt.Errorf("%s in revision %d after %d and %d", cat.GetName(), cat.GetRevision(), f.known[cat.GetName()], last))
		}
		last = cat.GetRevision()
		f.known[cat.GetName()] = last
	}
	for _, name := range msg.GetDeleted() {
		delete(f.known, name)
	}
	if msg.GetRevision() < f.revision {
		f.wrong = errors.Join(f.wrong, fmt.Errorf("revision %d after %d", msg.GetRevision(), f.revision))
	}
	f.revision = max(f.revision, msg.GetRevision())
	return nil
}

// workload is what clients do at any instance: it remembers what must be true.
type workload struct {
	s *sharedStore

	mu    sync.Mutex
	ids   map[uint32]string // of every create that succeeded
	names map[string]bool   // that exist
	done  int
}

// pick returns an instance that runs.
func (w *workload) pick(random *rand.Rand) *instance {
	all := w.s.instances()
	return all[random.IntN(len(all))]
}

// create creates a category, at one instance after another until one does, as clients do.
func (w *workload) create(ctx context.Context, random *rand.Rand, name string) error {
	for {
		res, err := w.pick(random).CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: &scribev1.Category{Name: name}, IfNotExists: true})
		if err == nil {
			return w.noteCreated(name, res.GetCategory().GetId())
		}
		if !retry.Retryable(err) {
			return fmt.Errorf("create %s: %w", name, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

// noteCreated records a create that succeeded. It fails if the id was used before.
func (w *workload) noteCreated(name string, id uint32) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, used := w.ids[id]; used {
		return fmt.Errorf("%s and %s have id %d", other, name, id)
	}
	w.ids[id], w.names[name] = name, true
	w.done++
	return nil
}

// remove deletes a category likewise.
func (w *workload) remove(ctx context.Context, random *rand.Rand, name string) error {
	for {
		_, err := w.pick(random).DeleteCategory(ctx, &scribev1.DeleteCategoryRequest{Name: name})
		if err == nil || rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
			w.mu.Lock()
			delete(w.names, name)
			w.mu.Unlock()
			return nil
		}
		if !retry.Retryable(err) {
			return fmt.Errorf("delete %s: %w", name, err)
		}
		<-time.After(50 * time.Millisecond)
	}
}

func (w *workload) run(ctx context.Context, worker uint64, steps int) error {
	random := rand.New(rand.NewPCG(worker, 7))
	for n := range steps {
		name := fmt.Sprintf("c%d-%d", worker, n)
		if err := w.create(ctx, random, name); err != nil {
			return err
		}
		if n%3 == 0 {
			if err := w.remove(ctx, random, name); err != nil {
				return err
			}
		}
		<-time.After(time.Duration(random.IntN(100)) * time.Millisecond)
	}
	return nil
}

// Instances come and go, by crashes and in order, while categories are created and deleted at all of them. No id is used twice,
// and every instance tells every change, in order.
func TestInstancesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedStore(t)
		l := newLogs()
		change := func(c *Config, d *Deps) { c.IDBlock, d.Retirer = 4, l }
		followers := map[*instance]*follower{}
		var watching, working sync.WaitGroup
		begin := func(name string) {
			i := s.serve(name, change)
			f := &follower{known: map[string]uint64{}}
			followers[i] = f
			watching.Go(func() {
				_ = i.WatchCategories(context.Background(), &scribev1.WatchCategoriesRequest{}, f.apply) // until the instance ends
			})
		}
		for _, name := range []string{"a", "b", "c"} {
			begin(name)
		}
		synctest.Wait()
		w := &workload{s: s, ids: map[uint32]string{}, names: map[string]bool{}}
		failed := make(chan error, 4)
		for worker := range uint64(4) {
			working.Go(func() { failed <- w.run(t.Context(), worker, 60) })
		}
		random := rand.New(rand.NewPCG(3, 3))
		for n := range 8 {
			advance(400 * time.Millisecond)
			all := s.instances()
			i := all[random.IntN(len(all))]
			begin(fmt.Sprintf("n%d", n))
			if n%2 == 0 {
				s.kill(i)
			} else {
				s.end(i)
			}
			s.leaders()
		}
		working.Wait()
		for range cap(failed) {
			if err := <-failed; err != nil {
				t.Error(err)
			}
		}
		advance(2 * time.Second)
		s.leader()
		want := slices.Sorted(maps.Keys(w.names))
		for i, f := range followers {
			f.mu.Lock()
			if f.wrong != nil || f.resets > 1 {
				t.Errorf("%s: %d resets, %v", i.name, f.resets, f.wrong)
			}
			if got := slices.Sorted(maps.Keys(f.known)); slices.Contains(s.instances(), i) && !slices.Equal(got, want) {
				t.Errorf("%s tells %d categories, there are %d", i.name, len(got), len(want))
			}
			f.mu.Unlock()
		}
		if w.done != 240 || len(w.ids) != 240 {
			t.Errorf("%d creates, %d ids", w.done, len(w.ids))
		}
		s.endAll()
		watching.Wait()
	})
}
