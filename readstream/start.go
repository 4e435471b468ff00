package readstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/columnar/sql"
	"scribe/internal/format/bucket"
	"scribe/internal/format/record"
	"scribe/internal/format/sequenced"
	"scribe/internal/transport/layouts"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/readstream/merge"
	"scribe/storage/metalog"
)

// clockSkew is how far a start time may be ahead of the server's clock.
const clockSkew = time.Minute

// streamPlan is a validated StreamStart.
type streamPlan struct {
	category  string
	consumer  string
	logical   []uint32 // sorted; none = all
	at        scribev1.StartAt
	time      int64
	resume    map[record.ShardID]*scribev1.ShardPosition
	window    int64 // microseconds, or noWindow
	heartbeat time.Duration
	credits   creditBalance
	buckets   *bucket.Filter // nil = all
	// query is the reader's filter, nil = none; filter is its bound form for leaving out payloads, nil = none.
	query  *scribev1.Query
	filter *pruneFilter
	// unsequenced requests the sources of a sequenced category. sequenced: the stream reads the sequenced log; set by findShards.
	unsequenced bool
	sequenced   bool
	// knownUntil: of a shard that resume does not name, nothing persisted before this time is owed to the reader; 0 = unknown.
	knownUntil int64
}

// resumes reports whether the reader goes on where it was: what was trimmed since of shards that it did not know is a gap.
func (p *streamPlan) resumes() bool {
	return p.at == scribev1.StartAt_START_AT_EARLIEST && (len(p.resume) > 0 || p.knownUntil > 0)
}

// wantsShard reports whether the stream reads a shard.
func (p *streamPlan) wantsShard(shard record.ShardID) bool {
	if p.buckets != nil && !p.buckets.HasSome(shard) {
		return false
	}
	if p.sequenced || sequenced.Reserved(shard) {
		return p.sequenced && sequenced.IsLog(shard)
	}
	if len(p.logical) == 0 {
		return true
	}
	_, ok := slices.BinarySearch(p.logical, uint32(shard.Logical()))
	return ok
}

// requestViolations collects the violations of a request, and keeps their text short.
type requestViolations struct {
	list []string
	more int
}

func (f *requestViolations) addViolation(format string, args ...any) {
	const limit = 20
	if len(f.list) < limit {
		f.list = append(f.list, fmt.Sprintf(format, args...))
		return
	}
	f.more++
}

func (f *requestViolations) asError(reason scribev1.Reason, what string) error {
	if len(f.list) == 0 {
		return nil
	}
	text := strings.Join(f.list, "; ")
	if f.more > 0 {
		text += fmt.Sprintf("; and %d more", f.more)
	}
	return rpc.Errorf(reason, "%s: %s", what, text)
}

// newPlan checks a StreamStart as far as possible without its category. It reports every violation.
func newPlan(req *scribev1.StreamStart, now time.Time) (*streamPlan, error) {
	var f requestViolations
	p := &streamPlan{
		category: req.GetCategory(), consumer: req.GetConsumer(), at: req.GetStartAt(), time: req.GetStartTime(), unsequenced: req.GetUnsequenced(),
		knownUntil: req.GetKnownUntil(),
	}
	if err := record.ValidateCategory(p.category); err != nil {
		f.addViolation("%v", err)
	}
	if n := len(p.consumer); n > maxConsumerName {
		f.addViolation("the consumer's name has %d bytes, the limit is %d", n, maxConsumerName)
	}
	p.logical = slices.Clone(req.GetLogicalShards())
	slices.Sort(p.logical)
	for i, l := range p.logical {
		if l > record.MaxLogicalShard {
			f.addViolation("invalid logical shard %d: the highest is %d", l, record.MaxLogicalShard)
		}
		if i > 0 && l == p.logical[i-1] {
			f.addViolation("logical shard %d is named twice", l)
		}
	}
	if p.knownUntil < 0 {
		f.addViolation("known_until, %d, is before 1970", p.knownUntil)
	}
	p.setStart(req, now, &f)
	p.setResume(req, &f)
	p.window = noWindow
	if w := req.GetWindow(); w != nil {
		p.window = checkDuration(w, "window", 0, 0, &f).Microseconds()
	}
	p.heartbeat = metalog.DefaultHeartbeat
	if h := req.GetHeartbeat(); h != nil && (h.GetSeconds() != 0 || h.GetNanos() != 0) {
		p.heartbeat = checkDuration(h, "heartbeat", minHeartbeat, maxHeartbeat, &f)
	}
	p.credits.addCredits(req.GetCredits())
	p.setBuckets(req.GetBuckets(), &f)
	p.query = req.GetFilter()
	if n := len(p.query.GetText()); n > sql.MaxText {
		f.addViolation("the filter has %d bytes, the limit is %d", n, sql.MaxText)
	}
	return p, f.asError(scribev1.Reason_REASON_INVALID, "start of a stream")
}

// noWindow means that the reader uses the category's window.
const noWindow = -1

// windowIn returns the window of a stream of a category, in microseconds.
func (p *streamPlan) windowIn(c *scribev1.Category) int64 {
	switch w := c.GetOrderingWindow(); {
	case p.sequenced:
		return merge.Unbounded // one log, which has its own order
	case c.KeepsOrder():
		return 0 // the only order that does not depend on what was read when, and that keys keep over the shards of a split
	case p.window != noWindow:
		return p.window
	case w != nil:
		return max(w.AsDuration().Microseconds(), 0)
	default:
		return merge.Unbounded
	}
}

// checkDuration checks a duration. A limit of 0 means none.
func checkDuration(d *durationpb.Duration, what string, least, most time.Duration, f *requestViolations) time.Duration {
	if err := d.CheckValid(); err != nil {
		f.addViolation("invalid %s: %v", what, err)
		return least
	}
	v := d.AsDuration()
	if v < least || most > 0 && v > most {
		limit := "any length"
		if most > 0 {
			limit = most.String()
		}
		f.addViolation("invalid %s %v: want %v to %s", what, v, least, limit)
	}
	return v
}

func (p *streamPlan) setStart(req *scribev1.StreamStart, now time.Time, f *requestViolations) {
	switch p.at {
	case scribev1.StartAt_START_AT_UNSPECIFIED:
		p.at = scribev1.StartAt_START_AT_LATEST
		if len(req.GetResume()) > 0 {
			p.at = scribev1.StartAt_START_AT_EARLIEST
		}
	case scribev1.StartAt_START_AT_EARLIEST, scribev1.StartAt_START_AT_LATEST:
	case scribev1.StartAt_START_AT_TIME:
		switch limit := now.Add(clockSkew).UnixMicro(); {
		case p.time < 0:
			f.addViolation("the start time, %d, is before 1970", p.time)
		case p.time > limit:
			f.addViolation("the start time, %v, is in the future", time.UnixMicro(p.time).UTC())
		}
		return
	default:
		f.addViolation("unknown start_at %d", p.at)
	}
	if p.time != 0 {
		f.addViolation("a start time is given without START_AT_TIME")
	}
}

// setBuckets sets the buckets that a group member reads.
func (p *streamPlan) setBuckets(b *scribev1.StreamBuckets, f *requestViolations) {
	if b == nil {
		return
	}
	scheme := bucket.Scheme{Sharing: bucket.Sharing(min(b.GetSharing(), math.MaxUint8)), Buckets: b.GetBuckets()}
	if err := scheme.Validate(); err != nil {
		f.addViolation("buckets: %v", err)
		return
	}
	set, err := bucket.Parse(b.GetSet(), scheme.Buckets)
	if err != nil {
		f.addViolation("buckets: %v", err)
		return
	}
	p.buckets = &bucket.Filter{Scheme: scheme, Set: set}
}

func (p *streamPlan) setResume(req *scribev1.StreamStart, f *requestViolations) {
	positions := req.GetResume()
	if len(positions) > maxResume {
		f.addViolation("%d positions to resume at, the limit is %d", len(positions), maxResume)
		return
	}
	p.resume = make(map[record.ShardID]*scribev1.ShardPosition, len(positions))
	for _, r := range positions {
		shard := record.ShardID(r.GetShard())
		switch {
		case r.GetLsn() < uint64(record.FirstLSN):
			f.addViolation("shard %v is to resume at LSN %d, the first is %d", shard, r.GetLsn(), record.FirstLSN)
		case p.resume[shard] != nil:
			f.addViolation("shard %v is to resume at two positions", shard)
		}
		p.resume[shard] = r
	}
}

// checkCategory checks a plan against its category.
func (p *streamPlan) checkCategory(c *scribev1.Category) error {
	var unknown, foreign requestViolations
	for _, l := range p.logical {
		if !c.HasShard(l) {
			unknown.addViolation("%d", l)
		}
	}
	if err := unknown.asError(scribev1.Reason_REASON_UNKNOWN_SHARD,
		fmt.Sprintf("category %q has %d logical shards, numbered from 0; it does not have", p.category, c.GetShards())); err != nil {
		return err
	}
	for shard := range p.resume {
		if shard.Category() != c.GetId() {
			foreign.addViolation("shard %v belongs to category %d", shard, shard.Category())
		} else if p.sequenced != sequenced.Reserved(shard) {
			foreign.addViolation("shard %v is not one that this stream reads", shard)
		}
	}
	return foreign.asError(scribev1.Reason_REASON_INVALID, foreignPositions(p.category, c.GetId()))
}

// openStream receives the StreamStart and prepares the stream. Every refusal happens here.
func (s *Server) openStream(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) (*consumerStream, error) {
	req, err := s.receiveStart(ctx, recv)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(req, s.clock())
	if err != nil {
		return nil, err
	}
	finding, cancel := context.WithTimeoutCause(ctx, s.cfg.FailAfter, errOpening)
	defer cancel()
	st, err := s.prepareStream(finding, p, send)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(finding), errOpening) {
		err = rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.cfg.RetryAfter,
			"the category and its shards were not found within %v: %w", s.cfg.FailAfter, err)
	}
	return st, err
}

// errOpening cancels the opening of a stream that takes too long.
var errOpening = errors.New("readstream: opening takes too long")

func (s *Server) prepareStream(ctx context.Context, p *streamPlan, send func(*scribev1.StreamResponse) error) (*consumerStream, error) {
	cat, err := s.findCategory(ctx, p.category)
	if err != nil {
		return nil, err
	}
	leave, err := s.admitOpening(cat)
	if err != nil {
		return nil, err
	}
	defer leave()
	cat, states, listed, err := s.findShards(ctx, p, cat)
	if err != nil {
		return nil, err
	}
	if err := s.bindFilter(ctx, p, cat); err != nil {
		return nil, err
	}
	st := newStream(s, p, cat, send)
	st.listed = listed
	if err := st.addKnownShards(ctx, states); err != nil {
		st.closeStream()
		return nil, err
	}
	return st, nil
}

// findShards returns a plan's category, which may be another one by now, its shards, and the engine's time as of which they are listed.
func (s *Server) findShards(ctx context.Context, p *streamPlan, cat *scribev1.Category) (*scribev1.Category, []metalog.State, int64, error) {
	for asked := false; ; asked = true {
		p.sequenced = cat.IsSequenced() && !p.unsequenced
		if err := p.checkCategory(cat); err != nil {
			return nil, nil, 0, err
		}
		states, listed, err := s.listShards(ctx, p, cat)
		if err != nil && s.evicting.Err() != nil {
			return nil, nil, 0, s.closingError()
		}
		if err != nil {
			return nil, nil, 0, s.engineError(ctx, "shards", err)
		}
		unknown := slices.ContainsFunc(states, func(v metalog.State) bool { return isUnknownShard(cat, v.Shard) })
		if asked || !unknown && !slices.ContainsFunc(states, func(v metalog.State) bool { return v.Sealed }) {
			return cat, states, listed, nil
		}
		// Logs are sealed when their category is deleted. The local view may not show that yet, nor a new category under the same
		// name.
		now, err := s.deps.Categories.Resolve(ctx, p.category)
		if rpc.ReasonOf(err) == scribev1.Reason_REASON_UNKNOWN_CATEGORY {
			return nil, nil, 0, err
		}
		switch {
		case err == nil:
			cat = now
		case unknown:
			return nil, nil, 0, rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.cfg.RetryAfter,
				"category %q has logical shards that this server does not know of, and the control plane does not answer: %w", p.category, err)
		} // otherwise nothing is known: assume no change
	}
}

// isUnknownShard reports whether a log is of a logical shard that a copy of a category does not have, although its messages are placed by key
// or field: one may have been split, so that the order of keys is another one. The copy is older than the log.
func isUnknownShard(cat *scribev1.Category, log record.ShardID) bool {
	return !sequenced.Reserved(log) && !cat.HasShard(uint32(log.Logical())) && layouts.Current(cat) != nil
}

func (s *Server) findCategory(ctx context.Context, name string) (*scribev1.Category, error) {
	if cat, ok := s.deps.Categories.Lookup(name); ok {
		return cat, nil
	}
	return s.deps.Categories.Resolve(ctx, name)
}

// engineError returns the client's error for a failure of the engine while a stream opens.
func (s *Server) engineError(ctx context.Context, call string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.metrics.engineErrors.WithLabelValues(call).Inc()
	return rpc.RetryErrorf(scribev1.Reason_REASON_NO_BACKEND, s.cfg.RetryAfter, "the metadata engine failed to list or to seek shards: %w", err)
}

// addKnownShards adds the existing shards.
func (st *consumerStream) addKnownShards(ctx context.Context, states []metalog.State) error {
	states = slices.DeleteFunc(slices.Clone(states), func(v metalog.State) bool { return !st.plan.wantsShard(v.Shard) })
	known := make(map[record.ShardID]struct{}, len(states))
	for _, v := range states {
		known[v.Shard] = struct{}{}
	}
	// Shards of a checkpoint may have no log here, either no longer or not yet. If metadata was recovered, they will begin after the
	// checkpoint, which the engine knows.
	var absent []record.ShardID
	for shard := range st.plan.resume {
		if _, ok := known[shard]; !ok && st.plan.wantsShard(shard) {
			absent = append(absent, shard)
		}
	}
	if n := len(states) + len(absent); n > st.s.cfg.MaxShards {
		return tooManyShards(n, st.s.cfg.MaxShards)
	}
	for part := range slices.Chunk(absent, metalog.MaxShards) {
		more, err := st.s.deps.Log.Tail(ctx, part)
		if err != nil {
			return st.s.engineError(ctx, "tail", err)
		}
		states = append(states, more...)
	}
	states, err := st.addRemovedShards(ctx, states, known)
	if err != nil {
		return err
	}
	// Count before comparing, so that streams that open concurrently see each other.
	if total := st.addShards(len(states)); total > int64(st.s.cfg.TotalShards) {
		return rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, st.s.cfg.RetryAfter,
			"the streams of this server would follow %d shards, the limit is %d: try again, or another server", total, st.s.cfg.TotalShards)
	}
	slices.SortFunc(states, func(a, b metalog.State) int { return cmp.Compare(a.Shard, b.Shard) })
	from, err := st.startPositions(ctx, states)
	if err != nil {
		return err
	}
	var beyond requestViolations
	for i, v := range states {
		if from[i] > v.NextLSN {
			beyond.addViolation("shard %v is to resume at LSN %d, its next one is %d", v.Shard, from[i], v.NextLSN)
		}
		st.addShard(v, from[i])
	}
	st.first = states
	return beyond.asError(scribev1.Reason_REASON_INVALID, "positions beyond the end: they are of another cell, or metadata was lost")
}

// addRemovedShards adds the shards that were written after the reader knew the shards, and that were trimmed and removed while it was away: it is
// owed a gap in each. It does not know of them, and nobody lists them. The logs that a sequencer reads are never removed, nor is its own.
func (st *consumerStream) addRemovedShards(ctx context.Context, states []metalog.State, known map[record.ShardID]struct{}) ([]metalog.State, error) {
	p := st.plan
	if !p.resumes() || st.cat.IsSequenced() {
		return states, nil
	}
	removed, err := st.s.deps.Log.RemovedShards(ctx, st.cat.GetId(), max(p.knownUntil, 1))
	if err != nil {
		return nil, st.s.engineError(ctx, "removed", err)
	}
	probe, err := st.s.deps.Log.Tail(ctx, []record.ShardID{record.MakeShardID(st.cat.GetId(), 0, 0)})
	if err != nil {
		return nil, st.s.engineError(ctx, "tail", err)
	}
	st.listed = probe[0].Watermark
	for _, v := range removed {
		if _, ok := known[v.Shard]; ok || p.resume[v.Shard] != nil || !p.wantsShard(v.Shard) {
			continue
		}
		if states = append(states, v); len(states) > st.s.cfg.MaxShards {
			return nil, tooManyShards(len(states), st.s.cfg.MaxShards)
		}
	}
	return states, nil
}

// noteUnowed notes that a reader that begins with a shard's first LSN is not owed what was below the shard's origin, if the shard was removed
// when the reader knew the shards, until a time: then all of that had been persisted before. A recovery's origin concerns no reader that
// has read nothing of the shard; see firstLSN.
func (st *consumerStream) noteUnowed(v metalog.State, knownUntil int64) {
	if v.OriginTime > 0 && v.OriginTime < knownUntil {
		st.mu.unowed[v.Shard] = v.Origin
	}
}

func tooManyShards(n, limit int) error {
	return rpc.Errorf(scribev1.Reason_REASON_TOO_LARGE, "the stream would follow %d shards, the limit is %d: ask for some of the logical shards", n, limit)
}

// startPositions returns the start position of each shard.
func (st *consumerStream) startPositions(ctx context.Context, states []metalog.State) ([]record.LSN, error) {
	from := make([]record.LSN, len(states))
	var seek []record.ShardID
	for i, v := range states {
		switch r := st.plan.resume[v.Shard]; {
		case r != nil:
			from[i] = record.LSN(r.GetLsn())
			if r.GetSkip() > 0 {
				st.skips[v.Shard] = r
			}
		case st.plan.resumes():
			// The shard appeared after the other positions were taken. The reader was owed what was trimmed of it since, so that
			// is a gap.
			from[i] = record.FirstLSN
			st.noteUnowed(v, st.plan.knownUntil)
		case st.plan.at == scribev1.StartAt_START_AT_EARLIEST && v.FirstLSN == v.Origin:
			// It is told where the shard began, since a reader of all of it takes a later start for a gap.
			from[i] = record.FirstLSN
			st.noteUnowed(v, math.MaxInt64)
		case st.plan.at == scribev1.StartAt_START_AT_EARLIEST:
			from[i] = v.FirstLSN
		case st.plan.at == scribev1.StartAt_START_AT_TIME:
			seek = append(seek, v.Shard)
		default:
			from[i] = v.NextLSN
		}
	}
	found := make(map[record.ShardID]record.LSN, len(seek))
	for part := range slices.Chunk(seek, metalog.MaxShards) {
		lsns, err := st.s.deps.Log.Seek(ctx, part, st.plan.time)
		if err != nil {
			return nil, st.s.engineError(ctx, "seek", err)
		}
		for i, lsn := range lsns {
			found[part[i]] = lsn
		}
	}
	for i, v := range states {
		if lsn := found[v.Shard]; lsn > 0 {
			from[i] = lsn
		}
	}
	return from, nil
}
