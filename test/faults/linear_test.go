package faults

import (
	"errors"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"scribe/internal/transport/rpc"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/remote"
	"scribe/test/netfault"
	"scribe/test/program"
)

// TestLinearizable has clients append to, read and follow logs of a metalog process that is killed and started again, paused and cut off,
// and whose answers are lost: there must be an order of all calls that explains every answer.
func TestLinearizable(t *testing.T) {
	seed := seedOf(t)
	for round := range uint64(2 * rounds(t)) { //nolint:gosec // a few
		logs := startLogs(t)
		m := logs.member(metaLog)
		transport := rpc.NewTransport(nil, rpc.WithTLS(program.MemberFiles(t))) // only members append
		client := remote.NewClient(rpc.NewMetalogClient(transport, m.url()))
		length := func(rng *rand.Rand) { pause(t, time.Duration(rng.Int64N(int64(300*time.Millisecond)))) }
		kill := func(*rand.Rand) {
			logs.kill(m)
			logs.start(m)
		}
		faults := []func(*rand.Rand){kill, kill, func(rng *rand.Rand) {
			m.front.Set(netfault.LoseAnswers)
			length(rng)
			m.front.Set(netfault.Pass)
		}, func(rng *rand.Rand) {
			m.front.Set(netfault.LoseAnswers)
			length(rng)
			kill(rng)
			m.front.Set(netfault.Pass)
		}, func(rng *rand.Rand) {
			m.proc.Pause()
			length(rng)
			m.proc.Resume()
		}, func(rng *rand.Rand) {
			m.front.SetChaos(netfault.Chaos{CutRequest: 0.02, CutAnswer: 0.05, Delay: 0.2, MaxDelay: 5 * time.Millisecond}, rng.Uint64())
			length(rng)
			m.front.SetChaos(netfault.Chaos{}, 0)
		}}
		next := 0
		order := rngOf(seed+round, "faults of the logs").Perm(len(faults))
		cfg := linear.Config{
			Seed: seed + round, Clients: 6, Calls: 60, Hurry: 2 * time.Millisecond, Patience: 500 * time.Millisecond, Regret: 20 * time.Millisecond,
			Disturbances: len(faults),
			Disturb: func(rng *rand.Rand) {
				faults[order[next]](rng)
				next++
			},
		}
		h := linear.Run(t.Context(), cfg, client)
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		transport.Close()
		if err := h.Check(); err != nil && !errors.Is(err, linear.ErrUndecided) {
			t.Fatalf("round %d: invariants 3, 5, 7: %v", round, err)
		}
		t.Logf("round %d: %d operations, %d of them of unknown outcome; %d kills", round, h.Len(), h.Unknown(), logs.killed)
		logs.stopAll()
	}
}

// startLogs starts what serves the metadata logs of a cell, and nothing else.
func startLogs(t *testing.T) *cell {
	t.Helper()
	l := layout{host: "127.0.0.1"}
	c := &cell{t: t, dir: t.TempDir(), env: []string{"SCRIBE_LEASE_TTL=" + leaseTTL.String(), "SCRIBE_METADATA_CACHE=16MiB"}}
	if n := program.CountNodes(t); n > 0 {
		c.env = append(c.env, "SCRIBE_BLOB_PATH="+filepath.Join(c.dir, "blobs"))
		c.addNodes(n, l)
	} else {
		c.addServer(controlPlane, l)
		c.addServer(metaLog, l)
	}
	c.start(c.members...)
	return c
}
