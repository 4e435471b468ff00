package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"scribe/internal/base/backoff"
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
	// Seed says that a node's copy of the logs is removed in the end, so that it has to get another. Of nodes alone.
	Seed bool
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
	// Latency of an append, and of a question for the end of a log that each replica answers by itself, ten times a second: it has to know that
	// nobody leads anew, and to have what was committed before.
	Latency *Latency `json:"latency"`
	Barrier *Latency `json:"barrier_latency"`
	// Visible is the time from the begin of an append until a replica that follows has told a subscriber of it; nil where none follows.
	Visible *Latency `json:"visible_latency,omitempty"`
	// Lag is the lag of each replica that follows, ten times a second; nil where none does.
	Lag *LagSamples `json:"lag,omitempty"`
	// CPUMicros is the processor time of all processes of the cell for a pointer, JournalBytes what it takes in an entry of the journal.
	CPUMicros    float64 `json:"cpu_us_per_pointer"`
	JournalBytes float64 `json:"journal_bytes_per_pointer,omitempty"`
	// At the end of the time that was measured: memory of all processes of the cell, and the file of the largest member of etcd.
	ResidentMB float64 `json:"resident_mb"`
	EtcdMB     float64 `json:"etcd_mb,omitempty"`
	// SeedSeconds is how long a node without its copy of the logs took from its start until it had all that others had then, and SeedMB what
	// that takes on its disk. Of the last report.
	SeedSeconds float64 `json:"seed_seconds,omitempty"`
	SeedMB      float64 `json:"seed_mb,omitempty"`
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
	if o.Seed && len(fleet.nodes) > 1 {
		last := &reports[len(reports)-1]
		last.SeedSeconds, last.SeedMB, err = fleet.seedNode(ctx)
	}
	return reports, err
}

// seedNode takes its copy of the logs from a node that does not lead, and measures how long it is without one.
func (f *Fleet) seedNode(ctx context.Context) (seconds, megabytes float64, err error) {
	leader, err := f.awaitSettled(ctx)
	if err != nil {
		return 0, 0, err
	}
	i := (leader + 1) % len(f.nodes)
	copyOf := filepath.Join(f.dir, fmt.Sprintf("n%d", i+1), "metalog")
	if err := errors.Join(f.Stop(i), os.RemoveAll(copyOf)); err != nil {
		return 0, 0, err
	}
	res, err := rpc.NewNodeClient(rpc.Default(), f.URL(leader)).DescribeNode(ctx, &scribev1.DescribeNodeRequest{})
	if err != nil {
		return 0, 0, err
	}
	begin := time.Now()
	if err := f.Restart(ctx, i); err != nil {
		return 0, 0, err
	}
	for has := uint64(0); has < res.GetNode().GetMetalog().GetNewest(); {
		if err := backoff.Sleep(ctx, look/10); err != nil {
			return 0, 0, err
		}
		own, err := rpc.NewNodeClient(rpc.Default(), f.URL(i)).DescribeNode(ctx, &scribev1.DescribeNodeRequest{})
		if err != nil {
			return 0, 0, err
		}
		has = own.GetNode().GetMetalog().GetApplied()
	}
	seconds = time.Since(begin).Seconds()
	size, err := sizeOfFolder(copyOf)
	return seconds, float64(size) / 1e6, err
}

// sizeOfFolder returns the bytes of the files in a folder that is being written to.
func sizeOfFolder(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				n += info.Size()
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return n, err
}

// measure lets writers write for a time, and tells what came of it.
func (r *metalogRun) measure(ctx context.Context, d time.Duration, writers []func(context.Context) error) (report MetalogReport, err error) {
	report.Engine, report.Group = "embedded", r.Group
	if !r.fleet.alone {
		report.Engine = fmt.Sprintf("nodes=%d", len(r.fleet.nodes))
	}
	r.appends.Store(0)
	r.takeLatency()
	r.barriers.takeLatency()
	r.visible.takeLatency()
	r.lags.takeSamples()
	fleet := r.fleet
	before, err := fleet.scrape(ctx)
	if err != nil {
		return report, err
	}
	begin := time.Now()
	probes := []func(context.Context) error{r.askReplicas}
	if len(r.fleet.nodes) > 1 {
		probes = append(probes, r.probeFollowers, r.sampleLag)
	}
	if err := runFor(ctx, d, append(slices.Clone(writers), probes...)...); err != nil {
		return report, err
	}
	seconds := time.Since(begin).Seconds()
	after, err := fleet.scrape(ctx)
	if err != nil {
		return report, err
	}
	grown, appends := after.growthSince(before), float64(r.appends.Load())
	pointers := appends * float64(r.Group)
	report.Appends, report.Pointers, report.Commits, report.Latency = appends/seconds, pointers/seconds, grown["scribe_metalog_commit_seconds_count"]/seconds, r.takeLatency()
	report.Barrier, report.Visible, report.Lag = r.barriers.takeLatency(), r.visible.takeLatency(), r.lags.takeSamples()
	report.CPUMicros = grown["process_cpu_seconds_total"] * 1e6 / max(pointers, 1)
	report.JournalBytes = grown["scribe_metalog_journal_entry_bytes_total"] / max(pointers, 1)
	report.ResidentMB = after["process_resident_memory_bytes"] / 1e6
	if !fleet.alone {
		report.EtcdMB, err = fleet.largestEtcd(ctx)
	}
	return report, err
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

	barriers latencySamples
	visible  latencySamples
	lags     lagSamples
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

// askReplicas asks each process for the end of a log until ctx ends.
func (r *metalogRun) askReplicas(ctx context.Context) error {
	shard := []record.ShardID{record.MakeShardID(r.category, 0, 1)}
	var replicas []metalog.Log
	for _, url := range r.fleet.URLs() {
		replicas = append(replicas, remote.NewClient(rpc.NewMetalogClient(rpc.Default(), url)))
	}
	asking := context.WithoutCancel(ctx)
	var errs []error
	for at := 0; len(errs) == 0 && backoff.Sleep(ctx, askEvery/time.Duration(len(replicas))) == nil; at++ {
		begin := time.Now()
		if _, err := replicas[at%len(replicas)].Tail(asking, shard); err != nil {
			errs = append(errs, fmt.Errorf("ask replica %d for the end of a log: %w", at%len(replicas)+1, err))
		}
		r.barriers.addSample(time.Since(begin))
	}
	for _, replica := range replicas {
		errs = append(errs, replica.Close())
	}
	return errors.Join(errs...)
}

// askEvery is how often each replica is asked.
const askEvery = 100 * time.Millisecond

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
	const header = "engine\tgroup\tappends/s\tcommits/s\tpointers/s\tp50 ms\tp99\tmax\tbarrier p50\tp99\tvisible p50\tp99\tCPU us/pointer\tjournal B/pointer\tmemory MB\tetcd MB\tlag p50\tp99\tmax\t"
	err := printTable(w, header, reports, func(w io.Writer, r *MetalogReport) {
		l, b, v, lag := cmp.Or(r.Latency, &Latency{}), cmp.Or(r.Barrier, &Latency{}), cmp.Or(r.Visible, &Latency{}), cmp.Or(r.Lag, &LagSamples{})
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.1f\t%.0f\t%.0f\t%d\t%d\t%d\t\n",
			r.Engine, r.Group, r.Appends, r.Commits, r.Pointers, l.P50, l.P99, l.Max, b.P50, b.P99, v.P50, v.P99, r.CPUMicros, r.JournalBytes, r.ResidentMB, r.EtcdMB, lag.P50, lag.P99, lag.Max)
	})
	for _, r := range reports {
		if r.SeedSeconds > 0 && err == nil {
			_, err = fmt.Fprintf(w, "%s, groups of %d: a node without its logs had them again %.1f s after its start, %.0f MB\n", r.Engine, r.Group, r.SeedSeconds, r.SeedMB)
		}
	}
	return err
}
