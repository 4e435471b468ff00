package controlplane

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
	"scribe/storage/kv/memkv"
)

// A control plane that has its store for itself writes nothing about leading, and leads.
func TestAloneWritesNoBeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memkv.New()
		c := run(t, store, nil)
		advance(time.Minute)
		join(t, c, "a", time.Minute)
		status, err := c.GetStatus(t.Context(), nil)
		if err != nil || status.GetLeadership() != nil {
			t.Errorf("%v, %v", status, err)
		}
		page, err := store.Range(t.Context(), kv.KeyRange{Prefix: leaderPrefix})
		if err != nil || len(page.Entries) != 0 || page.Revision != 1 {
			t.Errorf("%v, %v", page, err)
		}
		stop(t, c)
	})
}

// One leads; when it is killed another one does, after the silence and not before, and there are never two.
func TestElection(t *testing.T) {
	testShared(t, "a b c", func(t *testing.T, s *sharedStore, first *instance) {
		for range 1000 {
			advance(10 * time.Millisecond)
			if s.leader() != first {
				t.Fatal("another instance took over from one that lives")
			}
		}
		for term := uint64(1); ; term++ {
			leader := s.leader()
			for _, i := range s.instances() {
				status, err := i.GetStatus(t.Context(), nil)
				if err != nil {
					t.Fatal(err)
				}
				if l := status.GetLeadership(); l.GetTerm() != term || l.GetLeader() != leader.name || l.GetLeaderUrl() != leader.cfg.URL ||
					l.GetInstance() != i.name || l.GetLeading() != (i == leader) {
					t.Fatalf("%s says %v in term %d of %s", i.name, l, term, leader.name)
				}
			}
			s.kill(leader)
			if len(s.instances()) == 0 {
				break
			}
			_, took := s.awaitLeader(leader)
			if took < 750*time.Millisecond || took > 1300*time.Millisecond { // the last beat was up to 250 ms ago
				t.Errorf("it took %v", took)
			}
		}
	})
}

// An instance that closes hands over at once, whatever calls of others still run in it.
func TestHandOver(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, leader *instance) {
		leave, done := make(chan struct{}), make(chan error, 1)
		go func() {
			done <- leader.WatchCategories(t.Context(), &scribev1.WatchCategoriesRequest{}, func(*scribev1.WatchCategoriesResponse) error {
				<-leave // a client that takes nothing
				return nil
			})
		}()
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- leader.Close(t.Context()) }()
		if _, took := s.awaitLeader(leader); took > 10*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		close(leave)
		wantReason(t, <-done, scribev1.Reason_REASON_SHUTTING_DOWN)
		if err := <-closed; err != nil {
			t.Error(err)
		}
	})
}

// An instance that is about to stop lets another one lead at once, serves on, and leads again only when the others are gone.
func TestStandAside(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, leader *instance) {
		join(t, leader.ControlPlane, "m", 10*time.Second)
		other := s.followers()[0]
		began := time.Now()
		if err := leader.StandAside(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if next := s.leader(); next != other || time.Since(began) > 10*time.Millisecond {
			t.Errorf("%s leads after %v", next.name, time.Since(began))
		}
		if err := heartbeat(t, leader.ControlPlane, "m", 0); err != nil {
			t.Errorf("a heartbeat at the one that stood aside: %v", err)
		}
		if err := leader.StandAside(t.Context()); err != nil {
			t.Errorf("it does not lead: %v", err)
		}
		s.end(other)
		advance(leader.cfg.TakeoverAfter / 2)
		if len(s.leaders()) > 0 {
			t.Error("it does not let others go first")
		}
		if next, took := s.awaitLeader(nil); next != leader || took > 2*leader.cfg.TakeoverAfter {
			t.Errorf("%s leads after %v", next.name, took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if err := leader.StandAside(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without any other: %v", err)
		}
	})
}

// A store that does not answer is not silence: when it is back, the same instance leads in the same term, and members and slots
// are as they were. Meanwhile nothing is answered that might be outdated.
func TestStoreAwayIsNotSilence(t *testing.T) {
	for name, fail := range map[string]func(*storeWay){"fails": (*storeWay).cut, "hangs": (*storeWay).hang} {
		t.Run(name, func(t *testing.T) {
			testShared(t, "a b c", func(t *testing.T, s *sharedStore, leader *instance) {
				all := s.instances()
				join(t, leader.ControlPlane, "m", 10*time.Second)
				hold(t, leader.ControlPlane, "h", 5*time.Minute, &scribev1.Pin{Category: 1, From: 5})
				for _, i := range all {
					fail(i.way)
				}
				advance(500 * time.Millisecond)
				if err := heartbeat(t, leader.ControlPlane, "m", 0); err != nil {
					t.Errorf("right after: %v", err)
				}
				for range 60 {
					advance(time.Second)
					for _, i := range all {
						wantReason(t, heartbeat(t, i.ControlPlane, "m", 0), scribev1.Reason_REASON_NO_BACKEND)
					}
				}
				for _, i := range all {
					i.way.mend()
				}
				advance(2 * time.Second)
				if now := s.leader(); now != leader {
					t.Errorf("%s leads after %s", now.name, leader.name)
				}
				for _, i := range all {
					if err := heartbeat(t, i.ControlPlane, "m", 0); err != nil {
						t.Errorf("at %s after the outage: %v", i.name, err)
					}
					seen, _ := i.leadership.seenTerm()
					if seen.Term != 1 {
						t.Errorf("term %d", seen.Term)
					}
				}
				wantMembers(t, leader.ControlPlane, "m/1/0")
				res, err := leader.ListPins(t.Context(), &scribev1.ListPinsRequest{})
				if err != nil || res.GetAge().AsDuration() > 2*time.Second { // others may have expired meanwhile
					t.Errorf("%v, %v", res, err)
				}
				advance(10*time.Second + time.Millisecond)
				wantMembers(t, leader.ControlPlane, "") // leases run again
			})
		})
	}
}

// A leader that alone is cut off from the store stops answering before another one begins, and follows it when it is back.
func TestLeaderIsCutOff(t *testing.T) {
	testShared(t, "a b c", func(t *testing.T, s *sharedStore, old *instance) {
		began := time.Now()
		join(t, old.ControlPlane, "m", 10*time.Second)
		hold(t, old.ControlPlane, "h", 0, &scribev1.Pin{Category: 1, From: 5})
		watch, ended := watchMembersOf(t.Context(), old.ControlPlane, 5*time.Second)
		synctest.Wait()
		<-watch
		var there []<-chan error // watches that are passed on
		for _, i := range s.followers() {
			_, e := watchMembersOf(t.Context(), i.ControlPlane, time.Hour)
			there = append(there, e)
		}
		synctest.Wait()
		old.way.cut()
		leader, _ := s.awaitLeader(old) // which checks that there are never two
		for _, e := range there {       // they don't wait until the old one notices
			wantReason(t, <-e, scribev1.Reason_REASON_NO_BACKEND)
		}
		if d := time.Since(began); d > 2*time.Second {
			t.Errorf("watches that are passed on go on for %v", d)
		}
		wantMembers(t, leader.ControlPlane, "m/1/0")
		wantPins(t, leader.ControlPlane, 0)
		status, err := old.GetStatus(t.Context(), nil)
		if err != nil || len(status.GetMembers()) != 0 || status.GetLeadership().GetLeading() {
			t.Errorf("%v, %v", status, err)
		}
		_, err = old.ListPins(t.Context(), &scribev1.ListPinsRequest{})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		advance(5 * time.Second)
		wantReason(t, <-ended, scribev1.Reason_REASON_NO_BACKEND)
		// It has not noticed that it was replaced. Once it reaches the store again it does, and passes calls on.
		old.way.mend()
		advance(6 * time.Second)
		if err := heartbeat(t, old.ControlPlane, "m", 3); rpc.ReasonOf(err) != scribev1.Reason_REASON_LEASE_EXPIRED {
			t.Errorf("11 s after the takeover: %v", err)
		}
		join(t, old.ControlPlane, "m", 10*time.Second)
		wantMembers(t, leader.ControlPlane, "m/1/0")
		wantMembers(t, old.ControlPlane, "m/1/0")
	})
}

// A deposed leader writes nothing: not even a transaction that was on its way when it was deposed.
func TestStalledWriter(t *testing.T) {
	stalled := func(t *testing.T, s *sharedStore, old *instance) (slots string, err error) {
		join(t, old.ControlPlane, "x", time.Minute)
		release := old.way.stall(slotPrefix)
		joined := old.startJoin(t, "late")
		old.way.cut()
		leader, _ := s.awaitLeader(old)
		if m := join(t, leader.ControlPlane, "y", time.Minute); m.GetSlot() != 2 {
			t.Errorf("y has slot %d", m.GetSlot())
		}
		release()
		err = <-joined
		return s.slots(), err
	}
	testShared(t, "a b", func(t *testing.T, s *sharedStore, old *instance) {
		slots, err := stalled(t, s, old)
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		if slots != "x/1 y/2" {
			t.Errorf("the store has %s", slots)
		}
	})
	testShared(t, "a b", func(t *testing.T, s *sharedStore, old *instance) { // the test finds a writer whose transactions have no condition
		for _, i := range s.instances() {
			i.way.careless = true
		}
		if slots, _ := stalled(t, s, old); slots == "x/1 y/2" {
			t.Error("a writer that ignores the term was not found")
		}
	})
}

// A join that was stored just before the takeover is known to the next leader. The caller, whose answer comes from the deposed one,
// is told that the outcome is unknown.
func TestJoinBeforeTakeover(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, old *instance) {
		old.way.delay(slotPrefix, 4*time.Second)
		joined := old.startJoin(t, "m")
		old.way.cut()
		leader, _ := s.awaitLeader(old)
		wantMembers(t, leader.ControlPlane, "m/1/0")
		if m := join(t, leader.ControlPlane, "n", time.Minute); m.GetSlot() != 2 {
			t.Errorf("n has slot %d", m.GetSlot())
		}
		old.way.mend()
		wantReason(t, <-joined, scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		if n := old.members.countMembers(); n != 0 {
			t.Errorf("an instance that does not lead has %d members", n)
		}
	})
}

// A takeover that was on its way for long does not depose the leader that was faster.
func TestStalledTakeover(t *testing.T) {
	testShared(t, "a b c", func(t *testing.T, s *sharedStore, old *instance) {
		release := s.followers()[0].way.stall(leaderTermKey)
		s.kill(old)
		leader, _ := s.awaitLeader(old)
		advance(5 * time.Second)
		release()
		for range 100 {
			advance(50 * time.Millisecond)
			if s.leader() != leader {
				t.Fatal("it was deposed")
			}
		}
		if seen, _ := leader.leadership.seenTerm(); seen.Term != 2 {
			t.Errorf("%+v", seen)
		}
	})
}

// A leader whose beat is stored just before a takeover leads on: it counts on that beat, so the takeover must fail.
func TestBeatBeforeTakeover(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, leader *instance) {
		release := s.followers()[0].way.stall(leaderTermKey)
		leader.way.cut()
		advance(5 * time.Second) // the takeover is on its way
		leader.way.mend()
		advance(500 * time.Millisecond)
		release()
		synctest.Wait()
		if s.leader() != leader { // which checks that there are never two
			t.Error("it was deposed")
		}
	})
}

// A leader counts from when it sent a beat, not from when it was answered: the others may have seen it long before.
func TestLateAnswersDoNotExtendATerm(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, old *instance) {
		advance(time.Second)
		old.way.delay(leaderBeatKey, 900*time.Millisecond)
		for range 20 {
			advance(50 * time.Millisecond)
			s.leaders()
		}
		old.way.cut()
		if leader, _ := s.awaitLeader(old); leader == old { // which checks that there are never two
			t.Error("it leads on")
		}
	})
}

// One beat that gets no answer does not end a term, nor what the leader serves.
func TestOneLostBeat(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, leader *instance) {
		join(t, leader.ControlPlane, "m", time.Minute)
		for range 5 {
			leader.way.hang()
			advance(300 * time.Millisecond)
			leader.way.mend()
			for range 100 {
				advance(10 * time.Millisecond)
				if s.leader() != leader {
					t.Fatal("it was deposed")
				}
				if err := heartbeat(t, leader.ControlPlane, "m", 0); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// Looks that fail now and then are not silence either, even if another one finds the same beat each time.
func TestFlakyReadsAreNotSilence(t *testing.T) {
	testShared(t, "a b", func(t *testing.T, s *sharedStore, leader *instance) {
		other := s.followers()[0]
		leader.way.cut()
		for range 20 {
			other.way.cut()
			advance(300 * time.Millisecond)
			other.way.mend()
			advance(600 * time.Millisecond)
		}
		leader.way.mend()
		advance(time.Second)
		if seen, _ := leader.leadership.seenTerm(); s.leader() != leader || seen.Term != 1 {
			t.Errorf("%+v", seen)
		}
	})
}

// A takeover whose answer is lost, and a term that can't be read, are followed by another term after the silence.
func TestTermsOfUnknownHolders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedStore(t)
		lost := &faultyStore{Store: s.store, prefix: leaderTermKey, applied: true}
		lost.failing.Store(true)
		a := s.serve("a", func(_ *Config, d *Deps) { d.Store = lost })
		synctest.Wait()
		if seen, _ := a.leadership.seenTerm(); len(s.leaders()) != 0 || seen.Term > 1 {
			t.Fatalf("it leads in a term of which it does not know: %+v", seen)
		}
		_, err := a.ListPins(t.Context(), &scribev1.ListPinsRequest{})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		lost.failing.Store(false)
		s.awaitLeader(nil)
		if seen, _ := a.leadership.seenTerm(); seen.Term != 2 || seen.Holder != "a" {
			t.Errorf("%+v", seen)
		}
		if _, err := s.store.Commit(t.Context(), kv.Put(leaderTermKey, []byte("{"))); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(s.leaders()) != 0 {
			t.Error("it leads on in a term that was overwritten")
		}
		if _, took := s.awaitLeader(nil); took < 900*time.Millisecond {
			t.Errorf("a term that can't be read was replaced after %v", took)
		}
		if seen, _ := a.leadership.seenTerm(); seen.Term != 1 && seen.Term != 3 {
			t.Errorf("%+v", seen)
		}
	})
}

// Every instance serves members and pins, for the leader.
func TestForwardedCalls(t *testing.T) {
	testShared(t, "a b c", func(t *testing.T, s *sharedStore, _ *instance) {
		all := s.instances()
		for n, i := range all {
			name := string(rune('m' + n))
			if m := join(t, i.ControlPlane, name, time.Minute); m.GetSlot() != uint32(n+1) {
				t.Errorf("%s has slot %d", name, m.GetSlot())
			}
			hold(t, i.ControlPlane, name, 0, &scribev1.Pin{Category: uint32(n + 1), From: 7})
			if err := heartbeat(t, i.ControlPlane, name, uint32(n)); err != nil {
				t.Error(err)
			}
		}
		for _, i := range all {
			wantMembers(t, i.ControlPlane, "m/1/0 n/2/1 o/3/2")
			wantPins(t, i.ControlPlane, 0, "1@7", "2@7", "3@7")
			_, err := i.Join(t.Context(), &scribev1.JoinRequest{})
			wantReason(t, err, scribev1.Reason_REASON_INVALID)
			wantReason(t, heartbeat(t, i.ControlPlane, "unknown", 0), scribev1.Reason_REASON_LEASE_EXPIRED)
		}
		for _, i := range s.followers() {
			// One hop only: what was passed on to an instance that does not lead is refused.
			_, err := i.ListPins(rpc.WithForwarded(t.Context()), &scribev1.ListPinsRequest{})
			wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
			if retryAfter(err) != 250*time.Millisecond {
				t.Errorf("%v hints at %v", err, retryAfter(err))
			}
			if _, err := i.Leave(t.Context(), &scribev1.LeaveRequest{Id: "m"}); err != nil {
				t.Error(err)
			}
		}
		wantMembers(t, s.leader().ControlPlane, "n/2/1 o/3/2")
	})
}

// The metrics tell who leads, and count calls that are passed on by whether the leader served them.
func TestLeadershipMetrics(t *testing.T) {
	testShared(t, "a", func(t *testing.T, s *sharedStore, leader *instance) {
		other := s.serve("b", nil)
		synctest.Wait()
		join(t, other.ControlPlane, "m", time.Minute)
		wantReason(t, heartbeat(t, other.ControlPlane, "unknown", 0), scribev1.Reason_REASON_LEASE_EXPIRED)
		if leader.measureLeading() != 1 || other.measureLeading() != 0 {
			t.Error("the gauges do not tell who leads")
		}
		s.kill(leader)
		wantReason(t, heartbeat(t, other.ControlPlane, "m", 0), scribev1.Reason_REASON_NO_BACKEND)
		s.awaitLeader(leader)
		if err := heartbeat(t, other.ControlPlane, "m", 0); err != nil {
			t.Error(err)
		}
		_, err := other.ListPins(rpc.WithForwarded(t.Context()), &scribev1.ListPinsRequest{})
		if err != nil {
			t.Errorf("a leader refuses what is passed on to it: %v", err)
		}
		for label, want := range map[string]float64{forwardDone: 2, forwardFailed: 1, forwardRefused: 0} {
			if got := testutil.ToFloat64(other.metrics.forwarded.WithLabelValues(label)); got != want {
				t.Errorf("%v calls %s, want %v", got, label, want)
			}
		}
	})
}

// What is passed on at a time is bounded.
func TestForwardedCallsAreBounded(t *testing.T) {
	testShared(t, "a", func(t *testing.T, s *sharedStore, _ *instance) {
		b := s.serve("b", func(c *Config, _ *Deps) { c.MaxForwarded = 2 })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		_, one := watchMembersOf(ctx, b.ControlPlane, 5*time.Second)
		_, two := watchMembersOf(ctx, b.ControlPlane, 5*time.Second)
		synctest.Wait()
		_, err := b.ListMembers(t.Context(), &scribev1.ListMembersRequest{})
		wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
		cancel()
		for _, ended := range []<-chan error{one, two} {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		wantMembers(t, b.ControlPlane, "")
	})
}

// Watches of members that are passed on bring every change, end when the leader changes, and go on at the next one, whose list
// has everybody from the start.
func TestForwardedWatch(t *testing.T) {
	testShared(t, "a b c", func(t *testing.T, s *sharedStore, old *instance) {
		at := s.followers()[0]
		join(t, old.ControlPlane, "m", time.Minute)
		lists, ended := watchMembersOf(t.Context(), at.ControlPlane, 5*time.Second)
		wantLists(t, lists, "0s: m/1/0")
		join(t, at.ControlPlane, "n", time.Minute)
		advance(50 * time.Millisecond)
		wantLists(t, lists, "50ms: m/1/0 n/2/0")
		s.end(old)
		if err := <-ended; retry.Classify(err).Class != retry.Unavailable { // whether it was the leader's end, or the new leader
			t.Errorf("the watch ended with %v", err)
		}
		synctest.Wait()
		lists, ended = watchMembersOf(t.Context(), at.ControlPlane, 5*time.Second)
		wantLists(t, lists, "0s: m/1/0 n/2/0")
		s.endAll()
		if err := <-ended; retry.Classify(err).Class != retry.Unavailable {
			t.Errorf("the watch ended with %v", err)
		}
	})
}

// A heartbeat that reached the leader just before its end is not known to the next one, which gives every member a whole TTL.
// Slots stay with their members through any number of leaders.
func TestMembersThroughFailovers(t *testing.T) {
	testShared(t, "a b c d e f", func(t *testing.T, s *sharedStore, _ *instance) {
		for _, id := range []string{"m", "n", "o"} {
			join(t, s.leader().ControlPlane, id, 5*time.Second)
		}
		for range 4 {
			s.kill(s.leader())
			for range 20 {
				advance(500 * time.Millisecond)
				for _, id := range []string{"m", "n"} {
					all := s.instances()
					err := heartbeat(t, all[len(all)-1].ControlPlane, id, 0)
					if err != nil && rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
						t.Fatal(err)
					}
				}
			}
			wantMembers(t, s.leader().ControlPlane, "m/1/0 n/2/0")
		}
		if m := join(t, s.leader().ControlPlane, "o", 5*time.Second); m.GetSlot() != 3 {
			t.Errorf("o comes back to slot %d", m.GetSlot())
		}
	})
}

// Categories that are deleted anywhere are retired by the leader, and a create that waits for that anywhere goes on.
func TestRetiredByTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedStore(t)
		logs := map[string]*fakeLogs{}
		for _, name := range []string{"a", "b", "c"} {
			logs[name] = newLogs()
			s.serve(name, withLogs(logs[name]))
		}
		synctest.Wait()
		leader := s.leader()
		for n, i := range s.instances() {
			name := strings.Repeat("x", n+1)
			create(t, i.ControlPlane, name)
			synctest.Wait()
			if _, err := i.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: name}); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			create(t, s.instances()[(n+1)%3].ControlPlane, name)
			if took := time.Since(began); took > time.Second {
				t.Errorf("it took %v until the name could be used again", took)
			}
		}
		advance(time.Second)
		for name, l := range logs {
			if n := l.count(); (n == 3) != (name == leader.name) || n != 3 && n != 0 {
				t.Errorf("%s has retired %d categories; %s leads", name, n, leader.name)
			}
		}
		for _, i := range s.instances() {
			if n := i.retireSchedule.countPending(); n != 0 {
				t.Errorf("%s counts %d", i.name, n)
			}
		}
	})
}

// What the leader has not retired is retired by the next one.
func TestRetirementsAreTakenOver(t *testing.T) {
	testShared(t, "a", func(t *testing.T, s *sharedStore, leader *instance) { // which has no engine
		create(t, leader.ControlPlane, "x")
		l := newLogs()
		b := s.serve("b", withLogs(l))
		synctest.Wait()
		if _, err := b.DeleteCategory(t.Context(), &scribev1.DeleteCategoryRequest{Name: "x"}); err != nil {
			t.Fatal(err)
		}
		advance(time.Minute)
		if n := l.count(); n != 0 || b.retireSchedule.countPending() != 1 {
			t.Errorf("b does not lead, and has retired %d; %d are pending", n, b.retireSchedule.countPending())
		}
		s.end(leader)
		advance(time.Second)
		if n := l.count(); n != 1 || b.retireSchedule.countPending() != 0 {
			t.Errorf("b leads, and has retired %d; %d are pending", n, b.retireSchedule.countPending())
		}
	})
}

func TestSharedConfig(t *testing.T) {
	_, err := New(Config{Shared: true}, Deps{Store: newStore(t)})
	for _, want := range []string{"Instance: ", "URL: "} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
}
