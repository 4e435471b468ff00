package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"scribe/internal/base/units"
	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/storage/metalog"
	"scribe/storage/metalog/remote"
	"scribe/storage/metalog/replicated"
)

// MetalogOptions say what is appended to the metadata logs of a fleet.
type MetalogOptions struct {
	// Group is how many pointers an append has, over as many logs, at most maxGroupLogs.
	Group int
	// Writers append at a time, each to logs of its own.
	Writers int
	// PointerBytes is the size of a pointer, of which a quarter is random.
	PointerBytes int
	// Rate is how many pointers a second all writers append together at most; 0: as many as they can.
	Rate int
	// Keep is how many records each log keeps: older ones are trimmed, as retention does. 0: all.
	Keep     int
	Duration units.Duration
	// Every is the time that each report is of; 0: one report of all.
	Every units.Duration
}

// maxGroupLogs bounds the logs of one append.
const maxGroupLogs = 100

// MetalogReport is what a metadata engine did.
type MetalogReport struct {
	// Engine is embedded, or the number of nodes.
	Engine string `json:"engine"`
	Group  int    `json:"group"`
	// Appends, commits (groups of them that share a sync or an entry) and pointers a second.
	Appends  float64 `json:"appends_per_second"`
	Commits  float64 `json:"commits_per_second"`
	Pointers float64 `json:"pointers_per_second"`
	// Latency of an append.
	Latency *Latency `json:"latency"`
	// CPUMicros is the processor time of all processes of the cell for a pointer, JournalBytes what it takes in an entry of the journal.
	CPUMicros    float64 `json:"cpu_us_per_pointer"`
	JournalBytes float64 `json:"journal_bytes_per_pointer,omitempty"`
	// At the end of the time that was measured: memory of all processes of the cell, the file of the largest member of etcd, and the entries
	// of the journal that replicas know of and do not show yet, over all of them.
	ResidentMB float64 `json:"resident_mb"`
	EtcdMB     float64 `json:"etcd_mb,omitempty"`
	LagEntries float64 `json:"lag_entries,omitempty"`
}

// Metalog measures appends to the metadata logs of a cell, as batchers make them: over TCP. It returns a report for each time that was measured, also
// of those before an error.
func Metalog(ctx context.Context, fleet *Fleet, o MetalogOptions) (reports []MetalogReport, err error) {
	log, closeLog, err := fleet.openLog()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	category, err := createLogs(ctx, fleet.URL(0))
	if err != nil {
		return nil, err
	}
	run := &metalogRun{MetalogOptions: o, fleet: fleet, log: log, category: category, pace: rate.NewLimiter(rate.Inf, 0)}
	if o.Rate > 0 {
		run.pace = rate.NewLimiter(rate.Limit(o.Rate), o.Group)
	}
	writers := make([]func(context.Context) error, o.Writers)
	for i := range writers {
		if writers[i], err = run.openWriter(ctx, i); err != nil {
			return nil, err
		}
	}
	every := cmp.Or(o.Every.Std(), o.Duration.Std())
	if err := runFor(ctx, min(every, o.Duration.Std())/5, writers...); err != nil { // before anything is measured
		return nil, err
	}
	for left := o.Duration.Std(); left > 0; left -= every {
		r, err := run.measure(ctx, min(every, left), writers)
		if err != nil {
			return reports, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// measure lets writers write for a time, and tells what came of it.
func (run *metalogRun) measure(ctx context.Context, d time.Duration, writers []func(context.Context) error) (r MetalogReport, err error) {
	r.Engine, r.Group = "embedded", run.Group
	if !run.fleet.alone {
		r.Engine = fmt.Sprintf("nodes=%d", len(run.fleet.nodes))
	}
	run.appends.Store(0)
	run.takeLatency()
	fleet := run.fleet
	before, err := fleet.scrape(ctx)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := runFor(ctx, d, writers...); err != nil {
		return r, err
	}
	seconds := time.Since(begin).Seconds()
	after, err := fleet.scrape(ctx)
	if err != nil {
		return r, err
	}
	grown, appends := after.growthSince(before), float64(run.appends.Load())
	pointers := appends * float64(run.Group)
	r.Appends, r.Pointers, r.Commits, r.Latency = appends/seconds, pointers/seconds, grown["scribe_metalog_commit_seconds_count"]/seconds, run.takeLatency()
	r.CPUMicros = grown["process_cpu_seconds_total"] * 1e6 / max(pointers, 1)
	r.JournalBytes = grown["scribe_metalog_journal_entry_bytes_total"] / max(pointers, 1)
	r.ResidentMB, r.LagEntries = after["process_resident_memory_bytes"]/1e6, after["scribe_metalog_lag_entries"]
	if !fleet.alone {
		r.EtcdMB, err = fleet.largestEtcd(ctx)
	}
	return r, err
}

// largestEtcd returns the megabytes of the largest file of the nodes' members of etcd.
func (f *Fleet) largestEtcd(ctx context.Context) (megabytes float64, err error) {
	for _, url := range f.URLs() {
		res, err := rpc.NewNodeClient(rpc.Default(), url).DescribeNode(ctx, &scribev1.DescribeNodeRequest{})
		if err != nil {
			return 0, err
		}
		megabytes = max(megabytes, float64(res.GetNode().GetEtcd().GetBytes())/1e6)
	}
	return megabytes, nil
}

// openLog returns a client of the fleet's metadata engine.
func (f *Fleet) openLog() (log metalog.Log, closeLog func() error, err error) {
	var replicas []replicated.Replica
	for _, url := range f.URLs() {
		replicas = append(replicas, replicated.Replica{URL: url, Log: remote.NewClient(rpc.NewMetalogClient(rpc.Default(), url))})
	}
	all, err := replicated.New(replicas, replicated.Options{})
	if err != nil {
		return nil, nil, err
	}
	return all, func() error {
		errs := []error{all.Close()}
		for _, r := range replicas {
			errs = append(errs, r.Log.Close())
		}
		return errors.Join(errs...)
	}, nil
}

// scrape returns the sum of the metrics of all processes.
func (f *Fleet) scrape(ctx context.Context) (metricValues, error) {
	sum := metricValues{}
	for _, url := range f.URLs() {
		values, err := scrapeMetrics(ctx, url)
		if err != nil {
			return nil, err
		}
		for name, v := range values {
			sum[name] += v
		}
	}
	return sum, nil
}

// createLogs creates a category, so that its logs belong to somebody.
func createLogs(ctx context.Context, server string) (id uint32, err error) {
	res, err := rpc.NewControlClient(rpc.Default(), server).CreateCategory(ctx, &scribev1.CreateCategoryRequest{
		Category: &scribev1.Category{Name: fmt.Sprintf("bench-metalog-%d", time.Now().UnixNano())},
	})
	return res.GetCategory().GetId(), err
}

// metalogRun is a measurement under way.
type metalogRun struct {
	MetalogOptions
	latencySamples

	fleet    *Fleet
	log      metalog.Log
	category uint32
	pace     *rate.Limiter
	appends  atomic.Int64
}

// openWriter opens the logs of a writer, and returns what writes to them until its ctx ends. It may be used again.
func (r *metalogRun) openWriter(ctx context.Context, i int) (func(context.Context) error, error) {
	shards := make([]record.ShardID, min(r.Group, maxGroupLogs))
	for k := range shards {
		shards[k] = record.MakeShardID(r.category, uint16(k), uint16(i+1)) //nolint:gosec // both are bounded
	}
	states, err := r.log.Open(ctx, fmt.Sprintf("writer %d", i), shards)
	if err != nil {
		return nil, err
	}
	a := &metalog.Append{Shards: make([]metalog.ShardAppend, len(shards))}
	for k, st := range states {
		a.Shards[k] = metalog.ShardAppend{Shard: st.Shard, Epoch: st.Epoch}
	}
	random := rand.New(rand.NewPCG(uint64(i), 1)) //nolint:gosec // neither secret nor negative
	pointers := make([][]byte, r.Group)
	for n := range pointers {
		pointers[n] = make([]byte, r.PointerBytes)
		s := &a.Shards[n%len(shards)]
		s.Records = append(s.Records, pointers[n])
	}
	logs := writerLogs{shards: shards, added: record.LSN(r.Group / len(shards))} //nolint:gosec // not negative
	var turn sync.Mutex                                                          // who runs it again waits for the run before
	return func(ctx context.Context) error {
		turn.Lock()
		defer turn.Unlock()
		for r.pace.WaitN(ctx, r.Group) == nil && ctx.Err() == nil {
			for _, p := range pointers {
				for at := 0; at+8 <= r.PointerBytes/4; at += 8 {
					random := random.Uint64()
					for k := range 8 {
						p[at+k] = byte(random >> (8 * k))
					}
				}
			}
			begin := time.Now()
			if _, err := r.log.Append(context.WithoutCancel(ctx), a); err != nil {
				return err
			}
			r.addSample(time.Since(begin))
			r.appends.Add(1)
			if err := logs.trimBehind(context.WithoutCancel(ctx), r); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// writerLogs are the logs of a writer, all of the same length.
type writerLogs struct {
	shards               []record.ShardID
	added, next, trimmed record.LSN
}

// trimBehind counts an append, and trims all logs when they have a quarter more records than they keep.
func (l *writerLogs) trimBehind(ctx context.Context, r *metalogRun) error {
	l.next += l.added
	keep := record.LSN(r.Keep) //nolint:gosec // not negative
	if keep == 0 || l.next-l.trimmed < keep+max(keep/4, 1) {
		return nil
	}
	l.trimmed = l.next - keep
	for _, shard := range l.shards {
		if err := r.log.Trim(ctx, shard, record.FirstLSN+l.trimmed); err != nil {
			return err
		}
	}
	return nil
}

// MetalogTable prints reports for people.
func MetalogTable(w io.Writer, reports []MetalogReport) error {
	const header = "engine\tgroup\tappends/s\tcommits/s\tpointers/s\tp50 ms\tp99\tmax\tCPU us/pointer\tjournal B/pointer\tmemory MB\tetcd MB\tlag\t"
	return printTable(w, header, reports, func(w io.Writer, r *MetalogReport) {
		l := r.Latency
		if l == nil {
			l = &Latency{}
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.1f\t%.0f\t%.0f\t%.0f\t\n",
			r.Engine, r.Group, r.Appends, r.Commits, r.Pointers, l.P50, l.P99, l.Max, r.CPUMicros, r.JournalBytes, r.ResidentMB, r.EtcdMB, r.LagEntries)
	})
}
