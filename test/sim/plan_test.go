package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"scribe/cmd/scribe/app"
)

// plan is what a seed draws: everything about a run that is decided before it begins. It is written to a file when a run fails, so
// that a shorter one can be tried.
type plan struct {
	Seed uint64
	// Length is how long faults come, Quiet how long the healed cell then rests before it is looked at.
	Length, Quiet time.Duration
	// Far is a store that is 30 to 90 ms away, as S3 is; else it is in the same room.
	Far bool
	// Clocks is whether the hosts' clocks differ, and are set at times.
	Clocks bool
	// Hour is whether they are up to an hour apart.
	Hour bool
	// Busy is that a kilobyte a second of a shard is a micro-shard.
	Busy       bool `json:",omitempty"`
	Processes  []processPlan
	Categories []categoryPlan
	Writers    []writerPlan
	Readers    []readerPlan
	Groups     []groupPlan
	Queries    []queryPlan
	KeyReaders []keyReaderPlan `json:",omitempty"`
	Faults     []faultPlan
}

// processPlan is a process on a host of its own.
type processPlan struct {
	Name  string
	Roles []app.Role
	// Node is whether it is a node of its cell, with a replica of the metadata.
	Node bool `json:",omitempty"`
	// Offset is how far the clock of the host is ahead at first, Drift how much too fast it is, in millionths.
	Offset time.Duration `json:",omitempty"`
	Drift  float64       `json:",omitempty"`
}

// categoryPlan is a category of the workload.
type categoryPlan struct {
	Name string
	// Delivery is best_effort, at_least_once or exactly_once; Order is none, bound or sequenced.
	Delivery, Order string
	Shards          uint32
	// Retention is 0 where messages outlive the run.
	Retention time.Duration
	// Columns: its messages are rows with a schema, which queries follow.
	Columns bool
	// Keys is how it places messages by key or field; nil where writers choose shards.
	Keys *keysPlan `json:",omitempty"`
	// Quotas are those that it has until everything is healed; nil for none.
	Quotas *quotaPlan `json:",omitempty"`
}

// writerPlan is a producer on a host of its own, which writes to one shard of a category.
type writerPlan struct {
	Name, Category string
	Shard          uint32
	// Level is none, spooled or committed; Kind is single, batch, atomic, async, stream, restarting or publish.
	Level, Kind string
	// Via is the process that it writes to.
	Via string
	// Patient writers repeat a request until it is answered. Others give up.
	Patient bool
	Pace    time.Duration
	Size    int
	// Rest is how long it rests, about, after each burst; 0 = it does not.
	Rest time.Duration `json:",omitempty"`
}

// readerPlan is a consumer with many lives on a host of its own.
type readerPlan struct {
	Name, Category string
	// Window is below 0 where it is unbounded.
	Window   time.Duration
	Lifetime int
	// Rest is how long it is away between two lives, about.
	Rest time.Duration `json:",omitempty"`
	// Via are the processes that its lives read from in turn.
	Via []string
}

// groupPlan is a group of consumers.
type groupPlan struct {
	Name, Category string
	// Shards is whether members share logical shards rather than pointers.
	Shards  bool
	Members int
	// Lifetime is after how many messages, about, a member ends.
	Lifetime int
	Via      []string
}

// queryPlan is a query that follows a category with columns.
type queryPlan struct {
	Name, Category, Via string
	// Modulus: it selects the rows whose number is a multiple of it.
	Modulus int
}

// faultPlan is a fault that begins At a time after the start and lasts For some time.
type faultPlan struct {
	Kind    string
	At, For time.Duration
	// Process is what it befalls, Other the other end of a cut. Chance is how often, where faults are drawn.
	Process, Other string
	Chance         float64
	// Keep: of a lost disk, all but the metadata can be read. Cuts are where its recovery is cut off, again and again.
	Keep bool `json:",omitempty"`
	// To is how far ahead a clock is set.
	To time.Duration `json:",omitempty"`
	// Shards is how many a category has then.
	Shards uint32        `json:",omitempty"`
	Cuts   []recoveryCut `json:",omitempty"`
}

// recoveryCut is where a recovery is cut off: before a step, or after a time.
type recoveryCut struct {
	Step  string
	After time.Duration
	// Power is a loss of power, else the process is killed.
	Power bool
}

func (f faultPlan) String() string {
	text := fmt.Sprintf("%-12s at %-8v for %-8v %s", f.Kind, f.At.Round(time.Millisecond), f.For.Round(time.Millisecond), f.Process)
	switch {
	case f.Kind == faultSchema:
		text += f.Other
	case f.Kind == faultSplit:
		text += fmt.Sprintf("%s, choice %d", f.Other, f.Shards)
	case f.Kind == faultGrow:
		text += fmt.Sprintf("%s to %d shards", f.Other, f.Shards)
	case f.Kind == faultClock:
		text += fmt.Sprintf(" is %v ahead from then on", f.To)
	case f.Kind == faultLostControl:
		text += fmt.Sprintf(" catalog from %q", f.Other)
	case f.Kind == faultLostDisk:
		text += fmt.Sprintf(" catalog from %q, keep %v, cuts %v", f.Other, f.Keep, f.Cuts)
	case f.Other != "":
		text += " to " + f.Other
	}
	if f.Chance > 0 {
		text += fmt.Sprintf(" chance %.2f", f.Chance)
	}
	return text
}

// Kinds of faults.
const (
	faultKill     = "kill"      // kill -9, and a new start after a while
	faultRestart  = "restart"   // SIGTERM, and a new start
	faultPower    = "power"     // loss of power: what was not synced may be gone
	faultStop     = "stop"      // SIGSTOP and SIGCONT
	faultCut      = "cut"       // bytes of one direction do not arrive
	faultIsolate  = "isolate"   // no bytes from or to a host
	faultLoss     = "loss"      // segments are lost
	faultSlowNet  = "slow-net"  // little bandwidth, high latency
	faultStore    = "store"     // the store refuses, loses answers, is late
	faultStoreOut = "store-out" // the store refuses everything
	faultDiskFull = "disk-full" // no space on a disk
	faultSchema   = "schema"    // no fault: a category's schema gets another column
	faultSlowDisk = "slow-disk" // a sync takes long
	faultClock    = "clock"     // the wall clock of a host jumps
	faultLostDisk = "lost-disk" // the metadata is gone, and is recovered from the blobs
	// the control store is gone, and is recovered beside the logs
	faultLostControl = "lost-control"
)

var faultKinds = []string{
	faultKill, faultRestart, faultPower, faultStop, faultCut, faultIsolate, faultLoss, faultSlowNet, faultStore, faultStoreOut, faultDiskFull, faultSlowDisk,
}

// Layouts of a cell. Every role is in each, and twice where there may be several.
var layouts = map[string][]processPlan{
	"nodes": {
		{Name: "meta", Roles: []app.Role{app.ControlPlane, app.Metalog}},
		{Name: "node1", Roles: []app.Role{app.Batcher, app.WriteProxy, app.ReadStream, app.ReadProxy, app.Retention, app.Sequencer, app.SQLServer}},
		{Name: "node2", Roles: []app.Role{app.Batcher, app.WriteProxy, app.ReadStream, app.ReadProxy, app.Retention, app.Sequencer, app.SQLServer}},
		{Name: "agent1", Roles: []app.Role{app.Scribed}},
		{Name: "agent2", Roles: []app.Role{app.Scribed}},
	},
	"wide": {
		{Name: "control", Roles: []app.Role{app.ControlPlane}},
		{Name: "metalog", Roles: []app.Role{app.Metalog}},
		{Name: "batcher1", Roles: []app.Role{app.Batcher}},
		{Name: "batcher2", Roles: []app.Role{app.Batcher}},
		{Name: "write1", Roles: []app.Role{app.WriteProxy}},
		{Name: "write2", Roles: []app.Role{app.WriteProxy}},
		{Name: "read1", Roles: []app.Role{app.ReadStream, app.ReadProxy, app.Retention, app.Sequencer, app.SQLServer}},
		{Name: "read2", Roles: []app.Role{app.ReadStream, app.ReadProxy, app.Retention, app.Sequencer, app.SQLServer}},
		{Name: "agent1", Roles: []app.Role{app.Scribed}},
		{Name: "agent2", Roles: []app.Role{app.Scribed}},
	},
	"one": {
		{Name: "up", Roles: app.AllRoles},
		{Name: "node", Roles: []app.Role{app.Batcher, app.WriteProxy, app.Scribed, app.ReadStream, app.ReadProxy, app.Retention, app.Sequencer, app.SQLServer}},
		{Name: "agent1", Roles: []app.Role{app.Scribed}},
	},
	// as scribe up --node makes them
	replicatedLayout: {
		{Name: "node1", Roles: app.AllRoles, Node: true},
		{Name: "node2", Roles: app.AllRoles, Node: true},
		{Name: "node3", Roles: app.AllRoles, Node: true},
		{Name: "agent1", Roles: []app.Role{app.Scribed}},
		{Name: "agent2", Roles: []app.Role{app.Scribed}},
	},
}

// drawPlan draws everything from a seed. Each seed leaves some kinds of faults and some features out, so that what remains comes often
// (swarm testing). The kinds that always names, with commas between, are in it in any case; the rest is as without them.
func drawPlan(seed uint64, length time.Duration, always string) plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := plan{Seed: seed, Length: length, Quiet: pick(rng, []time.Duration{time.Minute, time.Minute, time.Minute, swept}), Far: rng.IntN(2) == 0}
	p.Processes = layouts[pick(rng, []string{"nodes", "nodes", "nodes", "wide", "one"})]
	nodes := isDrawn(always, drawNodes)
	if nodes {
		p.Processes = layouts[replicatedLayout]
	}
	p.drawCategories(rng)
	p.drawWriters(rng)
	p.drawReaders(rng)
	p.drawQueries(rng)
	p.drawFaults(rng)
	if nodes {
		p.drawReplicaFaults(rand.New(rand.NewPCG(seed, 6)))
	} else {
		p.drawLostDisks(rand.New(rand.NewPCG(seed, 2)), isDrawn(always, faultLostDisk))
		p.drawLostControl(rand.New(rand.NewPCG(seed, 4)), isDrawn(always, faultLostControl))
	}
	if p.Hour = isDrawn(always, drawHour); p.Hour && p.Quiet == swept {
		p.Quiet = time.Minute // blobs without pointers are kept for longer than that by the grace that such clocks need
	}
	p.drawClocks(rand.New(rand.NewPCG(seed, 3)), isDrawn(always, faultClock) || p.Hour)
	p.drawKeyed(rand.New(rand.NewPCG(seed, 5)), always)
	p.drawQuotas(rand.New(rand.NewPCG(seed, 57)))
	p.drawSplits(rand.New(rand.NewPCG(seed, 7)), isDrawn(always, faultSplit))
	p.Busy = isDrawn(always, drawBusy)
	p.drawPaces(rand.New(rand.NewPCG(seed, 8)))
	p.drawForgetful(rand.New(rand.NewPCG(seed, 77)), isDrawn(always, drawRemoval))
	slices.SortStableFunc(p.Faults, func(a, b faultPlan) int { return cmp.Compare(a.At, b.At) })
	return p
}

// paced is the length up to which writers keep their pace.
const paced = 5 * time.Minute

// drawPaces slows the writers of most long plans down, all by one factor: faults then meet idle streams, expired leases and blobs of one message
// as well, and hours of them cost little.
func (p *plan) drawPaces(rng *rand.Rand) {
	factor := pick(rng, []time.Duration{1, 3, 5, 10})
	if p.Length <= paced {
		return
	}
	for i := range p.Writers {
		p.Writers[i].Pace *= factor
	}
}

// forcedKinds can be drawn in every seed.
var forcedKinds = []string{faultLostDisk, faultLostControl, faultClock, faultGrow, growSpooled, faultSplit, drawBusy, drawNodes, drawHour, drawRemoval}

// isDrawn reports whether a list of kinds, with commas between, has one.
func isDrawn(kinds, kind string) bool { return slices.Contains(strings.Split(kinds, ","), kind) }

// checkDraws checks a list of kinds that seeds draw in any case.
func checkDraws(kinds string) error {
	for kind := range strings.SplitSeq(kinds, ",") {
		if kind != "" && !slices.Contains(forcedKinds, kind) {
			return fmt.Errorf("kind %q can't be drawn in every seed: want some of %s, with commas between", kind, strings.Join(forcedKinds, ", "))
		}
	}
	return nil
}

func pick[T any](rng *rand.Rand, of []T) T { return of[rng.IntN(len(of))] }

// with returns the names of the processes with a role.
func (p *plan) with(role app.Role) (names []string) {
	for _, x := range p.Processes {
		if slices.Contains(x.Roles, role) {
			names = append(names, x.Name)
		}
	}
	return names
}

// agents returns the names of the processes that producers use as agents. Nodes are none: what they have spooled goes with their disk.
func (p *plan) agents() (names []string) {
	for _, x := range p.Processes {
		if slices.Contains(x.Roles, app.Scribed) && !x.Node {
			names = append(names, x.Name)
		}
	}
	return names
}

func (p *plan) drawCategories(rng *rand.Rand) {
	for i := range 2 + rng.IntN(3) {
		c := categoryPlan{
			Name: fmt.Sprintf("category%d", i), Shards: 1 + rng.Uint32N(4),
			Delivery: pick(rng, []string{"best_effort", "at_least_once", "at_least_once", "exactly_once", "exactly_once"}),
			Order:    pick(rng, []string{"none", "none", "bound", "sequenced"}),
		}
		if rng.IntN(6) == 0 {
			c.Retention = time.Duration(1+rng.IntN(3)) * time.Minute
		}
		c.Columns = rng.IntN(3) == 0
		p.Categories = append(p.Categories, c)
	}
}

func (p *plan) drawWriters(rng *rand.Rand) {
	proxies, agents := p.with(app.WriteProxy), p.agents()
	for i := range 3 + rng.IntN(4) {
		c := p.Categories[i%len(p.Categories)]
		w := writerPlan{
			Name: fmt.Sprintf("writer%d", i), Category: c.Name, Shard: rng.Uint32N(c.Shards), Level: "committed",
			Kind: pick(rng, []string{"single", "batch", "stream", "atomic", "async", "restarting"}), Via: pick(rng, proxies),
			Patient: c.Delivery == "exactly_once" || rng.IntN(4) > 0,
			Pace:    pick(rng, []time.Duration{500 * time.Millisecond, 3 * time.Second, 10 * time.Second}), Size: pick(rng, []int{50, 300, 3000}),
		}
		if rng.IntN(2) == 0 {
			w.Via, w.Level = pick(rng, agents), pick(rng, []string{"none", "spooled", "spooled", "committed"})
			if c.Delivery == "exactly_once" && w.Level == "none" {
				w.Level = "spooled" // what an agent loses from its memory is a gap, behind which it must drop
			}
		}
		// A producer that replays must see the outcome of each frame: an agent that has acknowledged frames with other bounds than the
		// first time can't cut them as the library does.
		if w.Kind == "restarting" && (c.Delivery != "exactly_once" || w.Level != "committed") {
			w.Kind = "batch"
		}
		if w.Kind == "stream" {
			w.Size, w.Pace = pick(rng, []int{300, 1000}), 10*time.Second
		}
		p.Writers = append(p.Writers, w)
	}
}

func (p *plan) drawReaders(rng *rand.Rand) {
	via := p.with(app.ReadStream)
	windows := []time.Duration{-1, 0, 10 * time.Millisecond, time.Second, 10 * time.Second}
	for i := range 2 + rng.IntN(3) {
		c := p.Categories[i%len(p.Categories)]
		if c.Order == "sequenced" && c.Retention > 0 {
			continue // a reader of batches takes a gap for a failure
		}
		p.Readers = append(p.Readers, readerPlan{
			Name: fmt.Sprintf("reader%d", i), Category: c.Name, Window: pick(rng, windows), Lifetime: pick(rng, []int{0, 100, 1000}), Via: via,
		})
	}
	for i := range rng.IntN(3) {
		c := pick(rng, p.Categories)
		if c.Retention > 0 {
			continue
		}
		p.Groups = append(p.Groups, groupPlan{
			Name: fmt.Sprintf("group%d", i), Category: c.Name, Shards: rng.IntN(2) == 0, Members: 1 + rng.IntN(3), Lifetime: pick(rng, []int{0, 200}), Via: via,
		})
	}
}

func (p *plan) drawQueries(rng *rand.Rand) {
	for _, c := range p.Categories {
		if !c.Columns || c.Retention > 0 {
			continue
		}
		for i := range 1 + rng.IntN(2) {
			p.Queries = append(p.Queries, queryPlan{
				Name: fmt.Sprintf("query%d of %s", i, c.Name), Category: c.Name, Via: pick(rng, p.with(app.ReadProxy)), Modulus: 1 + rng.IntN(5),
			})
		}
		p.Faults = append(p.Faults, faultPlan{Kind: faultSchema, At: time.Duration(rng.Int64N(int64(p.Length))), Other: c.Name})
	}
}

func (p *plan) drawFaults(rng *rand.Rand) {
	kinds := slices.DeleteFunc(slices.Clone(faultKinds), func(string) bool { return rng.IntN(3) == 0 })
	if len(kinds) == 0 {
		return
	}
	pause := p.Length / time.Duration(pick(rng, []int{10, 30, 60})) // between two faults, on average
	for at := time.Duration(0); ; {
		at += time.Duration(rng.Int64N(int64(2 * pause)))
		if at >= p.Length {
			return
		}
		f := faultPlan{Kind: pick(rng, kinds), At: at, Process: pick(rng, p.Processes).Name}
		f.For = time.Duration(rng.Int64N(int64(pick(rng, []time.Duration{time.Second, 10 * time.Second, time.Minute}))))
		switch f.Kind {
		case faultCut:
			f.Other = pick(rng, p.Processes).Name
		case faultLoss, faultStore:
			f.Chance = pick(rng, []float64{0.01, 0.1, 0.3})
		}
		if slices.Contains([]string{faultLoss, faultSlowNet, faultStore, faultStoreOut}, f.Kind) {
			f.Process = ""
		}
		p.Faults = append(p.Faults, f)
	}
}

// drawClocks gives the hosts clocks of their own in half of the seeds, or always, and sets some of them, forward or back.
func (p *plan) drawClocks(rng *rand.Rand, always bool) {
	if p.Clocks = rng.IntN(2) == 0 || always; !p.Clocks {
		return
	}
	offset := func() time.Duration {
		return time.Duration(rng.Int64N(int64(2*p.maxOffset()))) - p.maxOffset()
	}
	p.Processes = slices.Clone(p.Processes) // it is one of layouts
	for i := range p.Processes {
		p.Processes[i].Offset, p.Processes[i].Drift = offset(), 400*rng.Float64()-200
	}
	for range rng.IntN(8) {
		p.Faults = append(p.Faults, faultPlan{
			Kind: faultClock, At: time.Duration(rng.Int64N(int64(p.Length))), Process: pick(rng, p.Processes).Name, To: offset(),
		})
	}
}

// controlStore is the catalog of a recovery where only the logs were lost.
const controlStore = "control store"

// drawLostDisks loses the metadata in a share of the seeds, or always, once or twice.
func (p *plan) drawLostDisks(rng *rand.Rand, always bool) {
	if rng.IntN(4) != 0 && !always {
		return
	}
	metalog, control := p.with(app.Metalog)[0], p.with(app.ControlPlane)[0]
	at := time.Duration(0)
	for range 1 + rng.IntN(4)/3 {
		at += time.Duration(rng.Int64N(int64(p.Length)))
		// What an agent has spooled on a disk goes with it, and is not what a recovery promises.
		keep := slices.Contains(p.with(app.Scribed), metalog) || rng.IntN(2) == 0
		sources := slices.Concat([]string{""}, p.with(app.Batcher), p.with(app.ReadStream))
		if keep || control != metalog {
			sources = append(sources, controlStore, controlStore)
		}
		f := faultPlan{Kind: faultLostDisk, At: at, Process: metalog, Other: pick(rng, sources), Keep: keep}
		f.For = time.Duration(rng.Int64N(int64(pick(rng, []time.Duration{time.Second, 30 * time.Second}))))
		for range rng.IntN(4) {
			cut := recoveryCut{Power: rng.IntN(2) == 0, Step: pick(rng, []string{"", "", "logs", "finish logs", "categories", "findings", "rename", "clean"})}
			if cut.Step == "" {
				cut.After = time.Duration(rng.Int64N(int64(pick(rng, []time.Duration{50 * time.Millisecond, time.Second, 10 * time.Second}))))
			}
			f.Cuts = append(f.Cuts, cut)
		}
		p.Faults = append(p.Faults, f)
	}
}

// drawLostControl loses the control store alone in an eighth of the seeds, or always.
func (p *plan) drawLostControl(rng *rand.Rand, always bool) {
	if rng.IntN(8) != 0 && !always {
		return
	}
	control := p.with(app.ControlPlane)[0]
	sources := slices.DeleteFunc(slices.Concat([]string{""}, p.with(app.Batcher), p.with(app.ReadStream)), func(name string) bool { return name == control })
	p.Faults = append(p.Faults, faultPlan{
		Kind: faultLostControl, At: time.Duration(rng.Int64N(int64(p.Length))), For: time.Duration(rng.Int64N(int64(30 * time.Second))),
		Process: control, Other: pick(rng, sources),
	})
}

// String describes the plan in a few lines.
func (p *plan) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %v of faults, far store %v, %d processes, clocks differ %v, by an hour %v\n", p.Seed, p.Length, p.Far, len(p.Processes), p.Clocks, p.Hour)
	for _, x := range p.Processes {
		if p.Clocks {
			fmt.Fprintf(&b, "  clock of %s: %v ahead, too fast by %.0f ppm\n", x.Name, x.Offset, x.Drift)
		}
	}
	for _, c := range p.Categories {
		if c.Keys != nil {
			fmt.Fprintf(&b, "  keys of %s: %+v\n", c.Name, *c.Keys)
		}
		fmt.Fprintf(&b, "  %+v\n", c)
	}
	for _, w := range p.Writers {
		fmt.Fprintf(&b, "  %+v\n", w)
	}
	for _, r := range p.Readers {
		fmt.Fprintf(&b, "  %+v\n", r)
	}
	for _, g := range p.Groups {
		fmt.Fprintf(&b, "  %+v\n", g)
	}
	for _, q := range p.Queries {
		fmt.Fprintf(&b, "  %+v\n", q)
	}
	for _, k := range p.KeyReaders {
		fmt.Fprintf(&b, "  %+v\n", k)
	}
	for _, f := range p.Faults {
		fmt.Fprintf(&b, "  %v\n", f)
	}
	return b.String()
}
