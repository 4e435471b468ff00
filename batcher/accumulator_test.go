package batcher

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// TestAccumulator runs the transcripts in testdata/accumulator. To rewrite their answers:
//
//	go test ./batcher -run TestAccumulator -rewrite
//
// Commands, each with an optional at=DURATION since the start:
//
//	init [memory= share= flush= age= gather= floor= inflight= batch= payload= block=]
//	add [wait [lingered]] (SHARD:BYTES[xFRAMES][#CLASS][!] ...)   the spans of one request; ! = exactly_once, each frame a run of its own
//	squeeze TIMES BYTES SIZE                           spans of so many bytes are added, and each is compressed to SIZE
//	compressed BLOCK SIZE                              the compressor is done with a block
//	finished FLUSH                                     a flush, or what was not divided off it, is durable; it took 100 ms
//	divide FLUSH SHARD PART [detach]                   a batch of a flush is a part of its own now
//	finished PART                                      and that is durable
//	stall SHARD | resume SHARD
//	tick | close
func TestAccumulator(t *testing.T) {
	datadriven.Walk(t, "testdata/accumulator", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

// TestManyLingeredPayloads: a flush of many small payloads is as slow as one of many bytes, so what is awaited stays out of it.
func TestManyLingeredPayloads(t *testing.T) {
	for _, c := range []struct {
		payloads int
		trigger  flushTrigger
	}{
		{asidePayloads, triggerCommit},
		{asidePayloads + 1, triggerAwaited},
	} {
		acc := newAccumulator(DefaultConfig())
		add := func(shard int, sub *waitingRequest) {
			to := logTarget{shard: record.MakeShardID(uint32(shard), 0, 7), class: 72} //nolint:gosec // small
			in := &parsedRequest{spans: []routedSpan{{frameSpan: frameSpan{sub: sub, frames: make([]frame, 1), bytes: 10}, target: to}}, results: make([]scribev1.FrameResult, 1)}
			if err := acc.admitCategories(epoch, in); err != nil {
				t.Fatal(err)
			}
			acc.addSpan(epoch, in.spans[0].account, to, in.spans[0].frameSpan)
		}
		for i := range c.payloads {
			add(i+1, &waitingRequest{lingered: true})
		}
		add(c.payloads+1, &waitingRequest{})
		acc.tick(epoch)
		started := acc.takeActions().start
		if len(started) != 1 || started[0].trigger != c.trigger {
			t.Errorf("%d payloads: started %d flushes, the first by %v, want one by %v", c.payloads, len(started), started[0].trigger, c.trigger)
		}
	}
}

type script struct {
	acc    accumulator
	now    time.Time
	blocks []*block
	sizes  map[*block]int64      // of those that are compressed
	parts  map[string]*flushPart // those being written, by the name of their flush or their own
	notes  strings.Builder       // what the present command has to say
}

var epoch = time.Unix(1_700_000_000, 0)

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	for _, arg := range d.CmdArgs {
		if arg.Key == "at" {
			at, err := time.ParseDuration(arg.Vals[0])
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			s.now = epoch.Add(at)
		}
	}
	switch d.Cmd {
	case "init":
		return s.init(t, d)
	case "add":
		var sub *waitingRequest
		if d.HasArg("wait") {
			sub = &waitingRequest{lingered: d.HasArg("lingered")}
		}
		s.acc.requests++
		for piece := range strings.FieldsSeq(d.Input) {
			s.add(t, d, piece, sub)
		}
		s.acc.tick(s.now)
	case "compressed":
		b := s.blocks[s.number(t, d, 0, "b")-1]
		s.compressed(b, s.number(t, d, 1, ""))
	case "squeeze":
		for range s.number(t, d, 0, "") {
			s.add(t, d, "1/0/7:"+d.CmdArgs[1].Key, nil)
			for _, b := range s.acc.takeActions().compress {
				s.blocks = append(s.blocks, b)
				s.compressed(b, s.number(t, d, 2, ""))
			}
		}
		s.acc.tick(s.now)
	case "finished":
		s.finished(t, d)
	case "divide":
		s.divide(t, d)
	case "stall":
		s.acc.stallShard(s.shard(t, d, d.CmdArgs[0].Key))
	case "resume":
		s.acc.resumeShards(s.now, []record.ShardID{s.shard(t, d, d.CmdArgs[0].Key)})
	case "tick":
		s.acc.tick(s.now)
	case "close":
		s.acc.close(s.now)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return s.state()
}

func (s *script) compressed(b *block, size int) {
	s.sizes[b] = int64(size)
	s.acc.blockCompressed(s.now, b, size, int64(b.raw))
}

func (s *script) finished(t *testing.T, d *datadriven.TestData) {
	p := s.parts[d.CmdArgs[0].Key]
	if p == nil {
		d.Fatalf(t, "%s is not being written", d.CmdArgs[0].Key)
	}
	freed := int64(0)
	for _, c := range p.shares {
		if _, ok := s.sizes[c.block]; !ok {
			s.compressed(c.block, c.block.raw)
		}
		if c.block.parts.Add(-1) == 0 {
			freed += s.sizes[c.block]
		}
	}
	delete(s.parts, d.CmdArgs[0].Key)
	s.acc.partFinished(s.now, p, freed, 100*time.Millisecond)
}

func (s *script) divide(t *testing.T, d *datadriven.TestData) {
	p, shard := s.parts[d.CmdArgs[0].Key], s.shard(t, d, d.CmdArgs[1].Key)
	i := slices.IndexFunc(p.batches, func(g *logBatch) bool { return g.shard == shard })
	rest := newFlushPart(p.flush, p.batches[i:i+1:i+1], s.now)
	p.batches = slices.Delete(slices.Clone(p.batches), i, i+1)
	for _, g := range rest.batches {
		for _, pl := range g.payloads {
			pl.block.parts.Add(1)
			rest.shares = append(rest.shares, blockShare{block: pl.block})
		}
	}
	s.parts[d.CmdArgs[2].Key] = rest
	s.acc.partDivided(p, rest)
	if d.HasArg("detach") {
		s.acc.detachPart(s.now, rest)
	}
}

func (s *script) shard(t *testing.T, d *datadriven.TestData, name string) record.ShardID {
	id, err := record.ParseShardID(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return id
}

// number parses an argument like b3.
func (s *script) number(t *testing.T, d *datadriven.TestData, arg int, prefix string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(d.CmdArgs[arg].Key, prefix))
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return n
}

func (s *script) init(t *testing.T, d *datadriven.TestData) string {
	cfg := DefaultConfig()
	ints := map[string]func(int64){
		"memory":   func(v int64) { cfg.MemoryBytes = v },
		"flush":    func(v int64) { cfg.FlushBytes = v },
		"inflight": func(v int64) { cfg.MaxInFlight = int(v) },
		"group":    func(v int64) { cfg.GroupCommit = int(v) },
		"payload":  func(v int64) { cfg.PayloadBytes = int(v) },
		"block":    func(v int64) { cfg.BlockBytes = int(v) },
	}
	shares := map[string]func(float64){"share": func(v float64) { cfg.Share = v }}
	times := map[string]*time.Duration{"age": &cfg.MaxAge, "gather": &cfg.GatherTime, "floor": &cfg.FlushFloor}
	for _, arg := range d.CmdArgs {
		var err error
		if set := ints[arg.Key]; set != nil {
			var v int64
			v, err = strconv.ParseInt(arg.Vals[0], 10, 64)
			set(v)
		} else if set := shares[arg.Key]; set != nil {
			var v float64
			v, err = strconv.ParseFloat(arg.Vals[0], 64)
			set(v)
		} else if dst := times[arg.Key]; dst != nil {
			*dst, err = time.ParseDuration(arg.Vals[0])
		} else {
			err = fmt.Errorf("unknown setting %s", arg.Key)
		}
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	*s = script{now: epoch, sizes: make(map[*block]int64), parts: make(map[string]*flushPart)}
	s.acc = newAccumulator(cfg)
	return ""
}

// add parses SHARD:BYTES[xFRAMES][#CLASS][!].
func (s *script) add(t *testing.T, d *datadriven.TestData, text string, sub *waitingRequest) {
	spec, once := strings.CutSuffix(text, "!")
	name, spec, _ := strings.Cut(spec, ":")
	spec, classText, classed := strings.Cut(spec, "#")
	size, count, counted := strings.Cut(spec, "x")
	shard := s.shard(t, d, name)
	number := func(text string, or int, given bool) int {
		if !given {
			return or
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return n
	}
	p := frameSpan{sub: sub, frames: make([]frame, number(count, 1, counted)), bytes: number(size, 0, true)}
	for i := range p.frames {
		p.frames[i] = frame{size: uint32(p.bytes / len(p.frames)), messages: 1}
	}
	if once {
		p.runs = len(p.frames)
	}
	to := logTarget{shard: shard, class: uint32(number(classText, 72, classed)), exactlyOnce: once}
	in := &parsedRequest{spans: []routedSpan{{frameSpan: p, target: to}}, results: make([]scribev1.FrameResult, len(p.frames))}
	charge := in.memoryCharge()
	var err error
	if !s.acc.memory.Charge(s.now, charge) {
		err = rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, s.acc.memory.Hint(s.now, charge), "the memory is full")
	} else if err = s.acc.admitCategories(s.now, in); err != nil {
		s.acc.memory.Cancel(charge)
	}
	if err != nil {
		info := rpc.Info(err)
		fmt.Fprintf(&s.notes, "refused %s: %v, retry after %v: %s\n", text, info.GetReason(), info.GetRetryAfter().AsDuration(), info.GetMessage())
		return
	}
	s.acc.chainSpan(to.shard, &p)
	s.acc.addSpan(s.now, in.spans[0].account, to, p)
}

// state says what is to be done and how things stand.
func (s *script) state() string {
	var out strings.Builder
	out.WriteString(s.notes.String())
	s.notes.Reset()
	jobs := s.acc.takeActions()
	s.compress(&out, jobs.compress)
	for _, f := range jobs.start {
		name := fmt.Sprintf("f%d", f.ticket)
		fmt.Fprintf(&out, "start %s of class %d by %v: %d bytes in %d payloads\n", name, f.queue.class, f.trigger, f.raw, f.payloads)
		for _, g := range f.batches {
			fmt.Fprintf(&out, "  %v:", g.shard)
			for _, pl := range g.payloads {
				fmt.Fprintf(&out, " %d", pl.bytes)
			}
			out.WriteByte('\n')
		}
		// What the goroutine does that writes it.
		p := newFlushPart(f, f.batches, s.now)
		p.attached = true
		small := packBlocks(f.small, s.acc.cfg.BlockBytes)
		for _, b := range small {
			b.flush = f
		}
		s.compress(&out, small)
		f.blocks = append(f.blocks, small...)
		p.loadBlocks(f)
		s.parts[name] = p
		s.acc.blocksPacked(f, len(small))
		more := s.acc.takeActions()
		jobs.complete = append(jobs.complete, more.complete...)
	}
	for _, b := range jobs.urge {
		fmt.Fprintf(&out, "urge b%d\n", slices.Index(s.blocks, b)+1)
	}
	for _, f := range jobs.complete {
		fmt.Fprintf(&out, "complete f%d\n", f.ticket)
	}
	for _, fl := range s.acc.queues {
		fmt.Fprintf(&out, "class %d: ", fl.class)
		if v := fl.pending; v != (flushVolume{}) {
			fmt.Fprintf(&out, "%d bytes pending in %d payloads, %d waiting; ", v.size, v.payloads, fl.waiters+fl.lingered)
		}
		if fl.awaited != (flushVolume{}) && fl.awaited != fl.pending {
			fmt.Fprintf(&out, "%d bytes awaited in %d batches; ", fl.awaited.size, len(fl.awaitedBatches))
		}
		if fl.urgent > 0 {
			fmt.Fprintf(&out, "%d urgent, ", fl.urgent)
		}
		fmt.Fprintf(&out, "%d running, %d held\n", fl.running, fl.held)
	}
	fmt.Fprintf(&out, "used %d", s.acc.memory.Used())
	if w := s.acc.nextTick(); !w.IsZero() {
		fmt.Fprintf(&out, ", wake at %v", w.Sub(epoch))
	}
	out.WriteByte('\n')
	return out.String()
}

func (s *script) compress(out *strings.Builder, blocks []*block) {
	for _, b := range blocks {
		s.blocks = append(s.blocks, b)
		fmt.Fprintf(out, "compress b%d, %d bytes:", len(s.blocks), b.raw)
		for _, pl := range b.payloads {
			fmt.Fprintf(out, " %v at %d+%d", pl.batch.shard, pl.offset, pl.bytes)
		}
		out.WriteByte('\n')
	}
}
