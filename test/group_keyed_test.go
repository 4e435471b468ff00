package test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/producer"
)

// TestGroupKeyed: the logical shards of a category, which hold keys, are each read by one member at a time, in order, while members come,
// go and are killed: whoever is given a message, all before it in its shard were given to somebody before.
func TestGroupKeyed(t *testing.T) {
	const shards, perShard = 8, 600
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	ok(t, nil, "category", "create", "log", "--shards", strconv.Itoa(shards), "--shard-by", "explicit", "--server", c.read)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	lives := 0
	start := func() *groupProcess {
		lives++
		return launchMember(t, c.read, fmt.Sprint("life", lives), filepath.Join(dir, fmt.Sprintf("%03d", lives)), 1+random.IntN(30))
	}
	var running []*groupProcess
	for range 3 {
		running = append(running, start())
	}
	var writing sync.WaitGroup
	writing.Go(func() {
		p, err := producer.New(c.write)
		if err != nil {
			t.Error(err)
			return
		}
		for n := range perShard {
			var messages []producer.Message
			for s := range shards {
				messages = append(messages, producer.Message{Payload: fmt.Appendf(nil, "shard %d %06d", s, n), Shard: uint32(s)})
			}
			if err := p.Write(context.Background(), "log", messages...); err != nil {
				t.Error(err)
			}
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	for range 10 {
		<-time.After(time.Duration(100+random.IntN(500)) * time.Millisecond)
		slot := random.IntN(len(running))
		switch random.IntN(3) {
		case 0:
			running = append(running, start())
		case 1:
			running[slot].Kill()
			running[slot] = start()
		default:
			running[slot].Stop()
			running[slot] = start()
		}
	}
	writing.Wait()
	caughtUp(t, c, "readers")
	for _, m := range running {
		m.Stop()
	}
	var want []string
	for s := range shards {
		for n := range perShard {
			want = append(want, fmt.Sprintf("shard-%d-%06d", s, n))
		}
	}
	all := segments(t, dir)
	checkSegments(t, all, want, 0)
	inOrder(t, all, perShard)
	up.Stop()
}

// inOrder fails when a message of a shard was given to somebody before one that stands in front of it was given to anybody.
func inOrder(t *testing.T, all []*segment, perShard int) {
	t.Helper()
	type given struct {
		n  int
		at int64
		to string
	}
	byShard := map[string][]given{}
	for _, s := range all {
		for key, at := range s.keys {
			i := strings.LastIndex(key, "-")
			n, err := strconv.Atoi(key[i+1:])
			if err != nil {
				t.Fatal(err)
			}
			byShard[key[:i]] = append(byShard[key[:i]], given{n, at, s.file})
		}
	}
	for shard, list := range byShard {
		slices.SortFunc(list, func(a, b given) int { return cmp.Compare(a.at, b.at) })
		next := 0
		readers := map[string]bool{}
		for _, g := range list {
			if g.n > next {
				t.Fatalf("%s: message %d was given to %s when only %d had been given", shard, g.n, g.to, next)
			}
			next = max(next, g.n+1)
			readers[g.to] = true
		}
		if next != perShard {
			t.Errorf("%s ends at %d", shard, next)
		}
		t.Logf("%s was read by %d members", shard, len(readers))
	}
}
