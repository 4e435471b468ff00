package kv_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"pgregory.net/rapid"

	"scribe/storage/kv"
)

// testCounter checks that conditional writes lose no increment.
func testCounter(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	const workers, each = 8, 25
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				e, err := s.Get(t.Context(), "n")
				if err != nil && !errors.Is(err, kv.ErrNotFound) {
					t.Error(err)
					return
				}
				n, _ := strconv.Atoi(string(e.Value))
				switch _, err = s.Commit(t.Context(), kv.Put("n", []byte(strconv.Itoa(n+1))).If(e.Revision)); {
				case err == nil:
					done++
				case !errors.Is(err, kv.ErrConflict):
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if e, err := s.Get(t.Context(), "n"); err != nil || string(e.Value) != strconv.Itoa(workers*each) {
		t.Fatalf("counted to %q, %v; want %d", e.Value, err, workers*each)
	}
}

// linearInput is a call on one key, whose value is its own.
type linearInput struct {
	kind   kv.OpKind // 0 reads
	value  string
	expect uint64
}

// linearOutput is what a call was told.
type linearOutput struct {
	value    string
	revision uint64 // of the key read, or of the transaction
	conflict bool
	unknown  bool // it may have been applied, at any time from its begin on
}

type keyState struct {
	value    string
	revision uint64
}

// anyRevision is the revision of a state that a transaction with an unknown outcome left.
const anyRevision = math.MaxUint64

// keyModel is a key: a condition holds if and only if the revision is the expected one, and revisions grow.
var keyModel = (&porcupine.NondeterministicModel{
	Init: func() []any { return []any{keyState{}} },
	Step: func(state, in, out any) []any {
		s, i, o := state.(keyState), in.(linearInput), out.(linearOutput)
		next := keyState{i.value, o.revision}
		if i.kind == kv.OpDelete {
			next = keyState{}
		}
		holds := s.revision == i.expect || s.revision == anyRevision && i.expect != 0
		switch {
		case i.kind == 0 && s.value == o.value && (s.revision == o.revision || s.revision == anyRevision && o.revision != 0):
			return []any{keyState{o.value, o.revision}}
		case i.kind == 0:
			return nil
		case o.unknown && holds:
			if i.kind == kv.OpPut {
				next.revision = anyRevision
			}
			return []any{s, next}
		case o.unknown, o.conflict && s.revision != i.expect:
			return []any{s}
		case !o.conflict && holds && (next == s || s.revision == anyRevision || o.revision > s.revision):
			return []any{next}
		}
		return nil
	},
	Equal: func(a, b any) bool { return a.(keyState) == b.(keyState) },
	DescribeOperation: func(in, out any) string {
		return fmt.Sprintf("%+v -> %+v", in, out)
	},
}).ToModel()

// testLinearizable checks that some order of all calls on a key, each between its begin and its end, explains their results.
func testLinearizable(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	const clients, each = 6, 60
	var clock atomic.Int64
	histories := make([][]porcupine.Operation, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			var known uint64
			for i := range each {
				in := linearInput{kind: kv.OpKind((i*5 + c) % 3), value: fmt.Sprintf("%d.%d", c, i), expect: known}
				begin := clock.Add(1)
				out, err := linearCall(t, s, "k", in)
				end := clock.Add(1)
				if err != nil {
					t.Error(err)
					return
				}
				if in.kind == 0 {
					known = out.revision
				}
				histories[c] = append(histories[c], porcupine.Operation{ClientId: c, Input: in, Output: out, Call: begin, Return: end})
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(keyModel, slices.Concat(histories...), time.Minute); result != porcupine.Ok {
		t.Fatalf("the history is not linearizable: %v", result)
	}
}

// linearCall makes a call. The outcome of a transaction that fails is unknown.
func linearCall(t *testing.T, s kv.Store, key string, in linearInput) (linearOutput, error) {
	if in.kind == 0 {
		e, err := s.Get(t.Context(), key)
		if errors.Is(err, kv.ErrNotFound) {
			err = nil
		}
		return linearOutput{value: string(e.Value), revision: e.Revision}, err
	}
	op := kv.Op{Kind: in.kind, Key: key}.If(in.expect)
	if in.kind == kv.OpPut {
		op.Value = []byte(in.value)
	}
	revision, err := s.Commit(t.Context(), op)
	if errors.Is(err, kv.ErrConflict) {
		return linearOutput{conflict: true}, nil
	}
	return linearOutput{revision: revision, unknown: err != nil}, err
}

// testModel compares random transactions and ranges with a map, and the events of a watch, which begins before the transactions or, in every
// fourth run, after them: a replay begins late in some engines.
func testModel(t *testing.T, h storeFactory) {
	s := openStore(t, h.Open)
	run := 0
	rapid.Check(t, func(rt *rapid.T) {
		run++
		prefix := fmt.Sprintf("run%d/", run) // one store for all runs: opening is the slow part
		begin := mustPut(t, s, "run", prefix)
		model, mirror := map[string]kv.Entry{}, map[string]string{}
		follow := func() error {
			return s.Watch(t.Context(), prefix, begin, func(b kv.EventBatch) error {
				for _, e := range b.Events {
					if mirror[e.Key] = string(e.Value); e.Deleted {
						delete(mirror, e.Key)
					}
				}
				if _, ended := mirror[prefix]; ended {
					return errEnough
				}
				return nil
			})
		}
		followed, replay := make(chan error, 1), run%4 == 0
		if !replay {
			go func() { followed <- follow() }()
		}
		key := rapid.Custom(func(rt *rapid.T) string {
			return prefix + rapid.StringOfN(rapid.SampledFrom([]rune("ab\x00")), 1, 3, -1).Draw(rt, "key")
		})
		last := begin
		for range rapid.IntRange(1, 12).Draw(rt, "transactions") {
			last = max(last, modelCommit(t, rt, s, model, key, last))
		}
		keys := slices.Sorted(maps.Keys(model))
		after := key.Draw(rt, "after")
		limit := rapid.IntRange(1, 5).Draw(rt, "limit")
		var want []string
		for _, k := range keys {
			if k > after {
				want = append(want, k+"="+string(model[k].Value))
			}
		}
		more := len(want) > limit
		wantRange(t, s, kv.KeyRange{Prefix: prefix, After: after, Limit: limit}, more, want[:min(limit, len(want))]...)

		mustPut(t, s, prefix, "end")
		if replay {
			followed <- follow()
		}
		err := <-followed
		delete(mirror, prefix)
		if !errors.Is(err, errEnough) || len(mirror) != len(model) {
			rt.Fatalf("the watch leads to %q (%v), want %d keys", mirror, err, len(model))
		}
		for k, v := range mirror {
			if v != string(model[k].Value) {
				rt.Fatalf("the watch leads to %q for %q, want %q", v, k, model[k].Value)
			}
		}
	})
}

// modelCommit runs one transaction against the store and the model, and returns the store's revision, 0 if it failed.
func modelCommit(t *testing.T, rt *rapid.T, s kv.Store, model map[string]kv.Entry, key *rapid.Generator[string], last uint64) uint64 {
	var ops []kv.Op
	var conflicts []string
	changes := false
	for _, k := range rapid.SliceOfNDistinct(key, 1, 4, rapid.ID).Draw(rt, "keys") {
		op := kv.Op{Kind: kv.OpKind(rapid.IntRange(1, 3).Draw(rt, "kind")), Key: k}
		if op.Kind == kv.OpPut {
			op.Value = []byte(rapid.StringN(0, 3, -1).Draw(rt, "value"))
		}
		actual := model[k].Revision
		if op.Kind == kv.OpCheck || rapid.Bool().Draw(rt, "conditional") {
			expect := actual
			if rapid.IntRange(0, 3).Draw(rt, "wrong") == 0 {
				expect = rapid.SampledFrom([]uint64{0, last, last + 1}).Draw(rt, "expect")
			}
			op = op.If(expect)
			if expect != actual {
				conflicts = append(conflicts, k)
			}
		}
		changes = changes || op.Kind == kv.OpPut || (op.Kind == kv.OpDelete && actual != 0)
		ops = append(ops, op)
	}
	revision, err := s.Commit(t.Context(), ops...)
	if len(conflicts) > 0 {
		var conflict *kv.ConflictError
		if !errors.As(err, &conflict) || len(conflict.Conflicts) != len(conflicts) || !conflict.On(conflicts[0]) {
			rt.Fatalf("%v, want conflicts on %s", err, strings.Join(conflicts, ", "))
		}
		return 0
	}
	if err != nil || (revision > last) != changes {
		rt.Fatalf("Commit(%+v) = %d, %v after %d", ops, revision, err, last)
	}
	for _, op := range ops {
		switch op.Kind {
		case kv.OpPut:
			model[op.Key] = kv.Entry{Key: op.Key, Value: op.Value, Revision: revision}
		case kv.OpDelete:
			delete(model, op.Key)
		case kv.OpCheck:
		}
	}
	return revision
}
