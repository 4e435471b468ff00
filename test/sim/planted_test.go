package sim

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"scribe/internal/testkit/overlay"
)

var planted = flag.String("planted", "", `the planted faults that TestPlanted looks for: "all", or names with commas between`)

// plantedLimit is within how many seeds a planted fault must be found.
const plantedLimit = 60

// plantedFault is a fault that a developer could make. It breaks a promise of the program, and the simulator must find it.
type plantedFault struct {
	name string
	// file is relative to the repository's root. before occurs in it exactly once, and is replaced by after.
	file, before, after string
}

// plantedFaults are the faults, in the order of a message's way. The comment says what goes wrong.
var plantedFaults = []plantedFault{
	{ // a request that timed out counts as one that was not carried out
		"rpc-certain-timeout", "internal/transport/rpc/outcome.go",
		"scribev1.Reason_REASON_UNKNOWN_OUTCOME, alsoIs{cause, ctx.Err()})",
		"scribev1.Reason_REASON_NO_BACKEND, alsoIs{cause, ctx.Err()})",
	},
	{ // a frame whose first messages are stored counts as stored, as it once did
		"producer-partly-stored", "producer/outcome.go",
		"v.action, v.stored, v.cause = trim, int(next-first), ErrOutOfSequence",
		"v.action = acked",
	},
	{ // frames placed by a new layout do not wait for those placed by the old one
		"producer-forgets-barrier", "producer/placing.go",
		"ordered := p.keepsOrder() || old.keepsOrder()",
		"ordered := p.keepsOrder() && false",
	},
	{ // what is spooled is acknowledged before it is on disk
		"agent-acks-before-sync", "scribed/write.go",
		"w.finishSync(s.syncSpool(ctx), p)",
		"w.finishSync(nil, p)",
	},
	{ // frames placed by a new layout are sent beside those placed by the old one, as they once were
		"agent-mixes-layouts", "scribed/layout_check.go",
		"if k.layouts.addTag(f.sequences.placement); !k.layouts.several {",
		"if k.layouts.addTag(f.sequences.placement); k.layouts.any {",
	},
	{ // a refused frame counts as forwarded as well
		"agent-counts-twice", "scribed/send.go",
		`		if info == nil {
			s.mu.queue.counts.forwarded = s.mu.queue.counts.forwarded.Plus(f.amount())
		}`,
		"\t\ts.mu.queue.counts.forwarded = s.mu.queue.counts.forwarded.Plus(f.amount())",
	},
	{ // a backfill gives back what it claimed, and not what it reserved
		"agent-leaks-fill", "scribed/backfill.go",
		`	q.used -= f.reserved
`,
		`	if b != nil {
		q.used -= b.bytes
	}
`,
	},
	{ // the state says of records that are only claimed that they are done
		"spool-saves-claims", "scribed/spool/state.go",
		"Spans: slices.Clone(p.done)",
		"Spans: slices.Clone(p.taken)",
	},
	{ // messages that their writer did not place are in one of the first two shards
		"writeproxy-uses-two-shards", "writeproxy/place.go",
		"shard, ok := s.layout.Place(r.Key, r.Payload, &scratch)\n",
		"shard, ok := s.layout.Place(r.Key, r.Payload, &scratch)\n\t\tshard = min(shard, 1)\n",
	},
	{ // the argument is evaluated too early, and the memory of a request stays charged
		"writeproxy-leaks-charge", "writeproxy/write.go",
		"defer func() { p.writes.Release(charged) }()",
		"defer p.writes.Release(charged)",
	},
	{ // what follows a frame in flight is taken before that frame has come
		"batcher-takes-out-of-order", "batcher/order.go",
		"return at, at >= 0 && tails[at].chain != nil && tails[at].next == first",
		"return at, at >= 0 && tails[at].chain != nil",
	},
	{ // an append with an unknown outcome is acknowledged, before the pointer is there
		"batcher-acks-unknown", "batcher/commit.go",
		`		err := b.appendOnce(ctx, p)
		if err == nil {`,
		`		err := b.appendOnce(ctx, p)
		if !isDefinite(err) {`,
	},
	{ // a blob keeps the footer of an earlier place, and looks like an orphan
		"batcher-stale-footer", "batcher/flushpart.go",
		`				e.epoch, e.lsn = g.entry.Epoch, lsn
				p.stale = true
`,
		`				e.epoch, e.lsn = g.entry.Epoch, lsn
`,
	},
	{ // a watermark that passes records which are being committed
		"log-early-watermark", "storage/metalog/pebblelog/clock.go",
		"	w = c.mu.batch\n	if w == 0 {",
		"	w = 0\n	if w == 0 {",
	},
	{ // appends are acknowledged before they are on disk
		"log-skips-sync", "storage/metalog/pebblelog/engine.go",
		`	if err := e.db.ApplyNoSyncWait(b, pebble.Sync); err != nil {
		return err
	}
	return b.SyncWait()`,
		"\treturn e.db.Apply(b, pebble.NoSync)",
	},
	{ // records are trimmed before their time
		"retention-trims-early", "retention/trim_logs.go",
		"trimHorizon(now, retention, r.pins[id], r.c.cfg.PinLimit)",
		"trimHorizon(now, retention/2, r.pins[id], r.c.cfg.PinLimit)",
	},
	{ // the blob of a log's last pointer is taken for an orphan
		"retention-last-pointer", "retention/classify.go",
		"case e.LSN < st.NextLSN:",
		"case e.LSN+1 < st.NextLSN:",
	},
	{ // offsets grow by frames
		"sequencer-counts-frames", "sequencer/ledger.go",
		"after.Offset += uint64(p.Messages)",
		"after.Offset += uint64(p.Frames)",
	},
	{ // a stream that is opened again begins where the term began
		"sequencer-old-positions", "sequencer/ledger.go",
		`	maps.Copy(l.state.At, b.after.At)
`,
		"",
	},
	{ // a shard's place in the order is that of its newest record in memory, not of its oldest
		"merge-orders-by-newest", "readstream/merge/merge.go",
		"home, c.key = &m.ready, c.firstItem().order",
		"home = &m.ready",
	},
	{ // readers of a key look where its messages are written now
		"readers-forget-layouts", "internal/transport/layouts/layouts.go",
		"		shards = append(shards, l.ShardOf(value))\n",
		"",
	},
	{ // a consumer that follows a key does not look for shards that are added
		"consumer-follows-old-shards", "consumer/shards.go",
		"		s.startGoroutine(s.followLayouts)\n",
		"		_ = s.followLayouts\n",
	},
	{ // a checkpoint contains what was received and not delivered
		"consumer-saves-received", "consumer/share.go",
		"LSN: sh.live[0].lsn, Skip: sh.live[0].skip}",
		"LSN: sh.live[0].received}",
	},
	{ // a consumer resumes one message late
		"consumer-resumes-late", "consumer/consumer.go",
		"it.pos.lsn, it.pos.skip = it.LSN, it.Messages-left",
		"it.pos.lsn, it.pos.skip = it.LSN, it.Messages-left+1",
	},
	{ // a member commits what it received and did not deliver
		"group-commits-received", "consumer/share.go",
		"at := (bucket.Place{LSN: p.lsn, Skip: p.skip})",
		"at := (bucket.Place{LSN: p.received})",
	},
	{ // a member that is gone keeps its buckets
		"group-keeps-expired", "controlplane/group/coordinator.go",
		"g.RemoveMembers(findings.Silent...)",
		"g.RemoveMembers()",
	},
	{ // a commit moves the positions of other members' buckets as well
		"group-commits-for-others", "controlplane/group/store.go",
		`		for b := range k.set.Each() {
			if want := to.At(b)`,
		`		for b := range all.Each() {
			if want := to.At(b)`,
	},
	{ // what a store does not give is taken for removed by retention
		"readproxy-gives-up", "readproxy/storereader.go",
		`	case errors.Is(err, blob.ErrNotFound):
		return rpc.Errorf(scribev1.Reason_REASON_MISSING`,
		`	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrUnavailable):
		return rpc.Errorf(scribev1.Reason_REASON_TRIMMED`,
	},
	{ // categories that a watch sends as a whole do not reach the view
		"catalog-drops-reset", "internal/cell/catalog/view.go",
		`	v.index.Store(x)
	v.mu.building, v.mu.synced = nil, true
`,
		`	v.mu.building, v.mu.synced = nil, true
`,
	},
	{ // a view of one payload answers for another payload of its block
		"sql-view-key", "readproxy/block.go",
		"k.view, k.at, k.part, k.codec = view, p.Offset, p.Length, pointer.Codec(codec)",
		"k.view, k.codec = view, pointer.Codec(codec)",
	},
	{ // the control store answers before a change is on disk
		"control-skips-sync", "storage/kv/pebblekv/commit.go",
		"batch.Commit(pebble.Sync)",
		"batch.Commit(pebble.NoSync)",
	},
	{ // uncertain blobs that repeat sequences of their log are taken as committed, as they once were
		"recovery-repeats-sequences", "cmd/scribe/recovery/resolve.go",
		" || repeatsAny(known, sequences)",
		"",
	},
	{ // blobs of which their writer says that they were never committed come back
		"recovery-takes-void", "cmd/scribe/recovery/resolve.go",
		"reported = outcomeVoid",
		"reported = outcomeCommitted",
	},
	{ // recovered logs expect the last sequence of each producer once more
		"recovery-repeats-last", "cmd/scribe/recovery/build.go",
		"Next: q.Last + 1}",
		"Next: q.Last}",
	},
	{ // recovered times go back where the clock of a writer did
		"recovery-blob-times", "cmd/scribe/recovery/build.go",
		"max(l.time, min(c.blob.Time(), l.r.now), 1)",
		"max(min(c.blob.Time(), l.r.now), 1)",
	},
	{ // a claim that is adopted does not stand for older ones of its cell, as it once did not
		"retention-adopts-one", "retention/claim.go",
		"c.cell == other.cell && c.boundary >= other.boundary",
		"c == other",
	},
	{ // persisted times and watermarks go back with the clock
		"log-follows-clock", "storage/metalog/pebblelog/clock.go",
		"c.mu.last = max(c.mu.last, c.wall())",
		"c.mu.last = c.wall()",
	},
	{ // after a start on a clock that is behind, watermarks of before do not hold
		"log-forgets-bound", "storage/metalog/pebblelog/clock.go",
		"max(bound, c.wall(), 1)",
		"max(c.wall(), 1)",
	},
	{ // a replica that leads answers reads without asking whether it still does
		"replica-skips-barrier", "storage/metalog/pebblelog/barrier.go",
		"	return e.replica.passBarrier(ctx, limit)\n}",
		"	if e.replica.leads() {\n\t\treturn nil\n\t}\n\treturn e.replica.passBarrier(ctx, limit)\n}",
	},
	{ // a takeover from the newest head before everything up to it is applied
		"replica-leads-behind", "storage/metalog/pebblelog/lead.go",
		"	l, err := journal.Lead(context.WithoutCancel(r.life), r.journal, head, r.position(), journal.Options{",
		`	if newest, err := r.readHead(r.life); err == nil {
		head = newest
	}
	l, err := journal.Lead(context.WithoutCancel(r.life), r.journal, head, head.Position(), journal.Options{`,
	},
	{ // calls are answered before the journal has their changes
		"replica-acks-early", "storage/metalog/pebblelog/lead.go",
		"		return c.leading.Append(c.leadContext(), payload, times)\n",
		`		for _, q := range c.group {
			close(q.done)
		}
		c.group = c.group[:0]
		return c.leading.Append(c.leadContext(), payload, times)
`,
	},
	{ // a replica that follows skips what an entry says of producers
		"replica-skips-producers", "storage/metalog/pebblelog/replay.go",
		"	case kind == schema.KindRetired:\n",
		"	case kind == schema.KindProducer:\n\t\treturn nil\n\tcase kind == schema.KindRetired:\n",
	},
	{ // a replica that follows skips an entry now and then
		"replica-skips-entries", "storage/metalog/pebblelog/replay.go",
		"	err := schema.DecodeChanges(en.Payload, c.stageChange)\n",
		"	if at.Seq%100 == 0 {\n\t\ten.Payload = en.Payload[:1]\n\t}\n\terr := schema.DecodeChanges(en.Payload, c.stageChange)\n",
	},
	{ // the clock of a replica that takes over begins below what the one before has promised
		"replica-forgets-bound", "storage/metalog/pebblelog/clock.go",
		`	c.mu.last = max(c.mu.last, bound, c.wall())
	c.mu.newest, c.mu.bound = max(c.mu.newest, bound), bound
`,
		`	c.mu.last = max(c.mu.last, c.wall())
	c.mu.bound = bound
`,
	},
	{ // the list of a snapshot names one entry more than its files have
		"snapshot-lacks-entry", "storage/metalog/pebblelog/snapshot.go",
		"	err = s.store.Put(ctx, snapshotKey(s.e.opts.Name, list.Seq), schema.AppendSnapshot(nil, list))\n",
		"	more := list\n\tmore.Seq++\n\terr = s.store.Put(ctx, snapshotKey(s.e.opts.Name, list.Seq), schema.AppendSnapshot(nil, more))\n",
	},
	{ // the silence of a group's member is measured by a clock that may be set
		"group-expires-by-wall", "controlplane/group/coordinator.go",
		"a.liveness.Check(g, time.Now())",
		"a.liveness.Check(g, c.deps.Now().Round(0))",
	},
	{ // leases of a cell's members end by a clock that may be set
		"lease-by-wall", "controlplane/leases.go",
		"c.members.expireLeases(now)",
		"c.members.expireLeases(c.deps.Now().Round(0))",
	},
}

// plantedDraws are the kinds of faults that every seed draws that looks for a planted fault: without them it can't show.
var plantedDraws = map[string]string{
	"recovery-repeats-sequences":  faultLostDisk,
	"recovery-takes-void":         faultLostDisk,
	"recovery-repeats-last":       faultLostDisk,
	"recovery-blob-times":         faultLostDisk + "," + faultClock,
	"retention-adopts-one":        faultLostDisk,
	"producer-forgets-barrier":    faultGrow,
	"agent-mixes-layouts":         growSpooled,
	"writeproxy-uses-two-shards":  faultGrow,
	"readers-forget-layouts":      faultGrow,
	"consumer-follows-old-shards": faultGrow,
	"log-follows-clock":           faultClock,
	"log-forgets-bound":           faultClock,
	"group-expires-by-wall":       faultClock,
	"lease-by-wall":               faultClock,
	"replica-skips-barrier":       drawNodes,
	"replica-leads-behind":        drawNodes,
	"replica-acks-early":          drawNodes,
	"replica-skips-producers":     drawNodes,
	"replica-skips-entries":       drawNodes,
	"replica-forgets-bound":       drawNodes + "," + faultClock,
	"snapshot-lacks-entry":        drawNodes,
}

// root is the repository's root.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// change is what the fault replaces.
func (f *plantedFault) change() overlay.Change {
	return overlay.Change{File: f.file, Before: f.before, After: f.after}
}

// TestPlantedTexts keeps the table from rotting while the program changes.
func TestPlantedTexts(t *testing.T) {
	names := map[string]bool{}
	for _, f := range plantedFaults {
		if names[f.name] {
			t.Errorf("two faults are named %s", f.name)
		}
		names[f.name] = true
		if f.before == f.after {
			t.Errorf("%s changes nothing", f.name)
		}
		if _, err := overlay.Write(t.TempDir(), root(t), f.change()); err != nil {
			t.Errorf("%s: %v", f.name, err)
		}
	}
	for name, kinds := range plantedDraws {
		if err := checkDraws(kinds); !names[name] || err != nil {
			t.Errorf("plantedDraws of %s: a fault of that name: %v, %v", name, names[name], err)
		}
	}
}

// TestPlanted proves that the simulator finds faults: it plants each into a build of its own, and runs seeds until one fails. The seed must
// pass without the fault, or it proves nothing.
func TestPlanted(t *testing.T) {
	left := strings.Split(*planted, ",")
	var counts []int
	for i := range plantedFaults {
		f := &plantedFaults[i]
		if *planted != "all" {
			at := slices.Index(left, f.name)
			if at < 0 {
				continue
			}
			left = slices.Delete(left, at, at+1)
		}
		t.Run(f.name, func(t *testing.T) { // its folder goes with it: a binary takes some 80 MB
			binary, err := f.build(t.Context(), root(t), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			n, seed, why, err := findPlanted(t, binary, plantedDraws[f.name])
			switch {
			case err != nil:
				t.Fatal(err)
			case n == 0:
				t.Fatalf("not found in %d seeds", plantedLimit)
			}
			t.Logf("found by seed %d after %d seeds: %s", seed, n, why)
			counts = append(counts, n)
		})
	}
	if *planted != "all" && len(left) > 0 {
		t.Errorf("no faults are named %s", strings.Join(left, ", "))
	}
	if slices.Sort(counts); len(counts) > 0 {
		t.Logf("%d faults found; seeds until then: median %d, most %d", len(counts), counts[len(counts)/2], counts[len(counts)-1])
	}
}

// build compiles the tests of this package with the fault, and leaves the repository as it is.
func (f *plantedFault) build(ctx context.Context, root, dir string) (binary string, err error) {
	list, err := overlay.Write(dir, root, f.change())
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.name, err)
	}
	binary = filepath.Join(dir, "sim.test")
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", list, "-o", binary, "./test/sim") //nolint:gosec // paths of this test
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build: %w\n%s", err, out)
	}
	return binary, nil
}

// seedFailed is how TestSeeds tells of a failure. Where the first line says only who found it, the second says what.
var seedFailed = regexp.MustCompile(`seed (\d+) failed: ((?:.*:\n\s*)?.*)`)

// findPlanted runs seeds, which draw some kinds of faults in any case, until one fails that passes without the fault. It returns how many that took, 0 when none failed.
func findPlanted(t *testing.T, binary, draws string) (n int, seed uint64, why string, err error) {
	t.Helper()
	for n < plantedLimit {
		next := *firstSeed + uint64(n) //nolint:gosec // not negative
		cmd := exec.CommandContext(t.Context(), binary, "-test.run=^TestSeeds$", "-test.timeout=0", "-until-failure", "-keep="+t.TempDir(),
			fmt.Sprint("-first-seed=", next), fmt.Sprint("-seeds=", plantedLimit-n), fmt.Sprint("-minutes=", *minutes), "-draw="+draws) //nolint:gosec // built above
		out, runErr := cmd.CombinedOutput()
		found := seedFailed.FindSubmatch(out)
		if found == nil {
			if runErr != nil {
				return 0, 0, "", fmt.Errorf("%w\n%s", runErr, tailOf(string(out), 4000))
			}
			return 0, 0, "", nil
		}
		if seed, err = strconv.ParseUint(string(found[1]), 10, 64); err != nil {
			return 0, 0, "", err
		}
		n = int(seed-*firstSeed) + 1 //nolint:gosec // at most plantedLimit
		r, err := runPlan(t.Context(), t.TempDir(), drawPlan(seed, time.Duration(*minutes)*time.Minute, draws))
		without := r.failure(err)
		if without == "" {
			return n, seed, tailOf(strings.Join(strings.Fields(string(found[2])), " "), 300), nil
		}
		t.Logf("seed %d fails without a fault, too: %s", seed, tailOf(without, 300))
	}
	return 0, 0, "", nil
}
