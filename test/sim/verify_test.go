package sim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"scribe/cmd/scribe/app"
	"scribe/internal/format/pointer"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
	"scribe/test/history"
	"scribe/test/program"
)

// verifyReaders looks at what everybody has read of a healed cell that nobody writes to.
func (w *world) verifyReaders(healed time.Time) {
	// Processes are asked one after the other: a message may pass from one that was not asked yet to one that was, twice at most.
	empty := 0
	if !w.await("no process holds anything", healed, func() bool {
		if empty++; !w.holdNothing() {
			empty = 0
		}
		return empty == 3
	}) {
		return
	}
	if w.plan.Clocks {
		time.Sleep(w.plan.maxSkew()) // if the engine's clock was set back, what is merged by time comes when it has caught up
	}
	readings := w.readAll()
	if readings == nil {
		return
	}
	w.verifyFollowers(healed, readings)
	w.verifyGroups(healed, readings)
	w.verifyKeys(healed, readings)
	w.verifyCounts(readings)
	if w.plan.Delivery {
		w.verifyDelivery(healed, readings)
	}
}

// swept is the quiet time after which retention has removed everything that it has to: it lists blobs in slices of 17.5 minutes.
const swept = 25 * time.Minute

// verifyStores looks at the logs and the blobs of a cell that nobody uses, before and after a quiet time.
func (w *world) verifyStores() {
	metalogs := w.plan.with(app.Metalog)
	before := w.readLogs(metalogs[0])
	time.Sleep(w.plan.Quiet)
	after := w.readLogs(metalogs[0])
	if before == nil || after == nil {
		return
	}
	for _, other := range metalogs[1:] {
		if l := w.readLogs(other); l != nil {
			w.verifyLogs(after, l)
		}
	}
	w.verifyLogs(before, after)
	w.verifyBlobs(after)
}

// hops are how roles account for what they took in: the sum of what was accepted is the sum of outcomes and of what is held.
var hops = []struct {
	prefix             string
	accepted, outcomes []string
	held               string
	zero               []string
}{
	{
		"scribe_writeproxy_", []string{"received_%s_total"}, []string{"acknowledged_%s_total", "failed_%s_total"}, "in_flight_%s", []string{"memory_bytes"},
	}, {
		"scribe_batcher_",
		[]string{"accepted_%s_total"},
		[]string{"committed_%s_total", "duplicate_%s_total", "failed_%s_total"},
		"buffered_%s",
		[]string{"memory_bytes", "flushes_in_flight", "flushes_waiting"},
	}, {
		"scribe_scribed_",
		[]string{"accepted_%s_total", "recovered_%s_total"},
		[]string{"forwarded_%s_total", "failed_%s_total", "dropped_%s_total"},
		"buffered_%s",
		[]string{"memory_bytes"},
	},
}

// holdNothing scrapes every process, checks its accounts, and reports whether all hold nothing any more.
func (w *world) holdNothing() bool {
	c := w.newClient()
	defer c.transport.Close()
	held := 0.0
	for _, p := range w.processes {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		m, err := program.ScrapeWith(ctx, c.transport.HTTPClient(), p.url())
		cancel()
		if err != nil {
			w.note("scrape of %s: %v", p.plan.Name, err)
			return false
		}
		held += w.checkAccounts(p.plan.Name, m)
		w.followed.Store(max(w.followed.Load(), int64(m.Sum("scribe_batcher_followed_frames_total"))))
		w.checkBounds(p.plan.Name, m)
	}
	return held == 0
}

func (w *world) checkAccounts(name string, m program.Metrics) (held float64) {
	for _, h := range hops {
		for _, unit := range []string{"frames", "bytes", "messages"} {
			sum := func(names []string) (total float64) {
				for _, n := range names {
					total += m.Sum(h.prefix + fmt.Sprintf(n, unit))
				}
				return total
			}
			in, out, kept := sum(h.accepted), sum(h.outcomes), sum([]string{h.held})
			if in != out+kept || kept < 0 {
				w.violation("invariant 11: %s: %s accepted %.0f %s, %.0f have an outcome, %.0f are held", name, h.prefix, in, unit, out, kept)
			}
			held += kept
		}
		for _, z := range h.zero {
			held += m.Sum(h.prefix + z)
		}
	}
	return held
}

// checkBounds compares gauges of memory with their limits.
func (w *world) checkBounds(name string, m program.Metrics) {
	for _, g := range [][2]string{
		{"scribe_batcher_memory_peak_bytes", "scribe_batcher_memory_limit_bytes"},
		{"scribe_readproxy_cache_bytes", "scribe_readproxy_cache_limit_bytes"},
	} {
		if held, limit := m.Sum(g[0]), m.Sum(g[1]); held > limit {
			w.violation("invariant 16: %s: %s is %.0f, the limit is %.0f", name, g[0], held, limit)
		}
	}
}

// readAll reads every category through every reader, and compares the readings with the history. The readings of the last reader are
// returned, nil if one failed.
func (w *world) readAll() map[string]*history.Reading {
	var all map[string]*history.Reading
	for _, via := range w.plan.with(app.ReadStream) {
		all = map[string]*history.Reading{}
		for _, c := range w.plan.Categories {
			ctx, cancel := context.WithTimeout(context.Background(), liveness)
			r, err := w.read(ctx, c.Name, via)
			cancel()
			if err != nil {
				w.violation("read %s through %s: %v", c.Name, via, err)
				return nil
			}
			if all[c.Name] = r; c.Retention > 0 {
				w.checkKept(&c, r, via)
				continue
			}
			lasting := history.Spooled
			if c.Delivery == "best_effort" {
				lasting = history.Committed
			}
			report := w.history.Check(r, lasting)
			if (c.Delivery != "exactly_once" || c.Keys != nil) && w.mixedClocks() {
				report.Violations = slices.DeleteFunc(report.Violations, func(v *history.Violation) bool { return v.Kind == history.Reordered })
			}
			if err := report.Err(); err != nil {
				w.violation("read %s through %s:\n%v", c.Name, via, err)
			}
			w.note("%s through %s: %d written, %d acknowledged, %d failed; %d read, %d of them copies, %d of a weak level lost",
				c.Name, via, report.Written, report.Acked, report.Failed, report.Seen, report.Copies, report.WeakLost)
		}
	}
	return all
}

// mixedClocks reports whether persisted times are those of several batchers' clocks, which differ: after a recovery. Then they say nothing
// of the order of messages in different logs.
func (w *world) mixedClocks() bool { return w.plan.Clocks && w.recovery.count.Load() > 0 }

// checkKept: of a category that forgets, a reading has at least what was committed within its retention.
func (w *world) checkKept(c *categoryPlan, r *history.Reading, via string) {
	there := map[history.ID]bool{}
	for _, id := range r.IDs() {
		there[id] = true
	}
	oldest := time.Now().Add(-c.Retention)
	if w.plan.Clocks {
		oldest = oldest.Add(w.plan.maxSkew())
	}
	w.mu.Lock()
	var lost []history.ID
	for id, began := range w.committed[c.Name] {
		if began.After(oldest) && !there[id] {
			lost = append(lost, id)
		}
	}
	w.mu.Unlock()
	if len(lost) > 0 {
		w.violation("invariant 9: %d messages of %s are lost, read through %s, %v among them: they were committed less than %v ago", len(lost), c.Name, via, lost[0], c.Retention)
	}
}

// verifyFollowers waits until every reader has everything, and checks what it got.
func (w *world) verifyFollowers(healed time.Time, readings map[string]*history.Reading) {
	strict := map[string][]*history.Trail{}
	for _, b := range w.sequenced {
		w.await(b.plan.Name+" has everything", healed, func() bool { return b.hasAll(readings[b.plan.Category]) })
	}
	for _, q := range w.queries {
		whole := readings[q.plan.Category]
		w.await(q.plan.Name+" has everything", healed, func() bool { _, lacking := q.compare(whole); return !lacking })
		if difference, _ := q.compare(whole); difference != "" {
			w.violation("%s: %s", q.plan.Name, difference)
		}
	}
	for _, f := range w.followers {
		whole := readings[f.Category]
		if !w.await(f.Name+" has everything", healed, func() bool { return w.history.Reaches(f.Trail, whole) }) {
			w.note("%s has %d messages and lacks %d", f.Name, f.Trail.Len(), w.history.CountMissing(f.Trail, w.history.Now()))
			continue
		}
		if w.category(f.Category).Retention > 0 {
			whole = nil // it is not all that ever existed
		}
		report := w.history.CheckTrail(f.Trail, whole)
		report.Violations = slices.DeleteFunc(report.Violations, func(v *history.Violation) bool {
			return f.Rebuilt() && v.Kind == history.OutOfWindow || // its windows were of other persisted times
				v.Kind == history.Reordered && w.mixedClocks()
		})
		if err := report.Err(); err != nil {
			w.violation("%s:\n%v", f.Name, err)
		}
		if f.Window == 0 && w.category(f.Category).Order != "none" && !f.Rebuilt() {
			strict[f.Category] = append(strict[f.Category], f.Trail)
		}
	}
	for category, trails := range strict {
		if err := w.history.Agree(trails...).Err(); err != nil {
			w.violation("readers of %s:\n%v", category, err)
		}
	}
}

func (w *world) category(name string) *categoryPlan {
	for i := range w.plan.Categories {
		if w.plan.Categories[i].Name == name {
			return &w.plan.Categories[i]
		}
	}
	panic("no category " + name)
}

// verifyGroups waits until the members of each group have got every message.
func (w *world) verifyGroups(healed time.Time, readings map[string]*history.Reading) {
	for _, g := range w.groups {
		ids := readings[g.plan.Category].IDs()
		w.await(g.plan.Name+" has everything", healed, func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return !slices.ContainsFunc(ids, func(id history.ID) bool { return !g.seen[id] })
		})
	}
}

// verifyCounts asks the SQL servers how many messages there are.
func (w *world) verifyCounts(readings map[string]*history.Reading) {
	c := w.newClient()
	defer c.transport.Close()
	for _, via := range w.plan.with(app.SQLServer) {
		for _, x := range w.plan.Categories {
			if x.Retention > 0 {
				continue
			}
			n, err := w.queryCount(c, via, x.Name)
			if err != nil {
				w.violation("query %s at %s: %v", x.Name, via, err)
				continue
			}
			if n != readings[x.Name].Len() {
				w.violation("SQL at %s counts %d messages of %s, a reader got %d", via, n, x.Name, readings[x.Name].Len())
			}
		}
	}
}

func (w *world) queryCount(c *client, via, category string) (int, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	query := url.Values{"sql": {"SELECT count(*) AS n FROM " + category}, "format": {"csv"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.process(via).url()+"/v1/query?"+query.Encode(), http.NoBody)
	if err != nil {
		return 0, err
	}
	res, err := c.transport.HTTPClient().Do(req)
	if err != nil {
		return 0, err
	}
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", res.Status, err)
	}
	if res.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s: %s", res.Status, text)
	}
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	return strconv.Atoi(strings.TrimSpace(last))
}

// logs are the entries of every log of the cell.
type logs struct {
	pointers map[string]string // "shard LSN" -> encoded
	blobs    map[string]bool   // keys that pointers name
	entries  map[string]int    // by category
}

// readLogs reads every log at a process; nil if it can't.
func (w *world) readLogs(at string) *logs {
	c := w.newClient()
	defer c.transport.Close()
	log := remote.NewClient(rpc.NewMetalogClient(c.transport, w.process(at).url()))
	defer func() { _ = log.Close() }()
	control := rpc.NewControlClient(c.transport, w.first(app.ControlPlane).url())
	ctx, cancel := context.WithTimeout(context.Background(), liveness)
	defer cancel()
	l := &logs{pointers: map[string]string{}, blobs: map[string]bool{}, entries: map[string]int{}}
	for _, x := range w.storedCategories() {
		res, err := control.GetCategory(ctx, &scribev1.GetCategoryRequest{Name: x.Name})
		if err != nil {
			w.violation("category %s: %v", x.Name, err)
			return nil
		}
		states, err := log.Shards(ctx, res.GetCategory().GetId())
		if err != nil {
			w.violation("shards of %s: %v", x.Name, err)
			return nil
		}
		for _, s := range states {
			if sequenced.Reserved(s.Shard) && !sequenced.IsLog(s.Shard) {
				continue // the sequencer's own notes, which it trims itself
			}
			l.entries[x.Name] += int(s.NextLSN - s.FirstLSN) //nolint:gosec // a few
			if err := l.readShard(ctx, log, s, x.Retention > 0); err != nil {
				w.violation("log %v: %v", s.Shard, err)
				return nil
			}
		}
	}
	return l
}

// readShard reads a log, whose oldest entries may go meanwhile if the category forgets.
func (l *logs) readShard(ctx context.Context, log metalog.Log, s metalog.State, forgets bool) error {
	last := int64(0)
	for at := s.FirstLSN; at < s.NextLSN; {
		entries, err := log.Read(ctx, s.Shard, at, 1000, 1<<20)
		if trimmed := new(metalog.TrimmedError); forgets && errors.As(err, &trimmed) {
			at = trimmed.First
			continue
		}
		if err != nil {
			return err
		}
		if len(entries) == 0 {
			return fmt.Errorf("no entry at LSN %d, the next is %d", at, s.NextLSN)
		}
		for _, e := range entries {
			if e.LSN != at {
				return fmt.Errorf("LSN %d where %d is due", e.LSN, at)
			}
			l.pointers[fmt.Sprintf("%v %d", s.Shard, e.LSN)] = string(e.Data)
			if e.Time < last {
				return fmt.Errorf("LSN %d: persisted time %d is below %d, that of the entry before", at, e.Time, last)
			}
			if !sequenced.Reserved(s.Shard) { // a sequenced log refers to others
				if err := l.addBlob(e); err != nil {
					return fmt.Errorf("LSN %d: %w", at, err)
				}
			}
			at, last = at+1, e.Time
		}
	}
	return nil
}

// verifyLogs: a log never changes, and nothing is appended when nobody writes.
func (w *world) verifyLogs(before, after *logs) {
	for at, data := range after.pointers {
		if old, ok := before.pointers[at]; !ok || old != data {
			w.violation("invariant 3: the entry at %s changed, or is new, while nobody wrote", at)
		}
	}
	for _, x := range w.storedCategories() {
		old, left := before.entries[x.Name], after.entries[x.Name]
		switch {
		case x.Retention == 0 && left != old:
			w.violation("invariant 9: %s had %d entries and has %d, and nothing of it expires", x.Name, old, left)
		case x.Retention > 0 && left > 0 && w.plan.Quiet >= swept:
			w.violation("invariant 9: %s has %d entries, %v after the last that was written, and keeps them for %v", x.Name, left, w.plan.Quiet, x.Retention)
		}
	}
}

// verifyBlobs: what pointers name is there, and after a quiet time nothing else is.
func (w *world) verifyBlobs(l *logs) {
	stored := map[string]int64{}
	for info, err := range w.store.blobs.List(context.Background(), "blobs/") {
		if err != nil {
			w.violation("list blobs: %v", err)
			return
		}
		stored[info.Key] = info.Size
	}
	for key := range l.blobs {
		if _, ok := stored[key]; !ok {
			w.violation("invariant 8: pointers name blob %s, which is not there", key)
		}
	}
	orphans, bytes := 0, int64(0)
	for key, size := range stored {
		if !l.blobs[key] {
			orphans++
			bytes += size
		}
	}
	if orphans > 0 && w.plan.Quiet >= swept {
		w.violation("invariant 10: %d blobs with %d bytes are orphans after %v of quiet", orphans, bytes, w.plan.Quiet)
	}
	w.note("%d blobs are stored, pointers name %d, %d entries", len(stored), len(l.blobs), len(l.pointers))
}

// addBlob notes the blob that an entry names.
func (l *logs) addBlob(e metalog.Entry) error {
	p, err := pointer.Decode(e.Data)
	if err != nil {
		return err
	}
	l.blobs[p.Key()] = true
	return nil
}
