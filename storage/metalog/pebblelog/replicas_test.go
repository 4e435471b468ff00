package pebblelog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"scribe/internal/base/entropy"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/journal/memjournal"
	"scribe/storage/metalog/pebblelog/schema"
)

// testNode is a process with a replica. It can be cut off the journal, and crash.
type testNode struct {
	name    string
	folder  *vfs.MemFS
	options Options
	store   *memjournal.Store
	// journal is the handle of the running process.
	journal *memjournal.Journal
	engine  *Engine
	// ahead is the offset of the wall clock in microseconds.
	ahead atomic.Int64
	// cut says that the journal does not answer; lost that it answers to no change, although it makes it.
	cut, lost atomic.Bool
	// wrap makes operations of the folder fail; nil for none.
	wrap errorfs.Injector
	// delay draws how long a call of the journal takes; nil for none.
	delay func() time.Duration
}

var errCut = errors.New("the journal is out of reach")

func newNode(i int, store *memjournal.Store, options Options) *testNode {
	n := &testNode{name: fmt.Sprint("n", i), folder: vfs.NewCrashableMem(), options: options, store: store}
	n.options.URL = n.name
	n.options.Clock = func() int64 { return time.Now().UnixMicro() + n.ahead.Load() }
	return n
}

// open starts the process.
func (n *testNode) open(t testing.TB) *Engine {
	t.Helper()
	n.journal = n.store.Open()
	n.journal.SetFault(n.fault)
	o := n.options
	o.FS, o.Journal = n.folder, n.journal
	if n.wrap != nil {
		o.FS = errorfs.Wrap(n.folder, n.wrap)
	}
	e, err := Open(testDir, o)
	if err != nil {
		t.Fatalf("%s: %v", n.name, err)
	}
	return e
}

func (n *testNode) fault(ctx context.Context, c memjournal.Call) error {
	if n.delay != nil && !c.Done {
		waitFor(ctx, n.delay())
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case n.cut.Load():
		<-ctx.Done()
		return errCut
	case n.lost.Load() && c.Done && c.Kind == memjournal.CallSwap:
		return errCut
	}
	return nil
}

// crash ends the process, drops what its folder has not synced, and starts the next one.
func (c *testCell) crash(t testing.TB, n *testNode, rng *rand.Rand) {
	t.Helper()
	crashed := n.folder.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: rng.IntN(3) * 50, RNG: rng})
	_ = n.journal.Close()
	_ = n.engine.Close()
	n.folder = crashed
	c.replace(n, n.open(t))
}

func (c *testCell) replace(n *testNode, e *Engine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.engine = e
}

func (n *testNode) close(t testing.TB) {
	t.Helper()
	if err := n.engine.Close(); err != nil {
		t.Errorf("%s: Close: %v", n.name, err)
	}
}

// leads reports whether the node leads.
func (n *testNode) leads() bool {
	leads, _ := n.engine.Leading()
	return leads
}

// testCell is several nodes, whose callers find the one that leads.
type testCell struct {
	mu    sync.RWMutex // of the nodes' engines
	nodes []*testNode
	turn  atomic.Int64
}

func newCell(t testing.TB, n int, options Options, prepare ...func(*testNode)) (*testCell, *memjournal.Store) {
	t.Helper()
	store, c := memjournal.New(), &testCell{}
	for i := range n {
		c.nodes = append(c.nodes, newNode(i, store, options))
	}
	for _, n := range c.nodes {
		for _, p := range prepare {
			p(n)
		}
		n.engine = n.open(t)
	}
	return c, store
}

func (c *testCell) closeAll(t testing.TB) {
	t.Helper()
	var all sync.WaitGroup
	for _, n := range c.nodes {
		all.Go(func() { n.close(t) })
	}
	all.Wait()
}

// engines returns the engines that run now.
func (c *testCell) engines() (all []*Engine) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	for _, n := range c.nodes {
		all = append(all, n.engine)
	}
	return all
}

// readable returns one engine after another.
func (c *testCell) readable() *Engine {
	all := c.engines()
	return all[int(c.turn.Add(1))%len(all)]
}

// leader waits until a node leads.
func (c *testCell) leader(t testing.TB) *testNode {
	t.Helper()
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		for _, n := range c.nodes {
			if n.leads() {
				return n
			}
		}
		waitFor(t.Context(), time.Millisecond)
	}
	for _, n := range c.nodes {
		t.Errorf("nobody leads: %s: %+v, error %v", n.name, n.engine.Position(), n.engine.Err())
	}
	t.FailNow()
	return nil
}

// settle waits until every node has applied everything.
func (c *testCell) settle(t testing.TB) {
	t.Helper()
	for began := time.Now(); ; {
		if time.Since(began) > 5*time.Minute {
			for _, n := range c.nodes {
				t.Errorf("%s: %+v, error %v", n.name, n.engine.Position(), n.engine.Err())
			}
			t.FailNow()
		}
		head := c.leader(t).engine.Position().Applied
		if !slices.ContainsFunc(c.nodes, func(n *testNode) bool { return n.engine.Position().Applied != head }) {
			return
		}
		waitFor(t.Context(), time.Millisecond)
	}
}

// redirected calls one engine after another until one leads.
func redirected[T any](ctx context.Context, c *testCell, call func(e *Engine) (T, error)) (answer T, err error) {
	for {
		for _, e := range c.engines() {
			if answer, err = call(e); !errors.Is(err, metalog.ErrNotLeader) && !errors.Is(err, metalog.ErrClosed) {
				return answer, err
			}
		}
		waitFor(ctx, time.Millisecond)
		if ctx.Err() != nil {
			return answer, ctx.Err()
		}
	}
}

func (c *testCell) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return redirected(ctx, c, func(e *Engine) ([]metalog.State, error) { return e.Open(ctx, owner, shards) })
}

func (c *testCell) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return redirected(ctx, c, func(e *Engine) ([]metalog.Appended, error) { return e.Append(ctx, a) })
}

func (c *testCell) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	_, err := redirected(ctx, c, func(e *Engine) (any, error) { return nil, e.Trim(ctx, shard, before) })
	return err
}

func (c *testCell) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	entries, err := c.readable().Read(ctx, shard, from, maxRecords, maxBytes)
	return entries, hidden(err)
}

func (c *testCell) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	states, err := c.readable().Tail(ctx, shards)
	return states, hidden(err)
}

// hidden makes an error of a replica that is away one of unknown outcome.
func hidden(err error) error {
	if errors.Is(err, metalog.ErrClosed) || errors.Is(err, metalog.ErrNotLeader) {
		return errCut
	}
	return err
}

// Subscribe subscribes at a replica that knows what was acknowledged before the call, as its history supposes.
func (c *testCell) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	e := c.readable()
	if _, err := e.Tail(ctx, []record.ShardID{from[0].Shard}); err != nil {
		return err
	}
	return e.Subscribe(ctx, from, heartbeat, fn)
}

// contents returns the keys and values of a folder that all replicas have alike at the same entry: all but annotations.
func contents(t testing.TB, e *Engine) string {
	t.Helper()
	var b bytes.Buffer
	for it, err := range keysBetween(e.db, nil, nil, (*pebble.Iterator).Next) {
		if err != nil {
			t.Fatal(err)
		}
		if schema.Kind(it.Key()[0]) == schema.KindAnnotation {
			continue
		}
		value, err := it.ValueAndErr()
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "%x=%x\n", it.Key(), value)
	}
	return b.String()
}

// compare requires that all nodes have the same content.
func (c *testCell) compare(t testing.TB) {
	t.Helper()
	c.settle(t)
	want := contents(t, c.nodes[0].engine)
	for _, n := range c.nodes[1:] {
		if got := contents(t, n.engine); got != want {
			t.Errorf("%s has other content than %s:\n%s\nand\n%s", n.name, c.nodes[0].name, got, want)
		}
	}
}

// seededOptions are options whose randomness comes from a seed.
func seededOptions(seed uint64) Options {
	return Options{MemTableBytes: 64 << 10, Random: entropy.NewSeeded(seed, "replicas")}
}

// TestVersionOfReplicasIsRaisedByTheFirstMove: the folders of all replicas get the version of moves with the entry that has the first one, and keep it.
func TestVersionOfReplicasIsRaisedByTheFirstMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := newCell(t, 2, Options{})
		defer c.closeAll(t)
		want := func(version int64) {
			t.Helper()
			c.settle(t)
			for _, e := range c.engines() {
				if got, _, err := e.readNumber(schema.MetaFormat); err != nil || got != version {
					t.Errorf("the format version is %d, %v; want %d", got, err, version)
				}
			}
		}
		mustOpen(t, c.leader(t).engine, shardA)
		want(schema.ReplicaVersion)
		if _, err := c.leader(t).engine.MoveOut(t.Context(), shardA, "a", "b"); err != nil {
			t.Fatal(err)
		}
		want(schema.MovedReplicaVersion)
		for _, n := range c.nodes {
			n.close(t)
			c.replace(n, n.open(t))
		}
		want(schema.MovedReplicaVersion)
	})
}
