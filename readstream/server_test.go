package readstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/format/record"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

func TestConfigReportsEveryFault(t *testing.T) {
	good := DefaultConfig()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	var zero Config
	zero.RetryAfter = -1
	_, err := New(zero, Deps{})
	if err == nil {
		t.Fatal("no error")
	}
	for _, name := range []string{
		"MaxStreams", "MaxShards", "StreamBytes", "BatchEntries", "BatchBytes", "Reads", "StartTimeout", "FailAfter", "RetryAfter",
		"Deps.Log", "Deps.Categories",
	} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q is not named in: %v", name, err)
		}
	}
	good.TotalBytes = good.StreamBytes - 1
	if err := good.Validate(); err == nil || !strings.Contains(err.Error(), "TotalBytes") {
		t.Errorf("got %v", err)
	}
}

func TestStartReportsEveryFault(t *testing.T) {
	h := newHarness(t)
	err := h.dial(func(s *scribev1.StreamStart) {
		s.Category = "-"
		s.Consumer = strings.Repeat("x", 256)
		s.LogicalShards = []uint32{1, 1, 70_000}
		s.StartAt = 9
		s.StartTime = 5
		s.Resume = []*scribev1.ShardPosition{{Shard: 1, Lsn: 0}, {Shard: 2, Lsn: 1}, {Shard: 2, Lsn: 3}}
		s.Window = durationpb.New(-time.Second)
		s.Heartbeat = durationpb.New(time.Millisecond)
	}).end()
	wantReason(t, err, scribev1.Reason_REASON_INVALID)
	for _, part := range []string{
		"category name", "consumer", "70000", "1 is named twice", "start_at 9", "start time", "LSN 0", "two positions", "window", "heartbeat",
	} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in: %v", part, err)
		}
	}
	if got := h.metric("streams_refused_total"); got != 1 {
		t.Errorf("%v refusals counted", got)
	}
}

func TestStartRefusals(t *testing.T) {
	h := newHarness(t)
	foreign := uint64(record.MakeShardID(testCategoryID+1, 0, 1))
	for name, c := range map[string]struct {
		change option
		want   scribev1.Reason
	}{
		"unknown category": {func(s *scribev1.StreamStart) { s.Category = "other" }, scribev1.Reason_REASON_UNKNOWN_CATEGORY},
		"unknown shard":    {func(s *scribev1.StreamStart) { s.LogicalShards = []uint32{100} }, scribev1.Reason_REASON_UNKNOWN_SHARD},
		"other category's position": {func(s *scribev1.StreamStart) {
			s.Resume = []*scribev1.ShardPosition{{Shard: foreign, Lsn: 1}}
		}, scribev1.Reason_REASON_INVALID},
		"future": {func(s *scribev1.StreamStart) {
			s.StartAt, s.StartTime = scribev1.StartAt_START_AT_TIME, time.Now().Add(time.Hour).UnixMicro()
		}, scribev1.Reason_REASON_INVALID},
		"many positions": {func(s *scribev1.StreamStart) {
			s.Resume = make([]*scribev1.ShardPosition, maxResume+1)
		}, scribev1.Reason_REASON_INVALID},
		"bad duration": {func(s *scribev1.StreamStart) { s.Window = &durationpb.Duration{Seconds: 1, Nanos: -1} }, scribev1.Reason_REASON_INVALID},
	} {
		t.Run(name, func(t *testing.T) { wantReason(t, h.dial(c.change).end(), c.want) })
	}
}

func TestTooManyShards(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxShards = 3 })
	h.create(shards(3)...)
	c, _ := h.open()
	h.create(shardID(50, 1))
	wantReason(t, c.end(), scribev1.Reason_REASON_TOO_LARGE)
	wantReason(t, h.dial().end(), scribev1.Reason_REASON_TOO_LARGE)
	h.open(func(s *scribev1.StreamStart) { s.LogicalShards = []uint32{0, 50} })
}

func TestTooManyStreams(t *testing.T) {
	h := newHarness(t, func(c *Config) { c.MaxStreams = 2 })
	a, _ := h.open()
	h.open()
	err := h.dial().end()
	wantReason(t, err, scribev1.Reason_REASON_OVERLOADED)
	if rpc.Info(err).GetRetryAfter().AsDuration() <= 0 {
		t.Error("no hint when to try again")
	}
	a.close()
	h.open()
	if got := h.metric("streams"); got != 2 {
		t.Errorf("%v streams counted", got)
	}
}

// serve calls Stream with steps that a test makes itself.
func serve(s *Server, recv func(context.Context) (*scribev1.StreamRequest, error)) error {
	return s.Stream(context.Background(), recv, func(*scribev1.StreamResponse) error { return nil })
}

func TestFirstStep(t *testing.T) {
	bubble(t, func(t *testing.T, h *harness) {
		wait := func(ctx context.Context) (*scribev1.StreamRequest, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		wantReason(t, serve(h.server, wait), scribev1.Reason_REASON_INVALID)
		wantReason(t, serve(h.server, func(context.Context) (*scribev1.StreamRequest, error) { return nil, io.EOF }), scribev1.Reason_REASON_INVALID)
		credits := &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{}}
		wantReason(t, serve(h.server, func(context.Context) (*scribev1.StreamRequest, error) { return credits, nil }), scribev1.Reason_REASON_INVALID)
		broken := errors.New("broken")
		if err := serve(h.server, func(context.Context) (*scribev1.StreamRequest, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("got %v", err)
		}
	}, func(c *Config) { c.StartTimeout = 5 * time.Millisecond })
}

func TestLaterSteps(t *testing.T) {
	h := newHarness(t)
	h.write(1, shardID(0, 1))
	// A second start is refused.
	c, _ := h.open()
	c.in <- &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{}}}
	wantReason(t, c.end(), scribev1.Reason_REASON_INVALID)
	// A client that says no more still listens.
	c, _ = h.open(earliest, plenty)
	close(c.in)
	c.entries(1)
	h.write(1, shardID(0, 1))
	c.entries(2)
	// One that goes away ends its stream.
	c.stop()
	if err := c.end(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestSendError(t *testing.T) {
	h := newHarness(t)
	broken := errors.New("broken")
	start := &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Category: testCategory}}}
	first := true
	err := h.server.Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
		if first {
			first = false
			return start, nil
		}
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}, func(*scribev1.StreamResponse) error { return broken })
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestClose(t *testing.T) {
	h := newHarness(t)
	waiting := make(chan error, 1)
	entered := make(chan struct{})
	go func() {
		waiting <- serve(h.server, func(ctx context.Context) (*scribev1.StreamRequest, error) {
			close(entered)
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
	}()
	<-entered
	c, _ := h.open()
	// A client that does not take its notice holds up Close until its context ends, and no longer.
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan error, 1)
	go func() { stuck <- h.server.Close(ctx) }()
	wantReason(t, <-waiting, scribev1.Reason_REASON_SHUTTING_DOWN)
	wantReason(t, h.dial().end(), scribev1.Reason_REASON_SHUTTING_DOWN)
	cancel()
	if err := <-stuck; !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "1 streams") {
		t.Fatalf("got %v", err)
	}
	c.close()
	h.close() // again
}

// The same over HTTP: nothing in the role depends on being called directly.
func TestOverConnect(t *testing.T) {
	h := newHarness(t)
	all := shards(3)
	for range 10 {
		h.write(1, all...)
	}
	mux := http.NewServeMux()
	(&rpc.Services{ReadStream: h.server}).Register(mux)
	l := memhttp.Listen()
	srv := rpc.NewServer(mux, nil)
	srv.Serve(l)
	transport := rpc.NewTransport(l.Dial)
	t.Cleanup(func() {
		transport.Close()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := srv.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	checkBounds(t, rpc.NewReadStreamClient(transport, "http://memory"))
	c := dial(t, rpc.NewReadStreamClient(transport, "http://memory"), earliest, withCredits(7, 1<<30))
	c.opened()
	c.entries(7)
	c.credit(13, 0)
	c.entries(20)
	h.restartWhile()
	resume := c.evicted()
	if err := c.end(); err != nil {
		t.Fatal(err)
	}
	c2, _ := h.open(plenty, resumeAt(resume))
	c2.entries(10)
	err := dial(t, rpc.NewReadStreamClient(transport, "http://memory")).end()
	wantReason(t, err, scribev1.Reason_REASON_SHUTTING_DOWN)
}

// TestBounds: the bounds of shards come without a stream.
func TestBounds(t *testing.T) {
	h := newHarness(t)
	for range 10 {
		h.write(1, shards(3)...)
	}
	checkBounds(t, h.server)
	if err := h.engine.Trim(t.Context(), shardID(0, 1), 4); err != nil {
		t.Fatal(err)
	}
	res, err := h.server.Bounds(t.Context(), &scribev1.BoundsRequest{Category: testCategory, Shards: []uint64{uint64(shardID(0, 1))}})
	if b := res.GetShards(); err != nil || len(b) != 1 || b[0].GetFirstLsn() != 4 || b[0].GetNextLsn() != 11 {
		t.Errorf("after a trim: %v, %v", b, err)
	}
}

func checkBounds(t *testing.T, service rpc.ReadStreamService) {
	t.Helper()
	ask := func(category string, shards ...uint64) ([]*scribev1.ShardBounds, error) {
		res, err := service.Bounds(t.Context(), &scribev1.BoundsRequest{Category: category, Shards: shards})
		return res.GetShards(), err
	}
	known, absent := uint64(shards(3)[0]), uint64(shardID(9, 9))
	b, err := ask(testCategory, known, absent)
	if err != nil || len(b) != 2 || b[0].GetShard() != known || b[0].GetFirstLsn() != 1 || b[0].GetNextLsn() != 11 || b[1].GetNextLsn() != 1 || b[1].GetSealed() {
		t.Errorf("%v, %v", b, err)
	}
	_, err = ask("other", known)
	wantReason(t, err, scribev1.Reason_REASON_UNKNOWN_CATEGORY)
	for _, wrong := range [][]uint64{nil, {uint64(record.MakeShardID(testCategoryID+1, 0, 1))}, make([]uint64, 1001)} {
		_, err = ask(testCategory, wrong...)
		wantReason(t, err, scribev1.Reason_REASON_INVALID)
	}
}
