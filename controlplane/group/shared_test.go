package group

import (
	"errors"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// cutStore is the way of one coordinator to the store. Once it is cut, nothing passes.
type cutStore struct {
	*flakyStore
}

var errCut = errors.New("cut off")

func newCutStore(s kv.Store) *cutStore { return &cutStore{&flakyStore{Store: s}} }

func (s *cutStore) cut() { s.set(func(string) (bool, error) { return false, errCut }) }

// believer is a member as the consumer library is one: it takes its buckets for its own for the lease, from when it sent the last
// heartbeat that was answered, and goes to another coordinator when one does not answer.
type believer struct {
	*member
	until time.Time
	asked []*Coordinator
}

const believerLease = 7500 * time.Millisecond // three quarters of the default TTL

func (b *believer) speak(t *testing.T) {
	t.Helper()
	for range b.asked {
		sent := time.Now()
		err := b.beat(t.Context(), nil)
		if err == nil {
			if b.until = sent.Add(believerLease); len(b.a.GetRevoked()) == 0 {
				return
			}
			b.set.RemoveAll(b.a.GetRevoked()) // it stops, and has committed
			sent = time.Now()
			if err = b.beat(t.Context(), b.a.GetRevoked()); err == nil {
				b.until = sent.Add(believerLease)
				b.set.RemoveAll(b.a.GetRevoked())
				return
			}
		}
		b.asked = append(b.asked[1:], b.asked[0])
		b.c = b.asked[0]
	}
}

// Two coordinators, members at either. One coordinator after another is cut off from the store, without a word. At no time do two
// members take a bucket for their own, nobody alive is taken for silent, and what is committed never goes back.
func TestNoBucketIsHeldTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 100_001)
		random := rand.New(rand.NewPCG(1, 2))
		serve := func(name string) (*Coordinator, *cutStore) {
			s := newCutStore(w.store)
			c := w.coordinatorOn(t, name, s)
			return c, s
		}
		one, store := serve("one")
		two, other := serve("two")
		var all []*believer
		for i, name := range []string{"a", "b", "c", "d"} {
			at := []*Coordinator{one, two}
			if i%2 == 1 {
				at = []*Coordinator{two, one}
			}
			all = append(all, &believer{member: at[0].mustJoin(t, joinRequest(name)), until: time.Now().Add(believerLease), asked: at})
		}
		done := record.LSN(1)
		for step := range 240 {
			<-time.After(250 * time.Millisecond)
			if step%60 == 40 { // the third of a coordinator ends, and another one begins
				store.cut()
				store = other
				var next *Coordinator
				next, other = serve("next")
				for _, b := range all {
					b.asked = append(b.asked[:0:0], b.asked...)
					b.asked = append(b.asked, next)
				}
			}
			b := all[random.IntN(len(all))]
			b.speak(t)
			wantApart(t, all)
			if now := time.Now(); now.Before(b.until) && b.set.Len() > 0 {
				if err := b.commit(t.Context(), shard, done+1); err == nil {
					done++
				}
			}
		}
		for range 8 { // all speak, until all that was revoked is granted
			for _, b := range all {
				b.speak(t)
			}
			wantApart(t, all)
			<-time.After(time.Second)
		}
		held := 0
		for _, b := range all {
			held += b.set.Len()
			if b.set.Len() == 0 {
				t.Errorf("%s is alive and has no bucket", b.name)
			}
		}
		if held != 16 {
			t.Errorf("%d buckets of 16 are held", held)
		}
		if done < 100 {
			t.Errorf("only %d commits", done)
		}
	})
}

// wantApart checks that no bucket is believed to be their own by two members.
func wantApart(t *testing.T, all []*believer) {
	t.Helper()
	owner := map[uint32]string{}
	for _, b := range all {
		if !time.Now().Before(b.until) {
			continue
		}
		for n := range b.set.Each() {
			if owner[n] != "" {
				t.Fatalf("bucket %d is held by %s and %s", n, owner[n], b.name)
			}
			owner[n] = b.name
		}
	}
}

// A coordinator and all members of its group end together. The other coordinator, which has never heard of the group, expires them.
func TestGroupsOfADeadCoordinatorAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.tail(1, 1001)
		store := newCutStore(w.store)
		one, two := w.coordinatorOn(t, "one", store), w.coordinator(t, "two")
		one.mustJoin(t, joinRequest("a"))
		store.cut()
		<-time.After(findInterval + 2*defaultTTL)
		g, _, err := two.loadGroup(t.Context(), "test", "readers")
		if err != nil || len(g.Members) != 0 {
			t.Fatalf("%d members are left, %v", len(g.Members), err)
		}
		if _, err := two.DeleteGroup(t.Context(), &scribev1.DeleteGroupRequest{Group: "readers"}); err != nil {
			t.Error(err)
		}
	})
}
