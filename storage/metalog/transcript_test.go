package metalog_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// runTranscripts runs the cases in testdata. A case is a list of calls, each with its result after "->". An engine that lacks an
// ability that a case needs skips the case. The call "reopen" makes the case run twice, once with restarts and once with crashes.
//
// A shard is A, B, C or its id, a position A@1. A record is text as in a Go string, with a number of repetitions: \x00*10. A run of
// sequences is producer:epoch:first-last. The command that writes the results:
//
//	go test ./storage/metalog -run TestPebblelog/transcripts -rewrite
func runTranscripts(t *testing.T, f logFactory) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			for _, reopen := range []string{"restart", "crash"} {
				if done := runTranscript(t, f, d.Expected, reopen); done != d.Expected {
					return done
				}
				if !strings.Contains(d.Expected, "reopen") {
					break
				}
			}
			return d.Expected
		})
	})
}

// runTranscript makes the calls of a case and returns them with their results.
func runTranscript(t *testing.T, f logFactory, calls, reopen string) string {
	e := newEnv(t, f)
	defer e.closeLog()
	return e.makeCalls(calls, reopen)
}

// wantCalls makes calls, and fails the case unless their results are those after "->".
func (e *caseEnv) wantCalls(calls string) {
	e.Helper()
	want := strings.ReplaceAll(strings.TrimSpace(calls)+"\n", "\t", "")
	if got := e.makeCalls(want, ""); got != want {
		e.Fatalf("got\n%s\nwant\n%s", got, want)
	}
}

// makeCalls makes calls and returns them with their results.
func (e *caseEnv) makeCalls(calls, reopen string) string {
	e.Helper()
	s := &callTranscript{caseEnv: e, epochs: map[record.ShardID][]uint64{}, times: map[record.ShardID][]int64{}, watermarks: map[record.ShardID]int64{}}
	can := map[string]bool{"crash": canCrash(s.in), "damage": canDamage(s.in)}
	var out strings.Builder
	for line := range strings.Lines(calls) {
		call, _, _ := strings.Cut(line, "->")
		call = strings.TrimSpace(call)
		words := strings.Fields(call)
		if words[0] == "reopen" {
			words[0] = reopen
		}
		if able, needed := can[words[0]]; needed && !able {
			return calls
		}
		if result := s.makeCall(words[0], words[1:]); result != "" {
			call += " -> " + result
		}
		out.WriteString(call + "\n")
	}
	return out.String()
}

// callTranscript runs one case. Beside the results that it returns, it checks what must hold after each call: epochs grow, persisted
// times and watermarks do not decrease, an appended record is visible at once, and neither side keeps the memory of the other.
type callTranscript struct {
	*caseEnv
	// epochs are those of each shard, in the order in which they were given out: e1, e2, ...
	epochs map[record.ShardID][]uint64
	// times are the persisted times of each shard's records from LSN 1 on; last is the newest one.
	times      map[record.ShardID][]int64
	last       int64
	watermarks map[record.ShardID]int64
	followers  []*checkedFollower
}

// makeCall makes a call and returns its result.
func (s *callTranscript) makeCall(call string, args []string) string {
	s.Helper()
	switch call {
	case "open":
		return s.describeStates(s.log.Open(s.ctx, "suite", mapEach(args, s.parseShard)))
	case "append":
		return s.appendParts(args)
	case "fill": // A n: appends r0, r1, ... one by one
		for i := range s.parseNumber(args[1]) {
			s.appendParts([]string{args[0], fmt.Sprint("r", i)})
		}
	case "read":
		return s.readRecords(args)
	case "tail":
		return s.describeStates(s.log.Tail(s.ctx, mapEach(args, s.parseShard)))
	case "shards":
		return s.describeStates(s.log.Shards(s.ctx, uint32(s.parseNumber(args[0]))))
	case "sequences": // A producer ...
		known, err := s.log.Sequences(s.ctx, s.parseShard(args[0]), mapEach(args[1:], s.parseNumber))
		return s.describeResult(strings.Join(mapEach(known, describeProducer), " "), err)
	case "trim":
		p := s.parsePosition(args[0])
		return s.describeResult("", s.log.Trim(s.ctx, p.Shard, p.LSN))
	case "seal":
		st, err := s.log.Seal(s.ctx, s.parseShard(args[0]))
		return s.describeStates([]metalog.State{st}, err)
	case "retire":
		return s.describeResult("", s.log.Retire(s.ctx, uint32(s.parseNumber(args[0]))))
	case "remove": // A ...: at the newest epochs that are known, or A@1 at the one of that number
		n, err := s.log.Remove(s.ctx, mapEach(args, func(arg string) metalog.Unused {
			name, number, given := strings.Cut(arg, "@")
			u := metalog.Unused{Shard: s.parseShard(name), Epoch: 1}
			epochs := s.epochs[u.Shard]
			if given {
				epochs = epochs[:s.parseNumber(number)]
			}
			if len(epochs) > 0 {
				u.Epoch = epochs[len(epochs)-1]
			}
			return u
		}))
		return s.describeResult(fmt.Sprint(n), err)
	case "removed":
		return s.describeStates(s.log.RemovedShards(s.ctx, uint32(s.parseNumber(args[0])), 0))
	case "erase":
		return s.describeResult("", s.log.Erase(s.ctx, uint32(s.parseNumber(args[0]))))
	case "boundary":
		boundary, err := s.log.AdvanceBoundary(s.ctx, int64(s.parseNumber(args[0])))
		return s.describeResult(fmt.Sprint(boundary), err)
	case "annotate": // A@1=text ...
		kept, err := s.log.Annotate(s.ctx, mapEach(args, func(arg string) metalog.Annotation {
			at, text, _ := strings.Cut(arg, "=")
			p := s.parsePosition(at)
			return metalog.Annotation{Shard: p.Shard, LSN: p.LSN, Kind: zones, Data: s.parseRecord(text)}
		}))
		return s.describeResult(fmt.Sprint("kept ", kept), err)
	case "annotations":
		return s.readAnnotations(args)
	case "follow": // [fast] A@1 ...
		heartbeat := long
		if args[0] == "fast" {
			heartbeat, args = metalog.MinHeartbeat, args[1:]
		}
		s.followers = append(s.followers, s.follow(heartbeat, mapEach(args, s.parsePosition)...))
	case "await":
		return s.awaitFollowers(args)
	case "unfollow":
		for _, f := range s.followers {
			f.stopChecked()
		}
		s.followers = nil
	case "restart":
		s.restartLog()
	case "crash":
		s.crashLog()
	case "damage":
		p := s.parsePosition(args[0])
		s.log = s.in.damage(s, p.Shard, p.LSN)
	default:
		s.Fatalf("unknown call %q", call)
	}
	return ""
}

// appendParts makes one append: [blob=n] A [epoch=e1] [expect=n] [run=...] records... + B records... The epoch is the shard's newest
// one by default, or 1 if it was never opened; +1 means the one after that.
func (s *callTranscript) appendParts(args []string) string {
	s.Helper()
	a := &metalog.Append{}
	if blob, ok := strings.CutPrefix(args[0], "blob="); ok {
		a.OldestBlob, args = int64(s.parseNumber(blob)), args[1:]
	}
	for part := range strings.SplitSeq(strings.Join(args, " "), " + ") {
		words := strings.Fields(part)
		sa := metalog.ShardAppend{Shard: s.parseShard(words[0]), Epoch: 1}
		epochs := s.epochs[sa.Shard]
		if len(epochs) > 0 {
			sa.Epoch = epochs[len(epochs)-1]
		}
		for _, word := range words[1:] {
			option, value, _ := strings.Cut(word, "=")
			switch {
			case word == "epoch=+1":
				sa.Epoch++
			case option == "epoch":
				sa.Epoch = epochs[s.parseNumber(value[1:])-1]
			case option == "expect":
				sa.ExpectLSN = record.LSN(s.parseNumber(value))
			case option == "run":
				var q metalog.Sequence
				_, err := fmt.Sscanf(value, "%d:%d:%d-%d", &q.Producer, &q.Epoch, &q.First, &q.Last)
				s.mustSucceed(err)
				sa.Sequences = append(sa.Sequences, q)
			default:
				sa.Records = append(sa.Records, s.parseRecord(word))
			}
		}
		a.Shards = append(a.Shards, sa)
	}
	done, err := s.log.Append(s.ctx, a)
	if err == nil {
		wantEqual(s.caseEnv, "results", len(done), len(a.Shards))
		for i := range done {
			wantEqual(s.caseEnv, "time", done[i].Time, done[0].Time)
			s.checkAppended(&a.Shards[i], done[i])
		}
		s.last = done[0].Time
	}
	return s.describeResult(strings.Join(mapEach(done, func(d metalog.Appended) string { return fmt.Sprint(d.FirstLSN) }), " "), err)
}

// checkAppended checks the time of records that were appended, that they are visible, and that the engine has its own copies.
func (s *callTranscript) checkAppended(sa *metalog.ShardAppend, done metalog.Appended) {
	s.Helper()
	if least := max(s.last, s.watermarks[sa.Shard], 1); done.Time < least {
		s.Fatalf("shard %v: records got time %d after %d", sa.Shard, done.Time, least)
	}
	var want []string
	for _, data := range sa.Records {
		s.times[sa.Shard] = append(s.times[sa.Shard], done.Time)
		want = append(want, string(data))
		clear(data)
	}
	st := s.tailOf(sa.Shard)
	wantEqual(s.caseEnv, "next LSN", st.NextLSN, done.FirstLSN+record.LSN(len(want)))
	wantEqual(s.caseEnv, "last time", st.LastTime, done.Time)
	s.wantRecords(sa.Shard, done.FirstLSN, want...)
}

// readRecords makes one call of Read: A@1 [records [bytes]].
func (s *callTranscript) readRecords(args []string) string {
	s.Helper()
	p, limits := s.parsePosition(args[0]), make([]int, 2)
	for i, arg := range args[1:] {
		n, err := strconv.Atoi(arg)
		s.mustSucceed(err)
		limits[i] = n
	}
	entries, err := s.log.Read(s.ctx, p.Shard, p.LSN, limits[0], limits[1])
	var out []string
	for i, en := range entries {
		wantEqual(s.caseEnv, "LSN", en.LSN, p.LSN+record.LSN(i))
		wantEqual(s.caseEnv, "time", en.Time, s.times[p.Shard][en.LSN-1])
		out = append(out, describeRecord(en.Data))
		clear(en.Data) // entries belong to the caller
		_ = append(en.Data, "more"...)
	}
	return s.describeResult(describeList(out, " "), err)
}

// readAnnotations makes one call of Annotations: A@from..to [bytes].
func (s *callTranscript) readAnnotations(args []string) string {
	s.Helper()
	from, end, _ := strings.Cut(args[0], "..")
	p, to := s.parsePosition(from), record.LSN(s.parseNumber(end))
	limit := uint64(0)
	if len(args) > 1 {
		limit = s.parseNumber(args[1])
	}
	notes, until, err := s.log.Annotations(s.ctx, p.Shard, p.LSN, to, zones, int(limit))
	var out []string
	for _, n := range notes {
		wantEqual(s.caseEnv, "shard", n.Shard, p.Shard)
		wantEqual(s.caseEnv, "kind", n.Kind, zones)
		out = append(out, fmt.Sprintf("%d=%s", n.LSN, describeRecord(n.Data)))
	}
	if until != to {
		out = append(out, fmt.Sprint("until ", until))
	}
	return s.describeResult(describeList(out, " "), err)
}

// awaitFollowers waits until every follower of a shard is at a position (A@1), at the shard's end (A end), or had an update (A update)
// or two more of them (A beats). "failure" waits until the last subscription has ended.
func (s *callTranscript) awaitFollowers(args []string) string {
	s.Helper()
	if args[0] == "failure" {
		f := s.followers[len(s.followers)-1]
		<-f.done
		return s.describeResult("", f.err)
	}
	name, at, _ := strings.Cut(args[0], "@")
	shard := s.parseShard(name)
	var out []string
	for _, f := range s.followers {
		if f.shards[shard] == nil {
			continue
		}
		before := f.waitFor(shard, "nothing", func(*followedShard) bool { return true }).updates
		got := f.waitFor(shard, strings.Join(args, " "), func(x *followedShard) bool {
			switch {
			case at != "":
				return x.Next >= record.LSN(s.parseNumber(at))
			case args[1] == "end":
				return x.Sealed
			case args[1] == "beats":
				return x.updates >= before+2
			default:
				return x.updates > 0
			}
		})
		text := describeList(textsOf(got.entries), " ")
		if got.TrimmedTo != 0 {
			text = fmt.Sprintf("trimmed to %d, %s", got.TrimmedTo, text)
		}
		out = append(out, fmt.Sprintf("%s, at %d", text, got.Next))
	}
	return strings.Join(out, "; ")
}

// describeResult returns result, or the text of an error that callers branch on.
func (s *callTranscript) describeResult(result string, err error) string {
	s.Helper()
	refused, sequences, trimmed, corrupt := &metalog.RefusedError{}, &metalog.SequenceError{}, &metalog.TrimmedError{}, &metalog.CorruptError{}
	var parts []string
	switch {
	case err == nil:
		return result
	case errors.As(err, &refused):
		for _, r := range refused.Refusals {
			s.wantError(err, r.Err)
			r.State.Sealed = false // the error says it
			parts = append(parts, fmt.Sprintf("%s: %s", s.describeState(r.State), s.sentinelText(r.Err)))
		}
	case errors.As(err, &sequences):
		s.wantError(err, metalog.ErrSequence)
		for _, c := range sequences.Conflicts {
			kind := map[metalog.SequenceKind]string{
				metalog.SequenceDuplicate: "duplicate", metalog.SequenceGap: "gap", metalog.SequenceStaleEpoch: "stale epoch",
			}[c.Kind]
			parts = append(parts, fmt.Sprintf("%s: %s %d:%d:%d-%d after %s",
				nameShard(c.Shard), kind, c.Run.Producer, c.Run.Epoch, c.Run.First, c.Run.Last, describeProducer(c.Known)))
		}
	case errors.As(err, &trimmed):
		s.wantError(err, metalog.ErrTrimmed)
		return fmt.Sprintf("error: %s@%d was trimmed, the first is %d", nameShard(trimmed.Shard), trimmed.LSN, trimmed.First)
	case errors.As(err, &corrupt):
		s.wantError(err, metalog.ErrCorrupt)
		return fmt.Sprintf("error: %s@%d is damaged", nameShard(corrupt.Shard), corrupt.LSN)
	default:
		parts = []string{s.sentinelText(err)}
	}
	return "error: " + strings.Join(parts, "; ")
}

// sentinelText returns the text of the error that err is.
func (s *callTranscript) sentinelText(err error) string {
	s.Helper()
	sentinel := metalog.FindSentinel(err)
	if sentinel == nil {
		s.Fatalf("unexpected error: %v", err)
	}
	return strings.TrimPrefix(sentinel.Error(), "metalog: ")
}

func (s *callTranscript) describeStates(states []metalog.State, err error) string {
	s.Helper()
	if err != nil {
		return s.describeResult("", err)
	}
	return describeList(mapEach(states, s.describeState), ", ")
}

// describeState checks a state's times and returns the rest: shard, epoch, first and next LSN.
func (s *callTranscript) describeState(st metalog.State) string {
	s.Helper()
	times := s.times[st.Shard]
	last := int64(0)
	if st.NextLSN > 1 {
		last = times[st.NextLSN-2]
	}
	least := max(s.watermarks[st.Shard], 1)
	if s.in.lags {
		least = 1
	}
	if st.LastTime != last || st.Watermark < least {
		s.Fatalf("the state is %+v, the watermark was %d, the records' times are %v", st, s.watermarks[st.Shard], times)
	}
	s.watermarks[st.Shard] = max(st.Watermark, s.watermarks[st.Shard])
	text := nameShard(st.Shard)
	if st.Epoch != 0 {
		epochs := s.epochs[st.Shard]
		i := slices.Index(epochs, st.Epoch)
		if i < 0 {
			if i = len(epochs); i > 0 && st.Epoch < epochs[i-1] {
				s.Fatalf("shard %v got epoch %d after %v", st.Shard, st.Epoch, epochs)
			}
			s.epochs[st.Shard] = append(epochs, st.Epoch)
		}
		text += fmt.Sprintf(" e%d", i+1)
	}
	text += fmt.Sprintf(" [%d,%d)", st.FirstLSN, st.NextLSN)
	if st.Sealed {
		text += " sealed"
	}
	return text
}

func describeList(list []string, separator string) string {
	return cmp.Or(strings.Join(list, separator), "none")
}

func describeProducer(p metalog.ProducerState) string {
	if !p.Known() {
		return fmt.Sprintf("%d:unknown", p.Producer)
	}
	return fmt.Sprintf("%d:%d:%d", p.Producer, p.Epoch, p.Next)
}

func (s *callTranscript) parseNumber(text string) uint64 {
	s.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	s.mustSucceed(err)
	return n
}

var namedShards = []record.ShardID{shardA, shardB, shardC}

func (s *callTranscript) parseShard(text string) record.ShardID {
	s.Helper()
	if len(text) == 1 {
		return namedShards[text[0]-'A']
	}
	shard, err := record.ParseShardID(text)
	s.mustSucceed(err)
	return shard
}

func nameShard(shard record.ShardID) string {
	if i := slices.Index(namedShards, shard); i >= 0 {
		return "ABC"[i : i+1]
	}
	return shard.String()
}

func (s *callTranscript) parsePosition(text string) metalog.Position {
	s.Helper()
	shard, lsn, _ := strings.Cut(text, "@")
	return positionAt(s.parseShard(shard), record.LSN(s.parseNumber(lsn)))
}

func (s *callTranscript) parseRecord(text string) []byte {
	s.Helper()
	text, times, repeated := strings.Cut(text, "*")
	data, err := strconv.Unquote(`"` + text + `"`)
	s.mustSucceed(err)
	if repeated {
		data = strings.Repeat(data, int(s.parseNumber(times)))
	}
	return []byte(data)
}

func describeRecord(data []byte) string {
	if n := len(data); n > 20 && strings.Count(string(data), string(data[:1])) == n {
		return fmt.Sprintf("%s*%d", describeRecord(data[:1]), n)
	}
	return strings.Trim(strconv.Quote(string(data)), `"`)
}

func mapEach[From, To any](in []From, convert func(From) To) []To {
	out := make([]To, len(in))
	for i, v := range in {
		out[i] = convert(v)
	}
	return out
}
