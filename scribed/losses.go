package scribed

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"scribe/internal/loss"
	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// losses are what was dropped and is to be told to the readers of the category: as reports (package loss), which go the way of everything
// else. It is a part of the queue, and does no I/O.
type losses struct {
	on     bool
	run    string // names this run in its reports
	number uint64 // of the newest report
	// open sums what was dropped since the last reports were made, at most maxLosses sums.
	open map[lossKey]*lossSum
	// made are reports that were made and not taken. They stay as they are, so that one whose answer was lost can be told from another.
	made []*lossReport
	// untold counts messages that nobody will be told of: there were too many sums, or the upstream does not take the report.
	told, untold int64
}

// lossKey is what is summed.
type lossKey struct {
	category string
	shard    uint32 // 0 when it may be any
	any      bool
	reason   string
}

type lossSum struct {
	amount
	since, until time.Time
}

// lossReport is one report.
type lossReport struct {
	key   lossKey
	sum   lossSum
	frame []byte
}

// maxLosses bounds the sums, and the reports that wait: about 200 bytes each, and 500.
const maxLosses = 4096

func newLosses(on bool) losses {
	return losses{on: on, run: fmt.Sprintf("%016x", rand.Uint64()), open: make(map[lossKey]*lossSum)}
}

// add is the event that frames were dropped.
func (l *losses) add(key lossKey, a amount, since, until time.Time) {
	if !l.on || a.messages <= 0 {
		return
	}
	sum := l.open[key]
	if sum == nil {
		if len(l.open)+len(l.made) >= maxLosses {
			l.untold += a.messages
			return
		}
		sum = &lossSum{since: since}
		l.open[key] = sum
	}
	sum.plus(a)
	sum.until = until
}

// make makes reports of the sums, and returns those that are to be sent, older ones included. A sum of which an older report waits goes on
// growing: while the upstream is away there is one report of each, not one for every time that it could not be sent.
func (l *losses) make(now time.Time) []*lossReport {
	waiting := make(map[lossKey]bool, len(l.made))
	for _, r := range l.made {
		waiting[r.key] = true
	}
	for key, sum := range l.open {
		if waiting[key] {
			continue
		}
		delete(l.open, key)
		l.number++
		r := loss.Report{
			Reason: key.reason, Messages: uint64(sum.messages), Frames: uint64(max(sum.frames, 0)), Bytes: uint64(max(sum.bytes, 0)),
			Since: sum.since.UnixMicro(), Until: sum.until.UnixMicro(), AllShards: key.any, By: loss.ByAgent, Run: l.run, Number: l.number,
		}
		f, err := loss.AppendFrame(nil, key.category, key.shard, now.UnixMicro(), &r)
		if err != nil {
			l.untold += sum.messages // a name that is none: it can't be in a frame that was taken
			continue
		}
		l.made = append(l.made, &lossReport{key: key, sum: *sum, frame: f})
	}
	return l.made
}

// settled takes what became of reports; done are those that need not be sent again, by whether they are told.
func (l *losses) settled(done map[*lossReport]bool) {
	left := l.made[:0]
	for _, r := range l.made {
		told, ok := done[r]
		switch {
		case !ok:
			left = append(left, r)
		case told:
			l.told++
		default:
			l.untold += r.sum.messages
		}
	}
	clear(l.made[len(left):])
	l.made = left
}

// lose counts frames that are dropped, of which only the sum is known.
func (q *queue) lose(category, reason string, sum amount, now time.Time) {
	q.counts.drop(reason, sum)
	q.losses.add(lossKey{category: category, any: true, reason: reason}, sum, now, now)
}

// loseFrames counts frames of a category that are dropped.
func (q *queue) loseFrames(category, reason string, frames []frame, now time.Time) (sum amount) {
	for i := range frames {
		f := &frames[i]
		sum.plus(f.amount())
		if q.losses.on {
			q.loseFrame(category, reason, f, now)
		}
	}
	q.counts.drop(reason, sum)
	return sum
}

// loseFrame notes a frame that is dropped. One that is a report itself is not lost: what it says is reported again.
func (q *queue) loseFrame(category, reason string, f *frame, now time.Time) {
	h, err := record.ParseHeader(f.bytes)
	if err != nil {
		q.losses.add(lossKey{category: category, any: true, reason: reason}, f.amount(), now, now)
		return
	}
	if r, ok := reportIn(&h, f.bytes); ok {
		sum := amount{frames: int64(r.Frames), bytes: int64(r.Bytes), messages: int64(r.Messages)} //nolint:gosec // what a report of ours says
		q.losses.add(lossKey{category: category, shard: h.Shard, any: r.AllShards, reason: r.Reason}, sum, time.UnixMicro(r.Since), time.UnixMicro(r.Until))
		return
	}
	q.losses.add(lossKey{category: category, shard: h.Shard, reason: reason}, f.amount(), now, now)
}

// reportIn returns the report that a frame holds.
func reportIn(h *record.Header, b []byte) (loss.Report, bool) {
	if h.Count != 1 || h.Encoding != record.EncodingMessages || h.Len > 2*loss.MaxPayload || len(b) < h.Len {
		return loss.Report{}, false
	}
	var (
		d record.Decoder
		r record.Record
	)
	if _, err := d.Reset(b); err != nil || !d.Next(&r) {
		return loss.Report{}, false
	}
	return loss.Parse(r.Payload, r.Attributes)
}

// reporter reports losses now and then.
func (s *Scribed) reporter() {
	t := time.NewTicker(s.cfg.ReportLosses)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			ctx, cancel := context.WithCancel(s.ctx)
			ended := make(chan struct{})
			go func() { // Close does not wait for the upstream because of reports
				defer close(ended)
				select {
				case <-s.closing:
					cancel()
				case <-ctx.Done():
				}
			}()
			s.report(ctx, scribev1.AckLevel_ACK_LEVEL_COMMITTED)
			cancel()
			<-ended
		case <-s.closing:
			return
		}
	}
}

const (
	// reportsAtOnce is how many categories are reported at a time.
	reportsAtOnce = 16
	// reportTimeout bounds how long the report of one category may take until it is left for the next time.
	reportTimeout = 5 * time.Second
)

// report sends the reports that there are to be made, each category's in one request. They wait for the upstream, here and not in
// the spool: there they would be a part of what may be dropped. What is not taken is sent again the next time.
func (s *Scribed) report(ctx context.Context, ack scribev1.AckLevel) {
	select {
	case s.reporting <- struct{}{}:
		defer func() { <-s.reporting }()
	case <-ctx.Done():
		return
	}
	s.mu.Lock()
	todo := make(map[string][]*lossReport)
	for _, r := range s.mu.queue.losses.make(s.now()) {
		todo[r.key.category] = append(todo[r.key.category], r)
	}
	alone := s.mu.queue.away() // then one finds out whether it still is
	s.mu.Unlock()
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, reportsAtOnce)
	for _, reports := range todo {
		if alone && ack == scribev1.AckLevel_ACK_LEVEL_COMMITTED {
			s.sendReports(ctx, reports, ack)
			s.mu.Lock()
			alone = s.mu.queue.away()
			s.mu.Unlock()
			if alone {
				return
			}
			continue
		}
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		wg.Go(func() {
			defer func() { <-slots }()
			s.sendReports(ctx, reports, ack)
		})
	}
}

// sendReports sends those of a category, and notes what became of them.
func (s *Scribed) sendReports(ctx context.Context, reports []*lossReport, ack scribev1.AckLevel) {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	var frames []byte
	for _, r := range reports {
		frames = append(frames, r.frame...)
	}
	res, err := s.write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: ack}, true)
	done := make(map[*lossReport]bool, len(reports))
	for i, r := range reports {
		ferr := err
		if err == nil {
			ferr = rpc.FromInfo(res.GetResults()[i].GetError())
		}
		switch {
		case ferr == nil:
			done[r] = true
		case !rpc.Retryable(ferr) && rpc.ReasonOf(ferr) != scribev1.Reason_REASON_UNSPECIFIED:
			done[r] = false // the category does not exist any more, for example
			s.notes.warn(s.ctx, "report "+r.key.category, "a loss can't be reported to the readers of its category",
				slog.String("category", r.key.category), slog.Int64("messages", r.sum.messages), slog.Any("error", ferr))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.queue.losses.settled(done)
}

// lastReport is how long Close waits for the last reports.
const lastReport = time.Second

// reportAtEnd reports what was dropped since the last time, if that does not depend on an upstream that is away.
func (s *Scribed) reportAtEnd(ctx context.Context) {
	s.mu.Lock()
	l := &s.mu.queue.losses
	wanted := !s.mu.closed && len(l.open)+len(l.made) > 0 && (s.spool != nil || !s.mu.queue.away())
	s.mu.Unlock()
	if wanted {
		ctx, cancel := context.WithTimeout(ctx, lastReport)
		defer cancel()
		s.report(ctx, scribev1.AckLevel_ACK_LEVEL_SPOOLED)
	}
}
