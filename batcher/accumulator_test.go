package batcher

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/record"
)

// TestAccumulator runs the transcripts in testdata/accumulator. To rewrite their answers:
//
//	go test ./batcher -run TestAccumulator -rewrite
//
// Commands, each with an optional at=DURATION since the start:
//
//	init [memory= flush= age= floor= inflight= group= payload= block=]
//	add [wait] (SHARD:BYTES[xFRAMES][#CLASS][!] ...)   the pieces of one request; ! = exactly_once, each frame a run of its own
//	squeeze TIMES BYTES SIZE                           pieces of so many bytes are added, and each is compressed to SIZE
//	compressed BLOCK SIZE                              the compressor is done with a block
//	finished FLUSH                                     a flush is durable; it took 100 ms
//	tick | close
func TestAccumulator(t *testing.T) {
	datadriven.Walk(t, "testdata/accumulator", func(t *testing.T, path string) {
		s := &script{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

type script struct {
	acc     accumulator
	now     time.Time
	blocks  []*block
	flushes map[uint64]*flush
	notes   strings.Builder // what the present command has to say
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
		wait := d.HasArg("wait")
		for piece := range strings.FieldsSeq(d.Input) {
			s.add(t, d, piece, wait)
		}
		s.acc.tick(s.now)
	case "compressed":
		b := s.blocks[s.number(t, d, 0, "b")-1]
		size, err := strconv.Atoi(d.CmdArgs[1].Key)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		s.acc.compressed(b, size, int64(b.raw))
	case "squeeze":
		for range s.number(t, d, 0, "") {
			s.add(t, d, "1/0/7:"+d.CmdArgs[1].Key, false)
			for _, b := range s.acc.take().compress {
				s.blocks = append(s.blocks, b)
				s.acc.compressed(b, s.number(t, d, 2, ""), int64(b.raw))
			}
		}
		s.acc.tick(s.now)
	case "finished":
		s.acc.finished(s.now, s.flushes[uint64(s.number(t, d, 0, "f"))], 100*time.Millisecond)
	case "tick":
		s.acc.tick(s.now)
	case "close":
		s.acc.close(s.now)
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return s.state()
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
	times := map[string]*time.Duration{"age": &cfg.MaxAge, "floor": &cfg.FlushFloor}
	for _, arg := range d.CmdArgs {
		var err error
		if set := ints[arg.Key]; set != nil {
			var v int64
			v, err = strconv.ParseInt(arg.Vals[0], 10, 64)
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
	*s = script{now: epoch, flushes: make(map[uint64]*flush)}
	s.acc.cfg = cfg
	return ""
}

// add parses SHARD:BYTES[xFRAMES][#CLASS][!].
func (s *script) add(t *testing.T, d *datadriven.TestData, text string, wait bool) {
	spec, once := strings.CutSuffix(text, "!")
	name, spec, _ := strings.Cut(spec, ":")
	spec, classText, classed := strings.Cut(spec, "#")
	size, count, counted := strings.Cut(spec, "x")
	shard, err := record.ParseShardID(name)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
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
	p := piece{frames: make([]frame, number(count, 1, counted)), bytes: number(size, 0, true)}
	for i := range p.frames {
		p.frames[i] = frame{size: uint32(p.bytes / len(p.frames)), messages: 1}
	}
	if once {
		p.runs = len(p.frames)
	}
	if wait {
		p.sub = &submission{}
	}
	charge := 2*int64(p.bytes) + overhead(1, len(p.frames))
	if !s.acc.reserve(charge) {
		fmt.Fprintf(&s.notes, "refused %s, retry after %v\n", text, s.acc.retryAfter())
		return
	}
	s.acc.add(s.now, target{shard: shard, class: uint32(number(classText, 72, classed)), exactlyOnce: once}, p)
}

// state says what is to be done and how things stand.
func (s *script) state() string {
	var out strings.Builder
	out.WriteString(s.notes.String())
	s.notes.Reset()
	todo := s.acc.take()
	for _, b := range todo.compress {
		s.blocks = append(s.blocks, b)
		fmt.Fprintf(&out, "compress b%d of f%d: class %d, %d bytes:", len(s.blocks), b.flush.ticket, b.class, b.raw)
		for _, pl := range b.payloads {
			fmt.Fprintf(&out, " %v at %d+%d", pl.group.shard, pl.offset, pl.bytes)
		}
		out.WriteByte('\n')
	}
	for _, f := range todo.complete {
		fmt.Fprintf(&out, "complete f%d\n", f.ticket)
	}
	for _, f := range todo.start {
		s.flushes[f.ticket] = f
		fmt.Fprintf(&out, "start f%d by %v: %d frames, %d bytes, %d payloads\n", f.ticket, f.trigger, f.frames, f.raw, f.payloads)
	}
	if f := s.acc.open; f != nil {
		fmt.Fprintf(&out, "open f%d: %d bytes, %d waiting; ", f.ticket, f.size, f.waiters)
	}
	fmt.Fprintf(&out, "running %d, waiting %d, used %d, load %d", s.acc.running, len(s.acc.waiting), s.acc.used, s.acc.load())
	if w := s.acc.wake(); !w.IsZero() {
		fmt.Fprintf(&out, ", wake at %v", w.Sub(epoch))
	}
	out.WriteByte('\n')
	return out.String()
}
