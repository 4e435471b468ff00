package test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/program"
)

// caughtUp waits until a group has committed everything.
func caughtUp(t *testing.T, c *cell, group string) {
	t.Helper()
	svc := rpc.NewGroupClient(rpc.Default(), c.read)
	for deadline := time.Now().Add(waitLimit); ; <-time.After(200 * time.Millisecond) {
		d, err := svc.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: group, Brief: true})
		if err == nil && d.GetLag().GetPointers() == 0 && d.GetIncomplete() == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the group does not catch up: %v, %v", d, err)
		}
	}
}

// keys are the messages [0, n) as members write them down.
func keys(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = fmt.Sprintf("message-%06d", i)
	}
	return out
}

// TestGroupKilled: five members, processes of their own, are killed at random while messages are written. Whatever is committed does not
// come again, and nothing is left out. The seed is printed.
func TestGroupKilled(t *testing.T) {
	const members, messages, kills = 5, 6000, 40
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	lives := 0
	start := func(slot int) *groupProcess {
		lives++
		name := fmt.Sprintf("m%d", slot)
		if random.IntN(2) == 0 {
			name = fmt.Sprintf("life%d", lives) // its predecessor's buckets come when its TTL has passed
		}
		return launchMember(t, c.read, name, filepath.Join(dir, fmt.Sprintf("%03d", lives)), 1+random.IntN(40))
	}
	write(t, c, 0, 100) // the category is there
	var running []*groupProcess
	for slot := range members {
		running = append(running, start(slot))
	}
	var writing sync.WaitGroup
	writing.Go(func() { write(t, c, 100, messages) })
	for range kills {
		<-time.After(time.Duration(50+random.IntN(400)) * time.Millisecond)
		slot := random.IntN(members)
		running[slot].Kill()
		running[slot] = start(slot)
	}
	writing.Wait()
	caughtUp(t, c, "readers")
	for _, m := range running {
		m.Stop()
	}
	checkSegments(t, segments(t, dir), keys(messages), 0)
	up.Stop()
}

// TestGroupZombies: members are stopped for longer than their TTL, and go on then. What they commit of what others have by now is refused.
func TestGroupZombies(t *testing.T) {
	const messages = 3000
	up := serve(t, nil, "up", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0")
	c := &cell{write: up.URL, read: up.URL}
	dir := t.TempDir()
	write(t, c, 0, 100)
	var running []*groupProcess
	for i := range 3 {
		running = append(running, launchMember(t, c.read, fmt.Sprint("m", i), filepath.Join(dir, fmt.Sprint(i)), 20))
	}
	var writing sync.WaitGroup
	writing.Go(func() { write(t, c, 100, messages) })
	const pauses = 4
	for i := range pauses {
		<-time.After(700 * time.Millisecond)
		running[i%3].Pause()
		<-time.After(3500 * time.Millisecond)
		running[i%3].Resume()
	}
	writing.Wait()
	caughtUp(t, c, "readers")
	for _, m := range running {
		m.Stop()
	}
	checkSegments(t, segments(t, dir), keys(messages), pauses)
	up.Stop()
}

// TestGroupCoordinatorKilled: the process that coordinates, with everything else, is killed and started again while members read. They wait,
// and go on.
func TestGroupCoordinatorKilled(t *testing.T) {
	const messages = 2000
	data := filepath.Join(t.TempDir(), "data")
	listen := program.Reserve(t)
	up := serve(t, nil, "up", "--data", data, "--listen", listen)
	c := &cell{write: up.URL, read: up.URL}
	dir := t.TempDir()
	write(t, c, 0, 1000)
	var running []*groupProcess
	for i := range 3 {
		running = append(running, launchMember(t, c.read, fmt.Sprint("m", i), filepath.Join(dir, fmt.Sprint(i)), 5))
	}
	for i := range 3 {
		<-time.After(time.Second)
		up.Kill()
		<-time.After(time.Duration(i) * 1500 * time.Millisecond) // the last time for longer than their TTL
		up = serve(t, nil, "up", "--data", data, "--listen", listen)
	}
	write(t, c, 1000, messages)
	caughtUp(t, c, "readers")
	for _, m := range running {
		m.Stop()
	}
	checkSegments(t, segments(t, dir), keys(messages), 0)
	up.Stop()
}

// awaitMembers waits until a group has so many members.
func awaitMembers(t *testing.T, c *cell, group string, n int) {
	t.Helper()
	svc := rpc.NewGroupClient(rpc.Default(), c.read)
	for deadline := time.Now().Add(waitLimit); ; <-time.After(100 * time.Millisecond) {
		d, err := svc.DescribeGroup(t.Context(), &scribev1.DescribeGroupRequest{Group: group, Brief: true})
		if err == nil && len(d.GetMembers()) == n {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the group has %d members, want %d: %v", len(d.GetMembers()), n, err)
		}
	}
}
