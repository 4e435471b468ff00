package faults

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/replicated"
	"scribe/test/program"
	"scribe/test/replicas"
)

// nodeCalls are calls of clients at the replicas of a cell of nodes, each by itself.
type nodeCalls struct {
	enough chan struct{}
	result chan *linear.History
}

// firstCalled is the category of the first calls at the replicas: those of the next round have another one, since they must be of logs that nobody knows.
const firstCalled = 77

// callReplicas lets clients call the replicas until verify.
func (n *nodes) callReplicas() {
	n.Helper()
	var (
		each []linear.Log
		all  []replicated.Replica
	)
	for _, x := range n.list {
		each, all = append(each, x.log), append(all, replicated.Replica{URL: x.address, Log: x.log})
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
		_ = whole.Close() // its replicas are clients, which hold nothing
	})
	cfg := linear.Config{
		Seed: n.seed + uint64(n.rounds), Category: firstCalled + uint32(n.rounds), Clients: 3, Calls: 1 << 20, Pace: 200 * time.Millisecond, Enough: calls.enough, //nolint:gosec // a few
		Hurry: 20 * time.Millisecond, Patience: 5 * time.Second, CatchUp: program.WaitLimit,
	}
	replicas := linear.NewReplicas(each, whole, rngOf(n.seed, fmt.Sprint("calls ", n.rounds)))
	go func() {
		defer close(ended)
		calls.result <- linear.Run(ctx, cfg, replicas)
	}()
	n.calls = calls
	n.rounds++
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

// toldLog is a log as a replica told it.
type toldLog struct {
	state   metalog.State
	entries []metalog.Entry
}

// askReplicas asks each replica by itself for all it has, in an order that the seed draws, while others write. Each must have what those had that were asked before, and no
// record below a watermark of theirs.
func (n *nodes) askReplicas(what string) {
	n.Helper()
	var (
		before map[record.ShardID]toldLog
		first  *node
	)
	for _, i := range n.rng.Perm(len(n.list)) {
		x := n.list[i]
		told := n.askReplica(x)
		for shard, had := range before {
			if difference := had.compare(told[shard]); difference != "" {
				n.Errorf("%s: invariant 3: log %v is corrupt or behind at %s, which was asked after %s: %s", what, shard, x.name, first.name, difference)
			}
		}
		before, first = told, x
	}
	entries := 0
	for _, l := range before {
		entries += len(l.entries)
	}
	n.Logf("%s: each replica has %d logs with the same %d records", what, len(before), entries)
}

// askReplica asks a replica for all logs. One that is not available for a moment is asked again.
func (n *nodes) askReplica(x *node) map[record.ShardID]toldLog {
	n.Helper()
	for begun := time.Now(); ; pause(n.T, 100*time.Millisecond) {
		logs, err := n.readLogs(x.log)
		switch {
		case err == nil:
			return logs
		case errors.Is(err, metalog.ErrCorrupt), time.Since(begun) > program.WaitLimit:
			n.Fatalf("the logs of %s can't be read: %v", x.name, err)
		}
	}
}

// readLogs reads all logs: those of the engine's clients for themselves (category 0), of the categories, and of the clients that call the replicas.
func (n *nodes) readLogs(log metalog.Log) (map[record.ShardID]toldLog, error) {
	ctx, cancel := context.WithTimeout(n.Context(), 10*time.Second)
	defer cancel()
	logs := map[record.ShardID]toldLog{}
	for _, category := range append([]uint32{0, firstCalled + uint32(n.rounds) - 1}, n.ids...) { //nolint:gosec // a few
		states, err := log.Shards(ctx, category)
		if err != nil {
			return nil, err
		}
		for _, st := range states {
			l := toldLog{state: st}
			for next := st.FirstLSN; next < st.NextLSN; {
				entries, err := log.Read(ctx, st.Shard, next, 0, 0)
				if err != nil {
					return nil, err
				}
				if len(entries) == 0 {
					return nil, fmt.Errorf("log %v ends at LSN %d, and not at %d", st.Shard, next, st.NextLSN)
				}
				l.entries, next = append(l.entries, entries...), entries[len(entries)-1].LSN+1
			}
			logs[st.Shard] = l
		}
	}
	return logs, nil
}

// compare says how a log that a replica told later differs from what it was; "" if it only grew, or lost its beginning.
func (l *toldLog) compare(later toldLog) string {
	st, now := l.state, later.state
	if now.Epoch < st.Epoch || now.NextLSN < st.NextLSN || now.FirstLSN < st.FirstLSN || now.LastTime < st.LastTime {
		return fmt.Sprintf("its state was %+v and is %+v", st, now)
	}
	next := max(st.FirstLSN, now.FirstLSN)
	for _, e := range later.entries {
		if e.LSN != next {
			return fmt.Sprintf("LSN %d is missing", next)
		}
		next++
		if e.LSN >= st.NextLSN {
			if e.Time < st.Watermark {
				return fmt.Sprintf("LSN %d has the persisted time %d, below the watermark %d that was told before it was there", e.LSN, e.Time, st.Watermark)
			}
			continue
		}
		if at := e.LSN - st.FirstLSN; int(at) < len(l.entries) { //nolint:gosec // a few
			if was := l.entries[at]; was.LSN == e.LSN && (was.Time != e.Time || !bytes.Equal(was.Data, e.Data)) {
				return fmt.Sprintf("LSN %d was %d %x and is %d %x", e.LSN, was.Time, was.Data, e.Time, e.Data)
			}
		}
	}
	if next < st.NextLSN {
		return fmt.Sprintf("LSN %d is missing", next)
	}
	return ""
}

// TestToldLogs: what a replica tells later may only have grown, or lost its beginning.
func TestToldLogs(t *testing.T) {
	entries := func(from record.LSN, times ...int64) (all []metalog.Entry) {
		for i, at := range times {
			all = append(all, metalog.Entry{LSN: from + record.LSN(i), Time: at, Data: fmt.Append(nil, at)}) //nolint:gosec // a few
		}
		return all
	}
	told := func(first record.LSN, watermark int64, times ...int64) toldLog {
		return toldLog{
			state:   metalog.State{FirstLSN: first, NextLSN: first + record.LSN(len(times)), Epoch: 3, LastTime: times[len(times)-1], Watermark: watermark}, //nolint:gosec // a few
			entries: entries(first, times...),
		}
	}
	before := told(2, 35, 20, 30)
	deposed := told(2, 0, 20, 30)
	deposed.state.Epoch--
	cut := told(2, 0, 20, 30)
	cut.entries = cut.entries[:1]
	other := told(2, 0, 20, 30)
	other.entries[0].Data = []byte("other")
	for _, c := range []struct {
		name  string
		later toldLog
		want  string
	}{
		{"nothing new", told(2, 36, 20, 30), ""},
		{"grown", told(2, 50, 20, 30, 40), ""},
		{"trimmed", told(3, 50, 30, 40), ""},
		{"trimmed beyond", told(5, 60, 50, 60), ""},
		{"behind", told(2, 25, 20), "its state was"},
		{"another writer", deposed, "its state was"},
		{"a hole", cut, "LSN 3 is missing"},
		{"other bytes", other, "LSN 2 was 20 3230 and is 20"},
		{"another time", told(2, 36, 21, 30), "LSN 2 was 20"},
		{"below a watermark", told(2, 50, 20, 30, 34), "below the watermark 35"},
		{"nothing", toldLog{}, "its state was"},
	} {
		if got := before.compare(c.later); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
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
