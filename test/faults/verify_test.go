package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"scribe/consumer"
	"scribe/consumer/columns"
	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/test/history"
	"scribe/test/program"
)

// verifier proves after each fault that what is promised holds.
type verifier struct {
	c *cell
	w *workload
	// pointers are those of the last look, by category: a log never changes.
	pointers map[string]map[string]string
	looks    int
	// answers is how much may be on its way from readers to consumers: what these take at a time.
	answers int64
	// others are categories of a scenario that the history knows nothing of.
	others []string
	// options are those with which some categories are read.
	options map[string][]consumer.Option
}

func newVerifier(c *cell, w *workload) *verifier {
	v := &verifier{c: c, w: w, answers: int64(len(w.categories)) * readAhead, pointers: map[string]map[string]string{}}
	if program.Secured() { // then the cell keeps a trail
		v.others = []string{record.AuditCategory}
	}
	return v
}

// readable reads every category through one reader, the other one than the last time, and compares it with the history. Writers may
// go on meanwhile.
func (v *verifier) readable(what string) {
	v.c.t.Helper()
	v.looks++
	v.readFrom(what, []string{reader1, reader2}[v.looks%2], history.Committed) // what is spooled may be on its way
}

// readFrom reads through one reader. What was acknowledged at a level, or a stronger one, must be there.
func (v *verifier) readFrom(what, reader string, level history.Level) {
	v.c.t.Helper()
	var reading sync.WaitGroup
	for _, category := range v.w.categories {
		reading.Go(func() {
			r := v.w.h.Read(category)
			if err := v.read(r, category, v.c.url(reader)); err != nil {
				v.c.t.Errorf("%s: read %s from %s: %v", what, category, reader, err)
				return
			}
			report := v.w.h.Check(r, level)
			if err := report.Err(); err != nil {
				v.c.t.Errorf("%s: read from %s:\n%v", what, reader, err)
			}
			v.c.t.Logf("%s: %s: %d written, %d acknowledged, %d failed; %d read, %d of them copies, %d acknowledged at a weak level are not there", what, category,
				report.Written, report.Acked, report.Failed, report.Seen, report.Copies, report.WeakLost)
		})
	}
	reading.Wait()
}

func (v *verifier) read(r *history.Reading, category, server string) error {
	ctx, cancel := context.WithTimeout(v.c.t.Context(), program.WaitLimit)
	defer cancel()
	options := append(slices.Clone(v.options[category]), consumer.WithStart(consumer.Earliest()), consumer.WithUntilEnd(), consumer.WithPrefetchBytes(readAhead),
		consumer.WithRequestTimeout(5*time.Second), consumer.WithBackoff(10*time.Millisecond, time.Second))
	if v.c.outside != nil {
		options = append(options, consumer.WithHTTPClient(v.c.outside.client))
	}
	reader, err := consumer.New(server, category, options...)
	if err != nil {
		return err
	}
	defer reader.Close()
	if category == catColumns {
		for batch, err := range columns.Batches(ctx, reader) {
			if err != nil {
				return err
			}
			if err := readRows(r, batch); err != nil {
				return err
			}
		}
		return nil
	}
	for m, err := range reader.Records(ctx) {
		if err != nil {
			return err
		}
		r.Record(m.Payload, m.LogicalShard, uint64(m.Shard), m.LSN, m.Index, m.Persisted.UnixMicro())
	}
	return nil
}

// line is a pointer as `scribe inspect` prints it.
type line struct {
	Category string `json:"category"`
	Shard    string `json:"shard"`
	Epoch    uint64 `json:"epoch"`
	LSN      uint64 `json:"lsn"`
	Blob     string `json:"blob"`
	Payloads *int   `json:"payloads"` // only of a blob's own line
	Messages int    `json:"messages"`
	text     string
}

// atRest looks at the cell when nobody writes: every pointer, every blob, every counter.
func (v *verifier) atRest(what string) {
	v.c.t.Helper()
	v.allEmptied(what)
	v.readFrom(what, reader1, history.Spooled)
	v.readFrom(what, reader2, history.Spooled)
	var looking sync.WaitGroup
	var stored map[string][]line
	looking.Go(func() { stored = v.blobs() })
	logs := slices.Concat(v.w.categories, v.others)
	pointers := make([][]line, len(logs))
	for i, category := range logs {
		looking.Go(func() { pointers[i] = v.inspect("log", category, "--verify", "--server", v.c.url(reader2)) })
	}
	looking.Wait()
	for i, category := range logs {
		v.unchanged(what, category, pointers[i])
	}
	all := slices.Concat(pointers...)
	v.epochs(what, all, stored)
	v.orphans(what, all, stored)
	v.balance(what, all)
	v.memory(what)
}

// inspect runs scribe inspect, which must not find anything wrong, and returns what it prints.
func (v *verifier) inspect(args ...string) []line {
	v.c.t.Helper()
	args = append([]string{"inspect"}, args...)
	r := v.c.run(args...)
	// A process that the machine held up may have lost its lease, and is joining again.
	for begun := time.Now(); r.Code == program.ExitUnavailable && time.Since(begun) < program.WaitLimit; {
		r = v.c.run(args...)
	}
	if r.Code != 0 {
		v.c.t.Errorf("invariant 8: scribe %s: exit code %d\n%s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	var all []line
	for text := range strings.Lines(string(r.Stdout)) {
		l := line{text: text}
		if err := json.Unmarshal([]byte(text), &l); err != nil {
			v.c.t.Errorf("scribe %s printed %q: %v", strings.Join(args, " "), text, err)
		}
		all = append(all, l)
	}
	return all
}

// unchanged compares the pointers of a category with those of the last look.
func (v *verifier) unchanged(what, category string, pointers []line) {
	v.c.t.Helper()
	now := map[string]string{}
	for _, l := range pointers {
		now[fmt.Sprintf("%s LSN %d", l.Shard, l.LSN)] = l.text
	}
	for place, before := range v.pointers[category] {
		if now[place] != before {
			v.c.t.Errorf("%s: invariant 3: the pointer at %s %s was\n%sand is now\n%s", what, category, place, before, now[place])
		}
	}
	v.pointers[category] = now
}

// blobs are the payloads of every blob in the store, by its key.
func (v *verifier) blobs() map[string][]line {
	v.c.t.Helper()
	stored := map[string][]line{}
	key := "" // a blob's own line stands before those of its payloads
	for _, l := range v.inspect("blob", "--quick") {
		if l.Payloads != nil {
			key = l.Blob
			stored[key] = nil
			continue
		}
		stored[key] = append(stored[key], l)
	}
	return stored
}

// epochs: in each log the writers' epochs never decrease.
func (v *verifier) epochs(what string, pointers []line, stored map[string][]line) {
	v.c.t.Helper()
	type where struct{ shard, blob string }
	epochs := map[where]uint64{}
	for blob, entries := range stored {
		for _, e := range entries {
			at := where{e.Shard, blob}
			if old, ok := epochs[at]; ok && old != e.Epoch {
				v.c.t.Errorf("%s: invariant 7: blob %s has payloads of shard %s of two epochs, %d and %d", what, blob, e.Shard, old, e.Epoch)
			}
			epochs[at] = e.Epoch
		}
	}
	last := map[string]line{}
	for _, p := range pointers {
		p.Epoch = epochs[where{p.Shard, p.Blob}]
		if p.Epoch == 0 {
			v.c.t.Errorf("%s: invariant 8: shard %s, LSN %d points to blob %s, which does not list it", what, p.Shard, p.LSN, p.Blob)
			continue
		}
		if before := last[p.Shard]; p.Epoch < before.Epoch {
			v.c.t.Errorf("%s: invariant 7: shard %s: LSN %d is of epoch %d, LSN %d before it of epoch %d", what, p.Shard, p.LSN, p.Epoch, before.LSN, before.Epoch)
		}
		last[p.Shard] = p
	}
}

// orphans: blobs that nothing points to are those of failed flushes, and of batchers that were killed.
func (v *verifier) orphans(what string, pointers []line, stored map[string][]line) {
	v.c.t.Helper()
	referenced := map[string]bool{}
	for _, p := range pointers {
		referenced[p.Blob] = true
	}
	found := 0
	for _, key := range slices.Collect(maps.Keys(stored)) {
		if !referenced[key] {
			found++
		}
	}
	bound := v.c.orphans
	for _, m := range v.c.with(partBatcher) {
		bound += v.scrape(m).Sum("scribe_batcher_orphan_blobs_total")
	}
	v.c.t.Logf("%s: %d blobs, %d of them orphans, at most %.0f are accounted for", what, len(stored), found, bound)
	if float64(found) > bound {
		v.c.t.Errorf("%s: invariant 10: %d blobs are orphans, %.0f are accounted for", what, found, bound)
	}
}

func (v *verifier) scrape(m *member) program.Metrics {
	v.c.t.Helper()
	s, err := v.c.scrape(m)
	if err != nil {
		v.c.t.Fatalf("the metrics of %s: %v", m.name, err)
	}
	return s
}

// hop is how a role accounts for what it took in: the sum of accepted = the sum of outcomes + held. Names are without
// scribe_<role>_.
type hop struct {
	prefix   string
	accepted []string
	outcomes []string
	held     string
	// zero are gauges that must go back to 0 at rest.
	zero []string
}

var hops = map[string]hop{
	partWriteProxy: {
		prefix: "scribe_writeproxy_", accepted: []string{"received_%s_total"}, outcomes: []string{"acknowledged_%s_total", "failed_%s_total"}, held: "in_flight_%s",
		zero: []string{"memory_bytes"},
	},
	partBatcher: {
		prefix: "scribe_batcher_", accepted: []string{"accepted_%s_total"}, outcomes: []string{"committed_%s_total", "duplicate_%s_total", "failed_%s_total"},
		held: "buffered_%s", zero: []string{"memory_bytes", "flushes_in_flight", "flushes_waiting"},
	},
	partAgent: {
		prefix: "scribe_scribed_", accepted: []string{"accepted_%s_total", "recovered_%s_total"}, outcomes: []string{"forwarded_%s_total", "failed_%s_total", "dropped_%s_total"},
		held: "buffered_%s", zero: []string{"memory_bytes"},
	},
}

// allEmptied waits until no process holds anything: what a writer that has crashed had sent may still be under way. Each is looked at twice, since one that is looked
// at later may have sent something to one that held nothing before, and have given up the answer.
func (v *verifier) allEmptied(what string) {
	v.c.t.Helper()
	for range 2 {
		for _, m := range v.c.members {
			v.emptied(what, m)
		}
	}
}

// emptied waits until a process holds nothing any more, for as long as it holds less and less: an agent forwards a large backlog slowly where
// others have much to do.
func (v *verifier) emptied(what string, m *member) {
	v.c.t.Helper()
	least := math.Inf(1)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; <-tick.C {
		held := v.accounts(what, m)
		switch {
		case held == 0:
			return
		case held < least:
			least, last = held, time.Now()
		case time.Since(last) > program.WaitLimit:
			v.c.t.Fatalf("%s: invariant 11: %s holds something for ever:\n%s", what, m.name, v.c.accounts())
		}
	}
}

// accounts checks one scrape of a process: accepted = outcomes + held, whenever it is looked at.
func (v *verifier) accounts(what string, m *member) (held float64) {
	v.c.t.Helper()
	s := v.scrape(m)
	for _, part := range m.parts {
		if h, ok := hops[part]; ok {
			held += v.account(what, m.name, h, s)
		}
	}
	return held
}

func (v *verifier) account(what, name string, h hop, s program.Metrics) (held float64) {
	v.c.t.Helper()
	for _, unit := range []string{"frames", "bytes", "messages"} {
		metric := func(format string) string { return h.prefix + fmt.Sprintf(format, unit) }
		in, out, kept := 0.0, 0.0, s.Sum(metric(h.held))
		for _, a := range h.accepted {
			in += s.Sum(metric(a))
		}
		for _, o := range h.outcomes {
			out += s.Sum(metric(o))
		}
		if in != out+kept || kept < 0 {
			v.c.t.Errorf("%s: invariant 11: %s accepted %.0f %s, %.0f have an outcome, %.0f are held", what, name, in, unit, out, kept)
		}
		held += kept
	}
	for _, z := range h.zero {
		held += s.Sum(h.prefix + z)
	}
	return held
}

// balance: the logs have what batchers committed.
func (v *verifier) balance(what string, pointers []line) {
	v.c.t.Helper()
	if v.c.killed > 0 {
		return // what the dead had counted is gone
	}
	var committed, unknown, logged float64
	for _, m := range v.c.with(partBatcher) {
		s := v.scrape(m)
		committed += s.Sum("scribe_batcher_committed_messages_total")
		unknown += s[`scribe_batcher_failed_messages_total{reason="unknown_outcome"}`]
	}
	for _, p := range pointers {
		logged += float64(p.Messages)
	}
	if logged < committed || logged > committed+unknown {
		v.c.t.Errorf("%s: invariant 11: the logs have %.0f messages, batchers committed %.0f, and %.0f have no known outcome", what, logged, committed, unknown)
	}
}

// memory: no process has ever had more than its bounds allow, and no gauge is over its limit.
func (v *verifier) memory(what string) {
	v.c.t.Helper()
	bounds := map[string]int64{partBatcher: 2 * batchMemory, partWriteProxy: writeMemory, partReader: readCache + v.answers, partAgent: writeMemory, metaLog: metadataCache}
	for _, m := range v.c.members {
		m.peak = max(m.peak, m.proc.PeakData())
		limit := int64(fixedMemory)
		for _, part := range m.parts {
			limit += memoryOverhead * bounds[part]
		}
		v.c.t.Logf("%s: %s had %d MiB at most, %d MiB are allowed", what, m.name, m.peak>>20, limit>>20)
		if m.peak > limit && !testsize.RaceEnabled {
			v.c.t.Errorf("%s: invariant 16: %s had %d MiB in memory, its bounds allow %d MiB", what, m.name, m.peak>>20, limit>>20)
		}
	}
	for _, m := range v.c.with(partBatcher) {
		s := v.scrape(m)
		if peak, limit := s.Sum("scribe_batcher_memory_peak_bytes"), s.Sum("scribe_batcher_memory_limit_bytes"); peak > limit || limit == 0 {
			v.c.t.Errorf("%s: invariant 16: %s was charged %.0f bytes, the limit is %.0f", what, m.name, peak, limit)
		}
	}
}
