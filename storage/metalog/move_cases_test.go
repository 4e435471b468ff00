package metalog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"scribe/internal/format/record"
	"scribe/internal/testkit/testsize"
	"scribe/storage/metalog"
	"scribe/storage/metalog/linear"
	"scribe/storage/metalog/moving"
)

// twoEngines is a log over engines "a" and "b", as a router makes one: shards are created in "a", and move forth and back. Who meets a shard between
// them finishes its move.
type twoEngines struct {
	engines [2]metalog.Log
	// patience is that of moves.
	patience time.Duration
}

var engineNames = [2]string{"a", "b"}

// twice makes two environments.
func twice(tb testing.TB, f logFactory) (a, b *caseEnv) {
	tb.Helper()
	a, b = newEnv(tb, f), newEnv(tb, f)
	return a, b
}

// pairOf returns the log over two environments as they are now.
func pairOf(a, b *caseEnv) *twoEngines {
	return &twoEngines{engines: [2]metalog.Log{a.log, b.log}, patience: caseTimeout}
}

// pairInHistory is pairOf for a history in which engines are replaced: a move gives up one that crashed, and whoever comes next finishes it.
func pairInHistory(a, b *caseEnv) *twoEngines {
	p := pairOf(a, b)
	p.patience = time.Second
	return p
}

// moveFrom moves a shard, or finishes its move.
func (p *twoEngines) moveFrom(ctx context.Context, i int, shard record.ShardID) (moving.Moved, error) {
	return moving.MoveLog(ctx, moving.Move{
		Shard: shard, From: engineNames[i], To: engineNames[1-i], Source: p.engines[i], Destination: p.engines[1-i],
	}, moving.Options{Patience: p.patience})
}

// look returns the index of the engine that has a shard, with its state there. between says that the other one is to adopt it.
func (p *twoEngines) look(ctx context.Context, shard record.ShardID) (i int, st metalog.State, between bool, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return 0, st, false, err
		}
		var states [2]metalog.State
		for n := range states {
			found, err := p.engines[n].Tail(ctx, []record.ShardID{shard})
			if err != nil {
				return 0, st, false, err
			}
			states[n] = found[0]
			if found[0].MovedTo == "" && (found[0].Epoch != 0 || n == 0) {
				return n, found[0], false, nil
			}
		}
		if states[1].Epoch == 0 { // "a" has handed it over for the first time, and "b", which was asked later, has not adopted it
			return 0, states[0], true, nil
		}
		// Both have handed it over. The older handover was adopted by the one with the newer one, unless it has moved between the looks.
		n := 0
		if states[1].Epoch > states[0].Epoch {
			n = 1
		}
		again, err := p.engines[n].Tail(ctx, []record.ShardID{shard})
		if err != nil {
			return 0, st, false, err
		}
		other, err := p.engines[1-n].Tail(ctx, []record.ShardID{shard})
		if err != nil {
			return 0, st, false, err
		}
		if again[0].MovedTo != "" && other[0].MovedTo != "" && other[0].Epoch < again[0].Epoch {
			return n, again[0], true, nil
		}
	}
}

// settle returns the engine that has a shard, and the shard's tail, after finishing its move.
func (p *twoEngines) settle(ctx context.Context, shard record.ShardID) (i int, tail record.LSN, err error) {
	for {
		i, st, between, err := p.look(ctx, shard)
		if err != nil || !between {
			return i, st.NextLSN, err
		}
		_, err = p.moveFrom(ctx, i, shard)
		if errors.Is(err, metalog.ErrConflict) { // no history has that
			return i, 0, err
		}
		if err != nil && !errors.Is(err, metalog.ErrElsewhere) {
			return i, 0, fmt.Errorf("unsettled: %v", err) //nolint:errorlint // nothing is known of the call that waits for it
		}
	}
}

// atHome makes a call at the engine that has a shard, again when it has moved.
func atHome[T any](ctx context.Context, p *twoEngines, shard record.ShardID, call func(metalog.Log) (T, error)) (res T, err error) {
	for {
		i, _, err := p.settle(ctx, shard)
		if err != nil {
			return res, err
		}
		if res, err = call(p.engines[i]); !errors.Is(err, metalog.ErrElsewhere) {
			return res, err
		}
	}
}

func (p *twoEngines) MoveLog(ctx context.Context, shard record.ShardID) (metalog.Handover, error) {
	i, st, _, err := p.look(ctx, shard)
	if err == nil && st.Epoch == 0 {
		err = fmt.Errorf("%w: nothing to move", metalog.ErrClosed)
	}
	if err != nil {
		return metalog.Handover{}, err
	}
	moved, err := p.moveFrom(ctx, i, shard)
	if errors.Is(err, metalog.ErrElsewhere) {
		err = fmt.Errorf("overtaken: %v", err) //nolint:errorlint // the shard may have been handed over
	}
	return moved.Handover, err
}

func (p *twoEngines) Open(ctx context.Context, owner string, shards []record.ShardID) ([]metalog.State, error) {
	states, err := atHome(ctx, p, shards[0], func(l metalog.Log) ([]metalog.State, error) { return l.Open(ctx, owner, shards) })
	for i := range states {
		states[i] = whole(states[i])
	}
	return states, err
}

// whole makes a state one of all engines: nothing is trimmed.
func whole(st metalog.State) metalog.State {
	st.FirstLSN = record.FirstLSN
	return st
}

func (p *twoEngines) Append(ctx context.Context, a *metalog.Append) ([]metalog.Appended, error) {
	done, err := atHome(ctx, p, a.Shards[0].Shard, func(l metalog.Log) ([]metalog.Appended, error) { return l.Append(ctx, a) })
	if refused := new(metalog.RefusedError); errors.As(err, &refused) {
		for i := range refused.Refusals {
			refused.Refusals[i].State = whole(refused.Refusals[i].State)
		}
	}
	return done, err
}

func (p *twoEngines) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	_, st, _, err := p.look(ctx, shards[0])
	return []metalog.State{whole(st)}, err
}

func (p *twoEngines) Trim(context.Context, record.ShardID, record.LSN) error {
	return metalog.ErrClosed
}

// Read reads on in the other engine where one says so. Each part was the end of the log, or what followed was in the other engine.
func (p *twoEngines) Read(ctx context.Context, shard record.ShardID, from record.LSN, maxRecords, maxBytes int) (out []metalog.Entry, err error) {
	i, _, err := p.settle(ctx, shard)
	for hops := 0; err == nil; {
		var part []metalog.Entry
		part, err = p.engines[i].Read(ctx, shard, from+record.LSN(len(out)), maxRecords-len(out), maxBytes)
		elsewhere := new(metalog.ElsewhereError)
		switch {
		case errors.As(err, &elsewhere):
			i = slices.Index(engineNames[:], elsewhere.Engine)
			if hops++; hops > 100 { // only a lie sends forth and back for so long
				return out, nil
			}
			if _, _, err = p.settle(ctx, shard); err != nil {
				return nil, err
			}
		case err != nil:
		case len(part) == 0:
			return out, nil
		default:
			if out = append(out, part...); len(out) == maxRecords {
				return out, nil
			}
		}
	}
	return nil, err
}

func (p *twoEngines) Subscribe(ctx context.Context, from []metalog.Position, heartbeat time.Duration, fn func([]metalog.Update) error) error {
	at, told := from[0], linear.FollowedShard{Next: from[0].LSN}
	i, tail, err := p.settle(ctx, at.Shard)
	for err == nil {
		next := i
		// What an engine has may end before the tail, and an engine that has not adopted the shard yet has none.
		told.Tail = max(told.Tail, tail)
		err = p.engines[i].Subscribe(ctx, []metalog.Position{at}, heartbeat, func(updates []metalog.Update) error {
			u := updates[0]
			if u.MovedTo != "" {
				next, u.MovedTo = slices.Index(engineNames[:], u.MovedTo), ""
			}
			at.LSN += record.LSN(len(u.Entries))
			if u.NextLSN = max(u.NextLSN, told.Tail); at.LSN < u.NextLSN {
				u.Watermark = 0
			}
			told.Tail = u.NextLSN
			if len(u.Entries) > 0 || u.Watermark > 0 {
				if err := fn([]metalog.Update{u}); err != nil {
					return err
				}
			}
			if next != i {
				return errMoved
			}
			return nil
		})
		if errors.Is(err, errMoved) {
			if i = next; ctx.Err() == nil {
				_, tail, err = p.settle(ctx, at.Shard)
			}
		}
	}
	return err
}

// errMoved ends a subscription at one engine.
var errMoved = errors.New("moved")

var moveCases = []testCase{
	{name: "histories over moves are linearizable", many: func(t *testing.T, f logFactory) {
		moveHistories(t, f, nil, func(*caseEnv, *caseEnv, *linear.Line, *linear.Config) {})
	}},
	{name: "histories over moves and crashes are linearizable", many: func(t *testing.T, f logFactory) {
		moveHistories(t, f, nil, func(a, b *caseEnv, line *linear.Line, cfg *linear.Config) {
			if !canCrash(a.in) {
				return
			}
			cfg.Disturbances, cfg.Disturb = 3, func(rng *rand.Rand) {
				line.Break(func() linear.Log {
					[2]*caseEnv{a, b}[rng.IntN(2)].crashLog()
					return pairInHistory(a, b)
				})
			}
		})
	}},
	{name: "a shard moves forth and back with all that it knows", many: forthAndBack},
	{name: "a move is finished after a failure at each of its calls", many: finishedMoves},
	{name: "a move between clocks that are too far apart is refused", many: farClocks},
	{name: "the clock of the engine that adopts is not below the one that handed over", many: raisedClock},
	{name: "an engine that a category leaves creates no shard of it", test: leavingCategory},
	{name: "a follower is told where its shard goes on", test: followersOfMoves},
	{name: "handovers that can't be are refused", test: falseHandovers},
	{name: "a trim forgets stays that it leaves nothing of", test: trimmedStays},
}

// moveHistories checks histories with moves between engines, the clock of one of which is behind.
func moveHistories(t *testing.T, f logFactory, lie func(metalog.Log) metalog.Log, disturb func(a, b *caseEnv, line *linear.Line, cfg *linear.Config)) {
	seed, decided := number(t, seedVariable, rand.Uint64()), 0
	for range number(t, roundsVariable, testsize.Test[uint64](4, 3, 1)) {
		if err := moveHistory(t, f, seed, lie, disturb); err == nil {
			decided++
		} else if !errors.Is(err, linear.ErrUndecided) {
			t.Fatalf("%s=%d: %v", seedVariable, seed, err)
		}
		seed++
	}
	if decided == 0 {
		t.Error("no history was decided: the machine is too slow for so many calls at once")
	}
}

func moveHistory(
	t *testing.T, f logFactory, seed uint64, lie func(metalog.Log) metalog.Log, disturb func(a, b *caseEnv, line *linear.Line, cfg *linear.Config),
) error {
	t.Helper()
	a, b := twice(t, f)
	a.in.clock.Advance(20 * time.Minute)
	p := pairInHistory(a, b)
	if lie != nil {
		p.engines = [2]metalog.Log{lie(a.log), lie(b.log)}
	}
	line := linear.NewLine(p)
	// A call of the pair is several of an engine.
	cfg := linear.Config{Seed: seed, Moves: true, Hurry: time.Millisecond}
	disturb(a, b, line, &cfg)
	ctx := a.ctx
	if lie != nil { // after some lies no call ends
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		ctx = limited
	}
	h := linear.Run(ctx, cfg, line)
	a.closeLog()
	b.closeLog()
	t.Logf("%s=%d: %d operations, %d of them of unknown outcome", seedVariable, seed, h.Len(), h.Unknown())
	return h.Check()
}

// TestLiesAboutMoves: a history finds out an engine that adopts something else than what was handed over.
func TestLiesAboutMoves(t *testing.T) {
	for name, change := range map[string]func(h *metalog.Handover){
		"the last record is forgotten": func(h *metalog.Handover) { h.NextLSN = max(h.NextLSN-1, 1) },
		"a record is left out":         func(h *metalog.Handover) { h.NextLSN++ },
		"who had it open goes on":      func(h *metalog.Handover) { h.Epoch-- },
		"the clock is not raised":      func(h *metalog.Handover) { h.Time, h.LastTime = 1, 0 },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				err := moveHistory(t, onMemory, seed, func(l metalog.Log) metalog.Log { return &liarAboutMoves{l, change} },
					func(_, _ *caseEnv, _ *linear.Line, cfg *linear.Config) { cfg.CatchUp = 2 * time.Second })
				if err != nil && !errors.Is(err, linear.ErrUndecided) {
					return
				}
			}
			t.Error("the lie is not found")
		})
	}
}

// liarAboutMoves adopts something else than what was handed over, where its engine does not notice that.
type liarAboutMoves struct {
	metalog.Log
	change func(*metalog.Handover)
}

func (l *liarAboutMoves) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (metalog.State, error) {
	lie := h
	l.change(&lie)
	st, err := l.Log.MoveIn(ctx, lie, producers)
	if errors.Is(err, metalog.ErrConflict) || errors.Is(err, metalog.ErrInvalid) {
		return l.Log.MoveIn(ctx, h, producers)
	}
	return st, err
}

// mustMove moves a shard from one engine to the other.
func mustMove(e *caseEnv, p *twoEngines, from int, shard record.ShardID) moving.Moved {
	e.Helper()
	moved, err := p.moveFrom(e.ctx, from, shard)
	e.mustSucceed(err)
	return moved
}

func forthAndBack(t *testing.T, f logFactory) {
	a, b := twice(t, f)
	p := pairOf(a, b)
	epoch := a.openOne(shardA)
	old := appendTo(shardA, epoch, "r1", "r2")
	old.Sequences = []metalog.Sequence{makeRun(9, 0, 4), makeRun(11, 0, 0)}
	before := a.appendAll(old)[0]

	moved := mustMove(a, p, 0, shardA)
	want := metalog.Handover{
		Shard: shardA, From: "a", To: "b", NextLSN: 3, Epoch: epoch + 1, LastTime: before.Time, Time: moved.Handover.Time, Producers: 2,
	}
	wantEqual(a, "handover", moved.Handover, want)
	for range 2 { // again, also after it was used there
		again := mustMove(a, p, 0, shardA)
		wantEqual(a, "the same handover", again.Handover, moved.Handover)
		wantEqual(a, "resumed", again.Resumed, true)
		wantEqual(b, "adopted", again.State.Adopted, want.Epoch)
		b.restartLog()
		p = pairOf(a, b)
	}
	// Who had it open can't go on, neither here nor there.
	a.wantError(a.tryAppend(appendTo(shardA, epoch, "x")), metalog.ErrElsewhere)
	a.wantError(a.tryAppend(appendTo(shardA, epoch+1, "x")), metalog.ErrElsewhere)
	b.wantError(b.tryAppend(appendTo(shardA, epoch, "x")), metalog.ErrFenced)
	_, err := a.log.Open(a.ctx, "late", []record.ShardID{shardA})
	a.wantError(err, metalog.ErrElsewhere)
	wantEqual(a, "where it is", asError[*metalog.RefusedError](a, err).Refusals[0].State.MovedTo, "b")
	_, err = a.log.Seal(a.ctx, shardA)
	a.wantError(err, metalog.ErrElsewhere)

	// The new engine knows the producers, and goes on with LSNs, epochs and times.
	b.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 1, Next: 5})
	epochB := b.openOne(shardA)
	wantEqual(b, "epoch", epochB > want.Epoch, true)
	duplicate := appendTo(shardA, epochB, "twice")
	duplicate.Sequences = []metalog.Sequence{makeRun(9, 4, 4)}
	b.wantError(b.tryAppend(duplicate), metalog.ErrSequence)
	next := appendTo(shardA, epochB, "r3")
	next.Sequences = []metalog.Sequence{makeRun(9, 5, 6), makeRun(12, 0, 0)}
	done := b.appendAll(next)[0]
	wantEqual(b, "LSN", done.FirstLSN, 3)
	wantEqual(b, "time is not below the handover's", done.Time >= moved.Handover.Time, true)

	back := mustMove(b, p, 1, shardA)
	wantEqual(b, "producers", back.Handover.Producers, 3)
	a.restartLog()
	b.restartLog()
	p = pairOf(a, b)
	a.wantKnown(shardA, metalog.ProducerState{Producer: 9, Epoch: 1, Next: 7})
	a.wantKnown(shardA, metalog.ProducerState{Producer: 12, Epoch: 1, Next: 1})
	epochA := a.openOne(shardA)
	a.appendAll(appendTo(shardA, epochA, "r4", "r5"))
	// A handover of before has no effect any more.
	_, err = b.log.MoveIn(b.ctx, moved.Handover, nil)
	b.wantError(err, metalog.ErrInvalid)
	st, err := b.log.MoveIn(b.ctx, moved.Handover, []metalog.MovedProducer{
		{ProducerState: metalog.ProducerState{Producer: 9, Epoch: 1, Next: 5}, LSN: 2}, {ProducerState: metalog.ProducerState{Producer: 11, Epoch: 1, Next: 1}, LSN: 2},
	})
	b.mustSucceed(err)
	wantEqual(b, "where it went", st.MovedTo, "a")

	entries, err := p.Read(a.ctx, shardA, 1, 100, 0)
	a.mustSucceed(err)
	wantEqual(a, "records", fmt.Sprint(textsOf(entries)), "[r1 r2 r3 r4 r5]")
	// Each engine has its part, and says where the others are.
	_, err = a.log.Read(a.ctx, shardA, 3, 0, 0)
	wantEqual(a, "elsewhere", *asError[*metalog.ElsewhereError](a, err), metalog.ElsewhereError{Shard: shardA, LSN: 3, Engine: "b"})
	_, err = b.log.Read(b.ctx, shardA, 2, 0, 0)
	wantEqual(b, "before", *asError[*metalog.ElsewhereError](b, err), metalog.ElsewhereError{Shard: shardA, LSN: 2, Engine: "a"})
	_, err = b.log.Read(b.ctx, shardA, 4, 0, 0)
	wantEqual(b, "after", *asError[*metalog.ElsewhereError](b, err), metalog.ElsewhereError{Shard: shardA, LSN: 4, Engine: "a"})
	stays, err := a.log.Stays(a.ctx, shardA)
	a.mustSucceed(err)
	wantEqual(a, "stays", len(stays), 2)
	wantEqual(a, "first stay", stays[0].Begin == 1 && stays[0].NextLSN == 3 && stays[0].MovedTo == "b" && stays[0].Left == moved.Handover.Time, true)
	wantEqual(a, "newest stay", stays[1].Begin == 4 && stays[1].NextLSN == 6 && stays[1].MovedFrom == "b" && stays[1].MovedTo == "", true)
	// A time is sought in all stays.
	lsns, err := a.log.Seek(a.ctx, []record.ShardID{shardA}, before.Time)
	a.mustSucceed(err)
	wantEqual(a, "first record since its time", lsns[0], before.FirstLSN)
	lsns, err = a.log.Seek(a.ctx, []record.ShardID{shardA}, before.Time+1)
	a.mustSucceed(err)
	wantEqual(a, "first record after it in this engine", lsns[0], 4)
	a.closeLog()
	b.closeLog()
}

// failingLog is an engine one of whose calls fails, before or after it was carried out.
type failingLog struct {
	metalog.Log
	left  *int // calls until it fails
	after bool
}

var errPlanted = errors.New("planted failure")

func failable[T any](l *failingLog, call func() (T, error)) (res T, err error) {
	*l.left--
	if *l.left == 0 && !l.after {
		return res, errPlanted
	}
	answer, err := call()
	if *l.left == 0 {
		return res, errPlanted
	}
	return answer, err
}

func (l *failingLog) Tail(ctx context.Context, shards []record.ShardID) ([]metalog.State, error) {
	return failable(l, func() ([]metalog.State, error) { return l.Log.Tail(ctx, shards) })
}

func (l *failingLog) MoveOut(ctx context.Context, shard record.ShardID, from, to string) (metalog.Handover, error) {
	return failable(l, func() (metalog.Handover, error) { return l.Log.MoveOut(ctx, shard, from, to) })
}

func (l *failingLog) MovedProducers(ctx context.Context, shard record.ShardID, epoch, first uint64, limit int) ([]metalog.MovedProducer, error) {
	return failable(l, func() ([]metalog.MovedProducer, error) { return l.Log.MovedProducers(ctx, shard, epoch, first, limit) })
}

func (l *failingLog) MoveIn(ctx context.Context, h metalog.Handover, producers []metalog.MovedProducer) (metalog.State, error) {
	return failable(l, func() (metalog.State, error) { return l.Log.MoveIn(ctx, h, producers) })
}

// finishedMoves lets each call of a move fail in turn, with the engines crashing then, and another one finish it.
func finishedMoves(t *testing.T, f logFactory) {
	a, b := twice(t, f)
	steps := 0
	for _, after := range []bool{false, true} {
		for step := 1; ; step++ {
			shard := record.MakeShardID(60, uint16(step), uint16(len(engineNames)))
			if after {
				shard = record.MakeShardID(61, uint16(step), 0)
			}
			epoch := a.openOne(shard)
			x := appendTo(shard, epoch, "x", "y")
			x.Sequences = []metalog.Sequence{makeRun(1, 0, 1)}
			a.appendAll(x)
			left := step
			_, err := moving.MoveLog(a.ctx, moving.Move{
				Shard: shard, From: "a", To: "b", Source: &failingLog{a.log, &left, after}, Destination: &failingLog{b.log, &left, after},
			}, moving.Options{Patience: time.Nanosecond})
			if left > 0 { // it has no more calls
				a.mustSucceed(err)
				break
			}
			steps++
			a.wantError(err, errPlanted)
			if canCrash(a.in) && testsize.Test(true, step%2 == 0, false) {
				a.crashLog()
				b.crashLog()
			}
			moved := mustMove(a, pairOf(a, b), 0, shard)
			wantEqual(a, "epoch", moved.Handover.Epoch, epoch+1)
			epochB := b.openOne(shard)
			b.appendAll(appendTo(shard, epochB, "z"))
			b.wantKnown(shard, metalog.ProducerState{Producer: 1, Epoch: 1, Next: 2})
			entries, err := pairOf(a, b).Read(a.ctx, shard, 1, 10, 0)
			a.mustSucceed(err)
			wantEqual(a, "records", fmt.Sprint(textsOf(entries)), "[x y z]")
		}
	}
	wantEqual(a, "every call of a move has failed before and after", steps >= 2*6, true)
	a.closeLog()
	b.closeLog()
}

func farClocks(t *testing.T, f logFactory) {
	a, b := twice(t, f)
	a.in.clock.Advance(metalog.MaxClockJump + time.Minute)
	epoch := a.openOne(shardA)
	_, err := pairOf(a, b).moveFrom(a.ctx, 0, shardA)
	a.wantError(err, metalog.ErrClock)
	far := asError[*metalog.ClockError](a, err)
	wantEqual(a, "both times", far.Time-far.Clock > metalog.MaxClockJump.Microseconds(), true)
	a.appendAll(appendTo(shardA, epoch, "goes on"))
	// An engine refuses by itself what it would have to jump for.
	h, err := a.log.MoveOut(a.ctx, shardA, "a", "b")
	a.mustSucceed(err)
	_, err = b.log.MoveIn(b.ctx, h, nil)
	b.wantError(err, metalog.ErrClock)
	wantEqual(b, "time", asError[*metalog.ClockError](b, err).Time, h.Time)
	_, err = b.log.ForwardCategory(b.ctx, 8, metalog.Forward{Version: 1, Time: h.Time})
	b.wantError(err, metalog.ErrClock)
	b.in.clock.Advance(2 * time.Minute) // and goes on when its clock is near
	moved := mustMove(a, pairOf(a, b), 0, shardA)
	wantEqual(a, "resumed", moved.Resumed, true)
	a.closeLog()
	b.closeLog()
}

func raisedClock(t *testing.T, f logFactory) {
	a, b := twice(t, f)
	a.in.clock.Advance(30 * time.Minute)
	epoch := a.openOne(shardA)
	a.appendAll(appendTo(shardA, epoch, "r1"))
	promised := a.tailOf(shardA).Watermark
	h := mustMove(a, pairOf(a, b), 0, shardA).Handover
	a.in.clock.Advance(10 * time.Minute)
	wantEqual(a, "the watermark of what was handed over", a.tailOf(shardA).Watermark <= h.Time, true)
	wantEqual(a, "the time of the handover", h.Time >= promised, true)
	// Other shards, too, and over a restart with the clock set back.
	b.restartLog()
	epochs := b.openShards(shardA, shardB)
	for i, shard := range []record.ShardID{shardA, shardB} {
		wantEqual(b, "time", b.appendAll(appendTo(shard, epochs[i], "r"))[0].Time >= h.Time, true)
	}
	// The floor of a category that comes, without any shard.
	floor := b.in.clock.Now() + time.Hour.Microseconds()
	f1, err := b.log.ForwardCategory(b.ctx, 8, metalog.Forward{Version: 1, Time: floor})
	b.mustSucceed(err)
	wantEqual(b, "time of the mark", f1.Time >= floor, true)
	shard := record.MakeShardID(8, 0, 0)
	wantEqual(b, "time", b.appendAll(appendTo(shard, b.openOne(shard), "r"))[0].Time >= floor, true)
	a.closeLog()
	b.closeLog()
}

func leavingCategory(e *caseEnv) {
	f := func(to string, version uint64) (metalog.Forward, error) {
		return e.log.ForwardCategory(e.ctx, 7, metalog.Forward{To: to, Version: version})
	}
	none, err := f("", 0)
	e.mustSucceed(err)
	wantEqual(e, "no mark", none, metalog.Forward{})
	epoch := e.openOne(shardA)
	first, err := f("b", 5)
	e.mustSucceed(err)
	for _, again := range []uint64{5, 0} {
		to := map[uint64]string{5: "b"}[again]
		got, err := f(to, again)
		e.mustSucceed(err)
		wantEqual(e, "the mark", got, first)
	}
	for _, stale := range []metalog.Forward{{To: "b", Version: 4}, {Version: 4}, {To: "c", Version: 5}} {
		_, err := e.log.ForwardCategory(e.ctx, 7, stale)
		e.wantError(err, metalog.ErrConflict)
	}
	for range 2 {
		e.openShards(shardA) // existing ones go on
		epoch++
		e.appendAll(appendTo(shardA, epoch, "r"))
		_, err = e.log.Open(e.ctx, "stale", []record.ShardID{shardA, shardB})
		e.wantError(err, metalog.ErrElsewhere)
		refused := asError[*metalog.RefusedError](e, err).Refusals
		wantEqual(e, "refused", len(refused) == 1 && refused[0].State.Shard == shardB && refused[0].State.MovedTo == "b" && refused[0].State.Epoch == 0, true)
		wantEqual(e, "nothing was opened", e.tailOf(shardA).Epoch, epoch)
		st := e.tailOf(shardB)
		wantEqual(e, "where it would be created", st.MovedTo, "b")
		wantEqual(e, "its watermark stands", st.Watermark <= first.Time, true)
		_, err = e.log.MoveOut(e.ctx, shardB, "a", "c")
		e.wantError(err, metalog.ErrElsewhere)
		e.restartLog()
	}
	follower := e.follow(metalog.MinHeartbeat, positionAt(shardB, 1))
	wantEqual(e, "told", follower.waitFor(shardB, "the end", func(s *followedShard) bool { return s.MovedTo != "" }).MovedTo, "b")
	follower.stopChecked()
	back, err := f("", 6)
	e.mustSucceed(err)
	wantEqual(e, "back", back.To, "")
	e.openShards(shardB)
	e.mustSucceed(errors.Join(e.log.Retire(e.ctx, 7), e.log.Erase(e.ctx, 7)))
	gone, err := f("", 0)
	e.mustSucceed(err)
	wantEqual(e, "no mark of an erased category", gone, metalog.Forward{})
}

func followersOfMoves(e *caseEnv) {
	epochs := e.openShards(shardA, shardB)
	e.fillShard(shardA, epochs[0], 3)
	running := e.follow(metalog.MinHeartbeat, positionAt(shardA, 1), positionAt(shardB, 1))
	running.waitPosition(shardA, 4)
	h, err := e.log.MoveOut(e.ctx, shardA, "a", "b")
	e.mustSucceed(err)
	moved := func(s *followedShard) bool { return s.MovedTo != "" }
	end := running.waitFor(shardA, "the end", moved)
	wantEqual(e, "told", end.MovedTo == "b" && end.Next == 4 && !end.Sealed && end.Watermark <= h.Time, true)
	e.appendAll(appendTo(shardB, epochs[1], "r"))
	running.waitPosition(shardB, 2)
	running.stopChecked()
	// It comes back after the other engine has stored LSNs 4 to 9.
	st, err := e.log.MoveIn(e.ctx, metalog.Handover{
		Shard: shardA, From: "b", To: "a", NextLSN: 10, Epoch: h.Epoch + 3, LastTime: h.LastTime, Time: h.Time + 1,
	}, nil)
	e.mustSucceed(err)
	wantEqual(e, "state", st.Begin == 10 && st.MovedFrom == "b" && st.FirstLSN == 1 && st.NextLSN == 10 && st.MovedTo == "", true)
	e.appendAll(appendTo(shardA, e.openOne(shardA), "new"))
	for from, want := range map[record.LSN]string{1: "b", 4: "b", 7: "b"} {
		late := e.follow(long, positionAt(shardA, from))
		got := late.waitFor(shardA, "the end", moved)
		wantEqual(e, "engine", got.MovedTo, want)
		wantEqual(e, "position", got.Next, max(from, 4))
		late.stopChecked()
	}
	late := e.follow(long, positionAt(shardA, 10))
	wantEqual(e, "records", fmt.Sprint(textsOf(late.waitPosition(shardA, 11).entries)), "[new]")
	late.stopChecked()
}

func falseHandovers(e *caseEnv) {
	e.fillShard(shardA, e.openOne(shardA), 2)
	h := metalog.Handover{Shard: shardA, From: "b", To: "a", NextLSN: 3, Epoch: 9, LastTime: 5, Time: 6}
	adopt := func(change func(*metalog.Handover), producers ...metalog.MovedProducer) error {
		h := h
		change(&h)
		_, err := e.log.MoveIn(e.ctx, h, producers)
		return err
	}
	same := func(*metalog.Handover) {}
	e.wantError(adopt(same), metalog.ErrConflict) // it is here
	out, err := e.log.MoveOut(e.ctx, shardA, "a", "b")
	e.mustSucceed(err)
	_, err = e.log.MoveOut(e.ctx, shardA, "a", "c")
	e.wantError(err, metalog.ErrElsewhere)
	wantEqual(e, "engine", asError[*metalog.ElsewhereError](e, err).Engine, "b")
	h.Epoch, h.LastTime, h.Time = out.Epoch+1, out.LastTime, out.Time
	for what, change := range map[string]func(*metalog.Handover){
		"records that are here": func(h *metalog.Handover) { h.NextLSN = 2 },
		"an epoch of before":    func(h *metalog.Handover) { h.Epoch = out.Epoch },
		"a time of before":      func(h *metalog.Handover) { h.LastTime-- },
	} {
		if err := adopt(change); !errors.Is(err, metalog.ErrConflict) {
			e.Fatalf("%s: %v", what, err)
		}
	}
	p := metalog.MovedProducer{ProducerState: metalog.ProducerState{Producer: 3, Next: 1}, LSN: 1}
	for what, call := range map[string]func() error{
		"no epoch":           func() error { return adopt(func(h *metalog.Handover) { h.Epoch = 0 }) },
		"no LSN":             func() error { return adopt(func(h *metalog.Handover) { h.NextLSN = 0 }) },
		"no time":            func() error { return adopt(func(h *metalog.Handover) { h.Time, h.LastTime = 0, 0 }) },
		"the same engine":    func() error { return adopt(func(h *metalog.Handover) { h.From = "a" }) },
		"a name":             func() error { return adopt(func(h *metalog.Handover) { h.From = "../b" }) },
		"a producer missing": func() error { return adopt(func(h *metalog.Handover) { h.Producers = 1 }) },
		"producers twice":    func() error { return adopt(func(h *metalog.Handover) { h.Producers = 2 }, p, p) },
		"a producer ahead": func() error {
			return adopt(func(h *metalog.Handover) { h.Producers = 1 }, metalog.MovedProducer{ProducerState: p.ProducerState, LSN: 3})
		},
		"no such shard": func() error { _, err := e.log.MoveOut(e.ctx, shardB, "a", "b"); return err },
	} {
		if err := call(); !errors.Is(err, metalog.ErrInvalid) {
			e.Fatalf("%s: %v", what, err)
		}
	}
	_, err = e.log.MovedProducers(e.ctx, shardA, out.Epoch-1, 0, 0)
	e.wantError(err, metalog.ErrFenced)
	e.mustSucceed(adopt(same))
	_, err = e.log.MovedProducers(e.ctx, shardA, out.Epoch, 0, 0)
	e.wantError(err, metalog.ErrFenced)
	// A retired category takes nothing, and gives nothing.
	e.mustSucceed(e.log.Retire(e.ctx, 7))
	_, err = e.log.MoveOut(e.ctx, shardA, "a", "b")
	e.wantError(err, metalog.ErrSealed)
	e.wantError(adopt(func(h *metalog.Handover) { h.Shard = shardC }), metalog.ErrSealed)
	// A sealed shard moves as one.
	shard := record.MakeShardID(8, 0, 0)
	e.openOne(shard)
	_, err = e.log.Seal(e.ctx, shard)
	e.mustSucceed(err)
	sealed, err := e.log.MoveOut(e.ctx, shard, "a", "b")
	e.mustSucceed(err)
	wantEqual(e, "sealed", sealed.Sealed, true)
}

// trimmedStays lets a shard come and go, with some records here each time, until the engine keeps no more stays of it.
func trimmedStays(e *caseEnv) {
	epoch := e.openOne(shardA)
	e.fillShard(shardA, epoch, 10)
	cycle := func() error {
		h, err := e.log.MoveOut(e.ctx, shardA, "a", "b")
		if err != nil {
			return err
		}
		_, err = e.log.MoveIn(e.ctx, metalog.Handover{
			Shard: shardA, From: "b", To: "a", NextLSN: h.NextLSN + 10, Epoch: h.Epoch + 1, LastTime: h.LastTime, Time: h.Time,
		}, nil)
		if err == nil {
			e.fillShard(shardA, e.openOne(shardA), 10)
		}
		return err
	}
	for range metalog.MaxStays {
		e.mustSucceed(cycle())
	}
	e.wantError(cycle(), metalog.ErrInvalid)
	stays, err := e.log.Stays(e.ctx, shardA)
	e.mustSucceed(err)
	wantEqual(e, "stays", len(stays), metalog.MaxStays+1)
	last := stays[metalog.MaxStays].NextLSN
	wantEqual(e, "tail", last, 20*metalog.MaxStays+11)
	// The second stay has LSNs 21 to 30, the third 41 to 50.
	for before, want := range map[record.LSN]int{11: 1} {
		e.mustSucceed(e.log.Trim(e.ctx, shardA, before))
		stays, err := e.log.Stays(e.ctx, shardA)
		e.mustSucceed(err)
		wantEqual(e, "stays that went", metalog.MaxStays+1-len(stays), want)
	}
	e.mustSucceed(e.log.Trim(e.ctx, shardA, 45))
	e.mustSucceed(e.log.Trim(e.ctx, shardA, 30)) // has no effect
	e.restartLog()
	stays, err = e.log.Stays(e.ctx, shardA)
	e.mustSucceed(err)
	wantEqual(e, "stays", len(stays), metalog.MaxStays-1)
	wantEqual(e, "oldest stay", stays[0].Begin == 41 && stays[0].FirstLSN == 45 && stays[0].NextLSN == 51, true)
	wantEqual(e, "first LSN", e.tailOf(shardA).FirstLSN, 45)
	// What was trimmed is gone, whoever had it; what is behind is elsewhere or here.
	for from := record.LSN(1); from < 45; from++ {
		_, err := e.log.Read(e.ctx, shardA, from, 0, 0)
		wantEqual(e, "trimmed", *asError[*metalog.TrimmedError](e, err), metalog.TrimmedError{Shard: shardA, LSN: from, First: 45})
	}
	entries, err := e.log.Read(e.ctx, shardA, 45, 100, 0)
	e.mustSucceed(err)
	wantEqual(e, "records of the stay", len(entries), 6)
	_, err = e.log.Read(e.ctx, shardA, 51, 0, 0)
	wantEqual(e, "engine", asError[*metalog.ElsewhereError](e, err).Engine, "b")
	follower := e.follow(long, positionAt(shardA, 2))
	got := follower.waitFor(shardA, "the end", func(s *followedShard) bool { return s.MovedTo != "" })
	wantEqual(e, "trimmed to", got.TrimmedTo, 45)
	wantEqual(e, "went on at", got.Next, 51)
	follower.stopChecked()
	// A shard that is away is trimmed up to its end by any later LSN.
	_, err = e.log.MoveOut(e.ctx, shardA, "a", "b")
	e.mustSucceed(err)
	e.mustSucceed(e.log.Trim(e.ctx, shardA, last+100))
	st := e.tailOf(shardA)
	wantEqual(e, "nothing left", st.FirstLSN == st.NextLSN && st.MovedTo == "b", true)
	stays, err = e.log.Stays(e.ctx, shardA)
	e.mustSucceed(err)
	wantEqual(e, "stays", len(stays), 1)
}
