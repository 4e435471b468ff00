package faults

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/transport/rpc"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
	"scribe/test/program"
	"scribe/test/replicas"
)

// nodeCalls are calls of clients at the replicas of a cell of nodes, each by itself.
type nodeCalls struct {
	enough chan struct{}
	result chan *linear.History
}

// callReplicas lets clients call the replicas until verify.
func (n *nodes) callReplicas() *nodeCalls {
	n.Helper()
	var (
		each []linear.Log
		all  []replicated.Replica
	)
	for _, x := range n.list {
		log := remote.NewClient(rpc.NewMetalogClient(n.transport, x.address))
		each, all = append(each, log), append(all, replicated.Replica{URL: x.address, Log: log})
	}
	whole, err := replicated.New(all, replicated.Options{})
	if err != nil {
		n.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.Context()))
	calls := &nodeCalls{enough: make(chan struct{}), result: make(chan *linear.History, 1)}
	ended := make(chan struct{})
	n.Cleanup(func() {
		cancel()
		<-ended
		_ = whole.Close()
		for _, r := range all {
			_ = r.Log.Close() // clients, which hold nothing
		}
	})
	go func() {
		defer close(ended)
		calls.result <- linear.Run(ctx, linear.Config{
			Seed: n.seed, Clients: 3, Calls: 1 << 20, Pace: 200 * time.Millisecond, Enough: calls.enough, Hurry: 20 * time.Millisecond, Patience: 5 * time.Second, CatchUp: program.WaitLimit,
		}, linear.NewReplicas(each, whole, rngOf(n.seed, "calls")))
	}()
	return calls
}

// verify ends the calls, and looks whether some order of them explains every answer.
func (c *nodeCalls) verify(t *testing.T) {
	t.Helper()
	close(c.enough)
	select {
	case h := <-c.result:
		if err := h.Check(); err != nil && !errors.Is(err, linear.ErrUndecided) {
			t.Errorf("invariants 3, 5, 7: %v", err)
		}
		t.Logf("%d calls at the replicas, %d of unknown outcome", h.Len(), h.Unknown())
	case <-time.After(2 * program.WaitLimit):
		t.Fatalf("the calls at the replicas did not end within %v", 2*program.WaitLimit)
	}
}

// compareReplicas compares the folders of nodes that have ended. Replicas that have applied the same entries are equal in everything, all others in the logs of categories, which
// nobody has written for a while.
func (n *nodes) compareReplicas() {
	n.Helper()
	var folders []replicas.Folder
	for _, x := range n.list {
		f, err := replicas.ReadFolder(vfs.Default, filepath.Join(x.data(), "metalog"))
		if err != nil {
			n.Errorf("the metadata of %s can't be read: %v", x.name, err)
			return
		}
		f.Name = x.name
		n.Logf("%s has applied entry %d: %d keys", f.Name, f.Applied.Seq, len(f.Content))
		folders = append(folders, f)
	}
	for _, f := range folders[1:] {
		first := folders[0]
		got, want := f.Content, first.Content
		if f.Applied.Seq != first.Applied.Seq {
			got, want = logsOf(got), logsOf(want)
		}
		if len(want) == 0 {
			n.Errorf("the folder of %s is missing all logs", first.Name)
		}
		if difference := replicas.CompareContents(got, want); difference != "" {
			n.Errorf("replicas: corrupt: the folder of %s, which has applied entry %d, differs from that of %s, which has applied entry %d: %s", f.Name, f.Applied.Seq, first.Name, first.Applied.Seq, difference)
		}
	}
}

// logsOf keeps what belongs to logs of categories: not what an engine has for itself, and not the log of retention's lease, which goes on without writers. Epochs
// are left out, and logs that nobody has ever written: a batcher that stays for a moment longer than another one opens logs, ahead of writers who would come to it.
func logsOf(content map[string]string) map[string]string {
	logs := maps.Clone(content)
	maps.DeleteFunc(logs, func(key, _ string) bool {
		switch schema.Kind(key[0]) { //nolint:exhaustive // the others are not of logs
		case schema.KindState, schema.KindRecord, schema.KindProducer:
			return binary.BigEndian.Uint32([]byte(key[1:5])) == 0
		}
		return true
	})
	for key, value := range logs {
		if schema.Kind(key[0]) != schema.KindState {
			continue
		}
		s, err := schema.DecodeState([]byte(key), []byte(value))
		switch {
		case err != nil: // damage differs as it is
		case s.LastTime == 0 && !s.Sealed:
			delete(logs, key)
		default:
			s.Epoch = 1
			logs[key] = string(schema.AppendState(nil, []byte(key), s))
		}
	}
	return logs
}
