package app

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"scribe/internal/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

// hangingControl is a control plane that does not answer until it is told to.
type hangingControl struct {
	rpc.ControlService
	calls int
	hangs bool
}

func (h *hangingControl) GetStatus(ctx context.Context, _ *scribev1.GetStatusRequest) (*scribev1.GetStatusResponse, error) {
	h.calls++
	if h.hangs {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return &scribev1.GetStatusResponse{Members: []*scribev1.Member{{}}}, nil
}

// A program that starts on a host asks its agent what it offers: it must learn that while the control plane behind the agent hangs.
func TestStatusWhileTheControlPlaneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		control := &hangingControl{hangs: true}
		g := &gateway{ControlService: control, version: "v", roles: []scribev1.Role{scribev1.Role_ROLE_SCRIBED}}
		ask := func() (*scribev1.GetStatusResponse, time.Duration) {
			start := time.Now()
			st, err := g.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
			if err != nil || st.GetVersion() != "v" || len(st.GetRoles()) != 1 {
				t.Fatalf("%v, %v", st, err)
			}
			return st, time.Since(start)
		}
		if _, took := ask(); took != statusPatience {
			t.Errorf("the first answer took %v, want %v", took, statusPatience)
		}
		if _, took := ask(); took != 0 || control.calls != 1 {
			t.Errorf("the second answer took %v, after %d questions", took, control.calls)
		}
		control.hangs = false
		<-time.After(statusSilence)
		if st, _ := ask(); len(st.GetMembers()) != 1 {
			t.Errorf("after the end of the outage: %v", st)
		}
	})
}
