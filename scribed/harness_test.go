package scribed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"scribe/internal/format/delivery"
	"scribe/internal/format/record"
	"scribe/internal/role/request"
	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
	"scribe/scribed/spool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	none      = scribev1.AckLevel_ACK_LEVEL_NONE
	committed = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	spooled   = scribev1.AckLevel_ACK_LEVEL_SPOOLED
)

// upstream is a server of WriteService that keeps what it takes in memory.
type upstream struct {
	mu    sync.Mutex
	calls []call
	// running are the requests without an answer, most how many there were of them at a time. ordered is what answers say.
	running, most int
	ordered       bool
	// far is how long a request takes to arrive, and its answer to come back; nil = no time.
	far func() time.Duration
	// order is what the server knows of streams if it keeps the order of requests, as a batcher does; nil if it only says so.
	order  *streamOrder
	stored map[string][]string // messages by category, in order
	hold   <-chan struct{}
	// answer decides about a request before it is stored; nil takes it.
	answer func(n int, c *call) reply
	// again are categories of repeatable delivery, and once those of exactly_once delivery: next is the sequence that each producer of them must continue with, gaps counts
	// frames that did not.
	again map[string]bool
	once  map[string]bool
	next  map[string]uint64
	gaps  int
	// rows are those of the category _delivery, samples reports which messages are left out on purpose; nil = none.
	rows    []storedRow
	samples func(message string) bool
}

// storedRow is a row of the category _delivery.
type storedRow struct {
	delivery.Row
	minute int64
	at     time.Time
}

// reply is an error for a whole request, or for each frame by its message. lost is the error of a request that was carried out.
type reply struct {
	whole, lost error
	each        func(message string) error
	// silent: there is no answer before the caller gives up.
	silent bool
}

// streamOrder is what a server knows that keeps the order of requests: where the frames end that it stored, and those that it refused.
// changed is closed when there are more.
type streamOrder struct {
	stored, refused map[streamPlace]bool
	changed         chan struct{}
	// followed counts frames of earlier requests' streams, late those that were refused since what they follow did not come.
	followed, late int
}

// streamPlace is a place between the messages of a stream.
type streamPlace struct {
	stream   record.Stream
	epoch    uint32
	sequence uint64
}

func newStreamOrder() *streamOrder {
	return &streamOrder{stored: map[streamPlace]bool{}, refused: map[streamPlace]bool{}, changed: make(chan struct{})}
}

// note notes what became of a frame.
func (o *streamOrder) note(h *record.Header, stored bool) {
	if o == nil || !h.Sequenced() {
		return
	}
	end := streamPlace{h.Stream(), h.Epoch, h.NextSequence()}
	if o.refused[end] = !stored; stored {
		o.stored[end] = true
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

// awaitOrder waits for what frames of a request follow, and returns the errors of those that must not be stored.
func (u *upstream) awaitOrder(headers []record.Header, follows []uint32) map[int]error {
	if u.order == nil {
		return nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	failed := map[int]error{}
	patience, late := time.After(time.Second), false
	for _, i := range follows {
		h := &headers[i]
		begin := streamPlace{h.Stream(), h.Epoch, h.FirstSequence}
		u.order.followed++
		for !u.order.stored[begin] && failed[int(i)] == nil {
			if late || u.order.refused[begin] {
				if late {
					u.order.late++
				}
				failed[int(i)] = rpc.Errorf(scribev1.Reason_REASON_OUT_OF_ORDER, "injected")
				break
			}
			changed := u.order.changed
			u.mu.Unlock()
			select {
			case <-changed:
			case <-patience:
				late = true
			}
			u.mu.Lock()
		}
	}
	return failed
}

// call is a request that arrived.
type call struct {
	ack      scribev1.AckLevel
	at       time.Time
	messages []string // "category/message", one a frame
	frames   []byte   // as they came; valid during the call
	checked  bool     // the caller said so
	follows  []uint32
}

func (u *upstream) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	u.mu.Lock()
	hold := u.hold
	u.running++
	u.most = max(u.most, u.running)
	u.mu.Unlock()
	if u.far != nil {
		<-time.After(u.far())
		defer func() { <-time.After(u.far()) }()
	}
	defer func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.running--
	}()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%w", context.Cause(ctx))
		}
	}
	c := call{ack: req.GetAck(), at: time.Now(), frames: req.GetFrames(), checked: rpc.Checked(ctx), follows: req.GetFollows()}
	var (
		headers []record.Header
		frames  [][]byte
	)
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
		}
		c.messages = append(c.messages, string(f.Category)+"/"+message(f.Bytes))
		headers, frames = append(headers, f.Header), append(frames, f.Bytes)
	}
	u.mu.Lock()
	n := len(u.calls)
	u.calls = append(u.calls, c)
	var r reply
	if u.answer != nil {
		r = u.answer(n, &c)
	}
	u.mu.Unlock()
	switch {
	case r.whole != nil:
		return nil, r.whole
	case r.silent:
		<-ctx.Done()
		return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%w", context.Cause(ctx))
	}
	misplaced := u.awaitOrder(headers, req.GetFollows())
	u.mu.Lock()
	defer u.mu.Unlock()
	resp := &scribev1.WriteResponse{Ordered: u.ordered, Results: make([]*scribev1.FrameResult, len(headers))}
	failed := map[string]bool{} // frames of one shard are stored as a prefix
	for _, i := range orderOfShards(headers) {
		m := c.messages[i]
		result := &scribev1.FrameResult{}
		resp.Results[i] = result
		category, text, _ := strings.Cut(m, "/")
		shard := fmt.Sprintf("%s/%d", category, headers[i].Shard)
		err := misplaced[i]
		switch {
		case failed[shard]:
			err = rpc.Errorf(scribev1.Reason_REASON_OVERLOADED, "an earlier frame was not stored")
		case err == nil && r.each != nil:
			err = r.each(m)
		}
		if err != nil {
			result.Error = rpc.Info(err)
			failed[shard] = retry.Retryable(err)
			u.order.note(&headers[i], false)
			continue
		}
		if u.samples != nil && u.samples(m) {
			result.SampledOut = true
			continue
		}
		if category == delivery.Category {
			err := delivery.RowsOf(frames[i], func(r *delivery.Row, minute int64) error {
				u.rows = append(u.rows, storedRow{*r, minute, time.Now()})
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
		if u.sequence(&headers[i], result) {
			u.stored[category] = append(u.stored[category], text)
			result.Lsn = uint64(len(u.stored[category]))
		}
		u.order.note(&headers[i], result.GetError() == nil)
	}
	return resp, r.lost
}

// orderOfShards returns the order in which the frames of a request are stored: it promises none of several shards, and the last one is first.
func orderOfShards(headers []record.Header) []int {
	order := make([]int, len(headers))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(headers[b].Shard, headers[a].Shard) })
	return order
}

// sequence checks a frame of an exactly_once category, and reports whether it is to be stored.
func (u *upstream) sequence(h *record.Header, r *scribev1.FrameResult) bool {
	category := h.CategoryName()
	if !u.once[category] {
		if r.Shard = 1 << 32; !u.again[category] {
			r.Shard++
		}
		return true
	}
	r.Shard = 1 << 32
	if !h.Sequenced() {
		return true
	}
	key := fmt.Sprintf("%s/%d/%d", category, h.Shard, h.Producer)
	switch {
	case h.FirstSequence < u.next[key]:
		r.Duplicate = true
		return false
	case h.FirstSequence > u.next[key]:
		u.gaps++
		r.Shard = 0
		r.Error = rpc.Info(rpc.Errorf(scribev1.Reason_REASON_OUT_OF_SEQUENCE, "%s: %d, want %d", key, h.FirstSequence, u.next[key]))
		return false
	}
	if u.next == nil {
		u.next = map[string]uint64{}
	}
	u.next[key]++
	return true
}

func (u *upstream) Publish(context.Context, *scribev1.PublishRequest) (*scribev1.PublishResponse, error) {
	return nil, errors.New("not used")
}

// count is the number of requests that arrived.
func (u *upstream) count() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.calls)
}

// history is what arrived.
func (u *upstream) history() []call {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Clone(u.calls)
}

// holds makes requests wait for a channel from now on.
func (u *upstream) holds(hold <-chan struct{}) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.hold = hold
}

// replies changes how requests are answered from now on.
func (u *upstream) replies(answer func(int, *call) reply) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = answer
}

func message(frame []byte) string {
	var d record.Decoder
	var r record.Record
	if _, err := d.Reset(frame); err != nil || !d.Next(&r) {
		return fmt.Sprintf("damaged: %v", err)
	}
	return string(r.Payload)
}

// failing fails the first n calls as a whole.
func failing(n int, reason scribev1.Reason) func(int, *call) reply {
	return func(i int, _ *call) reply {
		if i < n {
			return reply{whole: rpc.Errorf(reason, "injected")}
		}
		return reply{}
	}
}

type cell struct {
	*Scribed
	t  *testing.T
	up *upstream
	fs *vfs.MemFS
	// down: the power is off, and what the present scribed answers is heard by nobody.
	down atomic.Bool
}

// spooling gives a configuration a small spool, in the folder of every test.
func spooling(cfg Config) Config {
	sc := spool.DefaultConfig()
	sc.Dir, sc.MaxBytes, sc.SegmentBytes, sc.BallastBytes = "spool", 4<<20, 64<<10, 0
	cfg.Spool = &sc
	return cfg
}

// run gives f a scribed under a clock that only the test moves, and checks afterwards that nothing is left.
func run(t *testing.T, cfg Config, f func(t *testing.T, c *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cell{t: t, up: &upstream{stored: map[string][]string{}}, fs: vfs.NewCrashableMem()}
		c.start(cfg)
		f(t, c)
		closed := c.accepting.Closed()
		if err := c.Close(t.Context()); err != nil && !closed {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		q := &c.mu.queue
		if q.used != 0 || len(q.turn) != 0 || q.running != 0 || q.filling != 0 || q.following != 0 || q.fillingBehind != 0 || q.sending != 0 || q.pace.inFlight != 0 || c.mu.bodies != 0 || q.blockedCalls != 0 || q.retrying != 0 {
			t.Errorf("%d bytes, %d turns, %d requests, %d with backlog, %d retries, %d bytes of bodies, %d blocked calls are left",
				q.used, len(q.turn), q.running, q.filling, q.retrying, c.mu.bodies, q.blockedCalls)
		}
		for _, l := range q.queues {
			if l.bytes != 0 || len(l.leaving) != 0 || l.appends != 0 || l.live.isBusy() || l.isFilling() || l.queued != 0 || len(l.waiters) != 0 || q.backlogOf(l).Frames == 0 {
				t.Errorf("a queue is left: %+v", l)
			}
		}
		if a := q.counts.findImbalance(c.readBacklog()); a != (request.Amount{}) || q.counts.memory != (request.Amount{}) {
			t.Errorf("%+v are in memory, %+v are not accounted for", q.counts.memory, a)
		}
	})
}

// start starts a scribed on the cell's disk.
func (c *cell) start(cfg Config) {
	c.t.Helper()
	var err error
	if c.Scribed, err = New(cfg, Deps{Upstream: c.up, FS: c.fs}); err != nil {
		c.t.Fatal(err)
	}
	c.down.Store(false)
}

// crash gives the cell the disk as it is after a loss of power, with that much of what was not synced, and ends the present scribed,
// which can reach nothing any more.
func (c *cell) crash(percent int, rng *rand.Rand) {
	c.t.Helper()
	c.down.Store(true)
	clone := c.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rng})
	up := c.up
	up.mu.Lock()
	old := up.answer
	up.answer = failing(1<<30, scribev1.Reason_REASON_NO_BACKEND)
	up.mu.Unlock()
	ctx, cancel := context.WithCancel(c.t.Context())
	cancel()
	_ = c.Close(ctx) // what it could not save is not the point
	up.replies(old)
	c.fs = clone
}

// mustBalance checks that nothing is missing in the account.
func (c *cell) mustBalance() {
	c.t.Helper()
	synctest.Wait()
	if a := c.unaccounted(); a != (request.Amount{}) {
		c.t.Errorf("%+v are not accounted for", a)
	}
}

// findImbalance returns the difference in the balance, given the backlog; it is always zero.
func (c *outcomeCounts) findImbalance(backlog request.Amount) request.Amount {
	sum := c.accepted.Plus(c.recovered)
	for _, a := range []request.Amount{c.forwarded, c.memory, backlog} {
		sum = sum.Minus(a)
	}
	for _, a := range c.failed {
		sum = sum.Minus(a)
	}
	for _, a := range c.dropped {
		sum = sum.Minus(a)
	}
	return sum
}

// unaccounted is what is missing in the balance.
func (s *Scribed) unaccounted() request.Amount {
	s.mu.Lock()
	defer s.mu.Unlock()
	backlog := s.readBacklog()
	return s.mu.queue.counts.findImbalance(backlog)
}

func makeFrame(t *testing.T, category, text string, sequenced bool) []byte {
	t.Helper()
	return buildFrame(t, record.Envelope{Category: category, Sequenced: sequenced, Producer: 1}, text)
}

func buildFrame(t testing.TB, env record.Envelope, text string) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, env); err != nil {
		t.Fatal(err)
	}
	if err := b.AppendPayload([]byte(text)); err != nil {
		t.Fatal(err)
	}
	out, err := b.Finish()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// write sends a frame for each "category/message".
func (c *cell) write(ack scribev1.AckLevel, messages ...string) ([]*scribev1.FrameResult, error) {
	return c.writeContext(c.t.Context(), ack, messages...)
}

func (c *cell) writeContext(ctx context.Context, ack scribev1.AckLevel, messages ...string) ([]*scribev1.FrameResult, error) {
	var frames []byte
	for _, m := range messages {
		category, text, _ := strings.Cut(m, "/")
		frames = append(frames, makeFrame(c.t, category, text, strings.HasPrefix(text, "seq"))...)
	}
	resp, err := c.Write(ctx, &scribev1.WriteRequest{Frames: frames, Ack: ack})
	clear(frames) // they are the caller's again
	if err == nil && len(resp.GetResults()) != len(messages) {
		c.t.Errorf("%d results for %d frames", len(resp.GetResults()), len(messages))
	}
	return resp.GetResults(), err
}

func (c *cell) mustWrite(ack scribev1.AckLevel, messages ...string) []*scribev1.FrameResult {
	c.t.Helper()
	results, err := c.write(ack, messages...)
	for _, r := range results {
		err = errors.Join(err, rpc.FromInfo(r.GetError()))
	}
	if err != nil {
		c.t.Error(err)
	}
	return results
}

func (c *cell) mustHold(category string, want ...string) {
	c.t.Helper()
	c.up.mu.Lock()
	defer c.up.mu.Unlock()
	if got := c.up.stored[category]; !slices.Equal(got, want) {
		c.t.Errorf("%s holds %q, want %q", category, got, want)
	}
}

func (c *cell) snapshot() outcomeCounts {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.readBacklog() // counts what is gone
	return c.mu.queue.counts.clone()
}

// onDisk is what is in the spool only.
func (c *cell) onDisk() request.Amount {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readBacklog()
}

func (c *outcomeCounts) clone() outcomeCounts {
	out := *c
	out.failed, out.dropped = maps.Clone(c.failed), maps.Clone(c.dropped)
	return out
}
