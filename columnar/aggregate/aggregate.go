package aggregate

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"

	"scribe/columnar/expr"
	"scribe/columnar/plan"
	"scribe/columnar/schema"
	"scribe/columnar/vector"
)

// ErrLimit means that a query exceeds [Limits]: it has too many groups, or they take too much memory.
var ErrLimit = errors.New("aggregate: limit reached")

func tooManyGroups(limit int) error {
	return fmt.Errorf("%w: more than %d groups (or values of a DISTINCT): group by fewer or coarser keys (date_trunc of a time, say), "+
		"narrow the WHERE or the range of time, take approx_count_distinct for a count of distinct values, or raise the limit of groups", ErrLimit, limit)
}

func tooManyBytes(bytes, limit int64, groups int) error {
	return fmt.Errorf("%w: %d groups take %d bytes, %d are allowed: group by fewer or coarser keys (date_trunc of a time, say), "+
		"narrow the WHERE or the range of time, ask for fewer aggregates, or raise the limit of memory", ErrLimit, groups, bytes, limit)
}

// Limits bounds the memory of an [Aggregator]. Zero means the default: a million groups and 256 MiB.
type Limits struct {
	// Groups is the maximum number of groups, and of distinct values in all groups of a DISTINCT together.
	Groups int
	// Bytes is the maximum memory of the groups in bytes. It is checked every few thousand rows.
	Bytes int64
}

// maxGroups keeps one group number free to mean none. Together with maxBytes it keeps a result's string columns below 2^31 bytes.
const (
	maxGroups = 1 << 30
	maxBytes  = 1 << 40
)

func (l Limits) orDefault() (Limits, error) {
	l.Groups, l.Bytes = cmp.Or(l.Groups, 1<<20), cmp.Or(l.Bytes, 256<<20)
	if l.Groups < 0 || l.Groups > maxGroups || l.Bytes < 0 || l.Bytes > maxBytes {
		return l, fmt.Errorf("aggregate: limits of %d groups and %d bytes: at least 1, and at most %d and %d", l.Groups, l.Bytes, maxGroups, int64(maxBytes))
	}
	return l, nil
}

// Stats counts what an [Aggregator] has read and holds.
type Stats struct {
	// Rows is the number of rows added.
	Rows int64
	// Errors counts errors of expressions, and values of the last result that did not fit their type. Both are null.
	Errors int64
	Groups int
	Bytes  int64
}

// Aggregator groups and aggregates rows. It is not safe for concurrent use.
type Aggregator struct {
	group  *plan.Group
	limits Limits
	schema *arrow.Schema
	having *vector.Filter
	order  []orderElement

	inputs     []inputColumn
	known      map[string]int // maps an expression's expr.Key to its index in inputs
	keys       []int          // indices in inputs
	aggregates []groupAggregate
	outputs    []outputPlan
	table      *groupTable

	rows   int64
	vector vector.Stats // of rows
	result vector.Stats // of the last result, including sums that did not fit
	failed error

	numbers []uint32 // the groups of the rows of a piece
}

// inputColumn is an expression over the batches that keys and aggregates need. It is evaluated once for all of them.
type inputColumn struct {
	kind   schema.Kind
	prog   *vector.Program
	column arrow.Array  // of the current batch
	values columnValues // of the current piece
}

// groupAggregate is the state for one or more outputs.
type groupAggregate struct {
	family string
	arg    int // index in inputs, -1 for count(*)
	filter int // index in inputs, -1 without FILTER
	state  aggregateState
	// seen numbers the distinct pairs of group and value for DISTINCT; otherwise nil.
	seen *groupTable

	mask   []bool
	pairs  columnValues // the groups as a column of seen
	fresh  []bool
	number []uint32
	picked columnValues
	groups []uint32
}

// outputPlan is a column $a of the result.
type outputPlan struct {
	aggregate int
	plan      *plan.Aggregate
}

// New returns an Aggregator for g over batches of schema in. They must have the columns that g's expressions name, in the form
// that package vector requires. It accepts every group that package plan has bound. limits may be zero.
func New(g *plan.Group, in *arrow.Schema, limits Limits) (*Aggregator, error) {
	limits, err := limits.orDefault()
	if err != nil {
		return nil, err
	}
	a := &Aggregator{group: g, limits: limits, known: map[string]int{}}
	var (
		fields  []arrow.Field
		classes []valueClass
	)
	for i, k := range g.Keys {
		c, ok := classOf(k.Type().Kind)
		if !ok {
			return nil, fmt.Errorf("aggregate: key %d is of type %s: rows are grouped by scalars only", i+1, k.Type())
		}
		at, err := a.addInput(k, in)
		if err != nil {
			return nil, fmt.Errorf("aggregate: key %d: %w", i+1, err)
		}
		a.keys, classes = append(a.keys, at), append(classes, c)
		fields = append(fields, arrow.Field{Name: plan.KeyName(i), Type: plainType(k.Type()), Nullable: true})
	}
	a.table = newGroupTable(classes, limits.Groups)
	for i := range g.Aggregates {
		p := &g.Aggregates[i]
		at, err := a.addAggregate(p, in)
		if err != nil {
			return nil, fmt.Errorf("aggregate: %s: %w", p.Func, err)
		}
		a.outputs = append(a.outputs, outputPlan{aggregate: at, plan: p})
		fields = append(fields, arrow.Field{Name: plan.AggregateName(i), Type: plainType(&p.T), Nullable: true})
	}
	a.schema = arrow.NewSchema(fields, nil)
	if err := a.compileResult(); err != nil {
		return nil, err
	}
	if len(g.Keys) == 0 {
		// Without keys the single group exists even without rows.
		if err := a.table.findRows(nil, 1, nil, make([]uint32, 1), nil); err != nil {
			return nil, err
		}
		a.growStates()
	}
	return a, nil
}

// plainType returns the type of a result column, without dictionaries.
func plainType(t *schema.Type) arrow.DataType {
	p := *t
	p.Dictionary = false
	return p.Arrow()
}

// addInput returns the index of e in a.inputs, adding it if necessary.
func (a *Aggregator) addInput(e expr.Expr, in *arrow.Schema) (int, error) {
	key := expr.Key(e)
	if i, ok := a.known[key]; ok {
		return i, nil
	}
	prog, err := vector.Compile(e, in)
	if err != nil {
		return 0, err
	}
	a.known[key] = len(a.inputs)
	a.inputs = append(a.inputs, inputColumn{kind: e.Type().Kind, prog: prog})
	return len(a.inputs) - 1, nil
}

// addAggregate returns the index in a.aggregates of the state for p, adding it if necessary. One sketch serves all its quantiles,
// and one sum also the average.
func (a *Aggregator) addAggregate(p *plan.Aggregate, in *arrow.Schema) (int, error) {
	n := groupAggregate{arg: -1, filter: -1}
	var err error
	kind := schema.Invalid
	if p.Arg != nil {
		kind = p.Arg.Type().Kind
		// If values are only counted, only their nulls are read.
		if _, ok := classOf(kind); !ok && (p.Func != "count" || p.Distinct) {
			return 0, fmt.Errorf("an argument of type %s: aggregates take scalars", p.Arg.Type())
		}
		if n.arg, err = a.addInput(p.Arg, in); err != nil {
			return 0, err
		}
	}
	if p.Filter != nil {
		if n.filter, err = a.addInput(p.Filter, in); err != nil {
			return 0, err
		}
	}
	if n.family, n.state, err = newState(p, kind); err != nil {
		return 0, err
	}
	if p.Distinct && p.Arg != nil && (n.family == familyCount || n.family == familySum) {
		c, _ := classOf(kind)
		n.seen = newGroupTable([]valueClass{word, c}, a.limits.Groups)
	}
	for i := range a.aggregates {
		o := &a.aggregates[i]
		if o.family == n.family && o.arg == n.arg && o.filter == n.filter && (o.seen == nil) == (n.seen == nil) {
			return i, nil
		}
	}
	a.aggregates = append(a.aggregates, n)
	return len(a.aggregates) - 1, nil
}

// Schema returns the schema of the results.
func (a *Aggregator) Schema() *arrow.Schema { return a.schema }

// Stats returns the current counts.
func (a *Aggregator) Stats() Stats {
	return Stats{Rows: a.rows, Errors: a.vector.Errors + a.result.Errors, Groups: a.table.len(), Bytes: a.heldBytes()}
}

// piece is the number of rows processed at once, so that intermediate values stay in the processor's cache.
const piece = 4096

// Add adds the rows of a batch, which must have the schema passed to New. It does not keep the batch. After an error, usually
// [ErrLimit], some of the rows are in the groups, and every later call returns the same error.
func (a *Aggregator) Add(b arrow.RecordBatch) error {
	if a.failed == nil {
		a.failed = a.addBatch(b)
	}
	return a.failed
}

func (a *Aggregator) addBatch(b arrow.RecordBatch) error {
	defer a.releaseBatch()
	for i := range a.inputs {
		column, err := a.inputs[i].prog.Eval(b, &a.vector)
		if err != nil {
			return fmt.Errorf("aggregate: %w", err)
		}
		a.inputs[i].column = column
	}
	rows := int(b.NumRows())
	lookup := a.dictionaryOfKey()
	for from := 0; from < rows; from += piece {
		to := min(from+piece, rows)
		for i := range a.inputs {
			in := &a.inputs[i]
			if lookup == nil || i != a.keys[0] || a.keyIsArgument() {
				in.values.loadRows(in.kind, in.column, from, to)
			}
		}
		if err := a.findGroups(lookup, from, to); err != nil {
			return err
		}
		a.growStates()
		for i := range a.aggregates {
			if err := a.updateAggregate(&a.aggregates[i]); err != nil {
				return err
			}
		}
		a.rows += int64(to - from)
		if err := a.checkBytes(); err != nil {
			return err
		}
	}
	return nil
}

func (a *Aggregator) checkBytes() error {
	if n := a.heldBytes(); n > a.limits.Bytes {
		return tooManyBytes(n, a.limits.Bytes, a.table.len())
	}
	return nil
}

// releaseBatch drops references to the batch.
func (a *Aggregator) releaseBatch() {
	for i := range a.inputs {
		in := &a.inputs[i]
		if in.column != nil {
			in.column.Release()
			in.column = nil
		}
		in.values.releaseBatch()
	}
	for i := range a.aggregates {
		a.aggregates[i].picked.releaseBatch()
	}
}

func (a *Aggregator) heldBytes() int64 {
	n := a.table.heldBytes()
	for i := range a.aggregates {
		n += a.aggregates[i].state.heldBytes()
		if s := a.aggregates[i].seen; s != nil {
			n += s.heldBytes()
		}
	}
	return n
}

func (a *Aggregator) growStates() {
	for i := range a.aggregates {
		a.aggregates[i].state.growTo(a.table.len())
	}
}

// findGroups sets a.numbers to the groups of the rows of a piece.
func (a *Aggregator) findGroups(lookup *dictionaryCodes, from, to int) error {
	a.numbers = resizeSlice(a.numbers, to-from)
	if len(a.keys) == 0 {
		clear(a.numbers)
		return nil
	}
	if lookup != nil {
		return lookup.findGroups(a.table, from, to, a.numbers)
	}
	columns := make([]*columnValues, len(a.keys))
	for i, k := range a.keys {
		columns[i] = &a.inputs[k].values
	}
	return a.table.findRows(columns, to-from, nil, a.numbers, nil)
}

// updateAggregate adds the rows of a piece to an aggregate.
func (a *Aggregator) updateAggregate(g *groupAggregate) error {
	n := len(a.numbers)
	v := &g.pairs // count(*) reads no value
	masked := false
	mask := func(valid []bool) {
		if valid == nil {
			return
		}
		if !masked {
			masked, g.mask = true, append(g.mask[:0], valid...)
			return
		}
		for i, ok := range valid {
			g.mask[i] = g.mask[i] && ok
		}
	}
	if g.arg >= 0 {
		v = &a.inputs[g.arg].values
		mask(v.valid)
	}
	if g.filter >= 0 {
		f := &a.inputs[g.filter].values
		mask(f.valid)
		g.fresh = resizeSlice(g.fresh, n)
		for i, w := range f.lo {
			g.fresh[i] = w != 0
		}
		mask(g.fresh)
	}
	if g.seen != nil {
		if !masked {
			masked, g.mask = true, resizeSlice(g.mask, n)
			for i := range g.mask {
				g.mask[i] = true
			}
		}
		if err := g.maskFirsts(a.numbers, v); err != nil {
			return err
		}
	}
	if !masked {
		g.state.addRows(a.numbers, v)
		return nil
	}
	g.groups = pickMasked(g.groups, a.numbers, g.mask, true)
	if g.arg >= 0 {
		v.pickRows(&g.picked, g.mask)
	}
	g.state.addRows(g.groups, &g.picked)
	return nil
}

// maskFirsts keeps in the mask only rows with a value that is new in their group.
func (g *groupAggregate) maskFirsts(numbers []uint32, v *columnValues) error {
	n := len(numbers)
	g.pairs.class, g.pairs.n, g.pairs.lo = word, n, resizeSlice(g.pairs.lo, n)
	for i, x := range numbers {
		g.pairs.lo[i] = uint64(x)
	}
	g.number, g.fresh = resizeSlice(g.number, n), resizeSlice(g.fresh, n)
	if err := g.seen.findRows([]*columnValues{&g.pairs, v}, n, g.mask, g.number, g.fresh); err != nil {
		return err
	}
	copy(g.mask, g.fresh)
	return nil
}
