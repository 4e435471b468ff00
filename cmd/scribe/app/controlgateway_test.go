package app

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// hangingControl is a control plane that does not answer until it is told to.
type hangingControl struct {
	rpc.ControlService
	calls atomic.Int64
	hangs atomic.Bool
}

func (h *hangingControl) GetStatus(ctx context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	h.calls.Add(1)
	if h.hangs.Load() {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return &scribev1.GetStatusResponse{Members: []*scribev1.Member{{}}}, nil
}

// A program that starts on a host asks its agent what it offers: it must learn that while the control plane behind the agent hangs. One
// that goes on asks again every few seconds, and must not wait for it each time.
func TestStatusWhileTheControlPlaneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		control := &hangingControl{}
		control.hangs.Store(true)
		g := newControlGateway(control, "v", time.Now(), "", []scribev1.Role{scribev1.Role_ROLE_SCRIBED})
		defer func() {
			if err := g.close(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		ask := func() (*scribev1.GetStatusResponse, time.Duration) {
			start := time.Now()
			st, err := g.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
			if err != nil || st.GetVersion() != "v" || len(st.GetRoles()) != 1 {
				t.Fatalf("%v, %v", st, err)
			}
			return st, time.Since(start)
		}
		if _, took := ask(); took != statusTimeout {
			t.Errorf("the first answer took %v, want %v", took, statusTimeout)
		}
		for range 100 {
			if _, took := ask(); took != 0 {
				t.Fatalf("a later answer took %v", took)
			}
			<-time.After(statusInterval / 10)
		}
		if n := control.calls.Load(); n < 5 || n > 12 {
			t.Errorf("it was asked %d times in %v", n, 10*statusInterval)
		}
		control.hangs.Store(false)
		<-time.After(2 * statusInterval)
		if st, _ := ask(); len(st.GetMembers()) != 1 {
			t.Errorf("after the end of the outage: %v", st)
		}
		// It ends while it listens, and then it starts nothing more.
		control.hangs.Store(true)
		ask()
		if err := g.close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
