// Package audit keeps the trail of a cell: who did what to what, and what was denied. It is a category of the cell itself, [Category], that SQL reads.
//
// Each process notes what it answers ([Trail.Note], [Trail.Interceptor]) and writes it from the background, so that no request waits for the trail. An
// entry is stored within about a second; until then it is in memory alone, and in the log of the process as far as that has it.
//
// Access to data is too frequent for that. It is counted ([Trail.CountAccess]) and noted in intervals: one entry for each caller, action and category.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/base/backoff"
	"scribe/internal/base/entropy"
	"scribe/internal/base/metrics"
	"scribe/internal/format/record"
	"scribe/internal/transport/principal"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Category is where the trail is. Only members of the cell write to it.
const Category = record.AuditCategory

// retention is how long entries are kept unless the category says otherwise. The category may be changed as any other.
const retention = 90 * 24 * time.Hour

// schemaText describes entries to SQL; _time is when it happened.
const schemaText = `
format: json
fields:
  - {name: id, type: string}
  - {name: process, type: dictionary}
  - {name: action, type: dictionary}
  - {name: target, type: string}
  - {name: outcome, type: dictionary}
  - {name: reason, type: dictionary}
  - {name: principal, type: dictionary}
  - {name: kind, type: dictionary}
  - {name: token, type: dictionary}
  - {name: address, type: string}
  - {name: detail, type: string}
  - {name: calls, type: int64}
  - {name: open, type: int64}
  - {name: seconds, type: int64}
`

// newestField is the last field that the schema was given: a category that a process of before has created lacks it.
const newestField = "seconds"

// Outcomes of what was tried.
const (
	Done   = "done"
	Denied = "denied"
	Failed = "failed"
	// Allowed is of access to data: what came of the calls is not looked at.
	Allowed = "allowed"
)

// Entry is a line of the trail.
type Entry struct {
	// ID is random. An entry that was stored twice, since the answer to the first was lost, has it twice.
	ID string `json:"id"`
	// Process is the id of the member that answered.
	Process string `json:"process"`
	// Action is the procedure, or what a denial says that was tried.
	Action string `json:"action"`
	// Target is the category, group, principal, token or node.
	Target  string `json:"target,omitempty"`
	Outcome string `json:"outcome"`
	// Reason is why it did not happen: of a denial its cause, of a failure the reason of the error.
	Reason    string `json:"reason,omitempty"`
	Principal string `json:"principal,omitempty"`
	Kind      string `json:"kind"`
	Token     string `json:"token,omitempty"`
	// Address is where the request came from.
	Address string `json:"address,omitempty"`
	// Detail is the request.
	Detail string `json:"detail,omitempty"`
	// Calls are how many calls an entry about access to data stands for, within Seconds from its time on. Open are the streams, tails and queries that ran
	// then, those that began earlier among them.
	Calls   int64 `json:"calls,omitempty"`
	Open    int64 `json:"open,omitempty"`
	Seconds int64 `json:"seconds,omitempty"`

	at time.Time
}

const (
	// maxWaiting and maxWaitingBytes bound the entries in memory, maxText and maxDetail the texts and the request of one in bytes.
	maxWaiting      = 10_000
	maxWaitingBytes = 16 << 20
	maxText         = 300
	maxDetail       = 4 << 10
	// batchEntries are stored with one request, and flushEvery is how long the first of them waits.
	batchEntries = 500
	flushEvery   = time.Second
	// What a caller tries in vain is noted up to a burst, and then at a rate a second; the rest is counted. Who has proved nothing gets less.
	knownBurst, knownRate     = 100, 5.0
	unknownBurst, unknownRate = 20, 0.2
	// maxCallers are those with a bucket of their own; all others share one.
	maxCallers = 1000
	// storeTimeout bounds an attempt to store a batch, closeTimeout the last ones of a process that stops.
	storeTimeout = 30 * time.Second
	closeTimeout = 5 * time.Second
)

// errOlderMembers is why the trail waits.
var errOlderMembers = errors.New("there are members of an older version, which does not know its category: upgrade them, or set --audit=false")

// Config configures a Trail.
type Config struct {
	// Now and Random are the process's. Nil Random means the machine's randomness.
	Now    func() time.Time
	Random *entropy.Source
	// AccessInterval is how often access to data is noted; 0 = never.
	AccessInterval time.Duration
	// Logger and Registerer may be nil.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Deps are what the Run of a Trail works with.
type Deps struct {
	// Write and Control store the trail. Both are required.
	Write   rpc.WriteService
	Control rpc.ControlService
	// Process is the id of the member.
	Process string
	// Ready reports whether every member knows the name of the category: builds before it take it for damage. Nil means that all do.
	Ready func(context.Context) (bool, error)
}

// Trail notes what happens, and stores it once it runs. Its methods are safe for concurrent use; those of a nil Trail do nothing.
type Trail struct {
	now    func() time.Time
	random *entropy.Source
	log    *slog.Logger

	stored, dropped, suppressed prometheus.Counter

	accesses *accessBook // nil unless access to data is noted
	// fieldsRefused means that the category's schema does not take the fields of accesses. It is the business of Run.
	fieldsRefused bool

	mu      sync.Mutex
	waiting []Entry
	bytes   int // of the waiting ones, about
	ended   bool
	// left are entries that were not noted since the last that was: there were too many denials, or no room.
	left    int
	callers map[string]*rate.Limiter // of what each caller tries in vain
	others  *rate.Limiter            // of callers beyond maxCallers
	full    chan struct{}            // has a value while a batch waits
}

// New returns a trail that keeps its entries until Run stores them.
func New(cfg Config) (*Trail, error) {
	t := &Trail{
		now: cfg.Now, random: cfg.Random, log: cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		callers: map[string]*rate.Limiter{}, others: rate.NewLimiter(unknownRate, unknownBurst), full: make(chan struct{}, 1),
	}
	set := metrics.NewSet("scribe_audit_")
	t.stored = set.Counter("stored_total", "Entries of the trail that were stored.")
	t.dropped = set.Counter("dropped_total", "Entries that were lost since too many waited, or the process ended before they could be stored.")
	t.suppressed = set.Counter("suppressed_total", "Denials that were counted, and not noted one by one, since there were too many.")
	set.GaugeFunc("waiting", "Entries that wait to be stored.", func() float64 {
		t.mu.Lock()
		defer t.mu.Unlock()
		return float64(len(t.waiting))
	})
	leftOut := set.Counter("accesses_left_out_total", "Calls for data that are in an entry without caller and category, since there were too many of those at once.")
	if cfg.AccessInterval > 0 {
		t.accesses = newAccessBook(cfg.AccessInterval, cfg.Now, leftOut)
		set.GaugeFunc("accesses", "Callers, with an action and a category each, whose access to data is counted until it is noted.", t.accesses.size)
	}
	if err := set.Register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return t, nil
}

// Note adds an entry with who makes the request of ctx. What members do for others is noted where those others asked.
func (t *Trail) Note(ctx context.Context, e Entry) {
	p := principal.FromContext(ctx)
	if t == nil || p.Kind == principal.Member {
		return
	}
	e.ID, e.at = t.random.Text(), t.now()
	e.Principal, e.Kind, e.Token, e.Address = p.Name, p.Kind.String(), p.TokenID(), rpc.RemoteAddress(ctx)
	e.Detail = boundText(e.Detail, maxDetail)
	for _, text := range []*string{&e.Action, &e.Target, &e.Reason, &e.Principal, &e.Token, &e.Address} {
		*text = boundText(*text, maxText)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case e.Outcome != Done && !t.allowAttempt(ctx, e.Address, e.at):
		t.suppressed.Inc()
		t.left++
		return
	case t.ended, len(t.waiting) >= maxWaiting, t.bytes+e.size() > maxWaitingBytes:
		t.dropped.Inc()
		t.left++
		return
	}
	t.waiting, t.bytes = append(t.waiting, e), t.bytes+e.size()
	if len(t.waiting) >= batchEntries {
		select {
		case t.full <- struct{}{}:
		default: // it is known
		}
	}
}

// size is about what an entry takes of memory.
func (e *Entry) size() int {
	const fixed = 300
	return fixed + len(e.Action) + len(e.Target) + len(e.Reason) + len(e.Principal) + len(e.Token) + len(e.Address) + len(e.Detail)
}

// boundText shortens what comes from outside.
func boundText(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "..."
}

// allowAttempt takes one of the entries that a caller has for what it tries in vain. t.mu is held.
func (t *Trail) allowAttempt(ctx context.Context, address string, now time.Time) bool {
	caller, _ := rpc.CallerOf(ctx, address)
	b := t.callers[caller]
	if b == nil && len(t.callers) >= maxCallers {
		maps.DeleteFunc(t.callers, func(_ string, b *rate.Limiter) bool { return b.TokensAt(now) >= float64(b.Burst()) })
	}
	if b == nil && len(t.callers) >= maxCallers {
		return t.others.AllowN(now, 1)
	}
	if b == nil {
		b = rate.NewLimiter(unknownRate, unknownBurst)
		if principal.FromContext(ctx).Kind != principal.Anonymous {
			b = rate.NewLimiter(knownRate, knownBurst)
		}
		t.callers[caller] = b
	}
	return b.AllowN(now, 1)
}

// Run stores the entries until ctx ends, and then those that wait.
func (t *Trail) Run(ctx context.Context, deps Deps) {
	tick := time.NewTicker(flushEvery)
	defer tick.Stop()
	due, stopDue := t.accessTicks()
	defer stopDue()
	pauses := backoff.Backoff{Min: 100 * time.Millisecond, Max: 5 * time.Second, Random: t.random}
	for failures := 0; ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-t.full:
		case <-due:
			t.noteAccesses()
		}
		if err := t.storeWaiting(ctx, deps); err == nil {
			failures = 0
		} else if ctx.Err() == nil {
			failures++
			t.log.Warn("the audit trail can't be written", "waiting", t.countWaiting(), "failures", failures, "error", err)
			_ = backoff.Sleep(ctx, pauses.Pause(failures)) // the loop looks at ctx
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	t.noteAccesses()
	err := t.storeWaiting(last, deps)
	t.mu.Lock()
	t.ended = true
	t.mu.Unlock()
	if n := t.countWaiting(); n > 0 {
		t.dropped.Add(float64(n))
		t.log.Warn("the last entries of the audit trail are lost", "entries", n, "error", err)
	}
}

func (t *Trail) countWaiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiting)
}

// storeWaiting stores what waits, a batch after the other.
func (t *Trail) storeWaiting(ctx context.Context, deps Deps) error {
	for {
		batch, err := t.nextBatch(deps.Process)
		if err != nil || len(batch) == 0 {
			return err
		}
		switch err := t.storeBatch(ctx, deps, batch); {
		case err == nil:
			t.stored.Add(float64(len(batch)))
		case rpc.ReasonOf(err) == scribev1.Reason_REASON_TOO_LARGE: // the category takes only small messages: the same again would be refused again
			t.dropped.Add(float64(len(batch)))
			t.log.Warn("entries of the audit trail are refused", "entries", len(batch), "error", err)
		default:
			return err
		}
		t.removeBatch(len(batch))
	}
}

// removeBatch removes the oldest entries. Others only append.
func (t *Trail) removeBatch(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range t.waiting[:n] {
		t.bytes -= t.waiting[i].size()
	}
	t.waiting = slices.Delete(t.waiting, 0, n)
}

// nextBatch encodes the oldest entries. If some were left out since the last time, one more entry says how many.
func (t *Trail) nextBatch(process string) (batch []*scribev1.PublishMessage, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left > 0 && len(t.waiting) < maxWaiting {
		e := Entry{
			ID: t.random.Text(), Action: "leave out entries", Outcome: Failed, Reason: "too many", Kind: principal.Member.String(), Detail: strconv.Itoa(t.left), at: t.now(),
		}
		t.waiting, t.bytes, t.left = append(t.waiting, e), t.bytes+e.size(), 0
	}
	for _, e := range t.waiting[:min(len(t.waiting), batchEntries)] {
		e.Process = process
		text, err := json.Marshal(e)
		if err != nil {
			return nil, err
		}
		batch = append(batch, &scribev1.PublishMessage{Content: &scribev1.PublishMessage_Payload{Payload: text}, Time: new(e.at.UnixMicro())})
	}
	return batch, nil
}

// storeBatch writes entries to the category. It asks for the category each time: somebody may have deleted it, and one that is created by writing to it
// would have no schema.
func (t *Trail) storeBatch(ctx context.Context, deps Deps, batch []*scribev1.PublishMessage) error {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	if deps.Ready != nil {
		if ready, err := deps.Ready(ctx); err != nil || !ready {
			return cmp.Or(err, errOlderMembers)
		}
	}
	res, err := deps.Control.CreateCategory(ctx, &scribev1.CreateCategoryRequest{
		IfNotExists: true, Category: &scribev1.Category{Name: Category, Schema: schemaText, Retention: durationpb.New(retention)},
	})
	if err == nil {
		t.addFields(ctx, deps, res.GetCategory())
		_, err = deps.Write.Publish(ctx, &scribev1.PublishRequest{Category: Category, Messages: batch, Ack: scribev1.AckLevel_ACK_LEVEL_COMMITTED})
	}
	return err
}

// addFields gives the category of before the fields of today, where somebody counts access to data: without them SQL would not see the counts. A schema that somebody has
// changed may not take them. Then entries have them all the same, for who reads them as JSON. Any other failure is tried again with the next batch.
func (t *Trail) addFields(ctx context.Context, deps Deps, c *scribev1.Category) {
	if !t.NotesAccess() || t.fieldsRefused || c.GetSchema() == "" || strings.Contains(c.GetSchema(), newestField) {
		return
	}
	_, err := deps.Control.UpdateCategory(ctx, &scribev1.UpdateCategoryRequest{Name: Category, Revision: c.GetRevision(), Schema: new(schemaText)})
	reason := rpc.ReasonOf(err)
	if t.fieldsRefused = reason == scribev1.Reason_REASON_INCOMPATIBLE_SCHEMA || reason == scribev1.Reason_REASON_INVALID; t.fieldsRefused {
		t.log.Warn("the category of the audit trail can't be given the columns of accesses", "error", err)
	}
}
