package linear

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"scribe/internal/format/record"
	"scribe/storage/metalog"
)

// History has the calls and answers of clients. It is safe for concurrent use.
type History struct {
	mu struct {
		sync.Mutex
		clock      int64 // counts calls and answers
		logs       map[int][]porcupine.Operation
		violations []string
		together   map[uint64][]int // transactions of several logs, by their first value
	}
}

func newHistory() *History {
	h := new(History)
	h.mu.logs, h.mu.together = map[int][]porcupine.Operation{}, map[uint64][]int{}
	return h
}

func (h *History) now() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.clock++
	return h.mu.clock
}

// Len returns the number of operations.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, ops := range h.mu.logs {
		n += len(ops)
	}
	return n
}

// Unknown returns the number of operations with an unknown outcome.
func (h *History) Unknown() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := 0
	for _, ops := range h.mu.logs {
		for i := range ops {
			if ops[i].Output.(modelAnswer).unknown {
				n++
			}
		}
	}
	return n
}

func (h *History) addViolation(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.violations = append(h.mu.violations, fmt.Sprintf(format, args...))
}

func (h *History) noteTransaction(value uint64, logs []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.together[value] = logs
}

// openOperation is an operation without an answer so far.
type openOperation struct {
	h  *History
	at int
	op porcupine.Operation
}

func (h *History) beginCall(at int, c modelCall) *openOperation { return h.beginAt(at, c, h.now()) }

func (h *History) beginAt(at int, c modelCall, when int64) *openOperation {
	return &openOperation{h: h, at: at, op: porcupine.Operation{Input: c, Call: when}}
}

// endCall records the answer. A call with an unknown outcome may take effect at any later time, unless the engine was replaced
// since.
func (o *openOperation) endCall(a modelAnswer, err error) {
	now := o.h.now()
	o.op.Output, o.op.Return = a, now
	if a.unknown && !errors.Is(err, errBroken) {
		o.op.Return = math.MaxInt64 - 1
	}
	if a.unknown && (o.op.Input.(modelCall).kind == doRead || o.op.Input.(modelCall).kind == doTail) {
		return // it has no effect on the history
	}
	o.h.mu.Lock()
	defer o.h.mu.Unlock()
	o.op.ClientId = len(o.h.mu.logs[o.at]) // unfinished calls would block a client's next ones
	o.h.mu.logs[o.at] = append(o.h.mu.logs[o.at], o.op)
}

// toEntries converts records for the history. Records at other LSNs than asked for are violations.
func (h *History) toEntries(shard record.ShardID, from record.LSN, read []metalog.Entry) []modelEntry {
	var out []modelEntry
	for _, en := range read {
		if en.LSN != from || len(en.Data) != 8 {
			h.addViolation("shard %v: LSN %d with %d bytes came where LSN %d was expected", shard, en.LSN, len(en.Data), from)
			return out
		}
		out = append(out, modelEntry{value: binary.BigEndian.Uint64(en.Data), time: en.Time})
		from++
	}
	return out
}

// ErrUndecided means that the search for an order of a log's calls was given up, and that nothing wrong was found.
var ErrUndecided = errors.New("linear: the search was given up")

// searchLimit bounds the search for an order of one log's calls. It takes exponential time and memory where many calls overlap, as on a
// machine that is held up: gigabytes in a minute.
const searchLimit = 10 * time.Second

// Check returns nil if, for each log, some order of the calls explains every answer. If that can't be decided, the error is ErrUndecided.
func (h *History) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var errs []error
	for _, v := range h.mu.violations {
		errs = append(errs, errors.New("linear: "+v))
	}
	var undecided error
	found := map[int]map[uint64]seenAt{}
	for at, ops := range h.mu.logs {
		found[at] = findSeen(ops)
		ops = fixOutcomes(ops, found[at])
		switch porcupine.CheckOperationsTimeout(porcupineModel(), ops, searchLimit) {
		case porcupine.Ok:
		case porcupine.Unknown:
			undecided = fmt.Errorf("%w: log %d, %d calls", ErrUndecided, at, len(ops))
		case porcupine.Illegal:
			errs = append(errs, fmt.Errorf("linear: log %d: no order of %d calls explains their answers:\n%s", at, len(ops), describeCalls(ops)))
		}
	}
	return cmp.Or(errors.Join(append(errs, h.checkAtomicity(found)...)...), undecided)
}

// seenAt is where a value was seen.
type seenAt struct {
	lsn  record.LSN
	time int64
}

// findSeen returns where values were seen by any client.
func findSeen(ops []porcupine.Operation) map[uint64]seenAt {
	found := map[uint64]seenAt{}
	for i := range ops {
		for n, en := range ops[i].Output.(modelAnswer).entries {
			found[en.value] = seenAt{ops[i].Input.(modelCall).from + record.LSN(n), en.time} //nolint:gosec // small
		}
	}
	return found
}

// fixOutcomes resolves appends with an unknown outcome whose values were seen. That leaves fewer orders to try, and loses no
// correct one.
func fixOutcomes(ops []porcupine.Operation, found map[uint64]seenAt) []porcupine.Operation {
	ops = slices.Clone(ops)
	for i := range ops {
		in, out := ops[i].Input.(modelCall), ops[i].Output.(modelAnswer)
		if in.kind != doAppend || !out.unknown {
			continue
		}
		if p, ok := found[in.values[0]]; ok {
			ops[i].Output = modelAnswer{lsn: p.lsn, time: p.time}
		}
	}
	return ops
}

// checkAtomicity checks that a transaction is in all of its logs or in none. A trimmed log can't be checked.
func (h *History) checkAtomicity(found map[int]map[uint64]seenAt) (errs []error) {
	for value, logs := range h.mu.together {
		if slices.ContainsFunc(logs, h.wasTrimmed) {
			continue
		}
		in := 0
		for _, at := range logs {
			if _, ok := found[at][value]; ok {
				in++
			}
		}
		if in != 0 && in != len(logs) {
			errs = append(errs, fmt.Errorf("linear: the transaction of %#x is in %d of its %d logs", value, in, len(logs)))
		}
	}
	return errs
}

// wasTrimmed reports whether records of a log may have been trimmed before any client saw them.
func (h *History) wasTrimmed(at int) bool {
	return slices.ContainsFunc(h.mu.logs[at], func(op porcupine.Operation) bool { return op.Input.(modelCall).kind == doTrim })
}

// describeCalls lists operations in the order in which they were made.
func describeCalls(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, op := range ops {
		end := fmt.Sprint(op.Return)
		if op.Return == math.MaxInt64-1 {
			end = "..."
		}
		fmt.Fprintf(&b, "[%d, %s] %v -> %v\n", op.Call, end, op.Input, op.Output)
	}
	return b.String()
}
