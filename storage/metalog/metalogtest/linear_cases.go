package metalogtest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"scribe/internal/record"
	"scribe/storage/metalog"
)

var linearCases = []testCase{
	{name: "append, read, tail and open are linearizable", many: linearizable},
}

// Kinds of calls in a history.
const (
	callAppend = iota
	callRead
	callTail
	callOpen
	callTrim
)

type call struct {
	kind   int
	value  uint64     // of an append
	epoch  uint64     // of an append
	from   record.LSN // of a read or trim
	expect record.LSN // of an append
}

// answer is what a call returned.
type answer struct {
	unknown bool // it failed and may have been carried out
	refused error
	lsn     record.LSN // of an append
	epoch   uint64     // of an open or tail
	first   record.LSN // of a tail
	next    record.LSN // of an open or tail
	values  []uint64   // of a read
}

// logState is the model of one log.
type logState struct {
	epoch  uint64
	first  record.LSN
	values []uint64 // from LSN 1 on
}

func (s logState) next() record.LSN { return record.LSN(len(s.values) + 1) }

// step returns the states that s may be in after a call that returned what it did; none when it could not have.
func (s logState) step(c call, a answer) []any {
	same := []any{s}
	if a.refused != nil {
		// Refusals change nothing; those that say something of the state must be right.
		ok := true
		switch {
		case errors.Is(a.refused, metalog.ErrFenced):
			ok = c.epoch != s.epoch
		case errors.Is(a.refused, metalog.ErrConflict):
			ok = c.epoch == s.epoch && c.expect != s.next()
		case errors.Is(a.refused, metalog.ErrTrimmed):
			ok = c.from < s.first
		}
		if !ok {
			return nil
		}
		return same
	}
	switch c.kind {
	case callAppend:
		fits := c.epoch == s.epoch && (c.expect == 0 || c.expect == s.next())
		if a.unknown {
			if !fits {
				return same
			}
			return append(same, s.with(c.value))
		}
		if !fits || a.lsn != s.next() {
			return nil
		}
		return []any{s.with(c.value)}
	case callOpen:
		if a.epoch <= s.epoch || a.next != s.next() {
			return nil
		}
		s.epoch = a.epoch
		return []any{s}
	case callTrim:
		after := s
		after.first = max(s.first, c.from)
		if a.unknown {
			return append(same, after)
		}
		return []any{after}
	case callTail:
		if a.unknown || a.epoch == s.epoch && a.next == s.next() && a.first == s.first {
			return same
		}
		return nil
	default: // a read
		if a.unknown {
			return same
		}
		if c.from < s.first || !slices.Equal(a.values, s.values[min(int(c.from-1), len(s.values)):]) {
			return nil
		}
		return same
	}
}

func (s logState) with(v uint64) logState {
	s.values = append(slices.Clip(s.values), v)
	return s
}

func logModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{logState{first: 1}} },
		Step: func(state, input, output any) []any { return state.(logState).step(input.(call), output.(answer)) },
		Equal: func(a, b any) bool {
			x, y := a.(logState), b.(logState)
			return x.epoch == y.epoch && x.first == y.first && slices.Equal(x.values, y.values)
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
	return m.ToModel()
}

// linearizable records what concurrent clients do and are told, some of them impatient, and has Porcupine look for an order of
// calls that explains it.
func linearizable(t *testing.T, f Factory) {
	for round := range 6 {
		seed := rand.Uint64()
		e := newEnv(t, f)
		history := observe(e, seed)
		e.close()
		if result := porcupine.CheckOperationsTimeout(logModel(), history, time.Minute); result != porcupine.Ok {
			t.Errorf("round %d, seed %d: %s", round, seed, result)
			for _, op := range history {
				t.Logf("client %d [%d, %d] %+v -> %+v", op.ClientId, op.Call, op.Return, op.Input, op.Output)
			}
			return
		}
	}
}

// observe has clients make calls at random.
func observe(e *env, seed uint64) []porcupine.Operation {
	const clients, calls = 6, 40
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	var wg sync.WaitGroup
	for id := range clients {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(id)))
			c := client{env: e, rng: rng, id: id}
			for i := range calls {
				in := c.choose(i)
				start := time.Since(begin)
				out := c.make(in)
				end := time.Since(begin)
				op := porcupine.Operation{ClientId: id, Input: in, Call: int64(start), Output: out, Return: int64(end)}
				if out.unknown {
					op.Return = int64(time.Hour) // it may take effect at any time later
					op.ClientId = clients + id*calls + i
				}
				mu.Lock()
				history = append(history, op)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return history
}

// client makes calls and remembers what it knows.
type client struct {
	*env
	rng   *rand.Rand
	id    int
	epoch uint64
	next  record.LSN
}

func (c *client) choose(i int) call {
	switch n := c.rng.IntN(20); {
	case c.epoch == 0 || n == 0:
		return call{kind: callOpen}
	case n < 10:
		in := call{kind: callAppend, value: uint64(c.id)<<32 | uint64(i), epoch: c.epoch}
		if n < 3 {
			in.expect = max(c.next, 1)
		}
		return in
	case n < 15:
		return call{kind: callRead, from: 1 + record.LSN(c.rng.IntN(int(c.next)+2))}
	case n == 15:
		return call{kind: callTrim, from: 1 + record.LSN(c.rng.IntN(int(c.next)/2+1))}
	default:
		return call{kind: callTail}
	}
}

func (c *client) make(in call) (out answer) {
	ctx := c.ctx
	if in.kind != callOpen && c.rng.IntN(8) == 0 { // impatient; which epoch an Open gave that has no answer nobody knows
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.rng.IntN(400))*time.Microsecond)
		defer cancel()
	}
	switch in.kind {
	case callAppend:
		data := binary.BigEndian.AppendUint64(nil, in.value)
		done, err := c.log.Append(ctx, &metalog.Append{Shards: []metalog.ShardAppend{
			{Shard: shardA, Epoch: in.epoch, ExpectLSN: in.expect, Records: [][]byte{data}},
		}})
		if out = outcome(err); err == nil {
			out.lsn = done[0].FirstLSN
			c.next = out.lsn + 1
		} else if errors.Is(err, metalog.ErrFenced) {
			c.epoch = 0
		}
	case callOpen:
		states, err := c.log.Open(ctx, "client", []record.ShardID{shardA})
		if err != nil {
			c.Errorf("Open: %v", err)
			return answer{unknown: true}
		}
		out.epoch, out.next = states[0].Epoch, states[0].NextLSN
		c.epoch, c.next = out.epoch, out.next
	case callTail:
		states, err := c.log.Tail(ctx, []record.ShardID{shardA})
		if out = outcome(err); err == nil {
			out.epoch, out.next, out.first = states[0].Epoch, states[0].NextLSN, states[0].FirstLSN
		}
	case callTrim:
		out = outcome(c.log.Trim(ctx, shardA, in.from))
	default:
		entries, err := c.log.Read(ctx, shardA, in.from, 0, 0)
		out = outcome(err)
		for _, en := range entries {
			out.values = append(out.values, binary.BigEndian.Uint64(en.Data))
		}
	}
	return out
}

func outcome(err error) answer {
	switch {
	case err == nil:
		return answer{}
	case errors.Is(err, metalog.ErrFenced), errors.Is(err, metalog.ErrConflict), errors.Is(err, metalog.ErrTrimmed), errors.Is(err, metalog.ErrInvalid):
		return answer{refused: err}
	default:
		return answer{unknown: true}
	}
}
