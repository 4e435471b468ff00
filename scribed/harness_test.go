package scribed

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"scribe/internal/record"
	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	none      = scribev1.AckLevel_ACK_LEVEL_NONE
	committed = scribev1.AckLevel_ACK_LEVEL_COMMITTED
	spooled   = scribev1.AckLevel_ACK_LEVEL_SPOOLED
)

// upstream is a server of WriteService that keeps what it takes in memory.
type upstream struct {
	mu     sync.Mutex
	calls  []call
	stored map[string][]string // messages by category, in order
	hold   <-chan struct{}
	// answer decides about a request before it is stored; nil takes it.
	answer func(n int, c *call) reply
}

// reply is an error for a whole request, or for each frame by its message.
type reply struct {
	whole error
	each  func(message string) error
}

// call is a request that arrived.
type call struct {
	ack      scribev1.AckLevel
	at       time.Time
	messages []string // "category/message", one a frame
}

func (u *upstream) Write(ctx context.Context, req *scribev1.WriteRequest) (*scribev1.WriteResponse, error) {
	u.mu.Lock()
	hold := u.hold
	u.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return nil, rpc.Errorf(scribev1.Reason_REASON_UNKNOWN_OUTCOME, "%w", context.Cause(ctx))
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	c := call{ack: req.GetAck(), at: time.Now()}
	for f, err := range record.Split(req.GetFrames()) {
		if err != nil {
			return nil, rpc.Errorf(scribev1.Reason_REASON_CORRUPT, "%w", err)
		}
		c.messages = append(c.messages, string(f.Category)+"/"+message(f.Bytes))
	}
	n := len(u.calls)
	u.calls = append(u.calls, c)
	var each func(string) error
	if u.answer != nil {
		r := u.answer(n, &c)
		if r.whole != nil {
			return nil, r.whole
		}
		each = r.each
	}
	resp := &scribev1.WriteResponse{}
	for _, m := range c.messages {
		r := &scribev1.FrameResult{}
		resp.Results = append(resp.Results, r)
		if each != nil {
			if err := each(m); err != nil {
				r.Error = rpc.Info(err)
				continue
			}
		}
		category, text, _ := strings.Cut(m, "/")
		u.stored[category] = append(u.stored[category], text)
		r.Shard, r.Lsn = 1, uint64(len(u.stored[category]))
	}
	return resp, nil
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
}

// run gives f a scribed under a clock that only the test moves, and checks afterwards that nothing is left.
func run(t *testing.T, cfg Config, f func(t *testing.T, c *cell)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cell{t: t, up: &upstream{stored: map[string][]string{}}}
		var err error
		if c.Scribed, err = New(cfg, Deps{Upstream: c.up}); err != nil {
			t.Fatal(err)
		}
		f(t, c)
		if err := c.Close(t.Context()); err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if q := &c.mu.queue; q.used != 0 || len(q.lanes) != 0 || len(q.turn) != 0 || q.running != 0 || c.mu.bodies != 0 {
			t.Errorf("%d bytes, %d lanes, %d turns, %d requests, %d bytes of bodies are left", q.used, len(q.lanes), len(q.turn), q.running, c.mu.bodies)
		}
		if b := c.mu.counts.buffered(); b != (amount{}) {
			t.Errorf("%+v are still buffered", b)
		}
	})
}

func makeFrame(t *testing.T, category, text string, sequenced bool) []byte {
	t.Helper()
	var b record.Builder
	if err := b.Reset(nil, record.Envelope{Category: category, Sequenced: sequenced, Producer: 1}); err != nil {
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

func (c *cell) snapshot() counts {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.counts.clone()
}
