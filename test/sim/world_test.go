package sim

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/cmd/scribe/app"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/test/follow"
	"scribe/test/history"
)

// liveness bounds how long a healed cell takes to give every write an outcome and every reader every message.
const liveness = 5 * time.Minute

// world is a cell, its clients, and everything between them, in one bubble of virtual time.
type world struct {
	plan       plan
	began      time.Time
	net        *network
	store      *store
	etcd       *etcd
	processes  []*process
	history    *history.History
	writers    []*writer
	followers  []*follow.Follower
	sequenced  []*batchReader
	batches    map[string]*batchesSeen // by category
	groups     []*groupReader
	queries    []*queryReader
	keyReaders []*keyReader
	clients    atomic.Int64
	level      slog.Level

	done    chan struct{} // closed when the run is over
	running sync.WaitGroup

	mu         sync.Mutex
	timeline   []string
	violations []string
	// committed has, for categories that forget, what was acknowledged and when the write began, at the earliest.
	committed map[string]map[history.ID]time.Time
	// shards are the numbers of shards that categories with keys had.
	shards map[string][]uint32
	faults atomic.Int64 // that befell something
	// followed is the most frames that a batcher, in its last life, accepted while others of their producer had no outcome.
	followed atomic.Int64
	recovery recoveries
	healed   atomic.Bool
	digest   digest
	// underWay counts the faults of one kind that befall the same thing: it is over when the last of them is.
	underWay map[string]int
	// calls counts the recorded calls at replicas, which checking looks at.
	calls    atomic.Int64
	checking *callChecker
	// undecided is 1 if no order of the calls was found in time, and none excluded.
	undecided atomic.Int64
}

func newWorld(p plan, level slog.Level) *world {
	w := &world{plan: p, began: time.Now(), history: history.New(), done: make(chan struct{}), level: level, committed: map[string]map[history.ID]time.Time{}, batches: map[string]*batchesSeen{}, underWay: map[string]int{}}
	w.net = newNetwork(rngOf(p.Seed, "network"), &w.digest)
	near, far := time.Duration(0), 2*time.Millisecond
	if p.Far {
		near, far = 30*time.Millisecond, 90*time.Millisecond
	}
	if p.Clocks {
		w.history.AllowSkew(p.maxSkew())
	}
	w.store = newStore(rngOf(p.Seed, "store"), &w.digest, near, far)
	w.store.reused = func(key string) { w.violation("invariant 8: other bytes were put under the key %s", key) }
	w.etcd = newEtcd(rngOf(p.Seed, "etcd"), &w.digest)
	for i, x := range p.Processes {
		host := fmt.Sprintf("10.0.0.%d", i+1)
		w.processes = append(w.processes, &process{
			w: w, plan: x, host: host, disk: newDisk(rngOf(p.Seed, "disk "+x.Name), &w.digest, host, 2*time.Millisecond), clock: newClock(x.Offset, x.Drift),
		})
	}
	return w
}

func (w *world) process(name string) *process {
	for _, p := range w.processes {
		if p.plan.Name == name {
			return p
		}
	}
	panic("no process " + name)
}

// first returns the first process with a role.
func (w *world) first(role app.Role) *process {
	for _, p := range w.processes {
		if slices.Contains(p.plan.Roles, role) {
			return p
		}
	}
	panic("no process with role " + string(role))
}

func (w *world) over() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// maxTimeline bounds the lines of a timeline; the oldest go.
const maxTimeline = 4000

// note writes a line to the timeline.
func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.timeline = append(w.timeline, fmt.Sprintf("%12v  ", time.Since(w.began).Round(time.Millisecond))+fmt.Sprintf(format, args...))
	if len(w.timeline) > 2*maxTimeline {
		w.timeline = slices.Clone(w.timeline[maxTimeline:])
	}
}

// noteCommitted notes a message of a category that forgets: it must be readable for as long as the category keeps messages.
func (w *world) noteCommitted(category string, id history.ID, began time.Time) {
	if w.category(category).Retention == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.committed[category] == nil {
		w.committed[category] = map[history.ID]time.Time{}
	}
	w.committed[category][id] = began
}

// violation notes that something that must hold does not.
func (w *world) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.note("VIOLATION %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, text)
}

// timelineWriter puts a process's log lines into the timeline.
type timelineWriter struct {
	w    *world
	name string
}

func (t *timelineWriter) Write(line []byte) (int, error) {
	t.w.note("%-10s %s", t.name, strings.TrimSpace(string(line)))
	return len(line), nil
}

// run is the whole of a seed: start, load and faults, healing, and the looks at what is left.
func (w *world) run() {
	for _, p := range w.processes {
		p.start()
	}
	if !w.createCategories() {
		return
	}
	clientsCtx, stopReading := context.WithCancel(context.Background())
	writing, stopWriting := context.WithCancel(context.Background())
	var writers, readers sync.WaitGroup
	for _, x := range w.plan.Writers {
		wr := &writer{w: w, plan: x, c: w.newClient(), rng: rngOf(w.plan.Seed, "writer "+x.Name), random: w.randomOf("writer " + x.Name)}
		w.writers = append(w.writers, wr)
		writers.Go(func() { wr.run(writing) })
	}
	for _, x := range w.plan.Readers {
		if w.category(x.Category).Order == "sequenced" {
			b := &batchReader{w: w, plan: x, seen: w.batchesOf(x.Category)}
			w.sequenced = append(w.sequenced, b)
			readers.Go(func() { b.run(clientsCtx) })
			continue
		}
		w.startFollower(clientsCtx, &readers, x)
	}
	for _, x := range w.plan.Queries {
		q := &queryReader{w: w, plan: x, rows: map[history.ID]int{}}
		w.queries = append(w.queries, q)
		readers.Go(func() { q.run(clientsCtx) })
	}
	for _, x := range w.plan.KeyReaders {
		k := &keyReader{w: w, plan: x, seen: map[history.ID]int{}, kept: map[history.ID]int{}}
		w.keyReaders = append(w.keyReaders, k)
		readers.Go(func() { k.run(clientsCtx) })
	}
	for _, x := range w.plan.Groups {
		g := &groupReader{w: w, plan: x, seen: map[history.ID]uint64{}}
		w.groups = append(w.groups, g)
		for i := range x.Members {
			readers.Go(func() { g.member(clientsCtx, i) })
		}
	}
	calls := w.callReplicas()
	w.running.Go(w.watchBounds)
	w.injectFaults()
	w.heal()
	w.healed.Store(true)
	healed := time.Now()
	w.liftQuotas()
	stopWriting()
	w.followRecovered(clientsCtx, &readers)
	if w.await("every write has an outcome", healed, func() bool { return waitDone(&writers) }) {
		w.note("writers: %s", w.progress())
		w.verifyReaders(healed)
	}
	w.verifyCalls(calls)
	stopReading()
	if !waitWithin(&readers, liveness) {
		w.violation("the readers do not end")
	}
	ended := time.Now()
	w.await("nothing is held for readers that have ended", ended, w.holdNothingRead)
	w.verifyStores()
	w.verifyReplicas()
	close(w.done)
}

// startFollower starts a consumer of a plan.
func (w *world) startFollower(ctx context.Context, readers *sync.WaitGroup, x readerPlan) {
	f := w.follower(x)
	w.followers = append(w.followers, f)
	readers.Go(func() {
		err := f.Run(ctx)
		for err != nil && f.Trail.Len() == 0 && w.recovery.hasLost(x.Category) {
			sleep(ctx, time.Second)
			err = f.Run(ctx)
		}
		if err != nil {
			w.violation("%v", err)
		}
	})
}

// waitDone reports whether everybody is done within a second.
func waitDone(g *sync.WaitGroup) bool { return waitWithin(g, time.Second) }

func waitWithin(g *sync.WaitGroup, d time.Duration) bool {
	done := make(chan struct{})
	go func() { g.Wait(); close(done) }()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// await waits until something holds, at most for the bound of liveness from a time on.
func (w *world) await(what string, from time.Time, holds func() bool) bool {
	for !holds() {
		if time.Since(from) > liveness {
			w.violation("liveness: not within %v after everything was healed: %s: %s", liveness, what, w.progress())
			return false
		}
		time.Sleep(100 * time.Millisecond)
	}
	w.note("%v after the healing: %s", time.Since(from).Round(time.Millisecond), what)
	return true
}

func (w *world) progress() string {
	var b strings.Builder
	for _, x := range w.writers {
		fmt.Fprintf(&b, "%s %d acked %d failed %d unknown; ", x.plan.Name, x.acked.Load(), x.failed.Load(), x.unknown.Load())
	}
	return b.String()
}

// createCategories creates the categories once the cell answers.
func (w *world) createCategories() bool {
	c := w.newClient()
	control := rpc.NewControlClient(c.transport, w.first(app.ControlPlane).url())
	for _, x := range w.plan.Categories {
		w.noteShards(x.Name, x.Shards)
		w.history.Category(x.Name, history.Guarantees{ExactlyOnce: x.Delivery == "exactly_once", NoGivingUp: x.Delivery == "exactly_once", ByKey: w.byKey(&x)})
		if x.Retention > 0 {
			w.history.Retain(x.Name, x.Retention, time.Now())
		}
		if err := createCategory(control, &x); err != nil {
			w.violation("category %s can't be created: %v", x.Name, err)
			return false
		}
	}
	return true
}

// createCategory creates a category that does not exist, as soon as the control plane answers.
func createCategory(control rpc.ControlService, x *categoryPlan) error {
	by, field := x.shardBy()
	category := &scribev1.Category{
		Name: x.Name, Shards: x.Shards, ShardBy: by, ShardField: field,
		Delivery:   scribev1.Delivery(scribev1.Delivery_value["DELIVERY_"+strings.ToUpper(x.Delivery)]),
		Repeatable: scribev1.Repeatability(scribev1.Repeatability_value["REPEATABILITY_"+strings.ToUpper(x.Order)]),
	}
	category.Schema, category.Encrypted = x.schema(), x.Encrypted
	if x.Retention > 0 {
		category.Retention = durationpb.New(x.Retention)
	}
	x.Quotas.apply(category)
	return patiently(func(ctx context.Context) error {
		_, err := control.CreateCategory(ctx, &scribev1.CreateCategoryRequest{Category: category, IfNotExists: true})
		return err
	})
}

// schema returns the text of the category's first schema, "" without one.
func (x *categoryPlan) schema() string {
	switch {
	case x.Columns:
		return rowSchema
	case x.Keys != nil && x.Keys.Field:
		return keySchema
	}
	return ""
}

// patiently tries something until it succeeds, at most for the bound of liveness.
func patiently(try func(context.Context) error) error {
	for begin := time.Now(); ; time.Sleep(time.Second) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := try(ctx)
		cancel()
		if err == nil || time.Since(begin) > liveness {
			return err
		}
	}
}

// injectFaults lets what the plan says befall the cell, until its length is over.
func (w *world) injectFaults() {
	var under sync.WaitGroup
	for _, f := range w.plan.Faults {
		if wait := f.At - time.Since(w.began); wait > 0 {
			time.Sleep(wait)
		}
		w.note("FAULT %v", f)
		w.faults.Add(1)
		under.Go(func() { w.inject(f) })
	}
	if wait := w.plan.Length - time.Since(w.began); wait > 0 {
		time.Sleep(wait)
	}
	under.Wait()
}

// inject begins a fault, waits for its time, and ends it.
func (w *world) inject(f faultPlan) {
	var p *process
	if kind := leaderKinds[f.Kind]; kind != "" {
		f.Kind, f.Process = kind, w.leadingNode()
		w.note("FAULT it is %s", f.Process)
	}
	if f.Process != "" {
		p = w.process(f.Process)
	}
	switch f.Kind {
	case faultKill, faultPower:
		p.kill(f.Kind == faultPower)
		time.Sleep(f.For)
		w.net.powerOn(p.host)
		p.start()
	case faultRestart:
		if err := p.stop(); err != nil {
			w.note("%s stopped: %v", f.Process, err)
		}
		time.Sleep(f.For)
		p.start()
	case faultStop:
		w.during("stop "+f.Process, f.For, p.pause, p.resume)
	case faultCut:
		from, to := p.host, w.process(f.Other).host
		w.during("cut "+from+to, f.For, func() { w.net.cut(from, to) }, func() { w.net.heal(from, to) })
	case faultIsolate:
		w.during("isolate "+f.Process, f.For, func() { w.isolate(p.host, true) }, func() { w.isolate(p.host, false) })
	case faultLoss:
		w.during("loss", f.For, func() { w.net.set(func(n *network) { n.loss = f.Chance }) }, func() { w.net.set(func(n *network) { n.loss = 0 }) })
	case faultSlowNet:
		w.during("slow net", f.For, func() { w.net.set((*network).makeSlow) }, func() { w.net.set((*network).makeFast) })
	case faultStore:
		w.during("store", f.For, func() {
			w.store.set(storeFaults{refuse: f.Chance, loseAnswer: f.Chance, late: f.Chance / 2, cutList: f.Chance, slow: f.Chance})
		}, func() { w.store.set(storeFaults{}) })
	case faultStoreOut:
		w.during("store", f.For, func() { w.store.set(storeFaults{refuse: 1}) }, func() { w.store.set(storeFaults{}) })
	case faultClock:
		p.clock.setOffset(f.To)
	case faultLostDisk:
		w.recoverMetadata(f)
	case faultLostControl:
		w.recoverControl(f)
	case faultSchema:
		w.changeSchema(f.Other)
	case faultGrow:
		w.growCategory(f.Other, f.Shards)
	case faultSplit:
		w.divideCategory(f.Other, f.Shards)
	case faultDiskFull:
		w.during("disk full "+f.Process, f.For, func() { p.disk.full.Store(true) }, func() { p.disk.full.Store(false) })
	case faultSlowDisk:
		w.during("slow disk "+f.Process, f.For, func() { p.disk.setSyncTime(time.Second) }, func() { p.disk.setSyncTime(2 * time.Millisecond) })
	default:
		if !w.injectReplicaFault(f, p) {
			panic("unknown fault " + f.Kind)
		}
	}
}

// during begins a fault, waits for its time, and ends it, unless another one of its kind still befalls the same thing.
func (w *world) during(what string, d time.Duration, begin, end func()) {
	w.mu.Lock()
	w.underWay[what]++
	w.mu.Unlock()
	begin()
	time.Sleep(d)
	w.mu.Lock()
	w.underWay[what]--
	over := w.underWay[what] == 0
	w.mu.Unlock()
	if over {
		end()
	}
}

// restColumn is what changeSchema adds to a schema.
const restColumn = "  - {name: rest, type: string}\n"

// changeSchema gives a category a schema with one more column.
func (w *world) changeSchema(name string) {
	text := rowSchema + restColumn
	w.recovery.noteWidened(name)
	w.changeCategory("schema of "+name, func(ctx context.Context, control rpc.ControlService) error {
		_, err := control.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: name, Schema: &text, ForceSchema: true})
		return err
	})
}

// changeCategory tries a change as soon as the control plane can be reached, until it succeeds. It is a violation if that takes longer than the
// faults and the bound of liveness.
func (w *world) changeCategory(what string, change func(context.Context, rpc.ControlService) error) {
	c := w.newClient()
	defer c.transport.Close()
	control := rpc.NewControlClient(c.transport, w.first(app.ControlPlane).url())
	for !w.over() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		err := change(ctx, control)
		cancel()
		switch {
		case err == nil:
			return
		case time.Since(w.began) > w.plan.Length+liveness:
			w.violation("%s: not changed within %v after the faults: %v", what, liveness, err)
			return
		}
		w.note("%s: %v", what, err)
		time.Sleep(time.Second)
	}
}

// isolate cuts a host off everything, or ends that: other processes, clients, the store, and etcd, of which a member is on each node.
func (w *world) isolate(host string, on bool) {
	w.net.set(func(n *network) { n.isolated[host] = on })
	w.etcd.set(func(e *etcd) { e.isolated[host] = on })
}

// heal ends every fault, whatever is still under way, and starts what does not run.
func (w *world) heal() {
	w.net.set(func(n *network) {
		clear(n.cuts)
		clear(n.isolated)
		n.loss = 0
		n.makeFast()
	})
	w.store.set(storeFaults{})
	w.etcd.set(func(e *etcd) { clear(e.cuts); clear(e.isolated); e.faults = etcdFaults{} })
	for _, p := range w.processes {
		w.net.powerOn(p.host)
		p.disk.full.Store(false)
		p.disk.setSyncTime(2 * time.Millisecond)
		p.resume()
		p.start()
	}
	w.note("HEALED")
}
