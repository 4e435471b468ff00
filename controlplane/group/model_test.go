package group

import (
	"context"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"scribe/internal/base/config"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// committedModel is where buckets are, as commits were acknowledged; where the outcome is not known, between two places.
type committedModel map[record.ShardID][]span

type span struct{ least, most bucket.Place }

// Two coordinators on a store that fails now and then, members that join, commit, give back, vanish and come back as zombies, and resets:
// what was acknowledged is never undone, what was refused never done, and a bucket's position is where its owners left it.
func TestCommitsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld()
		scheme := bucket.Scheme{Sharing: bucket.Pointers, Buckets: 16}
		shards := []record.ShardID{w.tail(1, 1000), w.tail(2, 1000), w.tail(3, 1000)}
		var cs []*Coordinator
		for i := range 2 {
			c, err := NewCoordinator(config.Defaults[Config](), Deps{Store: w.store, Control: w, Log: w, Holder: fmt.Sprint(i)})
			if err != nil {
				rt.Fatal(err)
			}
			cs = append(cs, c)
		}
		defer func() {
			for _, c := range cs {
				_ = c.Close(context.Background())
			}
		}()
		ctx := context.Background()
		model := committedModel{}
		restart := func(to record.LSN) {
			for _, s := range shards {
				model[s] = make([]span, 16)
				for b := range model[s] {
					model[s][b] = span{bucket.Place{LSN: to}, bucket.Place{LSN: to}}
				}
			}
		}
		restart(1)
		var members []*member
		names := 0
		anyone := func(t *rapid.T) *member {
			if len(members) == 0 {
				t.Skip("nobody is there")
			}
			m := rapid.SampledFrom(members).Draw(t, "member")
			m.c = rapid.SampledFrom(cs).Draw(t, "coordinator")
			return m
		}
		join := func(c *Coordinator, name string) {
			res, err := c.JoinGroup(ctx, joinRequest(name))
			if err != nil {
				return
			}
			m := &member{c: c, group: "readers", name: name, epoch: res.GetEpoch(), scheme: scheme}
			m.take(res.GetAssignment())
			members = append(members, m)
		}
		// normal is a place as the pointers that are behind it.
		normal := func(shard record.ShardID, b uint32, p bucket.Place) bucket.Place {
			if p.Skip == 0 {
				p.LSN, _ = scheme.Next(shard, b, p.LSN)
			}
			return p
		}
		check := func(t *rapid.T, m *member) {
			res, err := m.c.GroupPositions(ctx, &scribev1.GroupPositionsRequest{Group: m.group, Member: m.name, Epoch: m.epoch, Generation: m.generation, Buckets: m.set})
			if err != nil {
				return
			}
			at := map[record.ShardID]bucket.Position{}
			for _, p := range res.GetPositions() {
				pos := bucket.Position{Low: record.LSN(p.GetLow())}
				for _, a := range p.GetAhead() {
					pos.Ahead = append(pos.Ahead, bucket.Ahead{Bucket: a.GetBucket(), Place: bucket.Place{LSN: record.LSN(a.GetLsn()), Skip: a.GetSkip()}})
				}
				at[record.ShardID(p.GetShard())] = pos
			}
			for _, s := range shards {
				pos := at[s]
				for b := range m.set.Each() {
					is, want := normal(s, b, pos.At(b)), &model[s][b]
					least, most := normal(s, b, want.least), normal(s, b, want.most)
					if is.Before(least) || most.Before(is) {
						t.Fatalf("bucket %d of shard %v is at %v, commits were between %v and %v", b, s, is, least, most)
					}
					want.least = is // what was seen stays
				}
			}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				if names < 8 {
					names++
				}
				join(rapid.SampledFrom(cs).Draw(t, "coordinator"), fmt.Sprint("m", rapid.IntRange(1, names).Draw(t, "name")))
			},
			"beat": func(t *rapid.T) {
				m := anyone(t)
				_ = m.beat(ctx, nil)
			},
			"give back": func(t *rapid.T) {
				m := anyone(t)
				if m.a != nil {
					_ = m.beat(ctx, m.a.GetRevoked())
				}
			},
			"commit": func(t *rapid.T) {
				m, shard := anyone(t), rapid.SampledFrom(shards).Draw(t, "shard")
				low := record.LSN(rapid.Uint64Range(1, 900).Draw(t, "low"))
				places := make(bucket.Places, 16)
				for b := range places {
					places[b] = bucket.Place{LSN: low + record.LSN(rapid.Uint64Range(0, 60).Draw(t, "ahead"))}
					if scheme.Of(shard, places[b].LSN) == uint32(b) {
						places[b].Skip = rapid.Uint32Range(0, 3).Draw(t, "skip")
					}
				}
				pos := scheme.Compact(shard, places, m.set)
				var ahead []*scribev1.GroupBucketPosition
				for _, a := range pos.Ahead {
					ahead = append(ahead, &scribev1.GroupBucketPosition{Bucket: a.Bucket, Lsn: uint64(a.LSN), Skip: a.Skip})
				}
				g, _, err := m.c.loadGroup(ctx, "test", "readers")
				if err != nil {
					t.Fatal(err)
				}
				owns := g.Member(m.epoch) != nil
				for b := range m.set.Each() {
					owns = owns && g.Buckets[b].Owner == m.epoch && g.Buckets[b].Granted <= m.generation
				}
				fault := rapid.IntRange(0, 9).Draw(t, "fault")
				if fault < 2 {
					w.store.set(func(call string) (bool, error) {
						if call == "commit" {
							return fault == 0, errDown
						}
						return false, nil
					})
				}
				err = m.commit(ctx, shard, pos.Low, ahead...)
				w.store.set(nil)
				if fenced := rpc.ReasonOf(err); owns == (fenced == scribev1.Reason_REASON_STALE_GENERATION || fenced == scribev1.Reason_REASON_LEASE_EXPIRED) {
					t.Fatalf("the member owns what it commits: %v; the commit: %v", owns, err)
				}
				for b := range m.set.Each() {
					to, was := pos.At(b), &model[shard][b]
					switch reason := rpc.ReasonOf(err); {
					case err == nil:
						if normal(shard, b, was.least).Before(normal(shard, b, to)) {
							was.least = to
						}
						if was.most.Before(to) {
							was.most = to
						}
					case reason == scribev1.Reason_REASON_UNKNOWN_OUTCOME:
						if was.most.Before(to) {
							was.most = to
						}
					case reason != scribev1.Reason_REASON_STALE_GENERATION && reason != scribev1.Reason_REASON_LEASE_EXPIRED:
						t.Fatalf("a commit failed: %v", err)
					}
				}
				if err == nil {
					check(t, m)
				}
			},
			"look": func(t *rapid.T) { check(t, anyone(t)) },
			"leave": func(t *rapid.T) {
				m := anyone(t) // and is a zombie from here on
				_, _ = m.c.LeaveGroup(ctx, &scribev1.LeaveGroupRequest{Group: m.group, Member: m.name, Epoch: m.epoch})
			},
			"reset": func(t *rapid.T) {
				if rapid.IntRange(0, 5).Draw(t, "now") > 0 {
					return
				}
				c := rapid.SampledFrom(cs).Draw(t, "coordinator")
				if _, err := c.ResetGroup(ctx, &scribev1.ResetGroupRequest{Group: "readers", StartAt: scribev1.StartAt_START_AT_EARLIEST, Force: true}); err == nil {
					restart(1)
				}
			},
			"": func(*rapid.T) {},
		})
		// Everybody goes but one, who has everything then, where it was left.
		for _, m := range members {
			_, _ = cs[0].LeaveGroup(ctx, &scribev1.LeaveGroupRequest{Group: m.group, Member: m.name, Epoch: m.epoch})
		}
		members = nil
		join(cs[1], "last")
		last := members[0]
		for range 3 {
			if err := last.beat(ctx, nil); err != nil {
				rt.Fatal(err)
			}
		}
		if last.set.Len() != 16 {
			rt.Fatalf("the last member has %d buckets", last.set.Len())
		}
		check(rt, last)
	})
}
