package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"scribe/internal/base/backoff"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
)

// probeFollowers appends a record to a log of its own ten times a second, until ctx ends, and measures how long it takes from there until each
// replica that did not lead at the begin tells a subscriber of it.
func (r *metalogRun) probeFollowers(ctx context.Context) error {
	leader, err := r.fleet.findLeader(ctx)
	if err != nil {
		leader = -1 // they lag too far behind to settle: all are measured
	}
	shard := record.MakeShardID(r.category, 0, uint16(r.Writers+1)) //nolint:gosec // bounded
	states, err := r.log.Open(context.WithoutCancel(ctx), "probe", []record.ShardID{shard})
	if err != nil {
		return err
	}
	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	from := []metalog.Position{{Shard: shard, LSN: states[0].NextLSN}}
	var followers sync.WaitGroup
	errs := make([]error, len(r.fleet.nodes)+1)
	for i, url := range r.fleet.URLs() {
		if i == leader {
			continue
		}
		followers.Go(func() {
			client := remote.NewClient(rpc.NewMetalogClient(rpc.Default(), url))
			err := client.Subscribe(following, from, metalog.DefaultHeartbeat, r.noteVisible)
			if following.Err() != nil {
				err = nil
			}
			if errs[i] = errors.Join(err, client.Close()); err != nil {
				errs[i] = fmt.Errorf("follow replica %d: %w", i+1, errs[i])
			}
		})
	}
	for backoff.Sleep(ctx, askEvery) == nil && errs[len(errs)-1] == nil {
		sent := binary.LittleEndian.AppendUint64(nil, uint64(time.Now().UnixNano())) //nolint:gosec // after 1970
		_, errs[len(errs)-1] = r.log.Append(context.WithoutCancel(ctx), &metalog.Append{
			Shards: []metalog.ShardAppend{{Shard: shard, Epoch: states[0].Epoch, Records: [][]byte{sent}}},
		})
	}
	stop()
	followers.Wait()
	return errors.Join(errs...)
}

// noteVisible takes note of probes that a replica tells of.
func (r *metalogRun) noteVisible(updates []metalog.Update) error {
	now := time.Now()
	for _, u := range updates {
		for _, e := range u.Entries {
			if len(e.Data) == 8 {
				r.visible.addSample(now.Sub(time.Unix(0, int64(binary.LittleEndian.Uint64(e.Data))))) //nolint:gosec // as it was written
			}
		}
	}
	return nil
}

// sampleLag asks each node ten times a second, until ctx ends, how far its replica is, and keeps the lag of those that follow.
func (r *metalogRun) sampleLag(ctx context.Context) error {
	asking := context.WithoutCancel(ctx)
	for backoff.Sleep(ctx, askEvery) == nil {
		for i := range r.fleet.nodes {
			res, err := rpc.NewProcessClient(rpc.Default(), r.fleet.URL(i)).GetHealth(asking, &scribev1.GetHealthRequest{})
			if err != nil {
				return fmt.Errorf("ask node n%d for its lag: %w", i+1, err)
			}
			if m := res.GetReplica(); m != nil && !m.GetLeads() {
				r.lags.addSample(max(m.GetNewest(), m.GetApplied()) - m.GetApplied())
			}
		}
	}
	return nil
}

// LagSamples is the distribution of the lag of replicas, in entries of the journal that they know of and do not show yet.
type LagSamples struct {
	P50 uint64 `json:"p50_entries"`
	P99 uint64 `json:"p99_entries"`
	Max uint64 `json:"max_entries"`
}

// lagSamples collects lags.
type lagSamples struct {
	mu struct {
		sync.Mutex
		samples []uint64
	}
}

func (s *lagSamples) addSample(entries uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.samples = append(s.mu.samples, entries)
}

// takeSamples returns the distribution of all samples since it was last called; nil if there are none.
func (s *lagSamples) takeSamples() *LagSamples {
	s.mu.Lock()
	samples := s.mu.samples
	s.mu.samples = nil
	s.mu.Unlock()
	if len(samples) == 0 {
		return nil
	}
	slices.Sort(samples)
	return &LagSamples{P50: nearestRank(samples, 50), P99: nearestRank(samples, 99), Max: nearestRank(samples, 100)}
}
