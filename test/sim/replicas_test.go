package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	"scribe/storage/metalog"
	entries "scribe/storage/metalog/journal/schema"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/pebblelog/schema"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
	"scribe/test/replicas"
)

// replicatedLayout is that of cells of three nodes, and drawNodes what makes a seed draw it.
const (
	replicatedLayout = "replicated"
	drawNodes        = "nodes"
)

// Kinds of faults of cells of nodes.
const (
	faultJournalCut    = "journal-cut"    // a host does not reach the journal, and etcd otherwise
	faultEtcdCut       = "etcd-cut"       // a host does not reach etcd
	faultEtcdLoss      = "etcd-loss"      // etcd changes things without an answer, or after it was too late
	faultSlowEtcd      = "slow-etcd"      // etcd takes up to half a second each way
	faultReplace       = "replace"        // a node's disk is destroyed, and the node begins with an empty one
	faultLeaderKill    = "leader-kill"    // kill, of the node whose replica leads then
	faultLeaderRestart = "leader-restart" // and so on
	faultLeaderPower   = "leader-power"
	faultLeaderStop    = "leader-stop"
	faultLeaderCut     = "leader-cut" // journal-cut
)

// leaderKinds are the faults that befall who leads, by what they are there.
var leaderKinds = map[string]string{
	faultLeaderKill: faultKill, faultLeaderRestart: faultRestart, faultLeaderPower: faultPower, faultLeaderStop: faultStop,
	faultLeaderCut: faultJournalCut,
}

var replicaKinds = slices.Concat([]string{faultJournalCut, faultEtcdCut, faultEtcdLoss, faultSlowEtcd, faultReplace}, slices.Sorted(maps.Keys(leaderKinds)))

// TestNodes runs a cell of nodes through the faults that only such a cell has, one after another: seeds draw such cells only if asked to.
func TestNodes(t *testing.T) {
	p := plan{
		Seed: 3, Length: 70 * time.Second, Quiet: time.Minute, Processes: layouts[replicatedLayout],
		Categories: []categoryPlan{{Name: "a", Delivery: "exactly_once", Order: "none", Shards: 2}},
		Readers:    []readerPlan{{Name: "reader", Category: "a", Via: []string{"node1", "node2", "node3"}}},
	}
	for shard, via := range []string{"node1", "agent1"} {
		p.Writers = append(p.Writers, writerPlan{
			Name: "writer-" + via, Category: "a", Shard: uint32(shard), Level: "committed", Kind: "single", Via: via, //nolint:gosec // below 2
			Patient: true, Pace: 500 * time.Millisecond, Size: 500,
		})
	}
	for i, kind := range []string{faultEtcdLoss, faultLeaderCut, faultLeaderKill, faultSlowEtcd, faultReplace, faultEtcdCut} {
		f := faultPlan{Kind: kind, At: time.Duration(5+10*i) * time.Second, For: 4 * time.Second}
		switch kind {
		case faultEtcdLoss:
			f.Chance = 0.3
		case faultReplace, faultEtcdCut:
			f.Process = "node2"
		}
		p.Faults = append(p.Faults, f)
	}
	r, err := runPlan(t.Context(), t.TempDir(), p)
	if why := r.failure(err); why != "" {
		reportFailure(t, t.TempDir(), p, r, why)
	}
	if r.Terms < 3 || r.Unanswered == 0 || r.Calls < 100 || r.Acked < 100 {
		t.Errorf("that proves little: %v", &r)
	}
}

// drawReplicaFaults adds faults of cells of nodes; some kinds are left out.
func (p *plan) drawReplicaFaults(rng *rand.Rand) {
	kinds := slices.DeleteFunc(slices.Clone(replicaKinds), func(string) bool { return rng.IntN(3) == 0 })
	if len(kinds) == 0 {
		return
	}
	pause := p.Length / time.Duration(pick(rng, []int{6, 15, 30}))
	for at := time.Duration(0); ; {
		at += time.Duration(rng.Int64N(int64(2 * pause)))
		if at >= p.Length {
			return
		}
		f := faultPlan{Kind: pick(rng, kinds), At: at, Process: pick(rng, p.nodes())}
		f.For = time.Duration(rng.Int64N(int64(pick(rng, []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}))))
		if f.Kind == faultEtcdLoss {
			f.Chance = pick(rng, []float64{0.1, 0.5, 0.95})
		}
		if leaderKinds[f.Kind] != "" || f.Kind == faultEtcdLoss || f.Kind == faultSlowEtcd {
			f.Process = ""
		}
		p.Faults = append(p.Faults, f)
	}
}

// nodes returns the names of the nodes.
func (p *plan) nodes() (names []string) {
	for _, x := range p.Processes {
		if x.Node {
			names = append(names, x.Name)
		}
	}
	return names
}

// cluster lists the nodes as --cluster does.
func (w *world) cluster() (list []string) {
	for _, name := range w.plan.nodes() {
		list = append(list, name+"="+net.JoinHostPort(w.process(name).host, "7420"))
	}
	return list
}

// upstream lists where agents forward to.
func (w *world) upstream() string {
	urls := []string{w.first(app.WriteProxy).url()}
	if nodes := w.plan.nodes(); len(nodes) > 0 {
		urls = nil
		for _, name := range nodes {
			urls = append(urls, w.process(name).url())
		}
	}
	return strings.Join(urls, ",")
}

// leadingNode returns the name of the node whose replica leads, or of another one if none does.
func (w *world) leadingNode() string {
	url := w.etcd.leaderURL()
	for _, name := range w.plan.nodes() {
		if w.process(name).url() == url {
			return name
		}
	}
	return w.plan.nodes()[0]
}

// injectReplicaFault begins a fault of a cell of nodes, waits for its time, and ends it. It reports whether it is one.
func (w *world) injectReplicaFault(f faultPlan, p *process) bool {
	switch f.Kind {
	case faultJournalCut, faultEtcdCut:
		cut := journalCut
		if f.Kind == faultEtcdCut {
			cut = wholeCut
		}
		w.during("etcd cut "+p.host, f.For,
			func() { w.etcd.set(func(e *etcd) { e.cuts[p.host] = cut }) }, func() { w.etcd.set(func(e *etcd) { delete(e.cuts, p.host) }) })
	case faultEtcdLoss:
		w.during("etcd loss", f.For,
			func() { w.etcd.set(func(e *etcd) { e.faults.loseAnswer, e.faults.late = f.Chance, f.Chance/4 }) },
			func() { w.etcd.set(func(e *etcd) { e.faults.loseAnswer, e.faults.late = 0, 0 }) })
	case faultSlowEtcd:
		w.during("slow etcd", f.For,
			func() { w.etcd.set(func(e *etcd) { e.faults.slow = 500 * time.Millisecond }) }, func() { w.etcd.set(func(e *etcd) { e.faults.slow = 0 }) })
	case faultReplace:
		p.mu.Lock()
		held := p.held
		p.held = true
		p.mu.Unlock()
		if held {
			return true // it is being replaced
		}
		p.kill(true)
		if err := p.disk.destroy(false); err != nil {
			w.note("%s: %v", p.plan.Name, err)
		}
		time.Sleep(f.For)
		p.release("")
	default:
		return false
	}
	return true
}

// replicaCalls are calls of clients outside the cell at the replicas, each by itself.
type replicaCalls struct {
	replicas []metalog.Log
	all      *replicated.Log
	client   *client

	enough chan struct{}
	result chan *linear.History
	cancel context.CancelFunc
}

// callReplicas makes clients call the replicas of a cell of nodes, and records their calls: nil in others, whose metadata logs do not start
// with logs of unknown categories.
func (w *world) callReplicas() *replicaCalls {
	if len(w.plan.nodes()) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &replicaCalls{
		client: w.newClient(), enough: make(chan struct{}), result: make(chan *linear.History, 1), cancel: cancel,
	}
	var (
		all  []replicated.Replica
		each []linear.Log
	)
	for _, name := range w.plan.nodes() {
		url := w.process(name).url()
		log := remote.NewClient(rpc.NewMetalogClient(r.client.transport, url))
		r.replicas, all, each = append(r.replicas, log), append(all, replicated.Replica{URL: url, Log: log}), append(each, log)
	}
	var err error
	if r.all, err = replicated.New(all, replicated.Options{Random: w.randomOf("calls")}); err != nil {
		panic(err)
	}
	log := linear.NewReplicas(each, r.all, rngOf(w.plan.Seed, "calls"))
	go func() {
		r.result <- linear.Run(ctx, linear.Config{
			Seed: w.plan.Seed, Clients: 4, Calls: 1 << 20, Logs: 4, Pace: time.Second, Enough: r.enough,
			Hurry: 20 * time.Millisecond, Patience: 10 * time.Second, CatchUp: liveness,
		}, log)
	}()
	return r
}

// verifyCalls ends the calls at the replicas, and looks whether some order of them explains every answer.
func (w *world) verifyCalls(r *replicaCalls) {
	if r == nil {
		return
	}
	close(r.enough)
	defer func() {
		r.cancel()
		_ = r.all.Close()
		for _, log := range r.replicas {
			_ = log.Close()
		}
		r.client.transport.Close()
	}()
	select {
	case h := <-r.result:
		w.calls.Store(int64(h.Len()))
		w.note("%d calls at the replicas, %d of unknown outcome", h.Len(), h.Unknown())
		if err := w.checking.check(h); errors.Is(err, linear.ErrUndecided) {
			w.undecided.Store(1)
			w.note("%v", err)
		} else if err != nil {
			w.violation("invariants 3, 5 and 7: %v", err)
		}
	case <-time.After(2 * liveness):
		w.violation("liveness: the calls at the replicas do not end within %v", 2*liveness)
	}
}

// callChecker checks histories of calls outside of the bubble: the search for an order is given up after a time, which does not pass there
// while it searches.
type callChecker struct {
	histories chan *linear.History
	verdicts  chan error
}

func newCallChecker() *callChecker {
	c := &callChecker{histories: make(chan *linear.History), verdicts: make(chan error)}
	go func() {
		for h := range c.histories {
			c.verdicts <- h.Check()
		}
	}()
	return c
}

func (c *callChecker) check(h *linear.History) error {
	c.histories <- h
	return <-c.verdicts
}

// verifyReplicas stops the nodes, and compares the folder of each with all that the journal ever had up to the entry that it has applied.
func (w *world) verifyReplicas() {
	nodes := w.plan.nodes()
	var stopping sync.WaitGroup
	for _, name := range nodes {
		p := w.process(name)
		stopping.Go(func() {
			if err := p.stop(); err != nil {
				w.note("%s stopped: %v", name, err)
			}
		})
	}
	stopping.Wait()
	var folders []replicas.Folder
	for _, name := range nodes {
		f, err := w.process(name).disk.readReplica()
		switch {
		case err != nil:
			w.violation("the metadata of %s can't be read: %v", name, err)
			return
		case f.Applied.Seq > 0:
			f.Name = name
			folders = append(folders, f)
		}
	}
	slices.SortFunc(folders, func(a, b replicas.Folder) int { return cmp.Compare(a.Applied.Seq, b.Applied.Seq) })
	if err := w.compareFolders(folders); err != nil {
		w.violation("replicas: %v", err)
	}
}

// readReplica reads the folder of a replica that does not run.
func (d *disk) readReplica() (replicas.Folder, error) {
	d.mu.Lock()
	mem := d.mem
	d.mu.Unlock()
	return replicas.ReadFolder(mem, "/data/metalog")
}

// compareFolders compares folders, by their entries, with the changes of all entries of the journal.
func (w *world) compareFolders(folders []replicas.Folder) error {
	decoder, err := entries.NewDecoder()
	if err != nil {
		return err
	}
	w.etcd.mu.Lock()
	journaled := maps.Clone(w.etcd.entries)
	w.etcd.mu.Unlock()
	want, at := map[string]string{}, uint64(0)
	for _, f := range folders {
		for ; at < f.Applied.Seq; at++ {
			b, ok := journaled[at+1]
			if !ok {
				return fmt.Errorf("%s has applied entry %d, and the journal never had entry %d", f.Name, f.Applied.Seq, at+1)
			}
			e, err := decoder.Decode(b)
			if err == nil {
				err = schema.DecodeChanges(e.Payload, func(c schema.Change) error { applyChange(want, c); return nil })
			}
			if err != nil {
				return fmt.Errorf("entry %d: %w", at+1, err)
			}
		}
		w.note("%s has applied entry %d of %d: %d keys", f.Name, f.Applied.Seq, len(journaled), len(f.Content))
		if difference := replicas.CompareContents(f.Content, want); difference != "" {
			return fmt.Errorf("the folder of %s, which has applied entry %d, is not what the journal makes of it: %s", f.Name, f.Applied.Seq, difference)
		}
	}
	return nil
}

// applyChange carries out a change on the content of a folder.
func applyChange(content map[string]string, c schema.Change) {
	switch key := string(c.Key); c.Kind {
	case schema.ChangeSet:
		if replicas.IsReplicated(key) {
			content[key] = string(c.Value)
		}
	case schema.ChangeDelete:
		delete(content, key)
	case schema.ChangeDeleteRange:
		maps.DeleteFunc(content, func(k, _ string) bool { return k >= key && k < string(c.Value) })
	}
}
