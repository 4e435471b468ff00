package controlplane

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

// serveRPC serves an instance over in-memory HTTP, and returns a client.
func serveRPC(t *testing.T, i *instance) rpc.ControlService {
	t.Helper()
	mux := http.NewServeMux()
	services := rpc.Services{Control: i}
	services.Register(mux)
	l, server := memhttp.Listen(), rpc.NewServer(mux, nil)
	server.Serve(l)
	transport := rpc.NewTransport(l.Dial)
	t.Cleanup(func() {
		transport.Close()
		if err := server.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return rpc.NewControlClient(transport, i.cfg.URL)
}

// Calls that are passed on over the network keep their errors, with reasons and hints, their deadlines, and their streams; they go
// one hop.
func TestForwardedOverRPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharedStore(t)
		leader := s.serve("a", func(c *Config, _ *Deps) { c.MaxSlot = 1 })
		synctest.Wait()
		there := serveRPC(t, leader)
		other := s.serve("b", func(_ *Config, d *Deps) { d.Peer = func(string) rpc.ControlService { return there } })
		here := serveRPC(t, other)
		synctest.Wait()

		member := func(id string) *scribev1.JoinRequest {
			return &scribev1.JoinRequest{Member: &scribev1.Member{Id: id, Roles: []scribev1.Role{scribev1.Role_ROLE_BATCHER}}, Ttl: durationpb.New(10 * time.Second)}
		}
		if res, err := here.Join(t.Context(), member("m")); err != nil || res.GetMember().GetSlot() != 1 {
			t.Fatalf("%v, %v", res, err)
		}
		_, err := here.Join(t.Context(), member("n"))
		wantReason(t, err, scribev1.Reason_REASON_OVERLOADED, "slots are taken")
		if retryAfter(err) != 20*time.Second {
			t.Errorf("%v hints at %v", err, retryAfter(err))
		}
		_, err = here.Heartbeat(t.Context(), &scribev1.HeartbeatRequest{Id: "n"})
		wantReason(t, err, scribev1.Reason_REASON_LEASE_EXPIRED)

		lists := make(chan int, 10)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- here.WatchMembers(ctx, &scribev1.WatchMembersRequest{}, func(msg *scribev1.WatchMembersResponse) error {
				lists <- len(msg.GetMembers())
				return nil
			})
		}()
		if n := <-lists; n != 1 {
			t.Errorf("%d members", n)
		}
		if _, err := here.Leave(t.Context(), &scribev1.LeaveRequest{Id: "m"}); err != nil {
			t.Fatal(err)
		}
		if n := <-lists; n != 0 {
			t.Errorf("%d members", n)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		// A deadline of the caller holds at the leader.
		release := leader.way.stall(slotPrefix)
		ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err = here.Join(ctx, member("m")); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		release()

		// A call goes one hop, whoever the others take for the leader.
		_, err = here.ListPins(rpc.WithForwarded(t.Context()), &scribev1.ListPinsRequest{})
		wantReason(t, err, scribev1.Reason_REASON_NO_BACKEND, "passed the call on")
		synctest.Wait()
		if n := other.forwarder.running.Load(); n != 0 {
			t.Errorf("%d calls are still counted", n)
		}
	})
}
