package batcher

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/batcher/logqueue"
	"scribe/internal/format/pointer"
	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// TestFlushPart runs the transcripts in testdata/part, which follow parts of flushes from the queues of their logs to the commit. To
// rewrite their answers:
//
//	go test ./batcher -run TestFlushPart -rewrite
//
// Commands, each with an optional at=DURATION since the start:
//
//	init [slot=7]                               logs are given up after 30 s or 2 refusals; a pause is 1 s for each failure
//	claim PART SHARD[:POINTERS] ...             a flush is cut; parts get tickets in this order
//	step PART ...                               what each part does next, and where its batches stand
//	opened SHARD EPOCH NEXT                     the engine has opened a log
//	open-failed SHARD | unusable SHARD          or it has not, or never will
//	refused PART SHARD ...                      another writer has prevented an append
//	put PART                                    the part's blob is in the store
//	divide PART REST SHARD ...                  batches of a part are a part of their own now
//	move PART SLOT                              the writer slot has changed, and the part goes to its logs
//	commit PART | fail PART                     the part is done
//
// A step answers with the part's next step and its batches, each with its state and, once that is known, EPOCH/LSN, with a ? when it
// counts on what is before it. Logs to open are listed after that.
func TestFlushPart(t *testing.T) {
	datadriven.Walk(t, "testdata/part", func(t *testing.T, path string) {
		s := &partScript{}
		datadriven.RunTest(t, path, s.run)
	})
}

type partScript struct {
	queues  *logqueue.Queues
	now     time.Time
	slot    uint16
	tickets uint64
	parts   map[string]*flushPart
}

func (s *partScript) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var args []string
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "at":
			at, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.now = epoch.Add(at)
		case "slot":
			s.slot = uint16(s.number(t, d, arg.Vals[0]))
		default:
			args = append(args, arg.Key)
		}
	}
	out := ""
	var resumed []record.ShardID
	switch d.Cmd {
	case "init":
		s.now, s.tickets, s.parts = epoch, 0, make(map[string]*flushPart)
		limits := logqueue.Limits{Logs: 100, Refusals: 2, Opening: 30 * time.Second}
		s.queues = logqueue.New(limits, func(failures int) time.Duration { return time.Duration(failures) * time.Second })
	case "claim":
		s.claim(t, d, args[0], args[1:])
	case "step":
		for _, name := range args {
			out += s.step(t, d, name)
		}
	case "opened":
		state := metalog.State{Shard: s.shard(t, d, args[0]), Epoch: s.number(t, d, args[1]), NextLSN: record.LSN(s.number(t, d, args[2]))}
		s.queues.Opened([]metalog.State{state}, s.now)
	case "open-failed":
		s.queues.OpenFailed([]record.ShardID{s.shard(t, d, args[0])}, errors.New("no answer"), s.now)
	case "unusable":
		s.queues.Unusable(s.shard(t, d, args[0]), metalog.ErrSealed, s.now)
	case "refused":
		s.queues.AppendRefused(entries(s.batches(t, d, args[0], args[1:])), metalog.ErrFenced, s.now)
	case "put":
		s.part(t, d, args[0]).id = pointer.NewBlobID()
	case "divide":
		p, batches := s.part(t, d, args[0]), s.batches(t, d, args[0], args[2:])
		rest := newFlushPart(p.flush, batches, s.now)
		p.batches = slices.DeleteFunc(p.batches, func(g *logBatch) bool { return g.part == rest })
		s.queues.Reassign(&p.Part, &rest.Part, entries(batches))
		s.parts[args[1]] = rest
	case "move":
		p := s.part(t, d, args[0])
		s.slot = uint16(s.number(t, d, args[1]))
		resumed = s.queues.Move(entries(p.batches), s.slot)
		for _, g := range p.batches {
			g.shard = g.entry.Shard
		}
	case "commit", "fail":
		resumed = s.queues.Finish(entries(s.part(t, d, args[0]).batches), d.Cmd == "commit", s.now)
		delete(s.parts, args[0])
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	if len(resumed) > 0 {
		out += fmt.Sprintf("not stalled any more: %v\n", resumed)
	}
	for _, name := range slices.Sorted(maps.Keys(s.parts)) {
		select {
		case <-s.parts[name].Wake:
			out += fmt.Sprintf("wake %s\n", name)
		default:
		}
	}
	return out
}

func (s *partScript) claim(t *testing.T, d *datadriven.TestData, name string, shards []string) {
	t.Helper()
	s.tickets++
	var batches []*logBatch
	for _, spec := range shards {
		shard, pointers, given := strings.Cut(spec, ":")
		g := &logBatch{logTarget: logTarget{shard: s.shard(t, d, shard)}}
		g.entry = logqueue.Entry{Shard: g.shard, Pointers: 1}
		if given {
			g.entry.Pointers = int(s.number(t, d, pointers))
		}
		batches = append(batches, g)
	}
	p := newFlushPart(newFlush(s.tickets, nil, nil), batches, s.now)
	s.queues.Claim(&p.Part, entries(p.batches))
	s.parts[name] = p
}

func (s *partScript) step(t *testing.T, d *datadriven.TestData, name string) string {
	t.Helper()
	p := s.part(t, d, name)
	st := s.queues.Inspect(&p.Part, entries(p.batches), s.slot, s.now, true)
	step, until := p.nextStep(&st, s.now, time.Second)
	var out strings.Builder
	fmt.Fprintf(&out, "%s: %v", name, step)
	if step == stepWait {
		fmt.Fprintf(&out, " until %v", until.Sub(epoch))
	}
	if step == stepDivide {
		s.queues.MarkStalled(entries(p.batchesIn(logqueue.Waiting, logqueue.Closed)))
		if !st.Independent {
			out.WriteString(", and stay in flight")
		}
	}
	out.WriteByte('\n')
	for _, g := range p.batches {
		state := [logqueue.States]string{"waiting", "ready", "closed", "wrong slot", "failed"}[g.entry.State]
		fmt.Fprintf(&out, "  %v %s", g.shard, state)
		if g.entry.Epoch != 0 {
			fmt.Fprintf(&out, " %d/%d", g.entry.Epoch, g.entry.LSN)
			if g.entry.Predicted {
				out.WriteByte('?')
			}
		}
		if g.entry.State == logqueue.Failed {
			fmt.Fprintf(&out, ": %v", g.entry.Err)
		}
		out.WriteByte('\n')
	}
	for _, o := range st.Open {
		fmt.Fprintf(&out, "  open %v\n", o.Shard)
	}
	return out.String()
}

func (s *partScript) part(t *testing.T, d *datadriven.TestData, name string) *flushPart {
	t.Helper()
	p := s.parts[name]
	if p == nil {
		d.Fatalf(t, "there is no part %s", name)
	}
	return p
}

// batches are those of a part with some shards.
func (s *partScript) batches(t *testing.T, d *datadriven.TestData, name string, shards []string) (found []*logBatch) {
	t.Helper()
	for _, g := range s.part(t, d, name).batches {
		if slices.Contains(shards, g.shard.String()) {
			found = append(found, g)
		}
	}
	return found
}

func (*partScript) shard(t *testing.T, d *datadriven.TestData, name string) record.ShardID {
	t.Helper()
	id, err := record.ParseShardID(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return id
}

func (*partScript) number(t *testing.T, d *datadriven.TestData, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}
