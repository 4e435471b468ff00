package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

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
	Duration     units.Duration
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
}

// Metalog measures appends to the metadata logs of a cell, as batchers make them: over TCP.
func Metalog(ctx context.Context, fleet *Fleet, o MetalogOptions) (r MetalogReport, err error) {
	r.Engine, r.Group = "embedded", o.Group
	if !fleet.alone {
		r.Engine = fmt.Sprintf("nodes=%d", len(fleet.nodes))
	}
	log, closeLog, err := fleet.openLog()
	if err != nil {
		return r, err
	}
	defer func() { err = errors.Join(err, closeLog()) }()
	category, err := createLogs(ctx, fleet.URL(0))
	if err != nil {
		return r, err
	}
	run := &metalogRun{MetalogOptions: o, log: log, category: category}
	writers := make([]func(context.Context) error, o.Writers)
	for i := range writers {
		if writers[i], err = run.openWriter(ctx, i); err != nil {
			return r, err
		}
	}
	if err := runFor(ctx, o.Duration.Std()/5, writers...); err != nil { // before anything is measured
		return r, err
	}
	run.appends.Store(0)
	run.takeLatency()
	before, err := fleet.scrape(ctx)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	if err := runFor(ctx, o.Duration.Std(), writers...); err != nil {
		return r, err
	}
	seconds := time.Since(begin).Seconds()
	after, err := fleet.scrape(ctx)
	if err != nil {
		return r, err
	}
	grown, appends := after.growthSince(before), float64(run.appends.Load())
	pointers := appends * float64(o.Group)
	r.Appends, r.Pointers, r.Commits, r.Latency = appends/seconds, pointers/seconds, grown["scribe_metalog_commit_seconds_count"]/seconds, run.takeLatency()
	r.CPUMicros = grown["process_cpu_seconds_total"] * 1e6 / max(pointers, 1)
	r.JournalBytes = grown["scribe_metalog_journal_entry_bytes_total"] / max(pointers, 1)
	return r, nil
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

	log      metalog.Log
	category uint32
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
	var turn sync.Mutex // who runs it again waits for the run before
	return func(ctx context.Context) error {
		turn.Lock()
		defer turn.Unlock()
		for ctx.Err() == nil {
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
		}
		return nil
	}, nil
}

// MetalogTable prints reports for people.
func MetalogTable(w io.Writer, reports []MetalogReport) error {
	const header = "engine\tgroup\tappends/s\tcommits/s\tpointers/s\tp50 ms\tp99\tmax\tCPU us/pointer\tjournal B/pointer\t"
	return printTable(w, header, reports, func(w io.Writer, r *MetalogReport) {
		l := r.Latency
		if l == nil {
			l = &Latency{}
		}
		fmt.Fprintf(w, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.2f\t%.2f\t%.1f\t%.2f\t%.1f\t\n",
			r.Engine, r.Group, r.Appends, r.Commits, r.Pointers, l.P50, l.P99, l.Max, r.CPUMicros, r.JournalBytes)
	})
}
