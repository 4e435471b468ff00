package consumer_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/bucket"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Members come, go, are taken for dead, and lose sight of the coordinator, at random, while messages are written: everything is given to
// somebody, and nothing after a commit of it was acknowledged.
func TestGroupAtRandom(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { atRandom(t, rand.New(rand.NewPCG(seed, 1)), "") })
		})
	}
}

// The same where members have a filter, for which streams leave pointers out: what matches is given to somebody, and nothing else.
func TestGroupAtRandomWithFilter(t *testing.T) {
	kept := historyOf(t)
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { atRandom(t, rand.New(rand.NewPCG(seed, 2)), kept) })
		})
	}
}

// atRandom runs members of a category with a schema, or without one; those of the former want a third of the payloads.
func atRandom(t *testing.T, random *rand.Rand, schema string) {
	sharing := bucket.Sharing(1 + random.IntN(2))
	c, g := newCell(), newGroupCell(sharing)
	filtered, unwanted := schema != "", map[int]bool{}
	if filtered {
		c.schema = schema
		c.skips = func(_ *scribev1.Query, frames []byte) bool { return bytes.Contains(frames, []byte(`"no"`)) }
	}
	text := func(i int) string {
		switch {
		case unwanted[i]:
			return fmt.Sprintf(`{"n": %d, "s": "no"}`, i)
		case filtered:
			return fmt.Sprintf(`{"n": %d, "s": "yes"}`, i)
		default:
			return fmt.Sprint(i)
		}
	}
	l := &given{}
	committed := map[string]bool{} // guarded by l.mu
	type run struct {
		*groupMember
		uncommitted []string
	}
	var members []*run
	names := 0
	join := func() {
		names++
		r, ready := &run{}, make(chan struct{})
		name := fmt.Sprint("m", names)
		every := 1 + random.IntN(20)
		pace := time.Duration(random.IntN(40)) * time.Millisecond
		opts := []consumer.Option{consumer.WithAutoCommit(0), consumer.WithRevokeTimeout(20 * time.Second), consumer.WithPrefetchBytes(1 << 20)}
		commit := func(group *consumer.Group) {
			err := group.Commit(t.Context())
			l.mu.Lock()
			defer l.mu.Unlock()
			if err == nil {
				for _, m := range r.uncommitted {
					committed[m] = true
				}
			} else if !errors.Is(err, consumer.ErrFenced) && t.Context().Err() == nil {
				t.Errorf("commit: %v", err)
			}
			r.uncommitted = nil
		}
		if filtered {
			opts = append(opts, consumer.WithControl(c), columns.Where("s = 'yes'"))
		}
		if random.IntN(2) == 0 {
			opts = append(opts, consumer.WithOnRevoked(func(b consumer.Rebalance) {
				if <-ready; !b.Lost {
					commit(r.Group)
				}
			}))
		}
		r.groupMember = member(t, c, g, name, func(group *consumer.Group, rec consumer.Record) error {
			l.mu.Lock()
			message := string(rec.Payload)
			if committed[message] {
				t.Errorf("%s was given to %s after it was committed", message, name)
			}
			r.uncommitted = append(r.uncommitted, message)
			n := len(r.uncommitted)
			l.mu.Unlock()
			l.add(name, message)
			<-time.After(pace)
			if n >= every || group.Buffered() == 0 {
				commit(group)
			}
			return nil
		}, opts...)
		close(ready)
		members = append(members, r)
	}
	join()
	written := 0
	for range 30 {
		<-time.After(time.Duration(random.IntN(4000)) * time.Millisecond)
		switch random.IntN(8) {
		case 0, 1:
			if len(members) < 6 {
				join()
			}
		case 2:
			if len(members) > 1 {
				i := random.IntN(len(members))
				members[i].end(t)
				members = append(members[:i], members[i+1:]...)
			}
		case 3:
			name := fmt.Sprint("m", 1+random.IntN(names))
			g.cutOff(name)
			<-time.After(fakeTTL)
			g.expel(name)
			<-time.After(time.Duration(random.IntN(2000)) * time.Millisecond)
			g.cutOff("")
		case 4:
			g.set(rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, 0, "away"))
			<-time.After(time.Duration(random.IntN(15)) * time.Second)
			g.set(nil)
		default:
			for range random.IntN(40) {
				no := filtered && random.IntN(3) > 0
				for i := range 3 {
					unwanted[written+i] = no
				}
				c.add(shardID(uint16(random.IntN(3)), uint16(1+random.IntN(3))), text(written), text(written+1), text(written+2))
				written += 3
			}
		}
	}
	for range 5 {
		<-time.After(time.Minute)
		for _, m := range members { // else buckets that are to be given back wait for a message, or for their revoke timeout
			if err := m.Commit(t.Context()); err != nil && !errors.Is(err, consumer.ErrFenced) {
				t.Error(err)
			}
		}
	}
	for _, m := range members {
		m.end(t)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range written {
		if by := l.by[text(i)]; (len(by) == 0) != unwanted[i] {
			t.Fatalf("message %d of %d was given to %v (unwanted %v)", i, written, by, unwanted[i])
		}
	}
	c.check(t)
}
