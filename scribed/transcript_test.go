package scribed

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

// TestQueueTranscripts plays the agent's queue: what is written, sent, answered and spilled, and where each frame stands.
//
//	go test ./scribed -run TestQueueTranscripts -rewrite
func TestQueueTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/queue", func(t *testing.T, path string) {
		cfg := spooling(DefaultConfig())
		cfg.MaxInFlight, cfg.Linger = 2, 0
		s := &transcript{world: openWorld(t, cfg), requests: map[int]*filling{}}
		defer func() { _ = s.s.spool.Close() }()
		datadriven.RunTest(t, path, s.run)
	})
}

// transcript numbers requests to the upstream and appends to the spool as they begin.
type transcript struct {
	*world
	requests map[int]*filling // f is nil for live traffic
	begun    int
}

func (s *transcript) run(t *testing.T, d *datadriven.TestData) string {
	q := &s.s.mu.queue
	var out strings.Builder
	switch d.Cmd {
	case "write": // CATEGORY...  [ack=none|committed] [lingered]
		ack := ackNone
		for _, a := range d.CmdArgs {
			if a.Key == "ack" && a.Vals[0] == "committed" {
				ack = ackCommitted
			}
		}
		for _, a := range d.CmdArgs {
			if a.Key == "ack" || a.Key == "lingered" {
				continue
			}
			e := s.newEntry(a.Key, ack)
			e.lingered = d.HasArg("lingered")
			l := q.queueOf(a.Key)
			switch q.chooseDestination(l, e, s.now) {
			case inMemory:
				s.enter(e)
			case onDisk:
				s.written[a.Key]++
				s.begin(&out, q.appendPassing(l, e))
			default:
				q.forgetIdle(l)
				out.WriteString("refused\n")
			}
		}
	case "spool": // CATEGORY: its newest entry is written besides, as for ack=spooled
		entries := q.queues[d.CmdArgs[0].Key].entries
		s.begin(&out, q.appendEntry(entries[len(entries)-1]))
	case "spill": // [everything]
		if a := q.planSpill(s.now, d.HasArg("everything")); a != nil {
			s.begin(&out, a)
		}
	case "append": // ok | full: the oldest append ends
		a := s.appends[0]
		s.appends = s.appends[1:]
		if d.CmdArgs[0].Key == "full" {
			a.err = spool.ErrFull
		}
		s.end(t, a)
	case "send":
		for b := q.nextLive(s.now); b != nil; b = q.nextLive(s.now) {
			kind := "live"
			if b.unawaited {
				kind = "live, unawaited"
			}
			s.request(&out, kind, &filling{b: b})
		}
		for x := s.fill(t); x != nil; x = s.fill(t) {
			s.request(&out, "backlog", x)
		}
	case "answer": // request=NUMBER [taken=N: of each category; the upstream is overloaded for the others] [unavailable]
		var n int
		d.ScanArgs(t, "request", &n)
		s.answer(t, d, s.requests[n])
		delete(s.requests, n)
	case "wait":
		pause, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.now = s.now.Add(pause)
	default:
		d.Fatalf(t, "unknown command")
	}
	s.describe(&out)
	return out.String()
}

func (s *transcript) begin(out *strings.Builder, a *spoolAppend) {
	s.appends = append(s.appends, a)
	out.WriteString("append:")
	for i := range a.parts {
		p := &a.parts[i]
		fmt.Fprintf(out, " %s %s %s", p.l.name, texts(p.e), map[partKind]string{stays: "stays", leaves: "leaves", passes: "passes"}[p.kind])
	}
	out.WriteByte('\n')
}

func (s *transcript) request(out *strings.Builder, kind string, x *filling) {
	s.begun++
	s.requests[s.begun] = x
	fmt.Fprintf(out, "request %d, %s:", s.begun, kind)
	for _, e := range x.b.entries {
		fmt.Fprintf(out, " %s %s", e.category, texts(e))
	}
	out.WriteByte('\n')
}

func (s *transcript) answer(t *testing.T, d *datadriven.TestData, x *filling) {
	var (
		results []*scribev1.FrameResult
		info    *scribev1.ErrorInfo
		taken   = map[string]int{}
		most    = 1 << 30
	)
	d.MaybeScanArgs(t, "taken", &most)
	if d.HasArg("unavailable") {
		info = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "unavailable"))
	}
	for _, e := range x.b.entries {
		for range e.frames {
			r := &scribev1.FrameResult{}
			if taken[e.category] >= most {
				r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "quota"))
			}
			taken[e.category]++
			results = append(results, r)
		}
	}
	o := s.s.decideOutcome(x.b, results, info)
	if x.f != nil {
		s.s.mu.queue.finishFill(s.now, x.f, x.b, o.held)
	} else {
		s.s.mu.queue.finishLive(s.now, x.b, o.held)
	}
}

// texts are the numbers of an entry's frames.
func texts(e *queueEntry) string {
	var all []string
	for i := range e.frames {
		all = append(all, string(e.frames[i].bytes))
	}
	return strings.Join(all, " ")
}

// describe says where the frames of each category stand: in memory (* copied in the spool, ! waits for the backlog), on their way, and how
// many are in the spool only.
func (s *transcript) describe(out *strings.Builder) {
	q := &s.s.mu.queue
	for _, name := range slices.Sorted(maps.Keys(q.queues)) {
		l := q.queues[name]
		fmt.Fprintf(out, "%s: memory [", name)
		for i, e := range l.entries {
			mark := ""
			if e.isSpooled() {
				mark += "*"
			}
			if !q.isEligible(l, e) {
				mark += "!"
			}
			if i > 0 {
				out.WriteByte(' ')
			}
			out.WriteString(texts(e) + mark)
		}
		fmt.Fprintf(out, "] in flight %d, leaving %d, backlog %d\n", len(l.live.entries()), len(l.leaving), q.backlogOf(l).Frames)
	}
}
