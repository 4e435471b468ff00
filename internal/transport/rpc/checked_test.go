package rpc_test

import (
	"context"
	"testing"

	"scribe/internal/transport/rpc"
)

// What a caller has checked is known to a role that it calls directly, and to nobody behind a transport.
func TestCheckedStaysInTheProcess(t *testing.T) {
	ctx := rpc.WithChecked(t.Context())
	if rpc.Checked(t.Context()) || !rpc.Checked(ctx) {
		t.Error("the mark does not tell the two apart")
	}
	everywhereKind(t, func(t *testing.T, network string, kind kind) {
		asked := false
		e := start(t, network, waiting(func(ctx context.Context) error {
			asked = true
			if rpc.Checked(ctx) {
				t.Errorf("%s: bytes that came over a transport pass for checked", kind.name)
			}
			return nil
		}).services())
		if err := kind.call(ctx, e); err != nil || !asked {
			t.Errorf("%s: %v", kind.name, err)
		}
	})
}
