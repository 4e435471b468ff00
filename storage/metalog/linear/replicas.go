package linear

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

const (
	// replicaPause is how long a caller waits before it asks another replica: one that is away fails at once.
	replicaPause = 100 * time.Millisecond
	// replicaVisit bounds a subscription: the next one may be at another replica.
	replicaVisit = 20 * time.Second
)

// Replicas is a replicated engine whose replicas are called each by itself. It implements Log: reads and subscriptions go to any replica, writes to the one
// that leads or, at times, to one that may have led until now. Make it with NewReplicas.
type Replicas struct {
	replicas []Log
	all      Log

	mu struct {
		sync.Mutex
		rng *rand.Rand
	}
}

// NewReplicas returns an engine of replicas. all is the engine as its clients use it, which finds the leader. It takes ownership of rng.
func NewReplicas(replicas []Log, all Log, rng *rand.Rand) *Replicas {
	r := &Replicas{replicas: replicas, all: all}
	r.mu.rng = rng
	return r
}

func (r *Replicas) anyReplica() Log {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replicas[r.mu.rng.IntN(len(r.replicas))]
}

func (r *Replicas) chooseWriter() Log {
	r.mu.Lock()
	toAny := r.mu.rng.IntN(3) == 0
	r.mu.Unlock()
	if toAny {
		return r.anyReplica()
	}
	return r.all
}

// hideAway makes the error of a replica that is away one that says nothing, and pauses, since who reads asks again at once.
func hideAway(ctx context.Context, err error) error {
	if err != nil {
		pauseFor(ctx, replicaPause)
	}
	if errors.Is(err, metalog.ErrClosed) || errors.Is(err, metalog.ErrNotLeader) {
		return fmt.Errorf("away: %v", err) //nolint:errorlint // it is hidden
	}
	return err
}

func pauseFor(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Open implements Log.
func (r *Replicas) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	return r.chooseWriter().Open(ctx, owner, shards)
}

// Append implements Log.
func (r *Replicas) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	return r.chooseWriter().Append(ctx, a)
}

// Trim implements Log.
func (r *Replicas) Trim(ctx context.Context, shard record.ShardID, before record.LSN) error {
	return r.chooseWriter().Trim(ctx, shard, before)
}

// Read implements Log.
func (r *Replicas) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) ([]metalog.Entry, error) {
	got, err := r.anyReplica().Read(ctx, shard, from, maxRecords, maxBytes)
	return got, hideAway(ctx, err)
}

// Tail implements Log.
func (r *Replicas) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	states, err := r.anyReplica().Tail(ctx, shards)
	return states, hideAway(ctx, err)
}

// Subscribe implements Log. The replica knows what was acknowledged before the call, as a history supposes.
func (r *Replicas) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	ctx, cancel := context.WithTimeout(ctx, replicaVisit)
	defer cancel()
	log := r.anyReplica()
	_, err := log.Tail(ctx, []record.ShardID{from[0].Shard})
	if err == nil {
		err = log.Subscribe(ctx, from, max(heartbeat, time.Second), fn)
	}
	pauseFor(ctx, replicaPause)
	return err
}
