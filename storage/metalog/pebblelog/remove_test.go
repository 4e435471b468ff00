package pebblelog

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/pebblelog/schema"
)

// remover is what removeShard needs of an engine, or of a cell of them.
type remover interface {
	Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error)
	Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error)
	Trim(ctx context.Context, shard record.ShardID, before record.LSN) error
	Remove(ctx context.Context, shards []metalog.Unused) (int, error)
}

func (c *testCell) Remove(ctx context.Context, shards []metalog.Unused) (int, error) {
	return redirected(ctx, c, func(e *Engine) (int, error) { return e.Remove(ctx, shards) })
}

// removeShard writes a record to a shard, trims it and removes the shard.
func removeShard(t testing.TB, log remover, shard record.ShardID) {
	t.Helper()
	states, err := log.Open(t.Context(), "test", []record.ShardID{shard})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.Append(t.Context(), one(shard, states[0].Epoch, "gone")); err != nil {
		t.Fatal(err)
	}
	if err := log.Trim(t.Context(), shard, states[0].NextLSN+1); err != nil {
		t.Fatal(err)
	}
	if n, err := log.Remove(t.Context(), []metalog.Unused{{Shard: shard, Epoch: states[0].Epoch}}); n != 1 || err != nil {
		t.Fatalf("%d shards were removed, %v", n, err)
	}
}

func wantFormat(t testing.TB, what string, e *Engine, want int64) {
	t.Helper()
	if version, found, err := e.readNumber(schema.MetaFormat); err != nil || !found || version != want {
		t.Errorf("%s the folder has version %d, %v, want %d", what, version, err, want)
	}
}

// TestFirstStubRaisesVersion: a folder keeps the version that older builds open until a shard is removed from it, and has the next one from then on.
func TestFirstStubRaisesVersion(t *testing.T) {
	fs := vfs.NewMem()
	for _, want := range []int64{schema.Version, schema.StubVersion, schema.StubVersion} {
		e, err := Open(testDir, Options{FS: fs})
		if err != nil {
			t.Fatal(err)
		}
		if want == schema.StubVersion {
			removeShard(t, e, shardA)
		}
		mustOpen(t, e, shardB)
		wantFormat(t, "afterwards", e, want)
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFirstStubRaisesReplicas: likewise of replicas, of which those that follow find the stub in the journal. A replica that starts again, and one
// that is seeded later, have what the others have.
func TestFirstStubRaisesReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, entries := newCell(t, 3, seededOptions(1))
		if _, err := c.Open(t.Context(), "test", []record.ShardID{shardB}); err != nil {
			t.Fatal(err)
		}
		c.settle(t)
		for _, n := range c.nodes {
			wantFormat(t, n.name+": before", n.engine, schema.ReplicaVersion)
		}
		removeShard(t, c, shardA)
		c.settle(t)
		for _, n := range c.nodes {
			wantFormat(t, n.name+": after", n.engine, schema.StubReplicaVersion)
		}
		again := c.nodes[1]
		again.close(t)
		c.replace(again, again.open(t))
		late := newNode(3, entries, again.options)
		late.engine = late.open(t)
		c.nodes = append(c.nodes, late)
		c.compare(t)
		for _, n := range c.nodes {
			wantFormat(t, n.name+": in the end", n.engine, schema.StubReplicaVersion)
			removed, err := n.engine.RemovedShards(t.Context(), shardA.Category(), 0)
			if err != nil || len(removed) != 1 || removed[0].Shard != shardA || !removed[0].Removed {
				t.Errorf("%s: removed are %+v, %v", n.name, removed, err)
			}
		}
		c.closeAll(t)
	})
}
