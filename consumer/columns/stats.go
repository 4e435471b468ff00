package columns

import (
	"cmp"
	"fmt"
	"strings"

	"scribe/columnar/expr"
	"scribe/columnar/schema"
	"scribe/columnar/value"
	"scribe/internal/base/units"
)

// Stats counts what a query has read so far.
type Stats struct {
	// Pointers is the number of pointers read so far. The stream left out Skipped of them, since what it knows of their payloads
	// excludes a match; they covered SkippedMessages and SkippedBytes (of decoded payload).
	Pointers, Skipped, SkippedMessages, SkippedBytes uint64
	// Payloads were fetched, Views of them as rows that a read proxy had selected: ExactViews contained only this query's rows,
	// ReusedViews had been made for another query before. The other payloads were made into rows here; ViewsRefused of them
	// because no view was available.
	Payloads, Views, ExactViews, ReusedViews, ViewsRefused uint64
	// FetchedBytes were received over the network.
	FetchedBytes uint64
	// RowsRead were in the payloads. RowsReceived of them were received or made here, RowsMatched satisfy WHERE, and RowsOut are
	// the rows of the answer.
	RowsRead, RowsReceived, RowsMatched, RowsOut uint64
	// BytesOut is the size of the answer as Arrow batches.
	BytesOut uint64
	// RowsRejected were left out because a value did not fit and the category rejects such rows. RowsBad could not be read, and
	// ValuesBad did not fit their column, among the rows and values that were evaluated.
	RowsRejected, RowsBad, ValuesBad uint64
	// Errors are values that could not be computed, and are null: for example a division by zero, or a text that is not a number.
	Errors uint64
	// Groups is the number of groups.
	Groups uint64
	// Gaps were yielded; Retries and Reconnects are as in [consumer.Stats].
	Gaps, Retries, Reconnects uint64
}

// Stats returns the counters.
func (q *Query) Stats() Stats {
	general, e, n := q.consumer.Stats(), &q.stats, &q.Counts
	e.Lock()
	defer e.Unlock()
	s := Stats{ //nolint:gosec // counts are not negative
		Pointers: n.Pointers.Load(), Skipped: n.SkippedPointers.Load(), SkippedMessages: n.SkippedMessages.Load(), SkippedBytes: n.SkippedBytes.Load(),
		Payloads: e.views + e.raw, Views: e.views, ExactViews: e.exact, ReusedViews: e.reused,
		ViewsRefused: n.ViewsRefused.Load(), FetchedBytes: general.FetchedBytes,
		RowsRead: uint64(e.Rows), RowsReceived: e.received, RowsMatched: uint64(e.Kept),
		RowsRejected: uint64(e.Rejected), RowsBad: uint64(e.BadRows), ValuesBad: uint64(e.BadValues), Errors: uint64(e.Errors),
		Gaps: general.Gaps, Retries: general.Retries, Reconnects: general.Reconnects,
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.RowsOut, s.BytesOut = uint64(q.mu.rows), uint64(q.mu.bytes)                       //nolint:gosec // not negative
	s.Groups, s.Errors = uint64(q.mu.groups), s.Errors+uint64(max(q.mu.groupErrors, 0)) //nolint:gosec // not negative
	return s
}

// Explanation describes how a query is answered.
type Explanation struct {
	// Query is its canonical text, Category the category that it reads.
	Query, Category string
	// SchemaVersion is the version of the category's schema that it is bound to; 0 means that the category has none.
	SchemaVersion uint32
	// Reads are the columns that are read, with their types, Answers the columns of the answer.
	Reads, Answers []string
	// Pushed is the part of WHERE that read proxies and the stream evaluate, Here the terms that only the reader can. "" means
	// none.
	Pushed, Here string
	// Grouped: rows are grouped here, as DISTINCT does, too. Sorted: rows without groups are sorted here. Limit is -1 without one.
	Grouped, Sorted bool
	Limit           int64
	// EarlyStop: evaluation of a row stops as soon as the row can't match.
	EarlyStop bool
	// Local: no views are requested.
	Local bool
	// Shards are the logical shards that are read, of OfShards; none = all. They are known once the first iteration has begun.
	Shards   []uint32
	OfShards uint32
	Stats    Stats
}

// Explain returns how the query is answered, with its statistics so far.
func (q *Query) Explain() Explanation {
	p := q.plan
	x := Explanation{
		Query: q.text, Category: p.Category, SchemaVersion: p.Schema.Version, Grouped: p.Group != nil, Sorted: len(p.Order) > 0, Limit: p.Limit,
		EarlyStop: p.EarlyStop, Local: q.options.local, Stats: q.Stats(),
	}
	for i := range p.Columns {
		x.Reads = append(x.Reads, p.Columns[i].Name+" "+p.Columns[i].Type.String())
	}
	for _, f := range q.Schema().Fields() {
		x.Answers = append(x.Answers, f.Name+" "+value.TypeName(f.Type))
	}
	if where := q.finisher.Pushdown(); where != nil {
		x.Pushed = expr.Text(where)
	}
	if rest := q.finisher.Rest(); rest != nil {
		x.Here = expr.Text(rest)
	}
	x.Shards, x.OfShards = q.consumer.ShardsRead()
	return x
}

// shardText lists shards, the first of many.
func shardText(shards []uint32) string {
	if len(shards) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, n := range shards {
		if i == maxShardsShown {
			fmt.Fprintf(&b, " and %d more", len(shards)-i)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n)
	}
	return b.String()
}

// maxShardsShown bounds the shards that an explanation lists.
const maxShardsShown = 20

// String returns the explanation as lines of text.
func (x *Explanation) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("query", "%s", x.Query)
	if x.SchemaVersion > 0 {
		line("category", "%s, schema version %d", x.Category, x.SchemaVersion)
	} else {
		line("category", "%s, without a schema", x.Category)
	}
	line("reads", "%s", cmp.Or(strings.Join(x.Reads, ", "), "-"))
	line("pushed", "%s", cmp.Or(x.Pushed, "-"))
	if x.Here != "" {
		line("here", "%s (%s, %s and %s are known to readers alone)", x.Here, schema.ColumnPersisted, schema.ColumnShard, schema.ColumnOffset)
	}
	if x.OfShards > 0 {
		line("shards", "%s of %d, by how the category places messages", shardText(x.Shards), x.OfShards)
	}
	line("answers", "%s", cmp.Or(strings.Join(x.Answers, ", "), "-"))
	s := &x.Stats
	line("pointers", "%d, %d of them skipped unseen (%d messages, %s)", s.Pointers, s.Skipped, s.SkippedMessages, units.About(s.SkippedBytes))
	if x.Local {
		line("payloads", "%d, made into rows here", s.Payloads)
	} else {
		line("payloads", "%d, %d as views of read proxies (%d for this query alone, %d made before), %d made into rows here", s.Payloads, s.Views, s.ExactViews, s.ReusedViews, s.Payloads-s.Views)
	}
	line("fetched", "%s", units.About(s.FetchedBytes))
	line("rows", "%d read, %d received, %d matched, %d in the answer", s.RowsRead, s.RowsReceived, s.RowsMatched, s.RowsOut)
	if x.Grouped {
		line("groups", "%d", s.Groups)
	}
	if x.Sorted {
		line("sorted", "here, at the end")
	}
	if s.RowsRejected+s.RowsBad+s.ValuesBad+s.Errors > 0 {
		line("trouble", "%d rows rejected, %d unreadable, %d values that do not fit, %d that could not be computed", s.RowsRejected, s.RowsBad, s.ValuesBad, s.Errors)
	}
	return b.String()
}
