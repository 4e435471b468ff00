package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// Everything that an error says arrives, for every reason, by every way.
func TestErrorsRoundTrip(t *testing.T) {
	everywhereKind(t, func(t *testing.T, network string, kind kind) {
		var err error
		e := start(t, network, waiting(func(context.Context) error { return err }).services())
		for number, name := range scribev1.Reason_name {
			reason := scribev1.Reason(number)
			info := &scribev1.ErrorInfo{
				Reason: reason, Message: "what was tried: " + name, RetryAfter: durationpb.New(1500 * time.Millisecond),
				Conflicts: []*scribev1.SequenceConflict{{Shard: 1 << 40, Producer: 7, Reason: scribev1.Reason_REASON_DUPLICATE, Epoch: 3, NextSequence: 99}},
			}
			err = rpc.InfoError(proto.CloneOf(info), errors.New("the text"))
			got := kind.call(t.Context(), e)
			if connect.CodeOf(got) != rpc.Code(reason) || !strings.HasSuffix(got.Error(), ": the text") {
				t.Errorf("%s: error is %v, want code %s", name, got, rpc.Code(reason))
			}
			if !proto.Equal(rpc.Info(got), info) || rpc.ReasonOf(got) != reason {
				t.Errorf("%s: info is %v", name, rpc.Info(got))
			}
			if retry.Retryable(got) != retry.Retryable(err) {
				t.Errorf("%s: retryable is %t at the server only", name, retry.Retryable(err))
			}
		}
	})
}

// Whatever a role wraps around an error arrives as well, and what a hop in between got is passed on whole.
func TestErrorsOfHops(t *testing.T) {
	for _, kind := range kinds {
		far := start(t, "memory", waiting(func(context.Context) error {
			return fmt.Errorf("flush shard 5: %w", rpc.RetryErrorf(scribev1.Reason_REASON_FENCED, 2*time.Second, "epoch 3 is old"))
		}).services())
		near := start(t, "memory", waiting(func(ctx context.Context) error {
			return fmt.Errorf("ask the batcher: %w", kind.call(ctx, far))
		}).services())
		err := kind.call(t.Context(), near)
		info := rpc.Info(err)
		if connect.CodeOf(err) != connect.CodeFailedPrecondition || info.GetReason() != scribev1.Reason_REASON_FENCED || info.GetRetryAfter().AsDuration() != 2*time.Second {
			t.Errorf("%s: error is %v with %v", kind.name, err, info)
		}
		for _, part := range []string{"ask the batcher: ", "flush shard 5: ", "epoch 3 is old"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %q misses %q", kind.name, err, part)
			}
		}
	}
}

// The reason of a connection that broke behind a hop is that of the hop's error: the first caller may not take it for a refusal.
func TestBrokenConnectionBehindHop(t *testing.T) {
	for _, kind := range kinds[:3] {
		near := start(t, "memory", waiting(func(ctx context.Context) error {
			dead := start(t, "memory", waiting(func(context.Context) error { panic(http.ErrAbortHandler) }).services())
			return kind.call(ctx, dead)
		}).services())
		if err := kind.call(t.Context(), near); rpc.ReasonOf(err) != scribev1.Reason_REASON_UNKNOWN_OUTCOME {
			t.Errorf("%s: error is %v (%s)", kind.name, err, rpc.ReasonOf(err))
		}
	}
}

func TestPlainErrors(t *testing.T) {
	e := start(t, "memory", waiting(func(context.Context) error { return errors.New("no idea") }).services())
	for _, kind := range kinds {
		err := kind.call(t.Context(), e)
		if connect.CodeOf(err) != connect.CodeUnknown || err.Error() != "unknown: no idea" || retry.Retryable(err) {
			t.Errorf("%s: error is %v", kind.name, err)
		}
	}
}

func TestInfo(t *testing.T) {
	cause := errors.New("disk full")
	overloaded := rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "buffer: %w", cause)
	for _, c := range []struct {
		name   string
		err    error
		reason scribev1.Reason
		text   string
	}{
		{"nil", nil, scribev1.Reason_REASON_UNSPECIFIED, ""},
		{"own", overloaded, scribev1.Reason_REASON_OVERLOADED, "buffer: disk full"},
		{"wrapped", fmt.Errorf("write: %w", overloaded), scribev1.Reason_REASON_OVERLOADED, "buffer: disk full"},
		{"joined", errors.Join(cause, overloaded), scribev1.Reason_REASON_OVERLOADED, "buffer: disk full"},
		{"outermost", rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "all failed: %w", overloaded), scribev1.Reason_REASON_NO_BACKEND, "all failed: resource_exhausted: buffer: disk full"},
		{"from info", rpc.FromInfo(&scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_SEALED, Message: "done"}), scribev1.Reason_REASON_SEALED, "done"},
		{"no info", rpc.FromInfo(nil), scribev1.Reason_REASON_UNSPECIFIED, ""},
		{"nil info", rpc.InfoError(nil, cause), scribev1.Reason_REASON_UNSPECIFIED, "disk full"},
		{"no error", rpc.InfoError(&scribev1.ErrorInfo{Reason: scribev1.Reason_REASON_SEALED, Message: "done"}, nil), scribev1.Reason_REASON_SEALED, "done"},
		{"plain", cause, scribev1.Reason_REASON_UNSPECIFIED, "disk full"},
		{"canceled", fmt.Errorf("wait: %w", context.Canceled), scribev1.Reason_REASON_UNKNOWN_OUTCOME, "wait: context canceled"},
		{"late", context.DeadlineExceeded, scribev1.Reason_REASON_UNKNOWN_OUTCOME, "context deadline exceeded"},
		{"of others", connect.NewError(connect.CodeUnavailable, cause), scribev1.Reason_REASON_UNKNOWN_OUTCOME, "unavailable: disk full"},
		{"exhausted", connect.NewError(connect.CodeResourceExhausted, cause), scribev1.Reason_REASON_OVERLOADED, "resource_exhausted: disk full"},
		{"invalid", connect.NewError(connect.CodeInvalidArgument, cause), scribev1.Reason_REASON_INVALID, "invalid_argument: disk full"},
		{"lost", connect.NewError(connect.CodeDataLoss, cause), scribev1.Reason_REASON_CORRUPT, "data_loss: disk full"},
	} {
		if info := rpc.Info(c.err); info.GetReason() != c.reason || info.GetMessage() != c.text {
			t.Errorf("%s: info is %v", c.name, info)
		}
	}
	if !errors.Is(overloaded, cause) {
		t.Error("the cause is hidden")
	}
}

func TestMessage(t *testing.T) {
	inner := rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "buffer: %w", errors.New("disk full"))
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("unavailable: as it is"), "unavailable: as it is"},
		{inner, "buffer: disk full"},
		{fmt.Errorf("write: %w", rpc.Errorf(scribev1.Reason_REASON_NO_BACKEND, "all failed: %w", inner)), "write: all failed: buffer: disk full"},
	} {
		if got := rpc.Message(c.err); got != c.want {
			t.Errorf("%q is %q, want %q", c.err, got, c.want)
		}
	}
}

// A code says what kind of error it is, so that a client that knows no reasons does right.
func TestCodes(t *testing.T) {
	for number, name := range scribev1.Reason_name {
		reason := scribev1.Reason(number)
		switch code := rpc.Code(reason); {
		case code == connect.CodeInternal && reason != scribev1.Reason_REASON_UNSPECIFIED:
			t.Errorf("%s has no code", name)
		case code == connect.CodeUnavailable && !retry.Retryable(rpc.Errorf(reason, "x")):
			t.Errorf("%s is %s and not retryable", name, code)
		}
	}
}

// What something in between answers is a refusal only when it says so: a gateway's 503 comes also after a server was asked.
func TestAnswersOfOthers(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		after  string // Retry-After
		body   string // of Connect's protocol when not empty
		code   connect.Code
		reason scribev1.Reason
		retry  time.Duration
	}{
		{"bad gateway", 502, "", "", connect.CodeUnavailable, scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0},
		{"unavailable", 503, "", "", connect.CodeUnavailable, scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0},
		{"unavailable for a while", 503, "2", "", connect.CodeUnavailable, scribev1.Reason_REASON_UNKNOWN_OUTCOME, 2 * time.Second},
		{"gateway timeout", 504, "", "", connect.CodeUnavailable, scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0},
		{"too many", 429, "", "", connect.CodeResourceExhausted, scribev1.Reason_REASON_OVERLOADED, 0},
		{"too many for a while", 429, "7", "", connect.CodeResourceExhausted, scribev1.Reason_REASON_OVERLOADED, 7 * time.Second},
		{"too many for ever", 429, "4000000000", "", connect.CodeResourceExhausted, scribev1.Reason_REASON_OVERLOADED, time.Hour},
		{"too many until 1994", 429, "Sun, 06 Nov 1994 08:49:37 GMT", "", connect.CodeResourceExhausted, scribev1.Reason_REASON_OVERLOADED, 0},
		{"too many for nonsense", 429, "soon", "", connect.CodeResourceExhausted, scribev1.Reason_REASON_OVERLOADED, 0},
		{"without a detail", 503, "", `{"code":"unavailable","message":"no upstream"}`, connect.CodeUnavailable, scribev1.Reason_REASON_UNKNOWN_OUTCOME, 0},
	} {
		mux := http.NewServeMux()
		mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if c.after != "" {
				w.Header().Set("Retry-After", c.after)
			}
			if c.body != "" {
				w.Header().Set("Content-Type", "application/json")
			}
			w.WriteHeader(c.status)
			_, _ = io.WriteString(w, c.body)
		})
		server := httptest.NewServer(mux)
		transport := rpc.NewTransport(nil)
		_, err := rpc.NewWriteClient(transport, server.URL).Write(t.Context(), &scribev1.WriteRequest{Frames: []byte("x")})
		transport.Close()
		server.Close()
		info := rpc.Info(err)
		if connect.CodeOf(err) != c.code || info.GetReason() != c.reason || info.GetRetryAfter().AsDuration() != c.retry {
			t.Errorf("%s: error is %v with %v", c.name, err, info)
		}
	}
}

// The label of a reason is its name, and costs nothing; reasons that this build does not know share one.
func TestReasonLabel(t *testing.T) {
	for reason, want := range map[scribev1.Reason]string{
		scribev1.Reason_REASON_UNSPECIFIED: "unspecified", scribev1.Reason_REASON_NO_BACKEND: "no_backend", 900: "unknown", -1: "unknown",
	} {
		if got := rpc.ReasonLabel(reason); got != want {
			t.Errorf("the label of %v is %q, want %q", reason, got, want)
		}
		if n := testing.AllocsPerRun(10, func() { rpc.ReasonLabel(reason) }); n != 0 {
			t.Errorf("the label of %v takes %v allocations", reason, n)
		}
	}
}
