package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	"scribe/internal/transport/rpc/memhttp"
	scribev1 "scribe/proto/scribe/v1"
)

func TestParseAddresses(t *testing.T) {
	for text, want := range map[string]string{
		"host":                                 "host",
		"http://a:1/ , b:2, unix:/run/s.sock":  "http://a:1/,b:2,unix:/run/s.sock",
		"https://a,https://b/scribe":           "https://a,https://b/scribe",
		"":                                     `invalid address ""`,
		"a,,b":                                 "is empty",
		"a,":                                   "is empty",
		"a,b,http://A:7420/":                   "twice",
		"a,ftp://b":                            `invalid address "ftp://b"`,
		"a,/run/s.sock":                        `invalid address "/run/s.sock"`,
		"a,unix:":                              `invalid address "unix:"`,
		"a,http://":                            `invalid address "http://"`,
		strings.Repeat("a,", rpc.MaxAddresses): "the limit is 32",
	} {
		list, err := rpc.ParseAddresses(text)
		if got := fmt.Sprint(list, err); err == nil && list.String() != want || err != nil && !strings.Contains(got, want) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// hosts are processes that talk over memory. Connections to the others are refused.
type hosts struct {
	transport *rpc.Transport
	mu        struct {
		sync.Mutex
		servers map[string]*rpc.Server
		silent  map[string]bool // they neither answer nor refuse
		dialed  []string
		frozen  map[string]*atomic.Bool
	}
}

func newHosts(t *testing.T) *hosts {
	t.Helper()
	h := &hosts{}
	h.mu.servers, h.mu.silent, h.mu.frozen = map[string]*rpc.Server{}, map[string]bool{}, map[string]*atomic.Bool{}
	h.transport = rpc.NewTransport(h.dial)
	t.Cleanup(func() {
		h.transport.Close()
		for host := range h.mu.servers {
			h.stop(t, host)
		}
	})
	return h
}

func (h *hosts) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	host, _, _ := net.SplitHostPort(addr)
	h.mu.Lock()
	server, silent, frozen := h.mu.servers[host], h.mu.silent[host], h.mu.frozen[host]
	h.mu.dialed = append(h.mu.dialed, host)
	h.mu.Unlock()
	switch {
	case silent:
		<-ctx.Done()
		return nil, ctx.Err()
	case server == nil:
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("connection refused by " + host)}
	}
	l := memhttp.Listen()
	server.Serve(l)
	c, err := l.Dial(ctx, network, addr)
	return freezingConn{c, frozen}, err
}

// run starts a server.
func (h *hosts) run(host string, f *fake) {
	mux := http.NewServeMux()
	f.services().Register(mux)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.mu.servers[host], h.mu.frozen[host] = rpc.NewServer(mux, nil), new(atomic.Bool)
}

// stop ends a server with its connections.
func (h *hosts) stop(t *testing.T, host string) {
	t.Helper()
	h.mu.Lock()
	server := h.mu.servers[host]
	delete(h.mu.servers, host)
	h.mu.Unlock()
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := server.Close(ended); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// takeDialed returns the hosts that were dialed since.
func (h *hosts) takeDialed() (dialed []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	dialed, h.mu.dialed = h.mu.dialed, nil
	return dialed
}

func (h *hosts) wantDialed(t *testing.T, want ...string) {
	t.Helper()
	if got := h.takeDialed(); !slices.Equal(got, want) {
		t.Errorf("dialed %v, want %v", got, want)
	}
}

// named is a server that says who it is.
func named(name string) *fake {
	return &fake{
		unary: func(context.Context, proto.Message) (proto.Message, error) {
			return &scribev1.GetStatusResponse{Version: name}, nil
		},
		stream: func(_ context.Context, _ proto.Message, send func(proto.Message) error) error { return send(nil) },
	}
}

func wantAnswer(t *testing.T, c rpc.ControlService, want string) {
	t.Helper()
	if res, err := c.GetStatus(t.Context(), &scribev1.GetStatusRequest{}); err != nil || res.GetVersion() != want {
		t.Errorf("answered by %q (%v), want %s", res.GetVersion(), err, want)
	}
}

// All goes to one address as long as it answers, then to the next. The first is not asked again while another answers.
func TestAddressesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		c := rpc.NewControlClient(h.transport, "a,b,c")
		h.run("b", named("b"))
		h.run("c", named("c"))
		for range 10 {
			wantAnswer(t, c, "b")
		}
		h.wantDialed(t, "a", "b")
		h.run("a", named("a"))
		<-time.After(time.Hour) // idle connections end
		wantAnswer(t, c, "b")
		h.wantDialed(t, "b")
		h.stop(t, "b")
		wantAnswer(t, c, "c")
		// Another client of the list knows that b is away.
		h.stop(t, "c")
		h.takeDialed()
		wantAnswer(t, rpc.NewControlClient(h.transport, "a,b,c"), "a")
		h.wantDialed(t, "c", "a")
	})
}

// Addresses that are away are asked last, for a time that grows; the one whose time ends first is the first of them.
func TestAwayAddressesComeLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		c := rpc.NewControlClient(h.transport, "a,b")
		_, err := c.GetStatus(t.Context(), &scribev1.GetStatusRequest{})
		if d := retry.Classify(err); d.Class != retry.Unavailable || d.Unknown {
			t.Errorf("nobody there: %v", err)
		}
		for _, host := range []string{"a", "b"} {
			if !strings.Contains(fmt.Sprint(err), "refused by "+host) {
				t.Errorf("%v does not name %s", err, host)
			}
		}
		set, err := h.transport.Addresses("a,b")
		if err != nil {
			t.Fatal(err)
		}
		order := func(want string) {
			t.Helper()
			if got := set.Order().String(); got != want {
				t.Errorf("the order is %s, want %s", got, want)
			}
		}
		away := errors.New("away")
		set.ReportOutcome("a", nil)
		order("a,b")
		set.ReportOutcome("a", away)
		<-time.After(time.Second)
		order("a,b") // a's time is over, b has just failed again
		for pause := 2 * time.Second; pause < time.Minute; pause = min(2*pause, time.Minute) {
			set.ReportOutcome("a", away)
			set.ReportOutcome("a", away) // counts once
			set.ReportOutcome("b", nil)
			order("b,a")
			<-time.After(min(pause, 15*time.Second) - time.Millisecond)
			set.ReportOutcome("b", away) // for one second, from now on
			order("a,b")
			<-time.After(time.Millisecond)
			order("a,b")
			<-time.After(time.Second)
			order("b,a")
		}
	})
}

// An address that does not answer at all costs the patience once; the next call knows.
func TestSilentAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		h.mu.silent["a"] = true
		h.run("b", named("b"))
		c := rpc.NewControlClient(h.transport, "a,b")
		began := time.Now()
		wantAnswer(t, c, "b")
		if waited := time.Since(began); waited < time.Second || waited > 3*time.Second {
			t.Errorf("waited for %v", waited)
		}
		began = time.Now()
		wantAnswer(t, c, "b")
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the next call waited for %v", waited)
		}
	})
}

// TestBrokenCallIsNotRepeated: a request that may have been carried out fails as with one address. The caller's repetition goes elsewhere.
func TestBrokenCallIsNotRepeated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		reached := make(chan struct{})
		h.run("a", &fake{unary: func(ctx context.Context, _ proto.Message) (proto.Message, error) {
			close(reached)
			<-ctx.Done()
			return nil, ctx.Err()
		}})
		var second atomic.Int64
		h.run("b", &fake{unary: func(context.Context, proto.Message) (proto.Message, error) {
			second.Add(1)
			return &scribev1.WriteResponse{}, nil
		}})
		w := rpc.NewWriteClient(h.transport, "a,b")
		go func() {
			<-reached
			h.stop(t, "a")
		}()
		_, err := w.Write(t.Context(), &scribev1.WriteRequest{Frames: []byte("frame")})
		if d := retry.Classify(err); !d.Unknown || d.Class != retry.UnknownOutcome {
			t.Errorf("the broken call: %v", err)
		}
		if n := second.Load(); n != 0 {
			t.Errorf("the call was repeated %d times", n)
		}
		h.takeDialed()
		if _, err := w.Write(t.Context(), &scribev1.WriteRequest{Frames: []byte("frame")}); err != nil || second.Load() != 1 {
			t.Errorf("the repetition: %v, %d calls", err, second.Load())
		}
		h.wantDialed(t, "b")
	})
}

// A server that says it is unavailable has refused this call; the next one goes elsewhere.
func TestUnavailableServerIsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		h.run("a", &fake{unary: func(context.Context, proto.Message) (proto.Message, error) {
			return nil, rpc.Errorf(scribev1.Reason_REASON_SHUTTING_DOWN, "closing")
		}})
		h.run("b", named("b"))
		c := rpc.NewControlClient(h.transport, "a,b")
		if _, err := c.GetStatus(t.Context(), &scribev1.GetStatusRequest{}); rpc.ReasonOf(err) != scribev1.Reason_REASON_SHUTTING_DOWN {
			t.Errorf("the first call: %v", err)
		}
		wantAnswer(t, c, "b")
	})
}

// A stream whose peer does not answer pings ends as with one address, and its next attempt goes elsewhere; so does one that was
// begun with steps of the client.
func TestStreamsGoElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHosts(t)
		waits := &fake{
			stream: func(ctx context.Context, _ proto.Message, send func(proto.Message) error) error {
				if err := send(nil); err != nil {
					return err
				}
				<-ctx.Done()
				return ctx.Err()
			},
		}
		h.run("a", waits)
		echo := named("b")
		echo.bidi = func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
			req, err := recv(ctx)
			if err != nil {
				return err
			}
			return send(heartbeat(req.GetCredits().GetBytes()))
		}
		h.run("b", echo)
		c := rpc.NewMetalogClient(h.transport, "a,b")
		err := c.Subscribe(t.Context(), &scribev1.SubscribeRequest{}, func(*scribev1.SubscribeResponse) error {
			h.mu.frozen["a"].Store(true)
			return nil
		})
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND {
			t.Errorf("the frozen stream: %v", err)
		}
		h.takeDialed()
		if err := c.Subscribe(t.Context(), &scribev1.SubscribeRequest{}, func(*scribev1.SubscribeResponse) error { return nil }); err != nil {
			t.Errorf("the next stream: %v", err)
		}
		h.wantDialed(t, "b")
		var got uint64
		steps := []*scribev1.StreamRequest{credit(7)}
		err = rpc.NewReadStreamClient(h.transport, "gone,b").Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
			if len(steps) == 0 {
				return noSteps(ctx)
			}
			step := steps[0]
			steps = nil
			return step, nil
		}, func(res *scribev1.StreamResponse) error {
			got = res.GetHeartbeat().GetPending()
			return nil
		})
		if err != nil || got != 7 {
			t.Errorf("a stream with steps: %d, %v", got, err)
		}
	})
}

// An invalid list is reported by each call, and is not worth a repetition.
func TestInvalidList(t *testing.T) {
	transport := rpc.NewTransport(nil)
	defer transport.Close()
	_, err := rpc.NewControlClient(transport, "a,,b").GetStatus(t.Context(), &scribev1.GetStatusRequest{})
	_, bulk := rpc.NewWriteClient(transport, "a,a").Write(t.Context(), &scribev1.WriteRequest{})
	stream := rpc.NewMetalogClient(transport, "a,ftp://b").Subscribe(t.Context(), &scribev1.SubscribeRequest{}, nil)
	for _, err := range []error{err, bulk, stream} {
		if retry.Classify(err).Class != retry.Invalid || !strings.Contains(err.Error(), "server addresses: ") {
			t.Errorf("%v", err)
		}
	}
}
