package group

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/format/bucket"
	"scribe/internal/format/checkpoint"
	"scribe/internal/format/record"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/kv"
)

// pass lets time go by in a bubble, with heartbeats of members every second.
func pass(t testing.TB, d time.Duration, alive ...*member) {
	t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); {
		<-time.After(time.Second)
		for _, m := range alive {
			m.mustBeat(t, nil)
		}
	}
}

func TestJoinCommitRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		if a.set.Len() != 16 || a.scheme.Sharing != bucket.Pointers {
			t.Fatalf("alone with %v of %v", sorted(a.set), a.scheme)
		}
		if err := a.commit(t.Context(), shard, 41); err != nil {
			t.Fatal(err)
		}
		b := c.mustJoin(t, joinRequest("b"))
		if b.set.Len() != 0 || b.a.GetPending() != 8 {
			t.Fatalf("b has %v and %d to come", sorted(b.set), b.a.GetPending())
		}
		a.mustBeat(t, nil)
		revoked := bucket.Set(a.a.GetRevoked())
		if revoked.Len() != 8 || a.set.Len() != 16 {
			t.Fatalf("a is to give back %v of %v", sorted(revoked), sorted(a.set))
		}
		// It goes on with the others, commits, and only then b has them.
		if err := a.commit(t.Context(), shard, 51); err != nil {
			t.Fatal(err)
		}
		b.mustBeat(t, nil)
		if b.set.Len() != 0 {
			t.Fatal("b has buckets that a has not given back")
		}
		a.mustBeat(t, revoked)
		b.mustBeat(t, nil)
		if a.set.Len() != 8 || b.set.Len() != 8 || sorted(b.set) != sorted(revoked) {
			t.Fatalf("a has %v, b %v", sorted(a.set), sorted(b.set))
		}
		if p := b.positions(t)[shard]; p.Low < 51 || len(p.Ahead) > 0 {
			t.Errorf("b begins at %+v", p)
		}
		// Both go on, each on its own; the last message of a's is the fourth of a pointer.
		next, _ := a.scheme.Next(shard, a.set.Slice()[0], 80)
		if err := a.commit(t.Context(), shard, 60, &scribev1.GroupBucketPosition{Bucket: a.set.Slice()[0], Lsn: uint64(next), Skip: 3}); err != nil {
			t.Fatal(err)
		}
		if err := b.commit(t.Context(), shard, 70); err != nil {
			t.Fatal(err)
		}
		d, err := c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "readers"})
		if err != nil {
			t.Fatal(err)
		}
		want := uint64(0)
		for lsn := record.LSN(60); lsn < 101; lsn++ {
			switch of := a.scheme.Of(shard, lsn); {
			case a.set.Has(of) && of != a.set.Slice()[0]:
				want++
			case of == a.set.Slice()[0] && lsn >= next, b.set.Has(of) && lsn >= 70:
				want++
			}
		}
		if got := d.GetLag().GetPointers(); got != want {
			t.Errorf("%d pointers wait, want %d", got, want)
		}
		// b goes: what it had goes to a, which begins where b was.
		if _, err := c.LeaveGroup(t.Context(), &scribev1.LeaveGroupRequest{Group: "readers", Member: "b", Epoch: b.epoch}); err != nil {
			t.Fatal(err)
		}
		a.mustBeat(t, nil)
		p := a.positions(t)[shard]
		if a.set.Len() != 16 || p.At(b.set.Slice()[0]).LSN < 70 || p.At(a.scheme.Of(shard, next)) != (bucket.Place{LSN: next, Skip: 3}) {
			t.Errorf("a has %v at %+v", sorted(a.set), p)
		}
	})
}

// A member that was silent for its TTL loses everything. What it commits then is refused, whatever generation it names, also when it comes
// back under another epoch.
func TestZombiesAreFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		zombie := c.mustJoin(t, joinRequest("a"))
		if err := zombie.commit(t.Context(), shard, 11); err != nil {
			t.Fatal(err)
		}
		b := c.mustJoin(t, joinRequest("b"))
		pass(t, 14*time.Second, b)
		if b.set.Len() != 16 {
			t.Fatalf("b has %v", sorted(b.set))
		}
		if err := b.commit(t.Context(), shard, 15); err != nil {
			t.Fatal(err)
		}
		wantReason(t, zombie.commit(t.Context(), shard, 90), scribev1.Reason_REASON_LEASE_EXPIRED)
		zombie.generation = 1000
		wantReason(t, zombie.commit(t.Context(), shard, 90), scribev1.Reason_REASON_LEASE_EXPIRED)
		wantReason(t, zombie.beat(t.Context(), nil), scribev1.Reason_REASON_LEASE_EXPIRED)
		again := c.mustJoin(t, joinRequest("a"))
		wantReason(t, zombie.commit(t.Context(), shard, 90), scribev1.Reason_REASON_LEASE_EXPIRED)
		all := again.set
		again.set = bucket.All(16)
		wantReason(t, again.commit(t.Context(), shard, 90), scribev1.Reason_REASON_STALE_GENERATION)
		again.set = all
		if p := b.positions(t)[shard]; p.Low < 15 || p.Low > 16 {
			t.Errorf("b is at %+v", p)
		}
	})
}

// A member that holds on to what it should give back loses it in the end, and only that.
func TestStubbornMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		old := *a
		b := c.mustJoin(t, joinRequest("b"))
		pass(t, 50*time.Second, a, b)
		if b.set.Len() != 0 || bucket.Set(a.a.GetRevoked()).Len() != 8 {
			t.Fatal("buckets were taken away too early")
		}
		pass(t, 15*time.Second, a, b)
		if a.set.Len() != 8 || b.set.Len() != 8 {
			t.Fatalf("a has %d, b %d", a.set.Len(), b.set.Len())
		}
		wantReason(t, old.commit(t.Context(), shard, 50), scribev1.Reason_REASON_STALE_GENERATION)
		if err := a.commit(t.Context(), shard, 50); err != nil {
			t.Error(err)
		}
	})
}

// Two coordinators on one store serve one group, and either may go: nothing is lost, and nobody alive loses anything.
func TestFailover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 1001)
		one, two := w.coordinator(t, "one"), w.coordinator(t, "two")
		a, b := one.mustJoin(t, joinRequest("a")), two.mustJoin(t, joinRequest("b"))
		a.mustBeat(t, nil)
		a.mustBeat(t, a.a.GetRevoked())
		pass(t, 35*time.Second, a, b) // each speaks to its own: the other one must not take it for silent
		if a.set.Len() != 8 || b.set.Len() != 8 {
			t.Fatalf("a has %d, b %d", a.set.Len(), b.set.Len())
		}
		if err := a.commit(t.Context(), shard, 100); err != nil {
			t.Fatal(err)
		}
		if err := one.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantReason(t, a.beat(t.Context(), nil), scribev1.Reason_REASON_SHUTTING_DOWN)
		a.c = two
		pass(t, 35*time.Second, a, b)
		if a.set.Len() != 8 || b.set.Len() != 8 {
			t.Fatalf("a has %d, b %d after a coordinator went", a.set.Len(), b.set.Len())
		}
		if err := two.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		// All are gone for longer than a TTL: members that come back with the next one are members still.
		<-time.After(time.Minute)
		three := w.coordinator(t, "three")
		<-time.After(5 * time.Second)
		a.c, b.c = three, three
		pass(t, 20*time.Second, a, b)
		if err := a.commit(t.Context(), shard, 200); err != nil {
			t.Fatal(err)
		}
		// Nobody speaks to the next one: both are gone after a TTL.
		pass(t, 25*time.Second, b)
		if b.set.Len() != 16 || b.positions(t)[shard].Low > 200 {
			t.Errorf("b has %d, from %+v", b.set.Len(), b.positions(t)[shard])
		}
		g, _, err := three.loadGroup(t.Context(), "test", "readers")
		if err != nil || len(g.Members) != 1 {
			t.Errorf("%d members, %v", len(g.Members), err)
		}
	})
}

// While the store is unavailable calls fail with a reason to try again, and nobody who is alive is gone when it is back.
func TestStoreOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 1001)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		w.store.set(func(string) (bool, error) { return false, errDown })
		for range 60 {
			<-time.After(time.Second)
			wantReason(t, a.beat(t.Context(), nil), scribev1.Reason_REASON_NO_BACKEND)
		}
		wantReason(t, a.commit(t.Context(), shard, 10), scribev1.Reason_REASON_NO_BACKEND)
		_, err := c.JoinGroup(t.Context(), joinRequest("b"))
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
		w.store.set(nil)
		pass(t, 5*time.Second, a)
		if a.set.Len() != 16 {
			t.Fatalf("a has %v", sorted(a.set))
		}
		// Lost answers: the commit is repeated, which does nothing twice.
		w.store.set(func(call string) (bool, error) {
			if call == "commit" {
				return true, errDown
			}
			return false, nil
		})
		wantReason(t, a.commit(t.Context(), shard, 10), scribev1.Reason_REASON_UNKNOWN_OUTCOME)
		w.store.set(nil)
		if err := a.commit(t.Context(), shard, 10); err != nil {
			t.Fatal(err)
		}
		if p := a.positions(t)[shard]; p.Low != 10 {
			t.Errorf("at %+v", p)
		}
	})
}

func TestStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		first, second := w.tail(1, 101), w.tail(2, 51)
		w.logs[first].FirstLSN, w.logs[second].FirstLSN = 20, 7
		w.seeks[first], w.seeks[second] = 60, 51
		cp := checkpoint.Checkpoint{Category: "web.access", CategoryID: 7, Watermark: 77, Positions: []checkpoint.Position{{Shard: first, LSN: 42, Skip: 5}}}
		c := w.coordinator(t, "one")
		at := func(name string, change func(*scribev1.JoinGroupRequest)) map[record.ShardID]bucket.Position {
			t.Helper()
			req := &scribev1.JoinGroupRequest{Group: name, Category: "web.access", Member: "a"}
			change(req)
			return c.mustJoin(t, req).positions(t)
		}
		check := func(got map[record.ShardID]bucket.Position, lsn1, lsn2 record.LSN) {
			t.Helper()
			if got[first].Low != lsn1 || got[second].Low != lsn2 {
				t.Errorf("at %d and %d, want %d and %d", got[first].Low, got[second].Low, lsn1, lsn2)
			}
		}
		check(at("latest", func(*scribev1.JoinGroupRequest) {}), 101, 51)
		check(at("earliest", func(r *scribev1.JoinGroupRequest) { r.StartAt = scribev1.StartAt_START_AT_EARLIEST }), 20, 7)
		check(at("time", func(r *scribev1.JoinGroupRequest) {
			r.StartAt, r.StartTime = scribev1.StartAt_START_AT_TIME, time.Now().Add(-time.Hour).UnixMicro()
		}), 60, 51)
		got := at("checkpoint", func(r *scribev1.JoinGroupRequest) { r.Checkpoint = cp.String() })
		check(got, 42, 1) // what was trimmed of a shard that is newer than the checkpoint is owed, and a gap
		p := got[first]
		if at := p.At((bucket.Scheme{Sharing: bucket.Pointers, Buckets: 256}).Of(first, 42)); at.Skip != 5 {
			t.Errorf("in the middle of a payload: %+v", at)
		}
		for name, change := range map[string]func(*scribev1.JoinGroupRequest){
			"future": func(r *scribev1.JoinGroupRequest) {
				r.StartAt, r.StartTime = scribev1.StartAt_START_AT_TIME, time.Now().Add(time.Hour).UnixMicro()
			},
			"nonsense": func(r *scribev1.JoinGroupRequest) { r.Checkpoint = "scribe1.nonsense" },
			"both": func(r *scribev1.JoinGroupRequest) {
				r.Checkpoint, r.StartAt = cp.String(), scribev1.StartAt_START_AT_EARLIEST
			},
			"beyond": func(r *scribev1.JoinGroupRequest) {
				far := cp
				far.Positions = []checkpoint.Position{{Shard: first, LSN: 500}}
				r.Checkpoint = far.String()
			},
			"buckets":     func(r *scribev1.JoinGroupRequest) { r.Buckets = 48 },
			"no member":   func(r *scribev1.JoinGroupRequest) { r.Member = "" },
			"bad/name":    func(*scribev1.JoinGroupRequest) {},
			"unknown way": func(r *scribev1.JoinGroupRequest) { r.Sharing = 9 },
		} {
			req := &scribev1.JoinGroupRequest{Group: name, Category: "web.access", Member: "a"}
			change(req)
			_, err := c.JoinGroup(t.Context(), req)
			wantReason(t, err, scribev1.Reason_REASON_INVALID)
		}
		_, err := c.JoinGroup(t.Context(), &scribev1.JoinGroupRequest{Group: "g", Category: "nothing", Member: "a"})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
		w.down = errDown
		_, err = c.JoinGroup(t.Context(), &scribev1.JoinGroupRequest{Group: "g", Category: "web.access", Member: "a"})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND)
	})
}

// TestStartsBesideRemovedLogs: a group keeps its checkpoint's positions in logs that were removed. A log that was written after the checkpoint, and is
// removed by now, is owed as a gap; what one had that had been removed before, and is back, is not. The group knows the logs as of its start.
func TestStartsBesideRemovedLogs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.time = 500
		read, behind, later, earlier, back := w.tail(1, 101), w.tail(2, 51), w.tail(3, 6), w.tail(4, 9), w.tail(5, 31)
		for log, at := range map[record.ShardID]int64{read: 70, behind: 90, later: 95, earlier: 60, back: 40} {
			w.remove(log, at)
		}
		w.logs[back].Removed, w.logs[back].NextLSN, w.logs[back].LastTime = false, 35, 99
		cp := checkpoint.Checkpoint{Category: "web.access", CategoryID: 7, Watermark: 77, Positions: []checkpoint.Position{{Shard: read, LSN: 101}, {Shard: behind, LSN: 20}}}
		c := w.coordinator(t, "one")
		check := func(what string, m *member, want map[record.ShardID]record.LSN) {
			t.Helper()
			got := map[record.ShardID]record.LSN{}
			for log, p := range m.positions(t) {
				got[log] = p.Low
			}
			if !maps.Equal(got, want) {
				t.Errorf("%s: at %v, want %v", what, got, want)
			}
			res, err := c.GroupPositions(t.Context(), &scribev1.GroupPositionsRequest{Group: m.group, Member: m.name, Epoch: m.epoch, Generation: m.generation, Buckets: m.set})
			if err != nil || res.GetKnownUntil() != 500 {
				t.Errorf("%s: the logs are known until %d, %v", what, res.GetKnownUntil(), err)
			}
		}
		named := map[record.ShardID]record.LSN{read: 101, behind: 20, later: 1, back: 31}
		req := &scribev1.JoinGroupRequest{Group: "made", Category: "web.access", Member: "a", Checkpoint: cp.String()}
		check("made from a checkpoint", c.mustJoin(t, req), named)
		m := c.mustJoin(t, &scribev1.JoinGroupRequest{Group: "reset", Category: "web.access", Member: "a", StartAt: scribev1.StartAt_START_AT_EARLIEST})
		check("made at the earliest", m, map[record.ShardID]record.LSN{back: 31})
		if _, err := c.ResetGroup(t.Context(), &scribev1.ResetGroupRequest{Group: "reset", Checkpoint: cp.String(), Force: true}); err != nil {
			t.Fatal(err)
		}
		m.mustBeat(t, nil)
		check("reset to a checkpoint", m, named)
		cp.Positions[0].LSN++
		req.Group, req.Checkpoint = "beyond", cp.String()
		_, err := c.JoinGroup(t.Context(), req)
		wantReason(t, err, scribev1.Reason_REASON_INVALID)
	})
}

// A reset is refused while there are members. A forced one moves them, and refuses what they commit of before.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		if err := a.commit(t.Context(), shard, 60); err != nil {
			t.Fatal(err)
		}
		reset := &scribev1.ResetGroupRequest{Group: "readers", StartAt: scribev1.StartAt_START_AT_EARLIEST}
		_, err := c.ResetGroup(t.Context(), reset)
		wantReason(t, err, scribev1.Reason_REASON_GROUP_ACTIVE)
		reset.Force = true
		if _, err := c.ResetGroup(t.Context(), reset); err != nil {
			t.Fatal(err)
		}
		wantReason(t, a.commit(t.Context(), shard, 70), scribev1.Reason_REASON_STALE_GENERATION)
		before := a.generation
		a.mustBeat(t, nil)
		if a.set.Len() != 16 || a.a.GetGrants()[0].GetGeneration() <= before {
			t.Errorf("granted %+v", a.a)
		}
		if p := a.positions(t)[shard]; p.Low != 1 {
			t.Errorf("at %+v after a reset", p)
		}
		if keys := w.keys(t, positionsPrefix("readers")); len(keys) != 2 {
			t.Errorf("positions of before are left: %v", keys)
		}
		if _, err := c.LeaveGroup(t.Context(), &scribev1.LeaveGroupRequest{Group: "readers", Member: "a", Epoch: a.epoch}); err != nil {
			t.Fatal(err)
		}
		res, err := c.ResetGroup(t.Context(), &scribev1.ResetGroupRequest{Group: "readers", StartAt: scribev1.StartAt_START_AT_LATEST})
		if err != nil || res.GetGroup().GetPositionedAt() == 0 {
			t.Fatal(res, err)
		}
		if p := c.mustJoin(t, joinRequest("b")).positions(t)[shard]; p.Low != 101 {
			t.Errorf("at %+v after a reset to the latest", p)
		}
		_, err = c.ResetGroup(t.Context(), &scribev1.ResetGroupRequest{Group: "readers"})
		wantReason(t, err, scribev1.Reason_REASON_INVALID)
		_, err = c.ResetGroup(t.Context(), &scribev1.ResetGroupRequest{Group: "nobody", StartAt: scribev1.StartAt_START_AT_LATEST})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_GROUP)
	})
}

// A category that was deleted and made again is another one: the group says so until it is reset.
func TestCategoryMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.tail(1, 101)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		w.category("web.access", 8, 1)
		_, err := c.JoinGroup(t.Context(), joinRequest("b"))
		wantReason(t, err, scribev1.Reason_REASON_CONFLICT)
		if _, err := c.ResetGroup(t.Context(), &scribev1.ResetGroupRequest{Group: "readers", StartAt: scribev1.StartAt_START_AT_EARLIEST, Force: true}); err != nil {
			t.Fatal(err)
		}
		wantReason(t, a.beat(t.Context(), nil), scribev1.Reason_REASON_LEASE_EXPIRED)
		c.mustJoin(t, joinRequest("b"))
	})
}

func TestListAndDelete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.category("other", 9, 3)
		c := w.coordinator(t, "one")
		for i := range 5 {
			req := joinRequest("a")
			req.Group = fmt.Sprint("g", i)
			if i == 3 {
				req.Category, req.Buckets = "other", 0
			}
			c.mustJoin(t, req)
		}
		var names []string
		for after := ""; ; {
			res, err := c.ListGroups(t.Context(), &scribev1.ListGroupsRequest{After: after, Limit: 2, Category: "web.access"})
			if err != nil {
				t.Fatal(err)
			}
			for _, g := range res.GetGroups() {
				names = append(names, g.GetName())
			}
			if after = res.GetNext(); !res.GetMore() {
				break
			}
		}
		if fmt.Sprint(names) != "[g0 g1 g2 g4]" {
			t.Errorf("listed %v", names)
		}
		d, err := c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "g3", Brief: true})
		if err != nil || d.GetGroup().GetSharing() != scribev1.GroupSharing_GROUP_SHARING_SHARDS || d.GetGroup().GetBuckets() != 256 || len(d.GetBuckets()) > 0 {
			t.Errorf("%v, %v", d, err)
		}
		_, err = c.DeleteGroup(t.Context(), &scribev1.DeleteGroupRequest{Group: "g1"})
		wantReason(t, err, scribev1.Reason_REASON_GROUP_ACTIVE)
		if _, err := c.DeleteGroup(t.Context(), &scribev1.DeleteGroupRequest{Group: "g1", Force: true}); err != nil {
			t.Fatal(err)
		}
		_, err = c.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: "g1"})
		wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_GROUP)
		if keys := w.keys(t, positionsPrefix("g1")); len(keys) > 0 {
			t.Errorf("left: %v", keys)
		}
		req := joinRequest("a")
		req.Group, req.Category = "g0", "other"
		_, err = c.JoinGroup(t.Context(), req)
		wantReason(t, err, scribev1.Reason_REASON_CONFLICT)
		req = joinRequest("a")
		req.Group, req.Buckets = "g0", 32
		_, err = c.JoinGroup(t.Context(), req)
		wantReason(t, err, scribev1.Reason_REASON_CONFLICT)
	})
}

// What a commit says of a shard is checked.
func TestCommitIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		a := c.mustJoin(t, joinRequest("a"))
		of := a.scheme.Of(shard, 50)
		for name, p := range map[string]*scribev1.GroupShardPosition{
			"another category": {Shard: uint64(record.MakeShardID(8, 0, 1)), Low: 5},
			"LSN 0":            {Shard: uint64(shard)},
			"no such bucket":   {Shard: uint64(shard), Low: 5, Ahead: []*scribev1.GroupBucketPosition{{Bucket: 16, Lsn: 9}}},
			"not sorted":       {Shard: uint64(shard), Low: 5, Ahead: []*scribev1.GroupBucketPosition{{Bucket: 3, Lsn: 9}, {Bucket: 3, Lsn: 9}}},
			"behind":           {Shard: uint64(shard), Low: 5, Ahead: []*scribev1.GroupBucketPosition{{Bucket: 3, Lsn: 4}}},
			"in the middle":    {Shard: uint64(shard), Low: 5, Ahead: []*scribev1.GroupBucketPosition{{Bucket: of ^ 1, Lsn: 50, Skip: 1}}},
		} {
			_, err := c.CommitGroup(t.Context(), &scribev1.CommitGroupRequest{
				Group: "readers", Member: "a", Epoch: a.epoch, Generation: a.generation, Buckets: a.set, Positions: []*scribev1.GroupShardPosition{p},
			})
			if err == nil {
				t.Errorf("%s: was taken", name)
				continue
			}
			wantReason(t, err, scribev1.Reason_REASON_INVALID)
		}
		// Nothing moves back.
		for _, to := range []record.LSN{50, 20} {
			if err := a.commit(t.Context(), shard, to); err != nil {
				t.Fatal(err)
			}
		}
		if p := a.positions(t)[shard]; p.Low != 50 {
			t.Errorf("at %+v", p)
		}
	})
}

// A commit of many shards is stored in several transactions, none of them too large, and complete.
func TestCommitOfManyShards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // or the member may be taken for dead meanwhile
		w := newWorld()
		c := w.coordinator(t, "one")
		req := joinRequest("a")
		req.Buckets = 1024
		a := c.mustJoin(t, req)
		commit := &scribev1.CommitGroupRequest{Group: "readers", Member: "a", Epoch: a.epoch, Generation: a.generation, Buckets: a.set, Watermark: 99}
		for i := range 300 {
			p := &scribev1.GroupShardPosition{Shard: uint64(record.MakeShardID(7, uint16(i), 1)), Low: 1000}
			for b := range uint32(660) {
				p.Ahead = append(p.Ahead, &scribev1.GroupBucketPosition{Bucket: b, Lsn: 1 << 40})
			}
			commit.Positions = append(commit.Positions, p)
		}
		if _, err := c.CommitGroup(t.Context(), commit); err != nil {
			t.Fatal(err)
		}
		got := a.positions(t)
		if len(got) != 300 {
			t.Fatalf("%d shards", len(got))
		}
		for shard, p := range got {
			if len(p.Ahead) != 660 || p.At(3).LSN != 1<<40 || p.At(1000).LSN < 1000 {
				t.Fatalf("shard %v: %d ahead", shard, len(p.Ahead))
			}
		}
	})
}

// Transactions stay within the limits of the store.
func TestBatches(t *testing.T) {
	var all []kv.Op
	for i := range 300 {
		all = append(all, kv.Put(fmt.Sprint("key", i), make([]byte, 40_000)))
	}
	n := 0
	for _, ops := range kv.SplitOps(all, 1) {
		size := 0
		for _, op := range ops {
			size += len(op.Key) + len(op.Value)
		}
		if len(ops) > kv.MaxOps-1 || size > kv.MaxCommit-kv.MaxKey {
			t.Errorf("%d operations of %d bytes", len(ops), size)
		}
		n += len(ops)
	}
	if n != 300 {
		t.Errorf("%d of 300 operations", n)
	}
}

// An active group holds what it has not committed when retention comes near, and nothing before; a group without members holds nothing.
func TestPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		shard := w.tail(1, 101)
		c := w.coordinator(t, "one")
		req := joinRequest("a")
		req.StartAt = scribev1.StartAt_START_AT_LATEST
		a := c.mustJoin(t, req)
		pins := func() []*scribev1.Pin {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.pins["one"]
		}
		begun := time.Now()
		pass(t, 15*time.Second, a)
		if len(pins()) != 0 {
			t.Fatalf("held at once: %v", pins())
		}
		_, err := c.CommitGroup(t.Context(), &scribev1.CommitGroupRequest{
			Group: "readers", Member: "a", Epoch: a.epoch, Generation: a.generation, Buckets: a.set, Watermark: begun.Add(10 * time.Second).UnixMicro(),
			Positions: []*scribev1.GroupShardPosition{{Shard: uint64(shard), Low: 101}},
		})
		if err != nil {
			t.Fatal(err)
		}
		pass(t, 53*time.Minute, a)
		if p := pins(); len(p) != 1 || p[0].GetCategory() != 7 || p[0].GetFrom() != begun.Add(10*time.Second).UnixMicro() {
			t.Fatalf("held after 53 min: %v", p)
		}
		// It says that it has everything committed up to now.
		for range 20 {
			if _, err := c.HeartbeatGroup(t.Context(), &scribev1.HeartbeatGroupRequest{
				Group: "readers", Member: "a", Epoch: a.epoch, Generation: a.generation, Status: &scribev1.GroupMemberStatus{Watermark: time.Now().UnixMicro()},
			}); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
		}
		if len(pins()) != 0 {
			t.Errorf("held by a group that has everything: %v", pins())
		}
	})
}

// A call after Close is refused, and Close waits for those that run.
func TestClose(t *testing.T) {
	w := newWorld()
	c := w.coordinator(t, "one")
	entered, leave := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w.store.set(func(call string) (bool, error) {
		if call == "get" {
			once.Do(func() { close(entered) })
			<-leave
		}
		return false, nil
	})
	done := make(chan error, 1)
	go func() {
		_, err := c.DescribeGroup(context.Background(), &scribev1.DescribeGroupRequest{Group: "readers"})
		done <- err
	}()
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ctx); err == nil {
		t.Error("Close did not wait")
	}
	w.store.set(nil)
	close(leave)
	if err := <-done; err == nil {
		t.Error("there is no such group")
	}
	if err := c.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_, err := c.ListGroups(t.Context(), &scribev1.ListGroupsRequest{})
	wantReason(t, err, scribev1.Reason_REASON_SHUTTING_DOWN)
}
