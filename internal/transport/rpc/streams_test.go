package rpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"scribe/internal/transport/retry"
	"scribe/internal/transport/rpc"
	scribev1 "scribe/proto/scribe/v1"
)

func update(n uint64) *scribev1.SubscribeResponse {
	return &scribev1.SubscribeResponse{Updates: []*scribev1.ShardUpdate{{Shard: n}}}
}

// The messages of a server's stream come in order, each as it is sent, and its end is no error.
func TestServerStream(t *testing.T) {
	handled := make(chan struct{})
	f := &fake{stream: func(_ context.Context, _ proto.Message, send func(proto.Message) error) error {
		for i := range uint64(100) {
			if err := send(update(i)); err != nil {
				return err
			}
			<-handled // nothing waits in a buffer for more to come
		}
		return nil
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		next := uint64(0)
		err := e.metalog().Subscribe(t.Context(), &scribev1.SubscribeRequest{}, func(res *scribev1.SubscribeResponse) error {
			if got := res.GetUpdates()[0].GetShard(); got != next {
				return fmt.Errorf("message %d is %d", next, got)
			}
			next++
			handled <- struct{}{}
			return nil
		})
		if err != nil || next != 100 {
			t.Errorf("%d messages, %v", next, err)
		}
	})
}

// An error of send ends the stream at both ends and is the caller's as it is, even one that means something to streams.
func TestSendError(t *testing.T) {
	for _, want := range []error{errors.New("enough"), io.EOF, context.Canceled} {
		ended := make(chan error, 1)
		f := &fake{
			stream: func(ctx context.Context, _ proto.Message, send func(proto.Message) error) error {
				for ctx.Err() == nil {
					if err := send(nil); err != nil {
						break
					}
				}
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			},
			bidi: func(ctx context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
				for ctx.Err() == nil {
					if err := send(&scribev1.StreamResponse{}); err != nil {
						break
					}
				}
				<-ctx.Done()
				ended <- ctx.Err()
				return ctx.Err()
			},
		}
		everywhere(t, f, func(t *testing.T, e *endpoint) {
			n := 0
			third := func() error {
				if n++; n%3 == 0 {
					return want
				}
				return nil
			}
			if err := e.control().WatchMembers(t.Context(), &scribev1.WatchMembersRequest{}, func(*scribev1.WatchMembersResponse) error { return third() }); err != want { //nolint:errorlint // as it is
				t.Errorf("watch returned %v, want %v", err, want)
			}
			if err := <-ended; err == nil {
				t.Error("the server's context did not end")
			}
			if err := e.readStream().Stream(t.Context(), noSteps, func(*scribev1.StreamResponse) error { return third() }); err != want { //nolint:errorlint // as it is
				t.Errorf("stream returned %v, want %v", err, want)
			}
			if err := <-ended; err == nil {
				t.Error("the server's context did not end")
			}
			if n != 6 {
				t.Errorf("send was called %d times", n)
			}
		})
	}
}

func credit(n uint64) *scribev1.StreamRequest {
	return &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Credits{Credits: &scribev1.StreamCredits{Bytes: n}}}
}

func heartbeat(n uint64) *scribev1.StreamResponse {
	return &scribev1.StreamResponse{Step: &scribev1.StreamResponse_Heartbeat{Heartbeat: &scribev1.StreamHeartbeat{Pending: n}}}
}

// Both directions run at the same time, neither waits for the other, and both keep their order.
func TestBothWays(t *testing.T) {
	const steps = 500
	f := &fake{bidi: func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
		received := make(chan error, 1)
		go func() {
			for i := range uint64(steps) {
				req, err := recv(ctx)
				if err == nil && req.GetCredits().GetBytes() != i {
					err = fmt.Errorf("step %d is %d", i, req.GetCredits().GetBytes())
				}
				if err != nil {
					received <- err
					return
				}
			}
			_, err := recv(ctx)
			if _, again := recv(ctx); err != io.EOF || again != io.EOF { //nolint:errorlint // exactly
				err = fmt.Errorf("after the last step: %w, then %w", err, again)
			} else {
				err = nil
			}
			received <- err
		}()
		for i := range uint64(steps) {
			if err := send(heartbeat(i)); err != nil {
				return err
			}
		}
		if err := <-received; err != nil {
			return err
		}
		return send(heartbeat(steps)) // the end of the client's steps does not end the stream
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		sent, got := uint64(0), uint64(0)
		err := e.readStream().Stream(t.Context(), func(context.Context) (*scribev1.StreamRequest, error) {
			if sent == steps {
				return nil, io.EOF
			}
			sent++
			return credit(sent - 1), nil
		}, func(res *scribev1.StreamResponse) error {
			if n := res.GetHeartbeat().GetPending(); n != got {
				return fmt.Errorf("step %d is %d", got, n)
			}
			got++
			return nil
		})
		if err != nil || sent != steps || got != steps+1 {
			t.Errorf("sent %d, got %d: %v", sent, got, err)
		}
	})
}

// An error of recv ends the stream, although the server still waits, and is the caller's as it is.
func TestRecvError(t *testing.T) {
	want := errors.New("nothing more to ask")
	ended, received := make(chan struct{}, 1), make(chan struct{}, 2)
	f := &fake{bidi: func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), _ func(*scribev1.StreamResponse) error) error {
		for {
			if _, err := recv(ctx); err != nil { // perhaps the end of the request, which goes ahead of the cancelation
				<-ctx.Done()
				ended <- struct{}{}
				return err
			}
			received <- struct{}{}
		}
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		n := 0
		err := e.readStream().Stream(t.Context(), func(context.Context) (*scribev1.StreamRequest, error) {
			if n++; n <= 2 {
				return credit(1), nil
			}
			for range 2 { // a call that ends before the server has it is none to the server
				<-received
			}
			return nil, want
		}, func(*scribev1.StreamResponse) error { return nil })
		if err != want { //nolint:errorlint // as it is
			t.Errorf("stream returned %v", err)
		}
		<-ended
	})
}

// A server that ends or refuses a stream at once ends the caller's, whatever its recv and send are busy with.
func TestEndsAtOnce(t *testing.T) {
	for name, end := range map[string]error{
		"end":    nil,
		"refuse": rpc.RetryErrorf(scribev1.Reason_REASON_OVERLOADED, time.Second, "too many streams"),
	} {
		f := waiting(func(context.Context) error { return end })
		everywhere(t, f, func(t *testing.T, e *endpoint) {
			for i := range 50 {
				recv := noSteps
				if i%2 == 1 {
					steps := 0
					recv = func(ctx context.Context) (*scribev1.StreamRequest, error) { // is sending when the stream ends
						if steps++; steps > 100 {
							return noSteps(ctx)
						}
						return credit(1), nil
					}
				}
				err := e.readStream().Stream(t.Context(), recv, func(*scribev1.StreamResponse) error { return errors.New("nothing was sent") })
				if rpc.ReasonOf(err) != rpc.ReasonOf(end) || (err == nil) != (end == nil) {
					t.Fatalf("%s: stream returned %v", name, err)
				}
				err = e.metalog().WatchShards(t.Context(), &scribev1.WatchShardsRequest{}, func(*scribev1.WatchShardsResponse) error { return errors.New("nothing was sent") })
				if rpc.ReasonOf(err) != rpc.ReasonOf(end) || (err == nil) != (end == nil) {
					t.Fatalf("%s: watch returned %v", name, err)
				}
			}
		})
	}
}

// recv ends with the context that it is given, and the step that comes later is not lost.
func TestRecvContext(t *testing.T) {
	f := &fake{bidi: func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
		short, cancel := context.WithCancelCause(ctx)
		why := errors.New("time for a heartbeat")
		cancel(why)
		for range 100 {
			if _, err := recv(short); !errors.Is(err, why) {
				return fmt.Errorf("recv returned %w", err)
			}
		}
		if err := send(heartbeat(1)); err != nil { // only now the client sends
			return err
		}
		req, err := recv(ctx)
		if err != nil {
			return err
		}
		return send(heartbeat(req.GetCredits().GetBytes()))
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		asked := make(chan struct{}, 2)
		var got []uint64
		err := e.readStream().Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
			select {
			case <-asked:
				return credit(42), nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}, func(res *scribev1.StreamResponse) error {
			got = append(got, res.GetHeartbeat().GetPending())
			if len(got) == 1 {
				asked <- struct{}{}
			}
			return nil
		})
		if err != nil || len(got) != 2 || got[1] != 42 {
			t.Errorf("got %v, %v", got, err)
		}
	})
}

// The end of the caller's context ends a stream on which neither side says anything.
func TestCancelInSilence(t *testing.T) {
	f := &fake{bidi: func(ctx context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
		if err := send(heartbeat(1)); err != nil {
			return err
		}
		<-ctx.Done()
		return ctx.Err()
	}}
	everywhere(t, f, func(t *testing.T, e *endpoint) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ended := make(chan error, 1)
		go func() {
			ended <- e.readStream().Stream(ctx, func(ctx context.Context) (*scribev1.StreamRequest, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}, func(*scribev1.StreamResponse) error {
				go cancel() // while the next step is waited for
				return nil
			})
		}()
		select {
		case err := <-ended:
			if err == nil {
				t.Error("the stream ended as if it were complete")
			}
		case <-time.After(time.Minute):
			t.Fatal("the stream goes on")
		}
	})
}

// A stream whose peer vanishes in the middle can be opened again: the error says so.
func TestStreamBreaks(t *testing.T) {
	for _, network := range networks {
		t.Run(network, func(t *testing.T) {
			f := &fake{
				stream: func(_ context.Context, _ proto.Message, send func(proto.Message) error) error {
					_ = send(nil)
					panic(http.ErrAbortHandler)
				},
				bidi: func(_ context.Context, _ func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
					_ = send(heartbeat(1))
					panic(http.ErrAbortHandler)
				},
			}
			e := start(t, network, f.services())
			for _, kind := range kinds[3:] {
				err := kind.call(t.Context(), e)
				if connect.CodeOf(err) != connect.CodeUnavailable || rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || !retry.Retryable(err) {
					t.Errorf("%s: %v (%s)", kind.name, err, rpc.ReasonOf(err))
				}
			}
		})
	}
}

// A step over the limit is refused as such, at either end.
func TestStepTooLarge(t *testing.T) {
	f := &fake{bidi: func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), _ func(*scribev1.StreamResponse) error) error {
		_, err := recv(ctx)
		return err
	}}
	e := start(t, "tcp", f.services())
	for _, size := range []int{9 << 20, 69 << 20} {
		start := &scribev1.StreamRequest{Step: &scribev1.StreamRequest_Start{Start: &scribev1.StreamStart{Consumer: string(make([]byte, size))}}}
		first := sync.OnceValue(func() *scribev1.StreamRequest { return start })
		calls := 0
		err := e.readStream().Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
			if calls++; calls > 1 {
				return noSteps(ctx)
			}
			return first(), nil
		}, func(*scribev1.StreamResponse) error { return nil })
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_TOO_LARGE {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}

// Many streams share a connection without waiting for each other.
func TestManyStreams(t *testing.T) {
	const streams = 500
	all := make(chan struct{})
	var mu sync.Mutex
	open := 0
	f := &fake{bidi: func(ctx context.Context, recv func(context.Context) (*scribev1.StreamRequest, error), send func(*scribev1.StreamResponse) error) error {
		req, err := recv(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		if open++; open == streams {
			close(all)
		}
		mu.Unlock()
		<-all
		return send(heartbeat(req.GetCredits().GetBytes()))
	}}
	e := start(t, "tcp", f.services())
	c := e.readStream()
	var group sync.WaitGroup
	for i := range uint64(streams) {
		group.Go(func() {
			asked, got := false, "nothing"
			err := c.Stream(t.Context(), func(ctx context.Context) (*scribev1.StreamRequest, error) {
				if asked {
					return noSteps(ctx)
				}
				asked = true
				return credit(i), nil
			}, func(res *scribev1.StreamResponse) error {
				got = strconv.FormatUint(res.GetHeartbeat().GetPending(), 10)
				return nil
			})
			if err != nil || got != strconv.FormatUint(i, 10) {
				t.Errorf("stream %d got %s: %v", i, got, err)
			}
		})
	}
	group.Wait()
}

// A peer that stops answering without closing is noticed on a silent stream.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t, "memory", waiting(func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		}).services())
		var frozen atomic.Bool
		transport := rpc.NewTransport(func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := e.dial(ctx, network, addr)
			return freezingConn{c, &frozen}, err
		})
		defer transport.Close()
		began := time.Now()
		time.AfterFunc(time.Minute, func() { frozen.Store(true) })
		err := (&endpoint{transport: transport, url: "memory"}).readStream().Stream(t.Context(), noSteps, func(*scribev1.StreamResponse) error { return nil })
		if rpc.ReasonOf(err) != scribev1.Reason_REASON_NO_BACKEND || time.Since(began) < time.Minute || time.Since(began) > 100*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}

// freezingConn brings and takes nothing once it is frozen, and stays open.
type freezingConn struct {
	net.Conn
	frozen *atomic.Bool
}

func (c freezingConn) Read(b []byte) (int, error) {
	for {
		n, err := c.Conn.Read(b)
		if err != nil || !c.frozen.Load() {
			return n, err
		}
	}
}

func (c freezingConn) Write(b []byte) (int, error) {
	if c.frozen.Load() {
		return len(b), nil
	}
	return c.Conn.Write(b)
}
