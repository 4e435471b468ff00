package rpc_test

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// The mark of forwarded calls reaches the control plane with calls and streams; calls without it have none.
func TestForwardedMark(t *testing.T) {
	marked := make(chan bool, 1)
	f := &fake{
		unary: func(ctx context.Context, _ proto.Message) (proto.Message, error) {
			marked <- rpc.Forwarded(ctx)
			return nil, nil
		},
		stream: func(ctx context.Context, _ proto.Message, send func(proto.Message) error) error {
			marked <- rpc.Forwarded(ctx)
			return send(nil)
		},
	}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		for _, want := range []bool{false, true, false} {
			ctx := t.Context()
			if want {
				ctx = rpc.WithForwarded(ctx)
			}
			if _, err := e.control().ListPins(ctx, &scribev1.ListPinsRequest{}); err != nil {
				t.Fatal(err)
			}
			if got := <-marked; got != want {
				t.Errorf("a call is marked: %t, want %t", got, want)
			}
			err := e.control().WatchMembers(ctx, &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error { return nil })
			if err != nil {
				t.Fatal(err)
			}
			if got := <-marked; got != want {
				t.Errorf("a stream is marked: %t, want %t", got, want)
			}
		}
	})
}
